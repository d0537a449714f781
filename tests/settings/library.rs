//! Runs of a program that uses Bridge as a library and so watches no signal unless the recipe asks
//! for it. The program is this test binary, started once more.

use std::path::Path;
use std::process::Command;

use bridge_core::config::{RawConfig, World};
use bridge_core::train::{RunOptions, pretrain};
use bridge_models::registry;

use super::check::check;
use super::contexts::tiny_with;
use super::row::{AS_IT_IS, Row, row, switch};
use super::run::{Meddling, Program};

/// Environment variable with the recipe and its overrides, one a line.
const HANDED_OVER: &str = "BRIDGE_SETTINGS_LIBRARY_RUN";

/// The program with a recipe and overrides.
pub fn command(arguments: &[String]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "library::signals_that_a_program_does_not_watch_itself", "--nocapture"]);
    command.env(HANDED_OVER, arguments.join("\n"));
    command
}

/// Trains and ends the process.
fn train(arguments: &str) -> ! {
    let mut lines = arguments.lines();
    let recipe = Path::new(lines.next().expect("a recipe"));
    let overrides: Vec<String> = lines.map(str::to_owned).collect();
    let raw = RawConfig::from_file(recipe, &overrides, &registry().kinds()).expect("a recipe");
    let config = raw.finalize(&World::SINGLE).expect("a recipe that is right");
    let report = pretrain(config, RunOptions::new(registry())).expect("it trains");
    std::process::exit(i32::from(u8::try_from(report.reason.exit_code()).expect("an exit code")));
}

#[test]
fn signals_that_a_program_does_not_watch_itself() {
    if let Ok(arguments) = std::env::var(HANDED_OVER) {
        train(&arguments);
    }
    check(&rows());
}

pub fn rows() -> Vec<Row> {
    let long = tiny_with(&["train.train_iters=100000"]).by(Program::Library);
    let on = |signal| long.while_(Meddling::Signal(signal));
    let watching = |signal| on(signal).with(&["train.exit_signal_handler=true"]);
    vec![
        switch("train.exit_signal_handler", &on("TERM")).moves("exit").holds(0, "exit", "15").holds(1, "exit", "143"),
        switch("train.exit_signal_handler_for_training", &on("INT"))
            .moves("exit")
            .holds(0, "exit", "signal")
            .holds(1, "exit", "130"),
        row("train.exit_signal", &watching("TERM"), &["SIGUSR1", AS_IT_IS]).moves("exit").holds(1, "exit", "143"),
        row("train.exit_signal", &watching("INT"), &[AS_IT_IS, "SIGINT"]).moves("exit").holds(1, "exit", "130"),
        row("train.exit_signal", &watching("HUP"), &[AS_IT_IS, "SIGHUP"]).moves("exit").holds(1, "exit", "129"),
    ]
}
