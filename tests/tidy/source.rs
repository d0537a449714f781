//! The workspace's source files as text without comments and strings, and as tokens.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bridge_tests::root;

/// A Rust file.
pub struct Source {
    /// Path relative to the workspace's folder.
    pub path: String,
    /// Content of the file.
    pub text: String,
    /// Comments and contents of literals replaced by spaces, line breaks kept.
    pub code: String,
}

impl Source {
    /// Identifiers, `::`, and single characters.
    pub fn tokens(&self) -> Vec<&str> {
        tokens(&self.code)
    }

    /// True if the file holds only tests.
    pub fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        self.path.contains("/tests/") || ["tests.rs", "testing.rs"].contains(&name) || name.ends_with("_tests.rs")
    }
}

/// The packages: folders of the workspace with a manifest, and nested ones. The name of a package
/// is its path.
pub fn packages() -> Vec<String> {
    let folders_in = |folder: &str| {
        let entries = std::fs::read_dir(root().join(folder)).expect("the workspace can be read");
        let folders = entries.flatten().filter(|entry| entry.path().join("Cargo.toml").is_file());
        let names = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let paths = names.map(|name| if folder.is_empty() { name } else { format!("{folder}/{name}") });
        paths.collect::<BTreeSet<String>>()
    };
    folders_in("")
        .into_iter()
        .flat_map(|package| {
            // A crate of its own workspace, beside others, is not drawn.
            let inner = if package.starts_with("bridge-") { folders_in(&package) } else { BTreeSet::new() };
            std::iter::once(package).chain(inner)
        })
        .collect()
}

/// All Rust files below a folder, in order.
pub fn sources(folder: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    collect(&root().join(folder), &mut paths);
    paths.sort();
    paths.into_iter().map(|path| read(&path)).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

fn read(path: &Path) -> Source {
    let text = std::fs::read_to_string(path).expect("sources are UTF-8");
    let path = path.strip_prefix(root()).expect("it lies in the workspace").to_string_lossy().into_owned();
    Source { path, code: strip(&text), text }
}

/// End of a comment or literal that begins at `i`, if there is one.
fn hidden(bytes: &[u8], i: usize) -> Option<usize> {
    let rest = &bytes[i..];
    let find = |pattern: &[u8], from: usize| {
        rest[from..]
            .windows(pattern.len())
            .position(|w| w == pattern)
            .map_or(bytes.len(), |at| i + from + at + pattern.len())
    };
    let is_word = i > 0 && (bytes[i - 1].is_ascii_alphanumeric() || bytes[i - 1] == b'_');
    if rest.starts_with(b"//") {
        return Some(find(b"\n", 0) - usize::from(rest.contains(&b'\n')));
    }
    if rest.starts_with(b"/*") {
        return Some(find(b"*/", 2));
    }
    if rest[0] == b'r' && !is_word && rest.len() > 1 && matches!(rest[1], b'"' | b'#') {
        let hashes = rest[1..].iter().take_while(|b| **b == b'#').count();
        if rest.get(1 + hashes) == Some(&b'"') {
            return Some(find(&[&b"\""[..], &vec![b'#'; hashes]].concat(), 2 + hashes));
        }
    }
    let quote = rest[0];
    // A quote opens a character literal if a closing one follows one character or an escape; else
    // it is a lifetime.
    let is_char = quote == b'\''
        && rest.len() > 2
        && (rest[1] == b'\\' || String::from_utf8_lossy(&rest[1..rest.len().min(6)]).chars().nth(1) == Some('\''));
    if quote != b'"' && !is_char {
        return None;
    }
    let mut end = 1;
    while end < rest.len() && rest[end] != quote {
        end += if rest[end] == b'\\' { 2 } else { 1 };
    }
    Some((i + end + 1).min(bytes.len()))
}

fn strip(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut code, mut i) = (bytes.to_vec(), 0);
    while i < bytes.len() {
        match hidden(bytes, i) {
            Some(end) => {
                code[i..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
                i = end;
            }
            None => i += 1,
        }
    }
    String::from_utf8_lossy(&code).into_owned()
}

fn tokens(code: &str) -> Vec<&str> {
    let (bytes, mut tokens, mut i) = (code.as_bytes(), Vec::new(), 0);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 128;
    while i < bytes.len() {
        let mut end = i + 1;
        if is_word(bytes[i]) {
            while end < bytes.len() && is_word(bytes[end]) {
                end += 1;
            }
        } else if bytes[i..].starts_with(b"::") {
            end += 1;
        }
        if !bytes[i].is_ascii_whitespace() {
            tokens.push(&code[i..end]);
        }
        i = end;
    }
    tokens
}

#[test]
fn literals_and_comments_are_no_code() {
    let text = "a /* { */ 'x' b\"}\" '\\'' r#\"{\"}\"# <'a> // {\n\"\\\"{\" z";
    assert_eq!(tokens(&strip(text)), ["a", "b", "<", "'", "a", ">", "z"]);
    assert_eq!(strip(text).lines().count(), 2);
}
