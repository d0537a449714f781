//! Runs the forward and backward pass of one micro-batch over a chunk's segments, cutting the graph where activations
//! are recomputed.

use std::ops::Range;

use bridge_dist::comm::CommError;
use burn::tensor::{Gradients, Tensor};

use super::recompute::{Cuts, Recompute, Region, plan};
use crate::model::{ForwardContext, ModelChunk, SegmentOutput};

/// Executes a chunk's segments in the regions of a recompute plan.
#[derive(Clone, Debug)]
pub struct Executor {
    regions: Vec<Region>,
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

/// One region after its forward pass.
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
        Self { regions: plan(&chunk.segments(), recompute, cuts) }
    }

    /// Sum of the masked loss of a chunk that has all its parameters, without gradients. `chunk` is an inference copy.
    pub fn forward(&self, chunk: &dyn ModelChunk, context: &ForwardContext) -> Tensor<1> {
        let all = 0..self.regions.last().map_or(0, |region| region.segments.end);
        match run(chunk, all, None, context) {
            SegmentOutput::LossSum(sum) => sum,
            SegmentOutput::Hidden(_) => panic!("the last segment returns the loss"),
        }
    }

    /// [`forward`](Self::forward) region by region, for chunks that get their parameters by `hooks`.
    ///
    /// # Errors
    /// Those of `hooks`.
    pub fn forward_with(
        &self,
        chunk: &mut dyn ModelChunk,
        context: &ForwardContext,
        hooks: &mut dyn RegionHooks,
    ) -> Result<Tensor<1>, CommError> {
        let mut input = None;
        for (i, region) in self.regions.iter().enumerate() {
            hooks.before(chunk, self.around(i))?;
            let output = run(chunk.inference().as_ref(), region.segments.clone(), input.take(), context);
            hooks.after(chunk, &region.segments);
            match output {
                SegmentOutput::Hidden(hidden) => input = Some(hidden),
                SegmentOutput::LossSum(sum) => return Ok(sum),
            }
        }
        panic!("the last segment returns the loss")
    }

    /// Forward and backward of one micro-batch. What happens to parameters, gradients and the loss is the business of `hooks`.
    ///
    /// Returns the loss sum, `[1]` float32, without its graph.
    ///
    /// # Errors
    /// Those of `hooks`.
    pub fn forward_backward(
        &self,
        chunk: &mut dyn ModelChunk,
        context: &ForwardContext,
        hooks: &mut dyn RegionHooks,
    ) -> Result<Tensor<1>, CommError> {
        let mut pending = self.forward_regions(chunk, context, hooks)?;
        let mut total = None;
        let mut gradient: Option<Tensor<3>> = None;
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
                (SegmentOutput::LossSum(sum), None) => {
                    total = Some(sum.clone().without_autodiff());
                    hooks.objective(sum).backward()
                }
                (SegmentOutput::Hidden(hidden), Some(gradient)) => seed_backward(hidden, gradient),
                _ => panic!("the last segment, and only it, returns the loss"),
            };
            chunk.take_gradients(&mut gradients, &mut |name, gradient| hooks.gradient(name, gradient));
            gradient = input.map(|leaf| leaf.grad_remove(&mut gradients).expect("the region used its input"));
            hooks.after(chunk, segments);
            hooks.left(segments)?;
        }
        Ok(total.expect("a chunk has at least one segment"))
    }

    /// A region with its neighbours.
    fn around(&self, index: usize) -> Around<'_> {
        let segments = |index: usize| self.regions.get(index).map(|region| &region.segments);
        Around { segments: &self.regions[index].segments, next: segments(index + 1), index, regions: &self.regions }
    }

    fn forward_regions(
        &self,
        chunk: &mut dyn ModelChunk,
        context: &ForwardContext,
        hooks: &mut dyn RegionHooks,
    ) -> Result<Vec<Pending>, CommError> {
        let mut pending = Vec::with_capacity(self.regions.len());
        let mut input: Option<Tensor<3>> = None;
        for (index, region) in self.regions.iter().enumerate() {
            let is_last = index + 1 == self.regions.len();
            hooks.before(chunk, self.around(index))?;
            // The last region's backward comes first: dropping its graph would save nothing.
            let drops_graph = region.recomputed && !is_last;
            let (output, boundary) = if drops_graph {
                let plain = input.clone().map(Tensor::without_autodiff);
                let output = run(chunk.inference().as_ref(), region.segments.clone(), plain, context);
                hooks.after(chunk, &region.segments);
                (None, Some(hidden(output)))
            } else {
                let output = run(&*chunk, region.segments.clone(), input.clone(), context);
                let boundary = match &output {
                    SegmentOutput::Hidden(hidden) => Some(hidden.clone().without_autodiff()),
                    SegmentOutput::LossSum(_) => None,
                };
                (Some(output), boundary)
            };
            let next = boundary.map(|boundary| boundary.autodiff().require_grad());
            pending.push(Pending { index, input: std::mem::replace(&mut input, next), output });
        }
        Ok(pending)
    }
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
