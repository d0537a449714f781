//! Toy models cut into stages, on ranks that are threads, against the uncut model: losses,
//! gradients, memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use bridge_data::MicroBatch;
use bridge_dist::comm::thread::{Devices, run_ranks, run_ranks_on};
use bridge_dist::comm::{CommError, Group};
use bridge_dist::schedule::{Costs, PipelineSchedule, PipelineShape, ScheduleKind, Sends, simulate};
use bridge_kernels::Philox;
use burn::tensor::{Device, FloatDType, Tensor};

use super::{MicroBatchInput, MicroBatches, Pipeline, PipelineError, PipelineSettings, TrainWork};
use crate::model::{Batch, ForwardContext, Mode, ModelChunk, StackPart, Stage, loss_sum};
use crate::plan::recompute::{GraphCuts, Recompute};
use crate::tests::{Closures, STACKS, forward_backward, micro_batch, source_and_target, toy, toy_stage, two_stacks};
use crate::train::engine::executor::{Executor, RegionHooks};

/// Model that is cut into stages.
#[derive(Clone, Copy)]
struct Subject {
    layers: usize,
    /// The stage with these layers.
    stage: fn(Range<usize>) -> Box<dyn ModelChunk>,
    /// Micro-batch `m`; they differ in length.
    batch: fn(usize) -> MicroBatch,
}

const LAYERS: usize = 8;

const TOY: Subject = Subject {
    layers: LAYERS,
    stage: |layers| {
        let (start, end) = (layers.start == 0, layers.end == LAYERS);
        toy_stage(&Stage::from(StackPart { layers, start, end }), FloatDType::F32)
    },
    batch: |m| micro_batch(2, 5 + m % 3, 11 + m as u64),
};

/// Boundaries of several tensors, of different shapes and dtypes.
const TWO_STACKS: Subject = Subject {
    layers: STACKS[0] + STACKS[1],
    stage: two_stacks,
    batch: |m| source_and_target(2, 5 + m % 3, 11 + m as u64),
};

const TIMEOUT: Duration = Duration::from_secs(120);

type Gradients = BTreeMap<String, Vec<f32>>;

/// Micro-batches, and gradients summed by name.
struct Work {
    subject: Subject,
    sums: BTreeMap<String, Tensor<1>>,
    done: Vec<(usize, usize)>,
}

impl Work {
    fn new(subject: Subject) -> Self {
        Self { subject, sums: BTreeMap::new(), done: Vec::new() }
    }
}

fn input(subject: Subject, microbatch: usize, trains: bool) -> MicroBatchInput {
    let batch = Batch::new(&(subject.batch)(microbatch), &Device::flex());
    let mode = if trains { Mode::Train(Philox::new(5).derive(microbatch as u64)) } else { Mode::Evaluate };
    MicroBatchInput::new(batch, mode)
}

fn add(sums: &mut BTreeMap<String, Tensor<1>>, name: &str, gradient: Tensor<1>) {
    let sum = match sums.remove(name) {
        Some(sum) => sum + gradient,
        None => gradient,
    };
    sums.insert(name.to_owned(), sum);
}

/// Hooks of a rank that does nothing but train.
struct Hooks<'a> {
    sums: &'a mut BTreeMap<String, Tensor<1>>,
    factor: f32,
}

impl RegionHooks for Hooks<'_> {
    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1> {
        loss_sum * self.factor
    }

    fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
        add(self.sums, name, gradient);
    }
}

fn factor(microbatch: usize) -> f32 {
    1.0 / (microbatch + 3) as f32
}

impl MicroBatches for Work {
    fn input(&self, microbatch: usize) -> MicroBatchInput {
        input(self.subject, microbatch, true)
    }

    fn hooks<'h>(&'h mut self, microbatch: usize, _chunk: usize, _batch: &'h Batch) -> Box<dyn RegionHooks + 'h> {
        Box::new(Hooks { sums: &mut self.sums, factor: factor(microbatch) })
    }
}

impl TrainWork for Work {
    fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
        add(&mut self.sums, name, gradient);
    }

    fn backward_done(&mut self, microbatch: usize, chunk: usize) -> Result<(), CommError> {
        self.done.push((microbatch, chunk));
        Ok(())
    }
}

struct Evaluation(Work);

impl MicroBatches for Evaluation {
    fn input(&self, microbatch: usize) -> MicroBatchInput {
        input(self.0.subject, microbatch, false)
    }

    fn hooks<'h>(&'h mut self, microbatch: usize, chunk: usize, batch: &'h Batch) -> Box<dyn RegionHooks + 'h> {
        self.0.hooks(microbatch, chunk, batch)
    }
}

fn values(sums: BTreeMap<String, Tensor<1>>) -> Gradients {
    sums.into_iter().map(|(name, sum)| (name, sum.into_data().try_to_vec::<f32>().unwrap())).collect()
}

/// Losses and gradients of the uncut model.
fn whole(subject: Subject, num_microbatches: usize) -> (Vec<f64>, Gradients) {
    let mut chunk = (subject.stage)(0..subject.layers);
    let executor = Executor::new(chunk.as_ref(), &Recompute::Off);
    let mut sums = BTreeMap::new();
    let mut losses = Vec::new();
    for m in 0..num_microbatches {
        let MicroBatchInput { batch, mode, .. } = input(subject, m, true);
        let mut hooks = Closures {
            objective: &mut |sum| sum * factor(m),
            on_gradient: &mut |name, gradient| add(&mut sums, name, gradient),
        };
        let context = ForwardContext::new(&batch, mode);
        let loss = forward_backward(&executor, chunk.as_mut(), &context, &mut hooks);
        losses.push(loss.into_data().iter::<f64>().next().unwrap());
    }
    (losses, values(sums))
}

fn chunks(subject: Subject, rank: usize, stages: usize, per_rank: usize) -> Vec<Box<dyn ModelChunk>> {
    let total = stages * per_rank;
    let first = |stage: usize| stage * subject.layers / total;
    let stages = (0..per_rank).map(|chunk| chunk * stages + rank);
    stages.map(|stage| (subject.stage)(first(stage)..first(stage + 1))).collect()
}

fn pipeline(group: Group, chunks: &[Box<dyn ModelChunk>], schedule: ScheduleKind, recompute: Recompute) -> Pipeline {
    let settings = PipelineSettings { schedule, recompute, cuts: GraphCuts::AsNeeded, offload: None, wire_dtype: None };
    Pipeline::new(group, chunks, &Device::flex().autodiff(), &settings)
}

/// Report of a pass.
#[derive(Clone, Debug, PartialEq)]
struct PassReport {
    /// Sum of the masked loss of each micro-batch on the last stage; zeros on the others.
    loss_sums: Vec<f64>,
    max_in_flight: usize,
}

impl Pipeline {
    /// [`Self::train_async`] with all that a pass reports.
    fn train(
        &self,
        chunks: &mut [Box<dyn ModelChunk>],
        num_microbatches: usize,
        work: &mut dyn TrainWork,
    ) -> Result<PassReport, PipelineError> {
        let (losses, max_in_flight) = self.run(self.schedule, chunks, num_microbatches, work)?;
        Ok(PassReport { loss_sums: losses.read(), max_in_flight })
    }
}

/// Reports of each rank of the cut model, with its gradients.
fn cut(
    subject: Subject,
    shape: PipelineShape,
    schedule: ScheduleKind,
    recompute: &Recompute,
) -> Vec<(PassReport, Gradients)> {
    let [by_host, on_device] = [Devices::Apart, Devices::Shared]
        .map(|devices| trained_on(devices, subject, shape, schedule, recompute.clone()));
    for (found, expected) in on_device.iter().zip(&by_host) {
        assert_eq!(found.0.loss_sums, expected.0.loss_sums, "without copies in host memory");
        assert!(found.1 == expected.1, "without copies in host memory gradients differ");
    }
    by_host
}

fn trained_on(
    devices: Devices,
    subject: Subject,
    shape: PipelineShape,
    schedule: ScheduleKind,
    recompute: Recompute,
) -> Vec<(PassReport, Gradients)> {
    let ranks = run_ranks_on(devices, shape.num_stages, TIMEOUT, |group| {
        let mut chunks = chunks(subject, group.rank(), shape.num_stages, shape.num_chunks);
        let pipeline = pipeline(group, &chunks, schedule, recompute.clone());
        let mut work = Work::new(subject);
        let report = pipeline.train(&mut chunks, shape.num_microbatches, &mut work)?;
        let mut done = work.done.clone();
        done.sort_unstable();
        let all = (0..shape.num_microbatches).flat_map(|m| (0..shape.num_chunks).map(move |chunk| (m, chunk)));
        assert_eq!(done, all.collect::<Vec<_>>());
        Ok::<_, PipelineError>((report, values(work.sums)))
    });
    ranks.unwrap()
}

fn interleaved(group: usize) -> ScheduleKind {
    ScheduleKind::Interleaved { microbatch_group_size: group }
}

/// Fails unless a schedule gives the losses of the uncut model to the bit, its gradients to `1e-6`,
/// and holds as many micro-batches as the schedule promises.
fn check(subject: Subject, shape: PipelineShape, schedule: ScheduleKind, recompute: &Recompute) {
    let name = format!("{schedule}, {shape:?}, {recompute:?}");
    let (losses, expected) = whole(subject, shape.num_microbatches);
    let ranks = cut(subject, shape, schedule, recompute);
    let promised = simulate(
        &PipelineSchedule::new(schedule, shape).unwrap(),
        Costs::default(),
        Sends::Buffered { capacity: usize::MAX },
    );
    let mut found = Gradients::new();
    for (rank, (report, gradients)) in ranks.into_iter().enumerate() {
        let is_last = rank + 1 == shape.num_stages;
        let of_rank = if is_last { losses.clone() } else { vec![0.0; losses.len()] };
        assert_eq!(report.loss_sums, of_rank, "{name}: losses on rank {rank}");
        assert_eq!(report.max_in_flight, promised.as_ref().unwrap().max_in_flight[rank], "{name}: rank {rank}");
        for (parameter, gradient) in gradients {
            // The embedding is on the first and on the last stage, each with its part of the
            // gradient.
            let sum = found.entry(parameter).or_insert_with(|| vec![0.0; gradient.len()]);
            sum.iter_mut().zip(gradient).for_each(|(sum, part)| *sum += part);
        }
    }
    assert!(found.keys().eq(expected.keys()), "{name}: parameters");
    for (parameter, gradient) in &expected {
        let norm = gradient.iter().map(|v| v * v).sum::<f32>().sqrt();
        assert!(norm > 0.0, "{name}: {parameter} has no gradient");
        let difference = gradient.iter().zip(&found[parameter]).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
        assert!(difference <= 1e-6 * norm, "{name}: {parameter} differs by {}", difference / norm);
    }
}

#[test]
fn one_chunk_schedules_give_the_uncut_models_gradients() {
    let kinds = [ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward, ScheduleKind::ZeroBubbleH1];
    for num_stages in [1, 2, 4] {
        for num_microbatches in [1, 4, 8] {
            let shape = PipelineShape { num_stages, num_chunks: 1, num_microbatches };
            for kind in kinds {
                for recompute in [Recompute::Off, Recompute::Uniform { layers: 1 }] {
                    check(TOY, shape, kind, &recompute);
                }
            }
        }
    }
}

#[test]
fn interleaved_schedules_give_the_uncut_models_gradients() {
    for (num_stages, num_chunks, num_microbatches, group) in
        [(2, 2, 4, 2), (2, 2, 8, 3), (2, 4, 8, 2), (4, 2, 4, 4), (4, 2, 8, 4), (4, 2, 11, 6)]
    {
        let shape = PipelineShape { num_stages, num_chunks, num_microbatches };
        for recompute in [Recompute::Off, Recompute::Block { layers: 1 }] {
            check(TOY, shape, interleaved(group), &recompute);
        }
    }
}

#[test]
fn boundaries_of_several_tensors_give_the_uncut_models_gradients() {
    let kinds = [ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward, ScheduleKind::ZeroBubbleH1];
    let recomputes = [
        Recompute::Off,
        Recompute::Uniform { layers: 1 },
        Recompute::Uniform { layers: 2 },
        Recompute::Block { layers: 2 },
    ];
    for recompute in recomputes {
        for num_stages in [1, 2, 3] {
            for kind in kinds {
                check(TWO_STACKS, PipelineShape { num_stages, num_chunks: 1, num_microbatches: 5 }, kind, &recompute);
            }
        }
        for (num_stages, num_chunks) in [(2, 2), (2, 3), (3, 2)] {
            let shape = PipelineShape { num_stages, num_chunks, num_microbatches: 6 };
            check(TWO_STACKS, shape, interleaved(num_stages), &recompute);
        }
    }
}

#[test]
fn evaluation_passes_forward_only() {
    let whole = toy(LAYERS, FloatDType::F32).inference();
    let expected: Vec<f64> = (0..5)
        .map(|m| {
            let MicroBatchInput { batch, mode, .. } = input(TOY, m, false);
            let loss = loss_sum(whole.as_ref(), &ForwardContext::new(&batch, mode)).unwrap();
            loss.into_data().iter::<f64>().next().unwrap()
        })
        .collect();
    for (stages, per_rank) in [(1, 1), (1, 4), (2, 1), (2, 2), (4, 2)] {
        let ranks = run_ranks(stages, TIMEOUT, |group| {
            let mut chunks = chunks(TOY, group.rank(), stages, per_rank);
            let pipeline = pipeline(group, &chunks, ScheduleKind::GPipe, Recompute::Off);
            pipeline.evaluate(&mut chunks, 5, &mut Evaluation(Work::new(TOY)))
        });
        assert_eq!(ranks.unwrap().pop().unwrap(), expected, "{stages} stages of {per_rank} chunks");
    }
}

#[test]
fn a_stage_without_layers_passes_on() {
    let stages = [0..3, 3..3, 3..8];
    let ranks = run_ranks(3, TIMEOUT, |group| {
        let mut chunks = [(TOY.stage)(stages[group.rank()].clone())];
        let pipeline = pipeline(group, &chunks, ScheduleKind::OneForwardOneBackward, Recompute::Off);
        pipeline.train(&mut chunks, 3, &mut Work::new(TOY))
    });
    assert_eq!(ranks.unwrap().pop().unwrap().loss_sums, whole(TOY, 3).0);
}

#[test]
fn sixteen_bits_on_the_wire_are_close() {
    let settings = |wire_dtype| PipelineSettings {
        schedule: ScheduleKind::OneForwardOneBackward,
        recompute: Recompute::Off,
        cuts: GraphCuts::AsNeeded,
        offload: None,
        wire_dtype: Some(wire_dtype),
    };
    let exact = whole(TOY, 4).0;
    for wire in [FloatDType::BF16, FloatDType::F16, FloatDType::F64] {
        let losses = |devices| {
            let ranks = run_ranks_on(devices, 2, TIMEOUT, |group| {
                let mut chunks = chunks(TOY, group.rank(), 2, 1);
                let pipeline = Pipeline::new(group, &chunks, &Device::flex().autodiff(), &settings(wire));
                pipeline.train(&mut chunks, 4, &mut Work::new(TOY))
            });
            ranks.unwrap().pop().unwrap().loss_sums
        };
        let (losses, on_device) = (losses(Devices::Apart), losses(Devices::Shared));
        assert_eq!(on_device, losses, "{wire:?}");
        let tolerance = if wire == FloatDType::F64 { 0.0 } else { 1e-2 };
        for (loss, exact) in losses.iter().zip(&exact) {
            assert!((loss - exact).abs() <= tolerance * exact, "{wire:?}: {loss} and {exact}");
        }
    }
}

#[test]
fn a_schedule_that_does_not_fit_is_an_error_on_every_rank() {
    let failed = run_ranks(2, TIMEOUT, |group| {
        let mut chunks = chunks(TOY, group.rank(), 2, 2);
        let pipeline = pipeline(group, &chunks, interleaved(2), Recompute::Off);
        let error = pipeline.train(&mut chunks, 1, &mut Work::new(TOY)).unwrap_err();
        Ok::<_, PipelineError>(error.to_string())
    });
    for message in failed.unwrap() {
        assert!(message.contains("at most the number of micro-batches"), "{message}");
    }
}

#[test]
fn ranks_with_other_micro_batches_find_out() {
    struct Longer(Work);
    impl MicroBatches for Longer {
        fn input(&self, microbatch: usize) -> MicroBatchInput {
            let batch = Batch::new(&micro_batch(2, 9, 1), &Device::flex());
            MicroBatchInput { batch, ..self.0.input(microbatch) }
        }
        fn hooks<'h>(&'h mut self, microbatch: usize, chunk: usize, batch: &'h Batch) -> Box<dyn RegionHooks + 'h> {
            self.0.hooks(microbatch, chunk, batch)
        }
    }
    impl TrainWork for Longer {
        fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
            self.0.gradient(name, gradient);
        }
    }
    let failed = run_ranks(2, TIMEOUT, |group| {
        let rank = group.rank();
        let mut chunks = chunks(TOY, rank, 2, 1);
        let pipeline = pipeline(group, &chunks, ScheduleKind::OneForwardOneBackward, Recompute::Off);
        match rank {
            0 => pipeline.train(&mut chunks, 2, &mut Work::new(TOY)),
            _ => pipeline.train(&mut chunks, 2, &mut Longer(Work::new(TOY))),
        }
    });
    let error = failed.unwrap_err().to_string();
    assert!(error.contains("rank 1") && error.contains("70 x f32"), "{error}");
}
