//! Spans of the segments of a chunk, in steps that are traced; otherwise segments run as they are. Graphs are not cut for it: backward says
//! where it is, by operations that hand gradients on as they are, so that no number changes.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bridge_kernels::vjp::attach;
use burn::tensor::Tensor;

use crate::model::{
    Boundary, BoundaryError, ForwardContext, ModelChunk, Segment, SegmentOutput, SegmentRole, run_segments,
};
use crate::timers::{Labels, Span, Timers};

/// What segments are run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// Forward, with a graph or without.
    Forward,
    /// Forward once more, for the backward that follows.
    Recompute,
}

impl Run {
    const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Recompute => "recompute",
        }
    }
}

/// Runs segments as [`run_segments`], each with a span.
pub(super) fn forward(
    timers: &Arc<Timers>,
    run: Run,
    (chunk, segments): (&dyn ModelChunk, Range<usize>),
    mut input: Boundary,
    context: &ForwardContext,
) -> Result<SegmentOutput, BoundaryError> {
    let spans = timers.spans();
    if !spans.are_on() {
        return run_segments(chunk, segments, input, context);
    }
    let all = chunk.segments();
    for index in segments.clone() {
        let shapes = spans.take_shapes().then(|| match input.is_empty() {
            true => format!("tokens {:?}", context.batch.tokens.dims()),
            false => input.to_string(),
        });
        let start = Instant::now();
        let output = run_segments(chunk, index..index + 1, input, context)?;
        let (name, labels) = (name(&all[index], run.name()), labels(&all[index], spans.microbatch()));
        spans.add(Span { name, labels, shapes, start, end: Instant::now() });
        match output {
            SegmentOutput::Boundary(boundary) if index + 1 < segments.end => {
                input = boundary.map_made(|tensor| marked(tensor, timers, index));
            }
            output => return Ok(output),
        }
    }
    Ok(SegmentOutput::Boundary(input))
}

/// Runs the backward of a region, with a span for each of its segments.
pub(super) fn backward<T>(
    timers: &Timers,
    (all, segments): (&dyn Fn() -> Vec<Segment>, &Range<usize>),
    work: impl FnOnce() -> T,
) -> T {
    let spans = timers.spans();
    if !spans.are_on() {
        return work();
    }
    let all = all();
    spans.take_reached();
    let mut start = Instant::now();
    let result = work();
    let ended = Instant::now();
    let mut left = segments.end;
    let microbatch = spans.microbatch();
    let add = |segment: &Segment, start, end| {
        let (name, labels) = (name(segment, "backward"), labels(segment, microbatch));
        spans.add(Span { name, labels, shapes: None, start, end });
    };
    for (reached, at) in spans.take_reached() {
        if reached + 1 < left {
            left = reached + 1;
            add(&all[left], start, at);
            start = at;
        }
    }
    add(&all[segments.start], start, ended);
    result
}

/// The tensor, in whose backward is noted that it has come to the output of `segment`.
fn marked(tensor: Tensor<3>, timers: &Arc<Timers>, segment: usize) -> Tensor<3> {
    if !tensor.is_tracked() {
        return tensor;
    }
    let timers = Arc::clone(timers);
    let value = tensor.clone().without_autodiff();
    attach(value, vec![tensor.into_dispatch()], move |gradient| {
        timers.spans().backward_reached(segment);
        vec![gradient.into_dispatch()]
    })
}

fn labels(segment: &Segment, microbatch: Option<usize>) -> Labels {
    Labels { layer: segment.layer, microbatch, ..Labels::default() }
}

fn name(segment: &Segment, what: &str) -> Cow<'static, str> {
    let role = match segment.role {
        SegmentRole::Embedding => "embedding",
        SegmentRole::Attention => "attention",
        SegmentRole::Mlp => "mlp",
        SegmentRole::Moe => "moe",
        SegmentRole::Layer => "layer",
        SegmentRole::StackEnd => "stack-end",
        SegmentRole::Head => "head",
    };
    Cow::Owned(format!("{role}-{what}"))
}
