//! Rows of the table of names as sentences: what to write, what to omit, or why there is no
//! counterpart.

use super::super::catalogue;
use super::super::node::{Data, Node};
use super::super::overrides::value_of;
use super::super::spec::TypeSpec;
use super::aliases::{ALIASES, Row};
use super::{Advice, Advisor, readings, units, values};

/// Replacement: a setting, and its value if that is known.
type Target<'r> = (&'r str, Option<&'r str>);

impl Row {
    /// The row of a setting's own name.
    pub(super) fn of_setting(key: &str) -> Self {
        Self { keys: vec![key.to_owned()], ..Self::default() }
    }
}

impl Advisor<'_> {
    /// A row as a sentence. A refused target is not offered: the message gives the reason. For a
    /// value that is off already, the advice is to leave the name out.
    pub(super) fn offer(&self, row: &Row, written: Option<&Node>) -> Advice {
        let targets: Vec<Target<'_>> = row.targets().collect();
        let opposite = row.is_opposite.then(|| readings::opposite_of(written));
        let written = opposite.as_ref().map_or(written, Option::as_ref);
        if let ([(key, None)], Some(written)) = (targets.as_slice(), written)
            && let Some(of_value) = self.row_of_value(key, written)
        {
            return self.offer(&of_value, None);
        }
        let is_off = written.is_some_and(values::is_off);
        let refused = |(key, value): &Target<'_>| Some(format!("{key} is {}", self.refused(key, *value)?));
        let reason = targets.iter().find_map(refused).or_else(|| targets.is_empty().then(|| row.note.clone()));
        if let Some(reason) = reason {
            let text = if is_off && !row.off.is_empty() {
                row.off.clone()
            } else if is_off {
                format!("leave it out: {}", reason.strip_prefix("no setting: ").unwrap_or(&reason))
            } else {
                reason
            };
            return Advice { text, meant: Vec::new() };
        }
        let meant = targets.iter().map(|(key, _)| (*key).to_owned()).collect();
        if let Some(text) = written.filter(|_| is_off).and_then(|written| self.left_out(row, &targets, written)) {
            return Advice { text, meant };
        }
        let shown = self.shown(row, &targets, written);
        let note = self.note(row, &targets, written);
        let text = if note.is_empty() { format!("write {shown}") } else { format!("write {shown}: {note}") };
        Advice { text, meant }
    }

    /// Advice on a value that turns off the row's feature: to leave it out, unless that turns the
    /// feature on.
    fn left_out(&self, row: &Row, targets: &[Target<'_>], written: &Node) -> Option<String> {
        if !row.off.is_empty() {
            return Some(row.off.clone());
        }
        let is_null = written.is_null();
        let is_off_without = |(key, value): &Target<'_>| {
            catalogue::row(key).is_some_and(|setting| match value {
                Some(value) => setting.field.default != value_of(value),
                // A value that the setting accepts is intended.
                None if !is_null && (setting.field.spec)().accepts(written) => false,
                None => values::is_nothing(&setting.field.default),
            })
        };
        // The name of a setting is not a switch, unless the table lists it.
        let is_switch = is_null || !row.of.is_empty();
        if !is_switch || !targets.iter().all(is_off_without) {
            return None;
        }
        let shown = self.shown(row, targets, None);
        let start = if is_null { "leave it out; with a value it is" } else { "leave it out: it is off without" };
        Some(if row.note.is_empty() { format!("{start} {shown}") } else { format!("{start} {shown}: {}", row.note) })
    }

    /// The targets of a row, each with its value where the row has one, or where the written value
    /// can be used.
    fn shown(&self, row: &Row, targets: &[Target<'_>], written: Option<&Node>) -> String {
        let items = match written.map(|node| &node.data) {
            Some(Data::List(items)) if targets.len() > 1 && items.len() == targets.len() => Some(items),
            _ => None,
        };
        let whole = written.filter(|node| targets.len() == 1 && node.entries().is_none());
        let shown = targets.iter().enumerate().map(|(index, (key, value))| {
            let copied = || match (items, whole) {
                (Some(items), _) => self.taken(key, &items[index]),
                // A note is about a unit or a meaning that differs; a name and a turned switch have
                // neither.
                (None, Some(node)) if row.note.is_empty() || row.is_opposite => self.taken(key, node),
                (None, _) => None,
            };
            let renamed = || whole.and_then(|node| self.name_of(key, node).or_else(|| self.in_unit(key, node)));
            match value.map(in_toml).or_else(copied).or_else(renamed) {
                Some(value) => format!("`{key} = {value}`"),
                None => format!("`{key}`"),
            }
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Additional note: that of the row, or the conversion of the value's unit.
    fn note(&self, row: &Row, targets: &[Target<'_>], written: Option<&Node>) -> String {
        let of_unit = match (targets, written) {
            ([(key, None)], Some(written)) => self.meaning(key, written, None),
            _ => None,
        };
        match of_unit.map(|meaning| meaning.note).filter(|note| !note.is_empty()) {
            Some(note) => format!("{note}{}", row.note.strip_prefix("in optimizer steps").unwrap_or_default()),
            None => row.note.clone(),
        }
    }

    /// A value as it is written, if its setting takes it.
    fn taken(&self, key: &str, value: &Node) -> Option<String> {
        let setting = catalogue::row(key)?;
        let field = &setting.field;
        let is_built = field.refusal.as_ref().is_none_or(|refusal| refusal.accepted(&field.default).contains(value));
        let is_right = (field.spec)().accepts(value) && field.limits.violation(value).is_none();
        (!value.is_null() && is_built && is_right).then(|| value.to_inline())
    }

    /// The setting's name for a value, ignoring case.
    fn name_of(&self, key: &str, value: &Node) -> Option<String> {
        let name = values::name_of(value, &(catalogue::row(key)?.field.spec)())?;
        self.taken(key, &Node::string(name))
    }

    /// A text such as `"12h"` in the unit of the setting.
    fn in_unit(&self, key: &str, written: &Node) -> Option<String> {
        let value = self.meaning(key, written, None)?.value?;
        self.taken(key, &value)
    }

    /// Value in the unit of the setting.
    pub(super) fn meaning(&self, key: &str, written: &Node, train_iters: Option<i128>) -> Option<units::Meaning> {
        let setting = catalogue::row(key).filter(|setting| !setting.is_section)?;
        let takes = |data: Data| (setting.field.spec)().accepts(&Node::from(data));
        units::meaning(setting.name(), takes(Data::Int(1)) && !takes(Data::Float(0.5)), written, train_iters)
    }

    /// The row of a value that other programs write and that the setting does not accept; of a
    /// list, those of its items together.
    fn row_of_value(&self, key: &str, written: &Node) -> Option<Row> {
        let spec = (catalogue::row(key)?.field.spec)();
        if let Data::List(items) = &written.data
            && !spec.accepts(written)
        {
            let rows: Vec<Row> = items.iter().map(|item| self.row_of_value(key, item)).collect::<Option<_>>()?;
            return rows.into_iter().reduce(|mut all, row| {
                let more: Vec<_> = row.keys.into_iter().filter(|key| !all.keys.contains(key)).collect();
                all.keys.extend(more);
                all
            });
        }
        let text = written.to_inline();
        let text = text.trim_matches(['"', '\'']);
        // A valid name of the setting's own value is not interpreted as another program's name.
        let is_known = values::is_name(written, &spec);
        let row = if is_known { ALIASES.exact_value(key, text) } else { ALIASES.value(key, text) };
        let row = row.filter(|row| row.of != "*" && !(is_known && matches!(spec, TypeSpec::Choice(_))));
        row.cloned()
    }
}

fn in_toml(value: &str) -> String {
    let node = value_of(value);
    if node.is_null() { "\"null\"".into() } else { node.to_inline() }
}
