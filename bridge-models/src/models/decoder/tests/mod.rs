//! Tests of the decoder: small models with distinct prime sizes, and their references.

mod adapters;
mod config;
mod graph;
mod hybrid;
mod indexer;
mod initial;
mod last_layer;
mod linear_attention;
mod moe;
mod mtp;
mod offload;
mod recompute;
mod reference;
mod sharded;
mod spread;
mod stream;
mod width;

use bridge_core::config::{Activation, BlockOrder, NormPlacement, Normalization, OutputGateForm, QkNormScope};
use bridge_core::model::{
    Auxiliary, Batch, Boundary, BuildContext, ForwardContext, GenerationState, Mode, ModelChunk, Parallel,
    SegmentOutput, StackPart, Stage, run_segments,
};
use bridge_data::MicroBatch;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use std::collections::BTreeMap;

use super::*;

/// Parameters or gradients by name.
pub type Values = BTreeMap<String, Vec<f32>>;

pub fn device() -> Device {
    Device::flex().autodiff()
}

/// A Llama-style model: rotary positions, RMSNorm, grouped heads, gated unit.
pub fn llama() -> DecoderConfig {
    DecoderConfig {
        num_layers: 3,
        hidden_size: 23,
        ffn_hidden_size: 31,
        num_attention_heads: 6,
        num_query_groups: 2,
        kv_channels: 10,
        vocab_size: 37,
        padded_vocab_size: 37,
        max_position_embeddings: 19,
        position_embedding: PositionEmbedding::Rope(RopeConfig {
            base: 10_000.0,
            percent: 1.0,
            interleaved: false,
            scaling: None,
            ..RopeConfig::neutral()
        }),
        norm: NormConfig { kind: Normalization::RmsNorm, epsilon: 1e-5, ..NormConfig::neutral() },
        gated_linear_unit: true,
        activation: Activation::Silu,
        softmax_scale: 10_f64.powf(-0.5),
        init_method_std: 0.3,
        embedding_init_method_std: 0.5,
        ..DecoderConfig::neutral()
    }
}

/// A GPT-2-style model: learned positions, LayerNorm, biases, plain unit.
pub fn gpt2() -> DecoderConfig {
    DecoderConfig {
        position_embedding: PositionEmbedding::LearnedAbsolute,
        norm: NormConfig { kind: Normalization::LayerNorm, epsilon: 1e-5, ..NormConfig::neutral() },
        num_query_groups: 6,
        qkv_bias: true,
        proj_bias: true,
        mlp_bias: true,
        gated_linear_unit: false,
        activation: Activation::GeluTanh,
        share_embeddings_and_output_weights: true,
        ..llama()
    }
}

/// A Llama-style model with everything that can be switched on.
pub fn everything() -> DecoderConfig {
    DecoderConfig {
        position_embedding: PositionEmbedding::Rope(RopeConfig {
            base: 500.0,
            percent: 0.6,
            interleaved: true,
            scaling: Some(RopeScaling::Linear { factor: 1.7 }),
            ..RopeConfig::neutral()
        }),
        no_rope_layers: LayerPattern::Listed(vec![false, true, false]),
        norm: NormConfig { zero_centered_gamma: true, epsilon: 1e-3, ..llama().norm },
        qk_layernorm: true,
        qkv_bias: true,
        window_size: Some(3),
        window_layers: LayerPattern::Listed(vec![true, false, true]),
        attention_softcap: Some(5.0),
        logit_softcap: Some(7.0),
        ..llama()
    }
}

/// Other features of the dense families: one norm over all heads, factors on inputs and outputs,
/// norms without biases, windowed layers with a rotary base of their own, a gated unit with a clamp
/// and an offset.
pub fn factors() -> [DecoderConfig; 4] {
    let of_outputs = ResidualConfig { norms: NormPlacement::Output, ..ResidualConfig::default() };
    let whole = DecoderConfig {
        qk_layernorm: true,
        qk_layernorm_scope: QkNormScope::Projection,
        clip_qkv: Some(1.2),
        residual: of_outputs,
        embedding_multiplier: 1.7,
        logit_multiplier: 0.6,
        ..llama()
    };
    let shared = ResidualConfig { blocks: BlockOrder::ParallelSharedNorm, ..ResidualConfig::default() };
    let centred = DecoderConfig {
        norm: NormConfig { kind: Normalization::LayerNormNoBias, ..llama().norm },
        residual: shared,
        logit_multiplier: 0.6,
        logit_softcap: Some(7.0),
        embedding_multiplier: 1.7,
        ..gpt2()
    };
    let rope = RopeConfig {
        windowed_base: Some(50.0),
        scaling: Some(RopeScaling::Linear { factor: 1.7 }),
        ..RopeConfig::neutral()
    };
    let local = DecoderConfig {
        position_embedding: PositionEmbedding::Rope(rope),
        window_size: Some(2),
        window_layers: LayerPattern::Listed(vec![true, false, true]),
        ..llama()
    };
    // Outputs of the first product are about 1.4 large: the clamp cuts many of them.
    let limited = DecoderConfig {
        activation: Activation::QuickGelu,
        activation_clamp: Some(0.9),
        linear_offset: 1.0,
        mlp_bias: true,
        ..llama()
    };
    [whole, centred, local, limited]
}

/// Gates on attention's output in their three forms, with what else may come between projection and
/// scores.
pub fn gates() -> [DecoderConfig; 4] {
    let rope = |scaling| PositionEmbedding::Rope(RopeConfig { scaling, ..RopeConfig::neutral() });
    let gated = |form| DecoderConfig { output_gate: Some(form), ..llama() };
    let fused = DecoderConfig { qkv_bias: true, qk_layernorm: true, ..gated(OutputGateForm::Fused) };
    let element = DecoderConfig {
        clip_qkv: Some(0.9),
        position_embedding: rope(Some(RopeScaling::Ntk { alpha: 5.0 })),
        qk_layernorm: true,
        qk_layernorm_after_rope: true,
        ..gated(OutputGateForm::Element)
    };
    let head = DecoderConfig {
        norm: NormConfig { kind: Normalization::LayerNorm, ..llama().norm },
        qk_layernorm: true,
        qk_layernorm_scope: QkNormScope::EachHead,
        query_scale: Some(QueryScaleConfig { beta: 0.8, length: 3, first: 1, unrotated_only: false }),
        ..gated(OutputGateForm::Head)
    };
    let unrotated = DecoderConfig {
        no_rope_layers: LayerPattern::Listed(vec![false, true, false]),
        qk_l2_norm: true,
        qk_layernorm_after_rope: true,
        query_scale: Some(QueryScaleConfig { beta: 0.8, length: 2, first: 0, unrotated_only: true }),
        window_size: Some(2),
        window_layers: LayerPattern::Listed(vec![true, false, true]),
        window_chunks: true,
        ..llama()
    };
    [fused, element, head, unrotated]
}

/// Features of the smaller families: norms without parameters, a norm of the embedding, rotation by
/// negative angles, a bias of the output projection, an activation with trained slopes, heads of
/// other numbers and sizes in windowed layers, units with bounds by layer.
pub fn switches() -> [DecoderConfig; 4] {
    let bare = DecoderConfig {
        norm: NormConfig { affine: false, ..llama().norm },
        position_embedding: PositionEmbedding::Rope(RopeConfig { reversed: true, ..RopeConfig::neutral() }),
        embedding_norm: true,
        qk_layernorm: true,
        qk_layernorm_scope: QkNormScope::Projection,
        output_bias: true,
        logit_multiplier: 0.6,
        logit_softcap: Some(7.0),
        ..llama()
    };
    let centred =
        DecoderConfig { norm: NormConfig { kind: Normalization::LayerNorm, affine: false, ..llama().norm }, ..gpt2() };
    let sloped = DecoderConfig {
        activation: Activation::Xielu,
        embedding_norm: true,
        output_bias: true,
        embedding_multiplier: 1.7,
        ..gpt2()
    };
    let scaling = Some(RopeScaling::Linear { factor: 1.7 });
    let rope = RopeConfig { windowed_base: Some(50.0), windowed_percent: Some(0.6), scaling, ..RopeConfig::neutral() };
    let windowed = DecoderConfig {
        position_embedding: PositionEmbedding::Rope(rope),
        qk_layernorm: true,
        output_gate: Some(OutputGateForm::Head),
        clip_qkv: Some(1.2),
        value_channels: Some(7),
        value_scale: 0.6,
        output_limits: Some(vec![0.3, 0.0, 0.5]),
        windowed: WindowedConfig {
            num_attention_heads: Some(4),
            num_query_groups: Some(4),
            kv_channels: Some(14),
            value_channels: Some(5),
            attention_sinks: Some(true),
        },
        window_size: Some(3),
        window_layers: LayerPattern::Listed(vec![true, false, true]),
        ..llama()
    };
    [bare, centred, sloped, windowed]
}

/// Several residual streams: mixed or not, with norms in front of blocks and behind them; and of
/// which layers read and write one, with sparse gates.
pub fn streams() -> [DecoderConfig; 3] {
    let streams = StreamsConfig {
        count: 3,
        sinkhorn_iterations: 3,
        epsilon: 0.02,
        initial_scale: 0.9,
        ..StreamsConfig::neutral()
    };
    let sandwich =
        ResidualConfig { norms: NormPlacement::Sandwich, branch_multiplier: 0.7, ..ResidualConfig::default() };
    let outputs = ResidualConfig { norms: NormPlacement::Output, ..ResidualConfig::default() };
    let apart = StreamsConfig { count: 2, sinkhorn_iterations: 0, output_magnitude: 1.5, ..streams };
    [
        DecoderConfig { streams: Some(streams), residual: sandwich, logit_softcap: Some(7.0), ..llama() },
        DecoderConfig { streams: Some(apart), residual: outputs, ..gpt2() },
        DecoderConfig {
            altup: Some(AltUpConfig { count: 3, active: 1, laurel_rank: 4 }),
            activation_sparsity: Some(vec![0.3, 0.0, 0.6]),
            layer_scalar: false,
            ..layer_ends()[1].clone()
        },
    ]
}

/// Per-layer embeddings and factors at the end of layers.
pub fn layer_ends() -> [DecoderConfig; 2] {
    let vectors = DecoderConfig {
        per_layer: Some(PerLayerConfig { size: 5, vocab_size: 31 }),
        layer_scalar: true,
        residual: ResidualConfig { norms: NormPlacement::Sandwich, ..ResidualConfig::default() },
        activation: Activation::GeluTanh,
        // Norms of tiny vectors are steep without it.
        norm: NormConfig { epsilon: 0.05, ..llama().norm },
        embedding_multiplier: 4.0,
        ..llama()
    };
    let parallel = ResidualConfig { blocks: BlockOrder::Parallel, ..ResidualConfig::default() };
    [DecoderConfig { residual: parallel, share_embeddings_and_output_weights: true, ..vectors.clone() }, vectors]
}

/// Layers that use keys and values of others, and keys that are values.
pub fn shared_keys() -> [DecoderConfig; 2] {
    let rope = RopeConfig {
        windowed_base: Some(50.0),
        scaling: Some(RopeScaling::Proportional { share: 0.5 }),
        ..RopeConfig::neutral()
    };
    let both = DecoderConfig {
        num_layers: 6,
        num_kv_shared_layers: 3,
        double_wide_mlp: true,
        window_size: Some(3),
        window_layers: LayerPattern::Listed(vec![true, false, true, true, false, true]),
        windowed: WindowedConfig { kv_channels: Some(6), ..WindowedConfig::neutral() },
        position_embedding: PositionEmbedding::Rope(rope),
        qk_layernorm: true,
        v_l2_norm: true,
        qkv_bias: true,
        ..llama()
    };
    let keys_as_values = DecoderConfig {
        keys_as_values: true,
        num_kv_shared_layers: 1,
        window_layers: LayerPattern::Listed(vec![false, true, false]),
        num_layers: 3,
        clip_qkv: Some(1.2),
        qk_layernorm: false,
        ..both.clone()
    };
    [both, keys_as_values]
}

/// A Llama-style model whose frequencies change in sequences of more than seven tokens.
pub fn longrope() -> DecoderConfig {
    let scaling = RopeScaling::LongRope {
        short_factor: vec![1.0, 1.1, 1.2, 1.3, 1.4],
        long_factor: vec![1.5, 2.1, 3.2, 4.3, 5.4],
        original_max_position_embeddings: 7,
        attention_factor: 1.25,
    };
    let rope = RopeConfig { scaling: Some(scaling), ..RopeConfig::neutral() };
    DecoderConfig { position_embedding: PositionEmbedding::Rope(rope), ..llama() }
}

pub fn context(config: &DecoderConfig) -> BuildContext {
    BuildContext {
        device: device(),
        seed: 11,
        params_dtype: FloatDType::F32,
        padded_vocab_size: config.padded_vocab_size,
        parallel: Parallel::single(),
        deferred: None,
        adapter: None,
    }
}

pub fn build(config: &DecoderConfig) -> Box<dyn ModelChunk> {
    build_stage(config, &Stage::whole([config.num_layers]))
}

/// A stage whose one-dimensional parameters are moved off their initial ones and zeros, so that a
/// swapped one shows.
pub fn build_stage(config: &DecoderConfig, stage: &Stage) -> Box<dyn ModelChunk> {
    let mut chunk = build_decoder(config, &context(config), stage).unwrap();
    let shapes: BTreeMap<_, _> =
        chunk.parameters().iter().map(|info| (info.name.clone(), info.shape.clone())).collect();
    chunk.update_parameters(&mut |name, value| {
        // A limit of xIELU that is far from zero would be a step in the loss.
        if shapes[name].len() > 1 || name.ends_with("activation_func.eps") {
            return value.into();
        }
        let noise = bridge_kernels::Philox::new(5).derive_name(name).normal(shapes[name][0], 0.2);
        let device = value.device();
        (value + Tensor::<1>::from_floats(noise.as_slice(), &device)).into()
    });
    chunk
}

pub fn tokens(count: usize, vocab_size: usize) -> Vec<i64> {
    (0..count).map(|i| ((i * i * 5 + i * 3 + 1) % vocab_size) as i64).collect()
}

/// Two sequences of seven tokens. One target is masked, and one has a different weight.
pub fn micro_batch(vocab_size: usize) -> MicroBatch {
    let (batch_size, seq_length) = (2, 7);
    let all = tokens(batch_size * seq_length + 1, vocab_size);
    let mut loss_mask = vec![1.0; batch_size * seq_length];
    loss_mask[4] = 0.0;
    loss_mask[9] = 0.37;
    MicroBatch {
        tokens: all[..all.len() - 1].to_vec(),
        labels: all[1..].to_vec(),
        loss_mask,
        position_ids: (0..batch_size).flat_map(|_| 0..seq_length as i64).collect(),
        batch_size,
        seq_length,
        ..MicroBatch::default()
    }
}

/// Runs all segments of `chunks` one after the other.
pub fn loss_sum(chunks: &[&dyn ModelChunk], batch: &Batch, mode: Mode) -> Tensor<1> {
    let context = ForwardContext::new(batch, mode);
    let mut boundary = Boundary::default();
    for chunk in chunks {
        match run_segments(*chunk, 0..chunk.segments().len(), boundary, &context).unwrap() {
            SegmentOutput::Boundary(output) => boundary = output,
            SegmentOutput::LossSum(loss) => return loss,
        }
    }
    panic!("the last chunk has no head");
}

pub fn loss_and_gradients(chunk: &dyn ModelChunk, batch: &Batch, mode: Mode) -> (f32, Values) {
    let loss = loss_sum(&[chunk], batch, mode);
    let value = loss.clone().into_scalar::<f32>();
    let mut gradients = loss.backward();
    let mut named = Values::new();
    chunk.take_gradients(&mut gradients, &mut |name, gradient| {
        named.insert(name.to_owned(), floats(gradient));
    });
    (value, named)
}

pub fn values(chunk: &dyn ModelChunk) -> Values {
    let mut named = Values::new();
    chunk.visit_parameters(&mut |name, value| {
        named.insert(name.to_owned(), floats(value));
    });
    named
}

pub fn set_values(chunk: &mut dyn ModelChunk, values: &Values) {
    chunk.update_parameters(&mut |name, old| {
        let device = old.device();
        Tensor::<1>::from_floats(values[name].as_slice(), &device).into()
    });
}

pub fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

/// Logits of one sequence, flat.
pub fn logits(chunk: &dyn ModelChunk, ids: &[i64]) -> Vec<f32> {
    let model = chunk.inference();
    let mut state = model.new_state();
    logits_after(model.as_ref(), &mut state, ids)
}

pub fn logits_after(model: &dyn ModelChunk, state: &mut GenerationState, ids: &[i64]) -> Vec<f32> {
    let data = TensorData::new(ids.to_vec(), [1, ids.len()]);
    let tokens_bt = Tensor::<2, Int>::from_data(data, &Device::flex());
    floats(model.logits(tokens_bt, state).unwrap())
}

#[track_caller]
pub fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "element {i}: {a}, expected {b}");
    }
}
