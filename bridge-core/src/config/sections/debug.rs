//! `[profiling]` and `[tensor_inspect]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::field::AnyValue;
use super::super::refusal::{no_counterpart, not_built};
use super::super::section::section;

section! {
    /// Profiler windows.
    pub struct ProfilingConfig {
        /// The vendor's profiler.
        use_nsys_profiler: bool = false
            => no_counterpart("marks for NVIDIA's profiler around some steps; `nsys profile bridge train` profiles the whole run");
        /// The built-in profiler: a trace of some steps for each rank, `trace/rank_00000.json` in `logger.log_dir`.
        use_pytorch_profiler: bool = false;
        /// Iterations before the first profiled one.
        profile_step_start: usize = 10;
        /// The last profiled iteration.
        profile_step_end: usize = 12;
        /// Profiled ranks; empty is all.
        profile_ranks: Vec<usize> = Vec::new();
        /// Names and shapes of the tensors that go into each segment, in traces.
        pytorch_profiler_collect_shapes: bool = false;
        /// Call stacks in traces.
        pytorch_profiler_collect_callstack: bool = false
            => no_counterpart("Python's stacks in the traces of PyTorch's profiler");
        /// Chakra traces.
        pytorch_profiler_collect_chakra: bool = false => no_counterpart("Chakra traces of PyTorch's profiler");
        /// Shape marks.
        record_shapes: bool = false => no_counterpart("shapes in the marks for NVIDIA's profiler");
        /// Range marks.
        nvtx_ranges: bool = false => not_built("marks for NVIDIA's profiler around the phases of a step; profiling writes a trace of them");
        /// Allocator history.
        record_memory_history: bool = false => no_counterpart("the history of PyTorch's allocator");
        /// Snapshot file.
        memory_snapshot_path: String = "snapshot.pickle".into() => no_counterpart("the file of record_memory_history");
    }
}

section! {
    /// Tensor statistics.
    pub struct TensorInspectConfig {
        /// Enable it.
        enabled: bool = false;
        /// What is taken of which tensors: a table in the form of NVIDIA's DL framework inspect, or a file of one (YAML, TOML or JSON).
        features: Option<AnyValue> = None;
        /// Feature code folders.
        feature_dirs: Option<Vec<PathBuf>> = None => no_counterpart("folders of Python code for further statistics");
        /// The folder of `tensor_statistics.csv`; `logger.log_dir` by default.
        log_dir: Option<PathBuf> = None;
        /// The step before the first one, for `freq`, `start_step` and `end_step`.
        init_training_step: usize = 0;
    }
}
