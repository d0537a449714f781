//! Lines that a user types on a terminal, with editing and a history. The history is kept in memory
//! only, for privacy.

use std::io;

use console::{Key, Term, measure_text_width};

/// Lines of the history.
const HISTORY: usize = 1000;
/// Keys that terminals send as control characters.
const CONTROL_D: char = '\u{4}';
const CONTROL_K: char = '\u{b}';
const CONTROL_U: char = '\u{15}';
const CONTROL_W: char = '\u{17}';

/// Reads lines from a terminal.
pub struct LineEditor {
    term: Term,
    history: Vec<String>,
}

impl LineEditor {
    /// Editor on the terminal; `None` if input or standard error is not a terminal, or is one that
    /// cannot move its cursor.
    pub fn new() -> Option<Self> {
        use std::io::IsTerminal;

        let term = Term::stderr();
        let is_dumb = std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
        let has_terminal = io::stdin().is_terminal() && term.is_term();
        (has_terminal && !is_dumb).then(|| Self { term, history: Vec::new() })
    }

    /// The next line; `None` at the end of the input (Control-D on an empty line). Fails with
    /// errors of the terminal.
    pub fn read_line(&mut self, prompt: &str) -> io::Result<Option<String>> {
        let mut line = Line::new(&self.history);
        loop {
            let width = usize::from(self.term.size().1).max(prompt.len() + 2);
            self.term.write_str(&line.drawn(prompt, width))?;
            self.term.flush()?;
            match line.press(self.term.read_key()?) {
                Edit::Going => {}
                Edit::Done => break,
                Edit::Ended => {
                    self.term.write_line("")?;
                    return Ok(None);
                }
            }
        }
        self.term.write_line("")?;
        let text = line.text();
        if !text.trim().is_empty() && self.history.last() != Some(&text) {
            self.history.push(text.clone());
            self.history.drain(..self.history.len().saturating_sub(HISTORY));
        }
        Ok(Some(text))
    }
}

/// State of a line after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Going,
    Done,
    Ended,
}

/// A line while it is typed.
struct Line<'a> {
    chars: Vec<char>,
    /// Characters before the cursor.
    cursor: usize,
    history: &'a [String],
    /// Line of the history that is shown; its length for the new line.
    shown: usize,
    /// The new line while one of the history is shown.
    new: Vec<char>,
}

impl<'a> Line<'a> {
    fn new(history: &'a [String]) -> Self {
        Self { chars: Vec::new(), cursor: 0, history, shown: history.len(), new: Vec::new() }
    }

    fn text(&self) -> String {
        self.chars.iter().collect()
    }

    fn press(&mut self, key: Key) -> Edit {
        match key {
            Key::Enter => return Edit::Done,
            Key::Char(CONTROL_D) if self.chars.is_empty() => return Edit::Ended,
            Key::Char(CONTROL_D) | Key::Del if self.cursor < self.chars.len() => drop(self.chars.remove(self.cursor)),
            Key::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.chars.remove(self.cursor);
            }
            Key::Char(CONTROL_K) => self.chars.truncate(self.cursor),
            Key::Char(CONTROL_U) => self.delete_from(0),
            Key::Char(CONTROL_W) => self.delete_from(self.word_start()),
            Key::ArrowLeft => self.cursor = self.cursor.saturating_sub(1),
            Key::ArrowRight => self.cursor = (self.cursor + 1).min(self.chars.len()),
            Key::Home => self.cursor = 0,
            Key::End => self.cursor = self.chars.len(),
            Key::ArrowUp if self.shown > 0 => self.show(self.shown - 1),
            Key::ArrowDown if self.shown < self.history.len() => self.show(self.shown + 1),
            Key::Char(char) if !char.is_control() => {
                self.chars.insert(self.cursor, char);
                self.cursor += 1;
            }
            _ => {}
        }
        Edit::Going
    }

    fn delete_from(&mut self, start: usize) {
        self.chars.drain(start..self.cursor);
        self.cursor = start;
    }

    /// Start of the word before the cursor.
    fn word_start(&self) -> usize {
        let before = &self.chars[..self.cursor];
        let word_end = before.iter().rposition(|char| !char.is_whitespace()).map_or(0, |at| at + 1);
        before[..word_end].iter().rposition(|char| char.is_whitespace()).map_or(0, |at| at + 1)
    }

    /// Shows a line of the history, or the new one.
    fn show(&mut self, place: usize) {
        if self.shown == self.history.len() {
            self.new = std::mem::take(&mut self.chars);
        }
        self.chars =
            self.history.get(place).map_or_else(|| std::mem::take(&mut self.new), |line| line.chars().collect());
        self.shown = place;
        self.cursor = self.chars.len();
    }

    /// The line as a terminal of `width` cells shows it, with the cursor in its place. Of a longer
    /// line the part around the cursor is shown.
    fn drawn(&self, prompt: &str, width: usize) -> String {
        let cells = |chars: &[char]| measure_text_width(&chars.iter().collect::<String>());
        let room = width - measure_text_width(prompt) - 1;
        let mut start = 0;
        while cells(&self.chars[start..self.cursor]) > room {
            start += 1;
        }
        let mut end = self.cursor;
        while end < self.chars.len() && cells(&self.chars[start..=end]) <= room {
            end += 1;
        }
        let shown: String = self.chars[start..end].iter().collect();
        let back = cells(&self.chars[self.cursor..end]);
        let back = if back > 0 { format!("\u{1b}[{back}D") } else { String::new() };
        format!("\r{prompt}{shown}\u{1b}[K{back}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(line: &mut Line, text: &str) {
        text.chars().for_each(|char| assert_eq!(line.press(Key::Char(char)), Edit::Going));
    }

    #[test]
    fn lines_are_edited_where_the_cursor_is() {
        let mut line = Line::new(&[]);
        typed(&mut line, "what is tame");
        for _ in 0..2 {
            line.press(Key::ArrowLeft);
        }
        line.press(Key::Backspace);
        typed(&mut line, "i");
        assert_eq!((line.text().as_str(), line.cursor), ("what is time", 10));
        line.press(Key::Home);
        line.press(Key::Del);
        line.press(Key::Char('W'));
        line.press(Key::End);
        typed(&mut line, "  ");
        line.press(Key::Char(CONTROL_W));
        assert_eq!(line.text(), "What is ");
        line.press(Key::ArrowLeft);
        line.press(Key::Char(CONTROL_U));
        assert_eq!((line.text().as_str(), line.cursor), (" ", 0));
        line.press(Key::Char(CONTROL_K));
        assert_eq!(line.press(Key::Char(CONTROL_D)), Edit::Ended);
        line.press(Key::Char('\u{1}'));
        assert_eq!((line.text().as_str(), line.press(Key::Enter)), ("", Edit::Done));
    }

    #[test]
    fn earlier_lines_come_back_and_the_new_one_stays() {
        let history = ["first".to_owned(), "second".to_owned()];
        let mut line = Line::new(&history);
        typed(&mut line, "new");
        line.press(Key::ArrowUp);
        assert_eq!(line.text(), "second");
        for _ in 0..3 {
            line.press(Key::ArrowUp);
        }
        assert_eq!((line.text().as_str(), line.cursor), ("first", 5));
        for _ in 0..3 {
            line.press(Key::ArrowDown);
        }
        assert_eq!(line.text(), "new");
    }

    #[test]
    fn what_is_drawn_fits_and_wide_characters_take_two_cells() {
        let mut line = Line::new(&[]);
        typed(&mut line, "日本ab");
        line.press(Key::ArrowLeft);
        assert_eq!(line.drawn("> ", 20), "\r> 日本ab\u{1b}[K\u{1b}[1D");
        line.press(Key::Home);
        assert_eq!(line.drawn("> ", 20), "\r> 日本ab\u{1b}[K\u{1b}[6D");
        typed(&mut line, &"x".repeat(50));
        for width in [4, 10, 30] {
            let drawn = line.drawn("> ", width);
            assert!(measure_text_width(&drawn.replace('\r', "")) < width, "{width}: {drawn:?}");
        }
    }
}
