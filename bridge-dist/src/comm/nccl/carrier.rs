//! What moves bytes between the ranks of a group, once they have agreed to move them. The algorithms above it are tested without a GPU
//! through this interface.

use std::time::Duration;

use crate::comm::Group;
use crate::comm::error::CommErrorKind;

/// Why bytes did not move.
#[derive(Debug)]
pub(super) enum CarrierError {
    /// Nothing happened for so long.
    Stalled(Duration),
    /// Something is known about it.
    Failed(CommErrorKind),
}

impl CarrierError {
    pub fn library(library: &'static str, message: impl Into<String>) -> Self {
        Self::Failed(CommErrorKind::Transport { library, message: message.into() })
    }
}

/// One rank's end of a line between all ranks of a group. All ranks call the same methods in the same order, with lengths that fit.
pub(super) trait Carrier: Send {
    /// `output` is `size` times as long as `input`.
    fn all_gather(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), CarrierError>;

    fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), CarrierError>;

    /// `sends[j]` goes to rank `j`, and `receives[i]` is filled by rank `i`.
    fn exchange(&mut self, sends: &[&[u8]], receives: &mut [&mut [u8]]) -> Result<(), CarrierError>;

    /// Stops what is under way. The carrier is not used afterwards.
    fn abort(&mut self);
}

/// Makes carriers.
pub(super) trait Fabric: Clone + Send + Sync + 'static {
    type Carrier: Carrier + 'static;

    /// The most bytes that a rank gives or takes in one call, all ranks together.
    fn piece_bytes(&self) -> usize;

    /// Collective over `control`, the group whose ranks are to be joined.
    fn connect(&self, control: &Group) -> Result<Self::Carrier, CarrierError>;
}
