//! Declarations of rules are consistent; a rule with states that no built-in one has covers the
//! rest of the declarations.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bridge_kernels::optim::Stored;
use burn::tensor::{Device, FloatDType, Tensor};
use serde_json::Value;

use super::*;
use crate::config::optimizer_rules::{self, OptimizerRule, ScalarRule, UpdateSize};
use crate::config::{Format as RecipeFormat, Kinds, OptimizerConfig, RawConfig, Section, TypeSpec};
use crate::optim::{
    AccumulationDType, Distribution, GradientBuffer, GroupRates, GroupSettings, Optimizer, OptimizerSettings,
    StandardOverrides, StepScales,
};
use crate::tests::toy;

/// A rule with the defaults of its settings.
pub(in crate::optim) fn with_defaults(rule: &'static Rule) -> Algorithm {
    rule.with(&OptimizerConfig::default())
}

/// AdamW with the constants of most tests.
pub(in crate::optim) fn adam() -> Algorithm {
    named("adam").unwrap().with(&OptimizerConfig { adam_beta2: 0.95, ..OptimizerConfig::default() })
}

/// Groups with the rule that goes with a rule of matrices.
pub(in crate::optim) fn overrides(algorithm: &Algorithm) -> StandardOverrides {
    let scalar_rule = algorithm.rule.declared.scalar_rule(&algorithm.settings).map(|rule| rule.name);
    StandardOverrides { scalar_rule, ..StandardOverrides::default() }
}

/// An element of a parameter with its states.
#[derive(Clone, Debug)]
pub(super) struct Element<const N: usize> {
    pub value: f64,
    pub states: [f64; N],
}

/// Compares ten steps with an update of one element in float64, at odd sizes. The reference gets
/// the element, its gradient, the number of the step, learning rate and weight decay.
pub(super) fn agrees_with_float64<const N: usize>(
    algorithm: &Algorithm,
    reference: impl Fn(&mut Element<N>, f64, u64, [f64; 2]),
) {
    let flat = |values: Vec<f64>| {
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        Tensor::<1>::from_floats(values.as_slice(), &Device::flex())
    };
    for (size, weight_decay) in [(1, 0.1), (7, 0.0), (131, 0.3)] {
        let parameter = flat((0..size).map(|i| (i % 13) as f64 * 0.25 - 1.5).collect());
        let states = algorithm.rule.states.iter().map(|state| state.first(&parameter, size)).collect();
        let mut values = Values { parameter, states };
        let elements = |values: &Values| -> Vec<Element<N>> {
            let (parameter, states) = (numbers(&values.parameter), values.states.iter().map(numbers));
            let states: Vec<Vec<f64>> = states.collect();
            let element = |(i, value)| Element { value, states: std::array::from_fn(|state| states[state][i]) };
            parameter.into_iter().enumerate().map(element).collect()
        };
        let mut expected = elements(&values);
        for number in 1..=10 {
            // Never so small that float32 finds another sign; exactly zero at some places.
            let gradient = |i: usize| match i % 5 {
                4 => 0.0,
                _ => ((i * 7 + number as usize * 3) % 11) as f64 - 5.0,
            };
            let gradients = flat((0..size).map(|i| 4.0 * gradient(i)).collect());
            let learning_rate = 0.01 / number as f64;
            let (eps_mult, gradient_scale, shape) = (1.0, 0.25, &[size]);
            let step = UpdateStep { learning_rate, weight_decay, eps_mult, number, gradient_scale, shape };
            values = algorithm.update.update(values, gradients, &step);
            for (i, (element, found)) in expected.iter_mut().zip(elements(&values)).enumerate() {
                reference(element, gradient(i), number, [learning_rate, weight_decay]);
                let pairs = element.states.iter().zip(found.states).chain([(&element.value, found.value)]);
                for (expected, found) in pairs {
                    let error = (found - expected).abs();
                    assert!(error < 1e-5 * expected.abs().max(1.0), "step {number}, element {i}: {found} {expected}");
                }
            }
        }
    }
}

/// The settings of `[optimizer]` that are numbers or switches, each with a section in which only it
/// differs from its default.
fn changed_settings() -> Vec<(String, OptimizerConfig)> {
    let defaults = serde_json::to_value(OptimizerConfig::default()).unwrap();
    let changed = |(name, default): (&String, &Value)| {
        let value = match default {
            Value::Bool(is_on) => (!is_on).to_string(),
            Value::Number(number) if number.is_u64() => (number.as_u64().unwrap() + 1).to_string(),
            Value::Number(number) => (0.5 * number.as_f64().unwrap()).to_string(),
            Value::String(text) => {
                let row = OptimizerConfig::fields().into_iter().find(|row| row.name == name)?;
                let TypeSpec::Choice(others) = (row.spec)() else { return None };
                format!("{:?}", others.iter().find(|other| *other != text)?)
            }
            _ => return None,
        };
        let text = format!("optimizer = {{ {name} = {value} }}");
        let recipe = RawConfig::from_text(&text, RecipeFormat::Toml, &[], &Kinds::builtin()).ok()?;
        Some((name.clone(), recipe.optimizer.clone()))
    };
    defaults.as_object().unwrap().iter().filter_map(changed).collect()
}

#[test]
fn rules_declare_what_they_read_and_keep() {
    assert!(
        RULES.iter().map(|rule| rule.declared).eq(optimizer_rules::RULES),
        "each rule of recipes has its file, in this order"
    );
    let changed = changed_settings();
    let rows = OptimizerConfig::fields();
    let is_refused = |setting: &str| rows.iter().find(|row| row.name == setting).expect("a row").refusal.is_some();
    for rule in RULES {
        assert_eq!(rule.declared.is_whole(), rule.unit == Unit::Parameter, "{}", rule.declared.name);
        let update = |settings: &OptimizerConfig| {
            let scalars = rule.declared.scalar_rule(settings).map(|rule| rule.name);
            format!("{:?} {scalars:?}", rule.with(settings).update)
        };
        let unchanged = update(&OptimizerConfig::default());
        for (setting, settings) in &changed {
            let is_declared = rule.declared.settings.contains(&setting.as_str());
            assert_eq!(update(settings) != unchanged, is_declared, "{}: {setting}", rule.declared.name);
        }
        for setting in rule.declared.settings {
            assert!(!is_refused(setting), "{setting}: its row needs a type instead of `refused`");
            assert!(changed.iter().any(|(name, _)| name == setting), "{setting} is no number, switch or choice");
        }
        for state in rule.states {
            assert_eq!(state.format.is_some(), rule.declared.keeps_formats(), "{}: {}", rule.declared.name, state.name);
        }
        assert_eq!(with_defaults(rule).update.low_precision().is_some(), rule.declared.keeps_formats());
        let names: BTreeSet<_> = rule.states.iter().map(|state| state.name).collect();
        assert_eq!(names.len(), rule.states.len(), "{}: names of states are unique", rule.declared.name);
        assert!(names.iter().all(|name| !name.contains('.') && *name != "master"), "{}: {names:?}", rule.declared.name);
    }
    let bytes = |name| named(name).unwrap().state_bytes(&OptimizerConfig::default(), &[1]);
    assert_eq!((bytes("adam"), bytes("sgd")), (8, 4));
    assert!(RULES.iter().all(|rule| !rule.declared.settings.contains(&"lr")));
}

#[test]
fn epsilon_is_that_of_the_group() {
    let settings = OptimizerConfig { adam_beta2: 0.95, adam_eps: 1.0, ..OptimizerConfig::default() };
    let algorithm = named("adam").unwrap().with(&settings);
    let tensor = |value: f32| Tensor::<1>::from_floats([value], &Device::flex());
    for (eps_mult, expected) in [(1.0, 0.5), (0.25, 0.8)] {
        let step =
            UpdateStep { learning_rate: 1.0, weight_decay: 0.0, eps_mult, number: 1, gradient_scale: 1.0, shape: &[1] };
        let values = Values { parameter: tensor(2.0), states: vec![tensor(0.0), tensor(0.0)] };
        let parameter = algorithm.update.update(values, tensor(1.0), &step).parameter;
        // The first step has the length `g / (|g| + epsilon)`.
        let moved = 2.0 - parameter.into_scalar::<f32>();
        assert!((moved - expected).abs() < 1e-6, "{eps_mult}: {moved}");
    }
}

/// A group whose optimizer has no setting for one of its values is refused, not trained without it.
#[test]
fn groups_have_no_values_that_their_rules_do_not_read() {
    let given = |rule, epsilon, momentum| GroupSettings { rule, epsilon, momentum, ..GroupSettings::default() };
    let adam = adam();
    for (algorithm, group, setting) in [
        (with_defaults(named("lion").unwrap()), given(None, Some(1e-6), None), "eps"),
        (adam.clone(), given(Some("sgd"), Some(1e-6), Some(0.5)), "eps"),
        (with_defaults(named("muon").unwrap()), given(None, Some(1e-6), None), "eps"),
    ] {
        let message = algorithm.for_group(&group, "layers.1.weight").unwrap_err().to_string();
        let rule = group.rule.unwrap_or(algorithm.rule.declared.name);
        for part in ["optimizer_config_override_provider.rules", setting, "layers.1.weight", rule] {
            assert!(message.contains(part), "{message}: expected {part}");
        }
    }
    let made = adam.for_group(&given(None, Some(0.5), Some(0.25)), "layers.1.weight").unwrap();
    assert_eq!((made.settings.adam_eps, made.settings.adam_beta1), (0.5, 0.25));
    assert!(with_defaults(named("lion").unwrap()).for_group(&given(None, None, Some(0.5)), "w").is_ok());
}

/// The table of optimizers in the documentation has each rule, with the bytes that it keeps.
#[test]
fn optimizers_are_documented_with_their_bytes() {
    const SIDE: usize = 1024;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/recipes.md");
    let text = std::fs::read_to_string(path).expect("the documentation is beside the crates");
    let defaults = OptimizerConfig::default();
    for rule in RULES {
        let name = rule.declared.name;
        let row = text.lines().find(|line| line.starts_with(&format!("| `{name}` | ")));
        let cells: Vec<&str> = row.unwrap_or_else(|| panic!("{name} has no row")).split(" | ").collect();
        let bytes = match &rule.with(&defaults).formats {
            Some(formats) => formats.bytes_per_element(false),
            None => rule.state_bytes(&defaults, &[SIDE, SIDE]) as f64 / (SIDE * SIDE) as f64,
        };
        let documented: f64 = cells[2].parse().unwrap_or_else(|_| panic!("{name}: {}", cells[2]));
        assert!((documented - bytes).abs() < 0.005, "{name} keeps {bytes} bytes a parameter, not {documented}");
    }
}

/// Steps of fixed length from where training began, by matrices.
static EXAMPLE: Rule = Rule {
    declared: &OptimizerRule {
        name: "example",
        settings: &["lr"],
        size: UpdateSize::LearningRate,
        formats: optimizer_rules::KeptFormats::Declared,
        scalars: ScalarRule::Same,
    },
    states: &[
        State { name: "origin", start: Start::Parameter, ..State::zeros("") },
        State { name: "moved", dtype: FloatDType::BF16, ..State::zeros("") },
    ],
    unit: Unit::Parameter,
    update: |settings| Arc::new(Example { lr: settings.lr.expect("a rate") }),
};

#[derive(Debug)]
struct Example {
    lr: f64,
}

impl Update for Example {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let (parameter, [origin, moved]) = values.split();
        assert_eq!(step.shape.iter().product::<usize>(), parameter.dims()[0], "whole parameters");
        assert_eq!(moved.dtype(), burn::tensor::DType::BF16);
        let length = gradient.clone().powi_scalar(2).sum().sqrt();
        let parameter = parameter - gradient / length * self.lr;
        let moved = (parameter.clone() - origin.clone()).cast(FloatDType::BF16);
        Values { parameter, states: vec![origin, moved] }
    }
}

/// Adam whose batches keep books.
#[derive(Clone, Debug, Default)]
struct Counted(Arc<Mutex<Vec<&'static str>>>);

impl Update for Counted {
    fn update(&self, _: Values, _: Tensor<1>, _: &UpdateStep<'_>) -> Values {
        panic!("all updates go by batches")
    }

    fn batch(&self) -> Option<Box<dyn UpdateBatch>> {
        self.0.lock().unwrap().push("begin");
        Some(Box::new(CountedBatch(self.clone(), adam().update.batch().expect("Adam has batches"))))
    }
}

#[derive(Debug)]
struct CountedBatch(Counted, Box<dyn UpdateBatch>);

impl UpdateBatch for CountedBatch {
    fn add(
        &mut self,
        values: Values,
        gradient: Tensor<1>,
        step: &UpdateStep<'_>,
        previous: Option<Tensor<1>>,
    ) -> (Values, Option<Tensor<1>>) {
        self.0.0.lock().unwrap().push("add");
        self.1.add(values, gradient, step, previous)
    }

    fn finish(self: Box<Self>) {
        self.0.0.lock().unwrap().push("finish");
        self.1.finish();
    }
}

/// Each parameter of a step is in its batch once, and batches end with their steps. Other tests
/// compare values, masters and states with float64; this one compares them with single updates.
#[test]
fn a_step_makes_the_updates_of_one_batch() {
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let mut chunks = vec![toy(2, dtype)];
        let counted = Counted::default();
        let algorithm = Algorithm { update: Arc::new(counted.clone()), ..adam() };
        let settings = OptimizerSettings {
            algorithm,
            clip_grad: 0.0,
            skip_above: f64::INFINITY,
            ema_decay: None,
            count_zeros: false,
            offload: None,
        };
        let distribution = Arc::new(Distribution::single(&chunks));
        let mut optimizer = Optimizer::new(settings, &chunks, &StandardOverrides::default(), distribution).unwrap();
        let count = chunks[0].parameters().len();
        let mut expected = std::collections::BTreeMap::new();
        chunks[0].visit_parameters(&mut |name, value| drop(expected.insert(name.to_owned(), (value, Vec::new()))));
        for number in 1..=2 {
            let mut gradients = GradientBuffer::new(AccumulationDType::Float32);
            let rates = vec![GroupRates { learning_rate: 0.1, weight_decay: 0.0 }; optimizer.groups().count()];
            for (name, (value, states)) in &mut expected {
                let gradient = Tensor::ones(value.shape(), &Device::flex()) * 0.25;
                gradients.add(name, gradient.clone());
                let zeros = || Tensor::zeros(value.shape(), &Device::flex());
                states.resize_with(3, zeros);
                if number == 1 {
                    states[0] = value.clone().cast(FloatDType::F32);
                }
                let values = Values { parameter: states.remove(0), states: std::mem::take(states) };
                let step = UpdateStep {
                    learning_rate: 0.1,
                    weight_decay: 0.0,
                    eps_mult: 1.0,
                    number,
                    gradient_scale: 1.0,
                    shape: &[],
                };
                let Values { parameter, states: next } = adam().update.update(values, gradient, &step);
                *value = parameter.clone().cast(dtype);
                *states = std::iter::once(parameter).chain(next).collect();
            }
            let scales = StepScales { loss_scale: 1.0, divisor: 1.0 };
            optimizer.step(&mut chunks, &mut gradients, &rates, scales).unwrap();
            let mut events = std::mem::take(&mut *counted.0.lock().unwrap());
            assert_eq!((events.remove(0), events.pop()), ("begin", Some("finish")));
            assert_eq!(events, vec!["add"; count]);
            chunks[0].visit_parameters(&mut |name, value| {
                assert_eq!(value.dtype(), dtype.into());
                assert_eq!(numbers(&value), numbers(&expected[name].0), "{name} after step {number}");
            });
        }
    }
}

fn numbers(tensor: &Tensor<1>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

#[test]
fn states_start_and_are_saved_as_declared() {
    let mut chunks = vec![toy(2, FloatDType::F32)];
    let mut before = std::collections::BTreeMap::new();
    chunks[0].visit_parameters(&mut |name, value| drop(before.insert(name.to_owned(), numbers(&value))));
    let algorithm = EXAMPLE.with(&OptimizerConfig { lr: Some(0.5), ..OptimizerConfig::default() });
    let settings = OptimizerSettings {
        algorithm,
        clip_grad: 0.0,
        skip_above: f64::INFINITY,
        ema_decay: None,
        count_zeros: false,
        offload: None,
    };
    let distribution = Arc::new(Distribution::single(&chunks));
    let mut optimizer = Optimizer::new(settings, &chunks, &StandardOverrides::default(), distribution).unwrap();
    for _ in 0..3 {
        let mut gradients = GradientBuffer::new(AccumulationDType::Float32);
        for (name, values) in &before {
            gradients.add(name, Tensor::ones([values.len()], &Device::flex()) * 7.0);
        }
        let rates = vec![GroupRates { learning_rate: 1.0, weight_decay: 0.0 }; optimizer.groups().count()];
        let scales = StepScales { loss_scale: 1.0, divisor: 1.0 };
        optimizer.step(&mut chunks, &mut gradients, &rates, scales).unwrap();
    }
    let state = optimizer.state();
    assert_eq!(state.tensors.len(), 2 * before.len());
    let mut elements = 0;
    chunks[0].visit_parameters(&mut |name, value| {
        elements += value.dims()[0];
        let step = 0.5 / (value.dims()[0] as f64).sqrt();
        for (now, then) in numbers(&value).iter().zip(&before[name]) {
            assert!((now - then + 3.0 * step).abs() < 1e-5, "{name}: from {then} to {now} in steps of {step}");
        }
        let plain = |kind: &str| match &state.tensors[&format!("{kind}.{name}")] {
            Stored::Plain(values) => values.clone(),
            other => panic!("{kind}.{name} is kept as {other:?}"),
        };
        assert_eq!(numbers(&plain("origin")), before[name], "{name}");
        let moved = &plain("moved");
        assert_eq!(moved.dtype(), burn::tensor::DType::BF16);
        assert!(numbers(moved).iter().all(|moved| (moved / (-3.0 * step) - 1.0).abs() < 0.01), "{name}");
    });
    assert_eq!(optimizer.state_bytes(), 6 * elements as u64);
    assert_eq!(EXAMPLE.state_bytes(&OptimizerConfig::default(), &[3, 5]), 90);
    assert!(optimizer.load_state(state).is_empty());
}
