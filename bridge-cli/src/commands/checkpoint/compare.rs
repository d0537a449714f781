//! `bridge checkpoint diff`.

use std::path::Path;

use bridge_core::checkpoint::{Checkpoint, CheckpointError, DType, HostTensor, TensorRecord, TensorSlice};
use bridge_core::logging::numbers::significant;
use bridge_core::logging::runs::{Difference, differences_of_configs};
use half::{bf16, f16};
use serde_json::{Value, json};

use super::{failed, opened};
use crate::failure::Failure;
use crate::output::{line, table};

/// Elements of a tensor that are compared at a time.
const AT_ONCE: usize = 1 << 22;

/// Difference of a tensor.
enum TensorDifference {
    /// The entry is in one of the two checkpoints only.
    Only(&'static str),
    /// In type or shape.
    Form(String, String),
    /// Some elements differ, by this much at most; NaN if a difference is not a number.
    Values { count: usize, of: usize, largest: f64 },
}

pub(super) fn run(first: &Path, second: &Path, is_json: bool) -> Result<u8, Failure> {
    let [a, b] = [opened(first)?, opened(second)?];
    let configs = [a.run_config().map_err(failed)?, b.run_config().map_err(failed)?];
    let settings = differences_of_configs(&[configs[0].as_str(), configs[1].as_str()]);
    let states = [of_state(&a)?, of_state(&b)?];
    let state = states_apart(&states[0], &states[1]);
    let tensors = tensors_apart(&a, &b).map_err(failed)?;
    if is_json {
        print_json((&a, &b), &settings, &state, &tensors);
    } else {
        print_text((&a, &b), &settings, &state, &tensors);
    }
    Ok(u8::from(!(settings.is_empty() && state.is_empty() && tensors.is_empty())))
}

fn of_state(checkpoint: &Checkpoint) -> Result<Value, Failure> {
    serde_json::to_value(checkpoint.train_state().map_err(failed)?).map_err(Failure::run)
}

/// Counters and states that differ: name and both values.
fn states_apart(a: &Value, b: &Value) -> Vec<(String, Value, Value)> {
    let flat = |state: &Value| -> std::collections::BTreeMap<String, Value> {
        let Value::Object(fields) = state else { return Default::default() };
        let extra = fields.get("extra").and_then(Value::as_object);
        let counters = fields.iter().filter(|(name, _)| *name != "extra");
        counters.chain(extra.into_iter().flatten()).map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let (a, b) = (flat(a), flat(b));
    let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let of = |state: &std::collections::BTreeMap<String, Value>, name: &String| {
        state.get(name).cloned().unwrap_or(Value::Null)
    };
    names.into_iter().map(|name| (name.clone(), of(&a, name), of(&b, name))).filter(|(_, a, b)| a != b).collect()
}

fn tensors_apart(a: &Checkpoint, b: &Checkpoint) -> Result<Vec<(String, TensorDifference)>, CheckpointError> {
    let mut found = Vec::new();
    let (in_a, in_b) = (&a.metadata().tensors, &b.metadata().tensors);
    for (name, tensor) in in_a {
        let difference = match in_b.get(name) {
            None => Some(TensorDifference::Only("first")),
            Some(other) if (other.dtype, &other.shape) != (tensor.dtype, &tensor.shape) => {
                let form = |tensor: &TensorRecord| format!("{} {:?}", tensor.dtype, tensor.shape);
                Some(TensorDifference::Form(form(tensor), form(other)))
            }
            Some(_) => values_apart(a, b, name, &tensor.shape)?,
        };
        found.extend(difference.map(|difference| (name.clone(), difference)));
    }
    let only = in_b.keys().filter(|name| !in_a.contains_key(*name));
    found.extend(only.map(|name| (name.clone(), TensorDifference::Only("second"))));
    Ok(found)
}

/// Differences of elements, bit for bit; a few rows at a time.
fn values_apart(
    a: &Checkpoint,
    b: &Checkpoint,
    name: &str,
    shape: &[usize],
) -> Result<Option<TensorDifference>, CheckpointError> {
    let of: usize = shape.iter().product();
    let rows = shape.first().copied().unwrap_or(1);
    let step = (AT_ONCE / (of / rows.max(1)).max(1)).max(1);
    let (mut count, mut largest) = (0, 0.0_f64);
    for start in (0..rows).step_by(step) {
        let slice = TensorSlice::rows(shape, start..(start + step).min(rows));
        let [x, y] = [a.load_slice(name, &slice)?, b.load_slice(name, &slice)?];
        if x.bytes() == y.bytes() {
            continue;
        }
        let size = x.dtype().size();
        let apart = x.bytes().chunks_exact(size).zip(y.bytes().chunks_exact(size)).map(|(x, y)| x != y);
        for ((x, y), _) in numbers(&x)?.into_iter().zip(numbers(&y)?).zip(apart).filter(|(_, apart)| *apart) {
            count += 1;
            let difference = (x - y).abs();
            largest = if largest.is_nan() || difference.is_nan() { f64::NAN } else { largest.max(difference) };
        }
    }
    Ok((count > 0).then_some(TensorDifference::Values { count, of, largest }))
}

fn numbers(tensor: &HostTensor) -> Result<Vec<f64>, CheckpointError> {
    Ok(match tensor.dtype() {
        DType::F64 => tensor.to_vec::<f64>()?,
        DType::F32 => tensor.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        DType::F16 => tensor.to_vec::<f16>()?.into_iter().map(f64::from).collect(),
        DType::BF16 => tensor.to_vec::<bf16>()?.into_iter().map(f64::from).collect(),
        DType::I64 => tensor.to_vec::<i64>()?.into_iter().map(|value| value as f64).collect(),
        DType::I32 => tensor.to_vec::<i32>()?.into_iter().map(f64::from).collect(),
        DType::U32 => tensor.to_vec::<u32>()?.into_iter().map(f64::from).collect(),
        DType::U8 | DType::Bool => tensor.bytes().iter().map(|byte| f64::from(*byte)).collect(),
    })
}

type Named<'a> = (&'a Checkpoint, &'a Checkpoint);
type StateDifference = (String, Value, Value);

fn print_json(
    (a, b): Named<'_>,
    settings: &[Difference],
    state: &[StateDifference],
    tensors: &[(String, TensorDifference)],
) {
    let state: Vec<Value> = state.iter().map(|(key, a, b)| json!({ "key": key, "values": [a, b] })).collect();
    let tensors: Vec<Value> = tensors
        .iter()
        .map(|(name, difference)| match difference {
            TensorDifference::Only(place) => json!({ "name": name, "only_in": place }),
            TensorDifference::Form(a, b) => json!({ "name": name, "forms": [a, b] }),
            TensorDifference::Values { count, of, largest } => {
                let largest = if largest.is_nan() { json!("nan") } else { json!(largest) };
                json!({ "name": name, "elements": of, "different": count, "largest_difference": largest })
            }
        })
        .collect();
    line(
        &json!({
            "checkpoints": [a.path(), b.path()], "equal": settings.is_empty() && state.is_empty() && tensors.is_empty(),
            "settings": settings, "state": state, "tensors": tensors,
        })
        .to_string(),
    );
}

fn print_text(
    (a, b): Named<'_>,
    settings: &[Difference],
    state: &[StateDifference],
    tensors: &[(String, TensorDifference)],
) {
    if settings.is_empty() && state.is_empty() && tensors.is_empty() {
        line(&format!("equal: {} tensors, settings and state", a.metadata().tensors.len()));
        return;
    }
    let mut rows = vec![vec![String::new(), a.path().display().to_string(), b.path().display().to_string()]];
    rows.extend(settings.iter().map(|difference| {
        let values = difference.values.iter().map(|value| value.clone().unwrap_or_else(|| "-".to_owned()));
        std::iter::once(difference.key.clone()).chain(values).collect()
    }));
    rows.extend(state.iter().map(|(key, a, b)| vec![key.clone(), short(a), short(b)]));
    table(&rows, &[99, 80, 70]);
    for (name, difference) in tensors {
        line(&match difference {
            TensorDifference::Only(place) => format!("{name}: only in the {place}"),
            TensorDifference::Form(a, b) => format!("{name}: {a}, {b}"),
            TensorDifference::Values { count, of, largest } => {
                format!("{name}: {count} of {of} elements differ, by {} at most", significant(*largest, 3))
            }
        });
    }
    let same = a.metadata().tensors.keys().filter(|name| b.metadata().tensors.contains_key(*name)).count();
    let apart = tensors.iter().filter(|(_, difference)| !matches!(difference, TensorDifference::Only(_))).count();
    line(&format!("{} of {same} tensors that both have are equal", same - apart));
}

/// A value that may be long.
fn short(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    if text.chars().count() <= MOST { text } else { text.chars().take(MOST).chain("...".chars()).collect() }
}
