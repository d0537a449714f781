//! Consistency of the fields of a decoder's configuration. Each error has the key of the `[model]`
//! section.

use bridge_core::config::{Activation, BlockOrder, NormPlacement, Normalization, OutputGateForm, QkNormScope};
use bridge_core::model::ModelBuildError;

use super::choices::{LayerPattern, RopeScaling};
use super::config::{DecoderConfig, PerLayerConfig, PositionEmbedding, ResidualConfig, RopeConfig};
use super::hybrid::HybridBlock;
use super::limits::{LARGEST_SIZE, check_above_zero, check_sizes, invalid, refuse};

/// Far above any model.
const MOST_LAYERS: usize = 1 << 16;
/// Larger than any model for long: bytes of gradients and states of this number still fit 64 bits.
const MOST_PARAMETERS: f64 = 1e16;

impl DecoderConfig {
    /// Checks that the fields fit each other.
    ///
    /// # Errors
    /// With the first key that does not, its value and the expected one.
    pub fn validate(&self) -> Result<(), ModelBuildError> {
        self.validate_sizes()?;
        if let PositionEmbedding::Rope(rope) = &self.position_embedding {
            rope.validate(self.rotary_head())?;
            rope.of_windowed().validate(self.of_windowed().rotary_head())?;
        }
        self.validate_windowed()?;
        super::encoder::validate(self)?;
        for (key, rate) in [
            ("model.hidden_dropout", self.hidden_dropout),
            ("model.embedding_dropout", self.embedding_dropout),
            ("model.attention_dropout", self.attention_dropout),
        ] {
            refuse(!(0.0..1.0).contains(&rate), key, format!("expected a number in [0, 1), found {rate}"))?;
        }
        check_above_zero(&[
            ("model.layernorm_epsilon", self.norm.epsilon),
            ("model.init_method_std", self.init_method_std),
            ("model.embedding_multiplier", self.embedding_multiplier),
            ("model.logit_multiplier", self.logit_multiplier),
            ("model.residual_multiplier", self.residual.branch_multiplier),
        ])?;
        self.validate_norms()?;
        self.validate_heads()?;
        self.validate_unit()?;
        self.validate_residual()?;
        check_above_zero(&[
            ("model.attn_logit_softcapping", self.attention_softcap.unwrap_or(1.0)),
            ("model.final_logit_softcapping", self.logit_softcap.unwrap_or(1.0)),
        ])?;
        if let Some(moe) = &self.moe {
            moe.validate()?;
            let ResidualConfig { norms, blocks, adds_to_norm, .. } = self.residual;
            let has_norm = matches!(norms, NormPlacement::Before | NormPlacement::Sandwich) && !adds_to_norm;
            let fits = has_norm && blocks == BlockOrder::Sequential && self.hybrid.is_none() && !moe.shortcut;
            let message = "needs norms before blocks that are one after the other";
            refuse(moe.dense_beside && !fits, "model.moe_dense_beside", message)?;
        }
        self.validate_shortcut()?;
        self.validate_shared_keys()?;
        self.validate_per_layer()?;
        self.validate_hybrid()?;
        self.validate_linear_attention()?;
        self.validate_prediction()?;
        if let Some(latent) = &self.latent {
            self.validate_latent(latent)?;
        }
        if let Some(compressed) = &self.compressed {
            self.validate_compressed(compressed)?;
        }
        if let Some(indexer) = &self.indexer {
            self.validate_indexer(indexer)?;
        }
        let moe_layers = self.moe.as_ref().map(|moe| ("model.moe_layer_freq", &moe.layers));
        let linear_layers =
            self.linear_attention.as_ref().map(|linear| ("model.linear_attention_freq", &linear.layers));
        let patterns =
            [("model.no_rope_freq", &self.no_rope_layers), ("model.window_attn_skip_freq", &self.window_layers)];
        for (key, pattern) in patterns.into_iter().chain(moe_layers).chain(linear_layers) {
            if let LayerPattern::Listed(layers) = pattern
                && layers.len() != self.num_layers
            {
                let message = format!("expected one entry a layer ({}), found {}", self.num_layers, layers.len());
                return Err(invalid(key, message));
            }
        }
        Ok(())
    }

    /// Checks that a layer with experts beside its dense block is followed by one that adds the
    /// experts' output.
    fn validate_shortcut(&self) -> Result<(), ModelBuildError> {
        if !self.moe.as_ref().is_some_and(|moe| moe.shortcut) {
            return Ok(());
        }
        let key = "model.moe_shortcut";
        let is_plain = self.residual.norms == NormPlacement::Before
            && self.residual.blocks == BlockOrder::Sequential
            && self.hybrid.is_none()
            && self.streams.is_none();
        let message =
            "expected layers of attention, then a dense block, each behind a norm, without multi-token prediction";
        refuse(!is_plain || self.residual.adds_to_norm || self.mtp_num_layers > 0, key, message)?;
        let has_experts = |layer| self.moe_layer(layer).is_some();
        match (0..self.num_layers)
            .find(|layer| has_experts(*layer) && (has_experts(layer + 1) || layer + 1 == self.num_layers))
        {
            Some(layer) => Err(invalid(key, format!("expected a layer without experts behind layer {layer}"))),
            None => Ok(()),
        }
    }

    /// Checks that the other fields fit multi-token prediction layers.
    fn validate_prediction(&self) -> Result<(), ModelBuildError> {
        let (key, layers) = ("model.mtp_num_layers", self.mtp_num_layers);
        if layers == 0 {
            return Ok(());
        }
        refuse(layers > MOST_LAYERS, key, format!("expected at most {MOST_LAYERS}, found {layers}"))?;
        let reason = if self.hybrid.is_some() {
            "a hybrid, whose layers have one block each"
        } else if self.embedding_norm {
            "a model with embedding_layernorm = true, which words further on do not have"
        } else if self.encoder.is_some() {
            "a model with an encoder"
        } else if self.position_embedding == PositionEmbedding::LearnedAbsolute {
            "a model with learned positions, which words further on do not have"
        } else {
            return Ok(());
        };
        Err(invalid(key, format!("expected 0 in {reason}, found {layers}")))
    }

    /// Checks layers whose keys are values, or are another layer's.
    fn validate_shared_keys(&self) -> Result<(), ModelBuildError> {
        let (key, shared) = ("model.num_kv_shared_layers", self.num_kv_shared_layers);
        let other = |layer| self.keys_from(layer).is_none();
        if shared >= self.num_layers.max(1) || (self.num_layers - shared..self.num_layers).any(other) {
            let message = format!(
                "expected fewer layers than {}, before which a layer with a window is where one of them has a window, \
                 and one without where one has none, found {shared}",
                self.num_layers
            );
            return Err(invalid(key, message));
        }
        let set =
            [(key, shared > 0), ("model.attention_k_eq_v", self.keys_as_values), ("model.v_l2_norm", self.v_l2_norm)];
        let Some((key, _)) = set.into_iter().find(|(_, is_set)| *is_set) else {
            return Ok(());
        };
        let reason = if self.latent.is_some() {
            "multi_latent_attention, which has no projection of keys and values"
        } else if self.hybrid.is_some() || self.linear_attention.is_some() {
            "layers of other kinds than softmax attention"
        } else if key != "model.v_l2_norm" && (self.has_fused_gates() || self.value_channels.is_some()) {
            "gates of the query-key-value projection, or values of another size than keys"
        } else if key != "model.v_l2_norm" && self.qk_layernorm_scope == QkNormScope::Projection {
            "qk_layernorm_scope = \"projection\", one norm over queries and one over keys"
        } else if shared > 0 && self.mtp_num_layers > 0 {
            "mtp_num_layers, whose layers are like the last one"
        } else {
            return Ok(());
        };
        Err(invalid(key, format!("cannot be combined with {reason}")))
    }

    /// Checks per-layer embeddings and what else is at the end of a layer.
    fn validate_per_layer(&self) -> Result<(), ModelBuildError> {
        if let Some(PerLayerConfig { size, vocab_size }) = self.per_layer {
            let key = "model.hidden_size_per_layer_input";
            let sizes = [(key, size.saturating_mul(self.num_layers)), ("model.vocab_size_per_layer_input", vocab_size)];
            if let Some((key, size)) = sizes.into_iter().find(|(_, size)| !(1..=LARGEST_SIZE).contains(size)) {
                return Err(invalid(key, format!("expected from 1 to {LARGEST_SIZE} over all layers, found {size}")));
            }
            let reason = if self.mtp_num_layers > 0 {
                "mtp_num_layers, whose layers have no such vectors"
            } else if self.activation == Activation::Xielu {
                "activation_func = \"xielu\", which has parameters"
            } else if self.hybrid.is_some() {
                "a hybrid, whose layers have one block each"
            } else if self.streams.is_some() {
                "enable_mhc_connections, whose streams it does not name"
            } else {
                return Ok(());
            };
            return Err(invalid(key, format!("expected null with {reason}")));
        }
        let message = "expected false in a hybrid, whose layers have one block each";
        refuse(self.layer_scalar && self.hybrid.is_some(), "model.layer_scalar", message)
    }

    /// A clamp and an offset belong to the gated unit of `quick_gelu`, as upstream. xIELU is not
    /// gated, and not the unit of experts.
    fn validate_unit(&self) -> Result<(), ModelBuildError> {
        if self.activation == Activation::Xielu && (self.gated_linear_unit || self.moe.is_some()) {
            let message = "xielu needs gated_linear_unit = false, and no experts";
            return Err(invalid("model.activation_func", message.into()));
        }
        let clamp = self.activation_clamp;
        let set = [
            (
                "model.activation_func_clamp_value",
                clamp.is_some(),
                clamp.is_none_or(|clamp| clamp > 0.0 && clamp.is_finite()),
            ),
            ("model.glu_linear_offset", self.linear_offset != 0.0, self.linear_offset.is_finite()),
        ];
        let of_experts = self.moe.as_ref().and_then(|moe| moe.output_limits.as_ref());
        for (key, limits) in
            [("model.glu_output_limits", self.output_limits.as_ref()), ("model.moe_glu_output_limits", of_experts)]
        {
            let Some(limits) = limits else { continue };
            let is_limit = |limit: &f64| *limit >= 0.0 && limit.is_finite();
            let message = format!("expected a number of at least 0 for each of {} layers", self.num_layers);
            refuse(limits.len() != self.num_layers || !limits.iter().all(is_limit), key, message)?;
            let has_unit = self.gated_linear_unit && self.activation == Activation::Silu;
            let is_beside = self.moe.as_ref().is_some_and(|moe| moe.dense_beside);
            let message = "needs gated_linear_unit = true with activation_func = \"silu\", and neither a hybrid, an encoder nor moe_dense_beside";
            refuse(!has_unit || is_beside || self.hybrid.is_some() || self.encoder.is_some(), key, message)?;
        }
        let has_silu = self.gated_linear_unit && self.activation == Activation::Silu;
        if let Some(clamp) = self.moe.as_ref().and_then(|moe| moe.activation_clamp)
            && !(clamp > 0.0 && clamp.is_finite() && has_silu && of_experts.is_none())
        {
            let message = format!(
                "expected a number above 0, and gated_linear_unit = true with activation_func = \"silu\" without \
                 moe_glu_output_limits, found {clamp}"
            );
            return Err(invalid("model.moe_activation_func_clamp_value", message));
        }
        let has_quick_gelu = self.gated_linear_unit && self.activation == Activation::QuickGelu;
        let fits = |key| has_quick_gelu || (has_silu && key == set[0].0);
        match set.into_iter().find(|(key, is_set, is_number)| !is_number || (*is_set && !fits(*key))) {
            None => Ok(()),
            Some((key, _, false)) => Err(invalid(key, "expected a finite number, the clamp above 0".into())),
            Some((key, _, true)) => {
                let message = "needs gated_linear_unit = true with activation_func = \"quick_gelu\"";
                Err(invalid(key, message.into()))
            }
        }
    }

    /// A block with streams has one input and one output, and the head reads all streams.
    fn validate_streams(&self) -> Result<(), ModelBuildError> {
        let ResidualConfig { norms, blocks, stream_multiplier, adds_to_norm, .. } = self.residual;
        let key = if self.altup.is_some() { "model.altup_num_inputs" } else { "model.enable_mhc_connections" };
        let size = self.stream_size();
        let message = format!("expected from 1 to {LARGEST_SIZE} elements in all streams, found {size}");
        refuse(!(1..=LARGEST_SIZE).contains(&size), key, message)?;
        if let Some(altup) = self.altup {
            refuse(altup.count < 2, key, format!("expected at least 2, found {}", altup.count))?;
            let message = format!("expected less than altup_num_inputs ({}), found {}", altup.count, altup.active);
            refuse(altup.active >= altup.count, "model.altup_active_idx", message)?;
            check_sizes(&[("model.laurel_rank", altup.laurel_rank)])?;
        }
        let reason = if blocks != BlockOrder::Sequential {
            "block_order other than sequential"
        } else if norms == NormPlacement::Sum {
            "norm_placement = \"sum\", a norm of one stream"
        } else if adds_to_norm || stream_multiplier != 1.0 {
            "apply_residual_connection_post_layernorm or a factor on the stream"
        } else if self.hybrid.is_some() {
            "a hybrid, whose layers have one block each"
        } else if self.mtp_num_layers > 0 {
            "mtp_num_layers above 0"
        } else if self.altup.is_some() == self.streams.is_some() {
            "enable_mhc_connections and altup_num_inputs at once"
        } else if self.moe.as_ref().is_some_and(|moe| moe.shortcut) {
            "experts whose output a later layer adds"
        } else if self.altup.is_some() && self.per_layer.is_none() {
            "hidden_size_per_layer_input = null: other streams read the vectors of layers"
        } else if self.altup.is_some() && norms != NormPlacement::Sandwich {
            "norm_placement other than sandwich"
        } else {
            return Ok(());
        };
        Err(invalid(key, format!("cannot be combined with {reason}")))
    }

    fn validate_residual(&self) -> Result<(), ModelBuildError> {
        let residual = &self.residual;
        if self.streams.is_some() || self.altup.is_some() {
            self.validate_streams()?;
        }
        if let Some(shares) = &self.activation_sparsity {
            let key = "model.activation_sparsity_pattern";
            let are_shares = shares.iter().all(|share| (0.0..1.0).contains(share));
            if !are_shares || shares.len() != self.num_layers {
                let message = format!("expected a number in [0, 1) for each of {} layers", self.num_layers);
                return Err(invalid(key, message));
            }
            if !self.gated_linear_unit
                || self.activation == Activation::Xielu
                || self.moe.is_some()
                || self.hybrid.is_some()
            {
                let message = "needs gated_linear_unit = true, without experts and outside of a hybrid";
                return Err(invalid(key, message.into()));
            }
        }
        let reads_norm = matches!(residual.norms, NormPlacement::Before | NormPlacement::Sandwich);
        if residual.adds_to_norm && (!reads_norm || residual.blocks != BlockOrder::Sequential) {
            let message = "needs block_order = \"sequential\" and norm_placement = \"before\" or \"sandwich\": one norm that the block reads";
            return Err(invalid("model.apply_residual_connection_post_layernorm", message.into()));
        }
        let has_state_space = self.has_state_space() || self.has_block(HybridBlock::ShortConv);
        match self.width_multiplier {
            Some(times) if !(times > 0.0 && times.is_finite()) => Err(invalid(
                "model.mup_base_hidden_size",
                format!("expected a width of at least 1, found a multiple of {times}"),
            )),
            Some(_) if has_state_space => {
                let message = "expected false with layers of Mamba or short convolutions, for whose parameters it does not say how they go with the width";
                Err(invalid("model.use_mup", message.into()))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Checks heads of other sizes: those of values, and those of windowed layers.
    fn validate_windowed(&self) -> Result<(), ModelBuildError> {
        let windowed = self.of_windowed();
        check_sizes(&[
            ("model.value_channels", self.value_size()),
            ("model.window_num_attention_heads", windowed.num_attention_heads),
            ("model.window_num_query_groups", windowed.num_query_groups),
            ("model.window_kv_channels", windowed.kv_channels),
            ("model.window_value_channels", windowed.value_size()),
        ])?;
        let (heads, groups) = (windowed.num_attention_heads, windowed.num_query_groups);
        let message = format!("expected a divisor of the {heads} query heads of windowed layers, found {groups}");
        refuse(heads % groups != 0, "model.window_num_query_groups", message)?;
        let message = "expected a window, of whose layers window_* settings are";
        refuse(!self.windowed.is_neutral() && self.window_size.is_none(), "model.window_size", message)?;
        check_above_zero(&[("model.attention_value_scale", self.value_scale)])?;
        let (key, is_set) = self.other_values();
        refuse(is_set && self.latent.is_some(), key, "cannot be combined with multi_latent_attention")?;
        let sizes = [self, &windowed].map(|config| config.value_size() != config.kv_channels);
        let message = "expected kv_channels with fused gates, which are as large as queries";
        refuse(sizes.contains(&true) && self.has_fused_gates(), "model.value_channels", message)
    }

    /// The setting of heads of values or of windowed layers that is set, if one is.
    pub(super) fn other_values(&self) -> (&'static str, bool) {
        let all = [
            ("model.value_channels", self.value_channels.is_some()),
            ("model.attention_value_scale", self.value_scale != 1.0),
            ("model.window_kv_channels", !self.windowed.is_neutral()),
        ];
        all.into_iter().find(|(_, is_set)| *is_set).unwrap_or(all[0])
    }

    fn validate_heads(&self) -> Result<(), ModelBuildError> {
        if let Some(limit) = self.clip_qkv {
            let key = "model.clip_qkv";
            check_above_zero(&[(key, limit)])?;
            let message = "expected null with fused gates: the projection that is limited makes them too";
            refuse(self.output_gate == Some(OutputGateForm::Fused), key, message)?;
        }
        if let Some(scale) = self.query_scale {
            check_above_zero(&[("model.query_scale_beta", scale.beta)])?;
            refuse(scale.length == 0, "model.query_scale_length", "expected at least 1, found 0")?;
        }
        if self.window_chunks && (self.window_size.is_none() || self.latent.is_some()) {
            let message = "needs window_size, and multi_latent_attention = false: latent attention has no chunks";
            return Err(invalid("model.window_chunks", message.into()));
        }
        if !self.qk_layernorm_after_rope {
            return Ok(());
        }
        let key = "model.qk_layernorm_after_rope";
        if !self.qk_layernorm && !self.qk_l2_norm {
            return Err(invalid(
                key,
                "expected qk_layernorm = true or qk_l2_norm = true, of which it is the place".into(),
            ));
        }
        if !matches!(self.position_embedding, PositionEmbedding::Rope(_)) {
            return Err(invalid(key, "expected false without rotary embedding".into()));
        }
        Ok(())
    }

    fn validate_norms(&self) -> Result<(), ModelBuildError> {
        let message = "expected false with layernorm_affine = false: norms have no weights";
        refuse(self.norm.zero_centered_gamma && !self.norm.affine, "model.layernorm_zero_centered_gamma", message)?;
        let covers_all = self.qk_layernorm_scope == QkNormScope::Projection;
        let key = "model.qk_layernorm_scope";
        if self.qk_layernorm_scope != QkNormScope::Head && !self.qk_layernorm {
            return Err(invalid(key, "expected qk_layernorm = true, which it says more of".into()));
        }
        let message = "expected normalization = \"RMSNorm\": other norms over whole projections are not implemented";
        refuse(covers_all && self.norm.kind != Normalization::RmsNorm, key, message)
    }

    fn validate_sizes(&self) -> Result<(), ModelBuildError> {
        check_sizes(&[
            ("model.num_layers", self.num_layers),
            ("model.hidden_size", self.hidden_size),
            ("model.ffn_hidden_size", self.ffn_hidden_size),
            ("model.num_attention_heads", self.num_attention_heads),
            ("model.num_query_groups", self.num_query_groups),
            ("model.kv_channels", self.kv_channels),
            ("model.vocab_size", self.vocab_size),
            ("model.seq_length", self.max_position_embeddings),
        ])?;
        let message = format!("expected at most {MOST_LAYERS}, found {}", self.num_layers);
        refuse(self.num_layers > MOST_LAYERS, "model.num_layers", message)?;
        let parameters = self.rough_parameters();
        let message =
            format!("these sizes make about {parameters:.0e} parameters, expected at most {MOST_PARAMETERS:.0e}");
        refuse(parameters > MOST_PARAMETERS, "model", message)?;
        let (heads, groups) = (self.num_attention_heads, self.num_query_groups);
        let message = format!("expected a divisor of num_attention_heads ({heads}), found {groups}");
        refuse(heads % groups != 0, "model.num_query_groups", message)?;
        let message = format!("expected at least vocab_size ({}), found {}", self.vocab_size, self.padded_vocab_size);
        refuse(self.padded_vocab_size < self.vocab_size, "padded vocabulary size", message)
    }
}

impl DecoderConfig {
    /// About the number of parameters: enough to know that sizes computed from it are numbers of 64
    /// bits.
    fn rough_parameters(&self) -> f64 {
        let size = |value: usize| value as f64;
        let attention = [self, &self.of_windowed()].map(|config| {
            let heads = size(config.num_attention_heads) + 2.0 * size(config.num_query_groups);
            2.0 * heads * size(config.kv_channels.max(config.value_size()))
        });
        let attention = attention[0].max(attention[1]);
        let experts = self.moe.as_ref().map_or(0.0, |moe| {
            size(moe.num_experts) * size(moe.ffn_hidden_size) + size(moe.shared_expert_intermediate_size.unwrap_or(0))
        });
        let mamba = self
            .hybrid
            .as_ref()
            .map_or(0.0, |hybrid| 3.0 * size(hybrid.mamba.inner_size()) + 2.0 * size(hybrid.mamba.group_size()));
        let linear = self.linear_attention.as_ref().map_or(0.0, |linear| {
            let rows: f64 = linear.projected().into_iter().map(size).sum();
            rows + size(linear.value_size()) + size(linear.decay_size())
        });
        let widths = size(self.stacks().into_iter().fold(0, usize::saturating_add))
            * (attention + mamba + linear + 3.0 * (size(self.ffn_hidden_size) + experts));
        let tables = 2.0 * size(self.padded_vocab_size) + size(self.max_position_embeddings);
        let per_layer = self.per_layer.map_or(0.0, |per_layer| {
            size(self.num_layers) * size(per_layer.size) * (size(per_layer.vocab_size) + 3.0 * size(self.hidden_size))
        });
        size(self.hidden_size) * (widths + tables) + per_layer
    }

    /// Checks the sizes against weights that are there, before anything is made of either.
    ///
    /// # Errors
    /// If there are fewer tensors than the layers and experts need.
    pub fn check_against(&self, num_tensors: usize) -> Result<(), ModelBuildError> {
        // Experts that no layer has need no tensors.
        let with_experts = self.moe.as_ref().filter(|moe| moe.layers != LayerPattern::None);
        let experts = with_experts.map_or(1, |moe| moe.num_experts);
        let sizes = [
            ("model.num_moe_experts", experts),
            ("model.encoder_num_layers", self.encoder.map_or(1, |encoder| encoder.num_layers)),
            ("model.mtp_num_layers", self.mtp_num_layers),
            // If several are equal, the last is named.
            ("model.num_layers", self.num_layers),
        ];
        let most = sizes.into_iter().max_by_key(|(_, size)| *size);
        if let Some((key, found)) = most.filter(|(_, size)| *size > num_tensors) {
            return Err(invalid(key, format!("there are only {num_tensors} tensors, which is too few for {found}")));
        }
        Ok(())
    }
}

impl RopeConfig {
    fn validate(&self, head_size: usize) -> Result<(), ModelBuildError> {
        let rotated = self.rotary_size(head_size);
        if !(self.percent > 0.0 && self.percent <= 1.0) || rotated == 0 || !rotated.is_multiple_of(2) {
            let message = format!(
                "expected a share in (0, 1] that rotates an even number of a head's {head_size} elements, found {} \
                 ({rotated} elements)",
                self.percent
            );
            return Err(invalid("model.rotary_percent", message));
        }
        if !(self.base >= 1.0 && self.base.is_finite()) {
            return Err(invalid("model.rotary_base", format!("expected at least 1, found {}", self.base)));
        }
        if self.windowed_percent.is_some() && self.windowed_base.is_none() {
            let message = "expected rotary_base_local, of whose layers the share is";
            return Err(invalid("model.rotary_percent_local", message.into()));
        }
        if let Some(base) = self.windowed_base.filter(|base| !(*base >= 1.0 && base.is_finite())) {
            return Err(invalid("model.rotary_base_local", format!("expected at least 1, found {base}")));
        }
        self.scaling.as_ref().map_or(Ok(()), |scaling| scaling.validate(rotated / 2))
    }
}

impl RopeScaling {
    /// Checks the factors for `pairs` rotated pairs.
    fn validate(&self, pairs: usize) -> Result<(), ModelBuildError> {
        match self {
            Self::Linear { factor } => check_above_zero(&[("model.seq_len_interpolation_factor", *factor)]),
            Self::Ntk { alpha } => {
                let message = format!("expected more than one rotated pair in a head, found {pairs}");
                refuse(pairs < 2, "model.rope_ntk_alpha", message)?;
                check_above_zero(&[("model.rope_ntk_alpha", *alpha)])
            }
            Self::Proportional { share } => {
                let message = format!("expected a share in (0, 1], found {share}");
                refuse(!(*share > 0.0 && *share <= 1.0), "model.rope_proportional_share", message)
            }
            Self::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, .. } => {
                let message = format!("expected at least 1, found {factor}");
                refuse(!(*factor >= 1.0 && factor.is_finite()), "model.rope_scaling_factor", message)?;
                let message = format!("expected 0 < low_freq_factor <= high_freq_factor, found {low} and {high}");
                refuse(!(*low > 0.0 && high >= low), "model.rope_scaling_high_freq_factor", message)
            }
            Self::Yarn(yarn) => check_above_zero(&[
                ("model.yarn_rotary_scaling_factor", yarn.factor),
                ("model.yarn_beta_fast", yarn.beta_fast),
                ("model.yarn_beta_slow", yarn.beta_slow),
                ("model.yarn_mscale", yarn.mscale.unwrap_or(1.0)),
                ("model.yarn_mscale_all_dim", yarn.mscale_all_dim.unwrap_or(1.0)),
                ("model.yarn_attention_factor", yarn.attention_factor.unwrap_or(1.0)),
            ]),
            Self::LongRope { short_factor, long_factor, attention_factor, .. } => {
                check_above_zero(&[("model.longrope_attention_factor", *attention_factor)])?;
                for (key, factors) in
                    [("model.longrope_short_factor", short_factor), ("model.longrope_long_factor", long_factor)]
                {
                    let message = format!("expected a number for each of {pairs} pairs, found {}", factors.len());
                    refuse(factors.len() != pairs, key, message)?;
                    factors.iter().try_for_each(|factor| check_above_zero(&[(key, *factor)]))?;
                }
                Ok(())
            }
        }
    }
}
