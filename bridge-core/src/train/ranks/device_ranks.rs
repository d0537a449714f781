//! Communication of ranks on CUDA devices: by NCCL, or through host memory over their launcher's
//! communicator.

use bridge_dist::comm::Group;

use crate::config::{DistributedBackend, RunConfig};
use crate::train::ranks::agreement;
use crate::train::ranks::device::{LocalRank, own_cuda_device};
use crate::train::ranks::error::RanksError;

/// The communicator for the ranks of a run, which `world` connects: NCCL's, where each rank has a
/// CUDA device of its own and `dist.distributed_backend` is `nccl`, otherwise `world` itself.
/// Collective.
///
/// # Errors
/// If this build has no NCCL, or it cannot be started on some rank.
pub fn over_devices(config: &RunConfig, world: Group) -> Result<Group, RanksError> {
    let uses_nccl = config.dist.distributed_backend == DistributedBackend::Nccl;
    if world.size() == 1 || !uses_nccl || config.computes_on_cpu() {
        return Ok(world);
    }
    let place = if config.dist.external_gpu_device_mapping { LocalRank::ALONE } else { agreement::local_rank(&world)? };
    match own_cuda_device(&config.device, place) {
        Some(index) => connect(&world, index).map_err(|message| RanksError::Nccl { message }),
        None => Ok(world),
    }
}

#[cfg(feature = "nccl")]
fn connect(world: &Group, index: usize) -> Result<Group, String> {
    use bridge_cuda::nccl::NcclCommunicator;

    match NcclCommunicator::connect(world, index) {
        Ok(joined) => Ok(std::sync::Arc::new(joined)),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(not(feature = "nccl"))]
fn connect(_world: &Group, _index: usize) -> Result<Group, String> {
    Err("this build has no NCCL; build with `--features bridge-cli/nccl`".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bridge_dist::comm::thread::run_ranks;

    use super::*;

    /// A device that no machine has. With or without the feature, every rank gets an error with a
    /// remedy.
    #[test]
    fn nccl_that_cannot_start_is_an_error_on_every_rank() {
        let errors = run_ranks(2, Duration::from_secs(120), |world| {
            let error = connect(&world, 1_000_000).map_err(|message| RanksError::Nccl { message });
            Ok::<_, RanksError>((error.expect_err("no such device").to_string(), world))
        });
        for (message, _) in errors.expect("both ranks end") {
            assert!(message.starts_with("dist.distributed_backend = nccl: "), "{message}");
            assert!(message.ends_with("or set dist.distributed_backend = gloo to exchange through host memory"));
            assert!(cfg!(feature = "nccl") || message.contains("--features bridge-cli/nccl"), "{message}");
        }
    }
}
