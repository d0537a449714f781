//! The recipe as a whole: its sections and its few top-level settings. Data only.

use super::super::kinded::{DatasetConfig, ModelConfig};
use super::super::limits::Limits;
use super::super::rule::{excludes, idle_unless};
use super::super::section::section;
use super::*;

section! {
    /// Text generation at the end of a run (ours): one sample when `prompt` is set.
    pub struct GenerateConfig {
        /// The prompt to continue; null generates no sample.
        prompt: Option<String> = None;
        /// Maximum number of tokens to generate.
        max_tokens: usize = 64, Limits::SIZE, idle_unless("generate.prompt");
        /// Divides the logits; 0 takes the most likely token.
        temperature: f64 = 0.8, Limits::between(0.0, 100.0), idle_unless("generate.prompt");
        /// Keep only this many most likely tokens.
        top_k: Option<usize> = None, Limits::POSITIVE, idle_unless("generate.prompt"),
            idle_unless("generate.temperature != 0.0: it takes the most likely token");
        /// Keep the most likely tokens up to this total probability.
        top_p: Option<f64> = None, Limits::SHARE, idle_unless("generate.prompt"),
            idle_unless("generate.temperature != 0.0: it takes the most likely token");
        /// Seed of sampling.
        seed: u64 = 1234, Limits::SEED, idle_unless("generate.prompt"),
            idle_unless("generate.temperature != 0.0: it takes the most likely token");
    }
}

section! {
    /// A whole recipe. Everything may be set in any order; nothing is checked before `finalize`.
    pub struct RecipeConfig {
        /// Name of the run (ours); null means the recipe's file name without its extension.
        @execution name: Option<String> = None;
        /// Device of all tensors (ours): flex, cuda, wgpu, vulkan, ... with `:N` for the N-th
        /// device.
        @execution device: String = "flex".into();
        /// Architecture and parallel layout.
        model: ModelConfig = ModelConfig::default();
        /// Loop length, batch sizes, exit conditions.
        train: TrainingConfig = TrainingConfig::default();
        /// Evaluation cadence and batch sizes.
        @execution validation: ValidationConfig = ValidationConfig::default();
        /// Optimizer hyper-parameters.
        optimizer: OptimizerConfig = OptimizerConfig::default();
        /// Per-parameter optimizer overrides.
        optimizer_config_override_provider: OptimizerConfigOverrideProvider =
            OptimizerConfigOverrideProvider::default();
        /// Learning-rate and weight-decay schedules.
        scheduler: SchedulerConfig = SchedulerConfig::default();
        /// Data source.
        dataset: DatasetConfig = DatasetConfig::default();
        /// Tokenizer choice.
        tokenizer: TokenizerConfig = TokenizerConfig::default();
        /// Console and metric sinks.
        @execution logger: LoggerConfig = LoggerConfig::default();
        /// Save and load policy.
        @execution checkpoint: CheckpointConfig = CheckpointConfig::default();
        /// Process-group start-up.
        @execution dist: DistributedInitConfig = DistributedInitConfig::default();
        /// Gradient buffers and reductions.
        @execution ddp: DistributedDataParallelConfig = DistributedDataParallelConfig::default();
        /// Random seeds.
        rng: RngConfig = RngConfig::default();
        /// Precision recipe, by name or as a table.
        mixed_precision: Option<Precision> = None;
        /// Communication overlap presets.
        @execution comm_overlap: Option<CommOverlapConfig> = None;
        /// Adapters.
        peft: Option<PeftConfig> = None;
        /// Training on preferences (ours).
        dpo: Option<DpoConfig> = None, excludes("distillation: a run has one loss");
        /// Learning from a teacher (ours).
        distillation: Option<DistillationConfig> = None;
        /// Profiler windows.
        @execution profiling: ProfilingConfig = ProfilingConfig::default();
        /// Result validation and fault injection.
        @execution rerun_state_machine: RerunStateMachineConfig = RerunStateMachineConfig::default();
        /// Section-timeout fault tolerance.
        @execution ft: Option<FaultToleranceConfig> = None;
        /// Built-in straggler timer.
        @execution straggler: Option<StragglerDetectionConfig> = None;
        /// External straggler detector.
        @execution nvrx_straggler: Option<NvrxStragglerDetectionConfig> = None;
        /// In-process restart.
        @execution inprocess_restart: Option<InProcessRestartConfig> = None;
        /// Tensor statistics.
        @execution tensor_inspect: Option<TensorInspectConfig> = None;
        /// Sampling at the end of a run.
        @execution generate: GenerateConfig = GenerateConfig::default();
    }
}
