//! One pass of a rank through its actions: micro-batches in flight, tensors that wait for use or
//! for sending, and the work of each action.

use std::collections::BTreeMap;

use bridge_dist::comm::CommError;
use bridge_dist::schedule::{Action, Direction, Message, PipelineShape, ScheduleKind};
use bridge_kernels::read_together;
use burn::tensor::{Tensor, TensorData};

use super::transfers::Transfers;
use super::{MicroBatchInput, Pipeline, TrainWork};
use crate::model::{
    Auxiliary, Boundary, BoundaryTensor, ForwardContext, ModelChunk, SegmentOutput, WeightGradientStore,
};
use crate::timers::{Labels, TimerGuard, TimerLevel};
use crate::train::engine::executor::{ExecutorError, SavedForBackward};

/// A micro-batch and a chunk of this rank.
type Unit = (usize, usize);

/// A micro-batch between forward and the end of backward of a chunk.
struct MicroBatchInFlight {
    input: MicroBatchInput,
    /// `None` once the gradient of the input is known.
    saved: Option<SavedForBackward>,
    /// Deferred weight gradients, in schedules that split backward.
    weight_gradients: Option<WeightGradientStore>,
}

impl MicroBatchInFlight {
    fn context(&self) -> ForwardContext<'_> {
        context(&self.input, self.weight_gradients.as_ref())
    }
}

/// The state of one pass.
pub(super) struct PipelinePass<'a> {
    pipeline: &'a Pipeline,
    kind: ScheduleKind,
    shape: PipelineShape,
    chunks: &'a mut [Box<dyn ModelChunk>],
    work: &'a mut dyn TrainWork,
    /// Inputs of chunks, between arrival and forward.
    inputs: BTreeMap<Unit, Boundary>,
    /// Outputs of chunks, between forward and departure.
    outputs: BTreeMap<Unit, Boundary>,
    /// Gradients of outputs, between arrival and backward.
    output_gradients: BTreeMap<Unit, Boundary>,
    /// Gradients of inputs, between backward and departure.
    input_gradients: BTreeMap<Unit, Boundary>,
    in_flight: BTreeMap<Unit, MicroBatchInFlight>,
    max_in_flight: usize,
    /// Loss sums by micro-batch, where the model ends.
    losses: BTreeMap<usize, Tensor<1>>,
}

impl<'a> PipelinePass<'a> {
    pub fn new(
        pipeline: &'a Pipeline,
        kind: ScheduleKind,
        shape: PipelineShape,
        chunks: &'a mut [Box<dyn ModelChunk>],
        work: &'a mut dyn TrainWork,
    ) -> Self {
        Self {
            pipeline,
            kind,
            shape,
            chunks,
            work,
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            output_gradients: BTreeMap::new(),
            input_gradients: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            max_in_flight: 0,
            losses: BTreeMap::new(),
        }
    }

    /// Runs this rank's actions.
    pub fn run(&mut self, actions: &[Action]) -> Result<(), ExecutorError> {
        let pipeline = self.pipeline;
        let mut transfers = Transfers::new(&pipeline.group, &pipeline.format, actions);
        transfers.post(&|transfer| self.declared(transfer))?;
        for action in actions {
            self.step(*action, &mut transfers)?;
        }
        pipeline.timers.spans().end_pass();
        Ok(transfers.finish()?)
    }

    /// The tensors that a message of this rank carries.
    fn declared(&self, (direction, message): (Direction, Message)) -> Vec<BoundaryTensor> {
        let chunk = &self.chunks[message.chunk];
        let index = match direction {
            Direction::Activation => 0,
            Direction::Gradient => chunk.segments().len(),
        };
        chunk.boundary(index, &self.work.input(message.microbatch).batch)
    }

    fn step(&mut self, action: Action, transfers: &mut Transfers) -> Result<(), ExecutorError> {
        let (name, microbatch, chunk) = match action {
            Action::Forward { microbatch, chunk } => ("forward-compute", microbatch, chunk),
            Action::Backward { microbatch, chunk }
            | Action::BackwardInput { microbatch, chunk }
            | Action::BackwardWeight { microbatch, chunk } => ("backward-compute", microbatch, chunk),
            Action::RecvActivation(message) => ("forward-recv", message.microbatch, message.chunk),
            Action::SendActivation(message) => ("forward-send", message.microbatch, message.chunk),
            Action::RecvGradient(message) => ("backward-recv", message.microbatch, message.chunk),
            Action::SendGradient(message) => ("backward-send", message.microbatch, message.chunk),
        };
        let _timer = self.timer(name, (microbatch, chunk));
        match action {
            Action::Forward { microbatch, chunk } => self.forward((microbatch, chunk))?,
            Action::Backward { microbatch, chunk } => {
                self.backward_input((microbatch, chunk))?;
                self.backward_weight((microbatch, chunk))?;
            }
            Action::BackwardInput { microbatch, chunk } => self.backward_input((microbatch, chunk))?,
            Action::BackwardWeight { microbatch, chunk } => self.backward_weight((microbatch, chunk))?,
            Action::RecvActivation(message) => {
                let input = transfers.receive((Direction::Activation, message), &|transfer| self.declared(transfer))?;
                self.inputs.insert(unit(message), input);
            }
            Action::SendActivation(message) => {
                let output = self.outputs.remove(&unit(message)).expect("an output is made before it is sent");
                transfers.send((Direction::Activation, message), output)?;
            }
            Action::RecvGradient(message) => {
                let gradients =
                    transfers.receive((Direction::Gradient, message), &|transfer| self.declared(transfer))?;
                self.output_gradients.insert(unit(message), gradients);
            }
            Action::SendGradient(message) => {
                let gradients = self.input_gradients.remove(&unit(message));
                transfers
                    .send((Direction::Gradient, message), gradients.expect("a gradient is made before it is sent"))?;
            }
        }
        Ok(())
    }

    /// Timer of a part; `None` in evaluations, whose parts are not timed.
    fn timer(&self, name: &'static str, (microbatch, chunk): Unit) -> Option<TimerGuard<'a>> {
        let pipeline = self.pipeline;
        (self.kind != ScheduleKind::ForwardOnly).then(|| {
            let microbatch = Some(pipeline.timers.spans().work_on(microbatch));
            let labels = Labels { microbatch, chunk: Some(chunk), ..Labels::default() };
            pipeline.timers.start_of(name, TimerLevel::MicroBatch, labels)
        })
    }

    fn forward(&mut self, unit: Unit) -> Result<(), ExecutorError> {
        let (microbatch, chunk) = unit;
        let input = self.work.input(microbatch);
        // The first stage of the model receives no input.
        let boundary = self.inputs.remove(&unit).unwrap_or_default();
        let (executor, model) = (&self.pipeline.executors[chunk], self.chunks[chunk].as_mut());
        let custom_loss = input.custom_loss.clone();
        let output = if self.kind == ScheduleKind::ForwardOnly {
            let mut hooks = self.work.hooks(microbatch, chunk, &input.batch);
            executor.forward_inference(model, boundary, &context(&input, None), hooks.as_mut())?
        } else {
            let weight_gradients = (self.kind == ScheduleKind::ZeroBubbleH1).then(WeightGradientStore::default);
            let mut flight = MicroBatchInFlight { input, saved: None, weight_gradients };
            let mut hooks = self.work.hooks(microbatch, chunk, &flight.input.batch);
            let (saved, output) = executor.forward(model, boundary, &flight.context(), hooks.as_mut())?;
            drop(hooks);
            flight.saved = Some(saved);
            self.in_flight.insert(unit, flight);
            self.max_in_flight = self.max_in_flight.max(self.in_flight.len());
            output
        };
        match output {
            SegmentOutput::LossSum(_) if custom_loss.is_some_and(|loss| !loss.is_used()) => {
                return Err(ExecutorError::NoOutputs);
            }
            SegmentOutput::LossSum(sum) => {
                self.losses.insert(microbatch, sum);
            }
            // Chunks of a pipeline of one rank hand over without a message.
            SegmentOutput::Boundary(boundary) if self.shape.num_stages == 1 => {
                self.inputs.insert((microbatch, chunk + 1), boundary);
            }
            SegmentOutput::Boundary(boundary) => {
                self.outputs.insert(unit, boundary);
            }
        }
        Ok(())
    }

    /// The gradient of the input, and those of the weights that are not deferred.
    fn backward_input(&mut self, unit: Unit) -> Result<(), ExecutorError> {
        let (microbatch, chunk) = unit;
        let flight = self.in_flight.get_mut(&unit).expect("forward comes before backward");
        let saved = flight.saved.take().expect("backward happens once");
        // On the last stage of the model the gradient begins with the loss.
        let output_gradients = self.output_gradients.remove(&unit).unwrap_or_default();
        let (executor, model) = (&self.pipeline.executors[chunk], self.chunks[chunk].as_mut());
        let mut hooks = self.work.hooks(microbatch, chunk, &flight.input.batch);
        let gradients = executor.backward(saved, output_gradients, model, &flight.context(), hooks.as_mut())?;
        if gradients.is_empty() {
            return Ok(());
        }
        if self.shape.num_stages == 1 {
            self.output_gradients.insert((microbatch, chunk - 1), gradients);
        } else {
            self.input_gradients.insert(unit, gradients);
        }
        Ok(())
    }

    /// Computes the deferred weight gradients, after which nothing of the micro-batch is kept.
    fn backward_weight(&mut self, unit: Unit) -> Result<(), CommError> {
        let flight = self.in_flight.remove(&unit).expect("forward comes before backward");
        if let Some(store) = flight.weight_gradients {
            store.compute(&mut |name, gradient| self.work.gradient(name, gradient));
        }
        let (microbatch, chunk) = unit;
        self.work.backward_done(microbatch, chunk)
    }

    pub fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    pub fn into_loss_sums(self) -> LossSums {
        LossSums { sums: self.losses, num_microbatches: self.shape.num_microbatches }
    }
}

/// The loss sum of each micro-batch of a pass, where it was computed: values are there when the
/// device is done.
#[derive(Debug, Default)]
pub struct LossSums {
    /// Loss sums by micro-batch; empty on ranks without the last stage.
    sums: BTreeMap<usize, Tensor<1>>,
    num_microbatches: usize,
}

impl LossSums {
    /// The next micro-batch's.
    pub fn push(&mut self, loss: Tensor<1>) {
        self.sums.insert(self.num_microbatches, loss);
        self.num_microbatches += 1;
    }

    /// Appends the work of the next micro-batches.
    pub fn append(&mut self, others: Self) {
        let first = self.num_microbatches;
        self.sums.extend(others.sums.into_iter().map(|(microbatch, loss)| (first + microbatch, loss)));
        self.num_microbatches += others.num_microbatches;
    }

    /// The sums; zeros on ranks where the model does not end. Waits for the device.
    pub fn read(self) -> Vec<f64> {
        self.read_with(|losses| ((), read_together(losses))).1
    }

    /// As [`read`](Self::read), by a read of tensors that reads something else too.
    pub fn read_with<T>(self, read: impl FnOnce(Vec<Tensor<1>>) -> (T, Vec<TensorData>)) -> (T, Vec<f64>) {
        let losses = self.sums.into_iter().map(|(microbatch, loss)| (microbatch, loss.without_autodiff()));
        let (microbatches, losses): (Vec<usize>, Vec<Tensor<1>>) = losses.unzip();
        let mut sums = vec![0.0; self.num_microbatches];
        let (other, losses) = read(losses);
        for (microbatch, loss) in microbatches.into_iter().zip(losses) {
            sums[microbatch] = loss.iter::<f64>().next().expect("a loss has one element");
        }
        (other, sums)
    }
}

fn unit(message: Message) -> Unit {
    (message.microbatch, message.chunk)
}

fn context<'a>(input: &'a MicroBatchInput, weight_gradients: Option<&'a WeightGradientStore>) -> ForwardContext<'a> {
    let auxiliary = Auxiliary { gradient_scale: input.auxiliary_scale, metrics: input.metrics.as_deref() };
    let custom_loss = input.custom_loss.as_ref();
    ForwardContext { batch: &input.batch, mode: input.mode, weight_gradients, auxiliary, custom_loss }
}
