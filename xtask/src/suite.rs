//! The test suite: what is run, what is skipped and why, and one closing line.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

/// Runs all tests. `rest` is handed on to `cargo test`.
pub fn run(rest: &[String]) -> Result<ExitCode> {
    let mut failed = Vec::new();
    // The release profile: Burn in debug is too slow for training tests, and one profile is built once.
    let mut workspace = vec!["test".to_owned(), "--release".into(), "--workspace".into()];
    workspace.extend(rest.iter().cloned());
    if !cargo(&workspace)? {
        failed.push("cargo test --workspace");
    }
    let mut skipped = Vec::new();
    match mpi() {
        Ok(()) => {
            let arguments = ["test", "--release", "--package", "bridge-dist", "--features", "mpi"];
            let mut arguments: Vec<String> = arguments.map(str::to_owned).to_vec();
            arguments.extend(rest.iter().cloned());
            if !cargo(&arguments)? {
                failed.push("bridge-dist under mpirun");
            }
        }
        Err(why) => skipped.push(format!("bridge-dist under mpirun: {why}")),
    }
    println!();
    for suite in &skipped {
        println!("skipped  {suite}");
    }
    for suite in &failed {
        println!("FAILED   {suite}");
    }
    if failed.is_empty() {
        println!("all suites passed{}", if skipped.is_empty() { "" } else { " but those skipped above" });
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cargo(arguments: &[String]) -> Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    println!("$ cargo {}", arguments.join(" "));
    Ok(Command::new(cargo).args(arguments).status().context("cargo could not be started")?.success())
}

/// Whether MPI programs can be built and launched here.
fn mpi() -> Result<(), String> {
    for (program, packages) in [("mpicc", "libopenmpi-dev"), ("mpirun", "openmpi-bin")] {
        let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
        if !found {
            return Err(format!(
                "`{program}` was not found (Debian and Ubuntu: apt-get install {packages} libclang1-14 libclang-common-14-dev)"
            ));
        }
    }
    Ok(())
}
