//! `cargo xtask`: commands that build programs and run them. No functionality of Bridge belongs
//! here.

mod bench;
mod build;
mod models;
mod mpi;
mod suite;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::{Args, Parser, Subcommand};

/// Build Bridge and run it.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the release binary and train a recipe.
    Train(Train),
    /// Run every test: unit, integration, examples, and the suites under mpirun where it is
    /// installed.
    Test(Test),
    /// Measure training steps, or single operations, against PyTorch in paired runs.
    Bench(bench::Bench),
    /// Write docs/models.md, the table of model families, anew.
    Models,
    /// Build the release binary and run any `bridge` command.
    Bridge(Passed),
}

#[derive(Debug, Args)]
struct Train {
    /// The recipe: a TOML, YAML or JSON file.
    recipe: String,
    /// Compute device: flex (CPU, the default), cuda, wgpu or vulkan. Builds with the matching
    /// feature.
    #[arg(long)]
    device: Option<String>,
    /// Overrides (`train.train_iters=100`) and further options, passed on to `bridge train`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

#[derive(Debug, Args)]
struct Test {
    /// Instead, run the tests that need this device: the fused GPU kernels, and a short training
    /// run compared with the CPU. Builds with the matching feature; without such a device the tests
    /// fail.
    #[arg(long, value_parser = GPU_FEATURES)]
    device: Option<String>,
    /// Instead, run the kernel tests under the compiler's address sanitizer, which fails on
    /// out-of-bounds accesses, uses after free and leaks. Compiles Burn once more, under
    /// `target/sanitizer`.
    #[arg(long, value_parser = ["address"], conflicts_with = "device")]
    sanitizer: Option<String>,
    /// Passed on to `cargo test` (a test name, for instance).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

#[derive(Debug, Args)]
struct Passed {
    /// Passed on to `bridge`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().command {
        Command::Train(train) => run_train(train),
        Command::Test(Test { device: Some(device), rest, .. }) => suite::run_on_device(&device, &rest),
        Command::Test(Test { sanitizer: Some(sanitizer), rest, .. }) => suite::run_sanitized(&sanitizer, &rest),
        Command::Test(Test { rest, .. }) => suite::run(&rest),
        Command::Bench(bench) => bench::run(&bench),
        Command::Models => models::run(),
        Command::Bridge(bridge) => build::run_bridge(optional_features(&bridge.rest), bridge.rest),
    }
}

/// Settings that need a cargo feature of `bridge-cli`, with that feature.
const OPTIONAL_PARTS: [(&str, &str); 4] = [
    ("custom_manager_class", "object-stores"),
    ("prometheus_addr", "prometheus"),
    ("mlflow_experiment", "trackers"),
    ("otlp_endpoint", "trackers"),
];

/// Cargo features that a command line of `bridge` needs, for its command, its overrides or the
/// recipes that it names. If only the base of a recipe needs a feature, `bridge` reports it.
fn optional_features(arguments: &[String]) -> BTreeSet<&'static str> {
    let is_recipe = |path: &&String| ["toml", "yaml", "yml", "json"].iter().any(|kind| path.ends_with(kind));
    let recipes = arguments.iter().filter(is_recipe).filter_map(|path| std::fs::read_to_string(path).ok());
    let text = recipes.chain(arguments.iter().cloned()).collect::<Vec<_>>().join(" ");
    let command = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["ui", ..] => Some("ui"),
        ["runs", "send", ..] => Some("trackers"),
        _ => None,
    };
    let settings = OPTIONAL_PARTS.iter().filter(|(setting, _)| text.contains(setting)).map(|(_, feature)| *feature);
    settings.chain(command).collect()
}

/// Exit code for bad input, the same as `bridge`'s.
const BAD_INPUT: u8 = 2;

/// The feature that a training run needs for its device, if any. Finds a wrong device before a
/// build of several minutes does.
fn device_feature(recipe: &str, device: Option<&str>) -> Result<Option<&'static str>, String> {
    if !Path::new(recipe).is_file() {
        return Err(format!("the recipe {recipe} is not a file"));
    }
    device.map_or(Ok(None), feature_of)
}

/// The feature that `device` is behind; `None` for the CPU.
fn feature_of(device: &str) -> Result<Option<&'static str>, String> {
    let kind = device.split(':').next().unwrap_or(device);
    let feature = GPU_FEATURES.into_iter().find(|gpu| *gpu == kind);
    if feature.is_none() && kind != "flex" && kind != "cpu" {
        let gpus = GPU_FEATURES.join(", ");
        return Err(format!("--device: expected one of flex, cpu, {gpus}, with :N for the N-th, found `{device}`"));
    }
    Ok(feature)
}

/// Devices that are cargo features.
const GPU_FEATURES: [&str; 3] = ["cuda", "vulkan", "wgpu"];

fn run_train(train: Train) -> Result<ExitCode> {
    let Train { recipe, device, rest } = train;
    // Options may also come after the overrides, where clap passes them on unparsed.
    let device = device.or_else(|| option_value(&rest, "--device"));
    let feature = match device_feature(&recipe, device.as_deref()) {
        Ok(feature) => feature,
        Err(message) => {
            eprintln!("error: {message}");
            return Ok(ExitCode::from(BAD_INPUT));
        }
    };
    let mut arguments = vec!["train".to_owned(), recipe];
    let mut features: BTreeSet<&str> = feature.into_iter().collect();
    if feature == Some("cuda") {
        features.insert("nccl");
    }
    if let Some(device) = device.filter(|_| !rest.iter().any(|argument| argument.starts_with("--device"))) {
        arguments.extend(["--device".to_owned(), device]);
    }
    if option_value(&rest, "--ui").as_deref() == Some("tui") {
        features.insert("tui");
    }
    if option_value(&rest, "--launcher").as_deref() == Some("mpi") {
        mpi::installed().map_err(|why| anyhow!("--launcher mpi: {why}; --launcher threads needs no MPI"))?;
        features.insert("mpi");
    }
    arguments.extend(rest);
    features.extend(optional_features(&arguments));
    build::run_bridge(features, arguments)
}

/// Value of `--name value` or `--name=value`.
fn option_value(arguments: &[String], name: &str) -> Option<String> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == name {
            return rest.next().cloned();
        }
        if let Some(value) = argument.strip_prefix(name).and_then(|tail| tail.strip_prefix('=')) {
            return Some(value.to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_names_its_feature() {
        assert_eq!((feature_of("cuda:1"), feature_of("wgpu")), (Ok(Some("cuda")), Ok(Some("wgpu"))));
        assert_eq!((feature_of("flex"), feature_of("cpu")), (Ok(None), Ok(None)));
        assert!(feature_of("cudda").unwrap_err().contains("found `cudda`"));
    }

    #[test]
    fn a_command_line_names_its_optional_features() {
        let features = |line: &str| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            optional_features(&arguments).into_iter().collect::<Vec<_>>().join(",")
        };
        assert_eq!(features("train recipes/quickstart.toml"), "");
        assert_eq!(features("ui runs"), "ui");
        assert_eq!(features("runs send"), "trackers");
        assert_eq!(
            features(
                "train a.toml logger.otlp_endpoint=http://h logger.prometheus_addr=h:1 logger.mlflow_experiment=e"
            ),
            "prometheus,trackers"
        );
    }

    #[test]
    fn a_recipe_names_its_optional_features() {
        let recipe = std::env::temp_dir().join(format!("xtask-{}.toml", std::process::id()));
        std::fs::write(&recipe, "[checkpoint]\ncustom_manager_class = \"s3://bucket/runs\"\n").unwrap();
        let found = optional_features(&["train".into(), recipe.to_str().unwrap().into()]);
        std::fs::remove_file(&recipe).unwrap();
        assert_eq!(found, BTreeSet::from(["object-stores"]));
    }
}
