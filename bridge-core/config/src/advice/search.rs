//! Search for the meaning of another program's name: by the table of names, by the setting of that
//! name or of its table's section, by other readings of it, by the family that it belongs to, and
//! at last by words and letters.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::super::catalogue::{self, Row as Setting};
use super::super::node::Node;
use super::aliases::{ALIASES, Row};
use super::{Advice, Advisor, NAMED, NameForms, TYPING_ERROR, entries_of, names, readings};

/// The least likeness of letters of names that can only be the same, with a mistake in one word.
const SAME_LETTERS: f64 = 0.9;
/// The least likeness of words.
const SAME_WORDS: f64 = 0.66;
/// A section with no more settings is about one thing.
const SMALL_SECTION: usize = 24;
/// Names of a setting that gives the type of a table.
const TYPES: [&str; 5] = ["type", "rope_type", "name", "kind", "optimizer"];

/// Names of aliases for one setting each, with their words.
static WORDS_OF_ALIASES: LazyLock<Vec<(&str, BTreeSet<&str>, &Row)>> = LazyLock::new(|| {
    let names = ALIASES.names.iter().flat_map(|row| row.names().map(move |name| (name, row)));
    let names = names.filter(|(name, _)| !name.contains(['.', '*']));
    names.map(|(name, row)| (name, names::words(name, &ALIASES.words), row)).collect()
});

fn named_settings() -> impl Iterator<Item = (&'static Setting, &'static NameForms)> {
    NAMED.iter().map(|(row, forms)| (*row, forms))
}

/// The smaller and the larger of two numbers.
fn minmax(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Advisor<'_> {
    /// Meaning of a path. `misspelt` is the key that it resembles most in its own section.
    pub(super) fn find(&self, path: &str, misspelt: Option<&str>, written: Option<&Node>) -> Option<Advice> {
        // A name of several kilobytes is neither known elsewhere nor a typing error.
        if path.len() > 200 {
            return None;
        }
        let parts = names::normal(path);
        let name = parts.last()?;
        if let Some(row) = self.of_type(path, name).or_else(|| self.in_place(path, &parts)) {
            return Some(self.offer(&row, written));
        }
        // `enabled` alone has no meaning: it switches its table on.
        if names::words(name, &ALIASES.words).is_empty() {
            let (table, _) = path.rsplit_once('.')?;
            return self.find(table, None, written);
        }
        if let Some(row) = self.of_evaluation(&parts).or_else(|| self.by_name(&parts)) {
            return Some(self.offer(&row, written));
        }
        let opposite = readings::opposite_of(written);
        for reading in readings::readings(&parts, &ALIASES.tables, &ALIASES.programs) {
            let found =
                self.in_place(&reading.parts.join("."), &reading.parts).or_else(|| self.by_name(&reading.parts));
            if let Some(row) = found {
                let written = if reading.is_opposite { opposite.as_ref() } else { written };
                return Some(self.offer(&row, written));
            }
        }
        if let Some(setting) = misspelt.and_then(catalogue::row) {
            return Some(self.offer(&Row::of_setting(&setting.key), None));
        }
        if let Some(row) = ALIASES.family(name).cloned().or_else(|| self.row_like(name, &parts)) {
            return Some(self.offer(&row, written));
        }
        let setting = self.with_words_of(&parts)?;
        Some(self.offer(&Row::of_setting(&setting.key), written))
    }

    /// Advice on a path whose table has no counterparts for single settings, unless the end of the
    /// path is in the table of names.
    pub(super) fn whole_table(&self, path: &str) -> Option<Advice> {
        let parts = names::normal(path);
        let (_, tables) = parts.split_last()?;
        let of_name = |table: &str| ALIASES.name(table).or_else(|| ALIASES.family(table));
        let of_table = |table: &String| of_name(table).or_else(|| of_name(readings::trunk(table)));
        let row = tables.iter().find_map(|table| of_table(table).filter(|row| row.is_table))?;
        ALIASES.path(&parts).is_none().then(|| self.offer(row, None))
    }

    /// The only setting whose name has all words of a name and more: two words in the section that
    /// is meant, or three anywhere.
    fn with_words_of(&self, parts: &[String]) -> Option<&'static Setting> {
        let wanted = names::words(parts.last()?, &ALIASES.words);
        let table = parts.iter().rev().nth(1).map_or("", |table| readings::trunk(table));
        let section = ALIASES.tables.get(table).map_or(table, String::as_str);
        let only = |least: usize, is_near: &dyn Fn(&Setting) -> bool| {
            let named = named_settings().filter(|(setting, _)| is_near(setting));
            let mut found = named.filter(|(_, forms)| wanted.iter().all(|word| forms.words.contains(word)));
            let (first, _) = found.next().filter(|_| wanted.len() >= least)?;
            found.next().is_none().then_some(first)
        };
        only(2, &|setting| setting.section() == section).or_else(|| only(3, &|_| true))
    }

    /// Meaning of a name in a table of the type that is written beside it, or beside its table:
    /// `yarn.factor` for `rope_scaling.factor` if `rope_scaling.type` is yarn.
    fn of_type(&self, path: &str, name: &str) -> Option<Row> {
        let mut table = path;
        for _ in 0..2 {
            table = table.rsplit_once('.')?.0;
            let beside = self.root.get_path(table).and_then(entries_of).unwrap_or_default();
            let text_of =
                |word: &&str| names::normal(beside.iter().find(|entry| entry.key == **word)?.node.text()?).pop();
            let row = TYPES.iter().find_map(text_of).and_then(|kind| ALIASES.name(&format!("{kind}.{name}")));
            if row.is_some() {
                return row.cloned();
            }
        }
        None
    }

    /// Meaning of a name in a table about evaluation, if other tables have the same name:
    /// `eval_batch_size` for `validation_ds.batch_size`.
    fn of_evaluation(&self, parts: &[String]) -> Option<Row> {
        let [.., table, name] = parts else { return None };
        let table = readings::trunk(table);
        if table != "validation" && ALIASES.tables.get(table).is_none_or(|section| section != "validation") {
            return None;
        }
        let name = format!("eval_{name}");
        let setting = || catalogue::row(&format!("validation.{name}")).map(|setting| Row::of_setting(&setting.key));
        ALIASES.name(&name).cloned().or_else(setting)
    }

    /// Meaning of the end of a path: by the table of names, in its own section, or in the section
    /// that its table denotes.
    fn in_place(&self, path: &str, parts: &[String]) -> Option<Row> {
        let name = parts.last()?;
        // The tables are shortened, the name is not: `optim_args` is not `optim`.
        let trunks = parts[..parts.len() - 1].iter().map(|part| readings::trunk(part).to_owned());
        let short: Vec<_> = trunks.chain([name.clone()]).collect();
        if let Some(row) = ALIASES.path(parts).or_else(|| ALIASES.path(&short)) {
            return Some(row.clone());
        }
        let setting = self.in_own_section(path, name).or_else(|| self.in_section_of(parts));
        setting.map(|setting| Row::of_setting(&setting.key))
    }

    /// Meaning of a name in any table.
    fn by_name(&self, parts: &[String]) -> Option<Row> {
        let name = parts.last()?;
        if let Some(row) = ALIASES.name(name) {
            return Some(row.clone());
        }
        if let Some(target) = ALIASES.sections.get(name) {
            return Some(Row::of_setting(target));
        }
        let setting = self.best(parts, &|forms| forms.lowered == *name).or_else(|| {
            let short = names::collapsed(name);
            self.best(parts, &|forms| forms.collapsed == short)
        });
        setting.map(|setting| Row::of_setting(&setting.key))
    }

    /// The setting of the section that a foreign table stands for, by its letters or, in small
    /// sections, by words that all are in its name.
    fn in_section_of(&self, parts: &[String]) -> Option<&'static Setting> {
        let [.., table, name] = parts else { return None };
        let section = ALIASES.tables.get(readings::trunk(table))?;
        let own: Vec<_> = named_settings().filter(|(setting, _)| setting.section() == section).collect();
        let short = names::collapsed(name);
        let same = own.iter().find(|(_, forms)| forms.collapsed == short);
        let wanted = names::words(name, &ALIASES.words);
        if same.is_some() || own.len() > SMALL_SECTION || wanted.is_empty() {
            return same.map(|(setting, _)| *setting);
        }
        let has_words = |forms: &NameForms| wanted.iter().all(|word| forms.words.contains(word));
        let fits = own.iter().filter(|(setting, forms)| self.reason(setting).is_none() && has_words(forms));
        fits.min_by_key(|(_, forms)| forms.words.len()).map(|(setting, _)| *setting)
    }

    /// The setting of the section in which a name stands that has the same letters, or, for a name
    /// that only switches something on, its switch.
    fn in_own_section(&self, path: &str, name: &str) -> Option<&'static Setting> {
        let (section, _) = path.rsplit_once('.')?;
        let mut own = named_settings().filter(|(setting, _)| setting.section() == section);
        let short = names::collapsed(name);
        let is_switch = names::words(name, &ALIASES.words).is_empty();
        let found = own.find(|(_, forms)| forms.collapsed == short || is_switch && forms.collapsed == "enabled");
        found.map(|(setting, _)| setting)
    }

    /// Best of the settings that fit: one of the section that the path names, else one that can be
    /// used, else the first.
    fn best(&self, parts: &[String], fits: &dyn Fn(&NameForms) -> bool) -> Option<&'static Setting> {
        let fitting = named_settings().filter(|(_, forms)| fits(forms));
        let all: Vec<_> = fitting.map(|(setting, _)| setting).collect();
        let is_named = |setting: &&&Setting| parts.iter().any(|part| part == setting.section());
        let is_usable = |setting: &&&Setting| self.reason(setting).is_none();
        let named = all.iter().filter(is_usable).find(is_named);
        named.or_else(|| all.iter().find(is_usable)).or_else(|| all.first()).copied()
    }

    /// The alias or setting whose words, or else letters, are most like those of a name; of several
    /// alike one of the section that the path names.
    fn row_like(&self, name: &str, parts: &[String]) -> Option<Row> {
        let aliases = WORDS_OF_ALIASES.iter().map(|(name, words, row)| ((*name, Some(*row), None), words));
        let settings = named_settings();
        let settings = settings.map(|(setting, forms)| ((setting.name(), None, Some(setting)), &forms.words));
        let wanted = names::words(name, &ALIASES.words);
        let length = name.chars().count();
        let mut best = None;
        for (candidate, words) in aliases.chain(settings) {
            let words = names::likeness(&wanted, words);
            // The distance is at least the difference of lengths, so most candidates need no
            // comparison.
            let (short, long) = minmax(length, candidate.0.chars().count());
            let letters = match short as f64 >= TYPING_ERROR * long as f64 {
                true => strsim::normalized_damerau_levenshtein(name, candidate.0),
                false => 0.0,
            };
            let score = if letters >= SAME_LETTERS {
                letters + 1.0
            } else if words >= SAME_WORDS {
                words + 1.0
            } else {
                letters
            };
            let is_named = candidate.2.is_some_and(|setting| parts.iter().any(|part| part == setting.section()));
            let rank = (score, u8::from(is_named));
            if score >= TYPING_ERROR && best.as_ref().is_none_or(|(found, _)| rank > *found) {
                best = Some((rank, candidate));
            }
        }
        match best?.1 {
            (_, Some(row), _) => Some(Row { of: name.to_owned(), ..row.clone() }),
            (_, None, setting) => Some(Row::of_setting(&setting?.key)),
        }
    }
}
