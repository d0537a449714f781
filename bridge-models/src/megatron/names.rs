//! Parameters of a stored tensor. Names are those of Megatron's modules on both sides; on disk the
//! layers of a stack are one tensor, and so are the experts of a layer (megatron-core,
//! transformer_block.py and moe/experts.py, `sharded_state_dict`).

/// Parts of a tensor's name that differ in Bridge: Transformer Engine has the norm in front of a
/// product inside the module of the product.
const RENAMED: [(&str, &str); 10] = [
    ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
    ("self_attention.linear_qkv.layer_norm_bias", "input_layernorm.bias"),
    ("self_attention.linear_q_up_proj.layer_norm_weight", "self_attention.q_layernorm.weight"),
    ("self_attention.linear_q_up_proj.layer_norm_bias", "self_attention.q_layernorm.bias"),
    ("self_attention.linear_kv_up_proj.layer_norm_weight", "self_attention.kv_layernorm.weight"),
    ("self_attention.linear_kv_up_proj.layer_norm_bias", "self_attention.kv_layernorm.bias"),
    ("self_attention.linear_proj.post_layernorm.weight", "post_self_attention_layernorm.weight"),
    ("mlp.linear_fc2.post_layernorm.weight", "post_mlp_layernorm.weight"),
    ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
    ("mlp.linear_fc1.layer_norm_bias", "pre_mlp_layernorm.bias"),
];

/// The experts of a layer as one tensor.
const EXPERTS: &str = "mlp.experts.experts.";
/// One expert.
const EXPERT: &str = "mlp.experts.local_experts.";

/// A parameter, and where it is in the stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the parameter.
    pub parameter: String,
    /// Indices in the tensor's first dimensions.
    pub places: Vec<usize>,
}

/// True if a stored tensor is a parameter of the model: not of the optimizer, and not other state
/// of modules.
pub fn is_of_model(name: &str) -> bool {
    !name.starts_with("optimizer.") && !name.starts_with("chained_") && !name.contains("_extra_state")
}

/// The parameters of the tensor called `name`; `None` if its shape has too few dimensions for them.
pub fn parts(name: &str, shape: &[usize]) -> Option<Vec<Part>> {
    let mut parts = vec![Part { parameter: name.to_owned(), places: Vec::new() }];
    let mut dims = shape.iter();
    // `layers.` before a number is one layer: stacks of layers that differ are stored like that.
    if let Some((stack, rest)) =
        name.split_once(".layers.").filter(|(_, rest)| !rest.starts_with(|c: char| c.is_ascii_digit()))
    {
        let layer = |index| Part { parameter: format!("{stack}.layers.{index}.{rest}"), places: vec![index] };
        parts = (0..*dims.next()?).map(layer).collect();
    }
    if name.contains(EXPERTS) {
        let count = *dims.next()?;
        let of_layer = |part: Part| {
            let expert = move |index: usize| Part {
                parameter: part.parameter.replace(EXPERTS, &format!("{EXPERT}{index}.")),
                places: [&part.places[..], &[index]].concat(),
            };
            (0..count).map(expert)
        };
        parts = parts.into_iter().flat_map(of_layer).collect();
    }
    dims.next()?;
    for part in &mut parts {
        if let Some((theirs, ours)) = RENAMED.iter().find(|(theirs, _)| part.parameter.ends_with(theirs)) {
            part.parameter = format!("{}{ours}", part.parameter.trim_end_matches(theirs));
        }
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_and_experts_are_told_apart() {
        let named = |name: &str, shape: &[usize]| -> Vec<(String, Vec<usize>)> {
            parts(name, shape).unwrap().into_iter().map(|part| (part.parameter, part.places)).collect()
        };
        let one = |name: &str, places: &[usize]| (name.to_owned(), places.to_vec());
        assert_eq!(named("output_layer.weight", &[8, 4]), [one("output_layer.weight", &[])]);
        assert_eq!(
            named("decoder.layers.self_attention.linear_qkv.layer_norm_weight", &[2, 4]),
            [
                one("decoder.layers.0.input_layernorm.weight", &[0]),
                one("decoder.layers.1.input_layernorm.weight", &[1])
            ]
        );
        assert_eq!(
            named("decoder.layers.1.mlp.experts.experts.linear_fc1.weight", &[2, 8, 4]),
            [0, 1].map(|e| one(&format!("decoder.layers.1.mlp.experts.local_experts.{e}.linear_fc1.weight"), &[e]))
        );
        let all = named("decoder.layers.mlp.experts.experts.linear_fc2.weight", &[2, 3, 8, 4]);
        assert_eq!(all.len(), 6);
        assert_eq!(all[4], one("decoder.layers.1.mlp.experts.local_experts.1.linear_fc2.weight", &[1, 1]));
        assert_eq!(parts("decoder.layers.mlp.router.weight", &[3]), None);
        assert!(!is_of_model("optimizer.state.exp_avg.output_layer.weight") && is_of_model("output_layer.weight"));
    }
}
