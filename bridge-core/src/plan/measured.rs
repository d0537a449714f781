//! Comparison of a plan with measurements of ranks.

use std::collections::{BTreeMap, BTreeSet};

use bridge_dist::comm::Operation;
use bridge_dist::comm::counting::{Count, Counts};
use serde::Serialize;

use super::traffic::operation_name;
use super::{Plan, StagePlan, bytes_per_second};
use crate::model::TrafficKind;
use crate::optim::ReductionTimes;

/// Relative difference of memory that counts as none: parts of tensors that do not divide.
const MEMORY_TOLERANCE: f64 = 0.02;

/// Measured communication of one rank in a step, and its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankMeasurement {
    /// Rank in the world.
    pub rank: usize,
    /// Rank in the pipeline.
    pub stage: usize,
    /// Operations and payload by group and operation.
    pub traffic: Counts,
    /// Bytes of parameters that it keeps.
    pub parameter_bytes: u64,
    /// Bytes of optimizer state on the device.
    pub optimizer_bytes: u64,
    /// Bytes of optimizer state in host memory though the device is a GPU.
    pub host_optimizer_bytes: u64,
    /// The lowest rank of those that reduce gradients together with this one.
    pub first_replica: usize,
    /// Times of the reduction of gradients, one entry a step, the first step left out.
    pub reductions: Vec<ReductionTimes>,
}

/// Agreement of a plan and a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// True if all figures agree, on every rank of the layout.
    pub matches: bool,
    /// Comparisons of the pipeline stages, in their order.
    pub stages: Vec<StageComparison>,
    /// Part of the reduction of gradients that backward hides, by pipeline stage; empty unless the
    /// ranks had links of a given rate.
    pub gradient_overlap: Vec<GradientOverlap>,
}

/// The reduction of a stage's gradients on links of a given rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GradientOverlap {
    /// Rank in the pipeline.
    pub stage: usize,
    /// Seconds that the link of a rank is busy with gradients in a step: the plan's bytes at the
    /// link's rate.
    pub link_seconds: f64,
    /// Seconds of a step from the end of backward to the moment the rank has all reduced gradients;
    /// the median over the steps. Of the ranks that reduce together, the smallest value counts:
    /// that rank joins last, and all other ranks wait for it at any speed of the link.
    pub exposed_seconds: f64,
    /// Share of the time on the link that hides behind backward, `0..=1`.
    pub hidden: f64,
}

/// The ranks of one stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageComparison {
    /// Rank in the pipeline.
    pub stage: usize,
    /// Ranks of the world that are in it. Lists of measurements are in this order.
    pub ranks: Vec<usize>,
    /// Traffic by group and operation.
    pub traffic: Vec<TrafficComparison>,
    /// Bytes of parameters.
    pub parameters: MemoryComparison,
    /// Bytes of optimizer state on the device.
    pub optimizer: MemoryComparison,
    /// Bytes of optimizer state in host memory though the device is a GPU.
    pub host_optimizer: MemoryComparison,
}

/// Calls and payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// Calls.
    pub operations: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

impl From<Count> for Amount {
    fn from(count: Count) -> Self {
        Self { operations: count.operations, bytes: count.bytes }
    }
}

/// One operation of one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrafficComparison {
    /// Name of the group.
    pub group: String,
    /// The operation.
    #[serde(serialize_with = "operation_name")]
    pub operation: Operation,
    /// Planned amount of each rank.
    pub planned: Amount,
    /// Measured amount of each rank.
    pub measured: Vec<Amount>,
    /// True if they are equal. Routers decide on the destination of tokens, and owners of whole
    /// parameters have unequal numbers, so for all-to-all operations the means over the ranks must
    /// be equal.
    pub matches: bool,
}

/// Bytes that ranks hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryComparison {
    /// Planned elements of each rank.
    pub planned: u64,
    /// Measured elements of each rank.
    pub measured: Vec<u64>,
    /// True if the largest is as planned within 2%.
    pub matches: bool,
}

impl Plan {
    /// Compares the plan with measurements of all ranks of its layout, made with links throttled to
    /// `link_gbps` gigabits per second if given.
    pub fn compare(&self, ranks: &[RankMeasurement], link_gbps: Option<f64>) -> Comparison {
        let stages: Vec<StageComparison> = self.stages.iter().map(|stage| compare(stage, ranks)).collect();
        let ranks_of_stage = self.layout.world_size / self.layout.pipeline;
        let stage_matches = |stage: &StageComparison| {
            let memory = stage.parameters.matches && stage.optimizer.matches && stage.host_optimizer.matches;
            stage.ranks.len() == ranks_of_stage && memory && stage.traffic.iter().all(|traffic| traffic.matches)
        };
        let overlap = |gbps| self.stages.iter().filter_map(move |stage| gradient_overlap(stage, ranks, gbps));
        let gradient_overlap = link_gbps.into_iter().flat_map(overlap).collect();
        Comparison { matches: stages.iter().all(stage_matches), stages, gradient_overlap }
    }
}

/// `None` for a stage that reduces nothing.
fn gradient_overlap(plan: &StagePlan, ranks: &[RankMeasurement], link_gbps: f64) -> Option<GradientOverlap> {
    let gradients = plan.traffic.iter().filter(|traffic| traffic.kind == TrafficKind::Gradients);
    let link_seconds = gradients.map(|traffic| traffic.wire_bytes).sum::<f64>() / bytes_per_second(link_gbps);
    if link_seconds == 0.0 {
        return None;
    }
    let ranks: Vec<&RankMeasurement> = ranks.iter().filter(|rank| rank.stage == plan.stage).collect();
    let exposed_seconds = median(exposed_by_step(&ranks))?;
    let hidden = (1.0 - exposed_seconds / link_seconds).clamp(0.0, 1.0);
    Some(GradientOverlap { stage: plan.stage, link_seconds, exposed_seconds, hidden })
}

/// For each step, the least time among ranks that reduce together, and of several such groups the
/// longest.
fn exposed_by_step(ranks: &[&RankMeasurement]) -> Vec<f64> {
    let steps = ranks.iter().map(|rank| rank.reductions.len()).min().unwrap_or(0);
    let exposed = |step: usize| {
        let mut least: BTreeMap<usize, f64> = BTreeMap::new();
        for rank in ranks {
            let waited = rank.reductions[step].exposed.as_secs_f64();
            least.entry(rank.first_replica).and_modify(|least| *least = least.min(waited)).or_insert(waited);
        }
        least.into_values().fold(0.0, f64::max)
    };
    (0..steps).map(exposed).collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (upper, lower) = (values.get(values.len() / 2)?, values.get((values.len() - 1) / 2)?);
    Some(f64::midpoint(*lower, *upper))
}

fn compare(plan: &StagePlan, ranks: &[RankMeasurement]) -> StageComparison {
    let ranks: Vec<&RankMeasurement> = ranks.iter().filter(|rank| rank.stage == plan.stage).collect();
    let mut planned: BTreeMap<(String, Operation), Amount> = BTreeMap::new();
    for traffic in &plan.traffic {
        let amount = planned.entry((traffic.group.name().to_owned(), traffic.operation)).or_default();
        amount.operations += traffic.operations;
        amount.bytes += traffic.bytes;
    }
    let measured = ranks.iter().flat_map(|rank| rank.traffic.keys());
    let keys: BTreeSet<&(String, Operation)> = planned.keys().chain(measured).collect();
    let traffic = keys.into_iter().map(|key| {
        let of = |rank: &&RankMeasurement| Amount::from(rank.traffic.get(key).copied().unwrap_or_default());
        compare_traffic(key, planned.get(key).copied().unwrap_or_default(), ranks.iter().map(of).collect())
    });
    StageComparison {
        stage: plan.stage,
        traffic: traffic.collect(),
        parameters: compare_memory(plan.memory.parameters, ranks.iter().map(|rank| rank.parameter_bytes).collect()),
        optimizer: compare_memory(plan.memory.optimizer, ranks.iter().map(|rank| rank.optimizer_bytes).collect()),
        host_optimizer: compare_memory(
            plan.memory.host_optimizer,
            ranks.iter().map(|rank| rank.host_optimizer_bytes).collect(),
        ),
        ranks: ranks.iter().map(|rank| rank.rank).collect(),
    }
}

fn compare_traffic(key: &(String, Operation), planned: Amount, measured: Vec<Amount>) -> TrafficComparison {
    let (group, operation) = key.clone();
    let matches = match operation {
        Operation::AllToAll => {
            let bytes: u64 = measured.iter().map(|amount| amount.bytes).sum();
            let as_often = measured.iter().all(|amount| amount.operations == planned.operations);
            as_often && bytes.div_ceil(measured.len().max(1) as u64) == planned.bytes
        }
        _ => measured.iter().all(|amount| *amount == planned),
    };
    TrafficComparison { group, operation, planned, measured, matches }
}

fn compare_memory(planned: u64, measured: Vec<u64>) -> MemoryComparison {
    let is_near = |bytes: &u64| bytes.abs_diff(planned) as f64 <= MEMORY_TOLERANCE * planned as f64;
    // Ranks that own whole parameters have unequal states; the plan has the largest.
    let matches = measured.iter().max().is_some_and(is_near);
    MemoryComparison { planned, measured, matches }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn payload_is_compared_by_rank_and_routed_tokens_in_sum() {
        let amounts = |bytes: &[u64]| bytes.iter().map(|bytes| Amount { operations: 2, bytes: *bytes }).collect();
        let planned = Amount { operations: 2, bytes: 10 };
        let matches =
            |operation, bytes: &[u64]| compare_traffic(&("ep".to_owned(), operation), planned, amounts(bytes)).matches;
        assert!(matches(Operation::AllReduce, &[10, 10]));
        assert!(!matches(Operation::AllReduce, &[9, 11]));
        assert!(matches(Operation::AllToAll, &[9, 11]));
        assert!(!matches(Operation::AllToAll, &[10, 11]));
        let seldom = vec![Amount { operations: 1, bytes: 10 }, planned];
        assert!(!compare_traffic(&("ep".to_owned(), Operation::AllToAll), planned, seldom).matches);
    }

    #[test]
    fn of_ranks_that_reduce_together_the_last_to_come_counts() {
        let rank = |first_replica, exposed: &[u64]| RankMeasurement {
            first_replica,
            reductions: exposed
                .iter()
                .map(|millis| ReductionTimes { exposed: Duration::from_millis(*millis), ..ReductionTimes::default() })
                .collect(),
            ..RankMeasurement::default()
        };
        let ranks = [rank(0, &[5, 0, 9]), rank(1, &[0, 0, 0]), rank(0, &[2, 30, 8]), rank(1, &[3, 1, 1])];
        let exposed = exposed_by_step(&ranks.iter().collect::<Vec<_>>());
        assert_eq!(exposed, [0.002, 0.0, 0.008]);
        assert_eq!(median(exposed), Some(0.002));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn the_largest_memory_may_differ_by_two_percent() {
        assert!(compare_memory(100, vec![98, 102]).matches);
        assert!(compare_memory(100, vec![50, 100]).matches);
        assert!(!compare_memory(100, vec![97, 96]).matches);
        assert!(!compare_memory(100, vec![100, 103]).matches);
        assert!(!compare_memory(0, vec![1]).matches);
    }
}
