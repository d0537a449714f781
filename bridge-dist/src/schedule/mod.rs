//! Pipeline schedules as data: the ordered computations, sends and receives of each rank. One
//! executor runs any schedule; this module does not compute or communicate.
//!
//! - [`PipelineSchedule`] makes the action lists (GPipe, 1F1B, interleaved, zero-bubble,
//!   forward-only);
//! - [`validate`] checks each list separately, [`simulate`] executes all of them on virtual clocks;
//! - [`placement`] says which layers a stage holds.
//!
//! A pipeline of `P` ranks with `C` chunks per rank is a chain of `P * C` virtual stages: chunk `c`
//! of rank `r` is stage `c * P + r`.

use std::fmt;

mod action;
mod check;
mod generate;
pub mod placement;
mod simulate;

pub use action::{Action, Direction, Message};
pub use check::validate;
pub use generate::{check_shape, interleaved_table, rank_actions, warmup_microbatches};
pub use simulate::{Costs, Sends, SimulationReport, simulate};

/// The kind of schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleKind {
    /// All forwards, then all backwards (Huang et al. 2019). One chunk.
    GPipe,
    /// One forward, one backward (Narayanan et al. 2019, as in Megatron): at most `P - r`
    /// micro-batches in flight. One chunk.
    OneForwardOneBackward,
    /// Interleaved 1F1B over several chunks per rank (Narayanan et al. 2021).
    Interleaved {
        /// Consecutive micro-batches that a chunk runs before the next chunk takes over; Megatron's
        /// `microbatch_group_size_per_vp_stage`, by default the number of ranks.
        microbatch_group_size: usize,
    },
    /// ZB-H1 (Qi et al. 2024): 1F1B with the weight part of backward moved into the bubble, at the
    /// memory of 1F1B's first stage. One chunk.
    ZeroBubbleH1,
    /// Evaluation: forwards only, over any number of chunks.
    ForwardOnly,
}

impl ScheduleKind {
    /// True if, on the chunk with the loss, each forward is followed at once by its own backward.
    /// (Interleaved schedules do that only in full groups of micro-batches.)
    pub fn backward_follows_loss(&self) -> bool {
        matches!(self, Self::OneForwardOneBackward | Self::ZeroBubbleH1)
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GPipe => f.write_str("GPipe"),
            Self::OneForwardOneBackward => f.write_str("1F1B"),
            Self::Interleaved { microbatch_group_size } => {
                write!(f, "interleaved 1F1B (groups of {microbatch_group_size})")
            }
            Self::ZeroBubbleH1 => f.write_str("ZB-H1"),
            Self::ForwardOnly => f.write_str("forward-only"),
        }
    }
}

/// The size of a pipeline's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipelineShape {
    /// Ranks of the pipeline (`P`).
    pub num_stages: usize,
    /// Model chunks on each rank (`C`); 1 without virtual stages.
    pub num_chunks: usize,
    /// Micro-batches in an iteration (`M`).
    pub num_microbatches: usize,
}

impl PipelineShape {
    /// The place of a rank's chunk in the chain of virtual stages.
    pub const fn virtual_stage(&self, rank: usize, chunk: usize) -> usize {
        chunk * self.num_stages + rank
    }

    /// Virtual stages in the chain.
    pub const fn num_virtual_stages(&self) -> usize {
        self.num_stages * self.num_chunks
    }
}

/// Every rank's actions for one iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineSchedule {
    /// Kind of the schedule.
    pub kind: ScheduleKind,
    /// The size of the work.
    pub shape: PipelineShape,
    /// Actions by rank.
    pub ranks: Vec<Vec<Action>>,
}

/// A schedule that cannot be made, or actions that cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A size is 0.
    #[error("{what} is 0, and must be at least 1")]
    Zero {
        /// The size.
        what: &'static str,
    },
    /// The schedule does not support model chunks.
    #[error("the {kind} schedule runs one model chunk per rank, not {num_chunks}; use the interleaved one")]
    NoChunks {
        /// The schedule.
        kind: ScheduleKind,
        /// Requested chunks.
        num_chunks: usize,
    },
    /// The group size of the interleaved schedule does not fit.
    #[error(
        "microbatch_group_size {group} is impossible with {num_stages} stages and {num_microbatches} micro-batches: {rule}"
    )]
    GroupSize {
        /// The group size.
        group: usize,
        /// Ranks of the pipeline.
        num_stages: usize,
        /// Micro-batches.
        num_microbatches: usize,
        /// Rule that the shape breaks.
        rule: &'static str,
    },
    /// A rank's list is invalid, independently of other ranks.
    #[error("rank {rank}, action {index} ({action}): {problem}")]
    Action {
        /// The rank.
        rank: usize,
        /// Index into the rank's list.
        index: usize,
        /// The action.
        action: Action,
        /// Description of the problem.
        problem: String,
    },
    /// A rank's list lacks work.
    #[error("rank {rank} never does {missing}")]
    Missing {
        /// The rank.
        rank: usize,
        /// The missing action.
        missing: String,
    },
    /// The number of lists is not the number of ranks.
    #[error("{found} action lists for {expected} ranks")]
    RankCount {
        /// Ranks of the pipeline.
        expected: usize,
        /// Lists given.
        found: usize,
    },
    /// A receive would get a different micro-batch than it expects.
    #[error("rank {rank} expects micro-batch {expected} in {action}, and micro-batch {found} arrives")]
    WrongOrder {
        /// The receiving rank.
        rank: usize,
        /// Receive that matches the send.
        action: Action,
        /// The micro-batch of the receive.
        expected: usize,
        /// The micro-batch at the head of the queue.
        found: usize,
    },
    /// Ranks wait for each other forever.
    #[error("deadlock: {}", describe_blocked(blocked))]
    Deadlock {
        /// The blocked ranks, each with the action that it is stuck in.
        blocked: Vec<(usize, Action)>,
    },
    /// Messages that are never received.
    #[error("{count} messages from rank {from} to rank {to} are never received")]
    Unreceived {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// Number of micro-batches in flight.
        count: usize,
    },
}

fn describe_blocked(blocked: &[(usize, Action)]) -> String {
    let ranks: Vec<String> = blocked.iter().map(|(rank, action)| format!("rank {rank} in {action}")).collect();
    ranks.join(", ")
}
