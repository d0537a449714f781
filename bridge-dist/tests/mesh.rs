//! The mesh: the published examples, an independent brute-force generator, validation errors, and
//! communicators on threads.

use std::time::Duration;

use bridge_dist::comm::ReduceOp;
use bridge_dist::comm::thread::run_ranks;
use bridge_dist::mesh::{Axis, GroupKind, Mesh, MeshError, MeshSetupError, ParallelSizes, ProcessGroups, RankOrder};
use proptest::prelude::*;

fn sizes(tp: usize, cp: usize, pp: usize) -> ParallelSizes {
    ParallelSizes {
        tensor_model_parallel_size: tp,
        context_parallel_size: cp,
        pipeline_model_parallel_size: pp,
        ..ParallelSizes::default()
    }
}

fn first(mesh: &Mesh, kind: GroupKind, count: usize) -> Vec<Vec<usize>> {
    mesh.groups(kind).into_iter().take(count).collect()
}

#[test]
fn dense_groups_of_sixteen_ranks() {
    let mesh = Mesh::new(16, sizes(2, 2, 2), RankOrder::TpCpEpDpPp).unwrap();
    assert_eq!(mesh.data_parallel_size(), 2);
    let cases: [(GroupKind, &[&[usize]]); 7] = [
        (GroupKind::Tensor, &[&[0, 1], &[2, 3]]),
        (GroupKind::Context, &[&[0, 2], &[1, 3], &[4, 6], &[5, 7]]),
        (GroupKind::Data, &[&[0, 4], &[1, 5], &[2, 6], &[3, 7], &[8, 12]]),
        (GroupKind::Pipeline, &[&[0, 8], &[1, 9]]),
        (GroupKind::DataContext, &[&[0, 2, 4, 6], &[1, 3, 5, 7]]),
        (GroupKind::Model, &[&[0, 1, 8, 9], &[2, 3, 10, 11]]),
        (GroupKind::PositionEmbedding, &[&[0], &[1]]),
    ];
    for (kind, expected) in cases {
        assert_eq!(first(&mesh, kind, expected.len()), expected, "{kind}");
    }
}

#[test]
fn expert_groups_of_sixteen_ranks() {
    let sizes = ParallelSizes { expert_model_parallel_size: 4, expert_tensor_parallel_size: Some(1), ..sizes(2, 2, 2) };
    let mesh = Mesh::new(16, sizes, RankOrder::TpCpEpDpPp).unwrap();
    assert_eq!(first(&mesh, GroupKind::Expert, 2), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(first(&mesh, GroupKind::ExpertData, 2), [[0, 4], [1, 5]]);
}

#[test]
fn embedding_ranks_are_the_ends_of_a_pipeline() {
    let mesh = Mesh::new(4, sizes(1, 1, 4), RankOrder::TpCpEpDpPp).unwrap();
    assert_eq!(mesh.groups(GroupKind::Embedding), [[0, 3]]);
    assert_eq!(mesh.group_of(GroupKind::Embedding, 1), None);
    let flat = Mesh::new(2, sizes(1, 1, 1), RankOrder::TpCpEpDpPp).unwrap();
    assert_eq!(flat.groups(GroupKind::Embedding), [[0], [1]]);
}

#[test]
fn optimizer_instances_cut_consecutive_parts() {
    let sizes = ParallelSizes { num_distributed_optimizer_instances: 2, ..sizes(2, 1, 1) };
    let mesh = Mesh::new(8, sizes, RankOrder::TpCpEpDpPp).unwrap();
    assert_eq!(first(&mesh, GroupKind::DistributedOptimizer, 2), [[0, 2], [4, 6]]);
    assert_eq!(first(&mesh, GroupKind::DistributedOptimizerReplicas, 2), [[0, 4], [2, 6]]);
}

#[test]
fn the_other_order_puts_replicas_last() {
    let mesh = Mesh::new(8, sizes(2, 1, 2), RankOrder::TpCpEpPpDp).unwrap();
    assert_eq!(first(&mesh, GroupKind::Pipeline, 2), [[0, 2], [1, 3]]);
    assert_eq!(first(&mesh, GroupKind::Data, 2), [[0, 4], [1, 5]]);
}

#[test]
fn impossible_meshes_say_why() {
    let error = Mesh::new(6, sizes(2, 1, 2), RankOrder::TpCpEpDpPp).unwrap_err();
    assert_eq!(error.to_string(), "a world of 6 ranks is not divisible by 4 (tensor 2 x pipeline 2 x context 1)");
    let error = Mesh::new(4, sizes(0, 1, 2), RankOrder::TpCpEpDpPp).unwrap_err();
    assert_eq!(error, MeshError::ZeroSize { name: "tensor_model_parallel_size" });
    let uneven_experts = ParallelSizes { expert_model_parallel_size: 3, ..sizes(1, 1, 1) };
    assert!(matches!(
        Mesh::new(4, uneven_experts, RankOrder::TpCpEpDpPp).unwrap_err(),
        MeshError::NotDivisible { product: 3, .. }
    ));
    let experts = ParallelSizes { expert_model_parallel_size: 2, ..sizes(1, 1, 2) };
    assert!(matches!(Mesh::new(8, experts, RankOrder::TpCpEpPpDp).unwrap_err(), MeshError::PipelinesDiffer { .. }));
    let no_expert_tensor = ParallelSizes { expert_tensor_parallel_size: Some(1), ..sizes(2, 1, 2) };
    assert!(matches!(
        Mesh::new(8, no_expert_tensor, RankOrder::TpCpEpPpDp).unwrap_err(),
        MeshError::ReplicasDiffer { dense: 2, expert: 4, .. }
    ));
    let instances = ParallelSizes { num_distributed_optimizer_instances: 3, ..sizes(1, 1, 1) };
    assert!(matches!(
        Mesh::new(4, instances, RankOrder::TpCpEpDpPp).unwrap_err(),
        MeshError::OptimizerInstances { instances: 3, size: 4, .. }
    ));
    assert!("dp-tp".parse::<RankOrder>().unwrap_err().to_string().contains("tp-cp-ep-pp-dp"));
    assert_eq!("tp-cp-ep-pp-dp".parse::<RankOrder>().unwrap(), RankOrder::TpCpEpPpDp);
}

/// Groups by brute force: two ranks share a group when all their other coordinates are equal, with
/// coordinates found by counting through nested loops instead of by division.
fn brute_force(order: RankOrder, size_of: impl Fn(Axis) -> usize, selected: &[Axis]) -> Vec<Vec<usize>> {
    let axes = order.axes();
    let mut coordinates: Vec<[usize; 5]> = Vec::new();
    for e in 0..size_of(axes[4]) {
        for d in 0..size_of(axes[3]) {
            for c in 0..size_of(axes[2]) {
                for b in 0..size_of(axes[1]) {
                    for a in 0..size_of(axes[0]) {
                        coordinates.push([a, b, c, d, e]);
                    }
                }
            }
        }
    }
    let mut groups: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    for (rank, coordinate) in coordinates.iter().enumerate() {
        let key: Vec<usize> = (0..5).filter(|&i| !selected.contains(&axes[i])).map(|i| coordinate[i]).collect();
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((key, vec![rank])),
        }
    }
    groups.into_iter().map(|(_, ranks)| ranks).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn groups_equal_brute_force(
        (tp, cp, pp, dp) in (1usize..4, 1usize..4, 1usize..4, 1usize..4),
        (ep, etp) in (1usize..4, 1usize..4),
        order in prop::sample::select(RankOrder::ALL.to_vec()),
    ) {
        let world = tp * cp * pp * dp;
        let sizes = ParallelSizes {
            expert_model_parallel_size: ep,
            expert_tensor_parallel_size: Some(etp),
            ..sizes(tp, cp, pp)
        };
        let mesh = match Mesh::new(world, sizes, order) {
            Ok(mesh) => mesh,
            Err(MeshError::NotDivisible { product, .. }) => {
                prop_assert!(world % product != 0);
                return Ok(());
            }
            Err(MeshError::PipelinesDiffer { .. } | MeshError::ReplicasDiffer { .. }) => {
                prop_assert!(order == RankOrder::TpCpEpPpDp && pp > 1 && (tp != etp || cp != ep));
                return Ok(());
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        let dense = |axis| match axis { Axis::Tp => tp, Axis::Cp => cp, Axis::Ep => 1, Axis::Dp => dp, Axis::Pp => pp };
        let expert_dp = world / (etp * ep * pp);
        let expert = |axis| match axis { Axis::Tp => etp, Axis::Cp => 1, Axis::Ep => ep, Axis::Dp => expert_dp, Axis::Pp => pp };
        use Axis::{Cp, Dp, Ep, Pp, Tp};
        let dense_cases: [(GroupKind, &[Axis]); 6] = [
            (GroupKind::Tensor, &[Tp]), (GroupKind::Context, &[Cp]), (GroupKind::Data, &[Dp]), (GroupKind::Pipeline, &[Pp]),
            (GroupKind::DataContext, &[Dp, Cp]), (GroupKind::Model, &[Tp, Pp]),
        ];
        for (kind, axes) in dense_cases {
            prop_assert_eq!(mesh.groups(kind), brute_force(order, dense, axes), "{}", kind);
        }
        let expert_cases: [(GroupKind, &[Axis]); 3] = [
            (GroupKind::Expert, &[Ep]), (GroupKind::ExpertTensor, &[Tp]), (GroupKind::ExpertData, &[Dp]),
        ];
        for (kind, axes) in expert_cases {
            prop_assert_eq!(mesh.groups(kind), brute_force(order, expert, axes), "{}", kind);
        }
    }

    #[test]
    fn every_rank_is_in_one_group_at_its_coordinate(
        (tp, cp, pp, dp) in (1usize..4, 1usize..3, 1usize..4, 1usize..5),
        order in prop::sample::select(RankOrder::ALL.to_vec()),
    ) {
        let world = tp * cp * pp * dp;
        let sizes = ParallelSizes { expert_model_parallel_size: cp, ..sizes(tp, cp, pp) };
        let mesh = Mesh::new(world, sizes, order).unwrap();
        for kind in GroupKind::ALL {
            let mut ranks: Vec<usize> = mesh.groups(kind).concat();
            ranks.sort_unstable();
            if kind == GroupKind::Embedding || kind == GroupKind::PositionEmbedding {
                ranks.dedup();
                let holders = (0..world).filter(|&rank| {
                    let stage = mesh.coordinates(rank).pp;
                    stage == 0 || (kind == GroupKind::Embedding && stage == pp - 1)
                });
                prop_assert_eq!(ranks, holders.collect::<Vec<_>>());
            } else {
                prop_assert_eq!(ranks, (0..world).collect::<Vec<_>>());
            }
        }
        for rank in 0..world {
            let at = mesh.coordinates(rank);
            let places = [
                (GroupKind::Tensor, at.tp), (GroupKind::Context, at.cp), (GroupKind::Data, at.dp), (GroupKind::Pipeline, at.pp),
                (GroupKind::Expert, at.ep), (GroupKind::ExpertTensor, at.expert_tp), (GroupKind::ExpertData, at.expert_dp),
            ];
            for (kind, place) in places {
                prop_assert_eq!(mesh.group_of(kind, rank).unwrap()[place], rank);
            }
        }
    }
}

#[test]
fn communicators_follow_the_mesh() {
    let sizes = ParallelSizes {
        expert_model_parallel_size: 2,
        expert_tensor_parallel_size: Some(1),
        num_distributed_optimizer_instances: 2,
        ..sizes(2, 1, 2)
    };
    let mesh = Mesh::new(8, sizes, RankOrder::TpCpEpDpPp).unwrap();
    run_ranks(8, Duration::from_secs(120), |world| {
        let rank = world.rank();
        let groups = ProcessGroups::new(world, mesh)?;
        for kind in GroupKind::ALL {
            let expected = mesh.group_of(kind, rank);
            assert_eq!(groups.get(kind).is_some(), expected.is_some());
            let (Some(group), Some(expected)) = (groups.get(kind), expected) else {
                continue;
            };
            assert_eq!(group.name(), kind.name());
            assert_eq!(group.size(), expected.len());
            let mut members = vec![0i64; group.size()];
            group.all_gather((&[rank as i64]).into(), (&mut members).into())?;
            assert_eq!(members, expected.iter().map(|&rank| rank as i64).collect::<Vec<_>>());
        }
        assert_eq!(groups.pipeline().rank(), groups.coordinates().pp);
        Ok::<_, bridge_dist::comm::thread::BoxError>(())
    })
    .unwrap();
}

#[test]
fn a_world_of_another_size_is_refused() {
    let mesh = Mesh::new(4, sizes(2, 1, 1), RankOrder::TpCpEpDpPp).unwrap();
    let world = ProcessGroups::single().world().clone();
    assert!(matches!(
        ProcessGroups::new(world, mesh).unwrap_err(),
        MeshSetupError::WorldSize { expected: 4, found: 1 }
    ));
}

#[test]
fn a_single_rank_has_every_group() {
    let groups = ProcessGroups::single();
    for kind in GroupKind::ALL {
        let group = groups.get(kind).unwrap();
        let mut value = [3.0f32];
        group.all_reduce((&mut value).into(), ReduceOp::Avg).unwrap();
        assert_eq!((group.size(), value), (1, [3.0]));
    }
}
