//! Kinds `gpt` and `mamba` of the model registry: configuration and builder around [`Decoder`].

use std::fmt;
use std::sync::Arc;

use bridge_core::config::{Kind, Section as _, TransformerConfig};
use bridge_core::model::{
    Adapter, BuildContext, ChunkScope, Member, ModelBuildError, ModelBuilder, ModelChunk, ModelConfig, ModelHook,
    ModelRegistry, ModuleChunk, Outline, RankPlace, StackPart, Stage, Workload,
};
use bridge_kernels::offload::Module;

use super::model::{Decoder, outline};
use crate::architecture::config::DecoderConfig;
use crate::architecture::divisions::check_divides;
use crate::architecture::hybrid::{HybridBlock, letters};
use crate::architecture::limits::invalid;
use crate::families::FAMILIES;
use crate::models::encoder_decoder::{self, EncoderDecoder};

/// The kind under which decoders are registered.
pub const KIND: &str = "gpt";

/// The kind under which decoders are registered whose layers have one block each, Mamba's among
/// them.
pub const MAMBA_KIND: &str = "mamba";

impl DecoderConfig {
    /// The kind of model that the decoder is in a recipe.
    pub fn kind(&self) -> &'static str {
        match (&self.encoder, &self.hybrid) {
            (Some(_), _) => encoder_decoder::KIND,
            (None, Some(_)) => MAMBA_KIND,
            (None, None) => KIND,
        }
    }
}

/// Settings of attention that ask for nothing by default.
const OF_ATTENTION: [&str; 17] = [
    "add_qkv_bias",
    "attention_k_eq_v",
    "attention_output_gate",
    "attention_sinks",
    "attention_value_scale",
    "attn_logit_softcapping",
    "clip_qkv",
    "no_rope_freq",
    "qk_l2_norm",
    "qk_layernorm",
    "query_scale_beta",
    "num_kv_shared_layers",
    "softmax_scale",
    "v_l2_norm",
    "value_channels",
    "window_attn_skip_freq",
    "window_size",
];

/// Factors on inputs and outputs of blocks, which kinds of model without a pattern do not have.
const OF_PATTERN: [&str; 4] =
    ["attention_input_multiplier", "attention_output_multiplier", "mlp_gate_multiplier", "mlp_output_multiplier"];

/// Settings of feed-forward blocks, of experts too.
const OF_FEED_FORWARD: [&str; 5] =
    ["activation_func", "activation_func_clamp_value", "gated_linear_unit", "glu_linear_offset", "glu_output_limits"];

/// The section of a kind. If a `mamba` has no pattern, every layer is a Mamba layer.
pub fn section_of_kind(kind: &str, section: &TransformerConfig) -> TransformerConfig {
    let mut section = section.clone();
    if kind == MAMBA_KIND && section.hybrid_override_pattern.is_none() {
        section.hybrid_override_pattern = Some(letters(&vec![HybridBlock::Mamba; section.num_layers]));
    }
    section
}

/// Configuration of a decoder-only model.
#[derive(Clone)]
pub struct GptModelConfig {
    kind: &'static str,
    transformer: TransformerConfig,
    pre_wrap_hooks: Vec<ModelHook>,
    post_wrap_hooks: Vec<ModelHook>,
}

impl GptModelConfig {
    /// A model of this shape, of kind `gpt`.
    pub fn new(transformer: TransformerConfig) -> Self {
        Self { kind: KIND, transformer, pre_wrap_hooks: Vec::new(), post_wrap_hooks: Vec::new() }
    }

    /// A model of this shape, of kind `mamba`.
    pub fn mamba(transformer: &TransformerConfig) -> Self {
        Self { kind: MAMBA_KIND, ..Self::new(section_of_kind(MAMBA_KIND, transformer)) }
    }

    /// Refuses settings that the kind or all of its layers do not have.
    fn check_kind(&self) -> Result<(), ModelBuildError> {
        let section = &self.transformer;
        let pattern = section.hybrid_override_pattern.as_deref();
        if self.kind == KIND && pattern.is_some() {
            let message = "has no effect with model.kind = \"gpt\"; model.kind = \"mamba\" has it".to_owned();
            return Err(invalid("model.hybrid_override_pattern", message));
        }
        let neutral = TransformerConfig::default();
        let names = TransformerConfig::names();
        let of = |prefix: &str| names.iter().copied().filter(|name| name.starts_with(prefix)).collect();
        for (letters, names, is_of_pattern) in [
            ("MSPZ", of("mamba_"), true),
            ("C", of("short_conv_"), true),
            ("Z", of("shared_"), true),
            ("*P", OF_PATTERN[..2].to_vec(), true),
            ("-", OF_PATTERN[2..].to_vec(), true),
            ("*PZ", OF_ATTENTION.to_vec(), false),
            ("-EZ", OF_FEED_FORWARD.to_vec(), false),
        ] {
            let has = |pattern: &str| pattern.contains(|letter| letters.contains(letter));
            let is_there = pattern.map_or(!is_of_pattern, has);
            let set = names.into_iter().find(|name| !is_there && section.value(name) != neutral.value(name));
            if let Some(name) = set {
                let message =
                    format!("has no effect: the model has no layer of model.hybrid_override_pattern that is {letters}");
                return Err(invalid(&format!("model.{name}"), message));
            }
        }
        let blocks = pattern.into_iter().flat_map(str::chars).filter_map(HybridBlock::from_letter);
        let recurrent = blocks.filter_map(HybridBlock::recurrence).next();
        if let Some(block) = recurrent.filter(|_| section.context_parallel_size > 1) {
            let message = format!(
                "expected 1, found {}: the state of {block} goes through the whole sequence",
                section.context_parallel_size
            );
            return Err(invalid("model.context_parallel_size", message));
        }
        Ok(())
    }

    /// Adds a hook that runs on the chunks before they are prepared for training, after those added
    /// before.
    #[must_use]
    pub fn with_pre_wrap_hook(mut self, hook: ModelHook) -> Self {
        self.pre_wrap_hooks.push(hook);
        self
    }

    /// Adds a hook that runs on the complete chunks, after those added before.
    #[must_use]
    pub fn with_post_wrap_hook(mut self, hook: ModelHook) -> Self {
        self.post_wrap_hooks.push(hook);
        self
    }
}

impl fmt::Debug for GptModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GptModelConfig")
            .field("transformer", &self.transformer)
            .field("pre_wrap_hooks", &self.pre_wrap_hooks.len())
            .field("post_wrap_hooks", &self.post_wrap_hooks.len())
            .finish()
    }
}

impl ModelConfig for GptModelConfig {
    fn kind(&self) -> &str {
        self.kind
    }

    fn transformer(&self) -> &TransformerConfig {
        &self.transformer
    }

    fn other_names(&self, parameter: &str) -> Vec<String> {
        let rules = FAMILIES.iter().flat_map(|family| family.weights.iter().copied().flatten());
        rules.filter_map(|rule| rule.names_of(parameter)).flatten().collect()
    }

    fn check(&self) -> Result<(), ModelBuildError> {
        self.check_kind()?;
        let section = &self.transformer;
        let tensor = section.tensor_model_parallel_size;
        let first = |size: usize| Member { rank: 0, size };
        let place = RankPlace {
            tensor: first(tensor),
            expert: first(section.expert_model_parallel_size),
            expert_tensor: first(section.expert_tensor_parallel_size.unwrap_or(tensor)),
            sequence_parallel: section.sequence_parallel,
        };
        // The tokenizer's size, where it is needed, is known later.
        let padded_vocab_size = match section.vocab_size {
            Some(size) if !section.should_pad_vocab => size,
            Some(size) => size.next_multiple_of(section.make_vocab_size_divisible_by),
            None => section.make_vocab_size_divisible_by.saturating_mul(tensor),
        };
        let config = GptModelBuilder { transformer: section.clone() }.decoder(padded_vocab_size, &place)?;
        check_moved_norms(section, &config)
    }

    fn builder(&self) -> Box<dyn ModelBuilder> {
        Box::new(GptModelBuilder { transformer: self.transformer.clone() })
    }

    fn pre_wrap_hooks(&self) -> Vec<ModelHook> {
        self.pre_wrap_hooks.clone()
    }

    fn post_wrap_hooks(&self) -> Vec<ModelHook> {
        self.post_wrap_hooks.clone()
    }
}

/// Builds decoders from a `[model]` section.
#[derive(Clone, Debug)]
pub struct GptModelBuilder {
    transformer: TransformerConfig,
}

impl GptModelBuilder {
    /// The decoder with this vocabulary, if the rank at `place` can have its part of it.
    fn decoder(&self, padded_vocab_size: usize, place: &RankPlace) -> Result<DecoderConfig, ModelBuildError> {
        let config = DecoderConfig::from_transformer(&self.transformer, padded_vocab_size)?;
        let ranks = place.tensor.size;
        let is_exact = self.transformer.vocab_size.is_some() && !self.transformer.should_pad_vocab;
        if is_exact && !config.padded_vocab_size.is_multiple_of(ranks) {
            let found = config.padded_vocab_size;
            let message = format!(
                "expected a multiple of model.tensor_model_parallel_size = {ranks}, found {found}; model.should_pad_vocab = true pads it"
            );
            return Err(invalid("model.vocab_size", message));
        }
        config.validate()?;
        check_divides(&config, place)?;
        Ok(config)
    }
}

impl ModelBuilder for GptModelBuilder {
    fn build_model(&self, context: &BuildContext, stage: &Stage) -> Result<Box<dyn ModelChunk>, ModelBuildError> {
        build_decoder(&self.decoder(context.padded_vocab_size, &context.parallel.place())?, context, stage)
    }

    fn outline(
        &self,
        work: &Workload,
        stage: &Stage,
        adapter: Option<Arc<dyn Adapter>>,
    ) -> Result<Outline, ModelBuildError> {
        let config = self.decoder(work.padded_vocab_size, &work.place)?;
        check_last_layer(&config, adapter.as_deref())?;
        check_shared(&config, stage)?;
        Ok(outline(&config, work, stage, adapter))
    }
}

/// Refuses to move the inputs of norms that the layers do not have.
fn check_moved_norms(section: &TransformerConfig, config: &DecoderConfig) -> Result<(), ModelBuildError> {
    // A layer of a hybrid always has its norm.
    if config.hybrid.is_some() {
        return Ok(());
    }
    let norms = config.residual.layer_norms();
    for (module, is_there) in [(Module::AttnNorm, norms.before_attention), (Module::MlpNorm, norms.before_mlp)] {
        if !is_there && section.offload_modules.iter().any(|name| name == module.name()) {
            let message = format!("\"{}\": the model's layers have no norm there", module.name());
            return Err(invalid("model.offload_modules", message));
        }
    }
    Ok(())
}

/// Refuses models that use the output projection besides the loss, if it is replaced.
fn check_last_layer(config: &DecoderConfig, adapter: Option<&dyn Adapter>) -> Result<(), ModelBuildError> {
    if adapter.and_then(Adapter::last_layer).is_none() {
        return Ok(());
    }
    let refused =
        |key: &str, what: &str| Err(invalid(key, format!("{what}, and the program has put another layer there")));
    match (config.mtp_num_layers, &config.encoder) {
        (1.., _) => refused("model.mtp_num_layers", "multi-token prediction needs the output projection"),
        (0, Some(_)) => refused("model.kind", "the decoder behind an encoder needs its output projection"),
        (0, None) => Ok(()),
    }
}

/// Refuses stages that divide the layers of a shared block.
fn check_shared(config: &DecoderConfig, stage: &Stage) -> Result<(), ModelBuildError> {
    let Some(hybrid) = &config.hybrid else { return Ok(()) };
    let layers = &stage.only_stack().layers;
    let holder = |layer: usize| Some((layer, hybrid.shared_use(layer)?.holder));
    match layers.clone().filter_map(holder).find(|(_, holder)| !layers.contains(holder)) {
        Some((layer, holder)) => {
            let message = format!(
                "layers {holder} and {layer} share a block, and would be on different stages: expected one stage for them"
            );
            Err(invalid("model.pipeline_model_parallel_size", message))
        }
        None => Ok(()),
    }
}

/// Builds one stage of a resolved decoder.
///
/// # Errors
/// If the configuration's fields do not fit each other or the ranks, the stage's layers are not the
/// model's, or the context's padded vocabulary is not the configuration's.
pub fn build_decoder(
    config: &DecoderConfig,
    context: &BuildContext,
    stage: &Stage,
) -> Result<Box<dyn ModelChunk>, ModelBuildError> {
    config.validate()?;
    check_divides(config, &context.parallel.place())?;
    check_last_layer(config, context.adapter.as_deref())?;
    check_shared(config, stage)?;
    let stacks = config.stacks();
    let is_too_long = |(part, count): (&StackPart, &usize)| part.layers.end > *count;
    if stage.stacks.len() != stacks.len() || stage.stacks.iter().zip(&stacks).any(is_too_long) {
        let layers: Vec<_> = stage.stacks.iter().map(|part| part.layers.clone()).collect();
        let message = format!("expected layers of stacks of {stacks:?}, found stage {layers:?}");
        return Err(invalid("model.num_layers", message));
    }
    if context.padded_vocab_size != config.padded_vocab_size {
        let message = format!(
            "expected the configuration's padded vocabulary size {}, found {}",
            config.padded_vocab_size, context.padded_vocab_size
        );
        return Err(invalid("model.vocab_size", message));
    }
    let scope = ChunkScope::new(context);
    if config.encoder.is_some() {
        let model = EncoderDecoder::new(config, context, stage, &scope);
        return Ok(Box::new(ModuleChunk::new(model, scope.finish())?));
    }
    let decoder = Decoder::new(config, context, stage, &scope);
    Ok(Box::new(ModuleChunk::new(decoder, scope.finish())?))
}

/// Adds the kinds of this crate to `registry`.
pub fn register_builtin(registry: &mut ModelRegistry) {
    crate::models::encoder_decoder::register(registry);
    registry.register(KIND, Kind::default(), |section| {
        Ok(Box::new(GptModelConfig::new(TransformerConfig::clone(section))))
    });
    registry.register(MAMBA_KIND, Kind::default(), |section| Ok(Box::new(GptModelConfig::mamba(section))));
}
