//! A rank's place in a group, and the first failure, which all groups of a rank share. No data and
//! no library here.

use std::sync::{Arc, Mutex};

use bridge_dist::comm::transport::{GroupMember, RankContext, Signature, lock};
use bridge_dist::comm::{CommError, CommErrorKind};

/// State that all groups of one rank share.
#[derive(Debug, Default)]
pub(super) struct World {
    failure: Mutex<Option<Arc<CommError>>>,
}

impl World {
    pub fn failure(&self) -> Option<Arc<CommError>> {
        lock(&self.failure).clone()
    }
}

/// A rank of a group.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub world: Arc<World>,
    pub rank: usize,
    pub world_ranks: Arc<[usize]>,
    pub name: Arc<str>,
}

impl GroupMember for Member {
    fn rank_context(&self) -> RankContext<'_> {
        RankContext { rank: self.rank, world_ranks: &self.world_ranks, group: &self.name }
    }

    fn failure(&self) -> Option<Arc<CommError>> {
        self.world.failure()
    }

    /// Records a failure; only the first one counts.
    fn fail(&self, signature: &Signature, kind: CommErrorKind) -> CommError {
        let error = self.rank_context().error(signature, kind);
        lock(&self.world.failure).get_or_insert_with(|| Arc::new(error.clone()));
        error
    }
}

impl Member {
    pub fn size(&self) -> usize {
        self.world_ranks.len()
    }

    /// This rank in the world.
    pub fn world_rank(&self) -> usize {
        self.world_ranks[self.rank]
    }

    /// Converts an error of the bootstrap group to one of the operation that needed it.
    pub fn adopt(&self, signature: &Signature, error: CommError) -> CommError {
        match *error.kind {
            kind @ CommErrorKind::InvalidArgument { .. } => self.rank_context().error(signature, kind),
            kind => self.fail(signature, kind),
        }
    }
}
