//! Rules of matrices agree with NVIDIA's Emerging-Optimizers and PyTorch, whose values the fixture
//! has: two matrices, three gradients each, and the matrices after these steps in each case.

use burn::tensor::{Device, Tensor, TensorData};

use super::*;
use crate::config::{
    MatmulPrecision, Moment2Method, MuonCoefficients, MuonScaleMode, OptimizerConfig, optimizer_rules,
};

const SHAPES: [[usize; 2]; 2] = [[17, 29], [40, 12]];
const STEPS: usize = 3;

/// Settings of all cases, unless they differ.
fn settings() -> OptimizerConfig {
    OptimizerConfig {
        muon_fp32_matmul_prec: MatmulPrecision::Highest,
        adaptive_muon_beta2: 0.95,
        ..OptimizerConfig::default()
    }
}

fn muon(change: impl FnOnce(&mut OptimizerConfig)) -> Algorithm {
    let mut settings = settings();
    change(&mut settings);
    named("muon").unwrap().with(&settings)
}

fn adaptive(method: Moment2Method, nesterov: bool) -> Algorithm {
    let settings = OptimizerConfig { adaptive_muon_moment2_method: method, muon_nesterov: nesterov, ..settings() };
    named("adaptive_muon").unwrap().with(&settings)
}

/// Algorithms of the cases, in the order of the fixture; `None` for cases that are not compared.
fn cases() -> Vec<(&'static str, Option<Algorithm>)> {
    use MuonCoefficients as Kind;
    let kind = |kind| Some(muon(|settings| settings.muon_coefficient_type = kind));
    let scaled = |mode| {
        Some(muon(|settings| {
            (settings.muon_scale_mode, settings.muon_extra_scale_factor, settings.muon_nesterov) = (mode, 0.2, true);
        }))
    };
    let steps = |kind, steps| {
        Some(muon(|settings| (settings.muon_coefficient_type, settings.muon_num_ns_steps) = (kind, steps)))
    };
    let namo = OptimizerConfig {
        adaptive_muon_moment2_method: Moment2Method::Namo,
        muon_nesterov: true,
        adaptive_muon_beta2: 0.9,
        adaptive_muon_eps: 1e-6,
        ..settings()
    };
    vec![
        ("quintic", kind(Kind::Quintic)),
        ("simple", kind(Kind::Simple)),
        ("polar_express", kind(Kind::PolarExpress)),
        ("cans", kind(Kind::Cans)),
        ("aol", kind(Kind::Aol)),
        ("shape_scaling", scaled(MuonScaleMode::ShapeScaling)),
        ("spectral", scaled(MuonScaleMode::Spectral)),
        ("unit_rms_norm", scaled(MuonScaleMode::UnitRmsNorm)),
        ("adamuon", Some(adaptive(Moment2Method::Adamuon, false))),
        ("adamuon, nesterov", Some(adaptive(Moment2Method::Adamuon, true))),
        ("normuon", Some(adaptive(Moment2Method::Normuon, false))),
        ("normuon, nesterov", Some(adaptive(Moment2Method::Normuon, true))),
        // Steps of matrices that are not square are not determined: see `soap`.
        ("soap", None),
        ("soap, kl", None),
        (
            "torch",
            Some(muon(|settings| {
                (settings.muon_nesterov, settings.muon_extra_scale_factor) = (true, 0.2);
                settings.muon_coefficient_type = Kind::Simple;
            })),
        ),
        ("deepseekv4", steps(Kind::DeepseekV4, 10)),
        ("cubic5", steps(Kind::Cubic5, 5)),
        ("polar_express, 9 steps", steps(Kind::PolarExpress, 9)),
        ("namo", Some(named("adaptive_muon").unwrap().with(&namo))),
    ]
}

/// Numbers of a fixture.
pub(super) fn fixture(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

pub(super) fn tensor(values: &[f32]) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &Device::flex())
}

pub(super) fn numbers(x: &Tensor<1>) -> Vec<f64> {
    x.to_data().iter::<f64>().collect()
}

/// Norm of the difference of two tensors, relative to the norm of the second one.
pub(super) fn difference(found: &[f64], expected: &[f64]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    squares(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / squares(&mut expected.iter().copied())
}

fn step(number: u64, shape: &[usize]) -> UpdateStep<'_> {
    let (learning_rate, weight_decay) = (0.02, 0.1);
    UpdateStep { learning_rate, weight_decay, eps_mult: 1.0, number, gradient_scale: 0.5, shape }
}

/// Makes steps of one matrix with twice the gradients, which the step scales back.
pub(super) fn run_with(
    algorithm: &Algorithm,
    start: &Tensor<1>,
    gradients: &[Tensor<1>],
    shape: &[usize],
    parts: &[Vec<std::ops::Range<usize>>],
) -> Values {
    let state = |state: &State| {
        let len = state.shape_for(&algorithm.settings, shape).iter().product();
        state.first(start, len)
    };
    let states = algorithm.rule.states.iter().map(state).collect();
    let mut values = Values { parameter: start.clone(), states };
    for (number, gradient) in gradients.iter().enumerate() {
        let (gradient, step) = (gradient.clone() * 2.0, step(number as u64 + 1, shape));
        let whole = WholeParameter { values, gradient, step, parts };
        values = algorithm.update.update_whole(vec![whole]).remove(0);
    }
    values
}

#[test]
fn steps_agree_with_upstream() {
    let values = fixture(include_bytes!("../../../tests/fixtures/optim/matrix_rules.f32"));
    let mut rest = values.as_slice();
    let mut take = |len: usize| {
        let (values, after) = rest.split_at(len);
        rest = after;
        tensor(values)
    };
    let lens = SHAPES.map(|shape| shape[0] * shape[1]);
    let inputs: Vec<Vec<Tensor<1>>> = lens.iter().map(|len| (0..=STEPS).map(|_| take(*len)).collect()).collect();
    for (name, algorithm) in cases() {
        for ((shape, input), len) in SHAPES.iter().zip(&inputs).zip(lens) {
            let expected = take(len);
            let Some(algorithm) = &algorithm else { continue };
            let found = run_with(algorithm, &input[0], &input[1..], shape, &[]).parameter;
            let (found, expected, start) = (numbers(&found), numbers(&expected), numbers(&input[0]));
            if name == "torch" {
                // PyTorch orthogonalizes in bfloat16: compared with the length of the update.
                let moved = |to: &[f64]| to.iter().zip(&start).map(|(to, from)| to - from).collect::<Vec<_>>();
                let far = difference(&moved(&found), &moved(&expected));
                assert!(far < 2e-2, "{name} {shape:?}: {far}");
            } else {
                let far = difference(&found, &expected);
                assert!(far < 1e-5, "{name} {shape:?}: {far}");
            }
        }
    }
    assert!(rest.is_empty());
}

/// Parts of a fused projection are updated as matrices of their own, also if their rows are apart.
#[test]
fn parts_of_a_projection_are_matrices() {
    let (shape, columns) = ([12, 5], 5);
    let start = tensor(&(0..60).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<_>>());
    let gradient = tensor(&(0..60).map(|i| ((i * i) % 11) as f32 - 5.0).collect::<Vec<_>>());
    // Two groups with three rows of queries, one of keys and two of values each.
    let parts = vec![vec![0..3, 6..9], vec![3..4, 9..10], vec![4..6, 10..12]];
    for (splits, scale_mode) in
        [(true, MuonScaleMode::Spectral), (true, MuonScaleMode::UnitRmsNorm), (false, MuonScaleMode::Spectral)]
    {
        let algorithm = muon(|settings| (settings.muon_split_qkv, settings.muon_scale_mode) = (splits, scale_mode));
        let found = numbers(&run_with(&algorithm, &start, std::slice::from_ref(&gradient), &shape, &parts).parameter);
        let whole = vec![vec![0..12]];
        for rows in if splits { &parts } else { &whole } {
            let of = |x: &Tensor<1>| -> Vec<f32> {
                let values: Vec<f64> = numbers(x);
                rows.iter()
                    .flat_map(|rows| &values[rows.start * columns..rows.end * columns])
                    .map(|x| *x as f32)
                    .collect()
            };
            let count = rows.iter().map(|rows| rows.len()).sum();
            let alone = run_with(&algorithm, &tensor(&of(&start)), &[tensor(&of(&gradient))], &[count, columns], &[]);
            let found: Vec<f64> =
                rows.iter().flat_map(|rows| &found[rows.start * columns..rows.end * columns]).copied().collect();
            assert!(difference(&found, &numbers(&alone.parameter)) < 1e-6, "{rows:?}");
        }
    }
    assert_eq!(optimizer_rules::MUON.name, "muon");
}
