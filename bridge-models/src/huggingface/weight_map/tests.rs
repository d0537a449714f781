//! Maps of small families: which tensors make up which parameter, in both directions.

use std::time::{Duration, Instant};

use super::*;

static MIXTURE: Family = Family {
    model_type: "mixture",
    architecture: "MixtureForCausalLM",
    settings: &[],
    weights: &[
        &[
            rule("decoder.layers.{}.input_layernorm.weight", &["model.layers.{}.input_layernorm.weight"]),
            rule(
                "decoder.layers.{}.mlp.linear_fc1.weight",
                &["model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"],
            )
            .fused(Fusion::GateUp),
        ],
        &[
            rule(
                "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
                &["model.layers.{}.mlp.experts.{}.gate_proj.weight", "model.layers.{}.mlp.experts.{}.up_proj.weight"],
            )
            .fused(Fusion::GateUp),
            rule(
                "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
                &["model.layers.{}.mlp.experts.{}.down_proj.weight"],
            ),
        ],
    ],
    prefix: "model.",
    buffers: &[],
};

/// Tensors in memory.
#[derive(Debug)]
struct InMemory(std::collections::BTreeMap<String, HostTensor>);

impl TensorSource for InMemory {
    fn path(&self) -> &std::path::Path {
        std::path::Path::new("memory")
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = (&str, &[usize])> + '_> {
        Box::new(self.0.iter().map(|(name, tensor)| (name.as_str(), tensor.shape.as_slice())))
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.0.get(name).map(|tensor| tensor.shape.as_slice())
    }

    fn storage(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|_| "F32".to_owned())
    }

    fn read_into(&self, name: &str, start: usize, target: &mut [f32]) -> Result<(), HfError> {
        target.copy_from_slice(&self.0[name].values[start..start + target.len()]);
        Ok(())
    }
}

const HEADS: Heads = Heads { groups: 1, queries_per_group: 1, head_size: 1 };

/// Layers of which the first three are dense, as in DeepSeek-V3.
fn parameters(layers: usize, experts: usize) -> Vec<(String, Vec<usize>)> {
    let layer = |layer: usize| {
        let name = format!("decoder.layers.{layer}");
        let mut names = vec![(format!("{name}.input_layernorm.weight"), vec![7])];
        if layer < 3 {
            names.push((format!("{name}.mlp.linear_fc1.weight"), vec![22, 7]));
        } else {
            for expert in 0..experts {
                let name = format!("{name}.mlp.experts.local_experts.{expert}");
                names.push((format!("{name}.linear_fc1.weight"), vec![10, 7]));
                names.push((format!("{name}.linear_fc2.weight"), vec![7, 5]));
            }
        }
        names
    };
    (0..layers).flat_map(layer).collect()
}

#[test]
fn layers_and_experts_are_numbered_alike_on_both_sides() {
    let map = WeightMap::of((&MIXTURE, &|_| true), parameters(12, 11), HEADS, 1).unwrap();
    let entry = map.entry("decoder.layers.11.mlp.experts.local_experts.10.linear_fc1.weight").unwrap();
    let expected = ["gate", "up"].map(|half| format!("model.layers.11.mlp.experts.10.{half}_proj.weight"));
    assert_eq!(entry.tensors, expected.map(|name| (name, vec![5, 7])));
    let dense = map.entry("decoder.layers.2.mlp.linear_fc1.weight").unwrap();
    assert_eq!(dense.tensors[1], ("model.layers.2.mlp.up_proj.weight".into(), vec![11, 7]));
    let values: Vec<f32> = (0..70_u8).map(f32::from).collect();
    let stored = entry.tensors.iter().map(|(name, _)| name.clone()).zip(entry.split(&values)).collect();
    assert_eq!(entry.read_part((0..10, 0..7), &InMemory(stored), &str::to_owned).unwrap(), values);
    assert!(map.entry("decoder.layers.12.input_layernorm.weight").is_none());
}

#[test]
fn any_part_is_read_alone() {
    let heads = Heads { groups: 3, queries_per_group: 2, head_size: 5 };
    for (fusion, storage) in [
        (Fusion::Qkv, Storage::RowsAreOutputs),
        (Fusion::PackedQkv, Storage::RowsAreInputs),
        (Fusion::GateUp, Storage::RowsAreInputs),
        (Fusion::Single, Storage::RowsAreOutputs),
    ] {
        let (rows, columns) = (60, 7);
        let rule =
            WeightRule { megatron: "p", hugging_face: &["a", "b", "c"], fusion, storage, former: None, of: None };
        let shapes = rule.tensor_shapes(&[rows, columns], heads, 0);
        let names = ["a", "b", "c"].map(str::to_owned);
        let tensors: Vec<_> = names.into_iter().zip(shapes).collect();
        let entry = WeightEntry { parameter: "p".into(), shape: vec![rows, columns], tensors, fusion, storage, heads };
        let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let stored = entry.tensors.iter().map(|(name, _)| name.clone()).zip(entry.split(&values)).collect();
        let source = InMemory(stored);
        for part in [(0..60, 0..7), (3..4, 0..7), (7..41, 2..5), (59..60, 6..7), (5..5, 0..7)] {
            let expected: Vec<f32> = part
                .0
                .clone()
                .flat_map(|row| part.1.clone().map(move |column| (row * columns + column) as f32))
                .collect();
            assert_eq!(
                entry.read_part(part.clone(), &source, &str::to_owned).unwrap(),
                expected,
                "{fusion:?} {part:?}"
            );
        }
    }
}

#[test]
fn a_parameter_without_a_rule_is_named() {
    let unknown = vec![("decoder.layers.3.mlp.router.weight".to_owned(), vec![4, 7])];
    let error = WeightMap::of((&MIXTURE, &|_| true), unknown, HEADS, 1).unwrap_err().to_string();
    assert!(error.contains("mixture") && error.contains("decoder.layers.3.mlp.router.weight"), "{error}");
}

#[test]
fn names_of_a_mixture_of_671_billion_are_mapped_in_linear_time() {
    let parameters = parameters(61, 384);
    assert!(parameters.len() > 44_000, "{}", parameters.len());
    let started = Instant::now();
    let map = WeightMap::of((&MIXTURE, &|_| true), parameters.clone(), HEADS, 1).unwrap();
    for (name, shape) in &parameters {
        assert_eq!(map.entry(name).map(|entry| &entry.shape), Some(shape));
    }
    // A scan by name for each would compare a thousand million names.
    let elapsed = started.elapsed();
    assert!(elapsed < Duration::from_secs(2), "{elapsed:?}");
}
