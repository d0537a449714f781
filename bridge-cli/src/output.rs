//! Printing results: whole, or an error. It stops quietly when the reader of a pipe goes away.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use bridge_core::logging::terminal::{
    Column, folded, in_columns, keep_output, output_file, output_is_terminal, output_width, printable,
    printable_in_colours,
};

/// Writes a line to stdout, with characters that control a terminal escaped. A closed pipe ends the
/// process as other tools do; any other failure ends it with an error.
pub fn line(text: &str) {
    print(&format!("{}\n", printable_in_colours(text)));
}

/// As [`line()`], without an end of line. On a terminal, characters that control it are escaped.
pub fn piece(text: &str) {
    print(&if output_is_terminal() { printable(text) } else { text.into() });
}

fn print(text: &str) {
    match write(text) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: standard output: {error}");
            std::process::exit(1);
        }
    }
}

/// Writes lines of text to stdout, folded to the width of a terminal.
pub fn text_lines(text: &str) {
    if output_is_terminal() { line(&folded(text, output_width())) } else { line(text) }
}

/// Prints rows with aligned columns. If the terminal is too narrow, the columns of the least weight
/// are left out.
pub fn table(rows: &[Vec<String>], weights: &[u8]) {
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let width = if output_is_terminal() { output_width() } else { usize::MAX };
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}"));
        let columns: Vec<Column> = cells
            .zip(weights.iter().chain(std::iter::repeat(&10)))
            .map(|(text, weight)| Column { text, weight: *weight })
            .collect();
        line(in_columns("", &columns, width).trim_end());
    }
}

fn write(text: &str) -> io::Result<()> {
    if WAS_CLOSED.load(Ordering::Relaxed) {
        return Err(io::Error::other("it is closed, so that the result cannot be printed"));
    }
    // The standard library silently ignores writes to a closed stdout, so write to the file itself.
    let _ordered = io::stdout().lock();
    output_file()?.write_all(text.as_bytes())
}

/// Keeps standard output for the results of this program. Output of libraries to standard output is
/// redirected to standard error: the `tokenizers` library, for instance, prints a line about a
/// vocabulary with unused ids. Fails if the descriptors cannot be duplicated.
pub fn keep_for_results() -> io::Result<()> {
    // `console` inspects standard output on the first call, so call it before the redirection.
    let _ = dialoguer::console::colors_enabled();
    keep_output(File::from(io::stdout().as_fd().try_clone_to_owned()?));
    // SAFETY: both numbers are open descriptors of this process, which the standard library opens
    // before `main`; only the file behind one of them changes.
    match unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Standard output for a child process that prints results in this process's place.
pub fn for_child() -> Stdio {
    output_file().map_or_else(|_| Stdio::inherit(), Stdio::from)
}

/// True if stdout was closed when the process started. The standard library opens `/dev/null` in
/// its place before `main`.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look_at_stdout() {
    // SAFETY: the descriptor is only asked whether it is open; that is what the call finds out.
    let stdout = unsafe { BorrowedFd::borrow_raw(1) };
    WAS_CLOSED.store(rustix::io::fcntl_getfd(stdout).is_err(), Ordering::Relaxed);
}

// SAFETY: the section has pointers to functions of this type, which the system calls once, before
// the standard library starts; this one uses nothing of it.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
static LOOK: extern "C" fn() = look_at_stdout;
