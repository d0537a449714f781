//! Layout for terminals: width and colors, messages folded at words, columns of which the least
//! important are dropped. The callers decide on the content.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use console::{Term, measure_text_width};

use super::record::LogLevel;

/// Width where the system does not say: that of terminals since there are any.
const USUAL: usize = 80;
/// Width that narrower terminals are treated as. Their lines wrap.
const LEAST: usize = 20;

/// Cells that a line may take on a terminal: `COLUMNS` if it is set, else the size that the system
/// reports for `term`. The last one stays free, because some terminals wrap when it is written.
fn usable(term: &Term) -> usize {
    let given = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok()).filter(|n| *n > 0);
    let asked = || term.size_checked().map(|(_, columns)| usize::from(columns)).filter(|n| *n > 0);
    given.or_else(asked).unwrap_or(USUAL).max(LEAST) - 1
}

/// The file for results, if the program keeps standard output for them.
static OUTPUT: OnceLock<File> = OnceLock::new();

/// Makes `file` the standard output of this program's own results, separate from output of
/// libraries to the descriptor. Only the first call counts.
pub fn keep_output(file: File) {
    // A second file would split the results.
    let _ = OUTPUT.set(file);
}

/// Standard output as it is used for results.
///
/// # Errors
/// If the system gives no descriptor.
pub fn output_file() -> io::Result<File> {
    match OUTPUT.get() {
        Some(file) => file.try_clone(),
        None => Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
    }
}

/// True if results are printed on a terminal.
pub fn output_is_terminal() -> bool {
    OUTPUT.get().map_or_else(|| io::stdout().is_terminal(), IsTerminal::is_terminal)
}

/// Cells that a line may take on standard output.
pub fn output_width() -> usize {
    match output_file().and_then(|file| Ok((file.try_clone()?, file))) {
        Ok((read, write)) => usable(&Term::read_write_pair(read, write)),
        Err(_) => usable(&Term::stdout()),
    }
}

/// Cells that a bar may take on standard error: it is drawn again and again, for which the
/// terminal's own width counts too.
pub(super) fn bar_width() -> usize {
    let term = Term::stderr();
    usable(&term).min(usize::from(term.size().1).max(LEAST) - 1)
}

/// When colours are used, as `cargo` has it: `CARGO_TERM_COLOR` if it is `always` or `never`, else
/// on terminals, unless `NO_COLOR` or `CLICOLOR=0` say otherwise.
pub fn colours() -> ColorChoice {
    match std::env::var("CARGO_TERM_COLOR").as_deref() {
        Ok("always") => ColorChoice::Always,
        Ok("never") => ColorChoice::Never,
        Ok(_) | Err(_) => ColorChoice::Auto,
    }
}

/// Standard output, which takes colours where [`colours`] wants them and drops them elsewhere.
pub fn coloured_output() -> Box<dyn Write + Send> {
    match OUTPUT.get().map(File::try_clone) {
        Some(Ok(file)) => Box::new(AutoStream::new(file, colours())),
        Some(Err(_)) | None => Box::new(AutoStream::new(io::stdout(), colours())),
    }
}

/// Standard output for lines without colours.
pub fn plain_output() -> Box<dyn Write + Send> {
    match OUTPUT.get().map(File::try_clone) {
        Some(Ok(file)) => Box::new(file),
        Some(Err(_)) | None => Box::new(io::stdout()),
    }
}

/// True if bars on standard error have colors.
pub(super) fn colours_bars() -> bool {
    match colours() {
        ColorChoice::Auto => AutoStream::choice(&io::stderr()) != ColorChoice::Never,
        choice => choice != ColorChoice::Never,
    }
}

/// Style of the words at the head of a line.
fn style(level: LogLevel) -> Style {
    match level {
        LogLevel::Debug => Style::new().dimmed(),
        LogLevel::Info => AnsiColor::Green.on_default().bold(),
        LogLevel::Warning => AnsiColor::Yellow.on_default().bold(),
        LogLevel::Error => AnsiColor::Red.on_default().bold(),
    }
}

/// `text` in `style`.
pub(super) fn painted(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// True if a character controls a terminal or the order in which text is shown: C0 and C1 controls
/// but for tab and newline, and the bidirectional overrides and isolates of Unicode.
fn is_control(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with characters that control a terminal as escapes in the form of JSON, so that names
/// from files and answers of servers do nothing to it, and JSON stays JSON.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            // An end of line as Windows has it.
            '\r' if rest.peek() == Some(&'\n') => {}
            c if is_control(c) => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// [`printable`] text that keeps escapes for colours and font weights.
pub fn printable_in_colours(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    // Code 8 hides what follows.
    let is_code = |code: &str| code.is_empty() || code.parse::<u8>().is_ok_and(|code| code != 8);
    let mut parts = text.split("\u{1b}[");
    let mut safe = printable(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        match part.split_once('m') {
            Some((codes, rest)) if codes.split(';').all(is_code) => {
                safe += &format!("\u{1b}[{codes}m{}", printable(rest));
            }
            // An escape that is no colour is shown.
            _ => safe += &printable(&format!("\u{1b}[{part}")),
        }
    }
    Cow::Owned(safe)
}

/// Writes `text` and a newline to standard error: as it is, but on a terminal folded to its width,
/// and with `error` and `warning` at the head of a line in colour.
pub fn complain(text: &str) {
    let stderr = io::stderr();
    let text = &printable(text);
    let fitted =
        if stderr.is_terminal() { highlighted(&folded(text, usable(&Term::stderr()))) } else { text.to_string() };
    // A failed write cannot be reported anywhere.
    let _ = writeln!(AutoStream::new(stderr.lock(), colours()), "{fitted}");
}

/// The lines of `text`, those that begin with a level with that in its colour.
pub(super) fn highlighted(text: &str) -> String {
    let line = |line: &str| {
        let levels = [LogLevel::Warning, LogLevel::Error];
        let head =
            |level: &LogLevel| line.strip_prefix(level.to_string().as_str()).filter(|rest| rest.starts_with(':'));
        match levels.iter().find_map(|level| Some((*level, head(level)?))) {
            Some((level, rest)) => painted(style(level), &level.to_string()) + rest,
            None => line.to_owned(),
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A text whose lines take at most `width` cells: longer ones go on in lines that are indented by
/// two cells more. Words longer than a line are cut, after a `/` where there is one. Tabs become
/// spaces, and other control characters are left out.
pub fn folded(text: &str, width: usize) -> String {
    let lines: Vec<String> = text.lines().flat_map(|line| folded_line(line, width.max(2))).collect();
    lines.join("\n")
}

fn folded_line(line: &str, width: usize) -> Vec<String> {
    let line: String = line.replace('\t', "    ").chars().filter(|c| !c.is_control()).collect();
    if measure_text_width(&line) <= width {
        return vec![line];
    }
    let indent = line.len() - line.trim_start().len();
    // A line that is indented by half the width has no room to be indented further.
    let indent = if indent + 2 > width / 2 { 0 } else { indent };
    let mut lines = vec![" ".repeat(indent)];
    for word in line.trim_start().split_inclusive(' ') {
        for piece in pieces(word, width - indent - 2) {
            let last = lines.last_mut().expect("there is a first line");
            if measure_text_width(&format!("{last}{}", piece.trim_end())) > width && !last.trim_start().is_empty() {
                // Blanks never begin a line: they would take cells from the word after them.
                if !piece.trim().is_empty() {
                    lines.push(" ".repeat(indent + 2) + piece);
                }
            } else {
                last.push_str(piece);
            }
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// A word in pieces of at most `width` cells, cut after a `/` where there is one.
fn pieces(word: &str, width: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while measure_text_width(rest.trim_end()) > width {
        let (mut end, mut slash) = (0, None);
        for (at, character) in rest.char_indices() {
            let next = at + character.len_utf8();
            // One character is taken even where it is too wide: the text has to end.
            if measure_text_width(&rest[..next]) > width && at > 0 {
                break;
            }
            end = next;
            slash = if character == '/' { Some(end) } else { slash };
        }
        let (piece, after) = rest.split_at(slash.unwrap_or(end));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

/// A part of a line that people see on a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Printed text.
    pub text: String,
    /// Weight of the column: if a line has no room for two columns, the one with the smaller weight
    /// is dropped.
    pub weight: u8,
}

/// The columns that fit into `width` cells after `head`, which is cut only where it is alone: all
/// of them with two spaces between them or with one, or else without those of the least weight.
pub fn in_columns(head: &str, columns: &[Column], width: usize) -> String {
    let mut kept: Vec<&Column> = columns.iter().filter(|column| !column.text.is_empty()).collect();
    let line = |kept: &[&Column], gap: &str| {
        let texts: Vec<&str> = std::iter::once(head)
            .chain(kept.iter().map(|column| column.text.as_str()))
            .filter(|t| !t.is_empty())
            .collect();
        texts.join(gap)
    };
    loop {
        let fitting =
            ["  ", " "].into_iter().map(|gap| line(&kept, gap)).find(|line| measure_text_width(line) <= width);
        if let Some(line) = fitting {
            return line;
        }
        let lightest = (0..kept.len()).min_by_key(|place| (kept[*place].weight, usize::MAX - place));
        match lightest {
            Some(place) => kept.remove(place),
            None => return console::truncate_str(head, width, "").into_owned(),
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn characters_that_control_a_terminal_are_shown() {
        let text = "a\u{1b}]0;title\u{7}b\u{9b}2Jc\u{202e}d\te\r\nf\rg\u{7f}é🙂";
        assert_eq!(printable(text), "a\\u001b]0;title\\u0007b\\u009b2Jc\\u202ed\te\nf\\u000dg\\u007fé🙂");
        let json = serde_json::Value::from(text).to_string();
        let safe = printable(&json);
        assert!(!safe.contains(is_control));
        assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
        assert!(matches!(printable("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn colours_stay_and_other_escapes_do_not() {
        let colours = "\u{1b}[36mone\u{1b}[0m \u{1b}[1;33mtwo\u{1b}[m";
        assert_eq!(printable_in_colours(colours), colours);
        assert_eq!(printable_in_colours("\u{1b}[2Ja\u{1b}[8mb\u{1b}["), "\\u001b[2Ja\\u001b[8mb\\u001b[");
        assert_eq!(printable_in_colours("\u{1b}[2J\u{1b}[3m"), "\\u001b[2J\u{1b}[3m");
    }

    fn column(text: &str, weight: u8) -> Column {
        Column { text: text.into(), weight }
    }

    #[test]
    fn light_columns_give_way() {
        let columns = [column("loss 5.5", 9), column("memory", 1), column("left", 5)];
        assert_eq!(in_columns("10", &columns, 80), "10  loss 5.5  memory  left");
        assert_eq!(in_columns("10", &columns, 23), "10 loss 5.5 memory left");
        assert_eq!(in_columns("10", &columns, 22), "10  loss 5.5  left");
        assert_eq!(in_columns("10", &columns, 12), "10  loss 5.5");
        assert_eq!(in_columns("1000000", &columns, 5), "10000");
    }

    #[test]
    fn levels_at_the_head_of_lines_have_colours() {
        let text = "error: one\n  --> warning: two\nwarning: three\nerrors: four";
        let coloured = highlighted(text);
        assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), text);
        let plain: Vec<bool> = coloured.lines().zip(text.lines()).map(|(a, b)| a == b).collect();
        assert_eq!(plain, [false, true, false, true]);
    }

    #[test]
    fn long_lines_are_folded_at_words_and_in_paths() {
        assert_eq!(folded("one two three", 8), "one two\n  three");
        assert_eq!(folded("  in a list of words", 14), "  in a list of\n    words");
        assert_eq!(folded("a      bcdefg/hi", 6), "a\n  bcde\n  fg/\n  hi");
        assert_eq!(folded("see runs/of/mine/now", 12), "see runs/of/\n  mine/now");
        assert_eq!(folded("a\tb\u{1b}[1mc\n\nd", 80), "a    b[1mc\n\nd");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_asked(text in "\\PC{0,200}( [a-z/]{0,60}){0,9}", width in 20_usize..200) {
            let folded = folded(&text, width);
            for line in folded.lines() {
                prop_assert!(measure_text_width(line) <= width, "{line:?} of {width}");
            }
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace() && !c.is_control()).collect::<String>();
            prop_assert_eq!(letters(&folded), letters(&text));
        }

        #[test]
        fn columns_fit_whatever_they_are(
            head in "\\PC{0,40}",
            columns in proptest::collection::vec(("\\PC{0,30}", 0_u8..255), 0..12),
            width in 1_usize..200,
        ) {
            let columns: Vec<Column> = columns.iter().map(|(text, weight)| column(text, *weight)).collect();
            prop_assert!(measure_text_width(&in_columns(&head, &columns, width)) <= width);
        }
    }
}
