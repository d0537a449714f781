//! The PyTorch side: an interpreter with PyTorch, and runs of the peer program.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// An interpreter and the program it runs.
pub struct Peer {
    python: PathBuf,
    script: PathBuf,
    /// True if the program is benchmarks/peer_torch.py, which takes a sub-command.
    own: bool,
}

/// Program that the peer runs.
pub enum Program<'a> {
    /// Training steps of a preset.
    Step(&'a str),
    /// Single operations.
    Ops,
}

impl Peer {
    /// Finds PyTorch, and installs it first if requested. Fails if PyTorch is missing; the message
    /// says how to get it.
    pub fn find(python: Option<&Path>, script: Option<&Path>, install: bool) -> Result<Self> {
        let environment = root().join("target/bench-venv");
        let installed = environment.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
        if install && !has_torch(&installed) {
            install_torch(&environment, &installed)?;
        }
        let python = python.map_or(installed, Path::to_path_buf);
        if !has_torch(&python) {
            bail!(
                "{} does not run or has no PyTorch. Give one that has it with `--python PATH`, let `--install-peer` make \
                 target/bench-venv, or measure our side only with `--alone`",
                python.display()
            );
        }
        let own = script.is_none();
        let script = script.map_or_else(|| root().join("benchmarks/peer_torch.py"), Path::to_path_buf);
        ensure!(script.is_file(), "--peer: there is no file {}", script.display());
        Ok(Self { python, script, own })
    }

    /// Runs the program once and reads the JSON it prints last. Fails if it fails, if its last line
    /// is not JSON, or if operations are requested from another program than ours.
    pub fn run(&self, program: Program<'_>, options: &[String]) -> Result<Value> {
        let mut command = Command::new(&self.python);
        command.arg(&self.script);
        match program {
            Program::Step(preset) => {
                command.args(self.own.then_some("step")).args(["--preset", preset]);
            }
            Program::Ops => {
                ensure!(self.own, "--ops: only benchmarks/peer_torch.py times operations; leave out --peer");
                command.arg("ops");
            }
        }
        let output = command.args(options).output().context("the peer could not be started")?;
        ensure!(output.status.success(), "the peer failed: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).context("the peer's output is not UTF-8")?;
        let last = text.lines().last().context("the peer printed nothing")?;
        serde_json::from_str(last).with_context(|| format!("the peer's last line is not JSON: {last}"))
    }
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_path_buf()
}

fn has_torch(python: &Path) -> bool {
    Command::new(python).args(["-c", "import torch"]).output().is_ok_and(|output| output.status.success())
}

fn install_torch(environment: &Path, python: &Path) -> Result<()> {
    let run = |command: &mut Command| -> Result<()> {
        eprintln!("$ {command:?}");
        let status = command.status().with_context(|| format!("{command:?} could not be started"))?;
        ensure!(status.success(), "{command:?} failed");
        Ok(())
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    run(Command::new(python).args(["-m", "pip", "install", "--quiet", "torch", "numpy"]))
}
