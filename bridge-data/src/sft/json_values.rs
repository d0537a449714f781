//! Records of a `.json` file: the items of a list, or objects one after the other. Each item is in
//! memory alone.

use std::io::BufRead;

/// Most bytes of a record.
pub(super) const LONGEST: usize = 64 << 20;

/// Items of a file.
pub(super) struct Items {
    reader: Box<dyn BufRead + Send>,
    /// Line of the next byte, from 1.
    line: u64,
    place: Place,
}

/// Position between items.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    /// After a list's bracket.
    First,
    /// After an item of a list.
    Behind,
    /// After a list's comma.
    Next,
    /// Between values that are in no list.
    Loose,
    End,
}

impl Items {
    pub(super) fn new(reader: Box<dyn BufRead + Send>) -> Self {
        Self { reader, line: 1, place: Place::Start }
    }

    fn peek(&mut self) -> Result<Option<u8>, String> {
        match self.reader.fill_buf() {
            Ok(bytes) => Ok(bytes.first().copied()),
            Err(error) => Err(format!("line {}: cannot be read: {error}", self.line)),
        }
    }

    fn skip(&mut self, byte: u8) {
        self.line += u64::from(byte == b'\n');
        self.reader.consume(1);
    }

    /// The next item as JSON text, with the line where it begins.
    ///
    /// # Errors
    /// A file that is not a list; an item of more than [`LONGEST`] bytes. The error is a sentence
    /// with the line.
    pub(super) fn next_item(&mut self) -> Result<Option<(u64, Vec<u8>)>, String> {
        loop {
            let Some(byte) = self.peek()? else {
                return match self.place {
                    Place::Start | Place::Loose | Place::End => Ok(None),
                    _ => Err(format!("line {}: the list has no end: expected `]`", self.line)),
                };
            };
            let expected = |what: &str| {
                Err(format!("line {}: expected {what}, found `{}`", self.line, char::from(byte).escape_default()))
            };
            match (byte, self.place) {
                (b' ' | b'\t' | b'\r' | b'\n', _) | (0xef | 0xbb | 0xbf, Place::Start) => {}
                (b'[', Place::Start) => self.place = Place::First,
                (b']', Place::First | Place::Behind) => self.place = Place::End,
                (b',', Place::Behind) => self.place = Place::Next,
                // These bytes begin no value: reading one would return empty items without end.
                (b',' | b']' | b'}', Place::Start | Place::Loose) => {
                    return expected("a list, or objects one after the other");
                }
                (_, Place::Start | Place::Loose) => {
                    self.place = Place::Loose;
                    return self.value().map(Some);
                }
                (_, Place::First | Place::Next) => {
                    self.place = Place::Behind;
                    return self.value().map(Some);
                }
                (_, Place::Behind) => return expected("`,` or `]` behind an item of the list"),
                (_, Place::End) => return expected("nothing behind the list"),
            }
            self.skip(byte);
        }
    }

    /// The bytes of a value: up to the bracket that closes it, or to the end of a number or word.
    fn value(&mut self) -> Result<(u64, Vec<u8>), String> {
        let (start, mut text, mut depth) = (self.line, Vec::new(), 0_usize);
        let (mut in_string, mut is_escaped) = (false, false);
        loop {
            let bytes = self.reader.fill_buf();
            let bytes = bytes.map_err(|error| format!("line {}: cannot be read: {error}", self.line))?;
            if bytes.is_empty() {
                return Ok((start, text));
            }
            let mut used = 0;
            let mut is_whole = false;
            for byte in bytes {
                if in_string {
                    match byte {
                        _ if is_escaped => is_escaped = false,
                        b'\\' => is_escaped = true,
                        b'"' => in_string = false,
                        _ => {}
                    }
                } else {
                    match byte {
                        b'"' => in_string = true,
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' if depth > 0 => {
                            depth -= 1;
                            is_whole = depth == 0;
                        }
                        // After a value that stands alone.
                        b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => {
                            is_whole = true;
                            break;
                        }
                        _ => {}
                    }
                }
                self.line += u64::from(*byte == b'\n');
                used += 1;
                if is_whole {
                    break;
                }
            }
            text.extend_from_slice(&bytes[..used]);
            self.reader.consume(used);
            if text.len() > LONGEST {
                return Err(format!("line {start}: an item has more than {LONGEST} bytes"));
            }
            if is_whole {
                return Ok((start, text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor};

    use super::*;

    /// Items with their lines, read through a buffer of three bytes.
    fn items(text: &str) -> Result<Vec<(u64, String)>, String> {
        let reader = BufReader::with_capacity(3, Cursor::new(text.as_bytes().to_vec()));
        let (mut items, mut found) = (Items::new(Box::new(reader)), Vec::new());
        while let Some((line, text)) = items.next_item()? {
            found.push((line, String::from_utf8(text).unwrap()));
        }
        Ok(found)
    }

    #[test]
    fn lists_and_loose_values_are_divided_into_items() {
        let of = |items: &[(u64, &str)]| Ok(items.iter().map(|(line, text)| (*line, (*text).to_owned())).collect());
        let list = "\u{feff}[\n  {\"a\": [1, \"]}\\\"\"]},\n {\n\"b\": 2}\n, 3 ]\n";
        assert_eq!(items(list), of(&[(2, "{\"a\": [1, \"]}\\\"\"]}"), (3, "{\n\"b\": 2}"), (5, "3")]));
        assert_eq!(items("{\"a\": 1}\n{\"b\":\n2}"), of(&[(1, "{\"a\": 1}"), (2, "{\"b\":\n2}")]));
        assert_eq!(items("[]"), of(&[]));
        assert_eq!(items(" \n"), of(&[]));
    }

    #[test]
    fn what_is_no_list_is_named_with_its_line() {
        for (text, reason) in [
            ("[1\n2]", "line 2: expected `,` or `]`"),
            ("[1]\n[2]", "line 2: expected nothing behind the list"),
            ("[1,\n", "line 2: the list has no end"),
            ("[", "line 1: the list has no end"),
            ("}", "line 1: expected a list, or objects"),
            ("{\"a\": 1},\n{\"a\": 2}", "line 1: expected a list, or objects"),
            ("{\"a\": 1}\n]", "line 2: expected a list, or objects"),
        ] {
            let error = items(text).unwrap_err();
            assert!(error.starts_with(reason), "{text:?}: {error}");
        }
    }
}
