//! The text of a new recipe: patterns for the files that were found, and the files that are left
//! out. How it is read, the data crate knows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bridge_data::sft::{ExampleKind, SplitCounts, examples_of, is_part_of_example, records, splits_of};
use bridge_data::source::survey::{FileKind, Lines, Surveyed, extension, is_left_out, lines_of, survey};
use bridge_data::source::{is_read_in_order, literal_pattern};

use super::arguments::Kind;
use crate::failure::Failure;

/// Text that a recipe can train on.
#[derive(Default)]
pub struct Text {
    /// Patterns for `dataset.source`.
    pub source: Vec<String>,
    /// Patterns for `dataset.source_exclude`.
    pub exclude: Vec<String>,
    /// Key of the text if all of it is JSON Lines.
    pub jsonl_key: Option<String>,
    /// True if documents of some files cannot be shuffled.
    pub is_read_in_order: bool,
    /// Prefixes of token files, in place of text.
    pub tokens: Vec<String>,
    /// Files.
    pub files: usize,
    /// Bytes of the files.
    pub bytes: u64,
    /// The examples to fine-tune on: there is neither text nor tokens then.
    pub examples: Option<ExampleFiles>,
    /// A folder with a Hugging Face model among the given paths.
    pub model: Option<PathBuf>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Files of examples.
pub struct ExampleFiles {
    /// Kind of the examples.
    pub kind: ExampleKind,
    /// The folder, if its files are named after splits, and how many examples these have.
    pub root: Option<(PathBuf, SplitCounts)>,
    /// The files.
    pub files: Vec<PathBuf>,
}

/// Largest number of files that are named one by one.
const NAMED: usize = 200;
/// Records of a file that are looked at for one that is not JSON.
const LOOKED_AT: usize = 200;
/// Least bytes of text to learn anything from.
const LEAST: u64 = 256;

/// Finds the text or the examples of `inputs`. If `kind` is not given, the more frequent kind is
/// chosen. Fails if there is no text, with a list of the files that were found instead.
pub fn find(inputs: &[PathBuf], kind: Option<Kind>) -> Result<Text, Failure> {
    let (surveyed, roots) = look_into(inputs)?;
    let of = |kind: FileKind| surveyed.iter().filter(move |file| file.kind == kind);
    let model = of(FileKind::Model).find(|file| file.path.ends_with("config.json"));
    let model = model.and_then(|file| file.path.parent()).map(Path::to_owned);
    if kind != Some(Kind::Text)
        && let Some((examples, bytes)) = find_examples(&roots, &surveyed, kind)?
    {
        let notes = left_out(surveyed.iter().filter(|file| !examples.files.contains(&file.path)), &[]);
        let files = examples.files.len();
        return Ok(Text { files, bytes, examples: Some(examples), model, notes, ..Text::default() });
    }
    let mut notes = left_out(surveyed.iter(), &[FileKind::Text, FileKind::JsonLines, FileKind::Tokens]);
    let bytes = |kind: FileKind| of(kind).map(|file| file.size).sum::<u64>();
    let tokens = prefixes(&surveyed);
    let of_text = bytes(FileKind::Text) + bytes(FileKind::JsonLines);
    if !tokens.is_empty() && kind != Some(Kind::Text) && bytes(FileKind::Tokens) > of_text {
        if of_text > 0 {
            notes.push("token files are used, text beside them is not: one recipe reads one of the two".to_owned());
        }
        let (files, bytes) = (tokens.len(), bytes(FileKind::Tokens));
        return Ok(Text { files, tokens, bytes, model, notes, ..Text::default() });
    }
    if let Some(first) = tokens.first() {
        notes.push(format!("left out: {} token files beside the text: {first}, ...", tokens.len()));
    }
    let (kinds, jsonl_key) = text_kinds(&surveyed, kind, &mut notes)?;
    let used: Vec<&Surveyed> = surveyed.iter().filter(|file| kinds.contains(&file.kind)).collect();
    let total = used.iter().map(|file| file.size).sum();
    if total < LEAST {
        let names = inputs.iter().map(|input| input.display().to_string()).collect::<Vec<_>>().join(", ");
        let instead = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
        return Err(Failure::input(format!(
            "{names}: expected text, at least {LEAST} bytes of it, found {total} bytes in {} files{instead}",
            used.len()
        )));
    }
    let (source, exclude) = patterns(&roots, &surveyed, &used);
    let in_order = used.iter().any(|file| is_read_in_order(&file.path));
    Ok(Text {
        source,
        exclude,
        jsonl_key,
        is_read_in_order: in_order,
        files: used.len(),
        bytes: total,
        model,
        notes,
        ..Text::default()
    })
}

/// All files of `inputs`, each once, and the files and folders that were named.
fn look_into(inputs: &[PathBuf]) -> Result<(Vec<Surveyed>, Vec<PathBuf>), Failure> {
    let (mut surveyed, mut roots) = (Vec::new(), Vec::new());
    for input in inputs.iter().flat_map(|input| named_by(input)) {
        // Recipes are used from other folders, and `..` in them is hard to read.
        let root = std::fs::canonicalize(&input);
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
    Ok((surveyed, roots))
}

/// Kinds of files that a recipe reads as text, and the key of JSON Lines if it is not the usual
/// one.
fn text_kinds(
    surveyed: &[Surveyed],
    asked: Option<Kind>,
    notes: &mut Vec<String>,
) -> Result<(Vec<FileKind>, Option<String>), Failure> {
    let of = |kind: FileKind| surveyed.iter().filter(move |file| file.kind == kind);
    let bytes = |kind: FileKind| of(kind).map(|file| file.size).sum::<u64>();
    let chosen = if bytes(FileKind::JsonLines) > 0 { choose_lines(surveyed, asked, notes)? } else { None };
    Ok(match chosen {
        // Lines under the usual key go together with whole files.
        Some(key) if key == "text" && of(FileKind::JsonLines).all(|file| extension(&file.path) != "json") => {
            (vec![FileKind::Text, FileKind::JsonLines], None)
        }
        Some(key) if bytes(FileKind::JsonLines) >= bytes(FileKind::Text) => {
            if of(FileKind::Text).next().is_some() {
                notes.push(format!(
                    "JSON Lines with the key {key:?} are used, plain text beside them is not: one recipe reads one of the two"
                ));
            }
            (vec![FileKind::JsonLines], Some(key))
        }
        Some(_) => {
            notes.push("plain text is used, JSON Lines beside it are not: one recipe reads one of the two".to_owned());
            (vec![FileKind::Text], None)
        }
        None => (vec![FileKind::Text], None),
    })
}

/// The files that an argument names: itself, or those of a prefix of token files.
fn named_by(input: &Path) -> Vec<PathBuf> {
    let pair = ["bin", "idx"].map(|part| with_suffix(input, part));
    if pair.iter().all(|file| file.is_file()) { pair.to_vec() } else { vec![input.to_owned()] }
}

/// The files of examples and their bytes, if there are any, and as much of them as of other text
/// unless they are asked for.
fn find_examples(
    roots: &[PathBuf],
    surveyed: &[Surveyed],
    asked: Option<Kind>,
) -> Result<Option<(ExampleFiles, u64)>, Failure> {
    let (mut found, mut others) = (Vec::new(), 0);
    for file in surveyed {
        // Settings and tokenizers of models are JSON, too.
        let kind = if file.kind == FileKind::Model { None } else { examples_of(&file.path).map_err(Failure::input)? };
        match kind {
            Some(kind) => found.push((kind, file)),
            None if matches!(file.kind, FileKind::Text | FileKind::JsonLines) => others += file.size,
            None => {}
        }
    }
    let bytes = found.iter().map(|(_, file)| file.size).sum::<u64>();
    let Some((kind, first)) = found.first() else {
        return match asked {
            Some(_) => {
                let mut lines = surveyed.iter().filter(|file| file.kind == FileKind::JsonLines);
                let message = "--kind chat: expected files of examples (lists of messages, or prompts with their answers), found none; docs/data.md has the names of their fields";
                Err(lines.find_map(|file| not_json(&file.path)).unwrap_or_else(|| Failure::input(message)))
            }
            None => Ok(None),
        };
    };
    if asked.is_none() && bytes < others {
        return Ok(None);
    }
    if let Some((_, other)) = found.iter().find(|(other, _)| other != kind) {
        return Err(Failure::input(format!(
            "{} and {}: one has conversations, the other prompts with their answers: name files of one kind",
            first.path.display(),
            other.path.display()
        )));
    }
    if *kind == ExampleKind::Preference {
        return Err(Failure::input(format!(
            "{}: these are preferences (chosen, rejected), for which no recipe is written here: [dpo] in a recipe trains on them (docs/recipes.md)",
            first.path.display()
        )));
    }
    let kind = *kind;
    let files: Vec<PathBuf> = found.into_iter().map(|(_, file)| file.path.clone()).collect();
    let root = match roots {
        [root] if root.is_dir() => splits_of(root).map_err(Failure::input)?.map(|counts| (root.clone(), counts)),
        _ => None,
    };
    Ok(Some((ExampleFiles { kind, root, files }, bytes)))
}

/// The key of the text of JSON Lines files.
fn choose_lines(
    surveyed: &[Surveyed],
    asked: Option<Kind>,
    notes: &mut Vec<String>,
) -> Result<Option<String>, Failure> {
    let mut keys = BTreeMap::<String, u64>::new();
    let mut unknown = Vec::new();
    for file in surveyed.iter().filter(|file| file.kind == FileKind::JsonLines) {
        let lines = lines_of(&file.path).map_err(Failure::input)?;
        if let Some(kind) = examples_of(&file.path).map_err(Failure::input)?
            && (asked.is_none() || !matches!(lines, Some(Lines::Text(_))))
        {
            return Err(examples_beside_text(&file.path, kind));
        }
        let is_text = matches!(&lines, Some(Lines::Text(key)) if asked.is_some() || !is_part_of_example(key));
        if !is_text && let Some(failure) = not_json(&file.path) {
            return Err(failure);
        }
        match lines {
            Some(Lines::Text(key)) if is_part_of_example(&key) && asked.is_none() => {
                return Err(Failure::input(format!(
                    "{}: {key:?} is a field of examples, and the field that goes with it is not there (or not in each line): prompts with \
                     their answers are `prompt` and `completion`, `instruction` and `output`, `question` and `answer`; --kind text trains on \
                     {key:?} as text",
                    file.path.display()
                )));
            }
            Some(Lines::Text(key)) => *keys.entry(key).or_default() += file.size,
            Some(Lines::Chat(key)) => {
                unknown.push(format!("{} (lists of messages under {key:?} in some lines)", file.path.display()))
            }
            Some(Lines::Unknown(found)) => unknown.push(format!("{} (keys {})", file.path.display(), found.join(", "))),
            None => unknown.push(format!("{} (no JSON objects)", file.path.display())),
        }
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

/// Error for the first record of a file that is not JSON, if there is one among those looked at.
fn not_json(path: &Path) -> Option<Failure> {
    let problem = records(path.to_owned()).take(LOOKED_AT).find_map(|record| match record {
        Ok((_, Ok(_))) => None,
        Ok((line, Err(problem))) => Some(at_line(path, line, &problem)),
        Err(error) => Some(error.to_string()),
    });
    problem.map(Failure::input)
}

/// Message on a line of a file.
pub fn at_line(path: &Path, line: u64, problem: &str) -> String {
    // The parser counts the lines of the record.
    let problem = problem.replace(" at line 1 column ", " at column ").replace(" at line 2 column 0", " at its end");
    format!("{}:{line}: {problem}", path.display())
}

/// Error for examples in a folder that mostly has text, or that were requested as text.
fn examples_beside_text(path: &Path, kind: ExampleKind) -> Failure {
    let path = path.display();
    Failure::input(match kind {
        ExampleKind::Conversation => format!(
            "{path}: these are lists of messages, which are no text: --kind chat fine-tunes a model on them; to train on text, name the other files"
        ),
        ExampleKind::Prompt => format!(
            "{path}: these are prompts with their answers: --kind chat fine-tunes a model on them, --kind text trains on one field of each as text"
        ),
        ExampleKind::Preference => format!(
            "{path}: these are preferences (chosen, rejected), which are no text: [dpo] in a recipe trains on them (docs/recipes.md); to train \
             on text, name the other files"
        ),
    })
}

/// Notes on files that are not of the `used` kinds, one for each kind.
fn left_out<'a>(surveyed: impl Iterator<Item = &'a Surveyed>, used: &[FileKind]) -> Vec<String> {
    let mut kinds = BTreeMap::<FileKind, Vec<&Surveyed>>::new();
    for file in surveyed {
        kinds.entry(file.kind).or_default().push(file);
    }
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

/// Patterns that name the files in use: one for each extension below a folder, with exceptions, or
/// the files themselves if that is shorter.
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
