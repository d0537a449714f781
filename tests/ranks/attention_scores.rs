//! The largest attention score of each layer is the same on any layout as on one rank.

use bridge_core::train::{pretrain, rank_timeout, run_on_threads};
use bridge_tests::bridge;

use super::figures::{Curves, beginning, curves, curves_of};
use super::{config, options, token_files};

const LOGGED: [&str; 4] =
    ["logger.log_max_attention_logit=true", "model.seq_length=32", "train.train_iters=4", "validation.eval_iters=0"];

/// Large initial values, so that scores differ from one another.
const SPREAD: &str = "model.init_method_std=0.3";

fn scores(ranks: usize, overrides: &[&str]) -> Curves {
    let curves = curves_of(ranks, &[&LOGGED[..], &[SPREAD], overrides].concat());
    beginning(&curves, "max-attention-logit").map(|(name, points)| (name.clone(), points.clone())).collect()
}

fn assert_same(found: &Curves, expected: &Curves, what: &str) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    for (name, points) in expected {
        assert_eq!(points.len(), found[name].len(), "{what}, {name}");
        for ((step, score), (found_step, found)) in points.iter().zip(&found[name]) {
            let is_close = (found - score).abs() <= 2e-5 * score.abs();
            assert!(step == found_step && is_close, "{what}, {name} at {step}: {found}, expected {score}");
        }
    }
}

#[test]
fn the_largest_scores_are_those_of_one_rank() {
    let alone = scores(1, &[]);
    assert_eq!(
        alone.keys().collect::<Vec<_>>(),
        ["max-attention-logit", "max-attention-logit/layer_0", "max-attention-logit/layer_1"]
    );
    for (place, (step, all)) in alone["max-attention-logit"].iter().enumerate() {
        let layers = [0, 1].map(|layer| alone[&format!("max-attention-logit/layer_{layer}")][place].1);
        assert_eq!((*step, *all), (place as i64 + 1, layers[0].max(layers[1])));
        assert!(layers[0] != layers[1] && *all > 0.1, "{layers:?}");
    }
    for (ranks, overrides) in [
        (2, &["model.tensor_model_parallel_size=2"][..]),
        (2, &["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]),
        (2, &["model.pipeline_model_parallel_size=2"]),
        (2, &["model.context_parallel_size=2"]),
        (2, &[]),
        (4, &["model.pipeline_model_parallel_size=2", "model.context_parallel_size=2"]),
        (1, &["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"]),
        (1, &["train.micro_batch_size=4"]),
    ] {
        assert_same(&scores(ranks, overrides), &alone, &format!("{ranks} ranks, {overrides:?}"));
    }
}

#[test]
fn documents_and_latent_attention_have_scores_too() {
    let latent = [
        "model.multi_latent_attention=true",
        "model.num_query_groups=8",
        "model.q_lora_rank=12",
        "model.kv_lora_rank=10",
        "model.qk_head_dim=6",
        "model.qk_pos_emb_head_dim=4",
        "model.v_head_dim=8",
    ];
    let ranks = ["model.tensor_model_parallel_size=2", "model.context_parallel_size=2"];
    let spread = scores(4, &[&latent[..], &ranks].concat());
    assert_same(&spread, &scores(1, &latent), "latent attention under TP 2 and CP 2");

    let folder = tempfile::tempdir().unwrap();
    let data = format!("dataset.data_path=[{:?}]", token_files(folder.path(), "tokens"));
    let documents = ["dataset.kind=gpt", &data, "dataset.reset_attention_mask=true", "dataset.split='1,0,0'"];
    let alone = scores(1, &documents);
    let shared = scores(2, &[&documents[..], &["model.context_parallel_size=2"]].concat());
    assert_same(&shared, &alone, "documents under CP 2");
    assert_ne!(alone, scores(1, &["dataset.kind=mock"]));
}

/// Layers without attention have no scores, and a model without any attention is refused.
#[test]
fn only_layers_with_attention_have_scores() {
    let hybrid = [
        "model.kind=mamba",
        "model.num_layers=4",
        "model.position_embedding_type=none",
        "model.mamba_state_dim=8",
        "model.mamba_head_dim=16",
        "model.mamba_num_groups=2",
    ];
    let one = scores(1, &[&hybrid[..], &["model.hybrid_override_pattern=M*--"]].concat());
    assert_eq!(one.keys().collect::<Vec<_>>(), ["max-attention-logit", "max-attention-logit/layer_1"]);
    let folder = tempfile::tempdir().unwrap();
    let none = [&LOGGED[..], &hybrid, &["model.hybrid_override_pattern=MM--"]].concat();
    let config = config(folder.path(), 2, &none);
    let error =
        run_on_threads(&config, rank_timeout(&config), |groups| pretrain(config.clone(), options(groups)).map(drop))
            .unwrap_err()
            .to_string();
    assert!(error.contains("logger.log_max_attention_logit"), "{error}");
}

/// The file, the console and the curves have the same number.
#[test]
fn all_places_say_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let common = ["logger.log_interval=1", "logger.log_dir=logs", SPREAD];
    let output = bridge(folder.path(), &[&LOGGED[..], &common].concat());
    assert!(output.status.success(), "{output:?}");
    let (log, said) = (folder.path().join("logs"), String::from_utf8(output.stdout).unwrap());
    let curves = curves(&log);
    let text = std::fs::read_to_string(log.join("metrics.jsonl")).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let steps: Vec<_> = records.filter(|record| record["kind"] == "train").collect();
    assert_eq!(steps.len(), 4);
    for (place, record) in steps.iter().enumerate() {
        let largest = record["max_attention_logit"].as_f64().unwrap() as f32;
        let by_layer =
            [0, 1].map(|layer: usize| record["max_attention_logits"][layer.to_string()].as_f64().unwrap() as f32);
        assert_eq!(largest, by_layer[0].max(by_layer[1]));
        assert_eq!(curves["max-attention-logit"][place].1, largest);
        assert!(said.contains(&format!(" | max attention logit: {largest:.3} | ")), "{said}");
    }
}
