//! The specification of `tensor_inspect.features`, in the form of NVIDIA's `nvdlfw_inspect`: named
//! sections, each with the layers that it applies to and the requested statistics.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::error::nearest_name;

/// A kind of tensor of which statistics can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TensorKind {
    /// A parameter, after the update.
    Weight,
    /// The gradient of a parameter, of the whole step.
    WeightGradient,
    /// The residual stream at a segment's input.
    Activation,
    /// The residual stream at a segment's output.
    Output,
    /// The gradient of the loss with respect to a segment's output.
    OutputGradient,
    /// The gradient of the loss with respect to a segment's input.
    InputGradient,
}

impl TensorKind {
    const NAMES: [(&str, Self); 6] = [
        ("weight", Self::Weight),
        ("wgrad", Self::WeightGradient),
        ("activation", Self::Activation),
        ("output", Self::Output),
        ("gradient", Self::OutputGradient),
        ("dgrad", Self::InputGradient),
    ];

    /// Name in specifications and figures.
    pub fn name(self) -> &'static str {
        name_of(&Self::NAMES, self)
    }

    /// True if the numbers are gradients.
    pub fn is_gradient(self) -> bool {
        matches!(self, Self::WeightGradient | Self::OutputGradient | Self::InputGradient)
    }
}

/// A figure of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Statistic {
    /// The smallest number.
    Min,
    /// The largest number.
    Max,
    /// The mean.
    Mean,
    /// The standard deviation, of the population.
    Std,
    /// The sum of magnitudes.
    L1Norm,
    /// The Euclidean norm.
    L2Norm,
    /// The largest magnitude.
    CurAmax,
    /// Powers of two between the largest magnitude and the smallest that is not zero.
    DynamicRange,
    /// Zeros, in percent.
    Zeros,
    /// Numbers that are infinite or none.
    NonFinite,
    /// Numbers other than zero that bfloat16 rounds to zero, in percent.
    Bf16Underflows,
    /// As [`Self::Bf16Underflows`], of fp8 E4M3 with the scale that takes the largest magnitude to
    /// the largest number.
    E4m3Underflows,
    /// As [`Self::E4m3Underflows`], of fp8 E5M2.
    E5m2Underflows,
    /// Counts of magnitudes by power of two.
    Histogram,
}

impl Statistic {
    /// Names in specifications and figures, in the order of the table's columns.
    pub const NAMES: [(&'static str, Self); 14] = [
        ("min", Self::Min),
        ("max", Self::Max),
        ("mean", Self::Mean),
        ("std", Self::Std),
        ("l1_norm", Self::L1Norm),
        ("l2_norm", Self::L2Norm),
        ("cur_amax", Self::CurAmax),
        ("dynamic_range", Self::DynamicRange),
        ("zeros%", Self::Zeros),
        ("non_finite", Self::NonFinite),
        ("bf16_underflows%", Self::Bf16Underflows),
        ("fp8e4m3_underflows%", Self::E4m3Underflows),
        ("fp8e5m2_underflows%", Self::E5m2Underflows),
        ("histogram", Self::Histogram),
    ];

    /// Name in specifications and figures.
    pub fn name(self) -> &'static str {
        name_of(&Self::NAMES, self)
    }
}

fn name_of<T: PartialEq + Copy>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, other)| *other == value).map_or("", |(name, _)| name)
}

/// Error in a specification, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` {message}")]
pub struct FeatureError {
    /// The keys that lead there, with dots.
    pub path: String,
    /// Description of the problem.
    pub message: String,
}

/// Statistics of one kind of tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    layers: Layers,
    /// Kind of the tensors.
    pub kind: TensorKind,
    /// Statistics to compute.
    pub statistics: BTreeSet<Statistic>,
    steps: Steps,
}

/// Names of parameters and segments that a rule is about.
#[derive(Clone, Debug, PartialEq)]
enum Layers {
    All,
    /// Names that contain one of these.
    Types(Vec<String>),
    /// Names in which this regular expression is found.
    Pattern(String),
}

/// Steps at which statistics are taken.
#[derive(Clone, Debug, PartialEq)]
struct Steps {
    every: u64,
    /// First and last of each range.
    ranges: Vec<(u64, u64)>,
}

impl Rule {
    /// All statistics except the histogram, of every tensor of a kind, every `every` steps.
    fn of_all(kind: TensorKind, every: u64) -> Self {
        let statistics = Statistic::NAMES.iter().map(|(_, statistic)| *statistic);
        Self {
            layers: Layers::All,
            kind,
            statistics: statistics.filter(|statistic| *statistic != Statistic::Histogram).collect(),
            steps: Steps { every, ranges: vec![(0, u64::MAX)] },
        }
    }

    /// True if statistics are computed at `step`: at a fixed interval from the first step of a
    /// range to its last.
    pub fn is_due(&self, step: u64) -> bool {
        let Steps { every, ranges } = &self.steps;
        ranges.iter().any(|(first, last)| (*first..=*last).contains(&step) && (step - first).is_multiple_of(*every))
    }

    /// Predicate for the names that the rule applies to. The pattern was compiled when it was read,
    /// and is compiled here once more.
    pub fn matcher(&self) -> impl Fn(&str) -> bool + Send + 'static {
        let (types, pattern) = match &self.layers {
            Layers::All => (None, None),
            Layers::Types(types) => (Some(types.clone()), None),
            Layers::Pattern(pattern) => (None, fancy_regex::Regex::new(pattern).ok()),
        };
        move |name: &str| match (&types, &pattern) {
            (Some(types), _) => types.iter().any(|part| name.contains(part)),
            // One that needs too much work finds nothing.
            (None, Some(pattern)) => pattern.is_match(name).unwrap_or(false),
            (None, None) => true,
        }
    }
}

/// The rules of a specification; without one, all statistics but histograms of all parameters,
/// their gradients, and the outputs of segments with their gradients, every `interval` steps.
///
/// # Errors
/// The first key or value that cannot be followed, with the nearest one that can.
pub fn rules(specification: Option<&Value>, interval: u64) -> Result<Vec<Rule>, FeatureError> {
    let Some(specification) = specification else {
        let kinds = [TensorKind::Weight, TensorKind::WeightGradient, TensorKind::Output, TensorKind::OutputGradient];
        return Ok(kinds.into_iter().map(|kind| Rule::of_all(kind, interval)).collect());
    };
    let mut rules = Vec::new();
    for (name, section) in table(specification, "features")? {
        rules.extend(section_rules(name, table(section, name)?)?);
    }
    if rules.is_empty() {
        return Err(wrong("features", "enables no statistics; expected a section with `LogTensorStats`"));
    }
    Ok(rules)
}

/// The one feature that takes statistics.
const FEATURE: &str = "LogTensorStats";

/// Features of the same framework that change matrix products, or inspect 8- or 4-bit numbers.
const OF_NARROW_NUMBERS: [&str; 8] = [
    "LogFp8TensorStats",
    "LogNvfp4TensorStats",
    "DisableFP8GEMM",
    "DisableFP8Layer",
    "DisableFP4GEMM",
    "DisableFP4Layer",
    "PerTensorScaling",
    "FakeQuant",
];

fn section_rules(name: &str, section: &Table) -> Result<Vec<Rule>, FeatureError> {
    if !is_enabled(section, name)? {
        return Ok(Vec::new());
    }
    let layers = match section.get("layers") {
        Some(layers) => self::layers(&format!("{name}.layers"), layers)?,
        None => Layers::All,
    };
    let mut rules = Vec::new();
    for (key, value) in section.iter().filter(|(key, _)| !["enabled", "layers"].contains(&key.as_str())) {
        let path = format!("{name}.{key}");
        if key == "transformer_engine" {
            for (key, value) in table(value, &path)? {
                rules.extend(feature(&format!("{path}.{key}"), key, value, &layers)?);
            }
        } else {
            rules.extend(feature(&path, key, value, &layers)?);
        }
    }
    Ok(rules)
}

fn feature(path: &str, key: &str, value: &Value, layers: &Layers) -> Result<Vec<Rule>, FeatureError> {
    if OF_NARROW_NUMBERS.contains(&key) {
        let message = "is about matrix multiplications in 8 or 4 bits, and there are none; `LogTensorStats` counts what \
                       would underflow with `fp8e4m3_underflows%` and `fp8e5m2_underflows%`";
        return Err(wrong(path, message));
    }
    if key != FEATURE {
        return Err(unknown(path, key, &["enabled", "layers", "transformer_engine", FEATURE]));
    }
    let settings = table(value, path)?;
    if !is_enabled(settings, path)? {
        return Ok(Vec::new());
    }
    known(
        settings,
        path,
        &["enabled", "tensors", "stats", "freq", "start_step", "end_step", "start_end_list", "tensors_struct"],
    )?;
    let mut rules = Vec::new();
    if let Some(structs) = settings.get("tensors_struct") {
        for (number, one) in list(structs, &format!("{path}.tensors_struct"))?.iter().enumerate() {
            let path = format!("{path}.tensors_struct[{number}]");
            let own = table(one, &path)?;
            known(own, &path, &["tensor", "stats", "freq", "start_step", "end_step", "start_end_list"])?;
            let kind = required(own, &path, "tensor")?;
            let kind = named(kind, &format!("{path}.tensor"), &TensorKind::NAMES)?;
            // Settings that an entry omits have the values of the whole table.
            let mut all = settings.clone();
            all.extend(own.clone());
            rules.push(rule(&all, &path, kind, layers)?);
        }
    }
    if settings.contains_key("tensors") || !settings.contains_key("tensors_struct") {
        let kinds = names(required(settings, path, "tensors")?, &format!("{path}.tensors"), &TensorKind::NAMES)?;
        for kind in kinds {
            rules.push(rule(settings, path, kind, layers)?);
        }
    }
    Ok(rules)
}

fn rule(settings: &Table, path: &str, kind: TensorKind, layers: &Layers) -> Result<Rule, FeatureError> {
    let statistics = names(required(settings, path, "stats")?, &format!("{path}.stats"), &Statistic::NAMES)?;
    Ok(Rule {
        layers: layers.clone(),
        kind,
        statistics: statistics.into_iter().collect(),
        steps: steps(settings, path)?,
    })
}

fn steps(settings: &Table, path: &str) -> Result<Steps, FeatureError> {
    let number = |key: &str, default: u64| match settings.get(key) {
        None => Ok(default),
        Some(value) => count(value, &format!("{path}.{key}")),
    };
    let every = number("freq", 1)?;
    if every == 0 {
        return Err(wrong(
            &format!("{path}.freq"),
            "is 0; expected the number of steps from one to the next, at least 1",
        ));
    }
    let single = (number("start_step", 0)?, number("end_step", u64::MAX)?);
    let ranges = match settings.get("start_end_list") {
        None => vec![single],
        Some(_) if settings.contains_key("start_step") || settings.contains_key("end_step") => {
            return Err(wrong(&format!("{path}.start_end_list"), "excludes `start_step` and `end_step`"));
        }
        Some(ranges) => {
            let path = format!("{path}.start_end_list");
            let pair = |value: &Value| match list(value, &path)?.as_slice() {
                [first, last] => Ok((count(first, &path)?, count(last, &path)?)),
                _ => Err(wrong(&path, "has an entry that is no pair of first and last step")),
            };
            list(ranges, &path)?.iter().map(pair).collect::<Result<_, _>>()?
        }
    };
    if let Some((first, last)) = ranges.iter().find(|(first, last)| first > last) {
        return Err(wrong(path, &format!("begins at step {first}, after its end at step {last}")));
    }
    Ok(Steps { every, ranges })
}

fn layers(path: &str, value: &Value) -> Result<Layers, FeatureError> {
    let settings = table(value, path)?;
    known(settings, path, &["layer_types", "layer_name_regex_pattern"])?;
    match (settings.get("layer_types"), settings.get("layer_name_regex_pattern")) {
        (Some(_), Some(_)) => Err(wrong(path, "has both `layer_types` and `layer_name_regex_pattern`; expected one")),
        (None, None) => Err(wrong(path, "is empty; expected `layer_types` or `layer_name_regex_pattern`")),
        (Some(types), None) => {
            let path = format!("{path}.layer_types");
            let types = list(types, &path)?.iter().map(|one| text(one, &path).map(str::to_owned));
            Ok(Layers::Types(types.collect::<Result<_, _>>()?))
        }
        (None, Some(pattern)) => {
            let path = format!("{path}.layer_name_regex_pattern");
            let pattern = text(pattern, &path)?;
            match fancy_regex::Regex::new(pattern) {
                Ok(_) => Ok(Layers::Pattern(pattern.to_owned())),
                Err(error) => Err(wrong(&path, &format!("is no regular expression: {error}"))),
            }
        }
    }
}

fn is_enabled(table: &Table, path: &str) -> Result<bool, FeatureError> {
    match table.get("enabled") {
        None => Ok(true),
        Some(value) => value.as_bool().ok_or_else(|| expected(&format!("{path}.enabled"), "true or false", value)),
    }
}

fn required<'a>(table: &'a Table, path: &str, key: &str) -> Result<&'a Value, FeatureError> {
    table.get(key).ok_or_else(|| wrong(path, &format!("has no `{key}`")))
}

fn known(table: &Table, path: &str, keys: &[&str]) -> Result<(), FeatureError> {
    match table.keys().find(|key| !keys.contains(&key.as_str())) {
        Some(key) => Err(unknown(&format!("{path}.{key}"), key, keys)),
        None => Ok(()),
    }
}

/// One name, or a list of them; `all` means all of them.
fn names<T: Copy>(value: &Value, path: &str, names: &[(&'static str, T)]) -> Result<Vec<T>, FeatureError> {
    match value {
        Value::Array(values) => values.iter().map(|value| named(value, path, names)).collect(),
        Value::String(all) if all == "all" => Ok(names.iter().map(|(_, value)| *value).collect()),
        one => Ok(vec![named(one, path, names)?]),
    }
}

fn named<T: Copy>(value: &Value, path: &str, names: &[(&'static str, T)]) -> Result<T, FeatureError> {
    let name = text(value, path)?;
    names.iter().find(|(other, _)| *other == name).map(|(_, value)| *value).ok_or_else(|| {
        let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        unknown(path, name, &all)
    })
}

fn table<'a>(value: &'a Value, path: &str) -> Result<&'a Table, FeatureError> {
    value.as_table().ok_or_else(|| expected(path, "a table", value))
}

fn list<'a>(value: &'a Value, path: &str) -> Result<&'a Vec<Value>, FeatureError> {
    value.as_array().ok_or_else(|| expected(path, "a list", value))
}

fn text<'a>(value: &'a Value, path: &str) -> Result<&'a str, FeatureError> {
    value.as_str().ok_or_else(|| expected(path, "a name", value))
}

fn count(value: &Value, path: &str) -> Result<u64, FeatureError> {
    let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| expected(path, "a number of steps", value))
}

fn expected(path: &str, what: &str, found: &Value) -> FeatureError {
    wrong(path, &format!("is {found}; expected {what}"))
}

fn unknown(path: &str, name: &str, names: &[&str]) -> FeatureError {
    let nearest = nearest_name(name, names.iter().copied());
    let hint = nearest.map_or(String::new(), |nearest| format!("; did you mean `{nearest}`?"));
    wrong(path, &format!("has the unknown name `{name}`; known are {}{hint}", names.join(", ")))
}

fn wrong(path: &str, message: &str) -> FeatureError {
    FeatureError { path: path.to_owned(), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Rule>, FeatureError> {
        rules(Some(&Value::Table(text.parse().unwrap())), 10)
    }

    #[test]
    fn a_specification_in_upstreams_form_is_read() {
        let rules = read(
            r#"
            [stats]
            enabled = true
            layers = { layer_name_regex_pattern = 'layers\.[02]\.' }
            [stats.transformer_engine.LogTensorStats]
            enabled = true
            stats = ["max", "l2_norm"]
            freq = 5
            start_step = 3
            end_step = 13
            tensors = ["weight"]
            tensors_struct = [{ tensor = "dgrad", stats = ["zeros%"], freq = 1 }]
            [off]
            enabled = false
            LogTensorStats = { tensors = "all", stats = "all" }
            "#,
        )
        .unwrap();
        assert_eq!(rules.len(), 2);
        let (dgrad, weight) = (&rules[0], &rules[1]);
        assert_eq!((dgrad.kind, weight.kind), (TensorKind::InputGradient, TensorKind::Weight));
        assert_eq!(weight.statistics, BTreeSet::from([Statistic::Max, Statistic::L2Norm]));
        assert_eq!(dgrad.statistics, BTreeSet::from([Statistic::Zeros]));
        let due = |rule: &Rule| (0..20).filter(|step| rule.is_due(*step)).collect::<Vec<_>>();
        assert_eq!(due(weight), [3, 8, 13]);
        assert_eq!(due(dgrad), (3..=13).collect::<Vec<_>>());
        let matches = weight.matcher();
        assert!(matches("decoder.layers.2.mlp.linear_fc1.weight") && !matches("decoder.layers.1.mlp"));
    }

    #[test]
    fn without_one_all_is_looked_at() {
        let rules = rules(None, 7).unwrap();
        assert_eq!(rules.len(), 4);
        assert!(rules.iter().all(|rule| rule.is_due(14) && !rule.is_due(15) && rule.statistics.len() == 13));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let message = |text: &str| read(text).unwrap_err().to_string();
        let stats = |rest: &str| format!("[a.LogTensorStats]\n{rest}");
        for (text, expected) in [
            (stats("tensors = ['weigth']\nstats = ['min']"), "did you mean `weight`?"),
            (stats("tensors = ['weight']\nstats = ['l2']"), "`a.LogTensorStats.stats`"),
            (stats("tensors = ['weight']"), "has no `stats`"),
            (stats("stats = ['min']"), "has no `tensors`"),
            (stats("tensors = 'all'\nstats = 'all'\nfreq = 0"), "`a.LogTensorStats.freq` is 0"),
            (stats("tensors = 'all'\nstats = 'all'\nfreq = -1"), "expected a number of steps"),
            (stats("tensors = 'all'\nstats = 'all'\nstart_step = 9\nend_step = 3"), "after its end"),
            (stats("tensors = 'all'\nstats = 'all'\nfrequency = 3"), "did you mean `freq`?"),
            (stats("enabled = false"), "enables no statistics"),
            ("[a]\nlayers = { layer_name_regex_pattern = '(' }".into(), "is no regular expression"),
            ("[a]\nlayers = {}".into(), "`a.layers` is empty"),
            ("[a.LogFp8TensorStats]".into(), "8 or 4 bits"),
            ("[a.LogTensorStat]".into(), "did you mean `LogTensorStats`?"),
            ("a = 3".into(), "`a` is 3; expected a table"),
        ] {
            assert!(message(&text).contains(expected), "{text}: {}", message(&text));
        }
    }
}
