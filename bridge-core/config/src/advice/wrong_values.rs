//! Replacements for values that a setting cannot have.

use super::super::catalogue::{self, Row as Setting};
use super::super::error::{ConfigError, ErrorKind};
use super::super::node::{Data, Node};
use super::super::spec::TypeSpec;
use super::aliases::{ALIASES, Row};
use super::{Advisor, leaves, values, with};

/// Words that leave a value to the program.
const BY_ITSELF: [&str; 2] = ["auto", "default"];

impl Advisor<'_> {
    /// Problem of a value that its setting cannot have, or, for a table, the problems of its
    /// entries.
    pub(super) fn wrong(&self, error: ConfigError, written: &Node) -> Vec<ConfigError> {
        let is_value = catalogue::row(&error.key).is_some_and(|setting| !setting.is_section);
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
        while catalogue::row(key).is_none() {
            match key.rsplit_once('.') {
                Some((outer, _)) => key = outer,
                None => return error,
            }
        }
        let setting = catalogue::row(key).expect("found above");
        if let Some(reason) = self.reason(setting) {
            let expected = format!("{} (its default)", setting.field.default.to_inline());
            return ConfigError { nearest: None, expected: Some(expected), ..error }.with_hint(reason);
        }
        let text = written.to_inline();
        let text = text.trim_matches(['"', '\'']);
        if let Some(section) = ALIASES.sections.get(key).filter(|_| setting.is_section) {
            let row = ALIASES.value(section, text);
            let advice =
                row.map_or_else(|| self.offer(&Row::of_setting(section), Some(written)), |row| self.offer(row, None));
            return error.with_hint(format!("[{key}] is a table: {}", advice.text));
        }
        let row = ALIASES.value(key, text);
        let of_row = |row: &Row, error: ConfigError| {
            let hint = self.offer(row, None).text;
            ConfigError { nearest: None, ..usable_names(error, setting) }.with_hint(hint)
        };
        if let Some(row) = row.filter(|row| row.of != "*") {
            return of_row(row, error);
        }
        if let Some(hint) = self.in_another_form(setting, written).filter(|_| whole == key) {
            return error.with_hint(hint);
        }
        if let Some(row) = row.filter(|_| error.nearest.is_none()) {
            return of_row(row, error);
        }
        let spec = (setting.field.spec)();
        let nearest = error.nearest.clone().or_else(|| values::name_within(text, &spec).map(str::to_owned));
        usable_names(ConfigError { nearest, ..error }, setting)
    }

    /// Advice on a value that is right in another unit or form, or that leaves the value to the
    /// program.
    fn in_another_form(&self, setting: &Setting, written: &Node) -> Option<String> {
        let (key, doc) = (&setting.key, setting.field.doc);
        let train_iters = match self.root.get_path("train.train_iters").map(|node| &node.data) {
            Some(Data::Int(number)) => Some(*number),
            _ => None,
        };
        let spec = (setting.field.spec)();
        let is_right = |value: &Node| spec.accepts(value) && setting.field.limits.violation(value).is_none();
        if let Some(meaning) = self.meaning(key, written, train_iters) {
            let note = meaning.note;
            return match meaning.value.filter(|value| is_right(value)) {
                Some(value) if note.is_empty() => Some(format!("write `{key} = {}`", value.to_inline())),
                Some(value) => Some(format!("write `{key} = {}`: {note}", value.to_inline())),
                None => (!note.is_empty()).then(|| note.to_owned()),
            };
        }
        if let Some(value) = values::converted(written, &spec).filter(|value| is_right(value)) {
            let value = if value.is_null() { "\"null\"".into() } else { value.to_inline() };
            return Some(format!("write `{key} = {value}`"));
        }
        let default = &setting.field.default;
        match &written.data {
            // A text setting is not a switch.
            Data::Bool(true) if spec.accepts(&Node::string("a")) => Some(format!("no switch: {doc}")),
            Data::String(text) if BY_ITSELF.contains(&text.trim().to_lowercase().as_str()) => {
                let is_needed = doc.contains("equired");
                let said =
                    if default.is_null() { doc.to_owned() } else { format!("{} is the default", default.to_inline()) };
                (!is_needed).then(|| format!("leave it out: {said}"))
            }
            _ => None,
        }
    }

    /// The hint on a number outside the range of its setting: the meaning in other programs, or
    /// null if 0 and -1 mean the same as null.
    pub(super) fn on_number(&self, key: &str, written: &Node) -> Option<String> {
        let setting = catalogue::row(key).filter(|setting| self.reason(setting).is_none())?;
        if let Some(row) = ALIASES.exact_value(key, &written.to_inline()) {
            return Some(self.offer(row, None).text);
        }
        let (doc, default) = (setting.field.doc, &setting.field.default);
        let is_nothing = match written.data {
            Data::Int(number) => number <= 0,
            Data::Float(number) => number <= 0.0,
            _ => false,
        };
        let can_be_null = (setting.field.spec)().accepts(&Node::null()) && !doc.contains("equired");
        let start = if default.is_null() { "leave it out, or write" } else { "write" };
        (is_nothing && can_be_null).then(|| format!("{start} `{key} = \"null\"`: {doc}"))
    }
}

/// Only names that this release implements are offered.
fn usable_names(error: ConfigError, setting: &Setting) -> ConfigError {
    let (TypeSpec::Choice(_), Some(refusal)) = ((setting.field.spec)(), &setting.field.refusal) else { return error };
    let usable = refusal.accepted(&setting.field.default);
    let names: Vec<_> = usable.iter().map(|node| node.to_inline().trim_matches('"').to_owned()).collect();
    let nearest = error.nearest.clone().filter(|nearest| names.contains(nearest));
    ConfigError { nearest, ..error }.with_expected(format!("one of {}", names.join(", ")))
}
