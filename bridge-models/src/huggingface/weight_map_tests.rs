//! Names, parts and times of maps of weights.

use std::time::{Duration, Instant};

use super::super::checkpoint::HostTensor;
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
    buffers: &[],
    ..Family::USUAL
};
const HEADS: Heads = Heads { groups: 3, queries_per_group: 2, head_size: 5, value_size: 5 };
const SIZES: Sizes = Sizes {
    linear: LinearSizes { key_heads: 2, value_heads: 4, key_size: 5, value_size: 4, decays: 1 },
    vocab_size: 1,
    num_identity_experts: 0,
    num_experts: 11,
    num_layers: 11,
    num_predictions: 0,
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

/// Layers of which the first three are dense, as in DeepSeek-V3.
fn parameters(layers: usize, experts: usize) -> Vec<(String, Vec<usize>, Heads)> {
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
    (0..layers).flat_map(layer).map(|(name, shape)| (name, shape, HEADS)).collect()
}

#[test]
fn layers_and_experts_are_numbered_alike_on_both_sides() {
    let map = WeightMap::from_shapes(&MIXTURE, &|_| true, parameters(12, 11), SIZES, ExpertLayout::Apart).unwrap();
    let entry = map.entry("decoder.layers.11.mlp.experts.local_experts.10.linear_fc1.weight").unwrap();
    let expected = ["gate", "up"].map(|half| format!("model.layers.11.mlp.experts.10.{half}_proj.weight"));
    let whole = |name, shape| StoredTensor { name, shape, part: None };
    assert_eq!(entry.tensors, expected.map(|name| whole(name, vec![5, 7])));
    let dense = map.entry("decoder.layers.2.mlp.linear_fc1.weight").unwrap();
    assert_eq!(dense.tensors[1], whole("model.layers.2.mlp.up_proj.weight".into(), vec![11, 7]));
    let values: Vec<f32> = (0..70_u8).map(f32::from).collect();
    let stored = entry.tensors.iter().map(|stored| stored.name.clone()).zip(entry.split(&values)).collect();
    assert_eq!(entry.read_part(0..10, 0..7, &InMemory(stored), &str::to_owned).unwrap(), values);
    assert!(map.entry("decoder.layers.12.input_layernorm.weight").is_none());
}

#[test]
fn any_part_is_read_alone() {
    let narrow = Heads { head_size: 6, value_size: 2, ..HEADS };
    for (fusion, storage, heads) in [
        (Fusion::Qkv, Storage::RowsAreOutputs, HEADS),
        (Fusion::Qkv, Storage::RowsAreOutputs, narrow),
        (Fusion::PackedQkv, Storage::RowsAreInputs, HEADS),
        (Fusion::PackedQkv, Storage::RowsAreInputs, narrow),
        (Fusion::GateUp, Storage::RowsAreInputs, HEADS),
        (Fusion::Single, Storage::RowsAreOutputs, HEADS),
        (Fusion::Alternating, Storage::RowsAreOutputs, HEADS),
        (Fusion::Alternating, Storage::RowsAreInputs, HEADS),
    ] {
        let part = |is_joined| Some(Part { index: 1, count: 3, is_joined });
        for part in [None, part(false), part(true)] {
            reads_every_part(fusion, storage, heads, part);
        }
    }
    let heads = Heads { groups: 2, ..HEADS };
    reads_every_part(Fusion::GatedQkv, Storage::RowsAreOutputs, heads, None);
    reads_every_part(Fusion::LinearByHead, Storage::RowsAreOutputs, heads, None);
}

#[test]
fn parts_of_linear_attention_are_gathered_from_its_key_heads() {
    // A key head has 5 rows of queries, 5 of keys, 8 of values and 8 of gates in the first tensor,
    // 2 of betas and 2 of decays in the second.
    let found: Vec<Range<usize>> = SIZES.linear.rows_by_head().collect();
    let expected = [0..5, 26..31, 5..10, 31..36, 10..18, 36..44, 18..26, 44..52, 52..54, 56..58, 54..56, 58..60];
    assert_eq!(found, expected);
    let rule = rule("p", &["a", "b", "c"]);
    let shapes = |fusion, rows| rule.fused(fusion).tensor_shapes(&[rows, 7], HEADS, SIZES);
    let parts = &[LinearRows::Mixed, LinearRows::Values, LinearRows::Heads];
    assert_eq!(shapes(Fusion::Linear(parts), 56), [[36, 7], [16, 7], [4, 7]]);
    let parts = &[LinearRows::Keys, LinearRows::Keys, LinearRows::Values];
    assert_eq!(shapes(Fusion::LinearConvolution(parts), 36), [[10, 1, 7], [10, 1, 7], [16, 1, 7]]);
}

#[test]
fn gates_of_query_heads_are_between_queries_and_key() {
    let heads = Heads { groups: 2, head_size: 3, ..HEADS };
    let begins: Vec<usize> = heads.stored_rows_with_gates().map(|rows| rows.start).collect();
    // Heads 0 and 1, their gates, key and value of group 0; then those of group 1.
    assert_eq!(begins, [0, 6, 3, 9, 24, 30, 12, 18, 15, 21, 27, 33]);
    assert!(heads.stored_rows_with_gates().all(|rows| rows.len() == 3));
}

/// Splits a matrix of 60 x 7 into tensors, or into parts of larger ones, and reads it back piece by
/// piece.
fn reads_every_part(fusion: Fusion, storage: Storage, heads: Heads, part: Option<Part>) {
    let (rows, columns) = (60, 7);
    let rule = WeightRule { fusion, storage, ..rule("p", &["a", "b", "c"]) };
    let shapes = rule.tensor_shapes(&[rows, columns], heads, SIZES);
    let stored = |(name, shape): (&str, Vec<usize>)| StoredTensor { name: name.to_owned(), shape, part };
    let tensors: Vec<StoredTensor> = ["a", "b", "c"].into_iter().zip(shapes).map(stored).collect();
    let entry = WeightEntry {
        parameter: "p".into(),
        shape: vec![rows, columns],
        tensors,
        copies: Vec::new(),
        optional_aliases: &[],
        fusion,
        storage,
        heads,
        linear: SIZES.linear,
    };
    let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
    let in_file = |(stored, tensor): (&StoredTensor, HostTensor)| {
        let shape = stored.whole_shape();
        let mut values = vec![f32::NAN; shape.iter().product()];
        values[stored.start()..stored.start() + tensor.values.len()].copy_from_slice(&tensor.values);
        (stored.name.clone(), HostTensor { shape, values })
    };
    let source = InMemory(entry.tensors.iter().zip(entry.split(&values)).map(in_file).collect());
    for piece in [(0..60, 0..7), (3..4, 0..7), (7..41, 2..5), (59..60, 6..7), (5..5, 0..7)] {
        let row = |row: usize| piece.1.clone().map(move |column| (row * columns + column) as f32);
        let expected: Vec<f32> = piece.0.clone().flat_map(row).collect();
        let found = entry.read_part(piece.0.clone(), piece.1.clone(), &source, &str::to_owned).unwrap();
        assert_eq!(found, expected, "{fusion:?} {storage:?} {piece:?} {part:?}");
    }
}

#[test]
fn rows_of_two_halves_may_take_turns() {
    let tensors = vec![StoredTensor { name: "a".into(), shape: vec![4, 2], part: None }];
    let (fusion, storage) = (Fusion::Alternating, Storage::RowsAreOutputs);
    let entry = WeightEntry {
        parameter: "p".into(),
        shape: vec![4, 2],
        tensors,
        copies: Vec::new(),
        optional_aliases: &[],
        fusion,
        storage,
        heads: HEADS,
        linear: SIZES.linear,
    };
    let stored = entry.split(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    assert_eq!(stored[0].values, [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
}

#[test]
fn a_parameter_without_a_rule_is_named() {
    let unknown = vec![("decoder.layers.3.mlp.router.weight".to_owned(), vec![4, 7], HEADS)];
    let error =
        WeightMap::from_shapes(&MIXTURE, &|_| true, unknown, SIZES, ExpertLayout::Apart).unwrap_err().to_string();
    assert!(error.contains("mixture") && error.contains("decoder.layers.3.mlp.router.weight"), "{error}");
}

#[test]
fn names_of_a_mixture_of_671_billion_are_mapped_in_linear_time() {
    let parameters = parameters(61, 384);
    assert!(parameters.len() > 44_000, "{}", parameters.len());
    let started = Instant::now();
    let map = WeightMap::from_shapes(&MIXTURE, &|_| true, parameters.clone(), SIZES, ExpertLayout::Apart).unwrap();
    for (name, shape, _) in &parameters {
        assert_eq!(map.entry(name).map(|entry| &entry.shape), Some(shape));
    }
    // A scan by name for each would compare a thousand million names.
    let elapsed = started.elapsed();
    assert!(elapsed < Duration::from_secs(15), "{elapsed:?}");
}
