//! The plan's parameters are those of the models that are built.

use bridge_core::config::{Format, RawConfig, RunConfig, World};
use bridge_core::model::{BuildContext, ModelRegistry, Parallel, StackPart, Stage};
use bridge_core::plan::{Plan, PlanOptions};
use burn::tensor::{Device, FloatDType};

use super::plan;

const TINY: &str = include_str!("../../../recipes/tiny.toml");
const GPT2: &str = include_str!("../../../recipes/gpt2-124m.toml");
const SMOL: &str = include_str!("../../../recipes/smol-135m.toml");

fn planned(recipe: &str, size: usize, overrides: &[&str]) -> (RunConfig, Plan) {
    let overrides: Vec<String> = overrides.iter().map(|item| (*item).to_owned()).collect();
    let raw = RawConfig::from_text(recipe, Format::Toml, &overrides, &bridge_models::registry().kinds()).unwrap();
    let config = raw.finalize_for_plan(&World { size }).unwrap();
    let plan = plan(&config, &PlanOptions::default()).unwrap();
    (config, plan)
}

/// Elements of the parameters of one stage, built.
fn built(config: &RunConfig, plan: &Plan, stage: &Stage) -> u64 {
    let mut models = ModelRegistry::default();
    bridge_models::register_builtin(&mut models);
    let context = BuildContext {
        device: Device::flex().autodiff(),
        seed: 1,
        params_dtype: FloatDType::F32,
        padded_vocab_size: plan.batch.padded_vocab_size as usize,
        parallel: Parallel::single(),
        deferred: None,
        adapter: None,
    };
    let chunk = models.config(&config.model).unwrap().builder().build_model(&context, stage).unwrap();
    chunk.parameters().iter().map(|parameter| parameter.num_elements() as u64).sum()
}

#[test]
fn published_models_have_their_published_sizes() {
    assert_eq!(planned(GPT2, 1, &["model.vocab_size=50257"]).1.parameters.total, 124_439_808);
    assert_eq!(planned(SMOL, 1, &["model.vocab_size=49152"]).1.parameters.total, 134_515_008);
}

#[test]
fn whole_models_and_stages_have_the_parameters_that_were_planned() {
    let qk_norms = ["model.qk_layernorm=true", "model.add_qkv_bias=true", "model.kv_channels=16"];
    let gpt2 = ["model.vocab_size=997", "model.hidden_size=96", "model.num_attention_heads=6", "model.num_layers=4"];
    let smol = ["model.vocab_size=1024", "model.hidden_size=144", "model.num_layers=4", "model.kv_channels=16"];
    let untied = ["model.share_embeddings_and_output_weights=false", "model.position_embedding_type=none"];
    let cases = [
        (TINY, vec![]),
        (TINY, qk_norms.to_vec()),
        (TINY, vec!["model.vocab_size=700", "model.should_pad_vocab=true"]),
        (GPT2, gpt2.to_vec()),
        (GPT2, [&gpt2[..], &untied].concat()),
        (SMOL, smol.to_vec()),
    ];
    for (recipe, overrides) in cases {
        let (config, whole) = planned(recipe, 1, &overrides);
        let found = built(&config, &whole, &Stage::whole([config.model.num_layers]));
        assert_eq!(whole.parameters.total, found, "{overrides:?}");
        assert_eq!(whole.stages[0].parameters.total, found, "{overrides:?}");

        let (config, split) = planned(recipe, 2, &[&overrides[..], &["model.pipeline_model_parallel_size=2"]].concat());
        let half = config.model.num_layers / 2;
        let ends = [(0..half, true), (half..2 * half, false)];
        for (planned, (layers, is_first)) in split.stages.iter().zip(ends) {
            let stage = Stage::from(StackPart { layers, start: is_first, end: !is_first });
            assert_eq!(planned.parameters.total, built(&config, &split, &stage), "{overrides:?} {stage:?}");
        }
    }
}
