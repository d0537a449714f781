//! The worlds of a run that is started again: with which arguments each start begins. After a
//! machine was lost that is a world of others, or of fewer data-parallel ranks.

use std::ffi::OsString;

use bridge_core::config::{RawConfig, World};
use bridge_core::logging::terminal::complain;

use super::machines::{Machine, Starter, answering, first_of, world_on};

/// The option that names machines.
pub const HOSTS: &str = "--hosts";
const RANKS: &str = "--ranks";

/// Worlds of the starts of one run.
pub struct Worlds {
    /// Arguments of the first start.
    arguments: Vec<OsString>,
    spread: Option<Spread>,
}

/// A run that is spread over machines.
pub struct Spread {
    pub starter: Starter,
    pub machines: Vec<Machine>,
    /// Requested number of ranks.
    pub wanted: usize,
    /// Recipe that limits the number of ranks.
    pub recipe: RawConfig,
}

impl Worlds {
    /// Worlds of a run with these arguments.
    pub fn new(arguments: Vec<OsString>, spread: Option<Spread>) -> Self {
        Self { arguments, spread }
    }

    /// The arguments of the next start. Fails if no world of the machines that answer can train the
    /// recipe; the error text has the reason.
    pub fn next(&self) -> Result<Vec<OsString>, String> {
        let Some(spread) = &self.spread else { return Ok(self.arguments.clone()) };
        let (machines, lost) = answering(&spread.machines, spread.starter);
        lost.iter().for_each(|text| complain(text));
        let (ranks, machines) = spread.choose(&machines)?;
        let names = machines.iter().map(Machine::to_string).collect::<Vec<_>>().join(",");
        if ranks < spread.wanted {
            complain(&format!("the run has {ranks} ranks instead of {}, on {names}", spread.wanted));
        }
        let mut arguments = without_options(self.arguments.iter().cloned(), &[RANKS, HOSTS]);
        arguments.extend([format!("{RANKS}={ranks}"), format!("{HOSTS}={names}")].map(OsString::from));
        Ok(arguments)
    }
}

impl Spread {
    /// Number of ranks of the next world, and its machines.
    fn choose(&self, machines: &[Machine]) -> Result<(usize, Vec<Machine>), String> {
        let allows = |size| self.recipe.finalize(&World { size }).is_ok();
        match world_on(machines, self.wanted, allows) {
            Some(ranks) => Ok((ranks, first_of(machines, ranks))),
            None => {
                let places: usize = machines.iter().map(|machine| machine.slots).sum();
                Err(format!(
                    "the machines that answer have places for {places} ranks, and the recipe allows no world of so few"
                ))
            }
        }
    }
}

/// The arguments without these options and their values.
pub fn without_options(arguments: impl IntoIterator<Item = OsString>, names: &[&str]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if names.contains(&text.as_ref()) {
            arguments.next();
        } else if !names.iter().any(|name| text.strip_prefix(name).is_some_and(|rest| rest.starts_with('='))) {
            kept.push(argument);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use bridge_core::config::{Format, Kinds};

    use super::*;

    #[test]
    fn a_start_is_given_all_arguments_but_the_supervisors() {
        let kept = |arguments: &[&str], names: &[&str]| without_options(arguments.iter().map(OsString::from), names);
        let restarts = ["--max-restarts"];
        assert_eq!(kept(&["train", "--max-restarts", "3", "r.toml"], &restarts), ["train", "r.toml"]);
        let more = ["train", "r.toml", "--max-restarts=3", "--ranks", "4", "--hosts=a:2,b:2"];
        assert_eq!(kept(&more, &restarts), ["train", "r.toml", "--ranks", "4", "--hosts=a:2,b:2"]);
        assert_eq!(kept(&more, &["--max-restarts", RANKS, HOSTS]), ["train", "r.toml"]);
    }

    #[test]
    fn fewer_ranks_are_those_that_the_batch_and_the_model_allow() {
        let recipe = |more: &[&str]| {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../recipes/tiny.toml");
            let text = std::fs::read_to_string(path).unwrap();
            let overrides: Vec<String> = more.iter().map(|text| (*text).to_owned()).collect();
            RawConfig::from_text(&text, Format::Toml, &overrides, &Kinds::builtin()).unwrap()
        };
        let machine = |name: &str| Machine { name: name.into(), slots: 2 };
        let chosen = |recipe: RawConfig, machines: &[Machine]| {
            let spread = Spread { starter: Starter::Mpirun, machines: machines.to_vec(), wanted: 4, recipe };
            spread.choose(machines).map(|(ranks, machines)| (ranks, machines.len()))
        };
        let batch = ["train.global_batch_size=8", "train.micro_batch_size=1"];
        let all = ["a", "b", "c"].map(machine);
        assert_eq!(chosen(recipe(&batch), &all), Ok((4, 2)), "the third is spare");
        assert_eq!(chosen(recipe(&batch), &all[..1]), Ok((2, 1)));
        let three = Machine { name: "d".into(), slots: 3 };
        assert_eq!(chosen(recipe(&batch), &[three]), Ok((2, 1)), "3 does not divide the batch");
        let tensor = [&batch[..], &["model.tensor_model_parallel_size=4"]].concat();
        let none = chosen(recipe(&tensor), &all[..1]).unwrap_err();
        assert!(none.contains("places for 2 ranks"), "{none}");
    }
}
