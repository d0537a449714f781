//! Errors of connecting ranks.

use bridge_dist::mesh::MeshSetupError;

use crate::train::error::{CommonError, ErrorClass, room_error};

/// Why the ranks of a run could not be connected.
#[derive(thiserror::Error)]
pub enum RanksError {
    /// An error that other rooms make too.
    #[error(transparent)]
    Common(CommonError),
    /// Ranks on CUDA devices cannot exchange data by NCCL.
    #[error(
        "dist.distributed_backend = nccl: {message}; or set dist.distributed_backend = gloo to exchange through host memory"
    )]
    Nccl {
        /// Why.
        message: String,
    },
    /// The ranks cannot be laid out, or could not make their groups.
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
        /// The rank that reports it.
        rank: usize,
        /// The ranks whose recipe is not that of most ranks.
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
