//! `RunConfig`: the checked, resolved, immutable configuration, which alone can be trained. It is
//! derived in `finalize`.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use bridge_dist::mesh::{Mesh, MeshError, ParallelSizes as MeshSizes, RankOrder};

use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::kinds::Kinds;
use super::node::Location;
use super::raw::RawConfig;
use super::reader::{Origins, locate};
use super::sections::{
    Blend, GptDatasetConfig, LoggerConfig, OptimizerConfig, RecipeConfig, SchedulerConfig, TrainingConfig,
    TransformerConfig, ValidationConfig,
};
use crate::schedule::OptimizerParamSchedulerConfig;
use crate::tensor_features;

/// The ranks of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct World {
    /// Number of ranks, at least 1.
    pub size: usize,
}

impl World {
    /// One rank.
    pub const SINGLE: Self = Self { size: 1 };
}

impl Default for World {
    fn default() -> Self {
        Self::SINGLE
    }
}

/// Declares a resolved section: the settings it dereferences to, and the values derived from them.
/// A derived field hides the optional setting of the same name.
macro_rules! resolved {
    ($(
        $(#[doc = $doc:literal])+
        pub struct $Name:ident: $Config:ty {
            $( $(#[doc = $field_doc:literal])+ $field:ident: $ty:ty, )*
        }
    )+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq)]
        pub struct $Name {
            pub(super) config: $Config,
            $( $(#[doc = $field_doc])+ pub $field: $ty, )*
        }

        impl Deref for $Name {
            type Target = $Config;

            fn deref(&self) -> &$Config {
                &self.config
            }
        }
    )+};
}

resolved! {
    /// A transformer with all sizes resolved; made by [`TransformerConfig::finalize`].
    pub struct FinalTransformer: TransformerConfig {
        /// Width of the dense MLP.
        ffn_hidden_size: usize,
        /// Size of one head.
        kv_channels: usize,
        /// Key and value heads.
        num_query_groups: usize,
        /// Scale of attention scores.
        softmax_scale: f64,
        /// Standard deviation of the initial embedding.
        embedding_init_method_std: f64,
        /// For each layer, whether attention is windowed.
        windowed_layers: Vec<bool>,
        /// For each layer, whether it has no rotary embedding.
        no_rope_layers: Vec<bool>,
        /// For each layer, whether its MLP has experts.
        moe_layers: Vec<bool>,
        /// Modules that selective recompute covers; empty without it.
        recompute_modules: Vec<String>,
        /// Tensor-parallel size inside experts.
        expert_tensor_parallel_size: usize,
    }

    /// The resolved `[model]`.
    pub struct FinalModel: FinalTransformer {
        /// Kind that is built.
        kind: String,
        /// The values of the settings that the kind registered, defaults filled in.
        extra: toml::Table,
    }

    /// The resolved `[train]`.
    pub struct FinalTraining: TrainingConfig {
        /// Sequences per model replica and micro-batch.
        micro_batch_size: usize,
        /// Sequences per optimizer step over all ranks, after ramp-up.
        global_batch_size: usize,
        /// Optimizer steps over all runs.
        train_iters: usize,
        /// Micro-batches per optimizer step, after ramp-up.
        num_microbatches: usize,
        /// Batch ramp-up; also `None` if it would start at the full batch.
        rampup_batch_size: Option<[usize; 3]>,
    }

    /// The resolved `[validation]`.
    pub struct FinalValidation: ValidationConfig {
        /// Batches per evaluation.
        eval_iters: usize,
        /// Sequences per evaluation step.
        eval_global_batch_size: usize,
        /// Sequences per evaluation micro-batch.
        eval_micro_batch_size: usize,
        /// Micro-batches per evaluation step.
        num_microbatches: usize,
    }

    /// The resolved `[optimizer]`.
    pub struct FinalOptimizer: OptimizerConfig {
        /// Peak learning rate.
        lr: f64,
        /// Floor of the learning rate.
        min_lr: f64,
    }

    /// The resolved `[scheduler]`.
    pub struct FinalScheduler: SchedulerConfig {
        /// The curves, with their lengths in samples.
        schedule: OptimizerParamSchedulerConfig,
    }

    /// The resolved `[dataset]`.
    pub struct FinalDataset: GptDatasetConfig {
        /// Kind that is built.
        kind: String,
        /// Tokens per sample.
        seq_length: usize,
        /// Seed of all shuffles.
        random_seed: u64,
        /// Prefixes and weights, also when given as `data_path`.
        blend: Option<Blend>,
        /// Shares of train, valid and test, summing to 1; `None` with `blend_per_split`.
        split_shares: Option<[f64; 3]>,
        /// The values of the settings that the kind registered, defaults filled in.
        extra: toml::Table,
    }

    /// The resolved `[logger]`.
    pub struct FinalLogger: LoggerConfig {
        /// Folder of logs and plots.
        log_dir: PathBuf,
    }

    /// All settings of a run; reached through [`RunConfig`].
    pub struct Resolved: RecipeConfig {
        /// Name of the run.
        name: String,
        /// Architecture.
        model: FinalModel,
        /// Loop length, batch sizes, exit conditions.
        train: FinalTraining,
        /// Evaluation.
        validation: FinalValidation,
        /// Optimizer.
        optimizer: FinalOptimizer,
        /// Schedules.
        scheduler: FinalScheduler,
        /// Data.
        dataset: FinalDataset,
        /// Logs.
        logger: FinalLogger,
        /// Statistics of tensors, where they are taken.
        tensor_inspect: Option<FinalTensorInspect>,
        /// Layout of ranks.
        parallel: ParallelSizes,
        /// Samples per split.
        samples: SampleCounts,
    }
}

/// The resolved `[tensor_inspect]`.
#[derive(Debug, Clone, PartialEq)]
pub struct FinalTensorInspect {
    /// Statistics of tensors to compute, with their schedule.
    pub rules: Vec<tensor_features::Rule>,
    /// The folder of the table.
    pub log_dir: PathBuf,
    /// The step before the first one, as the rules count.
    pub init_training_step: u64,
}

/// The layout of ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ParallelSizes {
    /// Ranks.
    pub world_size: usize,
    /// Tensor parallel.
    pub tensor: usize,
    /// Pipeline parallel.
    pub pipeline: usize,
    /// Model chunks per pipeline rank.
    pub virtual_pipeline: usize,
    /// Context parallel.
    pub context: usize,
    /// Expert parallel.
    pub expert: usize,
    /// Tensor parallel inside experts.
    pub expert_tensor: usize,
    /// Data parallel, derived.
    pub data: usize,
}

impl std::fmt::Display for ParallelSizes {
    /// `1 rank`, or `8 ranks: tensor 2 x pipeline 2 x data 2`: the sizes above 1, of which experts
    /// have their own.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.world_size == 1 {
            return f.write_str("1 rank");
        }
        let sizes =
            [("tensor", self.tensor), ("context", self.context), ("pipeline", self.pipeline), ("data", self.data)];
        let sizes = sizes.iter().filter(|(_, size)| *size > 1).map(|(name, size)| format!("{name} {size}"));
        write!(f, "{} ranks: {}", self.world_size, sizes.collect::<Vec<_>>().join(" x "))?;
        if self.virtual_pipeline > 1 {
            write!(f, ", {} virtual stages a rank", self.virtual_pipeline)?;
        }
        if self.expert > 1 || self.expert_tensor != self.tensor {
            write!(f, ", experts over {} with tensor {}", self.expert, self.expert_tensor)?;
        }
        Ok(())
    }
}

/// Number of samples requested from each split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// Training.
    pub train: u64,
    /// All evaluations of the validation split together, the final one included.
    pub valid: u64,
    /// Test.
    pub test: u64,
}

/// A checked configuration. Made by [`RawConfig::finalize`](super::RawConfig::finalize) only, and
/// never changed: all access is by shared reference, through dereferencing to [`Resolved`].
#[derive(Debug, Clone)]
pub struct RunConfig {
    resolved: Resolved,
    warnings: Vec<String>,
    /// Settings that have no effect; among the warnings, too.
    idle: ConfigErrors,
    origins: Origins,
}

/// The locations of settings do not matter.
impl PartialEq for RunConfig {
    fn eq(&self, other: &Self) -> bool {
        (&self.resolved, &self.warnings) == (&other.resolved, &other.warnings)
    }
}

impl Deref for RunConfig {
    type Target = Resolved;

    fn deref(&self) -> &Resolved {
        &self.resolved
    }
}

impl FinalValidation {
    /// True if the validation split is evaluated after `iteration` during training.
    pub fn is_due(&self, iteration: u64) -> bool {
        is_due(self.eval_interval, iteration) && self.start_eval_at_iter.is_none_or(|start| iteration >= start as u64)
    }
}

/// True if `iteration` ends an interval of `interval` iterations; false without an interval.
pub fn is_due(interval: Option<usize>, iteration: u64) -> bool {
    interval.is_some_and(|interval| iteration.is_multiple_of(interval as u64))
}

impl RunConfig {
    pub(super) fn new(resolved: Resolved, mut warnings: Vec<String>, idle: ConfigErrors, origins: Origins) -> Self {
        warnings.extend(idle.iter().map(ConfigError::sentence));
        Self { resolved, warnings, idle, origins }
    }

    /// The same configuration, if each of its settings has an effect.
    ///
    /// # Errors
    /// Every setting that has no effect because of others; [`warnings`](Self::warnings) names them
    /// otherwise.
    pub fn strict(self) -> Result<Self, ConfigErrors> {
        self.idle.clone().into_result(self)
    }

    /// True if the device is the CPU.
    pub fn computes_on_cpu(&self) -> bool {
        matches!(self.device.as_str(), "flex" | "cpu")
    }

    /// The layout of the ranks.
    ///
    /// # Errors
    /// If the sizes do not form a mesh.
    pub fn mesh(&self) -> Result<Mesh, MeshError> {
        let parallel = &self.parallel;
        let sizes = MeshSizes {
            tensor_model_parallel_size: parallel.tensor,
            pipeline_model_parallel_size: parallel.pipeline,
            context_parallel_size: parallel.context,
            expert_model_parallel_size: parallel.expert,
            expert_tensor_parallel_size: Some(parallel.expert_tensor),
            num_distributed_optimizer_instances: self.ddp.num_distributed_optimizer_instances,
        };
        let order = if self.dist.use_tp_pp_dp_mapping { RankOrder::TpCpEpPpDp } else { RankOrder::TpCpEpDpPp };
        Mesh::new(parallel.world_size, sizes, order)
    }

    /// Place of a setting, or of the closest table around it: for problems that are found only when
    /// it is used.
    pub fn location(&self, key: &str) -> Option<Location> {
        locate(&self.origins, key)
    }

    /// The resolved settings as a recipe: reading and finalizing it gives an equal `RunConfig`.
    pub fn recipe(&self) -> &RecipeConfig {
        &self.resolved.config
    }

    /// The configuration with as many iterations as its `train.num_epochs` take of `samples` in an
    /// epoch, rounded up to whole ones, and without `num_epochs`; `None` where the recipe counts
    /// otherwise.
    ///
    /// # Errors
    /// A fault of the recipe at this number of iterations, such as a warmup that is longer.
    pub fn with_epoch(&self, samples: usize, kinds: &Kinds) -> Option<Result<Self, ConfigErrors>> {
        let epochs = self.train.num_epochs?;
        let iterations = (epochs * samples as f64 / self.train.global_batch_size as f64).ceil().max(1.0);
        let mut raw = RawConfig::with_kinds(kinds.clone());
        *raw = self.recipe().clone();
        (raw.train.num_epochs, raw.train.train_iters) = (None, Some(iterations as usize));
        let counted = raw.finalize(&World { size: self.parallel.world_size });
        Some(counted.map(|counted| Self { origins: self.origins.clone(), ..counted }))
    }

    /// Samples by which a step of `batch_size` samples advances the schedules. In a run whose
    /// length is given in iterations each step counts as a full global batch, so that lengths in
    /// iterations mean iterations under a ramp-up of the batch, too.
    pub fn schedule_steps(&self, batch_size: u64) -> u64 {
        if self.train.train_samples.is_some() { batch_size } else { self.train.global_batch_size as u64 }
    }

    /// The same run, continued after `iterations` with `samples`: `train.train_samples` counts
    /// samples over all runs, of which earlier ones may have had other batch sizes. `None` if the
    /// number of iterations is right as it is.
    #[must_use]
    pub fn continued_after(&self, iterations: u64, samples: u64) -> Option<Self> {
        let left = (self.train.train_samples? as u64).saturating_sub(samples);
        let train_iters = (iterations + left / self.train.global_batch_size as u64) as usize;
        (train_iters != self.train.train_iters).then(|| {
            let mut continued = self.clone();
            continued.resolved.train.train_iters = train_iters;
            continued
        })
    }

    /// True if the number of iterations is unknown before the data has been read.
    pub fn counts_epochs(&self) -> bool {
        self.train.num_epochs.is_some()
    }

    /// Folder with the tokenizer and the token files that are made of the recipe's own text.
    pub fn text_folder(&self) -> PathBuf {
        self.dataset.source_cache_dir.clone().unwrap_or_else(|| Path::new("data").join(&self.name))
    }

    /// Warnings about valid but probably unintended settings, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Sequences per micro-batch over all replicas.
    pub fn samples_per_microstep(&self) -> usize {
        self.train.micro_batch_size * self.parallel.data
    }

    /// Problems with files that the configuration names but that do not exist. Separate from
    /// `finalize`, because a checkpoint's own configuration must load even if its inputs no longer
    /// exist.
    ///
    /// # Errors
    /// One entry per missing file.
    pub fn check_paths(&self) -> Result<(), ConfigErrors> {
        let paths = [
            ("checkpoint.pretrained_checkpoint", &self.checkpoint.pretrained_checkpoint),
            ("tokenizer.tokenizer_model", &self.tokenizer.tokenizer_model),
            ("distillation.teacher", &self.distillation.as_ref().and_then(|settings| settings.teacher.clone())),
        ];
        let missing = paths.into_iter().filter_map(|(key, path)| {
            let path = path.as_ref().filter(|path| !path.exists())?;
            let error = ConfigError::new(ErrorKind::Missing, key, "there is no such file or folder");
            Some(error.with_found(path.display().to_string()).with_location(self.location(key)))
        });
        missing.collect::<ConfigErrors>().into_result(())
    }
}

impl FinalTransformer {
    /// Global numbers of the layers whose MLP has experts, in ascending order. Multi-token
    /// prediction layers come after all other layers, and have the type of the last one.
    pub fn layers_with_experts(&self) -> Vec<usize> {
        let numbered = self.moe_layers.iter().enumerate();
        let mut layers: Vec<usize> =
            numbered.filter(|(_, has_experts)| **has_experts).map(|(layer, _)| layer).collect();
        if self.moe_layers.last() == Some(&true) {
            layers.extend((0..self.mtp_num_layers.unwrap_or(0)).map(|depth| self.moe_layers.len() + depth));
        }
        layers
    }

    /// Experts that routers choose among, those that are the identity included; `None` for a model
    /// without experts.
    pub fn routed_experts(&self) -> Option<usize> {
        Some(self.num_moe_experts? + self.moe_num_identity_experts)
    }

    /// Rows of the embedding, given the tokenizer's size.
    ///
    /// Without `vocab_size` it is the tokenizer's, padded to a multiple of
    /// `make_vocab_size_divisible_by`. With it, padding happens only with `should_pad_vocab`. It
    /// does not depend on the layout, so that all layouts train, save and load the same model; the
    /// rows need not divide over tensor-parallel ranks.
    ///
    /// # Errors
    /// If `vocab_size` is smaller than the tokenizer's.
    pub fn padded_vocab_size(&self, tokenizer_vocab_size: usize) -> Result<usize, ConfigErrors> {
        let unit = self.make_vocab_size_divisible_by;
        match self.vocab_size {
            None => Ok(tokenizer_vocab_size.next_multiple_of(unit)),
            Some(size) if size < tokenizer_vocab_size => {
                let message = "smaller than the tokenizer's vocabulary";
                Err(ConfigError::new(ErrorKind::Conflict, "model.vocab_size", message)
                    .with_found(size.to_string())
                    .with_expected(format!("at least {tokenizer_vocab_size}"))
                    .into())
            }
            Some(size) if self.should_pad_vocab => Ok(size.next_multiple_of(unit)),
            Some(size) => Ok(size),
        }
    }

    /// True if rows of the embedding are added to the vocabulary.
    pub fn pads_vocabulary(&self) -> bool {
        self.vocab_size.is_none() || self.should_pad_vocab
    }
}
