//! The optimizer against the update written out in float64, and its saved state.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Tensor};

use super::gradients::AccumulationDType;
use super::*;
use crate::model::ModelChunk;
use crate::tests::toy;

fn values(chunk: &dyn ModelChunk) -> BTreeMap<String, Vec<f64>> {
    let mut all = BTreeMap::new();
    chunk.visit_parameters(&mut |name, value| {
        all.insert(name.to_owned(), value.into_data().iter::<f64>().collect());
    });
    all
}

fn fill(buffer: &mut GradientBuffer, chunk: &dyn ModelChunk, step: usize) {
    for info in chunk.parameters() {
        let values: Vec<f32> = (0..info.num_elements()).map(|i| ((i * 7 + step * 3) % 11) as f32 * 0.1 - 0.4).collect();
        buffer.add(&info.name, Tensor::from_floats(values.as_slice(), &Device::flex()));
    }
}

fn optimizer(algorithm: rules::Algorithm, chunks: &[Box<dyn ModelChunk>]) -> Optimizer {
    let settings = OptimizerSettings { algorithm, clip_grad: 1.0, count_zeros: true };
    let distribution = Arc::new(Distribution::single(chunks));
    Optimizer::new(settings, chunks, &StandardOverrides::default(), distribution).unwrap()
}

fn rates(optimizer: &Optimizer) -> Vec<GroupRates> {
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

#[test]
fn restoring_state_continues_to_the_bit() {
    let of_defaults = rules::RULES.iter().map(rules::tests::with_defaults);
    let cases = of_defaults.flat_map(|algorithm| [(algorithm.clone(), FloatDType::F32), (algorithm, FloatDType::BF16)]);
    for (algorithm, dtype) in cases {
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
