//! Rules of upstream's model classes that their code applies: settings that follow from the class
//! or from fields with another name here.

use super::super::error::{ConfigError, ErrorKind};
use super::super::node::{Data, Entry, Node};
use super::entries::{is_given, is_true, number, rename, set, take, text, value};

/// YaRN's fields of latent attention, and the settings of the same meaning.
const LATENT_YARN: [(&str, &str); 6] = [
    ("rotary_scaling_factor", "yarn_rotary_scaling_factor"),
    ("original_max_position_embeddings", "yarn_original_max_position_embeddings"),
    ("beta_fast", "yarn_beta_fast"),
    ("beta_slow", "yarn_beta_slow"),
    ("mscale", "yarn_mscale"),
    ("mscale_all_dim", "yarn_mscale_all_dim"),
];

/// Replaces fields of `[model]` by the corresponding settings; returns remarks about them. Fails on
/// a field without a setting in Bridge that changes the function.
pub(super) fn settings_of(class: &str, entries: &mut Vec<Entry>) -> Result<Vec<String>, Box<ConfigError>> {
    let mut remarks = Vec::new();
    rename(entries, "hybrid_layer_pattern", "hybrid_override_pattern");
    leave_out_idle(entries)?;
    layout(entries);
    if text(entries, "softmax_type") == Some("learnable") {
        take(entries, "softmax_type");
        set(entries, "attention_sinks", Data::Bool(true));
    }
    if value(entries, "num_moe_experts").is_some() && is_true(entries, "add_bias_linear") {
        set(entries, "moe_router_bias", Data::Bool(true));
    }
    if is_true(entries, "multi_latent_attention") {
        latent(entries);
    }
    let pattern_layers = text(entries, "hybrid_override_pattern").map(|pattern| pattern.chars().count());
    if let (None, Some(layers)) = (value(entries, "num_layers"), pattern_layers) {
        set(entries, "num_layers", Data::Int(layers as i128));
    }
    if class.contains("Gemma") {
        gemma(class, entries)?;
        remarks.push(format!(
            "model: {class} multiplies the embedding by the square root of hidden_size{}",
            if class.contains("Gemma2") || class.contains("Gemma3") {
                ", has norms before and after blocks, and a pattern of windows"
            } else {
                ""
            }
        ));
    }
    if class.starts_with("OlMoE") {
        set(entries, "qk_layernorm_scope", Data::String("projection".into()));
    }
    Ok(remarks)
}

/// Leaves out settings of experts from a model without experts, and those of multi-token prediction
/// from a model without it. Upstream saves them, but does not read them.
///
/// # Errors
/// Multi-token prediction of a hybrid model, whose layers have a pattern of their own.
fn leave_out_idle(entries: &mut Vec<Entry>) -> Result<(), Box<ConfigError>> {
    let has_experts = value(entries, "num_moe_experts").is_some();
    let depths = value(entries, "mtp_num_layers").filter(|node| node.number() > Some(0.0)).cloned();
    let pattern = "hybrid_override_pattern";
    let is_hybrid = value(entries, pattern).is_some();
    let keeps_mtp = depths.is_some() && !is_hybrid;
    entries.retain(|entry| {
        let is_of_mtp = entry.key.starts_with("mtp_") || entry.key == "keep_mtp_spec_in_bf16";
        let is_idle = !has_experts && entry.key.starts_with("moe_") || !keeps_mtp && is_of_mtp;
        is_given(&entry.node) || !is_idle
    });
    // Behind a slash are the layers of multi-token prediction.
    if let (false, Some((layers, _))) = (keeps_mtp, text(entries, pattern).and_then(|layers| layers.split_once('/'))) {
        let layers = layers.to_owned();
        set(entries, pattern, Data::String(layers));
    }
    let Some(depths) = depths.filter(|_| is_hybrid) else { return Ok(()) };
    let message =
        "multi-token prediction of a hybrid model, whose layers have a pattern of their own, is not implemented";
    let error = ConfigError::new(ErrorKind::NotImplemented, "model.mtp_num_layers", message)
        .with_found_node(&depths)
        .with_expected("null")
        .with_location(depths.location)
        .with_hint("model.mtp_num_layers=null trains without it");
    Err(Box::new(error))
}

/// Turns a layout that lists the layers of each stage by their names into the letters of each
/// stage.
fn layout(entries: &mut Vec<Entry>) {
    const LAYERS: [(&str, &str); 4] = [("embedding", "E"), ("decoder", "t"), ("mtp", "m"), ("loss", "L")];
    let key = "pipeline_model_parallel_layout";
    let letter = |layer: &Node| {
        let name = layer.text()?;
        LAYERS.iter().find(|(known, _)| *known == name).map(|(_, letter)| *letter)
    };
    let stage = |stage: &Node| match &stage.data {
        Data::List(layers) => layers.iter().map(letter).collect::<Option<String>>(),
        _ => None,
    };
    let stages = match value(entries, key).map(|node| &node.data) {
        Some(Data::List(stages)) => stages.iter().map(stage).collect::<Option<Vec<String>>>(),
        _ => None,
    };
    if let Some(stages) = stages {
        set(entries, key, Data::String(stages.join("|")));
    }
}

/// Latent attention has its own names for YaRN and its own scale of scores, and rotates pairs of
/// adjacent elements.
fn latent(entries: &mut Vec<Entry>) {
    // Derived from sizes that latent attention does not use.
    take(entries, "kv_channels");
    set(entries, "rotary_interleaved", Data::Bool(true));
    let kind = take(entries, "rope_type").map(|entry| entry.node.data);
    let factor = number(entries, "rotary_scaling_factor").unwrap_or(1.0);
    if kind != Some(Data::String("yarn".into())) || factor <= 1.0 {
        for (field, _) in LATENT_YARN {
            take(entries, field);
        }
        return;
    }
    set(entries, "position_embedding_type", Data::String("yarn".into()));
    let growth = |mscale: f64| 0.1 * mscale * factor.ln() + 1.0;
    let mscale = number(entries, "mscale").unwrap_or(1.0);
    let mscale_all_dim = number(entries, "mscale_all_dim").unwrap_or(0.0);
    let head: f64 = ["qk_head_dim", "qk_pos_emb_head_dim"].iter().filter_map(|key| number(entries, key)).sum();
    if mscale_all_dim > 0.0 {
        if head > 0.0 && value(entries, "softmax_scale").is_none() {
            set(entries, "softmax_scale", Data::Float(growth(mscale_all_dim).powi(2) / head.sqrt()));
        }
    } else {
        take(entries, "mscale");
        take(entries, "mscale_all_dim");
        set(entries, "yarn_attention_factor", Data::Float(growth(mscale)));
    }
    for (field, setting) in LATENT_YARN {
        rename(entries, field, setting);
    }
}

/// Gemma's embedding scale, and the norms, windows and rotary bases of its later generations.
fn gemma(class: &str, entries: &mut Vec<Entry>) -> Result<(), Box<ConfigError>> {
    if let Some(size) = number(entries, "hidden_size").filter(|size| *size > 0.0) {
        // Rounded to float32, as the released models' factor is.
        set(entries, "embedding_multiplier", Data::Float(f64::from(size.sqrt() as f32)));
    }
    if class.contains("Gemma2") {
        set(entries, "norm_placement", Data::String("sandwich".into()));
        if value(entries, "window_size").is_some() {
            set(entries, "window_attn_skip_freq", Data::Int(2));
        }
        if let Some(size) = take(entries, "query_pre_attn_scalar").and_then(|entry| entry.node.number()) {
            set(entries, "softmax_scale", Data::Float(1.0 / size.sqrt()));
        }
    }
    if class.contains("Gemma3") {
        set(entries, "norm_placement", Data::String("sandwich".into()));
        set(entries, "qk_layernorm", Data::Bool(true));
        take(entries, "is_vision_language");
        if let Some(Data::List(bases)) = value(entries, "rotary_base").map(|node| node.data.clone())
            && let [local, global] = bases.as_slice()
        {
            set(entries, "rotary_base_local", local.data.clone());
            set(entries, "rotary_base", global.data.clone());
        }
        // Linear interpolation of layers without a window, although the field's name is that of
        // Llama 3's scaling.
        if let Some(factor) = take(entries, "rope_scaling_factor").and_then(|entry| entry.node.number())
            && factor != 1.0
        {
            set(entries, "seq_len_interpolation_factor", Data::Float(factor));
        }
        if let Some(width) = number(entries, "window_size") {
            let left: Node = Data::Int(width as i128 - 1).into();
            set(entries, "window_size", Data::List(vec![left, Data::Int(0).into()]));
        }
        let pattern = take(entries, "interleaved_attn_pattern");
        match pattern.as_ref().map(|entry| &entry.node.data) {
            None | Some(Data::Null) => {}
            Some(Data::List(counts)) if matches!(counts.as_slice(), [_, global] if global.number() == Some(1.0)) => {
                let period = counts[0].number().unwrap_or(0.0) + 1.0;
                set(entries, "window_attn_skip_freq", Data::Int(period as i128));
            }
            Some(_) => {
                let message = "a pattern with several layers of full attention in a row, which has no setting here";
                let node = pattern.map(|entry| entry.node).unwrap_or_else(Node::null);
                let error = ConfigError::new(ErrorKind::NotImplemented, "model.interleaved_attn_pattern", message)
                    .with_found_node(&node)
                    .with_expected("[N, 1]; set model.window_attn_skip_freq for other patterns")
                    .with_location(node.location.clone());
                return Err(Box::new(error));
            }
        }
    }
    Ok(())
}
