//! Errors of connecting ranks.

use bridge_dist::mesh::MeshSetupError;

use crate::train::error::{CommonError, ErrorClass, room_error};

/// Why the ranks of a run could not be connected.
#[derive(thiserror::Error)]
pub enum RanksError {
    /// An error that several modules of the training loop share.
    #[error(transparent)]
    Common(CommonError),
    /// NCCL is not available to ranks on CUDA devices.
    #[error(
        "dist.distributed_backend = nccl: {message}; or set dist.distributed_backend = gloo to exchange through host memory"
    )]
    Nccl {
        /// Reason.
        message: String,
    },
    /// The ranks do not fit the parallel sizes, or could not create their process groups.
    #[error(transparent)]
    Mesh(#[from] MeshSetupError),
    /// Ranks were started with different recipes.
    #[error(
        "the ranks were given different recipes: {} of {size} {} than the others (this is rank {rank}); start all ranks with the same \
         recipe and overrides",
        ranks(others),
        if others.len() == 1 { "has another" } else { "have others" }
    )]
    RecipesDiffer {
        /// Rank that reports the error.
        rank: usize,
        /// Ranks whose recipe differs from the recipe of most ranks.
        others: Vec<usize>,
        /// Number of ranks.
        size: usize,
    },
}

room_error! { RanksError, wraps Common;
    Self::Mesh(MeshSetupError::Mesh(_) | MeshSetupError::WorldSize { .. })
    | Self::Nccl { .. }
    | Self::RecipesDiffer { .. } => ErrorClass::BadInput,
    Self::Mesh(_) => ErrorClass::Failed,
}

fn ranks(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}
