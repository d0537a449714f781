//! `[profiling]` and `[tensor_inspect]`: names, defaults, ranges.

use std::path::PathBuf;

use super::super::field::AnyValue;
use super::super::refusal::no_counterpart;
use super::super::rule::{excludes, idle_unless};
use super::super::section::section;

/// Settings that ask for a profile.
const PROFILED: &str = "profiling.use_pytorch_profiler | profiling.use_nsys_profiler | profiling.nvtx_ranges | \
                        profiling.record_memory_history";

section! {
    /// Profiler windows.
    pub struct ProfilingConfig {
        /// Tell NVIDIA's profiler where the window begins and ends: `nsys profile
        /// --capture-range=cudaProfilerApi bridge train`.
        use_nsys_profiler: bool = false;
        /// The built-in profiler: a trace of some steps for each rank, `trace/rank_00000.json` in
        /// `logger.log_dir`.
        use_pytorch_profiler: bool = false, excludes("profiling.use_nsys_profiler");
        /// Iterations before the first profiled one.
        profile_step_start: usize = 10, idle_unless(PROFILED);
        /// The last profiled iteration.
        profile_step_end: usize = 12, idle_unless(PROFILED);
        /// Profiled ranks; empty is all.
        profile_ranks: Vec<usize> = Vec::new();
        /// Names and shapes of the tensors that go into each segment, in traces.
        pytorch_profiler_collect_shapes: bool = false, idle_unless("profiling.use_pytorch_profiler");
        refused pytorch_profiler_collect_callstack = false, "Call stacks in traces."
            => no_counterpart("Python's stacks in the traces of PyTorch's profiler");
        refused pytorch_profiler_collect_chakra = false, "Chakra traces."
            => no_counterpart("Chakra traces of PyTorch's profiler");
        refused record_shapes = false, "Shape marks." => no_counterpart("shapes in the marks for NVIDIA's profiler");
        /// Ranges for NVIDIA's profiler in the window: timers and segments, by NVTX.
        nvtx_ranges: bool = false;
        /// History of the CPU's allocator: who holds how much when most is in use, in the window of
        /// steps, and where memory runs out.
        record_memory_history: bool = false;
        /// The file of it, in the folder `trace` of `logger.log_dir`: the rank is put behind its
        /// stem, a table is beside it.
        memory_snapshot_path: String = "snapshot.pickle".into();
    }
}

section! {
    /// Tensor statistics.
    pub struct TensorInspectConfig {
        /// Enable it.
        enabled: bool = false, idle_unless("logger.skip_train_metrics_log != true: steps are not logged");
        /// Tensor statistics to compute: a table in the form of NVIDIA's DL framework inspect, or a
        /// file of one (YAML, TOML or JSON).
        features: Option<AnyValue> = None, idle_unless("tensor_inspect.enabled");
        refused feature_dirs = None::<Vec<PathBuf>>, "Feature code folders."
            => no_counterpart("folders of Python code for further statistics");
        /// The folder of `tensor_statistics.csv`; `logger.log_dir` by default.
        log_dir: Option<PathBuf> = None, idle_unless("tensor_inspect.enabled");
        /// The step before the first one, for `freq`, `start_step` and `end_step`.
        init_training_step: usize = 0, idle_unless("tensor_inspect.enabled");
    }
}
