//! Compares the parameters of data-parallel replicas, which must have the same bits
//! (`train.check_weight_hash_across_dp_replicas_interval`), and names the ranks that have others.

use std::collections::BTreeMap;

use bridge_dist::comm::{CommError, Group};
use twox_hash::XxHash3_64;

use crate::config::{RunConfig, is_due};
use crate::model::ReplicaGroup;
use crate::resilience::rerun::RankLocation;
use crate::train::ranks::agreement;
use crate::train::reporting::report::StepReport;
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

pub(super) struct WeightHashes {
    interval: Option<usize>,
    placement: RankLocation,
    /// The iteration after which replicas had the same parameters.
    last_equal: Option<u64>,
}

/// Parameters of this rank with the hashes of their bits, in the order of the chunks.
type Hashes = Vec<(String, i64)>;

impl WeightHashes {
    pub fn new(config: &RunConfig, placement: RankLocation) -> Self {
        let interval = config.train.check_weight_hash_across_dp_replicas_interval;
        Self { interval, placement, last_equal: None }
    }

    /// Fails on all ranks if any replica has other bits than another one. All ranks call this
    /// together.
    fn compare(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let iteration = run.state.train_state.step;
        run.training.wait_for_parameters()?;
        let hashes = hashes(run);
        let mut found = Vec::new();
        for (kind, hashes) in &hashes {
            let replicas = run.training.optimizer.distribution().replicas(*kind);
            found.extend(differing(replicas, hashes)?);
        }
        let world = run.groups.world();
        if !agreement::any(world, !found.is_empty())? {
            self.last_equal = Some(iteration);
            return Ok(());
        }
        let mine: Vec<String> = found.iter().map(|text| format!("{}: {text}", self.placement)).collect();
        let since = self.last_equal.map_or_else(
            || "they were not compared before".to_owned(),
            |last| format!("they were equal after iteration {last}"),
        );
        let found = agreement::gather(world, &mine)?.concat().join("; ");
        Err(SubsystemError::ReplicasDiffer { iteration, found, since })
    }
}

/// Hashes of the parameters of this rank, by the ranks that have the same ones.
fn hashes(run: &RunContext) -> BTreeMap<ReplicaGroup, Hashes> {
    let mut hashes: BTreeMap<ReplicaGroup, Hashes> = BTreeMap::new();
    for chunk in &run.training.chunks {
        let declared: BTreeMap<&str, ReplicaGroup> =
            chunk.parameters().iter().map(|declared| (declared.name.as_str(), declared.placement.replicas)).collect();
        chunk.visit_parameters(&mut |name, value| {
            // Bits, not a number: a hash has no sign.
            let hash = XxHash3_64::oneshot(value.into_data().as_bytes()) as i64;
            hashes.entry(declared[name]).or_default().push((name.to_owned(), hash));
        });
    }
    hashes
}

/// Tensors of this rank that differ from most of its replicas, or, if no values have a majority,
/// from the others.
fn differing(replicas: &Group, hashes: &Hashes) -> Result<Option<String>, CommError> {
    if replicas.size() == 1 {
        return Ok(None);
    }
    let mine: Vec<i64> = hashes.iter().map(|(_, hash)| *hash).collect();
    let bytes: Vec<u8> = mine.iter().flat_map(|hash| hash.to_le_bytes()).collect();
    let mut of_all = vec![0_i64; replicas.size()];
    replicas.all_gather((&[XxHash3_64::oneshot(&bytes) as i64]).into(), (&mut of_all).into())?;
    if of_all.iter().all(|hash| *hash == of_all[0]) {
        return Ok(None);
    }
    let mut all = vec![0_i64; mine.len() * replicas.size()];
    replicas.all_gather((&mine).into(), (&mut all).into())?;
    let by_rank: Vec<&[i64]> = all.chunks_exact(mine.len()).collect();
    let odd: Vec<usize> = (0..mine.len()).filter(|index| is_odd(replicas.rank(), &by_rank, *index)).collect();
    Ok(odd.first().map(|first| {
        format!(
            "{} of {} parameters differ from those of other replicas, `{}` first",
            odd.len(),
            mine.len(),
            hashes[*first].0
        )
    }))
}

/// True if rank `rank` has a hash at `index` that fewer ranks share than another one.
fn is_odd(rank: usize, by_rank: &[&[i64]], index: usize) -> bool {
    let votes = |hash: i64| by_rank.iter().filter(|hashes| hashes[index] == hash).count();
    let mine = votes(by_rank[rank][index]);
    by_rank.iter().any(|hashes| hashes[index] != by_rank[rank][index] && votes(hashes[index]) >= mine)
}

impl Subsystem for WeightHashes {
    fn name(&self) -> &str {
        "weight hashes"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        if self.interval.is_some() { self.compare(run) } else { Ok(()) }
    }

    fn after_step(&mut self, run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        if !is_due(self.interval, step.iteration) {
            return Ok(LoopRequest::default());
        }
        self.compare(run)?;
        Ok(LoopRequest::default().note(format!(">>> Weight hashes match after {} iterations...", step.iteration)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bridge_dist::comm::thread::run_ranks;

    use super::*;

    #[test]
    fn the_rank_that_most_disagree_with_is_named() {
        for (values, expected) in [
            (&[7, 7, 7, 7][..], &[false, false, false, false][..]),
            (&[7, 7, 9, 7], &[false, false, true, false]),
            // Without a majority, all ranks are named.
            (&[7, 9], &[true, true]),
            (&[7, 7, 9, 9], &[true, true, true, true]),
            (&[7, 7, 8, 9], &[false, false, true, true]),
        ] {
            let found = run_ranks(values.len(), Duration::from_secs(120), |world| {
                let hashes = vec![("same".to_owned(), 1), ("other".to_owned(), values[world.rank()])];
                differing(&world, &hashes)
            });
            let found = found.expect("ranks that communicate");
            for (rank, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert_eq!(found.is_some(), *expected, "rank {rank} of {values:?}");
                assert!(found.as_ref().is_none_or(|text| text.contains("1 of 2") && text.contains("`other`")));
            }
        }
    }
}
