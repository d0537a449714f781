//! Visible output of a run: lines that fit the terminal, full ones in the log file and in pipes,
//! the header, colors.

use std::path::Path;
use std::process::{Command, Stdio};

use bridge_tests::{program, root};
use console::{measure_text_width, strip_ansi_codes};

/// Runs `bridge train` with `arguments` on a terminal of `columns` columns; returns the output.
fn on_terminal(folder: &Path, columns: usize, arguments: &[&str]) -> String {
    let (text, succeeded) = seen_with(folder, columns, arguments, &[]);
    assert!(succeeded, "{text}");
    text
}

/// Runs `bridge train` with environment variables; also returns whether it succeeded.
fn seen_with(folder: &Path, columns: usize, arguments: &[&str], variables: &[(&str, &str)]) -> (String, bool) {
    let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
    let line = format!("stty cols {columns}; '{}' train {}", program().display(), words.join(" "));
    let output = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("COLUMNS", columns.to_string())
        .env_remove("NO_COLOR")
        .env("TERM", "xterm-256color")
        .envs(variables.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("script starts");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success())
}

fn recipe(name: &str) -> String {
    root().join("recipes").join(name).display().to_string()
}

/// The lines of a terminal, a bar that is drawn again being a line of its own.
fn lines(seen: &str) -> Vec<String> {
    seen.split(['\n', '\r']).map(|line| strip_ansi_codes(line).into_owned()).collect()
}

fn assert_fits(seen: &str, columns: usize) {
    for line in lines(seen) {
        assert!(measure_text_width(&line) <= columns, "{} of {columns}: {line:?}", measure_text_width(&line));
    }
}

const QUICK: [&str; 4] =
    ["train.num_threads=1", "logger.log_interval=1", "train.train_iters=12", "validation.eval_interval=4"];

#[test]
fn no_line_wraps_whatever_the_width() {
    for columns in [40, 60, 80, 200] {
        let folder = tempfile::tempdir().unwrap();
        let tiny = recipe("tiny.toml");
        let save =
            ["checkpoint.save=a/folder/whose/name/is/rather/long/for/a/narrow/terminal", "checkpoint.save_interval=6"];
        let more = ["logger.log_params_norm=true", "logger.log_throughput=true", "logger.timing_log_level=1"];
        let memory = ["logger.log_memory_interval=5", "logger.log_num_zeros_in_grad=true"];
        let seen = on_terminal(folder.path(), columns, &[&[tiny.as_str()][..], &QUICK, &save, &more, &memory].concat());
        assert_fits(&seen, columns);
        assert!(seen.contains("loss") && seen.contains("valid"), "{seen}");
    }
}

#[test]
fn a_line_of_eighty_columns_has_what_people_look_for() {
    let folder = tempfile::tempdir().unwrap();
    let seen = on_terminal(folder.path(), 80, &[&[recipe("tiny.toml").as_str()][..], &QUICK].concat());
    assert_fits(&seen, 80);
    let lines = lines(&seen);
    for iteration in 1..=12 {
        let head = format!("{iteration:>2}/12 ");
        let line = lines.iter().find(|line| line.starts_with(&head)).unwrap_or_else(|| panic!("{head} in {seen}"));
        for column in ["loss ", "lr ", "norm ", " tok/s", " GiB", " left"] {
            assert!(line.contains(column), "{column} in {line:?}");
        }
    }
    assert!(lines.iter().any(|line| line.starts_with("valid at 4  loss ")), "{seen}");
    assert!(!seen.contains("Configuration Summary") && !seen.contains("consumed samples"), "{seen}");
    // The log file has everything.
    let log = std::fs::read_to_string(folder.path().join("runs/tiny/train.log")).unwrap();
    for text in
        ["Configuration Summary", "iteration       12/      12 | consumed samples:", "validation loss at iteration 8"]
    {
        assert!(log.contains(text), "{text} in {log}");
    }
    assert!(!log.contains('\u{1b}'));
    // A terminal with `-v` has the same lines.
    let folder = tempfile::tempdir().unwrap();
    let seen = on_terminal(folder.path(), 80, &[&[recipe("tiny.toml").as_str(), "-v"][..], &QUICK].concat());
    assert!(seen.contains("Configuration Summary") && seen.contains("consumed samples:"), "{seen}");
}

#[test]
fn numbers_of_any_size_fit() {
    let wild = [
        "optimizer.optimizer=sgd",
        "optimizer.adam_beta2=null",
        "optimizer.lr=900",
        "optimizer.min_lr=1e-8",
        "optimizer.clip_grad=0",
        "rerun_state_machine.check_for_nan_in_loss=false",
        "train.train_iters=1000000",
        "train.exit_interval=12",
        "validation.eval_interval=3",
        "scheduler.lr_warmup_iters=0",
        "logger.log_interval=1",
        "train.num_threads=1",
    ];
    let folder = tempfile::tempdir().unwrap();
    let seen = on_terminal(folder.path(), 80, &[&[recipe("tiny.toml").as_str()][..], &wild].concat());
    assert_fits(&seen, 80);
    assert!(seen.contains("nan") && seen.contains("not finite") && seen.contains(" left"), "{seen}");
}

#[test]
fn errors_and_warnings_fit_and_have_colours_as_cargo_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = recipe("tiny.toml");
    let wrong =
        [tiny.as_str(), "dataset.kind=gpt", "dataset.data_path=a/folder/that/is/nowhere/and/has/a/rather/long/name"];
    // A colour is an escape sequence that ends with m.
    let has_colours = |text: &str| {
        text.split("\u{1b}[")
            .skip(1)
            .any(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'))
    };
    for (variables, coloured) in [
        (&[][..], true),
        (&[("NO_COLOR", "1")][..], false),
        (&[("CARGO_TERM_COLOR", "never")], false),
        (&[("NO_COLOR", "1"), ("CARGO_TERM_COLOR", "always")], true),
    ] {
        let (text, succeeded) = seen_with(folder.path(), 60, &wrong, variables);
        assert!(!succeeded && text.contains("error"), "{text}");
        assert_fits(&text, 60);
        assert_eq!(has_colours(&text), coloured, "{variables:?}: {text:?}");
        let quick = ["train.train_iters=2", "train.num_threads=1", "logger.log_interval=1"];
        let (text, succeeded) = seen_with(folder.path(), 60, &[&[tiny.as_str()], &quick[..]].concat(), variables);
        assert!(succeeded, "{text}");
        assert_fits(&text, 60);
        assert_eq!(has_colours(&text), coloured, "{variables:?}: {text:?}");
    }
}

/// Output of a short run in a pipe.
fn said(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program())
        .arg("train")
        .args(arguments)
        .args(["train.train_iters=3", "train.num_threads=1", "train.global_batch_size=8", "train.micro_batch_size=1"])
        .current_dir(folder.path())
        .output()
        .expect("bridge starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_header_has_the_whole_models_size_and_the_layout() {
    let (tensor, pipeline) = ("model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2");
    let expert = "model.expert_model_parallel_size=2";
    let tiny = recipe("tiny.toml");
    let moe = recipe("tiny-moe.toml");
    for (recipe, cases) in [
        (
            &tiny,
            &[
                (&["--ranks", "1"][..], "1 rank"),
                (&["--ranks", "2"], "2 ranks: data 2"),
                (&["--ranks", "2", tensor], "2 ranks: tensor 2"),
                (&["--ranks", "2", pipeline], "2 ranks: pipeline 2"),
                (&["--ranks", "8", tensor, pipeline], "8 ranks: tensor 2 x pipeline 2 x data 2"),
            ][..],
        ),
        (
            &moe,
            &[
                (&["--ranks", "1"][..], "1 rank"),
                (&["--ranks", "2", expert], "2 ranks: data 2, experts over 2 with tensor 1"),
                (&["--ranks", "8", expert, pipeline], "8 ranks: pipeline 2 x data 4, experts over 2 with tensor 1"),
            ],
        ),
    ] {
        let mut sizes = std::collections::BTreeSet::new();
        for (arguments, layout) in cases {
            let text = said(&[&[recipe.as_str()][..], arguments].concat());
            let line = text.lines().find(|line| line.starts_with("parameters: ")).unwrap_or_else(|| panic!("{text}"));
            let (size, found) = line.split_once("; ").unwrap();
            assert_eq!(&found, layout, "{line}");
            sizes.insert(size.to_owned());
            assert!(text.contains("time expected: 0 s for 1 more iterations"), "{text}");
        }
        assert_eq!(sizes.len(), 1, "the model is the same on any number of ranks: {sizes:?}");
    }
}

#[test]
fn pipes_have_full_lines_without_colours() {
    let text = said(&[&recipe("tiny.toml"), "logger.log_interval=1"]);
    assert!(!text.contains('\u{1b}'));
    assert!(
        text.contains("tiny: gpt with 0.16 M parameters on flex, 3 iterations of 8 x 64 tokens; logs in "),
        "{text}"
    );
    let line =
        text.lines().find(|line| line.contains("] iteration        1/       3 | consumed samples:")).expect("a step");
    for part in ["| lm loss: ", "| learning rate: ", "| grad norm: ", "| tokens per second: ", "| time left: 0 s |"] {
        assert!(line.contains(part), "{part} in {line}");
    }
}
