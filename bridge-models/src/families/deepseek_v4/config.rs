//! Settings of DeepSeek-V4; absent ones have the values of `DeepseekV4Config`.

use crate::decoder::{CompressedConfig, IndexerConfig, KeySource};
use crate::families::deepseek_v3::config::SHARED;
use crate::families::hy_v4::streams;
use crate::families::mixture::{ExpertFactor, FACTOR, SharedExperts, sigmoid_router};
use crate::families::prelude::*;
use crate::huggingface::windows::layers_of_two_types;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    Setting::KeyValueHeads(1),
    head_size(512),
    positions(1_048_576),
    Setting::Rows(BLOCKS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    Setting::Only("attention_bias", || json!(false)),
    Setting::Only("mlp_bias", || json!(false)),
    size_or("sliding_window", |c| c.window_size.get_or_insert(0), 128),
    Setting::Keys {
        read: |_, c| {
            c.window_size = c.window_size.map(|tokens| tokens - 1);
            c.attention_sinks = true;
            Ok(())
        },
        write: |c, settings| drop(settings.insert("sliding_window".into(), json!(c.window_size.map_or(0, |w| w + 1)))),
    },
    size_or("q_lora_rank", |c| &mut compressed(c).q_lora_rank, 1024),
    size_or("o_groups", |c| &mut compressed(c).output_groups, 8),
    size_or("o_lora_rank", |c| &mut compressed(c).output_rank, 1024),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Keys { read: read_rope, write: write_rope },
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 2048),
    Setting::Always(|c| c.ffn_hidden_size = sigmoid_router(c).ffn_hidden_size),
    Setting::Keys { read: read_router, write: write_router },
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 256),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 6),
    Setting::Group(&ExpertFactor(FACTOR, 1.5)),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Number("swiglu_limit", |c| c.activation_clamp.get_or_insert(0.0), 10.0),
    size_or("hc_mult", |c| &mut streams(c).count, 4),
    size_or("hc_sinkhorn_iters", |c| &mut streams(c).sinkhorn_iterations, 20),
    Setting::Number("hc_eps", |c| &mut streams(c).epsilon, 1e-6),
    Setting::Only("norm_topk_prob", || json!(true)),
    Setting::Only("router_jitter_noise", || json!(0.0)),
    // transformers has no layers of multi-token prediction in this family.
    Setting::Unused(&["num_nextn_predict_layers"]),
];

fn compressed(config: &mut DecoderConfig) -> &mut CompressedConfig {
    config.compressed.get_or_insert_with(CompressedConfig::neutral)
}

/// Names of layers with the window alone, with entries that an indexer chooses, and with all.
const TYPES: [&str; 3] = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"];
/// Tokens of an entry in these layers, without a key.
const RATES: [u64; 3] = [0, 4, 128];

fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let count = config.num_layers;
    let listed = fields.get("layer_types").or(fields.get("compress_ratios"));
    let number =
        |value: &Value| TYPES.iter().position(|name| value == name).or(RATES.iter().position(|rate| value == rate));
    let usual = || (0..count).map(|layer| if layer < 2 || layer % 2 == 0 { 2 } else { 1 }).collect();
    let types: Vec<usize> = match listed.map(|types| types.as_array().map(|types| types.iter().map(number).collect())) {
        None => usual(),
        Some(listed) => listed.flatten().unwrap_or_default(),
    };
    let expected = format!("one of {} for each of {count} layers", TYPES.join(", "));
    fields.require(types.len() == count, "layer_types", "another list", &expected)?;
    let table = fields.table("compress_rates", "compress_rates.")?;
    let rate = |number: usize, beside: &str| -> Result<usize, HfError> {
        let in_table = table.map(|table| table.size(TYPES[number])).transpose()?.flatten();
        Ok(fields.size(beside)?.or(in_table).unwrap_or(RATES[number] as usize))
    };
    let rates = [0, rate(1, "compress_rate_csa")?, rate(2, "compress_rate_hca")?];
    let mut indexer = IndexerConfig { rotates_last: true, interleaved: true, ..IndexerConfig::neutral() };
    indexer.heads = fields.size("index_n_heads")?.unwrap_or(64);
    indexer.head_size = fields.size("index_head_dim")?.unwrap_or(128);
    indexer.topk = fields.size("index_topk")?.unwrap_or(512);
    indexer.norm_epsilon = config.norm.epsilon;
    compressed(config).rates = types.iter().map(|number| rates[*number]).collect();
    if types.contains(&1) {
        let source = |number: &usize| if *number == 1 { KeySource::Chosen } else { KeySource::All };
        config.indexer = Some(indexer);
        config.key_sources = KeySource::from_list(types.iter().map(source).collect());
    }
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(compressed) = &config.compressed else { return };
    let number = |(layer, rate): (usize, &usize)| match (rate, config.indexer_of(layer)) {
        (0, _) => 0,
        (_, Some(_)) => 1,
        (_, None) => 2,
    };
    let types: Vec<usize> = compressed.rates.iter().enumerate().map(number).collect();
    settings.insert("layer_types".into(), json!(types.iter().map(|number| TYPES[*number]).collect::<Vec<_>>()));
    let rate = |number: usize| types.iter().position(|other| *other == number).map(|layer| compressed.rates[layer]);
    let rates = (1..3).map(|number| (TYPES[number].to_owned(), json!(rate(number).unwrap_or(RATES[number] as usize))));
    settings.insert("compress_rates".into(), Value::Object(rates.collect()));
    if let Some(indexer) = &config.indexer {
        settings.insert("index_n_heads".into(), json!(indexer.heads));
        settings.insert("index_head_dim".into(), json!(indexer.head_size));
        settings.insert("index_topk".into(), json!(indexer.topk));
    }
}

const FORM: RopeForm =
    RopeForm { theta: 160_000.0, beside: ["compress_rope_theta", SHARE], interleaved: true, ..RopeForm::USUAL };
const SHARE: &str = "partial_rotary_factor";

/// Layers with entries have a base and a scaling of their own.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let nested = fields.filled_table("rope_parameters", "rope_parameters.")?;
    let of_layers = |key, prefix| nested.map_or(Ok(None), |table| table.table(key, prefix));
    let main = of_layers("main", "rope_parameters.main.")?;
    let own = of_layers("compress", "rope_parameters.compress.")?;
    let flat = if own.is_some() { None } else { rope::table(fields)? };
    let rotated = fields.size("qk_rope_head_dim")?.map(|size| size as f64 / config.kv_channels as f64);
    let form = RopeForm { percent: Some(rotated.unwrap_or(0.125)), ..FORM };
    let mut rope = rope::read_table(fields, own.or(flat).as_ref(), config.max_position_embeddings, form)?;
    if let Some(RopeScaling::Yarn(yarn)) = &mut rope.scaling {
        yarn.attention_factor = yarn.attention_factor.or(Some(1.0));
    }
    if let Some(main) = main {
        main.only("rope_type", &json!("default"))?;
        let share = main.number(SHARE)?.unwrap_or(rope.percent);
        main.require(share == rope.percent, SHARE, &share.to_string(), "that of compress")?;
    }
    let of_main = main.map(|main| main.number("rope_theta")).transpose()?.flatten();
    rope.windowed_base = Some(of_main.or(fields.number("rope_theta")?).unwrap_or(1e4));
    rope::check_pairs(fields, config, &rope, form)?;
    config.position_embedding = PositionEmbedding::Rope(rope);
    Ok(())
}

fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { return };
    let mut own = rope::parameters(rope);
    own[SHARE] = json!(rope.percent);
    let base = rope.windowed_base.unwrap_or(rope.base);
    let main = json!({ "rope_type": "default", "rope_theta": base, SHARE: rope.percent });
    settings.insert("rope_parameters".into(), json!({ "main": main, "compress": own }));
    settings.insert("rope_theta".into(), json!(base));
    settings.insert("compress_rope_theta".into(), json!(rope.base));
    settings.insert(SHARE.into(), json!(rope.percent));
    settings.insert("qk_rope_head_dim".into(), json!(config.rotated_size()));
}

/// Names of functions that make scores of each expert on its own.
const SCORES: [(&str, RouterScoreFunction); 2] =
    [("sqrtsoftplus", RouterScoreFunction::SqrtSoftplus), ("sigmoid", RouterScoreFunction::Sigmoid)];
const LAYERS: &str = "mlp_layer_types";

fn read_router(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let name = fields.string("scoring_func")?.unwrap_or(SCORES[0].0);
    let function = SCORES.iter().find(|(known, _)| *known == name).map(|(_, function)| *function);
    let error = || fields.error("scoring_func", name, "sqrtsoftplus or sigmoid");
    experts(config).score_function = function.ok_or_else(error)?;
    let (count, usual) =
        (config.num_layers, fields.get("num_hash_layers").and_then(Value::as_u64).unwrap_or(3) as usize);
    let hashed = layers_of_two_types(fields, LAYERS, ["moe", "hash_moe"], count)?;
    let hashed = hashed.unwrap_or_else(|| (0..count).map(|layer| layer < usual).collect());
    let first = hashed.iter().take_while(|is_hashed| **is_hashed).count();
    let are_first = !hashed[first..].contains(&true);
    fields.require(are_first, LAYERS, "another order", "hash_moe in the first layers")?;
    experts(config).hash_layers = first;
    Ok(())
}

fn write_router(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(moe) = &config.moe else { return };
    let name = SCORES.iter().find(|(_, function)| *function == moe.score_function).map(|(name, _)| *name);
    settings.extend(name.map(|name| ("scoring_func".to_owned(), json!(name))));
    let is_hashed = |layer| layer < moe.hash_layers;
    settings.insert(LAYERS.into(), windows::names_of_layers(["moe", "hash_moe"], config.num_layers, is_hashed));
}
