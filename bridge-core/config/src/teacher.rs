//! The model of another recipe on the ranks of a run: the teacher of `[distillation]`.

use super::changes::{MODEL, concerns};
use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::pipeline::pipeline_placement;
use super::reader::Reader;
use super::run_config::{FinalModel, RunConfig};
use super::section::Section;
use super::sections::{RecipeConfig, TransformerConfig};
use super::spec::Concerns;
use super::{Kinds, RawConfig};

const TEACHER: &str = "distillation.teacher";

/// Properties that a teacher takes from the run's model: its layout, precision and inputs.
const OF_RUN: [&str; 7] = [
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "sequence_parallel",
    "fp16",
    "bf16",
    "seq_length",
];

impl RunConfig {
    /// The model of a saved recipe on this run's ranks, frozen: the same computation, the run's
    /// layout, and no recompute.
    ///
    /// # Errors
    /// A model that is not a decoder without experts, or that these ranks cannot shard.
    pub fn teacher_model(&self, saved: &RawConfig) -> Result<FinalModel, ConfigErrors> {
        let saved = saved.recipe();
        let refused = |message: String| {
            let error = ConfigError::new(ErrorKind::Conflict, TEACHER, message);
            ConfigErrors::from(error.with_location(self.location(TEACHER)))
        };
        if saved.peft.is_some() {
            return Err(refused("is an adapter alone: name a merge of it and its base".into()));
        }
        let kind = &saved.model.kind;
        if kind != "gpt" {
            return Err(refused(format!("is a model of kind \"{kind}\": expected a decoder of kind \"gpt\"")));
        }
        if saved.model.num_moe_experts.is_some() {
            return Err(refused("has experts, which is not built: expected a teacher without experts".into()));
        }
        let taken = self.on_ranks_of_run(saved);
        let config = taken.finalize().map_err(|errors| {
            let listed: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.key, error.message)).collect();
            refused(format!("cannot be run on the ranks of this run: {}", listed.join("; ")))
        })?;
        pipeline_placement(&config, config.num_layers)
            .map_err(|error| refused(format!("has layers that the stages of this run cannot share: {error}")))?;
        Ok(FinalModel { config, kind: kind.clone(), extra: toml::Table::new() })
    }

    /// The section of a recipe with the layout and the precision of this run, and with nothing else
    /// that only says how to run it.
    fn on_ranks_of_run(&self, saved: &RecipeConfig) -> TransformerConfig {
        let kinds = Kinds::default();
        let mut reader = Reader::new(&kinds);
        let mut taken = saved.model.config.clone();
        let usual = TransformerConfig::default();
        for field in TransformerConfig::fields() {
            let is_of_run = OF_RUN.contains(&field.name);
            let source: &TransformerConfig = if is_of_run { &self.model } else { &usual };
            if (is_of_run || concerns(&format!("{MODEL}{}", field.name)) == Concerns::Execution)
                && let Some(value) = source.value(field.name)
            {
                taken.assign(field.name, &value, &mut reader);
            }
        }
        taken.params_dtype = self.model.params_dtype;
        taken.pipeline_dtype = self.model.pipeline_dtype;
        taken.fp32_residual_connection = self.model.fp32_residual_connection;
        // Multi-token prediction layers are not run.
        taken.mtp_num_layers = None;
        taken.mtp_loss_scaling_factor = usual.mtp_loss_scaling_factor;
        taken
    }
}
