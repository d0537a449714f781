//! Floating-point operations of one training step, Megatron's count (forward and backward, no recompute).
//! A model with another cost brings its own function; nothing here knows a model type.
//!
//! Legend: `h` hidden, `q`/`k`/`v` projected widths, `f` projections per gated or plain MLP input.

use serde::{Deserialize, Serialize};

/// Whether an MLP has a gate beside its up-projection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateKind {
    /// Up and down projection.
    #[default]
    Plain,
    /// Gate, up and down projection: SwiGLU, GEGLU and any other gated unit.
    Gated,
}

impl GateKind {
    /// Matrices per MLP.
    fn factor(self) -> f64 {
        match self {
            Self::Plain => 2.0,
            Self::Gated => 3.0,
        }
    }
}

/// Mixture-of-experts part of a [`FlopsShape`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoeFlops {
    /// For each of `num_layers` layers, whether its MLP is routed.
    pub moe_layers: Vec<bool>,
    /// Hidden width of one expert.
    pub moe_ffn_hidden_size: u64,
    /// Experts each token visits.
    pub moe_router_topk: u64,
    /// Total hidden width of shared experts; 0 without.
    pub moe_shared_expert_intermediate_size: u64,
    /// Width tokens are projected to around the experts, if any.
    pub moe_latent_size: Option<u64>,
}

/// How far a sliding window reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowSpan {
    /// This many positions in all.
    Positions(u64),
    /// This many positions on each side and the token itself; `None` is without limit.
    Sides(Option<u64>, Option<u64>),
}

/// Which layers attend through the window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowedLayers {
    /// All of them.
    All,
    /// All but each `n`-th.
    FullEvery(u64),
    /// Those marked true; layers beyond the list do as its last entry.
    Pattern(Vec<bool>),
}

/// Sliding-window attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowFlops {
    /// Reach of the window.
    pub span: WindowSpan,
    /// Layers that use it.
    pub layers: WindowedLayers,
}

/// Sizes of multi-latent attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MlaFlops {
    /// Rank of the compressed queries; `None` projects them directly.
    pub q_lora_rank: Option<u64>,
    /// Rank of the compressed keys and values.
    pub kv_lora_rank: u64,
    /// Width of a query or key head without its rotary part.
    pub qk_head_dim: u64,
    /// Width of the rotary part.
    pub qk_pos_emb_head_dim: u64,
    /// Width of a value head.
    pub v_head_dim: u64,
}

/// The attention of a [`FlopsShape`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AttentionFlops {
    /// Multi-head, multi-query or grouped-query attention.
    Grouped {
        /// Key/value heads.
        num_query_groups: u64,
        /// Width of a head.
        kv_channels: u64,
        /// Whether the output is gated by another projection.
        output_gate: GateKind,
        /// Sliding window, if any.
        window: Option<WindowFlops>,
    },
    /// Multi-latent attention.
    MultiLatent(MlaFlops),
}

/// Everything the FLOP count depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlopsShape {
    /// Transformer layers, multi-token-prediction layers not counted.
    pub num_layers: u64,
    /// Multi-token-prediction layers; they take the kind of the last layer.
    pub mtp_num_layers: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Hidden width of a dense MLP.
    pub ffn_hidden_size: u64,
    /// Whether MLPs are gated.
    pub mlp: GateKind,
    /// Query heads.
    pub num_attention_heads: u64,
    /// Kind and sizes of attention.
    pub attention: AttentionFlops,
    /// Mixture of experts, if any.
    pub moe: Option<MoeFlops>,
    /// Vocabulary, padded (see [`padded_vocab_size`](crate::config::FinalTransformer::padded_vocab_size)).
    pub padded_vocab_size: u64,
}

/// A shape that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlopsError {
    /// A mixture-of-experts pattern of the wrong length.
    #[error("FLOP count: `moe_layers` has {found} entries, expected num_layers ({expected})")]
    MoePattern {
        /// Entries given.
        found: usize,
        /// Layers of the model.
        expected: u64,
    },
    /// A window pattern that says nothing.
    #[error("FLOP count: the window's layers are {found}, expected {expected}")]
    WindowPattern {
        /// What was given.
        found: &'static str,
        /// What would do.
        expected: &'static str,
    },
}

/// Lengths of the sequences in a batch, as the two sums the count needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequenceLengths {
    /// Tokens: the sum of the lengths.
    pub sum: f64,
    /// The sum of the squared lengths, which attention costs.
    pub sum_of_squares: f64,
}

impl SequenceLengths {
    /// `batch_size` sequences of `seq_length` tokens.
    pub fn uniform(batch_size: u64, seq_length: u64) -> Self {
        let (b, s) = (batch_size as f64, seq_length as f64);
        Self { sum: b * s, sum_of_squares: b * s * s }
    }

    /// Packed or ragged sequences.
    pub fn ragged(lengths: impl IntoIterator<Item = u64>) -> Self {
        lengths.into_iter().fold(Self { sum: 0.0, sum_of_squares: 0.0 }, |total, length| {
            let s = length as f64;
            Self { sum: total.sum + s, sum_of_squares: total.sum_of_squares + s * s }
        })
    }
}

/// Model TFLOP/s per device: `flops` done by `num_devices` in `seconds`. 0 for no time at all.
pub fn tflops_per_device(flops: f64, seconds: f64, num_devices: u64) -> f64 {
    if seconds > 0.0 { flops / seconds / num_devices.max(1) as f64 / 1e12 } else { 0.0 }
}

impl FlopsShape {
    /// Floating-point operations of one step on `batch_size` full sequences.
    ///
    /// # Errors
    /// Layer patterns that do not fit the number of layers.
    pub fn flops_per_batch(&self, batch_size: u64, seq_length: u64) -> Result<f64, FlopsError> {
        self.flops_for(SequenceLengths::uniform(batch_size, seq_length))
    }

    /// Floating-point operations of one step on sequences of the given lengths.
    ///
    /// # Errors
    /// Layer patterns that do not fit the number of layers.
    pub fn flops_for(&self, lengths: SequenceLengths) -> Result<f64, FlopsError> {
        let h = self.hidden_size as f64;
        let mtp = self.mtp_num_layers as f64;
        let mtp_mixing = 6.0 * mtp * (3.0 * h + 2.0 * h * h);
        let head = 6.0 * h * self.padded_vocab_size as f64 * (mtp + 1.0);
        Ok(lengths.sum * (6.0 * h * self.mlp_width()? + mtp_mixing + head) + self.attention_flops(lengths)?)
    }

    fn all_layers(&self) -> u64 {
        self.num_layers + self.mtp_num_layers
    }

    /// Matrix widths that meet the residual stream in MLPs, summed over all layers.
    fn mlp_width(&self) -> Result<f64, FlopsError> {
        let factor = self.mlp.factor();
        let dense_width = self.ffn_hidden_size as f64 * factor;
        let Some(moe) = &self.moe else {
            return Ok(dense_width * self.all_layers() as f64);
        };
        if moe.moe_layers.len() as u64 != self.num_layers {
            return Err(FlopsError::MoePattern { found: moe.moe_layers.len(), expected: self.num_layers });
        }
        let mtp_is_moe = moe.moe_layers.last().copied().unwrap_or(false);
        let num_moe = moe.moe_layers.iter().filter(|is_moe| **is_moe).count() as u64
            + if mtp_is_moe { self.mtp_num_layers } else { 0 };
        let num_dense = self.all_layers() - num_moe;

        let routed = (moe.moe_ffn_hidden_size * moe.moe_router_topk) as f64 * factor;
        let routed = match moe.moe_latent_size {
            Some(latent) => routed * latent as f64 / self.hidden_size as f64 + 2.0 * latent as f64,
            None => routed,
        };
        let shared = moe.moe_shared_expert_intermediate_size as f64 * factor;
        Ok(dense_width * num_dense as f64 + (routed + shared) * num_moe as f64)
    }

    fn attention_flops(&self, lengths: SequenceLengths) -> Result<f64, FlopsError> {
        let h = self.hidden_size as f64;
        let heads = self.num_attention_heads as f64;
        match &self.attention {
            AttentionFlops::Grouped { num_query_groups, kv_channels, output_gate, window } => {
                let q = *kv_channels as f64 * heads;
                let kv = (kv_channels * num_query_groups) as f64;
                let gate = if *output_gate == GateKind::Gated { q } else { 0.0 };
                let projections = h * (q + 2.0 * kv + gate) + q * h;
                let num_layers = self.all_layers();
                let (num_windowed, context) = match window {
                    Some(window) => (window.num_windowed(num_layers)?, window.span.context_sum(lengths)),
                    None => (0, 0.0),
                };
                let contexts =
                    num_windowed as f64 * context + (num_layers - num_windowed) as f64 * lengths.sum_of_squares;
                Ok(6.0 * (num_layers as f64 * projections * lengths.sum + q * contexts))
            }
            AttentionFlops::MultiLatent(mla) => {
                let qk = (mla.qk_head_dim + mla.qk_pos_emb_head_dim) as f64;
                let (rope, v) = (mla.qk_pos_emb_head_dim as f64, mla.v_head_dim as f64);
                let query = match mla.q_lora_rank {
                    Some(rank) => rank as f64 * (h + heads * qk + 1.0),
                    None => h * heads * qk,
                };
                let key_value = mla.kv_lora_rank as f64 * (h + heads * (mla.qk_head_dim as f64 + v) + 1.0);
                let projections = query + key_value + h * rope + heads * v * h;
                let products = heads * (qk + v) / 2.0;
                let per_layer = projections * lengths.sum + products * lengths.sum_of_squares;
                Ok(6.0 * self.all_layers() as f64 * per_layer)
            }
        }
    }
}

impl WindowSpan {
    /// Sum over tokens of the positions each can see.
    fn context_sum(self, lengths: SequenceLengths) -> f64 {
        let positions = match self {
            Self::Positions(positions) => Some(positions),
            Self::Sides(left, right) => left.zip(right).map(|(left, right)| left + right + 1),
        };
        match positions {
            Some(positions) => (positions as f64 * lengths.sum).min(lengths.sum_of_squares),
            None => lengths.sum_of_squares,
        }
    }
}

impl WindowFlops {
    fn num_windowed(&self, num_layers: u64) -> Result<u64, FlopsError> {
        match &self.layers {
            WindowedLayers::All => Ok(num_layers),
            WindowedLayers::FullEvery(0) => {
                Err(FlopsError::WindowPattern { found: "full every 0 layers", expected: "1 or more" })
            }
            WindowedLayers::FullEvery(every) => Ok(num_layers - num_layers / every),
            WindowedLayers::Pattern(pattern) => {
                let last = *pattern
                    .last()
                    .ok_or(FlopsError::WindowPattern { found: "an empty list", expected: "an entry for each layer" })?;
                let layer_is_windowed = |layer: u64| pattern.get(layer as usize).copied().unwrap_or(last);
                Ok((0..num_layers).filter(|layer| layer_is_windowed(*layer)).count() as u64)
            }
        }
    }
}
