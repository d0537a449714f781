//! Checks each rank's list separately: every action happens once, and after the actions that it
//! needs.

use std::collections::HashSet;

use super::action::{Action, Message};
use super::{PipelineSchedule, PipelineShape, ScheduleError, ScheduleKind};

/// Checks every rank's list: each micro-batch of each chunk is run forward once and (unless the
/// schedule is forward-only) backward once, inputs are received before they are used, outputs are
/// made before they are sent, and peers are the right neighbours.
///
/// [`simulate`](super::simulate) checks whether the lists work together.
///
/// # Errors
/// The first problem found.
pub fn validate(schedule: &PipelineSchedule) -> Result<(), ScheduleError> {
    if schedule.ranks.len() != schedule.shape.num_stages {
        return Err(ScheduleError::RankCount { expected: schedule.shape.num_stages, found: schedule.ranks.len() });
    }
    for (rank, actions) in schedule.ranks.iter().enumerate() {
        let mut progress = Progress { shape: schedule.shape, rank, done: HashSet::new() };
        for (index, action) in actions.iter().enumerate() {
            progress.step(*action).map_err(|problem| ScheduleError::Action {
                rank,
                index,
                action: *action,
                problem,
            })?;
        }
        progress.finish(schedule.kind)?;
    }
    Ok(())
}

/// The parts of a micro-batch's passage through a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    InputReceived,
    Forward,
    OutputSent,
    GradientReceived,
    BackwardInput,
    BackwardWeight,
    GradientSent,
}

impl Part {
    fn describe(self) -> &'static str {
        match self {
            Self::InputReceived => "receiving the activation",
            Self::Forward => "forward",
            Self::OutputSent => "sending the activation",
            Self::GradientReceived => "receiving the gradient",
            Self::BackwardInput => "backward",
            Self::BackwardWeight => "the weight part of backward",
            Self::GradientSent => "sending the gradient",
        }
    }
}

struct Progress {
    shape: PipelineShape,
    rank: usize,
    done: HashSet<(Part, usize, usize)>,
}

impl Progress {
    fn step(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Forward { microbatch, chunk } => {
                self.in_range(microbatch, chunk)?;
                if self.has_lower(chunk) {
                    self.need(Part::InputReceived, microbatch, chunk)?;
                } else if self.shape.virtual_stage(self.rank, chunk) > 0 {
                    self.need(Part::Forward, microbatch, chunk - 1)?;
                }
                self.mark(Part::Forward, microbatch, chunk)
            }
            Action::Backward { microbatch, chunk } => {
                self.backward_input(microbatch, chunk)?;
                self.mark(Part::BackwardWeight, microbatch, chunk)
            }
            Action::BackwardInput { microbatch, chunk } => self.backward_input(microbatch, chunk),
            Action::BackwardWeight { microbatch, chunk } => {
                self.need(Part::BackwardInput, microbatch, chunk)?;
                self.mark(Part::BackwardWeight, microbatch, chunk)
            }
            Action::RecvActivation(message) => {
                self.lower_neighbour(message)?;
                self.mark(Part::InputReceived, message.microbatch, message.chunk)
            }
            Action::SendActivation(message) => {
                self.upper_neighbour(message)?;
                self.need(Part::Forward, message.microbatch, message.chunk)?;
                self.mark(Part::OutputSent, message.microbatch, message.chunk)
            }
            Action::RecvGradient(message) => {
                self.upper_neighbour(message)?;
                self.need(Part::OutputSent, message.microbatch, message.chunk)?;
                self.mark(Part::GradientReceived, message.microbatch, message.chunk)
            }
            Action::SendGradient(message) => {
                self.lower_neighbour(message)?;
                self.need(Part::BackwardInput, message.microbatch, message.chunk)?;
                self.mark(Part::GradientSent, message.microbatch, message.chunk)
            }
        }
    }

    fn backward_input(&mut self, microbatch: usize, chunk: usize) -> Result<(), String> {
        self.need(Part::Forward, microbatch, chunk)?;
        if self.has_upper(chunk) {
            self.need(Part::GradientReceived, microbatch, chunk)?;
        } else if self.shape.virtual_stage(self.rank, chunk) + 1 < self.shape.num_virtual_stages() {
            self.need(Part::BackwardInput, microbatch, chunk + 1)?;
        }
        self.mark(Part::BackwardInput, microbatch, chunk)
    }

    fn has_lower(&self, chunk: usize) -> bool {
        self.shape.num_stages > 1 && self.shape.virtual_stage(self.rank, chunk) > 0
    }

    fn has_upper(&self, chunk: usize) -> bool {
        let stage = self.shape.virtual_stage(self.rank, chunk);
        self.shape.num_stages > 1 && stage + 1 < self.shape.num_virtual_stages()
    }

    fn in_range(&self, microbatch: usize, chunk: usize) -> Result<(), String> {
        let PipelineShape { num_chunks, num_microbatches, .. } = self.shape;
        if microbatch >= num_microbatches || chunk >= num_chunks {
            return Err(format!("there are {num_microbatches} micro-batches and {num_chunks} chunks"));
        }
        Ok(())
    }

    fn lower_neighbour(&self, message: Message) -> Result<(), String> {
        self.in_range(message.microbatch, message.chunk)?;
        if !self.has_lower(message.chunk) {
            return Err("the first stage has no previous rank".to_owned());
        }
        let stage = self.shape.virtual_stage(self.rank, message.chunk);
        self.neighbour(message, stage - 1, stage - 1)
    }

    fn upper_neighbour(&self, message: Message) -> Result<(), String> {
        self.in_range(message.microbatch, message.chunk)?;
        if !self.has_upper(message.chunk) {
            return Err("the last stage has no next rank".to_owned());
        }
        let stage = self.shape.virtual_stage(self.rank, message.chunk);
        self.neighbour(message, stage + 1, stage)
    }

    fn neighbour(&self, message: Message, other: usize, boundary: usize) -> Result<(), String> {
        let peer = other % self.shape.num_stages;
        if message.peer != peer || message.boundary != boundary {
            return Err(format!("the peer must be rank {peer}, over boundary {boundary}"));
        }
        Ok(())
    }

    fn need(&self, part: Part, microbatch: usize, chunk: usize) -> Result<(), String> {
        if self.done.contains(&(part, microbatch, chunk)) {
            return Ok(());
        }
        let what = part.describe();
        Err(format!("{what} of micro-batch {microbatch}, chunk {chunk} has to come first"))
    }

    fn mark(&mut self, part: Part, microbatch: usize, chunk: usize) -> Result<(), String> {
        if self.done.insert((part, microbatch, chunk)) {
            return Ok(());
        }
        Err(format!("{} happens twice", part.describe()))
    }

    fn finish(&self, kind: ScheduleKind) -> Result<(), ScheduleError> {
        let trains = kind != ScheduleKind::ForwardOnly;
        for microbatch in 0..self.shape.num_microbatches {
            for chunk in 0..self.shape.num_chunks {
                let needed = [
                    (Part::Forward, true),
                    (Part::OutputSent, self.has_upper(chunk)),
                    (Part::BackwardInput, trains),
                    (Part::BackwardWeight, trains),
                    (Part::GradientSent, trains && self.has_lower(chunk)),
                ];
                for (part, _) in needed.into_iter().filter(|(_, needed)| *needed) {
                    self.need(part, microbatch, chunk).map_err(|_| ScheduleError::Missing {
                        rank: self.rank,
                        missing: format!("{} of micro-batch {microbatch}, chunk {chunk}", part.describe()),
                    })?;
                }
            }
        }
        Ok(())
    }
}
