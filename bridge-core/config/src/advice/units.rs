//! Values in other units than their setting's: steps, epochs and hours with their names after the
//! number, times as on a clock, and shares of a run.

use super::super::node::{Data, Node};

/// Names of optimizer steps after a number.
const STEPS: [&str; 11] =
    ["step", "steps", "it", "its", "iter", "iters", "iteration", "iterations", "ba", "batch", "batches"];
/// Names of epochs.
const EPOCHS: [&str; 3] = ["ep", "epoch", "epochs"];
/// Names of samples.
const SAMPLES: [&str; 5] = ["sp", "sample", "samples", "sequence", "sequences"];
/// Names of tokens.
const TOKENS: [&str; 3] = ["tok", "token", "tokens"];
/// Names of lengths of time, with their seconds.
const TIMES: [(&[&str], f64); 4] = [
    (&["s", "sec", "secs", "second", "seconds"], 1.0),
    (&["m", "min", "mins", "minute", "minutes"], 60.0),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600.0),
    (&["d", "day", "days"], 86_400.0),
];

/// Value in another unit.
pub(super) struct Meaning {
    /// The value in the setting's own unit, where it is known.
    pub value: Option<Node>,
    /// Additional note.
    pub note: &'static str,
}

impl Meaning {
    fn of_number(value: Option<f64>, note: &'static str) -> Option<Self> {
        Some(Self { value: value.map(number), note })
    }
}

/// Unit of the setting called `name`.
#[derive(Clone, Copy)]
enum Unit {
    Steps,
    Epochs,
    Samples,
    /// Time in units of this many seconds.
    Time(f64),
}

impl Unit {
    fn from_name(name: &str, is_count: bool) -> Option<Self> {
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        if ends(&["_mins", "_minutes"]) {
            Some(Self::Time(60.0))
        } else if ends(&["_deadline_s", "_seconds_after_init"]) {
            Some(Self::Time(1.0))
        } else if name == "num_epochs" {
            Some(Self::Epochs)
        } else if is_count && ends(&["_samples"]) {
            Some(Self::Samples)
        } else {
            (is_count && ends(&["_iters", "_interval", "_at_iter"])).then_some(Self::Steps)
        }
    }
}

/// Value in the unit of the setting called `name`. `is_count` is true for whole numbers;
/// `train_iters` is the number of steps of the run, if it is known.
pub(super) fn meaning(name: &str, is_count: bool, written: &Node, train_iters: Option<i128>) -> Option<Meaning> {
    let unit = Unit::from_name(name, is_count)?;
    match (&written.data, unit) {
        // An evaluation has steps of its own.
        (Data::Float(share), Unit::Steps) if *share > 0.0 && *share < 1.0 && name != "eval_iters" => {
            let steps = train_iters.map(|all| (all as f64 * share).round().max(1.0));
            let note = if name == "lr_warmup_iters" {
                "in optimizer steps; scheduler.lr_warmup_fraction takes a share"
            } else {
                "in optimizer steps, not a share of the run"
            };
            Meaning::of_number(steps, note)
        }
        (Data::String(text), unit) => of_text(&text.trim().to_lowercase(), unit),
        _ => None,
    }
}

fn of_text(text: &str, unit: Unit) -> Option<Meaning> {
    let end = text.find(|c: char| c.is_alphabetic() || c == ' ').unwrap_or(text.len());
    let (digits, word) = (text[..end].replace(['_', ','], ""), text[end..].trim());
    let count: Option<f64> = digits.parse().ok();
    match unit {
        Unit::Time(seconds) => {
            let of_word = || Some(count? * seconds_of(word)?);
            let value = of_clock(text).or_else(of_word)?;
            Meaning::of_number(Some(value / seconds), "")
        }
        Unit::Steps if STEPS.contains(&word) => Meaning::of_number(count, "a number of optimizer steps"),
        Unit::Steps if EPOCHS.contains(&word) => {
            Meaning::of_number(None, "in optimizer steps: epochs x samples / train.global_batch_size")
        }
        Unit::Steps if SAMPLES.contains(&word) => {
            Meaning::of_number(None, "in optimizer steps: samples / train.global_batch_size")
        }
        Unit::Steps if TOKENS.contains(&word) => {
            Meaning::of_number(None, "in optimizer steps: tokens / (model.seq_length x train.global_batch_size)")
        }
        Unit::Epochs if EPOCHS.contains(&word) => Meaning::of_number(count, ""),
        Unit::Samples if SAMPLES.contains(&word) => Meaning::of_number(count, ""),
        Unit::Steps | Unit::Epochs | Unit::Samples => None,
    }
}

fn seconds_of(word: &str) -> Option<f64> {
    TIMES.iter().find(|(names, _)| names.contains(&word)).map(|(_, seconds)| *seconds)
}

/// `HH:MM:SS`, with days before it or without, in seconds.
fn of_clock(text: &str) -> Option<f64> {
    let parts: Vec<f64> = text.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let sizes = [1.0, 60.0, 3_600.0, 86_400.0];
    let total = || parts.iter().rev().zip(sizes).map(|(part, size)| part * size).sum::<f64>();
    (3..=4).contains(&parts.len()).then(total)
}

fn number(value: f64) -> Node {
    let is_whole = value.fract() == 0.0 && value.abs() < 9e15;
    if is_whole { Data::Int(value as i128).into() } else { Data::Float(value).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_brought_to_the_unit_of_their_setting() {
        let read = |name: &str, is_count: bool, written: Node| {
            let meaning = meaning(name, is_count, &written, Some(200))?;
            Some(format!("{} {}", meaning.value.map_or("-".into(), |value| value.to_inline()), meaning.note))
        };
        for (name, is_count, text, expected) in [
            ("save_interval", true, "500 steps", Some("500 a number")),
            ("train_iters", true, "10_000ba", Some("10000 a number")),
            ("save_interval", true, "1ep", Some("- in optimizer steps: epochs")),
            ("eval_interval", true, "epoch", Some("- in optimizer steps: epochs")),
            ("exit_duration_in_mins", false, "12h", Some("720 ")),
            ("exit_duration_in_mins", false, "00:12:30:00", Some("750 ")),
            ("exit_duration_in_mins", false, "90 seconds", Some("1.5 ")),
            ("num_epochs", false, "3ep", Some("3 ")),
            ("save_interval", true, "often", None),
            ("exit_duration_in_mins", false, "1:30", None),
            ("hidden_size", true, "64 steps", None),
        ] {
            let found = read(name, is_count, Node::string(text));
            let is_right = match (&found, expected) {
                (Some(found), Some(expected)) => found.starts_with(expected),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(is_right, "{name} {text}: {found:?}");
        }
        let share = read("eval_interval", true, Data::Float(0.25).into());
        assert_eq!(share.as_deref(), Some("50 in optimizer steps, not a share of the run"));
        assert_eq!(read("eval_interval", true, Data::Float(1.5).into()), None);
    }
}
