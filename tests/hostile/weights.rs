//! Damaged Hugging Face folders and GGUF files, listed case by case: every way to damage one, at
//! every size and place. The suite runs some of them, spread over the list; `BRIDGE_HOSTILE_RUNS`
//! says how many.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::judge::{Verdict, judge};
use crate::mutate::Case;
use crate::number;
use crate::tensors::Tensors;

/// A way to damage the model in a folder.
struct Damage {
    what: String,
    /// Name in the refusal.
    name: String,
    apply: Box<dyn Fn(&Path)>,
}

const CONFIG: &str = "hf/config.json";
const WEIGHTS: &str = "hf/model.safetensors";
const INDEX: &str = "hf/model.safetensors.index.json";
const GGUF: &str = "model.gguf";

/// Sizes that no file has.
const SIZES: [u64; 8] = [1 << 31, 1 << 32, 1 << 40, 1 << 61, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX];
const TENSORS: [&str; 4] = [
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.1.mlp.down_proj.weight",
    "model.norm.weight",
];

fn damage(what: String, name: &str, apply: impl Fn(&Path) + 'static) -> Damage {
    Damage { what, name: name.rsplit('/').next().unwrap().to_owned(), apply: Box::new(apply) }
}

fn damages() -> Vec<Damage> {
    [cuts(), headers(), values(), deep_texts(), indexes(), no_files(), settings(), tables()]
        .into_iter()
        .flatten()
        .collect()
}

fn cuts() -> Vec<Damage> {
    let parts = [0, 1, 7, 8, 9, 100, 5000, 20_000, 100_000];
    let cut = |file: &'static str, bytes: u64| {
        damage(format!("{file}: the first {bytes} bytes"), file, move |folder| {
            fs::OpenOptions::new().write(true).open(folder.join(file)).unwrap().set_len(bytes).unwrap();
        })
    };
    parts.iter().flat_map(|bytes| [cut(WEIGHTS, *bytes), cut(GGUF, *bytes)]).collect()
}

/// Changes a tensor's entry in the header of the weights.
fn header(tensor: &'static str, key: &'static str, value: Value) -> Damage {
    damage(format!("{tensor}: {key} = {value}"), WEIGHTS, move |folder| {
        let bytes = fs::read(folder.join(WEIGHTS)).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        header[tensor][key] = value.clone();
        put_header(folder, header.to_string().as_bytes(), &bytes[8 + length..]);
    })
}

fn put_header(folder: &Path, header: &[u8], data: &[u8]) {
    let length = (header.len() as u64).to_le_bytes();
    fs::write(folder.join(WEIGHTS), [&length[..], header, data].concat()).unwrap();
}

fn headers() -> Vec<Damage> {
    let mut all = Vec::new();
    for (tensor, size) in TENSORS.iter().cycle().zip(SIZES) {
        all.extend([
            header(tensor, "shape", json!([size])),
            header(tensor, "shape", json!([size, size])),
            header(tensor, "data_offsets", json!([0, size])),
            header(tensor, "data_offsets", json!([size, 0])),
            damage(format!("a header of {size} bytes"), WEIGHTS, move |folder| {
                let mut bytes = fs::read(folder.join(WEIGHTS)).unwrap();
                bytes[..8].copy_from_slice(&size.to_le_bytes());
                fs::write(folder.join(WEIGHTS), bytes).unwrap();
            }),
        ]);
    }
    let dtypes = ["F128", "C64", "f32", "", "Q8_0", "I64", "BOOL", "F4"].map(|dtype| json!(dtype));
    all.extend(
        dtypes.into_iter().chain([json!(null), json!(7), json!({})]).map(|dtype| header(TENSORS[1], "dtype", dtype)),
    );
    all.extend(
        [json!([]), json!([[1]]), json!("x"), json!([-1, 64]), json!([64.5])]
            .map(|shape| header(TENSORS[3], "shape", shape)),
    );
    all
}

fn values() -> Vec<Damage> {
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let spoil = |tensor: &'static str, value: f32| {
        damage(format!("{value} in {tensor}"), tensor, move |folder| {
            let path = folder.join(WEIGHTS);
            let end = |tensor: &mut (String, Vec<u64>, Vec<u8>)| {
                let last = tensor.2.len() - 4;
                tensor.2[last..].copy_from_slice(&value.to_le_bytes());
            };
            Tensors::read(&path).with(tensor, end).write(&path);
        })
    };
    TENSORS.iter().flat_map(|tensor| bad.map(|value| spoil(tensor, value))).collect()
}

fn deep_texts() -> Vec<Damage> {
    let deep = |depth: usize, form: usize| match form {
        0 => format!("{}{}", "[".repeat(depth), "]".repeat(depth)),
        1 => format!("{{\"weight_map\":{}1{}}}", "{\"a\":".repeat(depth), "}".repeat(depth)),
        _ => "[".repeat(depth),
    };
    let put = |file: &'static str, depth: usize, form: usize| {
        damage(format!("{file}: {depth} deep, form {form}"), file, move |folder| match file {
            WEIGHTS => put_header(folder, deep(depth, form).as_bytes(), &[0; 64]),
            file => fs::write(folder.join(file), deep(depth, form)).unwrap(),
        })
    };
    let depths = [200, 50_000, 1_000_000];
    let of_depth =
        |depth| [CONFIG, WEIGHTS, INDEX].into_iter().flat_map(move |file| [0, 1, 2].map(|form| put(file, depth, form)));
    depths.into_iter().flat_map(of_depth).collect()
}

fn indexes() -> Vec<Damage> {
    let paths = [
        "/etc/passwd",
        "../victim/shard.safetensors",
        "a/../../victim",
        "..",
        ".",
        "",
        "/dev/zero",
        "\0",
        "a\\b",
        "gone.safetensors",
    ];
    let map = |path: &'static str| {
        damage(
            format!("index: {path:?}"),
            if path.ends_with("gone.safetensors") { path } else { INDEX },
            move |folder| {
                let map: Value = TENSORS.iter().map(|tensor| ((*tensor).to_owned(), json!(path))).collect();
                fs::write(folder.join(INDEX), json!({ "weight_map": map }).to_string()).unwrap();
            },
        )
    };
    let texts = ["", "null", "{}", "[]", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":"];
    let text = |text: &'static str| {
        damage(format!("index: {text}"), INDEX, move |folder| fs::write(folder.join(INDEX), text).unwrap())
    };
    paths.into_iter().map(map).chain(texts.into_iter().map(text)).collect()
}

/// Pipes, folders, links and pointers in place of files.
fn no_files() -> Vec<Damage> {
    let kinds = ["pipe", "folder", "device", "pointer", "nothing"];
    let put = |file: &'static str, kind: &'static str| {
        damage(format!("{file}: {kind}"), file, move |folder| {
            let path = folder.join(file);
            let _ = fs::remove_file(&path);
            match kind {
                "pipe" => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
                "folder" => fs::create_dir(&path).unwrap(),
                "device" => symlink("/dev/zero", &path).unwrap(),
                "pointer" => {
                    fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n").unwrap()
                }
                _ => symlink("nowhere", &path).unwrap(),
            }
        })
    };
    let of = |file: &'static str| kinds.map(|kind| put(file, kind));
    // Without an index the file of weights is read: a dangling link does not count as one.
    let all = [CONFIG, WEIGHTS, INDEX, GGUF].into_iter().flat_map(of);
    all.filter(|damage| damage.what != format!("{INDEX}: nothing")).collect()
}

fn settings() -> Vec<Damage> {
    let keys = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
        "head_dim",
    ];
    let numbers =
        SIZES.iter().map(|size| json!(size)).chain([json!(0), json!(-1), json!(1e300), json!("x"), json!([1])]);
    let set = |key: &'static str, value: Value| {
        damage(format!("{key} = {value}"), "", move |folder| {
            let path = folder.join(CONFIG);
            let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            config[key] = value.clone();
            fs::write(path, config.to_string()).unwrap();
        })
    };
    numbers.flat_map(|number| keys.map(|key| set(key, number.clone()))).collect()
}

/// Counts and lengths at the front of a GGUF file.
fn tables() -> Vec<Damage> {
    let put = |at: usize, size: u64| {
        damage(format!("{GGUF}: {size} at byte {at}"), GGUF, move |folder| {
            let mut bytes = fs::read(folder.join(GGUF)).unwrap();
            bytes[at..at + 8].copy_from_slice(&size.to_le_bytes());
            fs::write(folder.join(GGUF), bytes).unwrap();
        })
    };
    // Numbers of tensors and of values, and the length of the first key.
    SIZES.iter().flat_map(|size| [8, 16, 24].map(|at| put(at, *size))).collect()
}

/// Cases of one run of the suite.
const RUNS: u64 = 60;

#[test]
fn damaged_models_are_refused_by_name_and_leave_nothing() {
    let damages = damages();
    assert!(damages.len() > 250, "{}", damages.len());
    let runs = number("BRIDGE_HOSTILE_RUNS").unwrap_or(RUNS).min(damages.len() as u64) as usize;
    let commands = [&["convert", "import"][..], &["convert", "export"]];
    let mut bad = Vec::new();
    for (number, damage) in damages.iter().step_by(damages.len() / runs).enumerate() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["hf/config.json", "hf/model.safetensors", "model.gguf"] {
            fs::create_dir_all(folder.path().join("hf")).unwrap();
            fs::copy(Fixture::shared().path().join(name), folder.path().join(name)).unwrap();
        }
        (damage.apply)(folder.path());
        if damage.name.ends_with("index.json") {
            // A single file of weights would count before an index.
            let _ = fs::remove_file(folder.path().join("hf/model.safetensors"));
        }
        let model = if damage.name == GGUF { GGUF } else { "hf" };
        let arguments = [commands[number % 2], &[model, "out"]].concat();
        let case = Case {
            what: damage.what.clone(),
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            names: vec![damage.name.clone()],
            is_certified: true,
            kept: vec![folder.path().join("hf")],
        };
        match judge(&case, folder.path()) {
            Verdict::Refused if !folder.path().join("out").exists() => {}
            Verdict::Refused => bad.push(format!("{}: something is left", damage.what)),
            Verdict::Accepted => bad.push(format!("{}: accepted", damage.what)),
            Verdict::Bad(reason) => bad.push(format!("{}: {reason}", damage.what)),
        }
    }
    assert!(bad.is_empty(), "{} of {runs}:\n{}", bad.len(), bad.join("\n"));
}
