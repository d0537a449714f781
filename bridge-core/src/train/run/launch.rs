//! Starting the ranks of a run as threads of this process, and failures of ranks.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use bridge_dist::comm::thread::{Devices, RankError, RankFailure, run_ranks_on};
use bridge_dist::comm::{CommError, Group};
use bridge_dist::mesh::ProcessGroups;

use crate::config::RunConfig;
use crate::train::error::CommonError;
use crate::train::ranks::agreement::process_groups;
use crate::train::ranks::device::is_shared_device;
use crate::train::ranks::device_ranks::over_devices;
use crate::train::run::error::TrainError;

/// Time limit for other ranks, from `dist.distributed_timeout_minutes`.
pub fn rank_timeout(config: &RunConfig) -> Duration {
    Duration::from_secs((config.dist.distributed_timeout_minutes as u64).saturating_mul(60))
}

/// Runs `program` on `config.parallel.world_size` ranks, each a thread with a thread pool of its
/// own, and returns their results in rank order.
///
/// A rank's pool has `train.num_threads` threads, by default its share of the CPU's cores.
/// `program` usually makes options and calls [`pretrain`](crate::train::pretrain); options are made
/// once for each rank.
///
/// ```ignore
/// let reports = run_on_threads(&config, rank_timeout(&config), |groups| {
///     pretrain(config.clone(), RunOptions { groups, ..RunOptions::new(registry.clone()) })
/// })?;
/// ```
///
/// # Errors
/// The failure that came first. All ranks have ended then.
pub fn run_on_threads<T: Send>(
    config: &RunConfig,
    timeout: Duration,
    program: impl Fn(ProcessGroups) -> Result<T, TrainError> + Sync,
) -> Result<Vec<T>, TrainError> {
    run_on_wrapped_threads(config, timeout, |world| world, program)
}

/// As [`run_on_threads`], but each rank first wraps its world communicator, and so all its groups:
/// in one that counts calls, or in one that is slow. A run of one rank has no communicator to wrap.
///
/// # Errors
/// As [`run_on_threads`].
pub fn run_on_wrapped_threads<T: Send>(
    config: &RunConfig,
    timeout: Duration,
    wrap: impl Fn(Group) -> Group + Sync,
    program: impl Fn(ProcessGroups) -> Result<T, TrainError> + Sync,
) -> Result<Vec<T>, TrainError> {
    let devices = if is_shared_device(&config.device) { Devices::Shared } else { Devices::Apart };
    run_on_threads_with(devices, config, timeout, wrap, program)
}

/// As [`run_on_wrapped_threads`], but `devices` instead of `config.device` decides whether ranks
/// exchange memory of a device that they share. By default ranks on the CPU do not, because tensors
/// are in host memory already.
///
/// # Errors
/// As [`run_on_threads`].
pub fn run_on_threads_with<T: Send>(
    devices: Devices,
    config: &RunConfig,
    timeout: Duration,
    wrap: impl Fn(Group) -> Group + Sync,
    program: impl Fn(ProcessGroups) -> Result<T, TrainError> + Sync,
) -> Result<Vec<T>, TrainError> {
    let ranks = config.parallel.world_size;
    if ranks == 1 {
        return program(ProcessGroups::single()).map(|value| vec![value]);
    }
    let threads = config.train.num_threads.unwrap_or_else(|| share_of_cpu(ranks));
    let outcome = run_ranks_on(devices, ranks, timeout, |world| {
        let rank = world.rank();
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |thread| format!("rank-{rank}-{thread}"))
            .build()
            .map_err(|error| TrainError::RankNotStarted { rank, message: error.to_string() })?;
        let (program, wrap) = (&program, &wrap);
        // The group is handed in by value: when the rank ends, its last communicator is dropped,
        // and other ranks notice.
        catch_comm_error(|| pool.install(move || program(process_groups(config, wrap(over_devices(config, world)?))?)))
    });
    outcome.map_err(first_failure)
}

/// Threads of one of `ranks` ranks that share this machine; at least one.
fn share_of_cpu(ranks: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / ranks).max(1)
}

/// Runs `work`; a communication error that had to leave a forward or backward pass as a panic
/// becomes an ordinary error.
///
/// Burn's operations cannot return errors, so regions that communicate inside a model panic with
/// the [`CommError`] as payload. Other panics go on.
pub(in crate::train) fn catch_comm_error<T>(work: impl FnOnce() -> Result<T, TrainError>) -> Result<T, TrainError> {
    // Captures of `work` are dropped or only read for its report afterwards.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(payload) => match payload.downcast::<CommError>() {
            Ok(error) => Err((*error).into()),
            Err(other) => resume_unwind(other),
        },
    }
}

fn first_failure(error: RankError) -> TrainError {
    let RankError { rank, operation, failure, .. } = error;
    match failure {
        RankFailure::Failed(error) => match error.downcast::<TrainError>() {
            Ok(error) => *error,
            Err(other) => CommonError::Internal(other.to_string()).into(),
        },
        RankFailure::Panicked(message) => TrainError::RankPanicked { rank, message, operation },
        RankFailure::NotStarted(error) => TrainError::RankNotStarted { rank, message: error.to_string() },
        other => CommonError::Internal(other.to_string()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Format, Kinds, World, load_text};

    #[test]
    fn minutes_beyond_all_seconds_are_no_short_wait() {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/config/tests/fixtures/config/tiny.toml"));
        // Sixty times this is 44 more than 64 bits hold.
        let minutes = ["dist.distributed_timeout_minutes=307445734561825861".to_owned()];
        let config = load_text(text, Format::Toml, &minutes, &Kinds::builtin(), &World::SINGLE).expect("accepted");
        assert_eq!(rank_timeout(&config), Duration::from_secs(u64::MAX));
    }
}
