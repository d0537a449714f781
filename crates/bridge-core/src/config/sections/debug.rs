//! `[profiling]` and `[tensor_inspect]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::field::AnyValue;
use super::super::section::section;

section! {
    /// Profiler windows.
    pub struct ProfilingConfig {
        /// The vendor's profiler.
        use_nsys_profiler: bool = false;
        /// The framework's profiler.
        use_pytorch_profiler: bool = false;
        /// First profiled step.
        profile_step_start: usize = 10;
        /// Step after the last profiled one.
        profile_step_end: usize = 12;
        /// Profiled ranks; empty is all.
        profile_ranks: Vec<usize> = Vec::new();
        /// Shapes in traces.
        pytorch_profiler_collect_shapes: bool = false;
        /// Call stacks in traces.
        pytorch_profiler_collect_callstack: bool = false;
        /// Chakra traces.
        pytorch_profiler_collect_chakra: bool = false;
        /// Shape marks.
        record_shapes: bool = false;
        /// Range marks.
        nvtx_ranges: bool = false;
        /// Allocator history.
        record_memory_history: bool = false;
        /// Snapshot file.
        memory_snapshot_path: String = "snapshot.pickle".into();
    }
}

section! {
    /// Tensor statistics.
    pub struct TensorInspectConfig {
        /// Switch it on.
        enabled: bool = false;
        /// Feature specification.
        features: Option<AnyValue> = None;
        /// Feature code folders.
        feature_dirs: Option<Vec<PathBuf>> = None;
        /// Output folder.
        log_dir: Option<PathBuf> = None;
        /// First step counted.
        init_training_step: usize = 0;
    }
}
