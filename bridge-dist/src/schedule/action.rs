//! One step of a rank in a pipeline schedule, and the messages between ranks.

use std::fmt;

/// One action of a rank. `chunk` is always a chunk of the acting rank.
///
/// Sends are started and need not complete before the next action; receives complete before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Run a chunk's layers on a micro-batch.
    Forward {
        /// Index of the micro-batch in the pass, `0..M`.
        microbatch: usize,
        /// Index of the model chunk on this rank, `0..C`.
        chunk: usize,
    },
    /// Run a chunk's whole backward on a micro-batch: gradients of the input and of the weights.
    Backward {
        /// Index of the micro-batch in the pass.
        microbatch: usize,
        /// Index of the model chunk on this rank.
        chunk: usize,
    },
    /// The input part of backward, which the previous stage waits for: the gradient of the input.
    BackwardInput {
        /// Index of the micro-batch in the pass.
        microbatch: usize,
        /// Index of the model chunk on this rank.
        chunk: usize,
    },
    /// The weight part of backward, which can be deferred: the gradients of the weights.
    BackwardWeight {
        /// Index of the micro-batch in the pass.
        microbatch: usize,
        /// Index of the model chunk on this rank.
        chunk: usize,
    },
    /// Start sending a chunk's output to the rank of the next virtual stage.
    SendActivation(Message),
    /// Receive a chunk's input from the rank of the previous virtual stage.
    RecvActivation(Message),
    /// Start sending the gradient of a chunk's input to the rank of the previous virtual stage.
    SendGradient(Message),
    /// Receive the gradient of a chunk's output from the rank of the next virtual stage.
    RecvGradient(Message),
}

/// A transfer, from the view of one of its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Index of the micro-batch in the pass.
    pub microbatch: usize,
    /// Index of the model chunk on the acting rank.
    pub chunk: usize,
    /// The other rank of the pipeline.
    pub peer: usize,
    /// The boundary of virtual stages that the data crosses: `s` between stages `s` and `s + 1`.
    /// The same at both ends.
    pub boundary: usize,
}

/// The direction in which data moves along the chain of virtual stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Activations, towards the loss.
    Activation,
    /// Gradients, towards the embedding.
    Gradient,
}

impl Message {
    /// A message tag for this transfer, the same at both ends. Transfers with equal tags between
    /// two ranks happen in the same order at both, so tag and order identify each.
    pub const fn tag(&self, direction: Direction) -> u32 {
        (2 * self.boundary + direction as usize) as u32
    }
}

impl Action {
    /// The direction and the transfer, if the action is a message.
    pub const fn message(&self) -> Option<(Direction, Message)> {
        match self {
            Self::SendActivation(message) | Self::RecvActivation(message) => Some((Direction::Activation, *message)),
            Self::SendGradient(message) | Self::RecvGradient(message) => Some((Direction::Gradient, *message)),
            _ => None,
        }
    }

    /// True if the action sends.
    pub const fn is_send(&self) -> bool {
        matches!(self, Self::SendActivation(_) | Self::SendGradient(_))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, microbatch, chunk) = match self {
            Self::Forward { microbatch, chunk } => ("forward", microbatch, chunk),
            Self::Backward { microbatch, chunk } => ("backward", microbatch, chunk),
            Self::BackwardInput { microbatch, chunk } => ("backward-input", microbatch, chunk),
            Self::BackwardWeight { microbatch, chunk } => ("backward-weight", microbatch, chunk),
            Self::SendActivation(m) => ("send-activation", &m.microbatch, &m.chunk),
            Self::RecvActivation(m) => ("recv-activation", &m.microbatch, &m.chunk),
            Self::SendGradient(m) => ("send-gradient", &m.microbatch, &m.chunk),
            Self::RecvGradient(m) => ("recv-gradient", &m.microbatch, &m.chunk),
        };
        write!(f, "{name}(micro-batch {microbatch}, chunk {chunk}")?;
        match self.message() {
            Some((_, message)) if self.is_send() => write!(f, ", to {})", message.peer),
            Some((_, message)) => write!(f, ", from {})", message.peer),
            None => f.write_str(")"),
        }
    }
}
