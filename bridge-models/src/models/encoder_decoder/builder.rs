//! Kind `t5` of the model registry.

use bridge_core::config::{ENCODER_INPUTS, Kind, TransformerConfig};
use bridge_core::model::{ModelBuildError, ModelBuilder, ModelConfig, ModelRegistry};

use crate::architecture::limits::invalid;
use crate::models::decoder::GptModelConfig;

/// The kind under which encoder-decoders are registered.
pub const KIND: &str = "t5";

/// The settings of `[model]` that the kind supports besides those of every kind.
const SETTINGS: [&str; 27] = [
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "ffn_hidden_size",
    "encoder_num_layers",
    "seq_length_dec",
    "decoder_start_token_id",
    "scale_decoder_outputs",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "share_embeddings_and_output_weights",
    "position_embedding_type",
    "normalization",
    "layernorm_epsilon",
    "layernorm_zero_centered_gamma",
    "add_bias_linear",
    "gated_linear_unit",
    "activation_func",
    "hidden_dropout",
    "attention_dropout",
    "softmax_scale",
    "final_logit_softcapping",
    "init_method_std",
    "embedding_init_method_std",
    "perform_initialization",
    "tensor_model_parallel_size",
    "sequence_parallel",
];

/// Settings of the layout that the kind supports.
const LAYOUT: [&str; 3] =
    ["pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "use_cpu_initialization"];

/// Configuration of an encoder-decoder.
#[derive(Clone, Debug)]
pub struct T5ModelConfig {
    inner: GptModelConfig,
}

impl T5ModelConfig {
    /// A model of this shape; without `encoder_num_layers` the encoder has as many layers as the
    /// decoder.
    pub fn new(mut transformer: TransformerConfig) -> Self {
        transformer.encoder_num_layers.get_or_insert(transformer.num_layers);
        Self { inner: GptModelConfig::new(transformer) }
    }
}

impl ModelConfig for T5ModelConfig {
    fn kind(&self) -> &str {
        KIND
    }

    fn transformer(&self) -> &TransformerConfig {
        self.inner.transformer()
    }

    fn stacks(&self) -> Vec<usize> {
        let section = self.transformer();
        vec![section.encoder_num_layers.unwrap_or(section.num_layers), section.num_layers]
    }

    fn check(&self) -> Result<(), ModelBuildError> {
        let section = self.transformer();
        let ranks = section.tensor_model_parallel_size;
        if section.sequence_parallel && !section.seq_length_dec.is_multiple_of(ranks) {
            let found = section.seq_length_dec;
            let message = format!(
                "expected a multiple of model.tensor_model_parallel_size = {ranks} with model.sequence_parallel, found {found}"
            );
            return Err(invalid("model.seq_length_dec", message));
        }
        self.inner.check()
    }

    fn builder(&self) -> Box<dyn ModelBuilder> {
        self.inner.builder()
    }
}

/// Adds the kind to `registry`.
pub(crate) fn register(registry: &mut ModelRegistry) {
    let kind = Kind::supporting(SETTINGS.into_iter().chain(LAYOUT)).with_inputs(ENCODER_INPUTS);
    registry.register(KIND, kind, |section| Ok(Box::new(T5ModelConfig::new(TransformerConfig::clone(section)))));
}
