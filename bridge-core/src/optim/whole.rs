//! Parameters whose rules need them whole: a parameter and its gradient are gathered on one of the
//! ranks that hold parts of them, its owner, which has the states; the new values go back. The
//! layout is computed without communication, for plans too.

use std::collections::BTreeMap;
use std::ops::Range;

use bridge_dist::comm::{CommError, Group, UnevenExchange};
use bridge_dist::mesh::{GroupKind, Mesh, ProcessGroups};
use burn::tensor::{Device, Tensor, TensorData};

use super::bucket::owned_range;
use crate::model::{Declaration, Member, Placement, RankPlace, ReplicaGroup};

/// Name of the group that gathers whole parameters.
pub const WHOLE: &str = "whole";
/// Name of the group that gathers whole parameters of experts.
pub const EXPERT_WHOLE: &str = "expert-whole";

/// Tensors that travel to the owner of a parameter: its value and its gradient.
pub(crate) const GATHERED: usize = 2;

/// A rank that holds parts of the same parameters as others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The rank, of the world.
    rank: usize,
    /// Place among the ranks that shard weights.
    tensor: Member,
    /// Place among the ranks that divide optimizer state.
    shard: Member,
}

/// The ranks that hold parts of the same parameters as `rank`, in rank order.
pub(crate) fn holders(mesh: &Mesh, rank: usize, replicas: ReplicaGroup, divides_state: bool) -> Vec<Holder> {
    let (tensor, shards) = match replicas {
        ReplicaGroup::Dense => (GroupKind::Tensor, GroupKind::DistributedOptimizer),
        ReplicaGroup::Expert => (GroupKind::ExpertTensor, GroupKind::ExpertDistributedOptimizer),
    };
    let group_of = |kind, rank| mesh.group_of(kind, rank).expect("every rank is in one group of this kind");
    let tensor_group = group_of(tensor, rank);
    let mut holders = Vec::new();
    for (place, member) in tensor_group.iter().enumerate() {
        let shard_group = if divides_state { group_of(shards, *member) } else { vec![*member] };
        holders.extend(shard_group.iter().enumerate().map(|(shard, rank)| Holder {
            rank: *rank,
            tensor: Member { rank: place, size: tensor_group.len() },
            shard: Member { rank: shard, size: shard_group.len() },
        }));
    }
    holders.sort_by_key(|holder| holder.rank);
    holders
}

/// A parameter and its parts on the ranks of a group.
#[derive(Clone, Debug)]
pub(crate) struct WholeLayout {
    name: String,
    /// Shape of the whole parameter.
    shape: Vec<usize>,
    /// Place in the group of the rank that updates it.
    pub owner: usize,
    /// By rank of the group, its slice and the range of it that the rank updates.
    parts: Vec<(Placement, Range<usize>)>,
}

impl WholeLayout {
    /// Name of the parameter.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shape of the whole parameter.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements of the part of a rank of the group.
    pub fn part_len(&self, rank: usize) -> usize {
        self.parts[rank].1.len()
    }

    /// Elements that a rank of the group hands over: of a parameter that tensor-parallel ranks hold
    /// whole, the first of them does.
    fn given_len(&self, rank: usize, holders: &[Holder]) -> usize {
        let (placement, range) = &self.parts[rank];
        if placement.shard.is_none() && holders[rank].tensor.rank > 0 { 0 } else { range.len() }
    }

    /// Elements that all ranks of the group hand over, for one tensor.
    pub fn all_given(&self, holders: &[Holder]) -> usize {
        (0..holders.len()).map(|rank| self.given_len(rank, holders)).sum()
    }

    fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Runs of the whole parameter that a rank's part consists of, in its order.
    fn runs(&self, rank: usize) -> impl Iterator<Item = Range<usize>> {
        let (placement, part) = &self.parts[rank];
        let part = part.clone();
        placement
            .held_runs(&self.shape)
            .into_iter()
            .scan(0, |next, run| {
                let start = std::mem::replace(next, *next + run.len());
                Some((start, run))
            })
            .filter_map(move |(start, run)| {
                let from = part.start.max(start);
                let to = part.end.min(start + run.len());
                (from < to).then(|| run.start + from - start..run.start + to - start)
            })
    }
}

/// Layout of parameters that ranks hold parts of. Owners are chosen so that each has about as much
/// to compute: the largest first, each on the rank with least so far.
pub(crate) fn layout<'a>(parameters: impl Iterator<Item = &'a Declaration>, holders: &[Holder]) -> Vec<WholeLayout> {
    let only = Member { rank: 0, size: 1 };
    let part = |parameter: &Declaration, shape: &[usize], holder: &Holder| {
        let place =
            RankPlace { tensor: holder.tensor, expert: only, expert_tensor: holder.tensor, sequence_parallel: false };
        let placement = parameter.partition.placement(shape, &place, parameter.placement.replicas);
        let held = placement.held_runs(shape).iter().map(ExactSizeIterator::len).sum();
        (placement, owned_range(held, holder.shard.rank, holder.shard.size))
    };
    let mut layouts: Vec<WholeLayout> = parameters
        .map(|parameter| {
            let shape = parameter.global_shape();
            let parts = holders.iter().map(|holder| part(parameter, &shape, holder)).collect();
            WholeLayout { name: parameter.name.clone(), shape, owner: 0, parts }
        })
        .collect();
    // A step of an update multiplies a matrix by a square one of its smaller side.
    let cost = |layout: &WholeLayout| layout.num_elements() * layout.shape.iter().min().unwrap_or(&1);
    let mut order: Vec<usize> = (0..layouts.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(cost(&layouts[*index])));
    let mut loads = vec![0; holders.len()];
    for index in order {
        let owner = (0..loads.len()).min_by_key(|rank| loads[*rank]).unwrap_or(0);
        loads[owner] += cost(&layouts[index]);
        layouts[index].owner = owner;
    }
    layouts
}

/// Gathering of the whole parameters of a rank.
#[derive(Debug, Default)]
pub(super) struct WholeGathers(Vec<Gather>);

#[derive(Debug)]
struct Gather {
    group: Group,
    holders: Vec<Holder>,
    layouts: Vec<WholeLayout>,
}

/// Tensors of a parameter: its value and its gradient, or its new value.
type Tensors<const N: usize> = BTreeMap<String, [Tensor<1>; N]>;

impl WholeGathers {
    /// For the `parameters` of this rank that are updated whole. All ranks call this together, also
    /// those that have no such parameter. Fails if groups cannot be made.
    pub fn new<'a>(
        groups: &ProcessGroups,
        parameters: impl Iterator<Item = &'a Declaration> + Clone,
        divides_state: bool,
    ) -> Result<Self, CommError> {
        let mut gathers = Vec::new();
        for (replicas, name) in [(ReplicaGroup::Dense, WHOLE), (ReplicaGroup::Expert, EXPERT_WHOLE)] {
            let holders = holders(groups.mesh(), groups.world().rank(), replicas, divides_state);
            let of_kind = parameters.clone().filter(|parameter| parameter.placement.replicas == replicas);
            if let (Some(first), true) = (holders.first(), holders.len() > 1) {
                let group = groups.world().split(Some(first.rank), groups.world().rank(), name)?;
                let group = group.expect("every rank has a color");
                gathers.push(Gather { layouts: layout(of_kind, &holders), group, holders });
            }
        }
        Ok(Self(gathers))
    }

    /// True if this rank has the states of a parameter that is updated whole.
    pub fn owns(&self, name: &str) -> bool {
        let found = self.0.iter().find_map(|gather| {
            let layout = gather.layouts.iter().find(|layout| layout.name == name)?;
            Some(layout.owner == gather.group.rank())
        });
        found.unwrap_or(true)
    }

    /// Whole values and gradients of the parameters that this rank updates, from its parts of all.
    /// Fails if ranks cannot exchange them.
    pub fn gather(&self, mut parts: Tensors<GATHERED>) -> Result<Tensors<GATHERED>, CommError> {
        for gather in self.0.iter().filter(|gather| !gather.layouts.is_empty()) {
            gather.gather(&mut parts)?;
        }
        Ok(parts)
    }

    /// New values of this rank's parts, from the whole ones that it made. Fails if ranks cannot
    /// exchange them.
    pub fn scatter(
        &self,
        mut whole: BTreeMap<String, Tensor<1>>,
        device: &Device,
    ) -> Result<BTreeMap<String, Tensor<1>>, CommError> {
        for gather in self.0.iter().filter(|gather| !gather.layouts.is_empty()) {
            gather.scatter(&mut whole, device)?;
        }
        Ok(whole)
    }
}

impl Gather {
    /// Parameters that a rank of the group owns.
    fn owned_by(&self, rank: usize) -> impl Iterator<Item = &WholeLayout> {
        self.layouts.iter().filter(move |layout| layout.owner == rank)
    }

    fn gather(&self, parts: &mut Tensors<GATHERED>) -> Result<(), CommError> {
        let (me, ranks) = (self.group.rank(), 0..self.group.size());
        let mut send = Vec::new();
        let mut device = None;
        let send_counts: Vec<usize> = ranks
            .clone()
            .map(|owner| {
                let before = send.len();
                for layout in self.owned_by(owner) {
                    let tensors = parts.remove(&layout.name).expect("every rank has its parts of all parameters");
                    device.get_or_insert_with(|| tensors[0].device());
                    for tensor in tensors {
                        if layout.given_len(me, &self.holders) > 0 {
                            send.extend(values_of(tensor));
                        }
                    }
                }
                send.len() - before
            })
            .collect();
        let given = |rank: usize| self.owned_by(me).map(|layout| layout.given_len(rank, &self.holders)).sum::<usize>();
        let recv_counts: Vec<usize> = ranks.clone().map(|rank| GATHERED * given(rank)).collect();
        let received = exchange(&self.group, &send, &send_counts, &recv_counts)?;
        let device = device.expect("there are parameters");
        let mut whole: Vec<[Vec<f32>; GATHERED]> =
            self.owned_by(me).map(|layout| [(); GATHERED].map(|()| vec![0.0; layout.num_elements()])).collect();
        let mut rest = received.as_slice();
        for rank in ranks {
            for (layout, tensors) in self.owned_by(me).zip(&mut whole) {
                if layout.given_len(rank, &self.holders) == 0 {
                    continue;
                }
                for tensor in tensors {
                    for run in layout.runs(rank) {
                        let (values, after) = rest.split_at(run.len());
                        tensor[run].copy_from_slice(values);
                        rest = after;
                    }
                }
            }
        }
        parts.extend(
            self.owned_by(me)
                .zip(whole)
                .map(|(layout, tensors)| (layout.name.clone(), tensors.map(|values| tensor_of(values, &device)))),
        );
        Ok(())
    }

    fn scatter(&self, whole: &mut BTreeMap<String, Tensor<1>>, device: &Device) -> Result<(), CommError> {
        let (me, ranks) = (self.group.rank(), 0..self.group.size());
        let owned: Vec<(&WholeLayout, Vec<f32>)> = self
            .owned_by(me)
            .map(|layout| {
                let value = whole.remove(&layout.name).expect("the owner updated it");
                (layout, values_of(value))
            })
            .collect();
        let mut send = Vec::new();
        let send_counts: Vec<usize> = ranks
            .clone()
            .map(|rank| {
                let before = send.len();
                for (layout, values) in &owned {
                    layout.runs(rank).for_each(|run| send.extend_from_slice(&values[run]));
                }
                send.len() - before
            })
            .collect();
        let own = |rank: usize| self.owned_by(rank).map(|layout| layout.part_len(me)).sum::<usize>();
        let recv_counts: Vec<usize> = ranks.clone().map(own).collect();
        let received = exchange(&self.group, &send, &send_counts, &recv_counts)?;
        let mut rest = received.as_slice();
        for layout in ranks.flat_map(|rank| self.owned_by(rank)) {
            let (values, after) = rest.split_at(layout.part_len(me));
            whole.insert(layout.name.clone(), tensor_of(values.to_vec(), device));
            rest = after;
        }
        Ok(())
    }
}

fn exchange(group: &Group, send: &[f32], send_counts: &[usize], recv_counts: &[usize]) -> Result<Vec<f32>, CommError> {
    let mut received = vec![0.0_f32; recv_counts.iter().sum()];
    group.all_to_all_uneven(UnevenExchange {
        input: send.into(),
        send_counts,
        output: (&mut received).into(),
        recv_counts,
    })?;
    Ok(received)
}

fn values_of(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("updates are made in float32")
}

fn tensor_of(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), device)
}
