//! One line of a metrics file: its kind, its iteration, and the numbers in it. `table` has the
//! structure that lines of a file share.

use serde_json::{Map, Value};

/// The numbers of a line.
#[derive(Debug, Default)]
pub(super) struct Line<'a> {
    /// Record kind of the line: `train`, `valid` and so on.
    pub kind: &'a str,
    /// The iteration.
    pub iteration: Option<u64>,
    /// Name of the object that a number is in, or nothing; its name; its value.
    pub numbers: Vec<(&'a str, &'a str, f64)>,
}

impl<'a> Line<'a> {
    /// Reads a line as the run writes it: flat, or with objects of numbers. `None` if it is
    /// anything else, which [`slowly`] may understand.
    pub fn read(&mut self, text: &'a [u8]) -> Option<()> {
        (self.kind, self.iteration) = ("", None);
        self.numbers.clear();
        let mut cursor = Cursor { text, at: 0 };
        cursor.expect(b'{')?;
        self.object(&mut cursor, "")?;
        (cursor.at == text.len()).then_some(())
    }

    /// Parses the rest of an object after its brace, to its end.
    fn object(&mut self, cursor: &mut Cursor<'a>, within: &'a str) -> Option<()> {
        if cursor.peek()? == b'}' {
            return cursor.expect(b'}');
        }
        loop {
            cursor.expect(b'"')?;
            let key = cursor.string()?;
            cursor.expect(b':')?;
            match cursor.peek()? {
                b'"' => {
                    cursor.at += 1;
                    let text = cursor.string()?;
                    if within.is_empty() && key == "kind" {
                        self.kind = text;
                    } else if let Some(value) = not_finite(text) {
                        self.numbers.push((within, key, value));
                    }
                }
                b'{' if within.is_empty() => {
                    cursor.at += 1;
                    self.object(cursor, key)?;
                }
                b'-' | b'0'..=b'9' => {
                    let number = cursor.number();
                    if within.is_empty() && key == "iteration" {
                        self.iteration = Some(number.parse().ok()?);
                    } else {
                        self.numbers.push((within, key, number.parse().ok()?));
                    }
                }
                _ => return None,
            }
            match cursor.peek()? {
                b',' => cursor.at += 1,
                _ => return cursor.expect(b'}'),
            }
        }
    }
}

/// Parses numbers that JSON cannot express.
fn not_finite(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// A string without escapes, after its first quotation mark.
    fn string(&mut self) -> Option<&'a str> {
        let rest = self.text.get(self.at..)?;
        let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..32))?;
        if rest[end] != b'"' {
            return None;
        }
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).ok()
    }

    /// The characters that a number may have.
    fn number(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let is_of_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E');
        let end = rest.iter().position(|byte| !is_of_number(byte)).unwrap_or(rest.len());
        self.at += end;
        std::str::from_utf8(&rest[..end]).unwrap_or_default()
    }
}

/// Parses a line as any JSON; `None` if it is not JSON.
pub(super) fn slowly(text: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(text).ok()
}

/// The numbers of a line that was read so.
pub(super) fn numbers_of(object: &Map<String, Value>) -> Line<'_> {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    let iteration = object.get("iteration").and_then(Value::as_u64);
    let mut numbers = Vec::new();
    let number = |value: &Value| value.as_f64().or_else(|| not_finite(value.as_str()?));
    for (key, value) in object.iter().filter(|(key, _)| *key != "iteration") {
        if let Value::Object(inner) = value {
            let inner = inner.iter().filter_map(|(name, value)| Some((key.as_str(), name.as_str(), number(value)?)));
            numbers.extend(inner);
        } else if let Some(value) = number(value) {
            numbers.push(("", key.as_str(), value));
        }
    }
    Line { kind, iteration, numbers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_read_the_same() {
        let line = br#"{"kind":"train","iteration":7,"loss":6.2620864,"lr":1e-4,"norm":"NaN","low":"-Infinity","losses":{"lm loss":-2.5},"run":"a"}"#;
        let mut fast = Line::default();
        fast.read(line).unwrap();
        let object = slowly(line).unwrap();
        let slow = numbers_of(&object);
        assert_eq!((fast.kind, fast.iteration), ("train", Some(7)));
        assert_eq!((slow.kind, slow.iteration), ("train", Some(7)));
        assert_eq!(format!("{:?}", fast.numbers), format!("{:?}", slow.numbers));
        assert_eq!(fast.numbers[1], ("", "lr", 1e-4));
        assert_eq!(fast.numbers[4], ("losses", "lm loss", -2.5));
    }

    #[test]
    fn what_is_not_flat_is_left_to_the_other_way() {
        let mut line = Line::default();
        for text in [
            "",
            "{",
            "[1]",
            r#"{"a":1"#,
            r#"{"a":1}x"#,
            r#"{"a":[1]}"#,
            r#"{"a\n":1}"#,
            r#"{"a":tru}"#,
            r#"{"a":1.1.1}"#,
        ] {
            assert!(line.read(text.as_bytes()).is_none(), "{text}");
        }
        let object = slowly(br#"{ "kind": "train", "iteration": 3, "counts": [1, 2], "a\"b": 1 }"#).unwrap();
        assert_eq!(numbers_of(&object).numbers, [("", "a\"b", 1.0)]);
    }
}
