//! A case: a copy of the fixture in which one file or option is mutated, and the command that reads
//! it. Drawn from a seed.

use std::path::{Path, PathBuf};

use bridge_core::checkpoint::METADATA_FILE;
use serde_json::{Value, json};

use crate::fixture::{Fixture, newest, seal_again, write_sealed};
use crate::folders;

/// Random numbers by splitmix64.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Command and its mutated input.
pub struct Case {
    /// Description for messages.
    pub what: String,
    pub arguments: Vec<String>,
    /// Words of which a refusal names one.
    pub names: Vec<String>,
    /// True if checksums detect every change, so that it must be refused.
    pub is_certified: bool,
    /// Folders that the command may not touch.
    pub kept: Vec<PathBuf>,
}

/// Numbers at the limits of types.
const NUMBERS: [&str; 18] = [
    "0",
    "-1",
    "1",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "4611686018427387904",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "1e308",
    "-1e400",
    "0.5",
    "NaN",
    "null",
    "\"\"",
    "[]",
];
/// Texts that lead elsewhere.
const PATHS: [&str; 6] = ["/etc/passwd", "../victim/shard.safetensors", "/dev/zero", "a/../../victim", "", "\u{0}"];
/// Keys of recipes.
const KEYS: [&str; 14] = [
    "train.train_iters",
    "train.global_batch_size",
    "train.micro_batch_size",
    "model.num_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.num_query_groups",
    "model.seq_length",
    "model.kv_channels",
    "optimizer.lr",
    "dataset.num_workers",
    "train.num_threads",
    "model.vocab_size",
    "rng.seed",
];

/// The case of a seed, its files in `folder`.
pub fn case(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    std::fs::create_dir_all(folder.join("victim")).unwrap();
    std::fs::copy(fixture.path().join("hf/model.safetensors"), folder.join("victim/shard.safetensors")).unwrap();
    let made = match draw.below(15) {
        0 => recipe(fixture, draw, folder),
        1 => overrides(fixture, draw, folder),
        2 => hugging_face(fixture, draw, folder),
        3 => reference(fixture, draw, folder),
        4 => checkpoint(fixture, draw, folder),
        5 => token_files(fixture, draw, folder),
        6 => texts(fixture, draw, folder),
        7 => gguf(fixture, draw, folder),
        8 => folders::run(fixture, draw, folder),
        9 => folders::conversations(fixture, draw, folder),
        10 => folders::adapters(fixture, draw, folder),
        11 => folders::examples(fixture, draw, folder),
        12 => folders::other_tokenizers(fixture, draw, folder),
        13 => folders::other_recipes(fixture, draw, folder),
        _ => tokenizers(fixture, draw, folder),
    };
    Case { kept: [made.kept, vec![folder.join("victim")]].concat(), ..made }
}

/// Copies parts of the fixture.
pub fn copy(fixture: &Fixture, names: &[&str], folder: &Path) {
    for name in names {
        let (from, to) = (fixture.path().join(name), folder.join(name));
        if from.is_dir() {
            bridge_tests::copy(&from, &to);
        } else {
            std::fs::copy(&from, &to).unwrap();
        }
    }
}

/// Words of a command.
pub fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn recipe(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["recipe.toml"], folder);
    let how = change(&folder.join("recipe.toml"), draw);
    let command = *draw.choose(&[&["config", "check"][..], &["plan"]]);
    let arguments = [strings(command), strings(&["recipe.toml"])].concat();
    Case {
        what: format!("recipe: {how}"),
        arguments,
        names: strings(&["recipe.toml", "."]),
        is_certified: false,
        kept: Vec::new(),
    }
}

fn overrides(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["recipe.toml"], folder);
    let (key, value) = (*draw.choose(&KEYS), *draw.choose(&NUMBERS));
    let option = format!("{key}={value}");
    let command = *draw.choose(&[&["config", "check"][..], &["plan"], &["data", "samples"]]);
    let arguments = [strings(command), strings(&["recipe.toml", option.as_str()])].concat();
    Case { what: option, arguments, names: strings(&["."]), is_certified: false, kept: Vec::new() }
}

fn hugging_face(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["hf", "golden.safetensors"], folder);
    let hf = folder.join("hf");
    let file = *draw.choose(&["config.json", "model.safetensors", "model.safetensors.index.json"]);
    if file.ends_with("index.json") {
        let name = "model.layers.0.input_layernorm.weight";
        let map = json!({ "weight_map": { name: *draw.choose(&PATHS), "model.norm.weight": "model.safetensors" } });
        std::fs::write(hf.join(file), map.to_string()).unwrap();
    }
    let how = change(&hf.join(file), draw);
    let arguments = match draw.below(2) {
        0 => strings(&["verify", "hf", "--reference", "golden.safetensors"]),
        _ => strings(&["convert", "import", "hf", "out"]),
    };
    Case {
        what: format!("hf/{file}: {how}"),
        arguments,
        names: strings(&["hf", "config.json", "model."]),
        is_certified: false,
        kept: vec![hf],
    }
}

fn gguf(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["model.gguf"], folder);
    let path = folder.join("model.gguf");
    let how = match draw.below(2) {
        0 => change(&path, draw),
        _ => {
            // The tables, which are short beside the tensors.
            let bytes = std::fs::read(&path).unwrap();
            let (tables, rest) = bytes.split_at(4096);
            let (changed, how) = change_bytes(tables, draw);
            std::fs::write(&path, [&changed, rest].concat()).unwrap();
            format!("tables: {how}")
        }
    };
    let arguments = match draw.below(2) {
        0 => strings(&["convert", "import", "model.gguf", "out"]),
        _ => strings(&["convert", "import", "model.gguf", "--dry-run"]),
    };
    let names = strings(&["model.gguf", "config.json", "model."]);
    Case {
        what: format!("model.gguf: {how}"),
        arguments,
        names,
        is_certified: false,
        kept: vec![folder.join("victim")],
    }
}

fn reference(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["hf", "golden.safetensors"], folder);
    let how = change(&folder.join("golden.safetensors"), draw);
    let arguments = strings(&["verify", "hf", "--reference", "golden.safetensors"]);
    let names = strings(&["golden.safetensors"]);
    Case { what: format!("reference: {how}"), arguments, names, is_certified: false, kept: vec![folder.join("hf")] }
}

fn checkpoint(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["recipe.toml", "text", "run"], folder);
    let newest = newest(folder);
    let names = [
        "metadata.json",
        "run_config.toml",
        "train_state.json",
        "tokenizer.json",
        "model-rank00000.safetensors",
        "optimizer-rank00000.safetensors",
    ];
    let file = *draw.choose(&names);
    let is_sealed = draw.below(2) == 0;
    let how = if is_sealed && file == METADATA_FILE {
        let path = newest.join(file);
        let mut metadata: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let how = change_value(&mut metadata["content"], draw);
        write_sealed(&path, &metadata["content"]);
        how
    } else {
        let how = change(&newest.join(file), draw);
        if is_sealed {
            seal_again(&newest, file);
        }
        how
    };
    let arguments = match draw.below(3) {
        0 => strings(&["generate", "run/checkpoints", "--prompt", "one two", "--max-tokens", "2"]),
        1 => strings(&["convert", "export", "run/checkpoints", "out"]),
        _ => [strings(&["eval", "run/checkpoints", "--max-samples", "2", "--text", "text/a.txt"])].concat(),
    };
    let names = strings(&[file, "iter_0000002", "run_config.toml", "."]);
    // A command need not read the optimizer's values, but it verifies every byte.
    Case {
        what: format!("checkpoint {file} (sealed: {is_sealed}): {how}"),
        arguments,
        names,
        is_certified: !is_sealed,
        kept: vec![folder.join("run")],
    }
}

fn token_files(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["run"], folder);
    let file = *draw.choose(&["text.bin", "text.idx"]);
    let how = change(&folder.join("run/cache").join(file), draw);
    let arguments = strings(&["data", "inspect", "run/cache/text", "--show", "2"]);
    Case {
        what: format!("{file}: {how}"),
        arguments,
        names: strings(&["run/cache/text"]),
        is_certified: true,
        kept: vec![folder.join("run")],
    }
}

fn texts(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["run", "text"], folder);
    let file = *draw.choose(&["a.txt", "b.jsonl"]);
    let path = folder.join("text").join(file);
    let how = change(&path, draw);
    let text = format!("text/{file}");
    let arguments = match draw.below(2) {
        0 => strings(&["tokenizer", "train", &text, "--output", "out", "--vocab-size", "280"]),
        _ => strings(&["data", "build", &text, "--tokenizer", "run/cache", "--output", "out/text"]),
    };
    Case {
        what: format!("{file}: {how}"),
        arguments,
        names: vec![file.to_owned()],
        is_certified: false,
        kept: vec![folder.join("text"), folder.join("run")],
    }
}

fn tokenizers(fixture: &Fixture, draw: &mut Draw, folder: &Path) -> Case {
    copy(fixture, &["run", "text"], folder);
    // Without the record beside it, nothing vouches for it.
    std::fs::create_dir_all(folder.join("tokenizer")).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(folder.join("run/cache").join(name), folder.join("tokenizer").join(name)).unwrap();
    }
    let file = *draw.choose(&["tokenizer.json", "tokenizer_config.json"]);
    let how = change(&folder.join("tokenizer").join(file), draw);
    let arguments = strings(&["data", "build", "text/a.txt", "--tokenizer", "tokenizer", "--output", "out/text"]);
    Case {
        what: format!("{file}: {how}"),
        arguments,
        names: strings(&["tokenizer"]),
        is_certified: false,
        kept: vec![folder.join("tokenizer")],
    }
}

/// Changes a file, and says how.
pub fn change(path: &Path, draw: &mut Draw) -> String {
    if draw.below(10) == 0 {
        return replace_entry(path, draw);
    }
    let bytes = std::fs::read(path).unwrap();
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    if is_json
        && draw.below(2) == 0
        && let Ok(mut value) = serde_json::from_slice::<Value>(&bytes)
    {
        let how = change_value(&mut value, draw);
        std::fs::write(path, value.to_string()).unwrap();
        return how;
    }
    let (changed, how) = change_bytes(&bytes, draw);
    std::fs::write(path, changed).unwrap();
    how
}

/// Puts something else in the place of a file.
fn replace_entry(path: &Path, draw: &mut Draw) -> String {
    std::fs::remove_file(path).unwrap();
    let how = *draw.choose(&["missing", "a folder", "a pipe", "a link loop", "a link to /dev/zero", "empty"]);
    match how {
        "missing" => {}
        "a folder" => std::fs::create_dir(path).unwrap(),
        "a pipe" => assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success()),
        "a link loop" => std::os::unix::fs::symlink(path, path).unwrap(),
        "empty" => std::fs::write(path, "").unwrap(),
        _ => std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
    }
    how.to_owned()
}

fn change_bytes(bytes: &[u8], draw: &mut Draw) -> (Vec<u8>, String) {
    let mut changed = bytes.to_vec();
    if bytes.is_empty() {
        return (vec![0; 1 + draw.below(9)], "zeros".into());
    }
    let at = draw.below(bytes.len());
    let end = (at + 1 + draw.below(64)).min(bytes.len());
    let how = match draw.below(7) {
        0 => {
            changed[at] ^= 1 << draw.below(8);
            "bit flipped"
        }
        1 => {
            changed.truncate(at);
            "cut"
        }
        2 => {
            changed.extend_from_slice(&bytes[at..end]);
            "longer"
        }
        3 => {
            changed.drain(at..end);
            "bytes removed"
        }
        4 => {
            let again = bytes[at..end].to_vec();
            changed.splice(at..at, again);
            "bytes twice"
        }
        5 => {
            // Header lengths, and floats that are NaN.
            changed[at..end].fill(0xff);
            "ones"
        }
        _ => {
            let word = *draw.choose(&NUMBERS);
            changed.splice(at..end.min(at + word.len()), word.bytes());
            "number put in"
        }
    };
    (changed, format!("{how} at {at}"))
}

/// Changes one value of a JSON tree, and says which.
fn change_value(value: &mut Value, draw: &mut Draw) -> String {
    let children = match value {
        Value::Object(fields) => fields.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    if children == 0 || draw.below(8) == 0 {
        let new = match draw.below(3) {
            0 => json!(*draw.choose(&PATHS)),
            _ => serde_json::from_str(draw.choose::<&str>(&NUMBERS)).unwrap_or(Value::Null),
        };
        let text = format!(" = {new}");
        *value = new;
        return text;
    }
    let index = draw.below(children);
    match value {
        Value::Object(fields) => {
            let key = fields.keys().nth(index).unwrap().clone();
            if draw.below(10) == 0 {
                fields.remove(&key);
                return format!(".{key} removed");
            }
            format!(".{key}{}", change_value(&mut fields[&key], draw))
        }
        Value::Array(items) => format!("[{index}]{}", change_value(&mut items[index], draw)),
        _ => unreachable!("others have no children"),
    }
}
