//! TensorBoard event files with scalars: writing them, reading them back, and cutting them where a
//! run resumes. The protocol buffers are small enough to encode by hand; the scalars are not
//! interpreted here.
//!
//! No crate is used, because those on the registry are unmaintained or need `protoc` to build.

mod event;
mod record;
mod writer;

pub use event::{Event, EventKind};
pub use record::read_events;
pub use writer::PERPLEXITY_SUFFIX;
pub(super) use writer::{EventWriter, ResumePoint, SAMPLES_SUFFIX};
