//! Runs the forward and backward pass of one micro-batch over a chunk's segments, cutting the graph
//! where activations are recomputed. A chunk may be a whole model or a pipeline stage of one.

use std::ops::Range;

use bridge_dist::comm::CommError;
use burn::tensor::{FloatDType, Tensor};

use crate::model::{
    Boundary, BoundaryError, ForwardContext, HIDDEN_STATES, ModelChunk, SegmentOutput, SegmentRole, checked,
    run_segments,
};
use crate::plan::recompute::{GraphCuts, Recompute, Region, split_into_regions};
use crate::train::engine::offload::SegmentOffload;
use crate::train::engine::region_spans;
use crate::train::engine::region_spans::{ForwardKind, Observers, SegmentRun};

/// Why a pass through a chunk ended early.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// A segment got or returned other tensors than the model declares.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    /// Ranks could not exchange parameters or gradients.
    #[error("{0}")]
    Comm(#[from] CommError),
    /// The head of the model did not compute the custom loss.
    #[error(
        "the forward step has a custom loss, and the model's head has computed the model's loss instead: \
         expected a head that hands over its outputs where `ForwardContext::custom_loss` is given"
    )]
    NoOutputs,
}

/// Executes a chunk's segments in the regions of a recompute plan.
#[derive(Clone, Debug)]
pub struct Executor {
    regions: Vec<Region>,
    /// True if the graph of the last region is kept even if the region is recomputed.
    keeps_last_graph: bool,
    /// The first segment that uses a parameter which is trained; none before it needs a backward,
    /// unless the stage before does.
    first_trained: usize,
    observers: Observers,
    offload: Option<SegmentOffload>,
}

/// Callbacks around the regions of a pass. Errors are those of ranks that communicate there.
pub trait RegionHooks {
    /// A region is about to run, forward or, where it is recomputed, again for its backward: the
    /// last chance to give its parameters values.
    ///
    /// # Errors
    /// If they cannot be gathered.
    fn before_region(&mut self, _chunk: &mut dyn ModelChunk, _region: RegionContext<'_>) -> Result<(), CommError> {
        Ok(())
    }

    /// The parameters of these segments are not used until the next
    /// [`before_region`](Self::before_region).
    fn parameters_unused(&mut self, _chunk: &mut dyn ModelChunk, _segments: &Range<usize>) {}

    /// Turns the loss sum into the scalar to differentiate.
    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1>;

    /// Takes a parameter's gradient, possibly one of several parts (a tied weight has one for each
    /// region that uses it), which add up.
    fn gradient(&mut self, name: &str, gradient: Tensor<1>);

    /// Backward has left these segments: gradients of parameters that no earlier segment uses are
    /// complete.
    ///
    /// # Errors
    /// If they cannot be sent.
    fn backward_done(&mut self, _segments: &Range<usize>) -> Result<(), CommError> {
        Ok(())
    }
}

/// A region about to run, and the one that comes next.
#[derive(Clone, Copy, Debug)]
pub struct RegionContext<'a> {
    /// Segments of the region.
    pub segments: &'a Range<usize>,
    /// Segments of the region that runs after it, if there is one.
    pub next: Option<&'a Range<usize>>,
    index: usize,
    regions: &'a [Region],
}

impl<'a> RegionContext<'a> {
    /// The same region in the backward pass, where the next one is the one before.
    fn backward(self) -> Self {
        let next = self.index.checked_sub(1).map(|index| &self.regions[index].segments);
        Self { next, ..self }
    }
}

/// A micro-batch between its forward and its backward pass through a chunk: the graphs and boundary
/// activations that backward needs. Dropping it frees them.
#[derive(Debug)]
pub struct SavedForBackward {
    regions: Vec<SavedRegion>,
}

/// One region after its forward pass.
#[derive(Debug)]
struct SavedRegion {
    /// Index of the region.
    index: usize,
    /// The region's input, each tensor a leaf of its graph.
    input: Boundary,
    /// The output with its graph, unless the region is recomputed.
    output: Option<SegmentOutput>,
}

impl Executor {
    /// An executor for `chunk`.
    pub fn new(chunk: &dyn ModelChunk, recompute: &Recompute) -> Self {
        Self::with_cuts(chunk, recompute, GraphCuts::AsNeeded)
    }

    /// An executor for `chunk` that also cuts the graph where `cuts` says.
    pub fn with_cuts(chunk: &dyn ModelChunk, recompute: &Recompute, cuts: GraphCuts) -> Self {
        let segments = chunk.segments();
        Self {
            regions: split_into_regions(&segments, recompute, cuts),
            keeps_last_graph: segments.last().is_some_and(|segment| segment.role == SegmentRole::Head),
            first_trained: first_trained(chunk),
            observers: Observers::none(),
            offload: None,
        }
    }

    /// Offloads tensors that segments keep for backward to the host.
    #[must_use]
    pub fn offloading(self, offload: Option<SegmentOffload>) -> Self {
        Self { offload, ..self }
    }

    /// Shows segments to `observers`.
    #[must_use]
    pub(in crate::train) fn with_observers(self, observers: &Observers) -> Self {
        Self { observers: observers.clone(), ..self }
    }

    /// Recomputes the last region too, where it is to be recomputed: for schedules with other work
    /// between its forward and its backward. Otherwise its graph stays where the model ends,
    /// because dropping it would save nothing.
    pub fn with_last_recomputed(self) -> Self {
        Self { keeps_last_graph: false, ..self }
    }

    /// The output of a chunk, region by region, without gradients or dropout. `input` is received
    /// from the previous stage; it has no tensors at the beginning of the model.
    ///
    /// # Errors
    /// Errors of `hooks`, and other tensors than the model declares.
    pub fn forward_inference(
        &self,
        chunk: &mut dyn ModelChunk,
        mut input: Boundary,
        context: &ForwardContext,
        hooks: &mut dyn RegionHooks,
    ) -> Result<SegmentOutput, ExecutorError> {
        for (index, region) in self.regions.iter().enumerate() {
            hooks.before_region(chunk, self.region_context(index))?;
            let output = run_segments(chunk.inference().as_ref(), region.segments.clone(), input, context)?;
            hooks.parameters_unused(chunk, &region.segments);
            match output {
                SegmentOutput::Boundary(boundary) => input = boundary,
                loss @ SegmentOutput::LossSum(_) => return Ok(loss),
            }
        }
        Ok(SegmentOutput::Boundary(input))
    }

    /// The forward pass of a chunk that is trained. `input` is received from the previous stage,
    /// without a graph; it has no tensors at the beginning of the model.
    ///
    /// Returns the state for backward and the chunk's output, without its graph.
    ///
    /// # Errors
    /// Errors of `hooks`, and other tensors than the model declares.
    pub fn forward(
        &self,
        chunk: &mut dyn ModelChunk,
        input: Boundary,
        context: &ForwardContext,
        hooks: &mut dyn RegionHooks,
    ) -> Result<(SavedForBackward, SegmentOutput), ExecutorError> {
        let mut regions = Vec::with_capacity(self.regions.len());
        let is_first = input.is_empty();
        let mut input = input.map(leaf);
        for (index, region) in self.regions.iter().enumerate() {
            let is_last = index + 1 == self.regions.len();
            hooks.before_region(chunk, self.region_context(index))?;
            let drops_graph = region.recomputed && !(is_last && self.keeps_last_graph);
            let (output, plain) = if drops_graph {
                let plain = input.clone().map(Tensor::without_autodiff);
                let (inference, segments) = (chunk.inference(), region.segments.clone());
                let what = SegmentRun { chunk: &*inference, segments, offload: None };
                let output = region_spans::forward(&self.observers, ForwardKind::Forward, what, plain, context)?;
                hooks.parameters_unused(chunk, &region.segments);
                (None, output)
            } else {
                let what =
                    SegmentRun { chunk: &*chunk, segments: region.segments.clone(), offload: self.offload.as_ref() };
                let output =
                    region_spans::forward(&self.observers, ForwardKind::Forward, what, input.clone(), context)?;
                let plain = without_autodiff(&output);
                (Some(output), plain)
            };
            match plain {
                SegmentOutput::Boundary(boundary) if !is_last => {
                    let has_backward = !is_first || self.first_trained < region.segments.end;
                    let next = boundary.map(if has_backward { leaf } else { Tensor::autodiff });
                    regions.push(SavedRegion { index, input: std::mem::replace(&mut input, next), output });
                }
                plain => {
                    regions.push(SavedRegion { index, input, output });
                    return Ok((SavedForBackward { regions }, plain));
                }
            }
        }
        // A stage that holds nothing.
        Ok((SavedForBackward { regions }, SegmentOutput::Boundary(input.map(Tensor::without_autodiff))))
    }

    /// The backward pass of a micro-batch, with the chunk and context of its forward pass.
    /// `output_gradients` are the gradients of the chunk's output from the next stage; empty if the
    /// chunk ends with the loss.
    ///
    /// Returns the gradients of the chunk's input, without a graph: a tensor that nothing read has
    /// one of zeros.
    ///
    /// # Errors
    /// Errors of `hooks`, and other tensors than the model declares.
    ///
    /// # Panics
    /// If there are gradients of the output of a chunk that ends with the loss.
    pub fn backward(
        &self,
        saved: SavedForBackward,
        output_gradients: Boundary,
        chunk: &mut dyn ModelChunk,
        context: &ForwardContext,
        hooks: &mut dyn RegionHooks,
    ) -> Result<Boundary, ExecutorError> {
        let mut gradients = output_gradients;
        let is_first = chunk.boundary(0, context.batch).is_empty();
        let mut regions = saved.regions;
        while let Some(SavedRegion { index, input, output }) = regions.pop() {
            let segments = &self.regions[index].segments;
            if is_first && segments.end <= self.first_trained {
                gradients = Boundary::default();
                hooks.backward_done(segments)?;
                continue;
            }
            let output = match output {
                Some(output) => output,
                None => {
                    hooks.before_region(chunk, self.region_context(index).backward())?;
                    let what = SegmentRun { chunk: &*chunk, segments: segments.clone(), offload: None };
                    region_spans::forward(&self.observers, ForwardKind::Recompute, what, input.clone(), context)?
                }
            };
            self.look_at_gradients(chunk, segments.end, &gradients);
            gradients = region_spans::backward(&self.observers.timers, &|| chunk.segments(), segments, || {
                region_backward(chunk, input, output, gradients, hooks)
            });
            hooks.parameters_unused(chunk, segments);
            hooks.backward_done(segments)?;
        }
        self.look_at_gradients(chunk, 0, &gradients);
        for declared in chunk.boundary(0, context.batch) {
            if gradients.get(declared.name).is_none() {
                let options = (&context.batch.tokens.device().without_autodiff(), declared.dtype.into());
                gradients = gradients.with(declared.name, Tensor::zeros(declared.shape, options));
            }
        }
        Ok(checked(chunk, 0, gradients, context.batch)?)
    }

    /// Inspects the gradients of the boundary before a segment, in steps whose tensors are
    /// inspected.
    fn look_at_gradients(&self, chunk: &dyn ModelChunk, segment: usize, gradients: &Boundary) {
        if self.observers.inspect_gradients()
            && let Some(gradient) = gradients.get(HIDDEN_STATES)
        {
            self.observers.gradient(&chunk.segments(), segment, gradient);
        }
    }

    /// A region with its neighbours.
    fn region_context(&self, index: usize) -> RegionContext<'_> {
        let segments = |index: usize| self.regions.get(index).map(|region| &region.segments);
        RegionContext {
            segments: &self.regions[index].segments,
            next: segments(index + 1),
            index,
            regions: &self.regions,
        }
    }
}

fn first_trained(chunk: &dyn ModelChunk) -> usize {
    let trained = chunk.parameters().iter().filter(|parameter| parameter.trainable);
    trained.map(|parameter| parameter.segments[0]).min().unwrap_or(usize::MAX)
}

/// A boundary activation as the beginning of a new graph.
fn leaf(boundary: Tensor<3>) -> Tensor<3> {
    boundary.autodiff().require_grad()
}

fn without_autodiff(output: &SegmentOutput) -> SegmentOutput {
    match output {
        SegmentOutput::Boundary(boundary) => SegmentOutput::Boundary(boundary.clone().map(Tensor::without_autodiff)),
        SegmentOutput::LossSum(sum) => SegmentOutput::LossSum(sum.clone().without_autodiff()),
    }
}

/// Backward of one region from the gradients of its output. Returns the gradients of its input. The
/// gradient of a tensor that the region passes on is the sum of the gradient after the region and
/// the gradient of its uses inside the region. A tensor without uses has no gradient.
fn region_backward(
    chunk: &dyn ModelChunk,
    input: Boundary,
    output: SegmentOutput,
    mut output_gradients: Boundary,
    hooks: &mut dyn RegionHooks,
) -> Boundary {
    let objective = match output {
        SegmentOutput::LossSum(sum) => {
            assert!(output_gradients.is_empty(), "nothing comes after the loss");
            Some(hooks.objective(sum))
        }
        SegmentOutput::Boundary(boundary) => seed(&boundary, &mut output_gradients),
    };
    // If all parameters are frozen there is nothing to differentiate.
    let mut gradients = objective.filter(Tensor::is_tracked).map(|objective| objective.backward());
    if let Some(gradients) = &mut gradients {
        chunk.take_gradients(gradients, &mut |name, gradient| hooks.gradient(name, gradient));
    }
    let mut input_gradients = Boundary::default();
    for (name, leaf) in input.iter() {
        let of_region = gradients.as_mut().and_then(|gradients| leaf.grad_remove(gradients));
        let sum = match (of_region, output_gradients.remove(name)) {
            (Some(of_region), Some(behind)) => Some(of_region + behind),
            (one, other) => one.or(other),
        };
        if let Some(sum) = sum {
            input_gradients = input_gradients.with(name, sum);
        }
    }
    input_gradients
}

/// Scalar to differentiate so that each tensor which a region made gets its gradient, which is
/// taken out of `gradients`: `d(sum(tensor * gradient)) / d(tensor)` is exactly `gradient`.
fn seed(boundary: &Boundary, gradients: &mut Boundary) -> Option<Tensor<1>> {
    let term = |(name, tensor): (&str, &Tensor<3>)| {
        let gradient = gradients.remove(name)?;
        Some((tensor.clone() * gradient.autodiff()).sum())
    };
    // Tensors may have different dtypes. The value of the sum affects no gradient.
    boundary.made().filter_map(term).reduce(|a, b| a.cast(FloatDType::F32) + b.cast(FloatDType::F32))
}
