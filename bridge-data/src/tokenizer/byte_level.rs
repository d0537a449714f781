//! GPT-2's byte-level scheme: bytes as printable characters, and the pattern that splits text into
//! words. Merging words into tokens does not belong here.
//!
//! Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section
//! 2.2.

use std::sync::LazyLock;

/// The printable character of each byte.
static CHAR_OF_BYTE: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut unprintable = 0u32..;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte as u8 as char,
        // Bytes without a printable character use the characters from 256 on, in order.
        _ => unprintable.next().and_then(|n| char::from_u32(256 + n)).unwrap_or(' '),
    })
});

/// Writes bytes as printable characters.
pub(crate) fn to_chars(text: &str, out: &mut String) {
    out.extend(text.bytes().map(|byte| CHAR_OF_BYTE[byte as usize]));
}

/// Bytes as the printable characters that stand for them.
pub(crate) fn bytes_to_chars(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| CHAR_OF_BYTE[usize::from(*byte)]).collect()
}

/// The bytes of a token written in printable characters; `None` if it has other characters.
pub(crate) fn to_bytes(token: &str) -> Option<Vec<u8>> {
    token.chars().map(|c| CHAR_OF_BYTE.iter().position(|&of| of == c).map(|byte| byte as u8)).collect()
}

/// The character classes of the pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

/// Classes by code point, from the same Unicode tables as the `regex` crates.
struct Classes {
    basic: Vec<Class>,
    /// Ranges above the basic plane, in order.
    high: Vec<(char, char, Class)>,
}

static CLASSES: LazyLock<Classes> = LazyLock::new(|| {
    let mut classes = Classes { basic: vec![Class::Other; 0x1_0000], high: Vec::new() };
    for (pattern, class) in [(r"\p{L}", Class::Letter), (r"\p{N}", Class::Number), (r"\s", Class::Space)] {
        let Ok(hir) = regex_syntax::parse(pattern) else { unreachable!("the pattern is a constant") };
        let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(set)) = hir.kind() else {
            unreachable!("the pattern is one character class")
        };
        for range in set.ranges() {
            for code in range.start() as u32..=(range.end() as u32).min(0xffff) {
                classes.basic[code as usize] = class;
            }
            if range.end() as u32 > 0xffff {
                classes.high.push((range.start(), range.end(), class));
            }
        }
    }
    classes.high.sort_by_key(|range| range.0);
    classes
});

impl Classes {
    fn class_of(&self, c: char) -> Class {
        if let Some(&class) = self.basic.get(c as usize) {
            return class;
        }
        let after = self.high.partition_point(|&(start, ..)| start <= c);
        match after.checked_sub(1).map(|i| self.high[i]) {
            Some((_, end, class)) if c <= end => class,
            _ => Class::Other,
        }
    }
}

/// Pattern whose consecutive matches are the words of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// A pattern of [`CL100K`]. Contractions of any case are words if `contractions` is true; a
    /// number has at most `digits` digits.
    Cl100k { contractions: bool, digits: usize },
}

/// Patterns of the family of OpenAI's `cl100k_base`: those of Llama 3, of Qwen 2 and of Megatron.
pub(crate) const CL100K: [(&str, Pattern); 3] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern::Cl100k { contractions: true, digits: 3 },
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern::Cl100k { contractions: true, digits: 1 },
    ),
    (
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern::Cl100k { contractions: false, digits: 1 },
    ),
];

/// The consecutive matches of a pattern.
pub(crate) struct Words<'a> {
    rest: &'a str,
    pattern: Pattern,
    classes: &'static Classes,
}

/// A longer word is cut: merging one takes a hundred times its bytes of memory. No text of people
/// or programs has any.
pub(crate) const LONGEST_WORD: usize = 1 << 20;

/// Splits `text` into words.
pub(crate) fn words(text: &str, pattern: Pattern) -> Words<'_> {
    Words { rest: text, pattern, classes: &CLASSES }
}

impl Words<'_> {
    /// Length of the run of `class` at the start of `text`.
    fn run(&self, text: &str, class: Class) -> usize {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            if bytes[at] < 0x80 {
                if self.classes.basic[bytes[at] as usize] != class {
                    return at;
                }
                at += 1;
            } else {
                match text[at..].chars().next() {
                    Some(c) if self.classes.class_of(c) == class => at += c.len_utf8(),
                    _ => return at,
                }
            }
        }
        at
    }

    fn next_length(&self) -> usize {
        match self.pattern {
            Pattern::Gpt2 => self.gpt2(self.rest),
            Pattern::Cl100k { contractions, digits } => self.cl100k(self.rest, contractions, digits),
        }
    }

    fn gpt2(&self, text: &str) -> usize {
        if let Some(length) = contraction(text.as_bytes()) {
            return length;
        }
        let lead = usize::from(text.starts_with(' '));
        if let Some(class) = text[lead..].chars().next().map(|c| self.classes.class_of(c))
            && class != Class::Space
        {
            return lead + self.run(&text[lead..], class);
        }
        self.spaces(text)
    }

    fn cl100k(&self, text: &str, contractions: bool, digits: usize) -> usize {
        let mut chars = text.chars();
        let Some(first) = chars.next() else { return 0 };
        let class = self.classes.class_of(first);
        if contractions
            && first == '\''
            && let Some(length) = contraction_of_any_case(text)
        {
            return length;
        }
        let behind = first.len_utf8();
        let next = chars.next().map(|c| self.classes.class_of(c));
        match class {
            Class::Letter => self.run(text, Class::Letter),
            Class::Number => {
                let numbers = text.chars().take(digits).take_while(|c| self.classes.class_of(*c) == Class::Number);
                numbers.map(char::len_utf8).sum()
            }
            Class::Space | Class::Other if next == Some(Class::Letter) && !matches!(first, '\r' | '\n') => {
                behind + self.run(&text[behind..], Class::Letter)
            }
            Class::Space if first != ' ' || next != Some(Class::Other) => {
                let spaces = &text[..self.run(text, Class::Space)];
                spaces.rfind(['\r', '\n']).map_or_else(|| self.spaces(text), |last| last + 1)
            }
            Class::Space | Class::Other => {
                let lead = usize::from(class == Class::Space);
                let end = lead + self.run(&text[lead..], Class::Other);
                end + text[end..].bytes().take_while(|byte| matches!(byte, b'\r' | b'\n')).count()
            }
        }
    }

    /// Length of a match of `\s+(?!\S)|\s+`.
    fn spaces(&self, text: &str) -> usize {
        let spaces = self.run(text, Class::Space);
        if spaces == text.len() {
            return spaces;
        }
        // Before a word, the last space is left to it, unless it is the only one.
        let last = text[..spaces].chars().next_back().map_or(0, char::len_utf8);
        if last == spaces { spaces } else { spaces - last }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let length = self.next_length();
        let length = if length > LONGEST_WORD { self.rest.floor_char_boundary(LONGEST_WORD) } else { length };
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(word)
    }
}

fn contraction(text: &[u8]) -> Option<usize> {
    match text {
        [b'\'', b's' | b't' | b'm' | b'd', ..] => Some(2),
        [b'\'', b'r' | b'v', b'e', ..] | [b'\'', b'l', b'l', ..] => Some(3),
        _ => None,
    }
}

/// Length of a match of `(?i:'s|'t|'re|'ve|'m|'ll|'d)`; the long s is an s too.
fn contraction_of_any_case(text: &str) -> Option<usize> {
    let second = text[1..].chars().next()?;
    if second == '\u{17f}' {
        return Some(1 + second.len_utf8());
    }
    let bytes = text.as_bytes();
    let lower = [bytes[0], bytes[1].to_ascii_lowercase(), bytes.get(2).map_or(0, u8::to_ascii_lowercase)];
    contraction(&lower)
}

/// A position at or after `from` between a non-space character and a space: no word of the pattern
/// spans it, and the pattern does not look behind.
pub(crate) fn split_point(text: &str, from: usize) -> Option<usize> {
    let mut at = (from..text.len()).find(|&at| text.is_char_boundary(at))?;
    let mut before = text[..at].chars().next_back();
    for c in text[at..].chars() {
        let space = |c: char| CLASSES.class_of(c) == Class::Space;
        if space(c) && before.is_some_and(|before| !space(before)) {
            return Some(at);
        }
        before = Some(c);
        at += c.len_utf8();
    }
    None
}

/// Pieces of a text without a run of more than [`LONGEST_WORD`] bytes that has no beginning of a
/// word, so that a library's tokenizer can process them. Texts without such a run are returned
/// whole.
pub(crate) fn bounded(text: &str) -> Vec<&str> {
    let (mut pieces, mut start, mut run) = (Vec::new(), 0, 0);
    let mut was_space = true;
    for (at, c) in text.char_indices() {
        let is_space = c.is_whitespace();
        if was_space && !is_space {
            run = at;
        } else if at - run >= LONGEST_WORD {
            pieces.push(&text[start..at]);
            (start, run) = (at, at);
        }
        was_space = is_space;
    }
    pieces.push(&text[start..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_without_end_are_cut_and_nothing_is_lost() {
        for unit in ["a", "\u{e9}", " ", "1", "\u{1f600}"] {
            let text = format!("one two {} three", unit.repeat((3 * LONGEST_WORD + 7) / unit.len()));
            for pieces in [words(&text, Pattern::Gpt2).collect::<Vec<_>>(), bounded(&text)] {
                assert!(pieces.iter().all(|piece| piece.len() <= LONGEST_WORD + 16), "{unit:?}");
                assert_eq!(pieces.concat(), text);
            }
        }
        assert_eq!(bounded("one two"), ["one two"]);
        assert_eq!(bounded(""), [""]);
        let usual = "word ".repeat(LONGEST_WORD);
        assert_eq!(bounded(&usual), [usual.as_str()]);
    }

    #[test]
    fn words_follow_the_pattern() {
        let cut = |text| words(text, Pattern::Gpt2).collect::<Vec<_>>();
        assert_eq!(
            cut("Hello world's  end\n\n x1 !'s"),
            ["Hello", " world", "'s", " ", " end", "\n\n", " x", "1", " !'", "s"]
        );
        assert_eq!(cut("a\nb \n"), ["a", "\n", "b", " \n"]);
        assert_eq!(cut("   "), ["   "]);
        assert_eq!(cut("\u{3000}\u{3000}x"), ["\u{3000}", "\u{3000}", "x"]);
        assert_eq!(cut("'ll've're'"), ["'ll", "'ve", "'re", "'"]);
        assert_eq!(cut(""), [""; 0]);
    }

    #[test]
    fn bytes_round_trip() {
        let mut chars = String::new();
        to_chars("a b\n\u{e9}", &mut chars);
        assert_eq!(chars, "a\u{120}b\u{10a}\u{c3}\u{a9}");
        assert_eq!(to_bytes(&chars).as_deref(), Some("a b\n\u{e9}".as_bytes()));
        assert_eq!(to_bytes(" "), None);
        let mut all: Vec<char> = CHAR_OF_BYTE.to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn split_points_lie_before_spaces() {
        let text = "one  two\u{e9} three";
        assert_eq!(split_point(text, 0), Some(3));
        assert_eq!(split_point(text, 4), Some(10));
        assert_eq!(split_point(text, 9), Some(10));
        assert_eq!(split_point(text, 11), None);
        assert_eq!(split_point(text, 99), None);
    }
}
