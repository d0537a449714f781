//! Spans of the segments of a chunk, in steps that are traced, and statistics of the residual
//! stream between them, in steps whose tensors are inspected; otherwise segments run unchanged.
//! Graphs are not cut for the spans: identity operations mark positions in backward, so no value
//! changes.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bridge_kernels::memory::history::{self, RankSlot};
use bridge_kernels::vjp::attach;
use burn::tensor::Tensor;

use crate::inspect::Inspector;
use crate::model::{
    Boundary, BoundaryError, ForwardContext, HIDDEN_STATES, ModelChunk, Segment, SegmentOutput, run_segments,
};
use crate::timers::{Labels, Span, Timers};
use crate::train::engine::offload::SegmentOffload;
use crate::train::engine::residual_gradients::ResidualGradients;
use crate::train::engine::residual_stream;
use crate::train::engine::residual_stream::role_name;

/// Observers of segments while they run.
#[derive(Clone, Debug)]
pub(in crate::train) struct Observers {
    /// Records spans.
    pub timers: Arc<Timers>,
    /// Takes statistics.
    pub inspector: Arc<Inspector>,
    /// Keeps gradients.
    pub gradients: Arc<ResidualGradients>,
}

impl Observers {
    /// No observers.
    pub fn none() -> Self {
        Self { timers: Arc::new(Timers::new(None)), inspector: Arc::default(), gradients: Arc::default() }
    }

    /// True if an observer has something to do.
    fn are_on(&self) -> bool {
        self.timers.spans().are_on() || history::is_on() || self.timers.spans().have_marks() || self.inspect_gradients()
    }

    /// True if an observer inspects gradients of the residual stream.
    pub(in crate::train) fn inspect_gradients(&self) -> bool {
        self.inspector.is_on() || self.gradients.are_on()
    }

    /// Shows the gradient of the residual stream before segment `index`.
    pub(in crate::train) fn gradient(&self, all: &[Segment], index: usize, gradient: &Tensor<3>) {
        residual_stream::inspect_gradient(&self.inspector, all, index, gradient);
        if let Some(segment) = all.get(index) {
            self.gradients.add(|| residual_stream::segment_name(segment), gradient);
        }
    }
}

/// Purpose of running segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) enum ForwardKind {
    /// Forward, with a graph or without.
    Forward,
    /// Forward once more, for the backward that follows.
    Recompute,
}

impl ForwardKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Recompute => "recompute",
        }
    }
}

/// Segments of a chunk to run, and the offload of the tensors that they keep.
pub(in crate::train) struct SegmentRun<'a> {
    /// The chunk.
    pub chunk: &'a dyn ModelChunk,
    /// Segments to run.
    pub segments: Range<usize>,
    /// Offload, if there is a graph.
    pub offload: Option<&'a SegmentOffload>,
}

/// [`run_segments`] with a span for each segment, and in a scope that offloads the kept tensors.
pub(in crate::train) fn forward(
    observers: &Observers,
    kind: ForwardKind,
    SegmentRun { chunk, segments, offload }: SegmentRun<'_>,
    mut input: Boundary,
    context: &ForwardContext,
) -> Result<SegmentOutput, BoundaryError> {
    if !observers.are_on() && offload.is_none() {
        return run_segments(chunk, segments, input, context);
    }
    let Observers { timers, inspector, .. } = observers;
    let spans = timers.spans();
    let all: Arc<[Segment]> = chunk.segments().into();
    let is_observed = observers.are_on();
    let inspects_values = kind == ForwardKind::Forward && inspector.is_on();
    if inspects_values && segments.start == 0 {
        residual_stream::inspect_values(inspector, &all, 0, &input);
    }
    for index in segments.clone() {
        let shapes = spans.take_shapes().then(|| match input.is_empty() {
            true => format!("tokens {:?}", context.batch.tokens.dims()),
            false => input.to_string(),
        });
        let _doing = RankSlot::owner(|| owner(&all[index], kind.name()));
        let _mark = spans.mark(|| owner(&all[index], kind.name()));
        let start = Instant::now();
        let one = || run_segments(chunk, index..index + 1, input, context);
        let output = SegmentOffload::run(offload, &all[index], one)?;
        if spans.are_on() {
            let (name, labels) = (name(&all[index], kind.name()), labels(&all[index], spans.microbatch()));
            spans.add(Span { name, labels, shapes, start, end: Instant::now() });
        }
        if let (SegmentOutput::Boundary(boundary), true) = (&output, inspects_values) {
            residual_stream::inspect_values(inspector, &all, index + 1, boundary);
        }
        match output {
            SegmentOutput::Boundary(boundary) if index + 1 < segments.end && !is_observed => input = boundary,
            SegmentOutput::Boundary(boundary) if index + 1 < segments.end => {
                input = boundary.map_made(|name, tensor| marked(name, tensor, observers, &all, index));
            }
            output => return Ok(output),
        }
    }
    Ok(SegmentOutput::Boundary(input))
}

/// Runs the backward of a region, with a span for each of its segments.
pub(in crate::train) fn backward<T>(
    timers: &Timers,
    all: &dyn Fn() -> Vec<Segment>,
    segments: &Range<usize>,
    work: impl FnOnce() -> T,
) -> T {
    let spans = timers.spans();
    if !(spans.are_on() || history::is_on() || spans.have_marks()) {
        return work();
    }
    let all = all();
    // Further segments say so themselves, as backward comes to them.
    let _doing = RankSlot::owner(|| owner(&all[segments.end - 1], "backward"));
    let _mark = spans.mark(|| owner(&all[segments.end - 1], "backward"));
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

/// The tensor with a hook whose backward records the arrival at the output of `segment`, and the
/// gradient.
fn marked(
    name: &'static str,
    tensor: Tensor<3>,
    observers: &Observers,
    all: &Arc<[Segment]>,
    segment: usize,
) -> Tensor<3> {
    if !tensor.is_tracked() {
        return tensor;
    }
    let (observers, all) = (observers.clone(), Arc::clone(all));
    let value = tensor.clone().without_autodiff();
    attach(value, vec![tensor.into_dispatch()], move |gradient: Tensor<3>| {
        RankSlot::set_owner(|| owner(&all[segment], "backward"));
        observers.timers.spans().mark_next(|| owner(&all[segment], "backward"));
        if observers.timers.spans().are_on() {
            observers.timers.spans().backward_reached(segment);
        }
        if name == HIDDEN_STATES {
            observers.gradient(&all, segment + 1, &gradient);
        }
        vec![gradient.into_dispatch()]
    })
}

fn labels(segment: &Segment, microbatch: Option<usize>) -> Labels {
    Labels { layer: segment.layer, microbatch, ..Labels::default() }
}

/// Owner of the memory that a segment takes.
fn owner(segment: &Segment, what: &str) -> String {
    match segment.layer {
        Some(layer) => format!("{} of layer {layer}", name(segment, what)),
        None => name(segment, what).into_owned(),
    }
}

fn name(segment: &Segment, what: &str) -> Cow<'static, str> {
    Cow::Owned(format!("{}-{what}", role_name(segment.role)))
}
