//! `adapter_config.json`: which modules have a branch, of which rank and factor. Names are matched
//! as `peft` matches them.

use std::path::{Path, PathBuf};

use fancy_regex::Regex;
use serde_json::{Map, Value};

use crate::adapters::AdapterError;

/// Meaning of the settings.
#[derive(Debug)]
pub(super) struct Settings {
    path: PathBuf,
    rank: usize,
    alpha: f64,
    rank_of: Vec<(Regex, f64)>,
    alpha_of: Vec<(Regex, f64)>,
    /// True if the factor is divided by the root of the rank instead of by the rank.
    by_root: bool,
    pub is_dora: bool,
    targets: Names,
    excluded: Option<Names>,
    layers: Option<Vec<u64>>,
    layer_patterns: Vec<Regex>,
    /// Modules that are trained in full.
    pub saved: Vec<String>,
    saved_patterns: Vec<Regex>,
    /// True if modules that are tied to a module trained in full are trained with it, named or not.
    pub ties: bool,
}

/// Selection of modules by name.
#[derive(Debug)]
enum Names {
    /// Names of modules, or suffixes of these after a dot.
    Ends(Vec<String>),
    /// A pattern of whole names.
    Pattern(Regex),
    /// All linear layers but the output layer.
    AllLinear,
}

/// Settings with the only values that are supported besides null: name, values, reason.
const ONLY: &[(&str, &[&str], &str)] = &[
    ("peft_type", &["\"LORA\""], "adapters of other types are not known"),
    ("task_type", &["\"CAUSAL_LM\"", "\"SEQ_2_SEQ_LM\""], "a language model has no other head"),
    ("bias", &["\"none\""], "biases cannot be trained beside branches"),
    ("lora_bias", &["false"], "branches have no bias"),
    ("use_qalora", &["false"], "branches have whole inputs"),
    ("init_lora_weights", &["true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\""], "others change the base"),
    ("layer_replication", &["[]"], "layers are not repeated"),
    ("trainable_token_indices", &["[]", "{}"], "rows of the embedding cannot be trained alone"),
    ("target_parameters", &["[]"], "only linear layers have branches"),
    ("alora_invocation_tokens", &[], "branches act on all tokens"),
    ("arrow_config", &[], "there is no router of adapters"),
    ("kasa_config", &[], "the base is not decomposed"),
    ("velora_config", &[], "gradients are not compressed"),
    ("monteclora_config", &[], "branches are not sampled"),
    ("use_bdlora", &[], "branches are not block-diagonal"),
    ("megatron_config", &[], "layers of Megatron have other names"),
];

/// Settings that are read, or that do not affect the model's computation. Settings of
/// initialization methods only matter with the method's name in `init_lora_weights`.
const KNOWN: &[&str] = &[
    "corda_config",
    "eva_config",
    "loftq_config",
    "lora_ga_config",
    "r",
    "lora_alpha",
    "lora_dropout",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "use_dora",
    "ensure_weight_tying",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",
    "inference_mode",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
];

impl Settings {
    pub fn new(path: &Path, table: &Map<String, Value>) -> Result<Self, AdapterError> {
        let read = Reader { path, table };
        read.check()?;
        let names = |key: &str| read.names(key);
        let targets = names("target_modules")?
            .ok_or_else(|| read.error("target_modules", "names of modules, a pattern, or \"all-linear\""))?;
        let excluded = match names("exclude_modules")? {
            Some(Names::AllLinear) => return Err(read.error("exclude_modules", "names of modules, or a pattern")),
            excluded => excluded,
        };
        let layer_patterns = read.list("layers_pattern")?.unwrap_or_default();
        let layer_patterns = match layer_patterns.is_empty() {
            true => vec![r".*?\.[^.]*\.(\d+)\.".to_owned()],
            false => layer_patterns.iter().map(|pattern| format!(r"(?:.*?\.)?(?:{pattern})\.(\d+)\.")).collect(),
        };
        let compiled = |key: &str, patterns: Vec<String>| -> Result<Vec<Regex>, AdapterError> {
            patterns.iter().map(|pattern| read.regex(key, &format!("^{pattern}"))).collect()
        };
        let saved = read.list("modules_to_save")?.unwrap_or_default();
        let of_saved = saved.iter().map(|name| format!(r"(?:.*\.)?{name}(?:$|\.)")).collect();
        Ok(Self {
            path: path.to_owned(),
            rank: read.rank("r", table.get("r"))?,
            alpha: read.number("lora_alpha", table.get("lora_alpha"))?,
            rank_of: read.patterns("rank_pattern", |value| read.rank("rank_pattern", value).map(|rank| rank as f64))?,
            alpha_of: read.patterns("alpha_pattern", |value| read.number("alpha_pattern", value))?,
            by_root: read.flag("use_rslora")?,
            is_dora: read.flag("use_dora")?,
            ties: read.flag("ensure_weight_tying")?,
            targets,
            excluded,
            layers: read.layers()?,
            layer_patterns: compiled("layers_pattern", layer_patterns)?,
            saved_patterns: compiled("modules_to_save", of_saved)?,
            saved,
        })
    }

    /// True if a linear layer has a branch.
    pub fn is_target(&self, module: &str) -> Result<bool, AdapterError> {
        if let Some(excluded) = &self.excluded
            && self.is_named(excluded, module)?
        {
            return Ok(false);
        }
        for pattern in &self.saved_patterns {
            if self.matches(pattern, module)? {
                return Ok(false);
            }
        }
        if !self.is_named(&self.targets, module)? {
            return Ok(false);
        }
        match (&self.targets, &self.layers) {
            // A module that is named in full is not asked for its layer, nor is a pattern.
            (Names::Ends(ends), Some(layers)) if !ends.iter().any(|end| end == module) => {
                Ok(self.layer_of(module)?.is_some_and(|layer| layers.contains(&layer)))
            }
            _ => Ok(true),
        }
    }

    /// The rank of a module's branch, and the factor on the branch's output.
    pub fn branch(&self, module: &str) -> Result<(usize, f64), AdapterError> {
        let of = |patterns: &[(Regex, f64)]| -> Result<Option<f64>, AdapterError> {
            for (pattern, value) in patterns {
                if self.matches(pattern, module)? {
                    return Ok(Some(*value));
                }
            }
            Ok(None)
        };
        let rank = of(&self.rank_of)?.map_or(self.rank, |rank| rank as usize);
        let alpha = of(&self.alpha_of)?.unwrap_or(self.alpha);
        let divisor = if self.by_root { (rank as f64).sqrt() } else { rank as f64 };
        Ok((rank, alpha / divisor))
    }

    /// The error about targets that have no branch here.
    pub fn cannot_target(&self, found: &str, expected: &str) -> AdapterError {
        AdapterError::Setting {
            path: self.path.clone(),
            key: "target_modules".into(),
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// The error about a module that is to be trained in full.
    pub fn cannot_save(&self, module: &str, expected: &str) -> AdapterError {
        AdapterError::Setting {
            path: self.path.clone(),
            key: "modules_to_save".into(),
            expected: expected.into(),
            found: format!("\"{module}\""),
        }
    }

    fn is_named(&self, names: &Names, module: &str) -> Result<bool, AdapterError> {
        match names {
            Names::AllLinear => Ok(true),
            Names::Pattern(pattern) => self.matches(pattern, module),
            Names::Ends(ends) => Ok(ends.iter().any(|end| {
                module.strip_suffix(end.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            })),
        }
    }

    fn layer_of(&self, module: &str) -> Result<Option<u64>, AdapterError> {
        for pattern in &self.layer_patterns {
            let captures = pattern.captures(module).map_err(|error| self.too_complex(pattern, &error))?;
            if let Some(number) = captures.and_then(|captures| captures.get(1)?.as_str().parse().ok()) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    fn matches(&self, pattern: &Regex, module: &str) -> Result<bool, AdapterError> {
        pattern.is_match(module).map_err(|error| self.too_complex(pattern, &error))
    }

    /// A pattern may go back and forth over a name for ever: then it is given up.
    fn too_complex(&self, pattern: &Regex, error: &fancy_regex::Error) -> AdapterError {
        AdapterError::Setting {
            path: self.path.clone(),
            key: "a pattern of names".into(),
            expected: "one that can be decided".into(),
            found: format!("`{}` ({error})", pattern.as_str()),
        }
    }
}

/// The table of a file, with errors that name it.
struct Reader<'a> {
    path: &'a Path,
    table: &'a Map<String, Value>,
}

impl Reader<'_> {
    /// Refuses unknown settings, and values that would change the model's function.
    fn check(&self) -> Result<(), AdapterError> {
        for (key, value) in self.table.iter().filter(|(_, value)| !value.is_null()) {
            match ONLY.iter().find(|(only, ..)| only == key) {
                Some((_, allowed, why)) if !allowed.contains(&value.to_string().as_str()) => {
                    let expected = match allowed {
                        [] => "null".to_owned(),
                        allowed => allowed.join(" or "),
                    };
                    return Err(self.error(key, &format!("{expected}: {why}")));
                }
                Some(_) => {}
                None if KNOWN.contains(&key.as_str()) => {}
                None => return Err(self.error(key, "no such setting: it is not known what it changes")),
            }
        }
        Ok(())
    }

    /// The error about the value of a key.
    fn error(&self, key: &str, expected: &str) -> AdapterError {
        let found = self.table.get(key).map_or("no value".to_owned(), Value::to_string);
        AdapterError::Setting { path: self.path.to_owned(), key: key.into(), expected: expected.into(), found }
    }

    fn given(&self, key: &str) -> Option<&Value> {
        self.table.get(key).filter(|value| !value.is_null())
    }

    fn rank(&self, key: &str, value: Option<&Value>) -> Result<usize, AdapterError> {
        // More than the inputs of any layer is refused where the tensors are compared.
        let rank = value.and_then(Value::as_u64).filter(|rank| (1..=1 << 20).contains(rank));
        rank.map(|rank| rank as usize).ok_or_else(|| self.error(key, "a rank: an integer of at least 1"))
    }

    fn number(&self, key: &str, value: Option<&Value>) -> Result<f64, AdapterError> {
        let number = value.and_then(Value::as_f64).filter(|number| number.is_finite());
        number.ok_or_else(|| self.error(key, "a number"))
    }

    fn flag(&self, key: &str) -> Result<bool, AdapterError> {
        self.given(key).map_or(Some(false), Value::as_bool).ok_or_else(|| self.error(key, "true or false"))
    }

    /// One text, or several.
    fn list(&self, key: &str) -> Result<Option<Vec<String>>, AdapterError> {
        let texts = |value: &Value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
        };
        let list = self.given(key).map(|value| texts(value).ok_or_else(|| self.error(key, "a list of texts")));
        list.transpose()
    }

    fn names(&self, key: &str) -> Result<Option<Names>, AdapterError> {
        match self.given(key) {
            Some(Value::String(text)) if text.to_lowercase() == "all-linear" => Ok(Some(Names::AllLinear)),
            Some(Value::String(text)) => Ok(Some(Names::Pattern(self.regex(key, &format!("^(?:{text})$"))?))),
            _ => Ok(self.list(key)?.filter(|names| !names.is_empty()).map(Names::Ends)),
        }
    }

    fn layers(&self) -> Result<Option<Vec<u64>>, AdapterError> {
        let key = "layers_to_transform";
        let numbers = match self.given(key) {
            None => return Ok(None),
            Some(Value::Array(items)) => items.iter().map(Value::as_u64).collect(),
            Some(value) => value.as_u64().map(|number| vec![number]),
        };
        let numbers: Vec<u64> = numbers.ok_or_else(|| self.error(key, "numbers of layers"))?;
        Ok(Some(numbers).filter(|numbers| !numbers.is_empty()))
    }

    /// Patterns of the ends of names, with a value each.
    fn patterns(
        &self,
        key: &str,
        read: impl Fn(Option<&Value>) -> Result<f64, AdapterError>,
    ) -> Result<Vec<(Regex, f64)>, AdapterError> {
        let Some(value) = self.given(key) else { return Ok(Vec::new()) };
        let table = value.as_object().ok_or_else(|| self.error(key, "a table of names"))?;
        let entry =
            |(pattern, value)| Ok((self.regex(key, &format!(r"^(?:.*\.)?(?:{pattern})$"))?, read(Some(value))?));
        table.iter().map(entry).collect()
    }

    fn regex(&self, key: &str, pattern: &str) -> Result<Regex, AdapterError> {
        Regex::new(pattern).map_err(|error| self.error(key, &format!("a pattern ({error})")))
    }
}
