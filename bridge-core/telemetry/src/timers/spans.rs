//! Times of events on a rank in traced steps. Files of them are written by `logging::trace`.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Labels of a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// Number of the iteration, from 1.
    pub iteration: Option<u64>,
    /// Global layer number.
    pub layer: Option<usize>,
    /// Number of the micro-batch in the step.
    pub microbatch: Option<usize>,
    /// Index of the model chunk on this rank.
    pub chunk: Option<usize>,
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Name of the span.
    pub name: Cow<'static, str>,
    /// Labels of the span.
    pub labels: Labels,
    /// Names and shapes of the tensors that go in, where they are wanted.
    pub shapes: Option<String>,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
}

/// The spans of a rank, while they are recorded. Otherwise each costs the look whether they are.
#[derive(Debug, Default)]
pub struct Spans {
    is_on: AtomicBool,
    takes_shapes: AtomicBool,
    /// Number of the first micro-batch of the pass.
    first_microbatch: AtomicUsize,
    /// One more than the number in the step of the micro-batch that is worked on; 0 for none.
    microbatch: AtomicUsize,
    kept: Mutex<Vec<Span>>,
    /// The segments whose outputs backward has reached, and when.
    reached: Mutex<Vec<(usize, Instant)>>,
    has_marks: AtomicBool,
    marks: Mutex<Option<Arc<dyn Marks>>>,
}

/// Nested ranges of the current thread in an external profiler.
pub trait Marks: std::fmt::Debug + Send + Sync {
    /// Begins a range.
    fn push(&self, name: &str);
    /// Ends the innermost range.
    fn pop(&self);
}

/// A range that ends when this is dropped, where there are any.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub struct Mark(Option<Arc<dyn Marks>>);

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(marks) = &self.0 {
            marks.pop();
        }
    }
}

impl Spans {
    /// Records from now on, if `takes_shapes` with the shapes of inputs.
    pub fn record(&self, takes_shapes: bool) {
        self.takes_shapes.store(takes_shapes, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Stops recording, and returns the recorded spans.
    pub fn take(&self) -> Vec<Span> {
        self.is_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *lock(&self.kept))
    }

    /// True if spans are recorded.
    pub fn are_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// True if spans have shapes.
    pub fn take_shapes(&self) -> bool {
        self.takes_shapes.load(Ordering::Relaxed)
    }

    /// Says that the micro-batches of a pass are counted from `number`.
    pub fn begin_pass(&self, number: usize) {
        self.first_microbatch.store(number, Ordering::Relaxed);
    }

    /// Says which micro-batch of the pass is worked on from now on; its number in the step.
    pub fn work_on(&self, microbatch: usize) -> usize {
        let number = self.first_microbatch.load(Ordering::Relaxed) + microbatch;
        self.microbatch.store(number + 1, Ordering::Relaxed);
        number
    }

    /// Says that no micro-batch is worked on any more.
    pub fn end_pass(&self) {
        self.microbatch.store(0, Ordering::Relaxed);
    }

    /// The number in the step of the micro-batch that is worked on.
    pub fn microbatch(&self) -> Option<usize> {
        self.microbatch.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Makes ranges of timed sections in `marks` from now on; called between two steps.
    pub fn mark_with(&self, marks: Option<Arc<dyn Marks>>) {
        self.has_marks.store(marks.is_some(), Ordering::Relaxed);
        *lock(&self.marks) = marks;
    }

    /// True if ranges are made.
    pub fn have_marks(&self) -> bool {
        self.has_marks.load(Ordering::Relaxed)
    }

    /// A range of this name, where ranges are made.
    pub fn mark(&self, name: impl FnOnce() -> String) -> Mark {
        let marks = if self.have_marks() { lock(&self.marks).clone() } else { None };
        if let Some(marks) = &marks {
            marks.push(&name());
        }
        Mark(marks)
    }

    /// Ends the innermost range and begins another in its place.
    pub fn mark_next(&self, name: impl FnOnce() -> String) {
        if self.have_marks()
            && let Some(marks) = &*lock(&self.marks)
        {
            marks.pop();
            marks.push(&name());
        }
    }

    /// Keeps a span, if they are recorded.
    pub fn add(&self, span: Span) {
        if self.are_on() {
            lock(&self.kept).push(span);
        }
    }

    /// Notes that backward has reached the output of a segment, and so has finished the later
    /// segments.
    pub fn backward_reached(&self, segment: usize) {
        lock(&self.reached).push((segment, Instant::now()));
    }

    /// Segments that backward has reached since the last call, in that order.
    pub fn take_reached(&self) -> Vec<(usize, Instant)> {
        std::mem::take(&mut *lock(&self.reached))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
