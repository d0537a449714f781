//! The progress of a run: counters and the state of everything that is not a tensor. Knows no
//! scheduler or RNG type.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The progress of a run, as in `train_state.json` of a checkpoint. Every finite float, here and in
/// [`extra`](Self::extra), reads back bit for bit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainState {
    /// Optimizer steps done; names the checkpoint folder.
    pub step: u64,
    /// Training samples consumed.
    pub consumed_train_samples: u64,
    /// Training samples skipped without training on them.
    pub skipped_train_samples: u64,
    /// Validation samples consumed.
    pub consumed_valid_samples: u64,
    /// Floating-point operations done since the first step.
    #[serde(with = "any_float")]
    pub floating_point_operations_so_far: f64,
    /// True if training is enabled.
    pub do_train: bool,
    /// True if validation is enabled.
    pub do_valid: bool,
    /// True if testing is enabled.
    pub do_test: bool,
    /// True if the validation that was due at this step was stopped, so that a resumed run repeats
    /// it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owes_validation: bool,
    /// State of the scheduler, RNG, loss scaler, rerun state machine ... one key each. JSON has no
    /// NaN and no infinity: `serde_json` turns them into null, so owners of such values store them
    /// as text or bits.
    #[serde(default)]
    pub extra: Map<String, Value>,
}

impl Default for TrainState {
    /// Step 0 with everything enabled.
    fn default() -> Self {
        Self {
            step: 0,
            consumed_train_samples: 0,
            skipped_train_samples: 0,
            consumed_valid_samples: 0,
            floating_point_operations_so_far: 0.0,
            do_train: true,
            do_valid: true,
            do_test: true,
            owes_validation: false,
            extra: Map::new(),
        }
    }
}

impl TrainState {
    /// Why this cannot be the state of a run at `iteration`, if it cannot.
    pub(super) fn problem(&self, iteration: u64) -> Option<String> {
        /// Limit far above any run, for which sums and products of counters still fit into 64 bits.
        const MOST: u64 = 1 << 53;
        if self.step != iteration {
            return Some(format!("step: expected {iteration}, as in the metadata, found {}", self.step));
        }
        let counters = [
            ("step", self.step),
            ("consumed_train_samples", self.consumed_train_samples),
            ("skipped_train_samples", self.skipped_train_samples),
            ("consumed_valid_samples", self.consumed_valid_samples),
        ];
        let (name, found) = counters.into_iter().find(|(_, count)| *count > MOST)?;
        Some(format!("{name}: expected at most {MOST}, found {found}"))
    }
}

/// Floats as JSON numbers, and the values that JSON lacks as text: `"inf"`, `"-inf"`, `"nan"`.
mod any_float {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum NumberOrText {
        Number(f64),
        Text(String),
    }

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            serializer.serialize_f64(*value)
        } else if value.is_nan() {
            serializer.serialize_str("nan")
        } else {
            serializer.serialize_str(if *value > 0.0 { "inf" } else { "-inf" })
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(value) => Ok(value),
            NumberOrText::Text(text) => match text.as_str() {
                "nan" => Ok(f64::NAN),
                "inf" => Ok(f64::INFINITY),
                "-inf" => Ok(f64::NEG_INFINITY),
                other => {
                    Err(D::Error::custom(format!("expected a number, \"nan\", \"inf\" or \"-inf\", found {other:?}")))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(state: &TrainState) -> TrainState {
        serde_json::from_str(&serde_json::to_string_pretty(state).unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn floats_round_trip_bit_for_bit(bits in any::<u64>(), extra_bits in any::<u64>(), step in any::<u64>()) {
            let value = f64::from_bits(bits);
            let mut state = TrainState { step, floating_point_operations_so_far: value, ..TrainState::default() };
            let extra = f64::from_bits(extra_bits);
            if extra.is_finite() {
                state.extra.insert("scheduler".into(), serde_json::json!({"lr": extra, "words": [u64::MAX, 0]}));
            }
            let back = round_trip(&state);
            prop_assert_eq!(back.step, step);
            let found = back.floating_point_operations_so_far;
            prop_assert!(found.to_bits() == bits || (found.is_nan() && value.is_nan()));
            prop_assert_eq!(back.extra.get("scheduler").map(Value::to_string), state.extra.get("scheduler").map(Value::to_string));
            if extra.is_finite() {
                let lr = back.extra["scheduler"]["lr"].as_f64().unwrap();
                prop_assert_eq!(lr.to_bits(), extra_bits);
            }
        }
    }

    #[test]
    fn numbers_that_json_lacks_survive() {
        for value in [f64::INFINITY, f64::NEG_INFINITY, -0.0, f64::MIN_POSITIVE, f64::MAX, 5e-324] {
            let state = TrainState { floating_point_operations_so_far: value, ..TrainState::default() };
            assert_eq!(round_trip(&state).floating_point_operations_so_far.to_bits(), value.to_bits());
        }
    }

    #[test]
    fn unknown_fields_and_words_are_errors() {
        let mut json = serde_json::to_value(TrainState::default()).unwrap();
        json["floating_point_operations_so_far"] = "many".into();
        assert!(serde_json::from_value::<TrainState>(json.clone()).is_err());
        json["floating_point_operations_so_far"] = 1.into();
        json["steps"] = 3.into();
        assert!(serde_json::from_value::<TrainState>(json).unwrap_err().to_string().contains("steps"));
    }
}
