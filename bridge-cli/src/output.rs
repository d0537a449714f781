//! Printing that stops quietly when the reader of a pipe goes away.

use std::io::{self, IsTerminal, Write};

use bridge_core::logging::terminal::{folded, output_width};

/// Writes a line to stdout. A closed pipe ends the process as other tools do.
pub fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    if let Err(error) = written {
        if error.kind() == io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("error: standard output: {error}");
        std::process::exit(1);
    }
}

/// Writes lines of text to stdout, folded to its width where that is a terminal.
pub fn text_lines(text: &str) {
    if io::stdout().is_terminal() { line(&folded(text, output_width())) } else { line(text) }
}
