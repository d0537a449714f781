//! The test suite: which tests run, which are skipped and why, and a closing line.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::build::build_for_tests;
use crate::mpi;

/// Features that need no system package.
const FULL: &str = "bridge-cli/full";

/// Features that are built where MPI is installed: the same programs then run the suites under
/// `mpirun` too, and NCCL's tests that need no GPU.
const WITH_MPI: [&str; 4] = [FULL, "bridge-cli/mpi", "bridge-tests/mpi", "bridge-cuda/nccl"];

/// Runs all tests. `rest` is passed on to `cargo test`.
pub fn run(rest: &[String]) -> Result<ExitCode> {
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    let installed = mpi::installed();
    let mut features: &[&str] = if installed.is_ok() { &WITH_MPI } else { &[FULL] };
    // `cargo test` builds the binary as well, but does not write the list of its sources anew,
    // which the suites compare it with.
    if let Err(why) = build_for_tests(features) {
        if installed.is_err() {
            return Err(why);
        }
        eprintln!("MPI is installed, and Bridge does not build with it ({why:#}): testing without");
        failed.push("ranks under mpirun");
        features = &[FULL];
        build_for_tests(features)?;
    }
    if let Err(why) = &installed {
        skipped.push(format!("ranks under mpirun: {why}"));
    }
    // The release profile: Burn in debug is too slow for training tests, and one profile is built
    // once.
    let mut workspace =
        ["test", "--release", "--workspace", "--no-fail-fast", "--features"].map(str::to_owned).to_vec();
    workspace.push(features.join(","));
    workspace.extend(rest.iter().cloned());
    if !cargo(&workspace)? {
        failed.push("cargo test --workspace");
    }
    if features == [FULL] {
        // Only this crate, so that no other crate is rebuilt.
        let nccl =
            ["test", "--release", "--package", "bridge-cuda", "--features", "nccl", "--lib", "nccl"].map(str::to_owned);
        if !cargo(&nccl)? {
            failed.push("NCCL without a GPU");
        }
    }
    match std::env::var_os("BRIDGE_PYTHON") {
        Some(python) => {
            if !transformers_round_trip(&python, features)? {
                failed.push("round trip of Hugging Face folders through transformers");
            }
        }
        None => skipped.push(
            "round trip of Hugging Face folders through transformers: BRIDGE_PYTHON names no Python that has it"
                .to_owned(),
        ),
    }
    println!();
    for suite in &skipped {
        println!("skipped  {suite}");
    }
    for suite in &failed {
        println!("FAILED   {suite}");
    }
    if failed.is_empty() {
        println!("all suites passed{}", if skipped.is_empty() { "" } else { " except those skipped above" });
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs `tests/transformers_round_trip.py` on all golden folders.
fn transformers_round_trip(python: &std::ffi::OsStr, features: &[&str]) -> Result<bool> {
    let program = build_for_tests(features)?;
    let mut folders = Vec::new();
    for entry in std::fs::read_dir("bridge-models/tests/fixtures/golden")? {
        folders.push(entry?.path());
    }
    folders.sort();
    let mut command = std::process::Command::new(python);
    let status = command.arg("tests/transformers_round_trip.py").arg(program).args(folders).status()?;
    Ok(status.success())
}

/// Runs the tests that need a GPU (or a software one) on `device`, the name of a feature. `rest` is
/// passed on to `cargo test`.
pub fn run_on_device(device: &str, rest: &[String]) -> Result<ExitCode> {
    let features = ["bridge-cli", "bridge-tests"].map(|package| format!("{package}/{device}"));
    build_for_tests(&features.each_ref().map(String::as_str))?;
    let features = features.join(",");
    let mut arguments = ["test", "--release", "--workspace", "--features", &features, "--test", "device"].to_vec();
    arguments.extend(rest.iter().map(String::as_str));
    let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
    Ok(if cargo(&arguments)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the kernel tests, which cover nearly all `unsafe`, under one of the compiler's sanitizers.
/// `rest` is passed on to `cargo test`.
pub fn run_sanitized(sanitizer: &str, rest: &[String]) -> Result<ExitCode> {
    // A separate target, so that build scripts and macros are compiled without the sanitizer.
    let host = host()?;
    let mut arguments = ["test", "--release", "--package", "bridge-kernels", "--lib", "--tests"].to_vec();
    arguments.extend(["--target", &host, "--target-dir", "target/sanitizer"]);
    arguments.extend(rest.iter().map(String::as_str));
    let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
    // Stable compilers have sanitizers too, behind an unstable flag that RUSTC_BOOTSTRAP makes them
    // accept.
    let lenient = [("RUSTC_BOOTSTRAP", "1".to_owned()), ("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"))];
    Ok(if cargo_with(&lenient, &arguments)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The default target of this machine's compiler.
fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().context("rustc could not be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV names no host")
}

fn cargo(arguments: &[String]) -> Result<bool> {
    cargo_with(&[], arguments)
}

fn cargo_with(environment: &[(&str, String)], arguments: &[String]) -> Result<bool> {
    let settings: String = environment.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    println!("$ {settings}cargo {}", arguments.join(" "));
    let mut command = crate::build::cargo();
    command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
    Ok(command.status().context("cargo could not be started")?.success())
}
