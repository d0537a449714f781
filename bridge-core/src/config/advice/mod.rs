//! What to write instead of names and values that a recipe cannot have. By meaning first, from the table of what other programs call things;
//! then by the setting of that name in another section; then by letters. What this release refuses is never offered.

mod aliases;
mod names;
mod readings;
mod search;
mod values;

pub(super) use aliases::ALIASES;

use super::catalogue::{Setting, settings};
use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::kinds::Kinds;
use super::node::{Entry, Location, Node};
use super::overrides::value_of;
use super::spec::TypeSpec;
use aliases::Row;

/// The least likeness of letters of a misspelt name.
const TYPING_ERROR: f64 = 0.8;
/// No more settings of an unknown table are looked at.
const MOST_LEAVES: usize = 100;

/// Completes problems with what to write instead, for a recipe whose values are `root`.
pub(super) fn advise(errors: ConfigErrors, kinds: &Kinds, root: &Node) -> ConfigErrors {
    let needs_advice = |error: &ConfigError| matches!(error.kind, ErrorKind::UnknownKey | ErrorKind::WrongType);
    if !errors.iter().any(needs_advice) {
        return errors;
    }
    let advisor = Advisor { kinds, settings: settings(kinds, root) };
    let advised = errors.into_iter().flat_map(|mut error| match (error.kind, error.written.take()) {
        (ErrorKind::UnknownKey, Some(written)) => advisor.unknown(error, &written),
        (ErrorKind::WrongType, Some(written)) => advisor.wrong(error, &written),
        _ => vec![error],
    });
    advised.collect()
}

/// What to write for a name that a program of another kind would take, such as `num-layers`; `None` if nothing is like it.
pub fn advice_for(name: &str, kinds: &Kinds) -> Option<String> {
    meant_by(name, kinds).map(|(text, _)| text)
}

/// The same as a sentence with the settings that are meant.
pub(super) fn meant_by(name: &str, kinds: &Kinds) -> Option<(String, Vec<String>)> {
    let advisor = Advisor { kinds, settings: settings(kinds, &Node::null()) };
    advisor.find(name, None, None).map(|advice| (advice.text, advice.meant))
}

/// What to write for a value that its setting does not know.
pub(super) fn advice_on_value(key: &str, value: &str, kinds: &Kinds) -> Option<String> {
    let advisor = Advisor { kinds, settings: settings(kinds, &Node::null()) };
    ALIASES.value(key, value).map(|row| advisor.offer(row, None).text)
}

/// The advice on one name or value.
struct Advice {
    text: String,
    /// The settings that are meant.
    meant: Vec<String>,
}

struct Advisor<'k> {
    kinds: &'k Kinds,
    settings: Vec<Setting>,
}

impl Advisor<'_> {
    fn setting(&self, key: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.key == key)
    }

    fn is_section(&self, key: &str) -> bool {
        self.setting(key).is_some_and(Setting::is_section)
    }

    /// Why a target cannot be used: its setting, or the kind of data that it chooses.
    fn refused(&self, key: &str, value: Option<&str>) -> Option<String> {
        let of_kind = match (key, value) {
            ("dataset.kind", Some(kind)) => self.kinds.dataset.get(kind),
            ("model.kind", Some(kind)) => self.kinds.model.get(kind),
            _ => None,
        };
        let of_kind = of_kind.and_then(|kind| kind.not_implemented.as_ref());
        let of_kind = of_kind.map(|reason| format!("not implemented yet: {reason}"));
        of_kind.or_else(|| self.setting(key)?.refused.clone())
    }

    /// The problem of an unknown name, or those of the names in an unknown table.
    fn unknown(&self, error: ConfigError, written: &Node) -> Vec<ConfigError> {
        let Some(entries) = written.entries().filter(|entries| !entries.is_empty()) else {
            return vec![self.completed(error, Some(written))];
        };
        if self.is_misspelt_table(&error, entries) {
            return vec![error];
        }
        let leaves = leaves(&error.key, entries);
        let found: Vec<_> = leaves.iter().map(|leaf| self.leaf(leaf, &error.key)).collect();
        let of_table = self.find(&error.key, None, None);
        if found.iter().all(Option::is_none) {
            return vec![match of_table {
                Some(advice) => with(error, advice),
                // Its settings are none of the section that its name resembles.
                None if !is_like(&error) => ConfigError { nearest: None, meant: Vec::new(), ..error },
                None => error,
            }];
        }
        let mut errors: Vec<_> = leaves
            .iter()
            .zip(found)
            .filter_map(|(leaf, advice)| {
                let error = ConfigError::new(ErrorKind::UnknownKey, &leaf.key, "unknown setting");
                let error = error.with_location(leaf.location.cloned());
                match advice {
                    Some(advice) => Some(with(error, advice)),
                    // The table's own advice covers it.
                    None => of_table.is_none().then_some(error),
                }
            })
            .collect();
        if errors.len() < leaves.len()
            && let Some(advice) = of_table
        {
            errors.insert(0, with(error, advice));
        }
        errors
    }

    /// What a leaf of an unknown table stands for, or else the innermost table around it that stands for something.
    fn leaf(&self, leaf: &Leaf<'_>, table: &str) -> Option<Advice> {
        let own = self.find(&leaf.key, None, Some(leaf.node));
        let mut outer = leaf.key.as_str();
        own.or_else(|| {
            loop {
                outer = outer.rsplit_once('.')?.0;
                if outer.len() <= table.len() {
                    return None;
                }
                if let Some(advice) = self.find(outer, None, None) {
                    return Some(advice);
                }
            }
        })
    }

    /// Whether a table has the settings of the section that its name resembles.
    fn is_misspelt_table(&self, error: &ConfigError, entries: &[Entry]) -> bool {
        let Some(nearest) = &error.nearest else {
            return false;
        };
        is_like(error) && entries.iter().all(|entry| self.setting(&format!("{nearest}.{}", entry.key)).is_some())
    }

    /// The problem of one unknown name, with what it stands for.
    fn completed(&self, mut error: ConfigError, written: Option<&Node>) -> ConfigError {
        let nearest = error.nearest.take();
        let misspelt = nearest.as_deref().filter(|nearest| {
            let name = error.key.rsplit('.').next().unwrap_or_default().to_lowercase();
            strsim::normalized_damerau_levenshtein(&name, &nearest.to_lowercase()) >= TYPING_ERROR
        });
        let parent = error.key.rsplit_once('.').map(|(parent, _)| format!("{parent}.")).unwrap_or_default();
        let key_of = |name: &str| format!("{parent}{name}");
        let is_misspelt = misspelt.is_some();
        let advice = self.find(&error.key, misspelt.map(key_of).as_deref(), written);
        match (advice, nearest) {
            (Some(advice), _) if misspelt_key(&advice, &parent, written).is_none() => with(error, advice),
            (Some(advice), _) => {
                let name = misspelt_key(&advice, &parent, written).map(str::to_owned);
                ConfigError { nearest: name, meant: advice.meant, ..error }
            }
            // A section is no answer to a setting, unless its name is misspelt.
            (None, Some(nearest)) if !is_misspelt && self.is_section(&key_of(&nearest)) => {
                ConfigError { meant: Vec::new(), ..error }
            }
            (None, Some(nearest)) => match self.refused(&key_of(&nearest), None) {
                Some(reason) => error.with_hint(format!("{} is {reason}", key_of(&nearest))),
                None => ConfigError { meant: vec![key_of(&nearest)], nearest: Some(nearest), ..error },
            },
            (None, None) => error,
        }
    }

    /// A row as a sentence. A target that is refused is not offered: the reason is told.
    fn offer(&self, row: &Row, written: Option<&Node>) -> Advice {
        let targets: Vec<_> = row.targets().collect();
        let opposite = written.filter(|_| row.is_opposite).map(readings::inverted);
        let written = opposite.as_ref().map_or(written, Option::as_ref);
        if let ([(key, None)], Some(written)) = (targets.as_slice(), written)
            && let Some(of_value) = self.row_of_value(key, written)
        {
            return self.offer(of_value, None);
        }
        let refused = |(key, value): &(&str, Option<&str>)| Some(format!("{key} is {}", self.refused(key, *value)?));
        if let Some(text) = targets.iter().find_map(refused) {
            return Advice { text, meant: Vec::new() };
        }
        let fits = |key: &str| {
            let node = written.filter(|node| node.entries().is_none() && row.note.is_empty() && targets.len() == 1)?;
            let setting = self.setting(key)?;
            let spec = (setting.field.spec)();
            let is_value = !node.is_null() && spec.accepts(node) && setting.field.limits.violation(node).is_none();
            is_value.then(|| node.to_inline())
        };
        let shown: Vec<_> = targets
            .iter()
            .map(|(key, value)| match value.map(in_toml).or_else(|| fits(key)) {
                Some(value) => format!("`{key} = {value}`"),
                None => format!("`{key}`"),
            })
            .collect();
        let text = match (shown.is_empty(), row.note.is_empty()) {
            (true, _) => row.note.clone(),
            (false, true) => format!("write {}", shown.join(", ")),
            (false, false) => format!("write {}: {}", shown.join(", "), row.note),
        };
        Advice { text, meant: targets.iter().map(|(key, _)| (*key).to_owned()).collect() }
    }

    /// The row of a value that other programs write and that the setting does not accept.
    fn row_of_value(&self, key: &str, written: &Node) -> Option<&'static Row> {
        let spec = (self.setting(key)?.field.spec)();
        let text = written.to_inline();
        let row = ALIASES.value(key, text.trim_matches(['"', '\'']))?;
        (row.of != "*" && !(matches!(spec, TypeSpec::Choice(_)) && spec.accepts(written))).then_some(row)
    }

    /// The problem of a value that its setting cannot have, or, where it is a table, those of what stands in it.
    fn wrong(&self, error: ConfigError, written: &Node) -> Vec<ConfigError> {
        let is_value = self.setting(&error.key).is_some_and(|setting| !setting.is_section());
        let leaves = written.entries().filter(|_| is_value).map(|entries| leaves(&error.key, entries));
        let found = leaves.iter().flatten().filter_map(|leaf| {
            let advice = self.find(&leaf.key, None, Some(leaf.node))?;
            let error = ConfigError::new(ErrorKind::UnknownKey, &leaf.key, "unknown setting");
            Some(with(error.with_location(leaf.location.cloned()), advice))
        });
        let found: Vec<_> = found.collect();
        if found.is_empty() { vec![self.wrong_value(error, written)] } else { found }
    }

    /// The problem of a value that its setting cannot have, with a value that it can.
    fn wrong_value(&self, error: ConfigError, written: &Node) -> ConfigError {
        let whole = error.key.clone();
        let mut key = whole.as_str();
        while self.setting(key).is_none() {
            match key.rsplit_once('.') {
                Some((outer, _)) => key = outer,
                None => return error,
            }
        }
        let setting = self.setting(key).expect("found above");
        if let Some(reason) = &setting.refused {
            let expected = format!("{} (its default)", setting.field.default.to_inline());
            let hint = reason.clone();
            return ConfigError { nearest: None, expected: Some(expected), ..error }.with_hint(hint);
        }
        let text = written.to_inline();
        let text = text.trim_matches(['"', '\'']);
        if let Some(section) = ALIASES.sections.get(key).filter(|_| setting.is_section()) {
            let row = ALIASES.value(section, text);
            let advice =
                row.map_or_else(|| self.offer(&Row::of_setting(section), Some(written)), |row| self.offer(row, None));
            return error.with_hint(format!("[{key}] is a table: {}", advice.text));
        }
        let is_close = |row: &&Row| row.of != "*" || error.nearest.is_none();
        if let Some(row) = ALIASES.value(key, text).filter(is_close) {
            let hint = self.offer(row, None).text;
            return ConfigError { nearest: None, ..usable_names(error, setting) }.with_hint(hint);
        }
        let spec = (setting.field.spec)();
        match values::converted(written, &spec) {
            Some(value) if setting.field.limits.violation(&value).is_none() && whole == key => {
                let value = if value.is_null() { "\"null\"".into() } else { value.to_inline() };
                error.with_hint(format!("write `{key} = {value}`"))
            }
            _ => {
                let nearest = error.nearest.clone().or_else(|| values::name_within(text, &spec).map(str::to_owned));
                usable_names(ConfigError { nearest, ..error }, setting)
            }
        }
    }
}

impl Row {
    fn of_setting(key: &str) -> Self {
        Self { keys: vec![key.to_owned()], ..Self::default() }
    }
}

/// Of the names that a setting understands, only those that this release implements are offered.
fn usable_names(error: ConfigError, setting: &Setting) -> ConfigError {
    let (TypeSpec::Choice(_), Some(refusal)) = ((setting.field.spec)(), &setting.field.refusal) else {
        return error;
    };
    let usable = refusal.accepted(&setting.field.default);
    let names: Vec<_> = usable.iter().map(|node| node.to_inline().trim_matches('"').to_owned()).collect();
    let nearest = error.nearest.clone().filter(|nearest| names.contains(nearest));
    ConfigError { nearest, ..error }.with_expected(format!("one of {}", names.join(", ")))
}

/// The name in its own section that advice is about, if it says no more than that name and the value that was written.
fn misspelt_key<'a>(advice: &'a Advice, parent: &str, written: Option<&Node>) -> Option<&'a str> {
    let [key] = advice.meant.as_slice() else {
        return None;
    };
    let name = key.strip_prefix(parent).filter(|name| !name.contains('.'))?;
    let same = |node: &Node| advice.text == format!("write `{key} = {}`", node.to_inline());
    let says_no_more = advice.text == format!("write `{key}`") || written.is_some_and(same);
    says_no_more.then_some(name)
}

/// Whether the name of a table may be a misspelt one of the section that it resembles.
fn is_like(error: &ConfigError) -> bool {
    let likeness = |name| strsim::normalized_damerau_levenshtein(&error.key.to_lowercase(), name);
    error.nearest.as_deref().is_some_and(|nearest| likeness(nearest) >= TYPING_ERROR)
}

fn with(error: ConfigError, advice: Advice) -> ConfigError {
    ConfigError { nearest: None, meant: advice.meant, ..error }.with_hint(advice.text)
}

fn in_toml(value: &str) -> String {
    let node = value_of(value);
    if node.is_null() { "\"null\"".into() } else { node.to_inline() }
}

/// A setting somewhere in an unknown table.
struct Leaf<'n> {
    key: String,
    node: &'n Node,
    location: Option<&'n Location>,
}

/// The settings of a table and of the tables in it, in the order written.
fn leaves<'n>(table: &str, entries: &'n [Entry]) -> Vec<Leaf<'n>> {
    let mut found = Vec::new();
    let mut open: Vec<(String, &Entry)> = entries.iter().rev().map(|entry| (table.to_owned(), entry)).collect();
    while let Some((table, entry)) = open.pop() {
        if found.len() == MOST_LEAVES {
            break;
        }
        let key = format!("{table}.{}", entry.key);
        match entry.node.entries().filter(|entries| !entries.is_empty()) {
            Some(entries) => open.extend(entries.iter().rev().map(|entry| (key.clone(), entry))),
            None => {
                let location = entry.key_location.as_ref().or(entry.node.location.as_ref());
                found.push(Leaf { key, node: &entry.node, location });
            }
        }
    }
    found
}
