//! The optimizer against the update written out in float64, and its saved state.

use std::collections::BTreeMap;
use std::sync::Arc;

use bridge_kernels::optim::{Format, Master, MasterFormat, Stored};
use burn::tensor::{Device, FloatDType, Tensor};

use super::gradients::AccumulationDType;
use super::rules::StateFormats;
use super::*;
use crate::model::ModelChunk;
use crate::tests::toy;

pub(super) fn values(chunk: &dyn ModelChunk) -> BTreeMap<String, Vec<f64>> {
    let mut all = BTreeMap::new();
    chunk.visit_parameters(&mut |name, value| {
        all.insert(name.to_owned(), value.into_data().iter::<f64>().collect());
    });
    all
}

pub(super) fn fill(buffer: &mut GradientBuffer, chunk: &dyn ModelChunk, step: usize) {
    for info in chunk.parameters() {
        let values: Vec<f32> = (0..info.num_elements()).map(|i| ((i * 7 + step * 3) % 11) as f32 * 0.1 - 0.4).collect();
        buffer.add(&info.name, Tensor::from_floats(values.as_slice(), &Device::flex()));
    }
}

fn optimizer(algorithm: rules::Algorithm, chunks: &[Box<dyn ModelChunk>]) -> Optimizer {
    let settings = OptimizerSettings {
        algorithm,
        clip_grad: 1.0,
        skip_above: f64::INFINITY,
        ema_decay: None,
        count_zeros: true,
        offload: None,
    };
    let (provider, distribution) =
        (rules::tests::overrides(&settings.algorithm), Arc::new(Distribution::single(chunks)));
    Optimizer::new(settings, chunks, &provider, distribution).unwrap()
}

pub(super) fn rates(optimizer: &Optimizer) -> Vec<GroupRates> {
    optimizer.groups().map(|g| GroupRates { learning_rate: 0.01, weight_decay: 0.1 * g.wd_mult }).collect()
}

#[test]
fn adamw_agrees_with_float64() {
    let mut chunks = vec![toy(2, FloatDType::F32)];
    let mut optimizer = optimizer(rules::tests::adam(), &chunks);
    let mut expected = values(chunks[0].as_ref());
    let shapes: BTreeMap<_, _> = chunks[0].parameters().iter().map(|p| (p.name.clone(), p.shape.len())).collect();
    let mut moments: BTreeMap<String, Vec<(f64, f64)>> =
        expected.iter().map(|(name, v)| (name.clone(), vec![(0.0, 0.0); v.len()])).collect();
    let scales = StepScales { loss_scale: 4.0, divisor: 2.0 };
    for step in 1..=3 {
        let mut buffer = GradientBuffer::new(AccumulationDType::Float32);
        fill(&mut buffer, chunks[0].as_ref(), step);
        fill(&mut buffer, chunks[0].as_ref(), step + 1);
        let gradient = |i: usize| {
            let part = |s: usize| f64::from(((i * 7 + s * 3) % 11) as f32 * 0.1 - 0.4);
            (part(step) + part(step + 1)) / 8.0
        };
        let norm = expected.values().flat_map(|v| (0..v.len()).map(|i| gradient(i).powi(2))).sum::<f64>().sqrt();
        let rates = rates(&optimizer);
        let outcome = optimizer.step(&mut chunks, &mut buffer, &rates, scales).unwrap();
        assert!(outcome.success && outcome.num_zeros.is_some());
        assert!((outcome.grad_norm / norm - 1.0).abs() < 1e-6, "{} {norm}", outcome.grad_norm);
        let clip = (1.0 / (norm + 1e-6)).min(1.0);
        for (name, parameter) in &mut expected {
            let decay = if shapes[name] >= 2 { 0.1 } else { 0.0 };
            for (i, (p, (m, v))) in parameter.iter_mut().zip(moments.get_mut(name).unwrap()).enumerate() {
                let g = gradient(i) * clip;
                *p *= 1.0 - 0.01 * decay;
                *m = 0.9 * *m + 0.1 * g;
                *v = 0.95 * *v + 0.05 * g * g;
                let (c1, c2) = (1.0 - 0.9_f64.powi(step as i32), 1.0 - 0.95_f64.powi(step as i32));
                *p -= 0.01 / c1 * *m / ((*v / c2).sqrt() + 1e-8);
            }
        }
        for (name, found) in values(chunks[0].as_ref()) {
            for (a, b) in found.iter().zip(&expected[&name]) {
                assert!((a - b).abs() < 2e-6, "step {step}, {name}: {a} {b}");
            }
        }
    }
}

/// Formats of states, each of them somewhere, with dtypes of parameters.
pub(super) fn formats() -> [(StateFormats, FloatDType); 4] {
    let of = |master, states: [Format; 2], dtype| (StateFormats { master, states: states.into() }, dtype);
    [
        of(MasterFormat::Float32, [Format::Float8, Format::Float16], FloatDType::F32),
        of(MasterFormat::Remainders, [Format::BFloat16, Format::Float8], FloatDType::BF16),
        of(MasterFormat::Float16, [Format::Float16, Format::BFloat16], FloatDType::BF16),
        of(MasterFormat::Float16, [Format::Float8, Format::Float32], FloatDType::F16),
    ]
}

/// Runs some steps. Returns the chunks and the optimizer.
fn steps(algorithm: rules::Algorithm, dtype: FloatDType, number: usize) -> (Vec<Box<dyn ModelChunk>>, Optimizer) {
    let mut chunks = vec![toy(2, dtype)];
    let mut current = optimizer(algorithm, &chunks);
    for step in 1..=number {
        let mut buffer = GradientBuffer::new(AccumulationDType::AsComputed);
        fill(&mut buffer, chunks[0].as_ref(), step);
        let rates = rates(&current);
        current.step(&mut chunks, &mut buffer, &rates, StepScales { loss_scale: 1.0, divisor: 1.0 }).unwrap();
    }
    (chunks, current)
}

#[test]
fn states_take_the_bytes_of_their_formats() {
    for (formats, dtype) in formats() {
        let (chunks, optimizer) = steps(rules::tests::adam().keeping(formats.clone()), dtype, 2);
        let tensors = chunks[0].parameters();
        let elements: usize = tensors.iter().map(crate::model::Declaration::num_elements).sum();
        let has_master = dtype != FloatDType::F32;
        let scales = 4 * formats.num_scales() * tensors.len();
        let expected = (formats.bytes_per_element(has_master) * elements as f64) as u64 + scales as u64;
        assert_eq!(optimizer.state_bytes(), expected, "{formats:?}");
        let state = optimizer.state();
        for (name, format) in [("exp_avg", formats.states[0]), ("exp_avg_sq", formats.states[1])] {
            let stored = &state.tensors[&format!("{name}.{}", tensors[0].name)];
            assert_eq!((stored.format(), stored.scale().is_some()), (Some(format), format.is_scaled()));
        }
        assert_eq!(state.remainders.len(), if formats.master == MasterFormat::Remainders { tensors.len() } else { 0 });
    }
}

#[test]
fn remainders_change_no_bit_of_twenty_steps() {
    let with = |master| {
        let formats = StateFormats { master, states: vec![Format::Float32; 2] };
        steps(rules::tests::adam().keeping(formats), FloatDType::BF16, 20)
    };
    let found = |(chunks, optimizer): &(Vec<Box<dyn ModelChunk>>, Optimizer)| {
        let mut masters = BTreeMap::new();
        optimizer.visit_counted(chunks, &mut |name, value| {
            masters.insert(name.to_owned(), value.to_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>());
        });
        (values(chunks[0].as_ref()), masters, optimizer.parameter_norm(chunks).unwrap())
    };
    let plain = found(&steps(rules::tests::adam(), FloatDType::BF16, 20));
    assert!(plain.1.values().flatten().any(|bits| bits & 0xffff != 0), "masters have more bits than parameters");
    assert!(found(&with(MasterFormat::Remainders)) == plain, "remainders");
    assert!(found(&with(MasterFormat::Float32)) == plain, "whole masters");
}

#[test]
fn states_saved_in_other_formats_go_on() {
    let adam = rules::tests::adam();
    let kept = formats().map(|(formats, _)| adam.clone().keeping(formats));
    // Remainders need bfloat16, and all other formats support it.
    for from in std::iter::once(&adam).chain(&kept) {
        for to in std::iter::once(&adam).chain(&kept) {
            let (mut chunks, saved) = steps(from.clone(), FloatDType::BF16, 3);
            let owned = saved.updated(&chunks);
            let state = saved.state();
            let mut next = optimizer(to.clone(), &chunks);
            next.begin_loading(state.step);
            for (key, stored) in &state.tensors {
                let parameter = &owned[key.split_once('.').unwrap().1];
                assert!(next.load_tensor(key, stored.clone(), Some(parameter)), "{key}");
            }
            for (key, remainders) in state.remainders {
                let parameter = &owned[key.split_once('.').unwrap().1];
                let whole = Stored::Plain(Master::Remainders(remainders).widen(parameter));
                assert!(next.load_tensor(&key, whole, Some(parameter)), "{key}");
            }
            let keeps = to.formats.as_ref().map(|formats| formats.master);
            if keeps == Some(MasterFormat::Remainders) && from.formats.is_none() {
                assert_eq!(next.state().remainders.len(), owned.len(), "whole masters become remainders at once");
            }
            let before = values(chunks[0].as_ref());
            assert!(
                (next.parameter_norm(&chunks).unwrap() / saved.parameter_norm(&chunks).unwrap() - 1.0).abs() < 1e-12
            );
            let mut buffer = GradientBuffer::new(AccumulationDType::Float32);
            fill(&mut buffer, chunks[0].as_ref(), 4);
            let rates = rates(&next);
            next.step(&mut chunks, &mut buffer, &rates, StepScales { loss_scale: 1.0, divisor: 1.0 }).unwrap();
            let moved = values(chunks[0].as_ref());
            let largest = moved.values().flatten().zip(before.values().flatten()).map(|(a, b)| (a - b).abs());
            let largest = largest.fold(0.0, f64::max);
            assert!((1e-4..0.1).contains(&largest), "from {from:?} to {to:?}: moved by {largest}");
            let (_, direct) = steps(to.clone(), FloatDType::BF16, 1);
            assert_eq!(next.state_bytes(), direct.state_bytes(), "from {from:?} to {to:?}");
        }
    }
}

#[test]
fn restoring_state_continues_to_the_bit() {
    let of_defaults = rules::RULES.iter().map(rules::tests::with_defaults);
    let cases = of_defaults.flat_map(|algorithm| [(algorithm.clone(), FloatDType::F32), (algorithm, FloatDType::BF16)]);
    let of_formats = formats().map(|(formats, dtype)| (rules::tests::adam().keeping(formats), dtype));
    for (algorithm, dtype) in cases.chain(of_formats) {
        let run = |interrupt: bool| {
            let mut chunks = vec![toy(1, dtype)];
            let mut current = optimizer(algorithm.clone(), &chunks);
            for step in 1..=4 {
                let mut buffer = GradientBuffer::new(AccumulationDType::Float32);
                fill(&mut buffer, chunks[0].as_ref(), step);
                let rates = rates(&current);
                let scales = StepScales { loss_scale: 1.0, divisor: 1.0 };
                current.step(&mut chunks, &mut buffer, &rates, scales).unwrap();
                if interrupt && step == 2 {
                    let state = current.state();
                    current = optimizer(algorithm.clone(), &chunks);
                    assert!(current.load_state(state).is_empty());
                }
            }
            (values(chunks[0].as_ref()), current.parameter_norm(&chunks).unwrap())
        };
        assert_eq!(run(false), run(true), "{algorithm:?} {dtype:?}");
    }
}

#[test]
fn gradients_that_are_not_finite_change_nothing() {
    let mut chunks = vec![toy(1, FloatDType::F32)];
    let before = values(chunks[0].as_ref());
    let mut optimizer = optimizer(rules::tests::adam(), &chunks);
    let mut buffer = GradientBuffer::new(AccumulationDType::Float32);
    fill(&mut buffer, chunks[0].as_ref(), 1);
    let count = chunks[0].parameters()[0].num_elements();
    let name = chunks[0].parameters()[0].name.clone();
    buffer.add(&name, Tensor::from_floats(vec![f32::INFINITY; count].as_slice(), &Device::flex()));
    let rates = rates(&optimizer);
    let outcome =
        optimizer.step(&mut chunks, &mut buffer, &rates, StepScales { loss_scale: 1.0, divisor: 1.0 }).unwrap();
    assert!(!outcome.success);
    assert_eq!(before, values(chunks[0].as_ref()));
    assert_eq!(optimizer.state().step, 0);
}
