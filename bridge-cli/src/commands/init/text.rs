//! The text of a new recipe: which patterns name what was found, and what is left out. How it is read, the data crate knows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bridge_data::source::literal_pattern;
use bridge_data::source::survey::{FileKind, Lines, Surveyed, extension, is_left_out, lines_of, survey};

use crate::failure::Failure;

/// Text that a recipe can train on.
pub struct Text {
    /// Patterns for `dataset.source`.
    pub source: Vec<String>,
    /// Patterns for `dataset.source_exclude`.
    pub exclude: Vec<String>,
    /// Key of the text if all of it is JSON Lines.
    pub jsonl_key: Option<String>,
    /// Prefixes of token files: there is no text then.
    pub tokens: Vec<String>,
    /// Files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// A folder with a Hugging Face model among what was given.
    pub model: Option<PathBuf>,
    /// What to tell the user.
    pub notes: Vec<String>,
}

/// Why there is no recipe for conversations.
pub const CHAT: &str = "these are conversations: training on what the assistant says alone is not built yet, so there is no recipe for it. \
                    `bridge data render` shows them as token ids, `bridge chat` talks with a model";

/// At most so many files are named one by one.
const NAMED: usize = 200;
/// Least bytes of text to learn anything from.
const LEAST: u64 = 256;

/// Finds the text of `inputs`.
///
/// # Errors
/// If there is none, with what there is instead.
pub fn find(inputs: &[PathBuf]) -> Result<Text, Failure> {
    let mut surveyed = Vec::new();
    let mut roots = Vec::new();
    for input in inputs {
        // Recipes are used from other folders, and `..` in them is hard to read.
        let root = std::fs::canonicalize(input);
        let root = root.map_err(|error| Failure::input(format!("{}: {error}", input.display())))?;
        surveyed.extend(survey(&root).map_err(Failure::input)?);
        roots.push(root);
    }
    let mut seen = BTreeSet::new();
    surveyed.retain(|file| seen.insert(file.path.clone()));
    if let Some(file) = surveyed.iter().find(|file| file.path.to_str().is_none()) {
        let path = file.path.display();
        return Err(Failure::input(format!("{path}: a recipe cannot name this file: its name is not UTF-8")));
    }
    let mut notes = left_out(&surveyed);
    let of = |kind: FileKind| surveyed.iter().filter(move |file| file.kind == kind);
    let bytes = |kind: FileKind| of(kind).map(|file| file.size).sum::<u64>();
    let model = of(FileKind::Model).find(|file| file.path.ends_with("config.json"));
    let model = model.and_then(|file| file.path.parent()).map(Path::to_owned);
    let chosen = if bytes(FileKind::JsonLines) > 0 { choose_lines(&surveyed, &mut notes)? } else { None };
    let (kinds, jsonl_key) = match chosen {
        // Lines under the usual key go together with whole files.
        Some(key) if key == "text" && of(FileKind::JsonLines).all(|file| extension(&file.path) != "json") => {
            (vec![FileKind::Text, FileKind::JsonLines], None)
        }
        Some(key) if bytes(FileKind::JsonLines) >= bytes(FileKind::Text) => {
            if of(FileKind::Text).next().is_some() {
                notes.push(format!("JSON Lines with the key {key:?} are used, plain text beside them is not: one recipe reads one of the two"));
            }
            (vec![FileKind::JsonLines], Some(key))
        }
        Some(_) => {
            notes.push("plain text is used, JSON Lines beside it are not: one recipe reads one of the two".to_owned());
            (vec![FileKind::Text], None)
        }
        None => (vec![FileKind::Text], None),
    };
    let used: Vec<&Surveyed> = surveyed.iter().filter(|file| kinds.contains(&file.kind)).collect();
    let total = used.iter().map(|file| file.size).sum();
    let tokens = prefixes(&surveyed);
    if used.is_empty() && !tokens.is_empty() {
        let bytes = bytes(FileKind::Tokens);
        let (source, exclude) = (Vec::new(), Vec::new());
        return Ok(Text { source, exclude, jsonl_key, files: tokens.len(), tokens, bytes, model, notes });
    }
    if total < LEAST {
        let names = inputs.iter().map(|input| input.display().to_string()).collect::<Vec<_>>().join(", ");
        let instead = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
        return Err(Failure::input(format!(
            "{names}: expected text, at least {LEAST} bytes of it, found {total} bytes in {} files{instead}",
            used.len()
        )));
    }
    let (source, exclude) = patterns(&roots, &surveyed, &used);
    Ok(Text { source, exclude, jsonl_key, tokens: Vec::new(), files: used.len(), bytes: total, model, notes })
}

/// The key of the text of JSON Lines files.
fn choose_lines(surveyed: &[Surveyed], notes: &mut Vec<String>) -> Result<Option<String>, Failure> {
    let mut keys = BTreeMap::<String, u64>::new();
    let (mut chats, mut unknown) = (Vec::new(), Vec::new());
    for file in surveyed.iter().filter(|file| file.kind == FileKind::JsonLines) {
        match lines_of(&file.path).map_err(Failure::input)? {
            Some(Lines::Text(key)) => *keys.entry(key).or_default() += file.size,
            Some(Lines::Chat(_)) => chats.push(file.path.display().to_string()),
            Some(Lines::Unknown(found)) => unknown.push(format!("{} (keys {})", file.path.display(), found.join(", "))),
            None => unknown.push(format!("{} (no JSON objects)", file.path.display())),
        }
    }
    if let Some(chat) = chats.first() {
        return Err(Failure::input(format!("{chat}: {}", CHAT)));
    }
    if let Some(file) = unknown.first() {
        return Err(Failure::input(format!(
            "{file}: expected one JSON object a line with text under the same key of each"
        )));
    }
    if keys.len() > 1 {
        let names: Vec<String> = keys.keys().map(|key| format!("{key:?}")).collect();
        let names = names.join(" and ");
        return Err(Failure::input(format!(
            "the JSON Lines files have their text under {names}: name files that agree"
        )));
    }
    let key = keys.into_keys().next();
    if let Some(key) = key.as_ref().filter(|key| *key != "text") {
        notes.push(format!("text is read from the key {key:?} of JSON Lines"));
    }
    Ok(key)
}

/// What is not used, a note for each kind.
fn left_out(surveyed: &[Surveyed]) -> Vec<String> {
    let mut kinds = BTreeMap::<FileKind, Vec<&Surveyed>>::new();
    for file in surveyed {
        kinds.entry(file.kind).or_default().push(file);
    }
    let used = [FileKind::Text, FileKind::JsonLines, FileKind::Tokens];
    let note = |(kind, files): (FileKind, Vec<&Surveyed>)| {
        let first = files[0].path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let others = if files.len() > 1 { ", ..." } else { "" };
        format!("left out: {} files that are {}: {first}{others}", files.len(), kind.words())
    };
    kinds.into_iter().filter(|(kind, _)| !used.contains(kind)).map(note).collect()
}

/// Prefixes of pairs of token files.
fn prefixes(surveyed: &[Surveyed]) -> Vec<String> {
    let tokens = surveyed.iter().filter(|file| file.kind == FileKind::Tokens);
    let prefixes = tokens.map(|file| file.path.with_extension(""));
    let whole = prefixes.filter(|prefix| ["bin", "idx"].iter().all(|part| with_suffix(prefix, part).is_file()));
    whole.map(|prefix| prefix.display().to_string()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn with_suffix(prefix: &Path, extension: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    PathBuf::from(name)
}

/// Patterns that name the files in use: one for each extension below a folder, with exceptions, or the files themselves where that is shorter.
fn patterns(roots: &[PathBuf], surveyed: &[Surveyed], used: &[&Surveyed]) -> (Vec<String>, Vec<String>) {
    let name = |path: &Path| literal_pattern(&path.display().to_string());
    let (mut source, mut exclude) = (Vec::new(), BTreeSet::new());
    for root in roots {
        if !root.is_dir() {
            source.extend(used.iter().find(|file| file.path == *root).map(|file| name(&file.path)));
            continue;
        }
        let below: Vec<&&Surveyed> = used.iter().filter(|file| file.path.starts_with(root)).collect();
        if below.len() <= 3 {
            source.extend(below.iter().map(|file| name(&file.path)));
            continue;
        }
        let mut extensions = BTreeMap::<String, Vec<&Path>>::new();
        for file in &below {
            // The pattern has to be as the name is written.
            let extension = file.path.extension().map(|extension| extension.to_string_lossy().into_owned());
            extensions.entry(extension.unwrap_or_default()).or_default().push(&file.path);
        }
        for (extension, files) in extensions {
            if extension.is_empty() || files.len() == 1 {
                source.extend(files.iter().take(NAMED).map(|path| name(path)));
                continue;
            }
            source.push(format!("{}/**/*.{}", name(root), literal_pattern(&extension)));
            let ends = |path: &Path| path.extension().is_some_and(|found| found.to_string_lossy() == extension);
            let unused =
                surveyed.iter().filter(|file| ends(&file.path) && !used.iter().any(|other| other.path == file.path));
            exclude.extend(unused.take(NAMED).map(|file| name(&file.path)));
        }
        exclude.extend(folders_left_out(root));
    }
    (source, exclude.into_iter().collect())
}

/// Patterns for the folders below `root` that the survey does not enter.
fn folders_left_out(root: &Path) -> Vec<String> {
    let (mut patterns, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if is_left_out(&entry.file_name().to_string_lossy()) {
                patterns.push(format!("{}/**", literal_pattern(&entry.path().display().to_string())));
            } else {
                folders.push(entry.path());
            }
        }
    }
    patterns.sort();
    patterns.truncate(NAMED);
    patterns
}
