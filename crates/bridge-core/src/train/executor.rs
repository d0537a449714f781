//! Runs the forward and backward pass of one micro-batch over a chunk's segments, cutting the graph where activations
//! are recomputed. A chunk may be a whole model or a pipeline stage of one.

use burn::tensor::{Gradients, Tensor};

use super::recompute::{Recompute, Region, plan};
use crate::model::{ForwardContext, ModelChunk, SegmentOutput};

/// Executes a chunk's segments in the regions of a recompute plan.
#[derive(Clone, Debug)]
pub struct Executor {
    regions: Vec<Region>,
}

/// A micro-batch between its forward and its backward pass through a chunk: the graphs and boundary activations that backward
/// needs. Dropping it frees them.
#[derive(Debug)]
pub struct InFlight {
    regions: Vec<Pending>,
}

/// What a backward pass asks and tells.
pub trait BackwardWork {
    /// The scalar to differentiate, from the loss sum. Asked of chunks with a head only.
    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1>;

    /// A gradient of the parameter `name`, flat: possibly one of several parts, which add up (a tied weight has one for each region
    /// that uses it).
    fn gradient(&mut self, name: &str, gradient: Tensor<1>);
}

/// One region after its forward pass.
#[derive(Debug)]
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
    ///
    /// # Panics
    /// If the chunk is a stage without embedding or head: see [`Self::forward_chunk`].
    pub fn forward(&self, chunk: &dyn ModelChunk, context: &ForwardContext) -> Tensor<1> {
        loss_sum(self.forward_chunk(chunk, None, context))
    }

    /// The output of a chunk, without gradients. `chunk` is an inference copy; `input` is what the stage before sent, and `None`
    /// where the chunk begins with the embedding.
    ///
    /// # Panics
    /// If `input` is missing, or there for a chunk that begins with the embedding.
    pub fn forward_chunk(
        &self,
        chunk: &dyn ModelChunk,
        input: Option<Tensor<3>>,
        context: &ForwardContext,
    ) -> SegmentOutput {
        match self.regions.last() {
            Some(last) => run(chunk, 0..last.segments.end, input, context),
            None => pass_on(input),
        }
    }

    /// Forward and backward of a whole model. `objective` turns the loss sum into the scalar to differentiate; `on_gradient` gets
    /// each parameter's gradient, possibly in several parts (a tied weight has one for each region that uses it), which add up.
    ///
    /// Returns the loss sum, `[1]` float32, without its graph.
    ///
    /// # Panics
    /// If the chunk is a stage without embedding or head: see [`Self::begin`].
    pub fn forward_backward(
        &self,
        chunk: &dyn ModelChunk,
        context: &ForwardContext,
        objective: &mut dyn FnMut(Tensor<1>) -> Tensor<1>,
        on_gradient: &mut dyn FnMut(&str, Tensor<1>),
    ) -> Tensor<1> {
        let (in_flight, output) = self.begin(chunk, None, context);
        in_flight.backward(chunk, context, None, &mut Closures { objective, on_gradient });
        loss_sum(output)
    }

    /// The forward pass of a chunk that is trained. `input` is what the stage before sent, without a graph; `None` where the chunk
    /// begins with the embedding.
    ///
    /// Returns what backward needs and the chunk's output, without its graph.
    ///
    /// # Panics
    /// If `input` is missing, or there for a chunk that begins with the embedding.
    pub fn begin(
        &self,
        chunk: &dyn ModelChunk,
        input: Option<Tensor<3>>,
        context: &ForwardContext,
    ) -> (InFlight, SegmentOutput) {
        let without_graph = self.regions.iter().any(|region| region.recomputed).then(|| chunk.inference());
        let mut regions = Vec::with_capacity(self.regions.len());
        let mut input = input.map(leaf);
        for (i, region) in self.regions.iter().enumerate() {
            let (output, plain) = if region.recomputed {
                let chunk = without_graph.as_deref().expect("made when any region is recomputed");
                let plain = input.clone().map(Tensor::without_autodiff);
                (None, run(chunk, region.segments.clone(), plain, context))
            } else {
                let output = run(chunk, region.segments.clone(), input.clone(), context);
                let plain = without_autodiff(&output);
                (Some(output), plain)
            };
            if i + 1 == self.regions.len() {
                regions.push(Pending { region: region.clone(), input, output });
                return (InFlight { regions }, plain);
            }
            let next = Some(leaf(hidden(plain)));
            regions.push(Pending { region: region.clone(), input: std::mem::replace(&mut input, next), output });
        }
        // A stage that holds nothing.
        (InFlight { regions }, pass_on(input.map(Tensor::without_autodiff)))
    }
}

impl InFlight {
    /// The backward pass, with the chunk and context of the forward pass. `output_gradient` is the gradient of the chunk's output,
    /// `[b, t, c]`, from the stage that comes after; `None` where the chunk ends with the loss.
    ///
    /// Returns the gradient of the chunk's input, `[b, t, c]` without a graph; `None` where the chunk begins with the embedding.
    ///
    /// # Panics
    /// If `output_gradient` is missing, or there for a chunk with a head.
    pub fn backward(
        mut self,
        chunk: &dyn ModelChunk,
        context: &ForwardContext,
        output_gradient: Option<Tensor<3>>,
        work: &mut dyn BackwardWork,
    ) -> Option<Tensor<3>> {
        let mut gradient = output_gradient;
        while let Some(Pending { region, input, output }) = self.regions.pop() {
            let output = output.unwrap_or_else(|| run(chunk, region.segments, input.clone(), context));
            let mut gradients = match (output, gradient.take()) {
                (SegmentOutput::LossSum(sum), None) => work.objective(sum).backward(),
                (SegmentOutput::Hidden(hidden), Some(gradient)) => seed_backward(hidden, gradient),
                _ => panic!("the last segment of the model, and only it, returns the loss"),
            };
            chunk.take_gradients(&mut gradients, &mut |name, part| work.gradient(name, part));
            gradient = input.map(|leaf| leaf.grad_remove(&mut gradients).expect("the region used its input"));
        }
        gradient
    }
}

/// [`BackwardWork`] from two closures.
struct Closures<'a> {
    objective: &'a mut dyn FnMut(Tensor<1>) -> Tensor<1>,
    on_gradient: &'a mut dyn FnMut(&str, Tensor<1>),
}

impl BackwardWork for Closures<'_> {
    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1> {
        (self.objective)(loss_sum)
    }

    fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
        (self.on_gradient)(name, gradient);
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
