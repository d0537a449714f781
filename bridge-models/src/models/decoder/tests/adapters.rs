//! Adapters: against a plain model with the weights merged, gradients included, on one rank and on
//! many.

use bridge_core::config::PeftKind;
use std::sync::Arc;

use bridge_core::model::{
    Adapter, Declaration, Initial, LinearAdaptation, LinearChange, LinearLayer, LinearOperands, LinearRule,
    ParameterRole, Scope, TensorPartition, Workload,
};
use bridge_core::testing::LowRank;
use bridge_dist::comm::{Group, ReduceOp};

use super::moe::mixture;
use super::sharded::with_heads;
use super::spread::{Model, ONE, Spread, check_model, families, mixtures};
use super::*;
use crate::adapters::{Branch, Dropout, LowRankAdapter, Targets};

/// A sketch of DoRA (Liu et al., arXiv:2402.09353, equation 5): each output's row of the merged
/// weight has the norm of the row before, times a ratio that is learned. The norm counts as a
/// constant in backward (section 4.3).
#[derive(Clone, Debug)]
struct Decomposed {
    low_rank: LowRank,
    /// The ranks whose columns make up a row, where there are several.
    ranks: Option<Group>,
}

impl Decomposed {
    fn norms(&self, weight_oi: Tensor<2>) -> Tensor<1> {
        let [rows, _] = weight_oi.dims();
        let squares_o = weight_oi.powi_scalar(2).sum_dim(1).reshape([rows]);
        let Some(ranks) = &self.ranks else {
            return squares_o.sqrt();
        };
        let (device, mut values) = (squares_o.device(), floats(squares_o));
        ranks.all_reduce((&mut values).into(), ReduceOp::Sum).unwrap();
        Tensor::<1>::from_floats(values.as_slice(), &device).sqrt()
    }
}

impl Adapter for Decomposed {
    fn trains(&self, declaration: &Declaration) -> bool {
        self.low_rank.trains(declaration)
    }

    fn adapt(&self, layer: &LinearLayer, scope: &Scope) -> Option<LinearAdaptation> {
        let scope_of_adapter = scope.child("adapter");
        let matrix = |name, shape, cut| {
            scope_of_adapter.parameter(name, shape, cut, Initial::Normal(0.2), ParameterRole::Weight)
        };
        let a = matrix("a", [self.low_rank.rank, layer.inputs], layer.cut_by_inputs());
        let b = matrix("b", [layer.outputs, self.low_rank.rank], layer.cut_by_outputs());
        let (cut, ones, role) = (layer.cut_by_outputs(), Initial::Ones, ParameterRole::Norm);
        let ratio = scope_of_adapter.parameter("ratio", [layer.outputs], cut, ones, role);
        let ranks = scope.group().filter(|_| layer.cut == bridge_core::model::TensorPartition::Columns).cloned();
        Some(LinearAdaptation::new(vec![a, b], vec![ratio], Self { ranks, ..self.clone() }))
    }
}

impl LinearRule for Decomposed {
    fn change(&self, operands: LinearOperands<'_>) -> LinearChange {
        let [a_ri, b_or] = [0, 1].map(|i| operands.matrices[i].clone().without_autodiff());
        let x_ni = &operands.x_ni;
        let weight_oi = operands.weight.whole(&x_ni.device(), x_ni.dtype().into()).without_autodiff();
        let merged_oi = weight_oi.clone() + b_or.matmul(a_ri) * self.low_rank.scale;
        let ratio_o = self.norms(weight_oi) / self.norms(merged_oi);
        let factors_o = Some(operands.vectors[0].clone() * ratio_o.autodiff());
        LinearChange { factors_o, ..self.low_rank.change(operands) }
    }
}

/// Branches that do not begin with zero; norms, and the tables at both ends, are trained in full.
fn low_rank() -> LowRank {
    LowRank { start: Initial::Normal(0.2), trains: |name| !name.contains(".linear_"), ..LowRank::default() }
}

fn build_adapted(config: &DecoderConfig, adapter: impl Adapter + 'static) -> Box<dyn ModelChunk> {
    let context = BuildContext { adapter: Some(Arc::new(adapter)), ..context(config) };
    build_decoder(config, &context, &Stage::whole([config.num_layers])).unwrap()
}

fn cases() -> Vec<(&'static str, DecoderConfig)> {
    let residual = ResidualConfig { branch_multiplier: 0.7, stream_multiplier: 1.2, ..ResidualConfig::default() };
    vec![
        ("llama", llama()),
        ("gpt2", gpt2()),
        ("everything", everything()),
        ("mixture", mixture(5, 2)),
        ("multipliers", DecoderConfig { residual, ..llama() }),
    ]
}

/// `[rows, inner]` times `[inner, columns]`, of which the first may be transposed.
fn product(a: &[f64], b: &[f64], [rows, inner, columns]: [usize; 3]) -> Vec<f64> {
    let mut sums = vec![0.0; rows * columns];
    for (i, sum) in sums.iter_mut().enumerate() {
        let (row, column) = (i / columns, i % columns);
        *sum = (0..inner).map(|k| a[row * inner + k] * b[k * columns + column]).sum();
    }
    sums
}

fn transposed(a: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    (0..a.len()).map(|i| a[i % rows * columns + i / rows]).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// A linear layer with its branch, in float64.
struct Merged {
    layer: String,
    /// Rank, inputs, outputs.
    sizes: [usize; 3],
    a: Vec<f64>,
    b: Vec<f64>,
    /// A factor for each output; those of a ratio of one.
    factors: Vec<f64>,
    weight: Vec<f64>,
}

impl Merged {
    fn all(chunk: &dyn ModelChunk, scale: f64) -> Vec<Self> {
        let found = values(chunk);
        let shapes: BTreeMap<_, _> = chunk.parameters().iter().map(|info| (&info.name, &info.shape)).collect();
        let layers = found.keys().filter_map(|name| name.strip_suffix(".adapter.a"));
        let merged = |layer: &str| {
            let of = |name: &str| wide(&found[&format!("{layer}.{name}")]);
            let shape = shapes[&format!("{layer}.adapter.a")];
            let (rank, inputs) = (shape[0], shape[1]);
            let (a, b, base) = (of("adapter.a"), of("adapter.b"), of("weight"));
            let outputs = b.len() / rank;
            let branch = product(&b, &a, [outputs, rank, inputs]);
            let sum: Vec<f64> = base.iter().zip(branch).map(|(w, added)| w + scale * added).collect();
            let norm = |row: &[f64]| row.iter().map(|w| w * w).sum::<f64>().sqrt();
            let factors: Vec<f64> = match found.get(&format!("{layer}.adapter.ratio")) {
                Some(_) => base.chunks(inputs).zip(sum.chunks(inputs)).map(|(w, sum)| norm(w) / norm(sum)).collect(),
                None => vec![1.0; outputs],
            };
            let ratio = found.get(&format!("{layer}.adapter.ratio")).map_or(vec![1.0; outputs], |r| wide(r));
            let weight = sum.iter().enumerate().map(|(i, w)| w * factors[i / inputs] * ratio[i / inputs]).collect();
            let factors = factors.iter().zip(ratio).map(|(factor, ratio)| factor * ratio).collect();
            Self { layer: layer.to_owned(), sizes: [rank, inputs, outputs], a, b, factors, weight }
        };
        layers.map(merged).collect()
    }

    /// Gradients of the adapter's parameters, from that of the merged weight.
    fn gradients(&self, d_weight: &[f32], scale: f64, ratio: Option<&Vec<f32>>) -> Vec<(&'static str, Vec<f64>)> {
        let [rank, inputs, outputs] = self.sizes;
        let d_weight = wide(d_weight);
        let scaled: Vec<f64> = d_weight.iter().enumerate().map(|(i, d)| scale * d * self.factors[i / inputs]).collect();
        let da = product(&transposed(&self.b, [outputs, rank]), &scaled, [rank, outputs, inputs]);
        let db = product(&scaled, &transposed(&self.a, [rank, inputs]), [outputs, inputs, rank]);
        let mut all = vec![("a", da), ("b", db)];
        all.extend(ratio.map(|ratio| {
            let rows = d_weight.chunks(inputs).zip(self.weight.chunks(inputs)).zip(ratio);
            let of_row = |(row, ratio): ((&[f64], &[f64]), &f32)| {
                row.0.iter().zip(row.1).map(|(d, w)| d * w).sum::<f64>() / f64::from(*ratio)
            };
            ("ratio", rows.map(of_row).collect())
        }));
        all
    }
}

fn check_against_plain(name: &str, config: &DecoderConfig, chunk: &mut dyn ModelChunk, scale: f64) {
    let noise = bridge_kernels::Philox::new(7);
    let moved: Vec<String> = values(chunk).into_keys().filter(|name| name.ends_with(".ratio")).collect();
    chunk.update_parameters(&mut |name, value| {
        if !moved.iter().any(|moved| moved == name) {
            return value.into();
        }
        let noise = noise.derive_name(name).normal(value.dims()[0], 0.1);
        let device = value.device();
        (value + Tensor::<1>::from_floats(noise.as_slice(), &device)).into()
    });
    let merged = Merged::all(chunk, scale);
    assert!(merged.len() >= 4 * config.num_layers, "{name}: {} layers are adapted", merged.len());
    let adapted = values(chunk);
    let mut of_plain = adapted.clone();
    of_plain.retain(|name, _| !name.contains(".adapter."));
    for Merged { layer, weight, .. } in &merged {
        of_plain.insert(format!("{layer}.weight"), weight.iter().map(|w| *w as f32).collect());
    }
    let mut plain = build(config);
    set_values(plain.as_mut(), &of_plain);
    let ids = tokens(9, config.vocab_size);
    assert_close(&logits(chunk, &ids), &logits(plain.as_ref(), &ids), 2e-5);
    let batch = Batch::new(&micro_batch(config.vocab_size), &device());
    let (expected_loss, plain_gradients) = loss_and_gradients(plain.as_ref(), &batch, Mode::Evaluate);
    let (loss, mut gradients) = loss_and_gradients(chunk, &batch, Mode::Evaluate);
    assert!((loss / expected_loss - 1.0).abs() < 1e-5, "{name}: {loss}, expected {expected_loss}");
    let mut compare = |what: &str, expected: &[f64]| {
        let found = gradients.remove(what).unwrap_or_else(|| panic!("{name}: {what} has no gradient"));
        let largest = expected.iter().fold(0.0_f64, |largest, g| largest.max(g.abs()));
        for (a, b) in found.iter().zip(expected) {
            assert!((f64::from(*a) - b).abs() <= 3e-5 * largest.max(1e-3), "{name}: {what}: {a}, expected {b}");
        }
    };
    for of_layer in &merged {
        let layer = &of_layer.layer;
        let ratio = adapted.get(&format!("{layer}.adapter.ratio"));
        for (what, expected) in of_layer.gradients(&plain_gradients[&format!("{layer}.weight")], scale, ratio) {
            compare(&format!("{layer}.adapter.{what}"), &expected);
        }
    }
    for info in chunk.parameters().iter().filter(|info| info.trainable && !info.name.contains(".adapter.")) {
        compare(&info.name, &wide(&plain_gradients[&info.name]));
    }
    assert!(gradients.is_empty(), "{name}: frozen parameters have gradients: {:?}", gradients.keys());
}

#[test]
fn a_branch_is_a_merged_weight() {
    for (name, config) in cases() {
        let adapter = low_rank();
        check_against_plain(name, &config, build_adapted(&config, adapter).as_mut(), adapter.scale);
    }
}

#[test]
fn a_scaled_product_is_a_merged_weight() {
    for (name, config) in cases() {
        let adapter = Decomposed { low_rank: low_rank(), ranks: None };
        check_against_plain(name, &config, build_adapted(&config, adapter).as_mut(), low_rank().scale);
    }
}

#[test]
fn a_branch_of_zero_changes_no_bit() {
    for (name, config) in cases() {
        let (plain, adapted) = (build(&config), {
            let mut adapted = build_adapted(&config, LowRank::default());
            let mut of_adapted = values(adapted.as_ref());
            of_adapted.extend(values(build(&config).as_ref()));
            set_values(adapted.as_mut(), &of_adapted);
            adapted
        });
        let ids = tokens(11, config.vocab_size);
        assert_eq!(logits(adapted.as_ref(), &ids), logits(plain.as_ref(), &ids), "{name}");
        let batch = Batch::new(&micro_batch(config.vocab_size), &device());
        let of = |chunk: &dyn ModelChunk| floats(loss_sum(&[chunk], &batch, Mode::Evaluate));
        assert_eq!(of(adapted.as_ref()), of(plain.as_ref()), "{name}");
    }
}

#[test]
fn many_ranks_compute_with_adapters_what_one_does() {
    let tensor = Spread { tensor: 2, ..ONE };
    let dense = [tensor, Spread { sequence_parallel: true, ..tensor }, Spread { context: 2, ..ONE }];
    let adapter = || Some(Arc::new(low_rank()) as Arc<dyn Adapter>);
    let decomposed = || Some(Arc::new(Decomposed { low_rank: low_rank(), ranks: None }) as Arc<dyn Adapter>);
    for (family, config) in families() {
        check_model(family, &Model { config: config.clone(), adapter: adapter() }, &dense);
        check_model(family, &Model { config, adapter: decomposed() }, &dense[..2]);
    }
    let config = with_heads(everything(), [8, 2, 4]);
    let shared_heads = Model { config, adapter: adapter() };
    check_model("keys and values of several ranks", &shared_heads, &[Spread { tensor: 4, ..ONE }]);
    let whole_experts = Spread { expert_tensor: Some(1), sequence_parallel: true, ..tensor };
    let in_halves = Spread { tensor: 4, expert_tensor: Some(2), expert: 2, sequence_parallel: true, ..ONE };
    let expert = Spread { expert: 2, data: 2, ..ONE };
    for (family, config) in mixtures() {
        let spreads = [tensor, expert, Spread { expert: 2, ..whole_experts }, whole_experts, in_halves];
        check_model(family, &Model { config: config.clone(), adapter: adapter() }, &spreads);
        check_model(family, &Model { config, adapter: decomposed() }, &[tensor, in_halves]);
    }
}

/// Branches of ranks that differ at parts of fused layers, but the second: at whole layers
/// elsewhere.
#[derive(Debug)]
struct InParts;

impl Targets for InParts {
    fn branches(&self, layer: &LinearLayer, _: &Scope) -> Vec<Branch> {
        let parts: &[usize] = match layer.cut {
            TensorPartition::KeyValueGroups { .. } => &[0, 2],
            TensorPartition::Blocks(2) => &[1],
            _ => return vec![Branch { part: None, rank: 2, scale: 0.4 }],
        };
        parts.iter().map(|part| Branch { part: Some(*part), rank: 3 + part, scale: 0.7 }).collect()
    }

    fn trains(&self, declaration: &Declaration) -> bool {
        declaration.name.contains("norm")
    }
}

#[test]
fn many_ranks_compute_with_branches_of_parts_what_one_does() {
    let tensor = Spread { tensor: 2, ..ONE };
    let spreads = [tensor, Spread { sequence_parallel: true, ..tensor }, Spread { context: 2, ..ONE }];
    let adapter = |method| {
        let normal = |_: usize, _: usize| Initial::Normal(0.2);
        let adapter = LowRankAdapter::new(Arc::new(InParts), method, [normal, normal], Dropout::default());
        Some(Arc::new(adapter) as Arc<dyn Adapter>)
    };
    for (family, config) in families() {
        check_model(family, &Model { config: config.clone(), adapter: adapter(PeftKind::Lora) }, &spreads);
        check_model(family, &Model { config, adapter: adapter(PeftKind::Dora) }, &spreads[..2]);
    }
    let [fused, ..] = gates();
    for config in [everything(), fused].map(|config| with_heads(config, [8, 2, 4])) {
        for method in [PeftKind::Lora, PeftKind::Dora] {
            let shared_heads = Model { config: config.clone(), adapter: adapter(method) };
            check_model("keys and values of several ranks", &shared_heads, &[Spread { tensor: 4, ..ONE }]);
        }
    }
    let in_halves = Spread { tensor: 4, expert_tensor: Some(2), expert: 2, sequence_parallel: true, ..ONE };
    for (family, config) in mixtures() {
        check_model(family, &Model { config, adapter: adapter(PeftKind::Dora) }, &[tensor, in_halves]);
    }
}

#[test]
fn an_outline_declares_what_a_chunk_does() {
    for (name, config) in cases() {
        let chunk = build_adapted(&config, low_rank());
        let work = Workload::sequence(8, config.padded_vocab_size);
        let adapter: Arc<dyn Adapter> = Arc::new(low_rank());
        let stage = Stage::whole([config.num_layers]);
        let outline = super::super::model::outline(&config, &work, &stage, Some(adapter)).declarations;
        let sorted = |all: &[Declaration]| {
            let mut all = all.to_vec();
            all.sort_by(|a, b| a.name.cmp(&b.name));
            all
        };
        assert_eq!(sorted(outline.parameters()), sorted(chunk.parameters()), "{name}");
    }
}
