//! Runs the forward and backward pass of one micro-batch over a chunk's segments, cutting the graph where activations
//! are recomputed.

use burn::tensor::{Gradients, Tensor};

use super::recompute::{Recompute, Region, plan};
use crate::model::{ForwardContext, ModelChunk, SegmentOutput};

/// Executes a chunk's segments in the regions of a recompute plan.
#[derive(Clone, Debug)]
pub struct Executor {
    regions: Vec<Region>,
}

/// One region after its forward pass.
struct Pending {
    region: Region,
    /// The region's input as a leaf of its graph; none for the embedding.
    input: Option<Tensor<3>>,
    /// The output with its graph, unless the region is recomputed.
    output: Option<SegmentOutput>,
}

impl Executor {
    /// An executor for `chunk`.
    pub fn new(chunk: &dyn ModelChunk, recompute: &Recompute) -> Self {
        Self { regions: plan(&chunk.segments(), recompute) }
    }

    /// Sum of the masked loss, without gradients. `chunk` is an inference copy.
    pub fn forward(&self, chunk: &dyn ModelChunk, context: &ForwardContext) -> Tensor<1> {
        let all = 0..self.regions.last().map_or(0, |region| region.segments.end);
        loss_sum(run(chunk, all, None, context))
    }

    /// Forward and backward. `objective` turns the loss sum into the scalar to differentiate; `on_gradient` gets each
    /// parameter's gradient, possibly in several parts (a tied weight has one for each region that uses it), which add up.
    ///
    /// Returns the loss sum, `[1]` float32, without its graph.
    pub fn forward_backward(
        &self,
        chunk: &dyn ModelChunk,
        context: &ForwardContext,
        objective: &mut dyn FnMut(Tensor<1>) -> Tensor<1>,
        on_gradient: &mut dyn FnMut(&str, Tensor<1>),
    ) -> Tensor<1> {
        let mut pending = self.forward_regions(chunk, context);
        let mut total = None;
        let mut gradient: Option<Tensor<3>> = None;
        while let Some(Pending { region, input, output }) = pending.pop() {
            let output = output.unwrap_or_else(|| run(chunk, region.segments, input.clone(), context));
            let mut gradients = match (output, gradient.take()) {
                (SegmentOutput::LossSum(sum), None) => {
                    total = Some(sum.clone().without_autodiff());
                    objective(sum).backward()
                }
                (SegmentOutput::Hidden(hidden), Some(gradient)) => seed_backward(hidden, gradient),
                _ => panic!("the last segment, and only it, returns the loss"),
            };
            chunk.take_gradients(&mut gradients, on_gradient);
            gradient = input.map(|leaf| leaf.grad_remove(&mut gradients).expect("the region used its input"));
        }
        total.expect("a chunk has at least one segment")
    }

    fn forward_regions(&self, chunk: &dyn ModelChunk, context: &ForwardContext) -> Vec<Pending> {
        let without_graph = self.regions.iter().any(|region| region.recomputed).then(|| chunk.inference());
        let mut pending = Vec::with_capacity(self.regions.len());
        let mut input: Option<Tensor<3>> = None;
        for (i, region) in self.regions.iter().enumerate() {
            let is_last = i + 1 == self.regions.len();
            // The last region's backward comes first: dropping its graph would save nothing.
            let drops_graph = region.recomputed && !is_last;
            let (output, boundary) = if drops_graph {
                let chunk = without_graph.as_deref().expect("made when any region is recomputed");
                let plain = input.clone().map(Tensor::without_autodiff);
                (None, Some(hidden(run(chunk, region.segments.clone(), plain, context))))
            } else {
                let output = run(chunk, region.segments.clone(), input.clone(), context);
                let boundary = match &output {
                    SegmentOutput::Hidden(hidden) => Some(hidden.clone().without_autodiff()),
                    SegmentOutput::LossSum(_) => None,
                };
                (Some(output), boundary)
            };
            let next = boundary.map(|boundary| boundary.autodiff().require_grad());
            pending.push(Pending { region: region.clone(), input: std::mem::replace(&mut input, next), output });
        }
        pending
    }
}

/// Backward from `hidden` with a given gradient: `d(sum(hidden * gradient)) / d(hidden)` is exactly `gradient`.
fn seed_backward(hidden: Tensor<3>, gradient: Tensor<3>) -> Gradients {
    (hidden * gradient.autodiff()).sum().backward()
}

fn run(
    chunk: &dyn ModelChunk,
    segments: std::ops::Range<usize>,
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

fn loss_sum(output: SegmentOutput) -> Tensor<1> {
    match output {
        SegmentOutput::LossSum(sum) => sum,
        SegmentOutput::Hidden(_) => panic!("the last segment returns the loss"),
    }
}
