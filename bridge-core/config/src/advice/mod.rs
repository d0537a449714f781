//! Replacements for names and values that a recipe cannot have. By meaning first, from the table of
//! other programs' names; then by the setting of that name in another section; then by letters.
//! Refused settings are never offered.

mod aliases;
mod lists;
mod names;
mod offers;
mod readings;
mod search;
mod units;
mod values;
mod wrong_values;

use std::collections::BTreeSet;
use std::sync::LazyLock;

pub(super) use aliases::ALIASES;

use super::catalogue::{Row, SETTINGS, row};
use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::kinds::Kinds;
use super::node::{Data, Entry, Location, Node};
use super::reader::MOST_ADVISED;

/// The least likeness of letters of a misspelt name.
const TYPING_ERROR: f64 = 0.8;
/// The least likeness, of letters and of words, of a name that may be meant.
const LIKE: (f64, f64) = (0.6, 0.3);
/// Maximum number of settings of an unknown table that are examined.
const MOST_LEAVES: usize = 100;

/// Values of a recipe without any.
static NOTHING: Node = Node { data: Data::Null, location: None };

/// Completes problems with what to write instead, for a recipe whose values are `root`.
pub(super) fn advise(errors: ConfigErrors, kinds: &Kinds, root: &Node) -> ConfigErrors {
    if !errors.iter().any(|error| error.written.is_some()) {
        return errors;
    }
    let advisor = Advisor { kinds, root };
    let mut num_unknown = 0;
    let advised = errors.into_iter().flat_map(|mut error| match (error.kind, error.written.take()) {
        (ErrorKind::UnknownKey, Some(written)) => {
            num_unknown += 1;
            match num_unknown {
                _ if num_unknown <= MOST_ADVISED => advisor.unknown(error, &written),
                _ => vec![ConfigError { nearest: None, meant: Vec::new(), ..error }],
            }
        }
        (ErrorKind::WrongType, Some(written)) => advisor.wrong(error, &written),
        (ErrorKind::OutOfRange, Some(written)) => {
            let hint = advisor.on_number(&error.key, &written);
            vec![ConfigError { hint: error.hint.clone().or(hint), ..error }]
        }
        _ => vec![error],
    });
    advised.collect()
}

/// Replacement for a name that a program of another kind would take, such as `num-layers`; `None`
/// if nothing is similar.
pub fn advice_for(name: &str, kinds: &Kinds) -> Option<String> {
    meant_by(name, kinds).map(|(text, _)| text)
}

/// The same as a sentence with the settings that are meant.
pub(super) fn meant_by(name: &str, kinds: &Kinds) -> Option<(String, Vec<String>)> {
    Advisor { kinds, root: &NOTHING }.find(name, None, None).map(|advice| (advice.text, advice.meant))
}

/// Replacement for a value that its setting does not know.
pub(super) fn advice_on_value(key: &str, value: &str, kinds: &Kinds) -> Option<String> {
    ALIASES.value(key, value).map(|row| Advisor { kinds, root: &NOTHING }.offer(row, None).text)
}

/// Replacement for a number outside the range of its setting, if its meaning has another name here.
pub(super) fn advice_on_number(key: &str, value: &Node, kinds: &Kinds) -> Option<String> {
    Advisor { kinds, root: &NOTHING }.on_number(key, value)
}

/// The advice on one name or value.
struct Advice {
    text: String,
    /// The settings that are meant.
    meant: Vec<String>,
}

struct Advisor<'k> {
    kinds: &'k Kinds,
    /// Written recipe; null without one.
    root: &'k Node,
}

/// Forms of a setting's name that names of a recipe are compared with.
struct NameForms {
    lowered: String,
    collapsed: String,
    words: BTreeSet<&'static str>,
}

/// All settings but sections, with the forms of their names.
static NAMED: LazyLock<Vec<(&Row, NameForms)>> = LazyLock::new(|| {
    let settings = SETTINGS.iter().filter(|row| !row.is_section);
    let named = settings.map(|row| {
        let lowered = row.name().to_lowercase();
        let collapsed = names::collapsed(&lowered);
        (*row, NameForms { lowered, collapsed, words: names::words(row.name(), &ALIASES.words) })
    });
    named.collect()
});

/// True if a key is that of a section.
fn is_section(key: &str) -> bool {
    row(key).is_some_and(|row| row.is_section)
}

impl Advisor<'_> {
    /// Why a target cannot be used: its setting, or the kind of data that it chooses.
    fn refused(&self, key: &str, value: Option<&str>) -> Option<String> {
        let of_kind = match (key, value) {
            ("dataset.kind", Some(kind)) => self.kinds.dataset.get(kind),
            ("model.kind", Some(kind)) => self.kinds.model.get(kind),
            _ => None,
        };
        let of_kind = of_kind.and_then(|kind| kind.not_implemented.as_ref());
        let of_kind = of_kind.map(|reason| format!("not implemented yet: {reason}"));
        of_kind.or_else(|| self.reason(row(key)?))
    }

    /// Why a setting cannot be used.
    fn reason(&self, setting: &Row) -> Option<String> {
        setting.refused(self.kinds, self.root)
    }

    /// The problem of an unknown name, or those of the names in an unknown table.
    fn unknown(&self, error: ConfigError, written: &Node) -> Vec<ConfigError> {
        let Some(entries) = entries_of(written) else { return vec![self.completed(error, Some(written))] };
        if Self::is_misspelt_table(&error, entries) {
            return vec![error];
        }
        let leaves = leaves(&error.key, entries);
        let found: Vec<_> = leaves.iter().map(|leaf| self.leaf(leaf, &error.key)).collect();
        let of_table = self.find(&error.key, None, None);
        if found.iter().all(Option::is_none) {
            return vec![match of_table {
                Some(advice) => with(error, advice),
                // Settings of the table are not in the section that its name resembles.
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

    /// Meaning of a leaf of an unknown table, or of the innermost table around it that has one.
    fn leaf(&self, leaf: &Leaf<'_>, table: &str) -> Option<Advice> {
        if let Some(advice) = self.whole_table(&leaf.key) {
            return Some(advice);
        }
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

    /// True if a table has settings of the section that its name resembles.
    fn is_misspelt_table(error: &ConfigError, entries: &[Entry]) -> bool {
        let Some(nearest) = &error.nearest else { return false };
        is_like(error) && entries.iter().all(|entry| row(&format!("{nearest}.{}", entry.key)).is_some())
    }

    /// The problem of one unknown name, completed with its probable meaning.
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
        let nearest = nearest.filter(|nearest| may_be(&error.key, nearest));
        match (advice, nearest) {
            (Some(advice), _) if misspelt_key(&advice, &parent, written).is_none() => with(error, advice),
            (Some(advice), _) => {
                let name = misspelt_key(&advice, &parent, written).map(str::to_owned);
                ConfigError { nearest: name, meant: advice.meant, ..error }
            }
            // A section is no answer to a setting, unless its name is misspelt.
            (None, Some(nearest)) if !is_misspelt && is_section(&key_of(&nearest)) => {
                ConfigError { meant: Vec::new(), ..error }
            }
            (None, Some(nearest)) => match self.refused(&key_of(&nearest), None) {
                Some(reason) => error.with_hint(format!("{} is {reason}", key_of(&nearest))),
                None => ConfigError { meant: vec![key_of(&nearest)], nearest: Some(nearest), ..error },
            },
            (None, None) => {
                let section = parent.trim_end_matches('.');
                let error = ConfigError { meant: Vec::new(), ..error };
                if is_section(section) {
                    error.with_hint(format!("`bridge config explain {section}` lists the settings of [{section}]"))
                } else {
                    error
                }
            }
        }
    }
}

/// The name in its own section that advice is about, if it says no more than that name and the
/// value that was written.
fn misspelt_key<'a>(advice: &'a Advice, parent: &str, written: Option<&Node>) -> Option<&'a str> {
    let [key] = advice.meant.as_slice() else { return None };
    let name = key.strip_prefix(parent).filter(|name| !name.contains('.'))?;
    let same = |node: &Node| advice.text == format!("write `{key} = {}`", node.to_inline());
    let says_no_more = advice.text == format!("write `{key}`") || written.is_some_and(same);
    says_no_more.then_some(name)
}

/// True if the last component of a key may be a misspelling of the name that resembles it most: by
/// letters, by words, or as its beginning.
fn may_be(key: &str, nearest: &str) -> bool {
    let (name, nearest) = (key.rsplit('.').next().unwrap_or_default().to_lowercase(), nearest.to_lowercase());
    let words = names::likeness(&names::words(&name, &ALIASES.words), &names::words(&nearest, &ALIASES.words));
    let letters = strsim::normalized_damerau_levenshtein(&name, &nearest);
    letters >= LIKE.0 || words >= LIKE.1 || name.starts_with(&nearest) || nearest.starts_with(&name)
}

/// True if the name of a table may be a misspelling of the section that it resembles.
fn is_like(error: &ConfigError) -> bool {
    let likeness = |name| strsim::normalized_damerau_levenshtein(&error.key.to_lowercase(), name);
    error.nearest.as_deref().is_some_and(|nearest| likeness(nearest) >= TYPING_ERROR)
}

fn with(error: ConfigError, advice: Advice) -> ConfigError {
    ConfigError { nearest: None, meant: advice.meant, ..error }.with_hint(advice.text)
}

/// Entries of a table, or of the first table of a list.
fn entries_of(node: &Node) -> Option<&[Entry]> {
    let table = match &node.data {
        Data::List(items) => items.first()?,
        _ => node,
    };
    table.entries().filter(|entries| !entries.is_empty())
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
