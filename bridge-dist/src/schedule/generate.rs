//! The schedules: from a pipeline's shape to every rank's list of actions.
//!
//! A receive comes right before the computation that needs it, and a send right after the one that
//! made the data, with one exception: a steady-state 1F1B step receives its next activation before
//! it sends its gradient. Then the transfers on each link have the same order at both ends, and
//! GPipe, 1F1B and forward-only schedules of one chunk run even if every send waits for its
//! receive. ZB-H1 and interleaved schedules need sends that do not wait; in ZB-H1 a blocking send
//! of a gradient would cost part of the schedule's gain.

use super::action::{Action, Message};
use super::{PipelineSchedule, PipelineShape, ScheduleError, ScheduleKind};

impl PipelineSchedule {
    /// Makes the action lists of all ranks. Fails if a size is 0 or the schedule cannot run this
    /// shape.
    pub fn new(kind: ScheduleKind, shape: PipelineShape) -> Result<Self, ScheduleError> {
        check_shape(kind, shape)?;
        let ranks = (0..shape.num_stages).map(|rank| List::filled(kind, shape, rank)).collect();
        Ok(Self { kind, shape, ranks })
    }
}

/// The actions of one rank: entry `rank` of [`PipelineSchedule::ranks`], without generating other
/// ranks' lists.
///
/// # Errors
/// If a size is 0 or the schedule cannot run this shape.
///
/// # Panics
/// If `rank` is not below the number of stages.
pub fn rank_actions(kind: ScheduleKind, shape: PipelineShape, rank: usize) -> Result<Vec<Action>, ScheduleError> {
    check_shape(kind, shape)?;
    assert!(rank < shape.num_stages, "rank {rank} of a pipeline of {}", shape.num_stages);
    Ok(List::filled(kind, shape, rank))
}

/// Checks that there is a schedule of this kind for this shape, without generating it.
///
/// # Errors
/// If a size is 0, or if the kind does not support this number of chunks or micro-batches.
pub fn check_shape(kind: ScheduleKind, shape: PipelineShape) -> Result<(), ScheduleError> {
    let sizes = [
        ("the number of stages", shape.num_stages),
        ("the number of chunks", shape.num_chunks),
        ("the number of micro-batches", shape.num_microbatches),
    ];
    if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(ScheduleError::Zero { what });
    }
    match kind {
        ScheduleKind::ForwardOnly => Ok(()),
        ScheduleKind::Interleaved { microbatch_group_size } => check_group_size(microbatch_group_size, shape),
        _ if shape.num_chunks > 1 => Err(ScheduleError::NoChunks { kind, num_chunks: shape.num_chunks }),
        _ => Ok(()),
    }
}

fn check_group_size(group: usize, shape: PipelineShape) -> Result<(), ScheduleError> {
    let (stages, microbatches) = (shape.num_stages, shape.num_microbatches);
    let rule = if group < stages {
        "it must be at least the number of stages"
    } else if group > microbatches {
        "it must be at most the number of micro-batches"
    } else if (1..stages).contains(&(microbatches % group)) {
        "the micro-batches left over for the last group must be none, or at least as many as stages"
    } else {
        return Ok(());
    };
    Err(ScheduleError::GroupSize { group, num_stages: stages, num_microbatches: microbatches, rule })
}

/// Number of forwards that a rank runs before its first backward.
pub fn warmup_microbatches(kind: ScheduleKind, shape: PipelineShape, rank: usize) -> usize {
    let after = shape.num_stages - rank - 1;
    let total = shape.num_microbatches * shape.num_chunks;
    match kind {
        ScheduleKind::OneForwardOneBackward | ScheduleKind::ZeroBubbleH1 => after.min(total),
        ScheduleKind::Interleaved { microbatch_group_size } => {
            (2 * after + (shape.num_chunks - 1) * microbatch_group_size).min(total)
        }
        ScheduleKind::GPipe | ScheduleKind::ForwardOnly => total,
    }
}

/// The order in which an interleaved schedule runs its forwards: `(micro-batch, chunk)` for each
/// step. Groups of `group` micro-batches (the last one shorter) pass through all chunks before the
/// next group starts. Step `k` of the backwards is entry `k` with chunk `C - 1 - chunk`.
pub fn interleaved_table(num_microbatches: usize, num_chunks: usize, group: usize) -> Vec<(usize, usize)> {
    (0..num_microbatches)
        .step_by(group.max(1))
        .flat_map(|start| {
            let end = (start + group.max(1)).min(num_microbatches);
            (0..num_chunks).flat_map(move |chunk| (start..end).map(move |microbatch| (microbatch, chunk)))
        })
        .collect()
}

/// One rank's list under construction.
struct List {
    shape: PipelineShape,
    rank: usize,
    actions: Vec<Action>,
}

impl List {
    fn filled(kind: ScheduleKind, shape: PipelineShape, rank: usize) -> Vec<Action> {
        let mut list = Self { shape, rank, actions: Vec::new() };
        list.fill(kind);
        list.actions
    }

    fn fill(&mut self, kind: ScheduleKind) {
        let microbatches = self.shape.num_microbatches;
        match kind {
            ScheduleKind::GPipe => {
                (0..microbatches).for_each(|m| self.forward(m, 0));
                (0..microbatches).for_each(|m| self.backward(m, 0));
            }
            ScheduleKind::ForwardOnly => {
                // Grouped as in an interleaved schedule, so that chunks pass data on early and
                // queues stay short.
                let table = interleaved_table(microbatches, self.shape.num_chunks, self.shape.num_stages);
                table.into_iter().for_each(|(m, chunk)| self.forward(m, chunk));
            }
            ScheduleKind::OneForwardOneBackward => self.one_forward_one_backward(),
            ScheduleKind::ZeroBubbleH1 => self.zero_bubble(),
            ScheduleKind::Interleaved { microbatch_group_size } => self.interleaved(kind, microbatch_group_size),
        }
    }

    fn one_forward_one_backward(&mut self) {
        let microbatches = self.shape.num_microbatches;
        let warmup = warmup_microbatches(ScheduleKind::OneForwardOneBackward, self.shape, self.rank);
        (0..warmup).for_each(|m| self.forward(m, 0));
        let steady = microbatches - warmup;
        if steady > 0 {
            self.recv_activation(warmup, 0);
        }
        for m in 0..steady {
            self.compute_forward(warmup + m, 0);
            self.send_activation(warmup + m, 0);
            self.recv_gradient(m, 0);
            self.compute_backward(m, 0);
            if m + 1 < steady {
                self.recv_activation(warmup + m + 1, 0);
            }
            self.send_gradient(m, 0);
        }
        (steady..microbatches).for_each(|m| self.backward(m, 0));
    }

    /// Rank `r` keeps the weight part `r` micro-batches behind the input part. 1F1B holds `P - r`
    /// micro-batches on rank `r`, so with `r` more every rank holds as many as the first one, and
    /// the late ranks have work for the drain.
    fn zero_bubble(&mut self) {
        let microbatches = self.shape.num_microbatches;
        let warmup = warmup_microbatches(ScheduleKind::ZeroBubbleH1, self.shape, self.rank);
        (0..warmup).for_each(|m| self.forward(m, 0));
        for m in 0..microbatches {
            if warmup + m < microbatches {
                self.forward(warmup + m, 0);
            }
            self.recv_gradient(m, 0);
            self.actions.push(Action::BackwardInput { microbatch: m, chunk: 0 });
            self.send_gradient(m, 0);
            if m >= self.rank {
                self.backward_weight(m - self.rank);
            }
        }
        let undone = microbatches.saturating_sub(self.rank);
        (undone..microbatches).for_each(|m| self.backward_weight(m));
    }

    fn interleaved(&mut self, kind: ScheduleKind, group: usize) {
        let chunks = self.shape.num_chunks;
        let table = interleaved_table(self.shape.num_microbatches, chunks, group);
        let warmup = warmup_microbatches(kind, self.shape, self.rank);
        for &(m, chunk) in &table[..warmup] {
            self.forward(m, chunk);
        }
        for (k, &(m, chunk)) in table[warmup..].iter().enumerate() {
            self.forward(m, chunk);
            let (m, chunk) = table[k];
            self.backward(m, chunks - 1 - chunk);
        }
        for &(m, chunk) in &table[table.len() - warmup..] {
            self.backward(m, chunks - 1 - chunk);
        }
    }

    fn forward(&mut self, microbatch: usize, chunk: usize) {
        self.recv_activation(microbatch, chunk);
        self.compute_forward(microbatch, chunk);
        self.send_activation(microbatch, chunk);
    }

    fn backward(&mut self, microbatch: usize, chunk: usize) {
        self.recv_gradient(microbatch, chunk);
        self.compute_backward(microbatch, chunk);
        self.send_gradient(microbatch, chunk);
    }

    fn compute_forward(&mut self, microbatch: usize, chunk: usize) {
        self.actions.push(Action::Forward { microbatch, chunk });
    }

    fn compute_backward(&mut self, microbatch: usize, chunk: usize) {
        self.actions.push(Action::Backward { microbatch, chunk });
    }

    fn backward_weight(&mut self, microbatch: usize) {
        self.actions.push(Action::BackwardWeight { microbatch, chunk: 0 });
    }

    fn recv_activation(&mut self, microbatch: usize, chunk: usize) {
        self.actions.extend(self.towards_embedding(microbatch, chunk).map(Action::RecvActivation));
    }

    fn send_gradient(&mut self, microbatch: usize, chunk: usize) {
        self.actions.extend(self.towards_embedding(microbatch, chunk).map(Action::SendGradient));
    }

    fn send_activation(&mut self, microbatch: usize, chunk: usize) {
        self.actions.extend(self.towards_loss(microbatch, chunk).map(Action::SendActivation));
    }

    fn recv_gradient(&mut self, microbatch: usize, chunk: usize) {
        self.actions.extend(self.towards_loss(microbatch, chunk).map(Action::RecvGradient));
    }

    /// The transfer over the lower boundary of a chunk; none at the embedding, and none between
    /// chunks of one rank.
    fn towards_embedding(&self, microbatch: usize, chunk: usize) -> Option<Message> {
        let stage = self.shape.virtual_stage(self.rank, chunk);
        (stage > 0 && self.shape.num_stages > 1).then(|| Message {
            microbatch,
            chunk,
            peer: (stage - 1) % self.shape.num_stages,
            boundary: stage - 1,
        })
    }

    /// The transfer over the upper boundary of a chunk; none at the loss, and none between chunks
    /// of one rank.
    fn towards_loss(&self, microbatch: usize, chunk: usize) -> Option<Message> {
        let stage = self.shape.virtual_stage(self.rank, chunk);
        (stage + 1 < self.shape.num_virtual_stages() && self.shape.num_stages > 1).then(|| Message {
            microbatch,
            chunk,
            peer: (stage + 1) % self.shape.num_stages,
            boundary: stage,
        })
    }
}
