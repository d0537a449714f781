//! Treatment of parameters that the model has and the checkpoint lacks, and of those that only the
//! checkpoint has: `checkpoint.dist_ckpt_strictness`.

use std::collections::BTreeSet;

use bridge_dist::comm::ReduceOp;
use bridge_dist::mesh::ProcessGroups;

use super::sources::Sources;
use crate::checkpoint::Checkpoint;
use crate::config::{DistCkptStrictness, RunConfig};
use crate::model::{Declaration, ModelChunk};
use crate::train::ranks::agreement;
use crate::train::resume::error::ResumeError;
use crate::train::unmatched::Unmatched;

/// Checks of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) struct Strictness {
    /// Parameters that the checkpoint lacks keep their initial values.
    allows_absent: bool,
    /// True if tensors that only the checkpoint has are compared too.
    compares_unused: bool,
    /// True if names are compared before anything is loaded.
    compares: bool,
}

impl Strictness {
    /// Strictness of a recipe.
    pub fn from_config(config: &RunConfig) -> Self {
        let (allows_absent, compares_unused, compares) = match config.checkpoint.dist_ckpt_strictness {
            DistCkptStrictness::AssumeOkUnexpected => (false, false, false),
            DistCkptStrictness::RaiseUnexpected => (false, false, true),
            DistCkptStrictness::RaiseAll => (false, true, true),
            DistCkptStrictness::LogUnexpected => (true, false, true),
            // The configuration refuses levels that report nothing.
            DistCkptStrictness::LogAll
            | DistCkptStrictness::ReturnUnexpected
            | DistCkptStrictness::ReturnAll
            | DistCkptStrictness::IgnoreAll => (true, true, true),
        };
        Self { allows_absent, compares_unused, compares }
    }

    /// True if some parameters may keep their initial values.
    pub fn allows_absent(self) -> bool {
        self.allows_absent
    }

    /// True if optimizer state without a parameter may be left.
    pub fn allows_unused_state(self) -> bool {
        self.allows_absent && self.compares_unused
    }

    /// Compares the names of the model with those of its checkpoints. All ranks call this together.
    ///
    /// # Errors
    /// All names that differ, if the level does not allow differences.
    pub(super) fn compare(
        self,
        chunks: &[Box<dyn ModelChunk>],
        sources: &Sources<'_>,
        checkpoint: &Checkpoint,
        groups: &ProcessGroups,
    ) -> Result<Unmatched, ResumeError> {
        if !self.compares {
            return Ok(Unmatched::default());
        }
        let declarations = || chunks.iter().flat_map(|chunk| chunk.parameters());
        let is_absent =
            |info: &&Declaration| sources.checkpoint_for(info).is_some_and(|source| source.tensor(&info.name).is_err());
        let absent: Vec<String> = declarations().filter(is_absent).map(|info| info.name.clone()).collect();
        let absent: BTreeSet<String> = agreement::gather(groups.world(), &absent)?.into_iter().flatten().collect();
        let mut unmatched = Unmatched { absent: absent.into_iter().collect(), unused: Vec::new() };
        if self.compares_unused {
            let mine: BTreeSet<&str> = declarations().map(|info| info.name.as_str()).collect();
            let mut used: Vec<u8> = checkpoint.names_in("model").map(|name| u8::from(mine.contains(name))).collect();
            if groups.world().size() > 1 && !used.is_empty() {
                groups.world().all_reduce((&mut used).into(), ReduceOp::Max)?;
            }
            let names = checkpoint.names_in("model").zip(&used).filter(|(_, used)| **used == 0);
            unmatched.unused = names.map(|(name, _)| name.to_owned()).collect();
        }
        let is_refused = !unmatched.absent.is_empty() || !unmatched.unused.is_empty();
        if is_refused && !self.allows_absent {
            return Err(ResumeError::Unmatched { path: checkpoint.path().to_owned(), unmatched });
        }
        Ok(unmatched)
    }
}
