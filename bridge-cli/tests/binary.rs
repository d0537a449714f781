//! The binary starts and prints its name and version. With a test here, cargo builds it before the
//! suites of `tests/` run it.

use std::process::{Command, Output};

fn bridge(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bridge")).args(arguments).output().expect("bridge starts")
}

#[test]
fn it_names_its_version() {
    let output = bridge(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with(concat!("bridge ", env!("CARGO_PKG_VERSION"), " (")), "{said}");
    assert!(lines[1].starts_with("features: ") && lines[2].starts_with("CPU: "), "{said}");
    let short = bridge(&["-V"]);
    assert_eq!(String::from_utf8_lossy(&short.stdout).trim(), lines[0]);
}

#[test]
fn without_a_command_it_lists_them_and_exits_with_2() {
    let output = bridge(&[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for command in [
        "train",
        "eval",
        "generate",
        "config",
        "data",
        "tokenizer",
        "convert",
        "verify",
        "bench",
        "plan",
        "completions",
        "man",
    ] {
        assert!(said.contains(&format!("\n  {command} ")), "{command} in {said}");
    }
}
