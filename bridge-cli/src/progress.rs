//! Progress bars of commands that are not runs.

use std::sync::Arc;

use bridge_core::logging::{NoProgress, ProgressMode, ProgressSink};

/// Bars on a terminal, plain lines elsewhere, on standard error.
pub fn visible() -> Arc<dyn ProgressSink> {
    ProgressMode::Auto.sink()
}

/// No bars.
pub fn hidden() -> Arc<dyn ProgressSink> {
    Arc::new(NoProgress)
}
