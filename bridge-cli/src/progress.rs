//! Progress bars of commands that are not runs.

use std::sync::Arc;

use bridge_core::config::Progress;
use bridge_core::logging::{NoProgress, ProgressSink, Verbosity, progress_sink};

/// Bars on a terminal, plain lines elsewhere, on standard error; hidden in quiet mode.
pub fn visible(verbosity: Verbosity) -> Arc<dyn ProgressSink> {
    if verbosity == Verbosity::Quiet { hidden() } else { progress_sink(Progress::Auto) }
}

/// No bars.
pub fn hidden() -> Arc<dyn ProgressSink> {
    Arc::new(NoProgress)
}
