//! Distribution of a rank's parameters over the ranks of a run: who reduces their gradients, who
//! owns which range, who counts them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::OnceLock;

use bridge_dist::comm::{CommError, Group, ReduceOp, all_gather_bytes};
use bridge_dist::mesh::ProcessGroups;
use bridge_kernels::optim::{SquareSums, count_zeros};
use burn::tensor::{Device, Tensor};

use super::GradientBuffer;
use super::bucket::{Bucket, BucketParameter, ShardCounts, buckets, common, owned_range, padded_part, padded_part_of};
use super::flat::part;
use super::gradients::{SharedElements, SharedParameters};
use super::settings::{DistributionSettings, Sharding};
use super::sharing::{copy_group, instance_group, replica_group, row_copies, shard_group, tied_names};
use crate::model::{ModelChunk, ReplicaGroup};
use crate::timers::{TimerLevel, Timers};

/// Placement of one parameter on the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParameterPlacement {
    /// Over which ranks its gradient is summed.
    pub replicas: ReplicaGroup,
    /// The elements of it that this rank owns among the ranks of [`Distribution::shards`].
    pub owned: Range<usize>,
    /// Elements on this rank.
    pub num_elements: usize,
    /// False for frozen parameters.
    pub is_trained: bool,
    /// True if each rank has the whole parameter, even if parameters are sharded.
    is_whole: bool,
    /// The elements that this rank counts for the model; `None` on ranks that hold a copy which
    /// another one counts.
    counted: Option<Range<usize>>,
    /// The elements that other tensor-parallel ranks hold too, each with its share of their
    /// gradient.
    shared: Range<usize>,
    /// The gradient is also summed over the ranks that hold copies ([`copy_group`]).
    is_partial: bool,
    /// The gradient is also summed over first and last pipeline stage.
    is_tied: bool,
}

/// Elements of all parameters of a model, each counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSize {
    /// Number of all elements.
    pub parameters: u64,
    /// Number of trained elements.
    pub trained: u64,
}

/// The elements of a parameter's gradient that a rank saves.
#[derive(Debug)]
pub struct SavedGradient<'a> {
    /// The parameter.
    pub name: &'a str,
    /// Elements of the rank's part.
    pub elements: Range<usize>,
    /// Gradient of the elements; `None` if nothing depended on the parameter.
    pub gradient: Option<Tensor<1>>,
}

/// Distribution of the parameters of this rank's chunks.
#[derive(Debug)]
pub struct Distribution {
    groups: ProcessGroups,
    settings: DistributionSettings,
    places: BTreeMap<String, ParameterPlacement>,
    /// Buckets of each chunk; none where nothing is reduced.
    buckets: Vec<Vec<Bucket>>,
    /// Names of the trained parameters of the whole model, in order, once they have been asked for.
    trained: OnceLock<Vec<String>>,
    /// The tensor-parallel ranks that hold the same rows of some parameters
    /// ([`ParameterPlacement::shared`]).
    row_copies: Option<Group>,
}

impl Distribution {
    /// Lays out the parameters of `chunks`. All ranks call this together.
    ///
    /// # Errors
    /// If first and last stage cannot exchange the names of shared parameters, or ranks that hold
    /// the same rows cannot form a group.
    pub fn new(
        chunks: &[Box<dyn ModelChunk>],
        groups: ProcessGroups,
        settings: DistributionSettings,
    ) -> Result<Self, CommError> {
        let shards = |replicas| shard_group(&groups, settings.sharding, replicas);
        let counts =
            ShardCounts { dense: shards(ReplicaGroup::Dense).size(), expert: shards(ReplicaGroup::Expert).size() };
        let has_replicas = |replicas| replica_group(&groups, replicas).size() > 1;
        let parameters = || chunks.iter().flat_map(|chunk| chunk.parameters());
        let tied = tied_names(&groups, parameters())?;
        let is_last_copy = groups.embedding().is_some_and(|group| group.size() > 1 && group.rank() > 0);
        let mut places = BTreeMap::new();
        for parameter in parameters() {
            let replicas = parameter.placement.replicas;
            let is_tied = tied.contains(&parameter.name);
            let (of_shards, of_copies) = (shards(replicas), copy_group(&groups, replicas));
            let place = ParameterPlacement {
                replicas,
                owned: owned_range(parameter.num_elements(), of_shards.rank(), of_shards.size()),
                num_elements: parameter.num_elements(),
                is_trained: parameter.trainable,
                is_whole: parameter.is_float32(),
                counted: (!(parameter.is_replicated() && of_copies.rank() > 0 || is_tied && is_last_copy))
                    .then(|| parameter.counted_elements()),
                shared: parameter.shared_elements(),
                is_partial: parameter.placement.partial_gradient && of_copies.size() > 1,
                is_tied,
            };
            places.insert(parameter.name.clone(), place);
        }
        let layout = settings.layout(counts);
        let buckets = chunks
            .iter()
            .map(|chunk| {
                let parameters: Vec<BucketParameter> = chunk
                    .parameters()
                    .iter()
                    // Frozen parameters are in buckets where they are gathered.
                    .filter(|parameter| parameter.trainable || settings.sharding == Sharding::Full)
                    .filter(|parameter| !parameter.is_float32())
                    .filter(|parameter| has_replicas(parameter.placement.replicas))
                    .map(|parameter| BucketParameter {
                        name: parameter.name.clone(),
                        num_elements: parameter.num_elements(),
                        replicas: parameter.placement.replicas,
                        first_segment: parameter.segments[0],
                        is_trained: parameter.trainable,
                        is_cast: parameter.has_cast && settings.gathers_codes(),
                    })
                    .collect();
                buckets(&parameters, layout)
            })
            .collect();
        let row_copies = row_copies(&groups, parameters())?;
        Ok(Self { groups, settings, places, buckets, trained: OnceLock::new(), row_copies })
    }

    /// For a run of one rank.
    #[cfg(test)]
    pub fn single(chunks: &[Box<dyn ModelChunk>]) -> Self {
        Self::new(chunks, ProcessGroups::single(), DistributionSettings::default()).expect("one rank exchanges nothing")
    }

    /// The groups of this rank.
    pub fn groups(&self) -> &ProcessGroups {
        &self.groups
    }

    /// State that is divided among data-parallel ranks.
    pub fn sharding(&self) -> Sharding {
        self.settings.sharding
    }

    /// True if parameters are gathered while the next forward pass runs.
    pub fn overlap_param_gather(&self) -> bool {
        self.settings.overlap_param_gather
    }

    /// True if backward continues while gradients are reduced.
    pub fn overlap_grad_reduce(&self) -> bool {
        self.settings.overlap_grad_reduce
    }

    /// Buckets of a chunk, in the order in which they are reduced.
    pub fn buckets(&self, chunk: usize) -> &[Bucket] {
        &self.buckets[chunk]
    }

    /// Number of chunks.
    pub fn num_chunks(&self) -> usize {
        self.buckets.len()
    }

    /// The ranks that hold the same parameters of a kind.
    pub fn replicas(&self, replicas: ReplicaGroup) -> &Group {
        replica_group(&self.groups, replicas)
    }

    /// The ranks that shard parameters of a kind among themselves: all replicas, or those of one
    /// instance of a distributed optimizer. Gradients are reduced here, and where there are several
    /// instances, over [`Self::instances`] after that.
    pub fn shards(&self, replicas: ReplicaGroup) -> &Group {
        shard_group(&self.groups, self.settings.sharding, replicas)
    }

    /// The ranks with the same shard in each instance of a distributed optimizer; `None` if there
    /// is one instance.
    pub fn instances(&self, replicas: ReplicaGroup) -> Option<&Group> {
        instance_group(&self.groups, self.settings.sharding, replicas)
    }

    /// True if this rank is in the instance that saves and counts replicated state.
    fn is_first_instance(&self, replicas: ReplicaGroup) -> bool {
        self.instances(replicas).is_none_or(|group| group.rank() == 0)
    }

    /// Reduction of gradients.
    pub(super) fn reduce_op(&self) -> ReduceOp {
        if self.settings.average_in_collective { ReduceOp::Avg } else { ReduceOp::Sum }
    }

    /// Factor on gradients of a kind before they are reduced: an average over fewer ranks than all
    /// replicas of the data divides by too little.
    pub(super) fn pre_reduce_scale(&self, replicas: ReplicaGroup) -> f64 {
        match self.settings.average_in_collective {
            true => self.replicas(replicas).size() as f64 / self.groups.data_context().size() as f64,
            false => 1.0,
        }
    }

    /// Scales the gradients of parameters without replicas by the factor that reductions apply to
    /// all other gradients.
    pub(super) fn scale_unreduced(&self, gradients: &mut GradientBuffer) {
        for kind in [ReplicaGroup::Dense, ReplicaGroup::Expert] {
            let scale = self.pre_reduce_scale(kind);
            if self.replicas(kind).size() > 1 || scale == 1.0 {
                continue;
            }
            for (name, _) in self.places.iter().filter(|(_, place)| place.replicas == kind) {
                if let Some(gradient) = gradients.take_scaled(name, scale) {
                    gradients.set(name, gradient);
                }
            }
        }
    }

    /// Factor on the loss of a rank, which undoes the division by an average over ranks.
    pub fn loss_factor(&self) -> f64 {
        if self.settings.average_in_collective { self.groups.data_context().size() as f64 } else { 1.0 }
    }

    /// The elements of a parameter whose optimizer state is on this rank; `None` for parameters
    /// that are not trained.
    pub fn state_range(&self, name: &str) -> Option<Range<usize>> {
        self.places.get(name).filter(|place| place.is_trained).map(|place| self.range_of(place))
    }

    /// The elements of a parameter that this rank keeps between steps where parameters are sharded;
    /// `None` where they are not, and for a parameter that is nevertheless whole.
    pub fn shard_range(&self, name: &str) -> Option<Range<usize>> {
        let is_sharded = |place: &&ParameterPlacement| self.settings.sharding == Sharding::Full && !place.is_whole;
        let place = self.places.get(name).filter(is_sharded)?;
        Some(place.owned.clone())
    }

    /// The elements of its slice of a parameter that this rank saves: of all ranks that hold the
    /// same ones, one does.
    pub fn saved_elements(&self, name: &str) -> Option<Range<usize>> {
        let place = self.places.get(name).filter(|place| self.replicas(place.replicas).rank() == 0)?;
        place.counted.clone()
    }

    /// The elements of a parameter whose optimizer state this rank saves, of those that it has
    /// ([`Distribution::state_range`]).
    pub fn saved_state(&self, name: &str) -> Option<Range<usize>> {
        if !self.settings.sharding.divides_state() {
            return self.saved_elements(name);
        }
        let place = self.places.get(name).filter(|place| self.is_first_instance(place.replicas))?;
        place.counted.as_ref().map(|counted| common(&place.owned, counted))
    }

    /// True if this rank saves states of a parameter that it has whole: of its copies on replicas
    /// of the data, and on first and last pipeline stage, one is saved.
    pub fn saves_whole(&self, name: &str) -> bool {
        let is_last_copy = self.groups.embedding().is_some_and(|group| group.size() > 1 && group.rank() > 0);
        self.places.get(name).is_some_and(|place| {
            let is_first = match self.settings.sharding.divides_state() {
                true => self.is_first_instance(place.replicas),
                false => self.replicas(place.replicas).rank() == 0,
            };
            is_first && !(place.is_tied && is_last_copy)
        })
    }

    /// The part of a parameter's reduced gradient that this rank counts in sums over all ranks;
    /// `None` if another rank counts it.
    ///
    /// Each element of the model is counted by exactly one rank of the world. The order does not
    /// depend on sharding.
    fn counted(&self, name: &str, gradient: &Tensor<1>) -> Option<Tensor<1>> {
        let Some(place) = self.places.get(name) else { return Some(gradient.clone()) };
        let counted = place.counted.as_ref().filter(|_| self.is_first_instance(place.replicas))?;
        let is_own_part = gradient.dims()[0] == place.owned.len();
        let start = if is_own_part { place.owned.start } else { 0 };
        let counted = common(&place.owned, counted);
        Some(part(gradient.clone(), &(counted.start - start..counted.end - start)))
    }

    /// Squared norms of the gradients that this rank counts. A GPU computes them asynchronously.
    pub fn squares(&self, gradients: &GradientBuffer) -> SquareSums {
        let mut sums = SquareSums::default();
        self.visit_counted(gradients, &mut |_, part| sums.add(&part));
        sums
    }

    /// Euclidean norm of the gradient of each trained parameter of the whole model, in name order.
    /// All ranks call this together and find the same.
    ///
    /// # Errors
    /// If ranks cannot add up.
    pub fn norms(&self, gradients: &GradientBuffer) -> Result<Vec<(String, f64)>, CommError> {
        let names = self.trained_names()?;
        let (mut places, mut sums) = (Vec::new(), SquareSums::default());
        for (place, name) in names.iter().enumerate() {
            if let Some(part) = gradients.get(name).and_then(|gradient| self.counted_part(name, gradient)) {
                places.push(place);
                sums.add(&part);
            }
        }
        let mut squares = vec![0.0; names.len()];
        places.into_iter().zip(sums.finish()).for_each(|(place, square)| squares[place] = square);
        let world = self.groups.world();
        if world.size() > 1 && !squares.is_empty() {
            world.all_reduce((&mut squares).into(), ReduceOp::Sum)?;
        }
        Ok(names.iter().cloned().zip(squares.into_iter().map(f64::sqrt)).collect())
    }

    /// Names of the trained parameters of the whole model, in order. All ranks call this together.
    /// Fails if ranks cannot exchange them.
    pub(super) fn trained_names(&self) -> Result<&[String], CommError> {
        if let Some(names) = self.trained.get() {
            return Ok(names);
        }
        let names = self.trained_of_all_ranks()?;
        Ok(self.trained.get_or_init(|| names))
    }

    /// Hands on, of each gradient, the part that this rank counts: every element of the model's
    /// gradients is counted by one rank.
    pub fn visit_counted(&self, gradients: &GradientBuffer, f: &mut dyn FnMut(&str, Tensor<1>)) {
        for (name, gradient) in gradients.iter() {
            if let Some(part) = self.counted(name, gradient).filter(|part| part.dims()[0] > 0) {
                f(name, part);
            }
        }
    }

    /// Hands on, of the reduced gradient of each trained parameter, the elements that this rank
    /// saves. Every element of the model's gradients is saved by one rank.
    pub fn visit_saved(&self, gradients: &GradientBuffer, f: &mut dyn FnMut(SavedGradient<'_>)) {
        for (name, place) in self.places.iter().filter(|(_, place)| place.is_trained) {
            let Some(elements) = self.saved_state(name) else { continue };
            let of_elements = |gradient: &Tensor<1>| {
                let is_own_part = gradient.dims()[0] == place.owned.len();
                let start = if is_own_part { place.owned.start } else { 0 };
                gradients.as_sum(part(gradient.clone(), &(elements.start - start..elements.end - start)))
            };
            let gradient = gradients.get(name).filter(|_| !elements.is_empty()).map(of_elements);
            f(SavedGradient { name, elements, gradient });
        }
    }

    /// Names of the trained parameters of all ranks, in order: those of other stages, and of other
    /// ranks' experts, too.
    fn trained_of_all_ranks(&self) -> Result<Vec<String>, CommError> {
        let mine = self.places.iter().filter(|(_, place)| place.is_trained).map(|(name, _)| name.as_str());
        let mine = mine.collect::<Vec<_>>().join("\n");
        let all = all_gather_bytes(self.groups.world().as_ref(), mine.as_bytes())?;
        let texts = all.iter().map(|names| String::from_utf8_lossy(names));
        let names: BTreeSet<String> =
            texts.flat_map(|names| names.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        Ok(names.into_iter().collect())
    }

    /// Elements of all parameters of the model, over all ranks. All ranks call this together.
    ///
    /// # Errors
    /// If ranks cannot add up.
    pub fn model_size(&self) -> Result<ModelSize, CommError> {
        let mine = |counts: &dyn Fn(&ParameterPlacement) -> bool| -> usize {
            let counted = self.places.iter().filter(|(_, place)| counts(place));
            counted.filter_map(|(name, _)| self.saved_elements(name)).map(|saved| saved.len()).sum()
        };
        let (parameters, trained) = (mine(&|_| true), mine(&|place| place.is_trained));
        let sum_over_world = |count: usize| Ok(self.sum_over_world(count as f64)? as u64);
        Ok(ModelSize { parameters: sum_over_world(parameters)?, trained: sum_over_world(trained)? })
    }

    /// Zero entries among all gradients of the model, over all ranks.
    ///
    /// # Errors
    /// If ranks cannot add up.
    pub fn num_zeros(&self, gradients: &GradientBuffer) -> Result<u64, CommError> {
        let mut zeros = 0;
        self.visit_counted(gradients, &mut |_, part| zeros += count_zeros(&part));
        Ok(self.sum_over_world(zeros as f64)? as u64)
    }

    /// As [`Self::visit_counted`], of one value that has the form of a parameter.
    pub(super) fn counted_part(&self, name: &str, value: &Tensor<1>) -> Option<Tensor<1>> {
        self.counted(name, value).filter(|part| part.dims()[0] > 0)
    }

    /// A figure added up over all ranks.
    pub(super) fn sum_over_world(&self, figure: f64) -> Result<f64, CommError> {
        let mut figures = [figure];
        if self.groups.world().size() > 1 {
            self.groups.world().all_reduce((&mut figures).into(), ReduceOp::Sum)?;
        }
        Ok(figures[0])
    }

    /// Sums reduced gradients over the ranks that share a model, of parameters that several of them
    /// hold: norms under sequence parallelism, keys and values that several ranks use, tied
    /// embeddings.
    pub(super) fn all_reduce_shared(
        &self,
        gradients: &mut GradientBuffer,
        device: &Device,
        timers: &Timers,
    ) -> Result<(), CommError> {
        let timer = timers.start("layernorm-grads-all-reduce", TimerLevel::Phase);
        for kind in [ReplicaGroup::Dense, ReplicaGroup::Expert] {
            let shared = self.shared(|place| place.is_partial && place.replicas == kind);
            gradients.all_reduce(&shared, copy_group(&self.groups, kind), device)?;
        }
        if let Some(group) = &self.row_copies {
            gradients.all_reduce(&self.shared_rows(), group, device)?;
        }
        drop(timer);
        let _timer = timers.start("embedding-grads-all-reduce", TimerLevel::Phase);
        if let Some(group) = self.groups.embedding() {
            gradients.all_reduce(&self.shared(|place| place.is_tied), group, device)?;
        }
        Ok(())
    }

    /// Elements that ranks which share a model sum for some parameters. Ranks with other shards of
    /// the same parameters send as much.
    fn shared(&self, wanted: impl Fn(&ParameterPlacement) -> bool) -> SharedParameters<'_> {
        let places: Vec<_> = self.places.iter().filter(|(_, place)| place.is_trained && wanted(place)).collect();
        let divides = self.settings.sharding.divides_state();
        let parts = |kind: ReplicaGroup| if divides { self.shards(kind).size() } else { 1 };
        let padded = |kind: ReplicaGroup| {
            let of_kind = places.iter().filter(|(_, place)| place.replicas == kind);
            padded_part(of_kind.map(|(_, place)| place.num_elements), parts(kind))
        };
        SharedParameters {
            num_elements: padded(ReplicaGroup::Dense) + padded(ReplicaGroup::Expert),
            parameters: places.iter().map(|(name, place)| self.elements(name, place, 0..place.num_elements)).collect(),
        }
    }

    /// Elements whose gradients are summed by the ranks that hold the same rows.
    fn shared_rows(&self) -> SharedParameters<'_> {
        let places = self.places.iter().filter(|(_, place)| place.is_trained && !place.shared.is_empty());
        let parts = if self.settings.sharding.divides_state() { self.shards(ReplicaGroup::Dense).size() } else { 1 };
        let sizes = places.clone().map(|(_, place)| (place.num_elements, place.shared.clone()));
        SharedParameters {
            num_elements: padded_part_of(sizes, parts),
            parameters: places.map(|(name, place)| self.elements(name, place, place.shared.clone())).collect(),
        }
    }

    /// Some elements of a parameter, within this rank's part of its gradient.
    fn elements<'a>(&self, name: &'a str, place: &ParameterPlacement, some: Range<usize>) -> SharedElements<'a> {
        let range = self.range_of(place);
        let some = common(&range, &some);
        SharedElements { name, held: range.len(), elements: some.start - range.start..some.end - range.start }
    }

    fn range_of(&self, place: &ParameterPlacement) -> Range<usize> {
        if self.settings.sharding.divides_state() { place.owned.clone() } else { 0..place.num_elements }
    }
}
