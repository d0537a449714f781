//! Properties and case mappings of characters that Python's texts have and Rust's `char` lacks.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, ClassUnicode, HirKind};

/// Ideographs that are numerals.
const NUMERALS: &str = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零兩两";
/// Digits that are not decimal digits, by their first and last characters.
const DIGITS: [(char, char); 20] = [
    ('²', '³'),
    ('¹', '¹'),
    ('፩', '፱'),
    ('᧚', '᧚'),
    ('⁰', '⁰'),
    ('⁴', '⁹'),
    ('₀', '₉'),
    ('①', '⑨'),
    ('⑴', '⑼'),
    ('⒈', '⒐'),
    ('⓪', '⓪'),
    ('⓵', '⓽'),
    ('⓿', '⓿'),
    ('❶', '❾'),
    ('➀', '➈'),
    ('➊', '➒'),
    ('𐩀', '𐩃'),
    ('𐹠', '𐹨'),
    ('𑁒', '𑁚'),
    ('🄀', '🄊'),
];

static LETTERS: LazyLock<ClassUnicode> = LazyLock::new(|| class(r"\p{L}"));
static DECIMALS: LazyLock<ClassUnicode> = LazyLock::new(|| class(r"\p{Nd}"));

fn class(pattern: &str) -> ClassUnicode {
    match regex_syntax::parse(pattern).map(|hir| hir.into_kind()) {
        Ok(HirKind::Class(Class::Unicode(class))) => class,
        _ => unreachable!("the pattern is a constant"),
    }
}

/// The first character of the range of a class that a character is in.
fn start(class: &ClassUnicode, character: char) -> Option<char> {
    let ranges = class.ranges();
    let range = &ranges[ranges.partition_point(|range| range.start() <= character).checked_sub(1)?];
    (character <= range.end()).then_some(range.start())
}

/// `str.isalpha` of a character: letters, without numbers and combining marks.
pub(super) fn is_letter(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_alphabetic() } else { start(&LETTERS, character).is_some() }
}

/// The value of a decimal digit of any script.
pub(super) fn decimal(character: char) -> Option<u32> {
    // Digits of a script are in order from zero, and ranges that touch have tens of digits.
    start(&DECIMALS, character).map(|start| (u32::from(character) - u32::from(start)) % 10)
}

/// `str.isdigit` of a character.
pub(super) fn is_digit(character: char) -> bool {
    decimal(character).is_some() || DIGITS.iter().any(|(first, last)| (*first..=*last).contains(&character))
}

/// `str.isnumeric` of a character.
pub(super) fn is_numeric(character: char) -> bool {
    character.is_numeric() || NUMERALS.contains(character)
}

/// True for characters with upper, lower or title case.
pub(super) fn is_cased(character: char) -> bool {
    character.is_uppercase() || character.is_lowercase() || !character.to_lowercase().eq([character])
}

/// A character at the beginning of a word. Greek letters with an iota subscript get a whole iota.
pub(super) fn titlecase(character: char) -> String {
    let digraph = |first: u32| char::from_u32((u32::from(character) - first) / 3 * 3 + first + 1).map(String::from);
    match character {
        'Ǆ'..='ǌ' => digraph(0x1c4).unwrap_or_default(),
        'Ǳ'..='ǳ' => digraph(0x1f1).unwrap_or_default(),
        // Georgian has capital letters, but no title case.
        '\u{10d0}'..='\u{10ff}' => character.into(),
        _ => {
            let mut upper = character.to_uppercase();
            let first = upper.next();
            first.into_iter().chain(upper.flat_map(char::to_lowercase)).collect()
        }
    }
}

/// `str.casefold`.
pub(super) fn casefold(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            'ı' => made.push(character),
            'ẞ' => made.push_str("ss"),
            // Cherokee is folded to its capital letters, which are the older ones.
            '\u{13a0}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => made.extend(character.to_uppercase()),
            _ => made.extend(character.to_uppercase().flat_map(char::to_lowercase)),
        }
    }
    made
}
