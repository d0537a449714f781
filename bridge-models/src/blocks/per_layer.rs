//! Per-layer embeddings: each token has a small vector for each layer, which gates a branch at the
//! layer's end.
//!
//! With `e` the embedding of a token and `p` the size of a vector, the vectors of all layers are
//! `(norm(projection(e) / sqrt(c)) + sqrt(p) * table[token]) / sqrt(2)`, one norm for all layers.

use bridge_core::model::{GradientScope, ParameterRole, Scope, SegmentCost, TensorPartition, Workload};
use bridge_kernels::{Activation, activation};
use burn::module::Module;
use burn::tensor::{Int, Tensor};

use super::embedding::{Table, rows_of_words};
use super::init::InitialValues;
use super::linear::{Linear, LinearConfig, flops};
use super::norm::{Norm, statistics};
use super::regions::{Regions, leave_exchanges};
use crate::architecture::config::{DecoderConfig, PerLayerConfig};

/// The vectors of each token for all layers.
#[derive(Module, Debug)]
pub(crate) struct PerLayerEmbedding {
    table: Table,
    projection: Linear,
    norm: Norm,
    /// Rows of the whole table.
    vocab_size: usize,
    /// Elements of a vector.
    size: usize,
    hidden_size: usize,
}

/// A linear layer of which each rank has the whole, for the tokens of its residual stream.
pub(super) fn replicated(inputs: usize, outputs: usize, config: &DecoderConfig, scope: &Scope, name: &str) -> Linear {
    let cut = TensorPartition::Replicated(GradientScope::ResidualStream);
    let initial = InitialValues::new(config).weight;
    Linear::new(&LinearConfig { inputs, outputs, bias: false, cut, initial }, scope, name)
}

impl PerLayerEmbedding {
    /// The vectors' parameters at the embedding's scope.
    pub fn new(config: &DecoderConfig, per_layer: PerLayerConfig, scope: &Scope) -> Self {
        let PerLayerConfig { size, vocab_size } = per_layer;
        let (all, initial) = (config.num_layers * size, InitialValues::new(config).embedding);
        let scope_of_table = scope.child("per_layer_embeddings");
        Self {
            table: Table::of_vocabulary([vocab_size, all], initial, ParameterRole::Embedding, &scope_of_table),
            projection: replicated(config.hidden_size, all, config, scope, "per_layer_projection"),
            norm: Norm::new(config.norm, size, scope, "per_layer_layernorm"),
            vocab_size,
            size,
            hidden_size: config.hidden_size,
        }
    }

    /// Cost of the vectors beside the embedding.
    pub fn cost(config: &DecoderConfig, per_layer: PerLayerConfig, work: &Workload) -> SegmentCost {
        let (c, all) = (config.hidden_size, config.num_layers * per_layer.size);
        let rows = work.tokens_between_blocks();
        let vectors = rows * all as u64 * work.activation_bytes;
        let norms = statistics(config.norm, rows * config.num_layers as u64);
        let vectors = SegmentCost {
            flops: flops(work.all_tokens(), c, all),
            kept: work.tokens() * 8 + work.input_alone(rows * c as u64) + vectors,
            backward: 2 * vectors,
            exchanges: leave_exchanges(all as u64 * work.collective_bytes, work),
            ..SegmentCost::default()
        };
        vectors.and(norms)
    }

    /// Tokens `[b, t]` and their embedding `[b, this rank's tokens, c]` -> `[b, this rank's tokens,
    /// layers * p]`.
    pub fn forward(&self, ids_bt: Tensor<2, Int>, x_btc: Tensor<3>, regions: &Regions) -> Tensor<3> {
        let beyond = ids_bt.clone().greater_equal_elem(self.vocab_size as i64);
        let rows_btv = rows_of_words(&self.table, self.vocab_size, ids_bt.mask_fill(beyond, 0), regions);
        let [b, t, all] = rows_btv.dims();
        let size = self.size;
        // With several residual streams the first is the embedding.
        let x_btc = x_btc.narrow(2, 0, self.hidden_size);
        let projected_btv = self.projection.forward(x_btc.cast(self.norm.dtype()), None);
        let projected_btv = projected_btv * (self.hidden_size as f64).powf(-0.5);
        let normed_btlp = self.norm.forward(projected_btv.reshape([b, t, all / size, size]));
        (normed_btlp.reshape([b, t, all]) + rows_btv * (size as f64).sqrt()) * 0.5_f64.sqrt()
    }
}

/// The branch that a layer's vectors gate: `norm(projection(activation(gate(x)) * vectors))`.
#[derive(Module, Debug)]
pub(crate) struct PerLayerBranch {
    per_layer_input_gate: Linear,
    per_layer_projection: Linear,
    post_per_layer_input_norm: Norm,
    #[module(skip)]
    activation: Activation,
}

impl PerLayerBranch {
    /// The branch of the layer at `scope`.
    pub fn new(config: &DecoderConfig, per_layer: PerLayerConfig, scope: &Scope) -> Self {
        let (c, p) = (config.hidden_size, per_layer.size);
        Self {
            per_layer_input_gate: replicated(c, p, config, scope, "per_layer_input_gate"),
            per_layer_projection: replicated(p, c, config, scope, "per_layer_projection"),
            post_per_layer_input_norm: Norm::new(config.norm, c, scope, "post_per_layer_input_norm"),
            activation: config.plain_activation().expect("validated"),
        }
    }

    /// Cost of the branch.
    pub fn cost(config: &DecoderConfig, per_layer: PerLayerConfig, work: &Workload) -> SegmentCost {
        let (c, p) = (config.hidden_size, per_layer.size);
        let rows = work.tokens_between_blocks();
        let (wide, narrow) = (rows * c as u64, rows * p as u64);
        let branch = SegmentCost {
            flops: flops(work.all_tokens(), c, 2 * p),
            // The input, the gate before and after the activation, the vectors, and the input of
            // the norm.
            kept: work.input_alone(wide + narrow) + (3 * narrow + wide) * work.activation_bytes,
            backward: (3 * narrow + wide) * work.activation_bytes,
            ..SegmentCost::default()
        };
        branch.and(statistics(config.norm, rows))
    }

    /// `[b, this rank's tokens, c]` and the layer's vectors `[b, this rank's tokens, p]` -> `[b,
    /// this rank's tokens, c]`.
    pub fn forward(&self, x_btc: Tensor<3>, vectors_btp: Tensor<3>) -> Tensor<3> {
        let x_btc = x_btc.cast(self.post_per_layer_input_norm.dtype());
        let gate_btp = activation(self.per_layer_input_gate.forward(x_btc, None), self.activation);
        let y_btc = self.per_layer_projection.forward(gate_btp * vectors_btp, None);
        self.post_per_layer_input_norm.forward(y_btc)
    }
}
