//! `bridge config`: check, show, diff, schema, schedule. `explain` has a file of its own.

use std::path::{Path, PathBuf};

use bridge_core::config::{
    ConfigError, Detail, ErrorKind, Format, Node, RawConfig, RunConfig, World, diff, diff_from_defaults, json_schema,
    load, load_with,
};
use bridge_core::logging::scientific;
use bridge_core::train::{
    DeviceError, LanguageModelStep, check_device_name, check_inputs, check_metric, parameter_rules, schedule_of,
};
use bridge_models::registry;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use serde_json::json;

use super::explain;
use crate::failure::Failure;
use crate::output::line;

/// Action on a recipe.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print every problem of a recipe, and of the files that it names; exit code 2 if there are
    /// any.
    Check {
        #[command(flatten)]
        recipe: Recipe,
        /// Refuse settings that have no effect because of others, instead of warning.
        #[arg(long)]
        strict: bool,
    },
    /// Print the resolved configuration.
    Show {
        #[command(flatten)]
        recipe: Recipe,
        /// Print only settings that differ from the defaults.
        #[arg(long)]
        non_default: bool,
    },
    /// Compare a recipe with another one, or with the defaults.
    Diff {
        #[command(flatten)]
        recipe: Recipe,
        /// The recipe to compare with.
        #[arg(long)]
        with: Option<PathBuf>,
    },
    /// Print a JSON schema of recipes.
    Schema {
        /// Ignored: a schema is always JSON.
        #[arg(long, hide = true)]
        json: bool,
        /// A recipe may be given; the schema is the same for all.
        #[arg(hide = true)]
        recipe: Option<PathBuf>,
    },
    /// Print what a setting or section does, its default and range, what it needs, and where
    /// upstream has it.
    Explain(explain::Arguments),
    /// Print the learning rate, weight decay and batch size of each iteration.
    Schedule(Recipe),
}

/// A recipe with overrides.
#[derive(Debug, Args)]
pub struct Recipe {
    /// The recipe: a TOML, YAML or JSON file.
    pub recipe: PathBuf,
    /// Overrides, such as `train.train_iters=100`.
    pub overrides: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Check for a run on this many ranks.
    #[arg(long, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_048_576))]
    pub ranks: usize,
}

impl Recipe {
    fn load(&self) -> Result<RunConfig, Failure> {
        let world = World { size: self.ranks };
        Ok(load(&self.recipe, &self.overrides, &registry().kinds(), &world)?)
    }
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Check { recipe, strict } => check(recipe, *strict),
        Command::Show { recipe, non_default } => {
            let detail = if *non_default { Detail::NonDefault } else { Detail::All };
            let format = if recipe.json { Format::Json } else { Format::Toml };
            let config = recipe.load()?;
            line(config.to_text(format, detail).trim_end());
            if !recipe.json {
                parameter_rules(&config, &registry())?.iter().for_each(|rule| line(&format!("# {rule}")));
            }
            Ok(0)
        }
        Command::Diff { recipe, with } => print_diff(recipe, with.as_deref()),
        Command::Schema { .. } => {
            line(&format!("{:#}", json_schema(&registry().kinds())));
            Ok(0)
        }
        Command::Explain(arguments) => explain::run(arguments),
        Command::Schedule(recipe) => print_schedule(recipe),
    }
}

fn check(recipe: &Recipe, strict: bool) -> Result<u8, Failure> {
    let world = World { size: recipe.ranks };
    let loaded = load_with(&recipe.recipe, &recipe.overrides, &registry().kinds(), &world, &device_is_usable);
    let loaded = loaded.and_then(|config| if strict { config.strict() } else { Ok(config) });
    let checked = loaded.and_then(|config| {
        check_inputs(&config, &registry())?;
        // This program has no other step.
        check_metric(&config, &LanguageModelStep).map(|()| config)
    });
    match checked.map_err(Failure::from) {
        Ok(config) => {
            if recipe.json {
                line(&json!({ "ok": true, "errors": [], "warnings": config.warnings() }).to_string());
            } else {
                for warning in config.warnings() {
                    line(&format!("warning: {warning}"));
                }
                line(&format!("{}: ok", recipe.recipe.display()));
            }
            Ok(0)
        }
        Err(Failure::Config(errors)) if recipe.json => {
            line(&json!({ "ok": false, "errors": errors.to_json() }).to_string());
            Ok(2)
        }
        Err(failure) => Err(failure),
    }
}

/// Checks that this build can train on the recipe's device.
fn device_is_usable(raw: &RawConfig) -> Vec<ConfigError> {
    let error = match check_device_name(&raw.device) {
        Ok(()) => return Vec::new(),
        Err(DeviceError::NotCompiledIn { feature, .. }) => {
            let message = format!("needs the cargo feature `{feature}`, which this build does not have");
            ConfigError::new(ErrorKind::NotImplemented, "device", message).with_hint(format!(
                "build with `--features {feature}`; `cargo xtask train RECIPE --device {feature}` does it"
            ))
        }
        Err(error) => {
            let hint = if let DeviceError::Unknown { hint, .. } = error { hint } else { String::new() };
            ConfigError::new(ErrorKind::WrongType, "device", format!("there is no such device{hint}"))
        }
    };
    vec![error.with_found(format!("{:?}", raw.device)).with_location(raw.location("device"))]
}

fn print_diff(recipe: &Recipe, with: Option<&Path>) -> Result<u8, Failure> {
    let left = recipe.load()?;
    let differences = match with {
        Some(path) => {
            let world = World { size: recipe.ranks };
            let right = load(path, &[], &registry().kinds(), &world)?;
            diff(left.recipe(), right.recipe())
        }
        None => diff_from_defaults(left.recipe()),
    };
    for difference in differences {
        if recipe.json {
            line(&serde_json::to_string(&difference).map_err(Failure::run)?);
        } else {
            let value = |side: &Option<Node>| side.as_ref().map_or_else(|| "null".into(), Node::to_inline);
            line(&format!("{}: {} -> {}", difference.key, value(&difference.left), value(&difference.right)));
        }
    }
    Ok(0)
}

fn print_schedule(recipe: &Recipe) -> Result<u8, Failure> {
    for row in schedule_of(&recipe.load()?).map_err(Failure::from)? {
        if recipe.json {
            line(&serde_json::to_string(&row).map_err(Failure::run)?);
        } else {
            line(&format!(
                "{:>9}  lr {}  wd {}  batch {:>6}  samples {:>12}",
                row.iteration,
                scientific(row.learning_rate),
                scientific(row.weight_decay),
                row.global_batch_size,
                row.consumed_samples
            ));
        }
    }
    Ok(0)
}
