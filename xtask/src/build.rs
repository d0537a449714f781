//! Builds the `bridge` binary and runs it.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

/// Cargo, as if called from a shell. Removes variables that `cargo xtask` sets for this program:
/// build scripts would see them, and run again after each change between the two ways to build.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let of_xtask = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(of_xtask) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Builds `bridge` in the release profile with `features` of `bridge-cli` and returns its path.
pub fn build_bridge<'a>(features: impl IntoIterator<Item = &'a str>) -> Result<PathBuf> {
    let features: Vec<String> = features.into_iter().map(|feature| format!("bridge-cli/{feature}")).collect();
    build(&["--package", "bridge-cli"], &features.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Builds `bridge` as the tests of the workspace do, with `features` (`PACKAGE/FEATURE`), and
/// returns its path.
pub fn build_for_tests(features: &[&str]) -> Result<PathBuf> {
    build(&["--workspace", "--bins"], features)
}

fn build(packages: &[&str], features: &[&str]) -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo
        .args(["build", "--release", "--message-format", "json-render-diagnostics"])
        .args(packages)
        .stdout(Stdio::piped());
    if !features.is_empty() {
        cargo.args(["--features", &features.join(",")]);
    }
    eprintln!("building bridge (the first build compiles Burn and takes several minutes)");
    let mut child = cargo.spawn().context("cargo could not be started")?;
    let stdout = child.stdout.take().context("cargo's output could not be read")?;
    let mut executable = None;
    for line in BufReader::new(stdout).lines() {
        let message: serde_json::Value = serde_json::from_str(&line?).unwrap_or_default();
        if message["target"]["name"] == "bridge"
            && let Some(path) = message["executable"].as_str()
        {
            executable = Some(PathBuf::from(path));
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the build failed{}", feature_hint(features));
    }
    executable.context("cargo built no executable called bridge")
}

fn feature_hint(features: &[&str]) -> String {
    match features {
        [] => String::new(),
        features => {
            format!(
                " with features {}: check the feature's name, and that its system packages are installed",
                features.join(",")
            )
        }
    }
}

/// Builds `bridge` with `features` of its own, runs it with `arguments`, and passes its exit code
/// on.
pub fn run_bridge<'a>(features: impl IntoIterator<Item = &'a str>, arguments: Vec<String>) -> Result<ExitCode> {
    let executable = build_bridge(features)?;
    run(Command::new(&executable).args(arguments))
}

/// Replaces this process by `command` if the system can (so that signals reach it directly),
/// otherwise runs it.
fn run(command: &mut Command) -> Result<ExitCode> {
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        Err(command.exec()).with_context(|| format!("{} could not be started", command.get_program().to_string_lossy()))
    }
    #[cfg(not(unix))]
    {
        let status = command.status().context("bridge could not be started")?;
        Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
    }
}
