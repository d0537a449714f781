//! Other ways to read a name: with its table before it, without the name of a program, and as the
//! opposite of its meaning.

use std::collections::BTreeMap;

use super::super::node::{Data, Node};

/// Words before a name that say the opposite of it.
const OPPOSITES: [&str; 5] = ["no", "not", "disable", "skip", "without"];
/// Words that may surround the name of a table of settings.
const WRAPPERS: [&str; 14] = [
    "_arguments",
    "_parameters",
    "_callback",
    "_settings",
    "_options",
    "arguments",
    "_kwargs",
    "_config",
    "_logger",
    "_params",
    "config",
    "_args",
    "_cfg",
    "_dict",
];

/// Words before a name that say only that it is on.
const SWITCHES: [&str; 9] = ["use", "enable", "create", "do", "with", "is", "run", "apply", "should"];

/// Words that are too general to identify a setting without the name of the program before them.
const GENERAL: [&str; 6] = ["name", "type", "path", "config", "id", "device"];

/// A path, read in another way.
pub(super) struct Reading {
    pub parts: Vec<String>,
    /// True if the name says the opposite.
    pub is_opposite: bool,
}

/// The ways to read a path, the likeliest first. `tables` maps names of other programs' tables to
/// sections.
pub(super) fn readings(parts: &[String], tables: &BTreeMap<String, String>, programs: &str) -> Vec<Reading> {
    let Some((name, outer)) = parts.split_last() else { return Vec::new() };
    let with =
        |name: String, is_opposite: bool| Reading { parts: outer.iter().cloned().chain([name]).collect(), is_opposite };
    let mut found = Vec::new();
    if let Some(table) = outer.last().map(|table| trunk(table)) {
        found.push(with(format!("{table}_{name}"), false));
        found.extend(name.strip_prefix(&format!("{table}_")).map(|rest| with(rest.to_owned(), false)));
    }
    found.extend(opposite(name).map(|rest| with(rest.to_owned(), true)));
    let short = trunk(name);
    if short != name {
        found.push(with(short.to_owned(), false));
    }
    // `create_preemption_callback` is `preemption`.
    found.extend(switched(short).map(|rest| with(rest.to_owned(), false)));
    // The longest first, so that `parallelism_config_cp_size` is `cp_size`.
    for (at, _) in name.match_indices('_').collect::<Vec<_>>().into_iter().rev() {
        let (table, rest) = (&name[..at], &name[at + 1..]);
        let is_program = programs.split(' ').any(|program| program == table);
        if (!is_program && !tables.contains_key(table)) || GENERAL.contains(&rest) {
            continue;
        }
        let table = (!is_program).then(|| table.to_owned());
        let of = |rest: &str| table.iter().cloned().chain([rest.to_owned()]).collect::<Vec<_>>();
        found.push(Reading { parts: of(rest), is_opposite: false });
        found.extend(opposite(rest).map(|rest| Reading { parts: of(rest), is_opposite: true }));
    }
    found
}

fn opposite(name: &str) -> Option<&str> {
    let (first, rest) = name.split_once('_')?;
    OPPOSITES.contains(&first).then_some(rest)
}

fn switched(name: &str) -> Option<&str> {
    let (first, rest) = name.split_once('_')?;
    (SWITCHES.contains(&first) && !GENERAL.contains(&rest)).then_some(rest)
}

/// The name of a table without affixes that only mark it as a table: `fsdp_config` and
/// `TrainingArguments` as `fsdp` and `training`.
pub(super) fn trunk(table: &str) -> &str {
    let stripped = WRAPPERS.iter().find_map(|wrapper| table.strip_suffix(wrapper));
    match stripped.filter(|rest| !rest.is_empty()) {
        Some(rest) => trunk(rest.trim_end_matches('_')),
        None => table,
    }
}

/// The opposite of a value, if it has one.
pub(super) fn inverted(value: &Node) -> Option<Node> {
    match &value.data {
        Data::Bool(is_on) => Some(Data::Bool(!is_on).into()),
        _ => None,
    }
}

/// The opposite of the value given for a name; a name without a value means true.
pub(super) fn opposite_of(written: Option<&Node>) -> Option<Node> {
    match written {
        Some(value) => inverted(value),
        None => Some(Data::Bool(false).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> Vec<String> {
        let parts: Vec<String> = path.split('.').map(str::to_owned).collect();
        let tables = BTreeMap::from([("adapter".to_owned(), "peft".to_owned())]);
        let readings = readings(&parts, &tables, "megatron_lm nemo");
        let text =
            |reading: &Reading| format!("{}{}", if reading.is_opposite { "not " } else { "" }, reading.parts.join("."));
        readings.iter().map(text).collect()
    }

    #[test]
    fn names_are_read_in_other_ways() {
        assert_eq!(read("loggers.wandb_kwargs.entity"), ["loggers.wandb_kwargs.wandb_entity"]);
        assert_eq!(read("fsdp_config.fsdp_version")[1], "fsdp_config.version");
        assert_eq!(read("no_save_rng"), ["not save_rng"]);
        assert_eq!(read("megatron_lm_no_load_optim"), ["no_load_optim", "not load_optim"]);
        assert_eq!(read("adapter_dropout"), ["adapter.dropout"]);
        assert_eq!(read("fp8_config"), ["fp8"]);
        assert_eq!(read("create_preemption_callback"), ["create_preemption", "preemption"]);
        assert_eq!(read("enable_remat"), ["remat"]);
        assert_eq!([read("oddity"), read("nemo_name")], [const { Vec::<String>::new() }; 2]);
    }

    #[test]
    fn a_table_is_named_without_what_says_so() {
        for (table, name) in
            [("fsdp_config", "fsdp"), ("trainingarguments", "training"), ("wandb_logger_kwargs", "wandb")]
        {
            assert_eq!(trunk(table), name);
        }
        assert_eq!(trunk("config"), "config");
        assert_eq!(inverted(&Data::Bool(true).into()), Some(Data::Bool(false).into()));
        assert_eq!(inverted(&Node::string("yes")), None);
        assert_eq!(opposite_of(None), Some(Data::Bool(false).into()));
        assert_eq!(opposite_of(Some(&Node::null())), None);
    }
}
