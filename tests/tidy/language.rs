//! Language of comments: no paraphrase of a term of art, no opener that needs the item's name, and
//! lines of at most 100 columns.

use crate::source::{Source, packages, sources};

/// Longest comment line in columns.
const COLUMNS: usize = 100;

/// First words of doc comments that make no sense without the item's name.
const OPENERS: [&str; 14] = [
    "What", "Whether", "How", "Where", "Its", "Their", "Those", "That", "Of", "Which", "Who", "Nothing", "None",
    "Also of",
];

/// Paraphrases and the terms of art to use instead.
const PARAPHRASES: [(&str, &str); 10] = [
    ("is told", "gets, receives"),
    ("are told", "get, receive"),
    ("heeds", "obeys, uses"),
    ("is none", "is not a ..., `None`"),
    ("are none", "are not ..."),
    ("belongs to none", "is not attributed"),
    ("resumes not", "does not resume"),
    ("gives back", "releases, returns"),
    ("puts off", "defers"),
    ("goes on from", "resumes from"),
];

/// Prose of a source's comments, line by line: number, text, true if it opens a paragraph of a doc
/// comment. Code and tables are left out.
fn comments(text: &str) -> Vec<(usize, &str, bool)> {
    let (mut comments, mut inside, mut is_code) = (Vec::new(), false, false);
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let Some(rest) = trimmed.strip_prefix("//") else {
            (inside, is_code) = (false, false);
            continue;
        };
        let is_doc = rest.starts_with(['/', '!']);
        let words = rest.trim_start_matches(['/', '!']).trim();
        if words.starts_with("```") {
            is_code = !is_code;
            inside = true;
        } else if !is_code && !words.starts_with(['|', '#']) {
            if !words.is_empty() {
                comments.push((index + 1, words, is_doc && !inside));
            }
            inside = !words.is_empty();
        }
    }
    comments
}

/// Violations of the rules in a text, each with its line.
fn violations(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (line, words, opens) in comments(text) {
        let columns = lines[line - 1].chars().count();
        // A link cannot be broken.
        if columns > COLUMNS && words.split(' ').count() > 2 {
            found.push(format!("{line}: {columns} columns, at most {COLUMNS}"));
        }
        let begins = |opener: &&&str| {
            words.strip_prefix(**opener).is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
        };
        if let Some(opener) = OPENERS.iter().filter(|_| opens).find(begins) {
            found.push(format!("{line}: begins with {opener:?}; name the thing, or write \"True if\""));
        }
        for (paraphrase, term) in PARAPHRASES {
            let mut places = words.match_indices(paraphrase);
            let is_word = |(at, _): &(usize, &str)| {
                let before = words[..*at].chars().next_back();
                let after = words[at + paraphrase.len()..].chars().next();
                ![before, after].into_iter().flatten().any(char::is_alphanumeric)
            };
            if places.any(|place| is_word(&place)) {
                found.push(format!("{line}: {paraphrase:?}; write {term:?}"));
            }
        }
    }
    found
}

#[test]
fn comments_are_in_plain_language() {
    let all: Vec<Source> = packages().iter().flat_map(|package| sources(package)).collect();
    let mut found = Vec::new();
    for source in &all {
        found.extend(violations(&source.text).into_iter().map(|violation| format!("{}:{violation}", source.path)));
    }
    assert!(found.is_empty(), "{} comments break CONTRIBUTING.md's rules:\n{}", found.len(), found.join("\n"));
}

#[test]
fn rules_find_what_they_are_for() {
    let clean = "/// Rotary base of layers.\n/// Where it applies.\n//! True if set.\n// What a plain comment may begin with.\n";
    assert_eq!(violations(clean), [""; 0]);
    assert_eq!(violations("/// What it is.\nfn f() {}\n").len(), 1);
    assert_eq!(violations("/// Whatever.\n").len(), 0);
    assert_eq!(violations("// a rank is told twice\n").len(), 1);
    assert_eq!(violations("// is untold\n").len(), 0);
    assert_eq!(violations(&format!("// {}\n", "word ".repeat(25))).len(), 1);
}
