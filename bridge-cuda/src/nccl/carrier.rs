//! The interface that moves bytes between the ranks of a group, once they have agreed on an
//! operation. Through it the algorithms above are tested without a GPU.

use std::time::Duration;

use super::member::Member;
use super::staged::Staged;
use bridge_dist::comm::device::DeviceExchange;
use bridge_dist::comm::{CommErrorKind, Group};

/// Why a transfer failed.
#[derive(Debug)]
pub(super) enum CarrierError {
    /// No data moved for this long.
    Stalled(Duration),
    /// A known error.
    Failed(CommErrorKind),
}

impl CarrierError {
    pub fn library(library: &'static str, message: impl Into<String>) -> Self {
        Self::Failed(CommErrorKind::Transport { library, message: message.into() })
    }
}

/// One rank's end of a line between all ranks of a group. All ranks call the same methods in the
/// same order, with lengths that fit.
pub(super) trait Carrier: Send {
    /// `output` is `size` times as long as `input`.
    fn all_gather(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), CarrierError>;

    fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), CarrierError>;

    /// `sends[j]` goes to rank `j`, and `receives[i]` is filled by rank `i`.
    fn exchange(&mut self, sends: &[&[u8]], receives: &mut [&mut [u8]]) -> Result<(), CarrierError>;

    /// Aborts operations in progress. The carrier is not used afterwards.
    fn abort(&mut self);
}

/// Creates carriers.
pub(super) trait Fabric: Clone + Send + Sync + 'static {
    type Carrier: Carrier + 'static;

    /// Carrier of messages in device memory.
    type Messages: Send + Sync + 'static;

    /// The maximum number of bytes that a rank sends or receives in one call, over all ranks.
    fn piece_bytes(&self) -> usize;

    /// The way of memory that stays on the device, if carriers have one.
    fn exchange(_staged: &Staged<Self>) -> Option<&dyn DeviceExchange> {
        None
    }

    /// The messages of a rank, with headers over `control`.
    fn messages(&self, member: &Member, control: &Group) -> Self::Messages;

    /// All ranks of `control`, the group to be connected, call this together.
    fn connect(&self, control: &Group) -> Result<Self::Carrier, CarrierError>;
}
