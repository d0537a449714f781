//! A custom model: a causal variant of MLP-Mixer (Tolstikhin et al., arXiv:2105.01601) as kind
//! `mixer`, with a recipe field `expansion`, trained on mock data. Run it with `cargo run --release
//! --example custom_model -- model.expansion=8 logger.log_interval=10`.
//!
//! The Burn module declares its parameters in a [`ChunkScope`] and implements [`Segments`]; the
//! configuration implements [`ModelConfig`] and [`ModelBuilder`]. The kind is registered, so that
//! recipes may name it and runs can build it. Shape legend: `b` batch, `t` sequence, `c` hidden
//! size, `f` feed-forward size, `v` vocabulary.
use std::sync::Arc;

use bridge_core::config::{ExtraField, Format, Kind, RunConfig, TransformerConfig, TypeSpec, World, load_text};
use bridge_core::model::{
    Adapter, Batch, Boundary, BoundaryTensor, BuildContext, ChunkScope, ForwardContext, GradientScope, Initial,
    ModelBuildError, ModelBuilder, ModelChunk, ModelConfig, ModuleChunk, Outline, ParameterRole, Scope, SegmentCost,
    SegmentOutput, SegmentRole, Segments, Stage, TensorPartition, Workload,
};
use bridge_core::train::{Console, Registry, RunOptions, RunReport, pretrain};
use bridge_kernels::cross_entropy::workspace_bytes;
use bridge_kernels::{Activation, activation, embedding, linear, linear_cross_entropy, rms_norm};
use bridge_models::registry;
use burn::module::{Module, Param};
use burn::tensor::Tensor;

const RECIPE: &str = r#"
name = "mixer"
model = { kind = "mixer", num_layers = 2, hidden_size = 64, seq_length = 64, vocab_size = 512 }
train = { micro_batch_size = 4, global_batch_size = 8, train_iters = 100 }
validation = { eval_iters = 2 }
optimizer = { lr = 1e-2, min_lr = 1e-3 }
dataset = { kind = "mock" }
tokenizer = { tokenizer_type = "NullTokenizer", vocab_size = 511 }
"#;

/// Mixes over time with a triangular matrix, then over channels with an MLP.
#[derive(Module, Debug)]
struct Layer {
    norm: Param<Tensor<1>>,
    time: Param<Tensor<2>>,
    up: Param<Tensor<2>>,
    down: Param<Tensor<2>>,
}

/// On one rank no parameter is sharded, but every declaration needs a partition.
const WHOLE: TensorPartition = TensorPartition::Replicated(GradientScope::ResidualStream);

impl Layer {
    fn new(sizes: &TransformerConfig, expansion: usize, scope: &Scope) -> Self {
        let (t, c, f) = (sizes.seq_length, sizes.hidden_size, sizes.hidden_size * expansion);
        let normal = Initial::Normal(sizes.init_method_std);
        let matrix = |name, shape| scope.parameter(name, shape, WHOLE, normal, ParameterRole::Weight);
        Self {
            norm: scope.parameter("norm", [c], WHOLE, Initial::Ones, ParameterRole::Norm),
            time: matrix("time", [t, t]),
            up: matrix("up", [f, c]),
            down: matrix("down", [c, f]),
        }
    }

    fn forward(&self, x_btc: Tensor<3>, epsilon: f64) -> Tensor<3> {
        // Row t of the lower triangle weights the positions 0..=t: no position sees a later one.
        let time_1tt = self.time.val().tril(0).unsqueeze::<3>();
        let h_btc = time_1tt.matmul(rms_norm(x_btc.clone(), self.norm.val(), epsilon));
        let h_btf = activation(linear(h_btc, self.up.val(), None), Activation::Gelu);
        x_btc + linear(h_btf, self.down.val(), None)
    }
}

/// The whole model.
#[derive(Module, Debug)]
struct Mixer {
    embedding: Param<Tensor<2>>,
    layers: Vec<Layer>,
    norm: Param<Tensor<1>>,
    output: Param<Tensor<2>>,
    epsilon: f64,
}

impl Mixer {
    /// Declares and makes the parameters, segment by segment.
    fn new(sizes: &TransformerConfig, expansion: usize, vocab_size: usize, scope: &ChunkScope) -> Self {
        let (c, normal) = (sizes.hidden_size, Initial::Normal(sizes.init_method_std));
        let table = |scope: &Scope, name, role| scope.parameter(name, [vocab_size, c], WHOLE, normal, role);
        let embedding = table(&scope.segment(SegmentRole::Embedding, None), "embedding", ParameterRole::Embedding);
        let layer = |i: usize| {
            let scope = scope.segment(SegmentRole::Layer, Some(i));
            Layer::new(sizes, expansion, &scope.child(&format!("layers.{i}")))
        };
        let layers = (0..sizes.num_layers).map(layer).collect();
        let head = scope.segment(SegmentRole::Head, None);
        let norm = head.parameter("norm", [c], WHOLE, Initial::Ones, ParameterRole::Norm);
        let output = table(&head, "output", ParameterRole::Output);
        Self { embedding, layers, norm, output, epsilon: sizes.layernorm_epsilon }
    }
}

impl Segments for Mixer {
    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor> {
        let ([b, t], [_, c]) = (batch.tokens.dims(), self.embedding.dims());
        let hidden_states = BoundaryTensor::hidden_states([b, t, c], self.embedding.dtype().into());
        // Tensors between segments; empty before the embedding and after the loss.
        if (1..=self.layers.len() + 1).contains(&index) { vec![hidden_states] } else { Vec::new() }
    }

    fn forward_segment(&self, index: usize, mut input: Boundary, context: &ForwardContext) -> SegmentOutput {
        if index == 0 {
            let x_btc = embedding(self.embedding.val(), context.batch.tokens.clone());
            return SegmentOutput::Boundary(Boundary::hidden_states(x_btc));
        }
        let x_btc = input.take_hidden_states();
        if let Some(layer) = self.layers.get(index - 1) {
            return SegmentOutput::Boundary(Boundary::hidden_states(layer.forward(x_btc, self.epsilon)));
        }
        let x_nc = rms_norm(x_btc, self.norm.val(), self.epsilon).flatten::<2>(0, 1);
        let labels_n = context.batch.labels.clone().flatten(0, 1);
        let mask_n = context.batch.loss_mask.clone().flatten(0, 1);
        SegmentOutput::LossSum(linear_cross_entropy(x_nc, self.output.val(), labels_n, mask_n, &Default::default()))
    }
}

/// The fields that all models share, and the one of this kind.
#[derive(Clone, Debug, serde::Deserialize)]
struct MixerConfig {
    #[serde(skip)]
    transformer: TransformerConfig,
    expansion: std::num::NonZeroUsize,
}

impl ModelConfig for MixerConfig {
    fn kind(&self) -> &str {
        "mixer"
    }

    fn transformer(&self) -> &TransformerConfig {
        &self.transformer
    }

    fn builder(&self) -> Box<dyn ModelBuilder> {
        Box::new(self.clone())
    }
}

impl MixerConfig {
    /// Cost of a segment. One rank has the whole model, so there is no communication.
    fn cost(&self, role: SegmentRole, work: &Workload) -> SegmentCost {
        const FLOAT32: u64 = 4;
        let (n, t, c) = (work.tokens(), work.seq_length as u64, self.transformer.hidden_size as u64);
        let (f, v) = (c * self.expansion.get() as u64, work.padded_vocab_size as u64);
        let stream = n * c * work.activation_bytes;
        // Six operations for each token and weight of a product: two forward, four backward.
        match role {
            SegmentRole::Embedding => SegmentCost { kept: 8 * n, backward: stream, ..SegmentCost::default() },
            SegmentRole::StackEnd => panic!("a mixer is one stack"),
            SegmentRole::Head => SegmentCost {
                flops: (6 * n * c * v) as f64,
                input: n * c,
                // Statistics and output of the norm, and both gradients of the loss.
                kept: n * FLOAT32 + stream + (n + v) * c * FLOAT32,
                backward: stream,
                cross_entropy: workspace_bytes(n as usize, v as usize) as u64,
                ..SegmentCost::default()
            },
            SegmentRole::Attention | SegmentRole::Mlp | SegmentRole::Moe | SegmentRole::Layer => SegmentCost {
                flops: (6 * n * (t * c + 2 * c * f)) as f64,
                input: n * c,
                // Statistics and output of the norm, the mix over time, and the MLP's two inner
                // tensors.
                kept: n * FLOAT32 + 2 * stream + 2 * n * f * work.activation_bytes,
                backward: 2 * n * f * work.activation_bytes,
                ..SegmentCost::default()
            },
        }
    }
}

impl ModelBuilder for MixerConfig {
    fn outline(
        &self,
        work: &Workload,
        _stage: &Stage,
        adapter: Option<Arc<dyn Adapter>>,
    ) -> Result<Outline, ModelBuildError> {
        let scope = ChunkScope::outline(work.place, adapter);
        Mixer::new(&self.transformer, self.expansion.get(), work.padded_vocab_size, &scope);
        let declarations = scope.finish();
        let costs = declarations.segments().iter().map(|segment| self.cost(segment.role, work)).collect();
        Ok(Outline { declarations, costs: Some(costs) })
    }

    fn build_model(&self, context: &BuildContext, stage: &Stage) -> Result<Box<dyn ModelChunk>, ModelBuildError> {
        let sizes = &self.transformer;
        if *stage != Stage::whole([sizes.num_layers]) {
            let (key, message) = ("model.pipeline_model_parallel_size".into(), "a mixer is one stage".into());
            return Err(ModelBuildError::Invalid { key, message });
        }
        let scope = ChunkScope::new(context);
        let mixer = Mixer::new(sizes, self.expansion.get(), context.padded_vocab_size, &scope);
        Ok(Box::new(ModuleChunk::new(mixer, scope.finish())?))
    }
}

/// [`RECIPE`] with `key=value` overrides, and the kinds that it names.
pub fn recipe(overrides: &[String]) -> anyhow::Result<(RunConfig, Registry)> {
    let doc = "Width of the channel MLP over `hidden_size`.".into();
    let field = ExtraField { name: "expansion".into(), spec: TypeSpec::Count, default: Some(4_i64.into()), doc };
    let mut registry = registry();
    let kind = Kind::supporting(["init_method_std", "layernorm_epsilon"]).with([field]);
    registry.models.register("mixer", kind, |section| {
        let config = section.extra.clone().try_into::<MixerConfig>();
        let config = config.map_err(|e| ModelBuildError::Invalid { key: "model".into(), message: e.to_string() })?;
        Ok(Box::new(MixerConfig { transformer: TransformerConfig::clone(section), ..config }))
    });
    let config = load_text(RECIPE, Format::Toml, overrides, &registry.kinds(), &World::SINGLE)?;
    Ok((config, registry))
}

/// Trains [`RECIPE`] with `key=value` overrides.
pub fn train(overrides: &[String], console: Console) -> anyhow::Result<RunReport> {
    let (config, registry) = recipe(overrides)?;
    Ok(pretrain(config, RunOptions { console, ..RunOptions::new(registry) })?)
}

fn main() -> anyhow::Result<()> {
    train(&std::env::args().skip(1).collect::<Vec<_>>(), Console::Human).map(drop)
}
