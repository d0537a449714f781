//! Parts that implementations of [`Communicator`](super::Communicator) share, for those outside
//! this crate: checks of arguments, agreement of ranks, background lanes, waiting.

pub use super::lock::lock;
pub use super::pace::Pace;
pub use super::pieces::{chunks, reduce_parts, spread};
pub use super::request::Pending;
pub use super::signature::{OpKind, RankContext, Signature};
pub use super::worker::{Background, Collectives, GroupMember, Worker};
pub use crate::delegate_to_lanes;
