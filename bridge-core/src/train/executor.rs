//! Runs the forward and backward pass of one micro-batch over a chunk's segments, cutting the graph where activations
//! are recomputed. A chunk may be a whole model or a pipeline stage of one.

use std::ops::Range;

use bridge_dist::comm::CommError;
use burn::tensor::{Gradients, Tensor};

use super::recompute::{Cuts, Recompute, Region, plan};
use crate::model::{ForwardContext, ModelChunk, SegmentOutput, SegmentRole};

/// Executes a chunk's segments in the regions of a recompute plan.
#[derive(Clone, Debug)]
pub struct Executor {
    regions: Vec<Region>,
    /// Whether the graph of the last region stays even if the region is recomputed.
    keeps_last_graph: bool,
}

/// What happens around the regions of a pass. Errors are those of ranks that communicate there.
pub trait RegionHooks {
    /// A region is about to run, forward or, where it is recomputed, again for its backward: the last chance to give its parameters values.
    ///
    /// # Errors
    /// If they cannot be gathered.
    fn before(&mut self, _chunk: &mut dyn ModelChunk, _region: Around<'_>) -> Result<(), CommError> {
        Ok(())
    }

    /// The parameters of these segments are not used until the next [`before`](Self::before).
    fn after(&mut self, _chunk: &mut dyn ModelChunk, _segments: &Range<usize>) {}

    /// Turns the loss sum into the scalar to differentiate.
    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1>;

    /// Takes a parameter's gradient, possibly one of several parts (a tied weight has one for each region that uses it), which add up.
    fn gradient(&mut self, name: &str, gradient: Tensor<1>);

    /// Backward has left these segments: gradients of parameters that no earlier segment uses are complete.
    ///
    /// # Errors
    /// If they cannot be sent.
    fn left(&mut self, _segments: &Range<usize>) -> Result<(), CommError> {
        Ok(())
    }
}

/// A region about to run, and the one that comes next.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// Its segments.
    pub segments: &'a Range<usize>,
    /// Those of the region that runs after it, if there is one.
    pub next: Option<&'a Range<usize>>,
    index: usize,
    regions: &'a [Region],
}

impl<'a> Around<'a> {
    /// The same region in the backward pass, where the next one is the one before.
    fn backward(self) -> Self {
        let next = self.index.checked_sub(1).map(|index| &self.regions[index].segments);
        Self { next, ..self }
    }
}

/// Hooks of closures: an objective, and what takes gradients.
pub struct Closures<'a> {
    /// See [`RegionHooks::objective`].
    pub objective: &'a mut dyn FnMut(Tensor<1>) -> Tensor<1>,
    /// See [`RegionHooks::gradient`].
    pub on_gradient: &'a mut dyn FnMut(&str, Tensor<1>),
}

impl RegionHooks for Closures<'_> {
    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1> {
        (self.objective)(loss_sum)
    }

    fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
        (self.on_gradient)(name, gradient);
    }
}

/// A micro-batch between its forward and its backward pass through a chunk: the graphs and boundary activations that backward
/// needs. Dropping it frees them.
#[derive(Debug)]
pub struct InFlight {
    regions: Vec<Pending>,
}

/// One region after its forward pass.
#[derive(Debug)]
struct Pending {
    /// Which.
    index: usize,
    /// The region's input as a leaf of its graph; none for the embedding.
    input: Option<Tensor<3>>,
    /// The output with its graph, unless the region is recomputed.
    output: Option<SegmentOutput>,
}

impl Executor {
    /// An executor for `chunk`.
    pub fn new(chunk: &dyn ModelChunk, recompute: &Recompute) -> Self {
        Self::with_cuts(chunk, recompute, Cuts::AsNeeded)
    }

    /// An executor for `chunk` that also cuts the graph where `cuts` says.
    pub fn with_cuts(chunk: &dyn ModelChunk, recompute: &Recompute, cuts: Cuts) -> Self {
        let segments = chunk.segments();
        Self {
            regions: plan(&segments, recompute, cuts),
            keeps_last_graph: segments.last().is_some_and(|segment| segment.role == SegmentRole::Head),
        }
    }

    /// Recomputes the last region too, where it is to be recomputed: for schedules with other work between its forward and its backward.
    /// Otherwise its graph stays where the model ends, because dropping it would save nothing.
    pub fn recomputing_last(self) -> Self {
        Self { keeps_last_graph: false, ..self }
    }

    /// Sum of the masked loss of a chunk that has all its parameters, without gradients. `chunk` is an inference copy.
    pub fn forward(&self, chunk: &dyn ModelChunk, context: &ForwardContext) -> Tensor<1> {
        let all = 0..self.regions.last().map_or(0, |region| region.segments.end);
        match run(chunk, all, None, context) {
            SegmentOutput::LossSum(sum) => sum,
            SegmentOutput::Hidden(_) => panic!("the last segment returns the loss"),
        }
    }

    /// The output of a chunk, region by region, without gradients or dropout. `input` is what the stage before sent, and `None` where the
    /// chunk begins with the embedding.
    ///
    /// # Errors
    /// Those of `hooks`.
    ///
    /// # Panics
    /// If `input` is missing, or there for a chunk that begins with the embedding.
    pub fn forward_chunk(
        &self,
        chunk: &mut dyn ModelChunk,
        mut input: Option<Tensor<3>>,
        context: &ForwardContext,
        hooks: &mut dyn RegionHooks,
    ) -> Result<SegmentOutput, CommError> {
        for (index, region) in self.regions.iter().enumerate() {
            hooks.before(chunk, self.around(index))?;
            let output = run(chunk.inference().as_ref(), region.segments.clone(), input.take(), context);
            hooks.after(chunk, &region.segments);
            match output {
                SegmentOutput::Hidden(hidden) => input = Some(hidden),
                SegmentOutput::LossSum(sum) => return Ok(SegmentOutput::LossSum(sum)),
            }
        }
        Ok(pass_on(input))
    }

    /// Forward and backward of one micro-batch through a whole model. What happens to parameters, gradients and the loss is the business
    /// of `hooks`.
    ///
    /// Returns the loss sum, `[1]` float32, without its graph.
    ///
    /// # Errors
    /// Those of `hooks`.
    ///
    /// # Panics
    /// If the chunk is a stage without embedding or head: see [`Self::begin`].
    pub fn forward_backward(
        &self,
        chunk: &mut dyn ModelChunk,
        context: &ForwardContext,
        hooks: &mut dyn RegionHooks,
    ) -> Result<Tensor<1>, CommError> {
        let (in_flight, output) = self.begin(chunk, None, context, hooks)?;
        self.backward((in_flight, None), chunk, context, hooks)?;
        match output {
            SegmentOutput::LossSum(sum) => Ok(sum),
            SegmentOutput::Hidden(_) => panic!("the last segment returns the loss"),
        }
    }

    /// The forward pass of a chunk that is trained. `input` is what the stage before sent, without a graph; `None` where the chunk
    /// begins with the embedding.
    ///
    /// Returns what backward needs and the chunk's output, without its graph.
    ///
    /// # Errors
    /// Those of `hooks`.
    ///
    /// # Panics
    /// If `input` is missing, or there for a chunk that begins with the embedding.
    pub fn begin(
        &self,
        chunk: &mut dyn ModelChunk,
        input: Option<Tensor<3>>,
        context: &ForwardContext,
        hooks: &mut dyn RegionHooks,
    ) -> Result<(InFlight, SegmentOutput), CommError> {
        let mut regions = Vec::with_capacity(self.regions.len());
        let mut input = input.map(leaf);
        for (index, region) in self.regions.iter().enumerate() {
            let is_last = index + 1 == self.regions.len();
            hooks.before(chunk, self.around(index))?;
            let drops_graph = region.recomputed && !(is_last && self.keeps_last_graph);
            let (output, plain) = if drops_graph {
                let plain = input.clone().map(Tensor::without_autodiff);
                let output = run(chunk.inference().as_ref(), region.segments.clone(), plain, context);
                hooks.after(chunk, &region.segments);
                (None, output)
            } else {
                let output = run(&*chunk, region.segments.clone(), input.clone(), context);
                let plain = without_autodiff(&output);
                (Some(output), plain)
            };
            if is_last {
                regions.push(Pending { index, input, output });
                return Ok((InFlight { regions }, plain));
            }
            let next = Some(leaf(hidden(plain)));
            regions.push(Pending { index, input: std::mem::replace(&mut input, next), output });
        }
        // A stage that holds nothing.
        Ok((InFlight { regions }, pass_on(input.map(Tensor::without_autodiff))))
    }

    /// The backward pass of a micro-batch, with the chunk and context of its forward pass. The second of the pair is the gradient of the
    /// chunk's output, `[b, t, c]`, from the stage that comes after; `None` where the chunk ends with the loss.
    ///
    /// Returns the gradient of the chunk's input, `[b, t, c]` without a graph; `None` where the chunk begins with the embedding.
    ///
    /// # Errors
    /// Those of `hooks`.
    ///
    /// # Panics
    /// If the output's gradient is missing, or there for a chunk with a head.
    pub fn backward(
        &self,
        (in_flight, output_gradient): (InFlight, Option<Tensor<3>>),
        chunk: &mut dyn ModelChunk,
        context: &ForwardContext,
        hooks: &mut dyn RegionHooks,
    ) -> Result<Option<Tensor<3>>, CommError> {
        let mut gradient = output_gradient;
        let mut pending = in_flight.regions;
        while let Some(Pending { index, input, output }) = pending.pop() {
            let segments = &self.regions[index].segments;
            let output = match output {
                Some(output) => output,
                None => {
                    hooks.before(chunk, self.around(index).backward())?;
                    run(&*chunk, segments.clone(), input.clone(), context)
                }
            };
            let mut gradients = match (output, gradient.take()) {
                (SegmentOutput::LossSum(sum), None) => hooks.objective(sum).backward(),
                (SegmentOutput::Hidden(hidden), Some(gradient)) => seed_backward(hidden, gradient),
                _ => panic!("the last segment of the model, and only it, returns the loss"),
            };
            chunk.take_gradients(&mut gradients, &mut |name, gradient| hooks.gradient(name, gradient));
            gradient = input.map(|leaf| leaf.grad_remove(&mut gradients).expect("the region used its input"));
            hooks.after(chunk, segments);
            hooks.left(segments)?;
        }
        Ok(gradient)
    }

    /// A region with its neighbours.
    fn around(&self, index: usize) -> Around<'_> {
        let segments = |index: usize| self.regions.get(index).map(|region| &region.segments);
        Around { segments: &self.regions[index].segments, next: segments(index + 1), index, regions: &self.regions }
    }
}

/// A boundary activation as the beginning of a new graph.
fn leaf(boundary: Tensor<3>) -> Tensor<3> {
    boundary.autodiff().require_grad()
}

fn without_autodiff(output: &SegmentOutput) -> SegmentOutput {
    match output {
        SegmentOutput::Hidden(hidden) => SegmentOutput::Hidden(hidden.clone().without_autodiff()),
        SegmentOutput::LossSum(sum) => SegmentOutput::LossSum(sum.clone().without_autodiff()),
    }
}

/// What a stage that holds no segment makes of its input.
fn pass_on(input: Option<Tensor<3>>) -> SegmentOutput {
    SegmentOutput::Hidden(input.expect("the stage with the embedding has a segment"))
}

/// Backward from `hidden` with a given gradient: `d(sum(hidden * gradient)) / d(hidden)` is exactly `gradient`.
fn seed_backward(hidden: Tensor<3>, gradient: Tensor<3>) -> Gradients {
    (hidden * gradient.autodiff()).sum().backward()
}

fn run(
    chunk: &dyn ModelChunk,
    segments: Range<usize>,
    mut input: Option<Tensor<3>>,
    context: &ForwardContext,
) -> SegmentOutput {
    let last = segments.end - 1;
    for index in segments.start..last {
        input = Some(hidden(chunk.forward_segment(index, input, context)));
    }
    chunk.forward_segment(last, input, context)
}

fn hidden(output: SegmentOutput) -> Tensor<3> {
    match output {
        SegmentOutput::Hidden(hidden) => hidden,
        SegmentOutput::LossSum(_) => panic!("only the last segment returns the loss"),
    }
}
