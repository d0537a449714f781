//! A dataset with extra tensors and weights that are neither 0 nor 1, and a model that reads them.

use std::path::Path;
use std::sync::Arc;

use bridge_core::config::{Format, Kind, TransformerConfig, World, load_text};
use bridge_core::model::{
    Adapter, Batch, Boundary, BoundaryTensor, BuildContext, ChunkScope, ForwardContext, GradientScope, Initial,
    ModelBuildError, ModelBuilder, ModelChunk, ModelConfig, ModuleChunk, Outline, ParameterRole, SegmentOutput,
    SegmentRole, Segments, Stage, TensorPartition, Workload,
};
use bridge_core::plan::{PlanOptions, plan};
use bridge_core::train::{Registry, RunOptions, pretrain, rank_timeout, run_on_threads};
use bridge_data::{DataError, Dataset, DatasetBuildContext, DatasetProvider, Datasets, Extra, Sample};
use bridge_models::registry;
use bridge_tests::{assert_close, records_in};
use burn::module::{Module, Param};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

use super::options;

const RECIPE: &str = r#"
name = "probe"
model = { kind = "probe", num_layers = 1, hidden_size = 6, seq_length = 8, vocab_size = 32 }
train = { micro_batch_size = 2, global_batch_size = 4, train_iters = 4, num_threads = 1 }
validation = { eval_iters = 1 }
optimizer = { lr = 1e-2, min_lr = 1e-3 }
dataset = { kind = "scored" }
"#;

/// Samples with a score for each token, and three whole numbers for all of them, times `factor`.
struct Scored {
    seq_length: usize,
    factor: usize,
}

impl Dataset for Scored {
    fn len(&self) -> usize {
        64
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        let t = self.seq_length;
        let tokens: Vec<i64> = (0..=t).map(|i| ((i * i + 13 * index) % 31) as i64).collect();
        let scores = (0..t).map(|i| (self.factor * (i + index % 7)) as f32 / 5.0).collect();
        let image = (0..3).map(|i| (self.factor * (i + index % 3)) as i64).collect();
        Ok(Sample {
            labels: tokens[1..].to_vec(),
            loss_mask: (0..t).map(|i| (i % 4) as f32 / 3.0).collect(),
            position_ids: (0..t as i64).collect(),
            tokens: tokens[..t].to_vec(),
            document_ids: None,
            extras: [
                ("scores".to_owned(), Extra::floats(scores, &[t]).along_sequence()),
                ("image".to_owned(), Extra::ints(image, &[3])),
            ]
            .into(),
        })
    }
}

impl DatasetProvider for Scored {
    fn build(&self, _context: &DatasetBuildContext) -> Result<Datasets, DataError> {
        let split = || Some(Arc::new(Self { ..*self }) as Arc<dyn Dataset>);
        Ok(Datasets { train: split(), valid: split(), test: split(), ..Datasets::default() })
    }
}

/// An embedding, scaled by scores and moved by the sum of the image, and a head.
#[derive(Module, Debug)]
struct Probe {
    table: Param<Tensor<2>>,
    output: Param<Tensor<2>>,
}

impl Segments for Probe {
    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor> {
        let ([b, t], [_, c]) = (batch.tokens.dims(), self.table.dims());
        let hidden_states = BoundaryTensor::hidden_states([b, t, c], self.table.dtype().into());
        if index == 1 { vec![hidden_states] } else { Vec::new() }
    }

    fn forward_segment(&self, index: usize, mut input: Boundary, context: &ForwardContext) -> SegmentOutput {
        let batch = context.batch;
        let [b, t] = batch.tokens.dims();
        if index == 0 {
            let [_, c] = self.table.dims();
            let x_btc = self.table.val().select(0, batch.tokens.clone().flatten(0, 1)).reshape([b, t, c]);
            let scores_bt: Tensor<2> = batch.extras["scores"].floats().expect("floats, `[b, t]`");
            let image_bi: Tensor<2, Int> = batch.extras["image"].ints().expect("integers, `[b, 3]`");
            let sum_b11: Tensor<3> = image_bi.float().sum_dim(1).unsqueeze_dim(2);
            let x_btc = x_btc * (scores_bt.unsqueeze_dim(2) + 1.0) + sum_b11 * 0.05;
            return SegmentOutput::Boundary(Boundary::hidden_states(x_btc));
        }
        let logits_btv = input.take_hidden_states().matmul(self.output.val().transpose().unsqueeze());
        let chosen_bt1 = log_softmax(logits_btv, 2).gather(2, batch.labels.clone().unsqueeze_dim(2));
        SegmentOutput::LossSum(-(chosen_bt1.reshape([b, t]) * batch.loss_mask.clone()).sum())
    }
}

#[derive(Clone, Debug)]
struct ProbeConfig(TransformerConfig);

impl ModelConfig for ProbeConfig {
    fn kind(&self) -> &str {
        "probe"
    }

    fn transformer(&self) -> &TransformerConfig {
        &self.0
    }

    fn builder(&self) -> Box<dyn ModelBuilder> {
        Box::new(self.clone())
    }
}

impl Probe {
    fn new(vocab_size: usize, hidden_size: usize, scope: &ChunkScope) -> Self {
        let (shape, normal) = ([vocab_size, hidden_size], Initial::Normal(0.3));
        let whole = TensorPartition::Replicated(GradientScope::ResidualStream);
        let matrix = |segment, name, role| scope.segment(segment, None).parameter(name, shape, whole, normal, role);
        let table = matrix(SegmentRole::Embedding, "table", ParameterRole::Embedding);
        Self { table, output: matrix(SegmentRole::Head, "output", ParameterRole::Output) }
    }
}

impl ModelBuilder for ProbeConfig {
    fn build_model(&self, context: &BuildContext, _stage: &Stage) -> Result<Box<dyn ModelChunk>, ModelBuildError> {
        let scope = ChunkScope::new(context);
        let probe = Probe::new(context.padded_vocab_size, self.0.hidden_size, &scope);
        Ok(Box::new(ModuleChunk::new(probe, scope.finish())?))
    }

    /// The outline has no costs.
    fn outline(
        &self,
        work: &Workload,
        _stage: &Stage,
        adapter: Option<Arc<dyn Adapter>>,
    ) -> Result<Outline, ModelBuildError> {
        let scope = ChunkScope::outline(work.place, adapter);
        Probe::new(work.padded_vocab_size, self.0.hidden_size, &scope);
        Ok(Outline { declarations: scope.finish(), costs: None })
    }
}

/// The other tests train it.
#[test]
fn a_kind_without_costs_is_not_planned_and_the_plan_says_why() {
    let registry = registry_with_probe();
    let sizes = ["tokenizer.tokenizer_type=NullTokenizer".to_owned(), "tokenizer.vocab_size=31".to_owned()];
    let config = load_text(RECIPE, Format::Toml, &sizes, &registry.kinds(), &World::SINGLE).unwrap();
    let error = plan(&config, &registry.models, &PlanOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`probe`, which can be trained and not planned"), "{error}");
}

fn registry_with_probe() -> Registry {
    let mut registry = registry();
    for (kind, factor) in [("scored", 1), ("plain", 0)] {
        let scored = move |seq_length| Scored { seq_length, factor };
        registry.datasets.register(kind, [], move |context| Ok(Box::new(scored(context.section.seq_length))));
    }
    registry.models.register("probe", Kind::supporting(["context_parallel_size"]), |section| {
        Ok(Box::new(ProbeConfig(TransformerConfig::clone(section))))
    });
    registry
}

/// Training losses of the recipe.
fn losses(ranks: usize, overrides: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let logs: &Path = &folder.path().join("logs");
    let log_dir = format!("logger.log_dir={logs:?}");
    let overrides: Vec<String> = [log_dir.as_str()].iter().chain(overrides).map(|o| (*o).to_owned()).collect();
    let registry = registry_with_probe();
    let config = load_text(RECIPE, Format::Toml, &overrides, &registry.kinds(), &World { size: ranks }).unwrap();
    let program = |groups| {
        let options = RunOptions { registry: registry.clone(), ..options(groups) };
        pretrain(config.clone(), options).map(drop)
    };
    run_on_threads(&config, rank_timeout(&config), program).unwrap();
    records_in(logs, "train")
}

#[test]
fn extra_tensors_of_a_data_set_reach_the_segments_of_every_rank() {
    let expected = losses(1, &[]);
    assert_eq!(expected.len(), 4);
    assert_ne!(losses(1, &["dataset.kind=plain"]), expected);
    assert_close(&losses(2, &[]), &expected, "two data-parallel ranks");
    // Each has its part of the scores, and the whole image.
    assert_close(&losses(2, &["model.context_parallel_size=2"]), &expected, "two context-parallel ranks");
}
