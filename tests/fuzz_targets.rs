//! The targets of `fuzz`, compiled by stable Rust and run on mutated seeds for a moment each, so
//! that they still compile and parsers accept their seeds. cargo-fuzz runs them for long;
//! `BRIDGE_HOSTILE_RUNS` says how many inputs each gets here.

extern crate self as bridge_fuzz;
extern crate self as libfuzzer_sys;

use std::fs;

use bridge_tests::root;

#[path = "../fuzz/src/lib.rs"]
mod shared;
pub use shared::{parts, with_files};

/// Modules of the targets; that they have no `main` concerns programs only.
#[allow(unused_attributes)]
#[path = "../fuzz/fuzz_targets"]
mod targets {
    pub mod checkpoint_root;
    pub mod hf_config;
    pub mod jsonl;
    pub mod npy;
    pub mod overrides;
    pub mod recipe;
    pub mod reference;
    pub mod safetensors;
    pub mod token_files;
    pub mod tokenizer;
    pub mod weights_index;
}

/// Turns libFuzzer's entry point into a function. Below are the targets, which import it by its
/// path.
#[macro_export]
macro_rules! fuzz_target {
    (|$data:ident: &[u8]| $body:block) => {
        pub fn run($data: &[u8]) {
            $body
        }
    };
}

/// Inputs of one target in a run of the suite.
const RUNS: u64 = 60;

fn file(name: &str) -> Vec<u8> {
    fs::read(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Two files as [`parts`] takes them apart.
fn joined(first: &[u8], second: &[u8]) -> Vec<u8> {
    let length = u16::try_from(first.len()).expect("a short file");
    [&length.to_le_bytes()[..], first, second].concat()
}

/// A target: its name, its function, and a seed that it accepts.
type Target = (&'static str, fn(&[u8]), Vec<u8>);

fn targets() -> Vec<Target> {
    const GOLDEN: &str = "bridge-models/tests/fixtures/golden/llama";
    let chat = "bridge-data/tests/fixtures/chat/turns";
    let documents = br#"{"text": "one two three"}
{"text": "four"}
"#;
    let npy = [
        &b"\x93NUMPY\x01\0\x46\0{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }"[..],
        &[b' '; 13],
        b"\n",
        &[1; 12],
    ];
    let index = br#"{"weight_map": {"model.norm.weight": "a.safetensors"}}"#;
    let root_files =
        joined(br"1", &joined(br#"{"checksum": "", "content": {"saved": []}}"#, br#"{"content": {"files": {}}}"#));
    let token_files = joined(
        &file("bridge-data/tests/fixtures/megatron-data/a.idx"),
        &file("bridge-data/tests/fixtures/megatron-data/a.bin"),
    );
    vec![
        ("checkpoint_root", targets::checkpoint_root::run, root_files),
        ("hf_config", targets::hf_config::run, file(&format!("{GOLDEN}/config.json"))),
        ("jsonl", targets::jsonl::run, documents.to_vec()),
        ("npy", targets::npy::run, npy.concat()),
        ("overrides", targets::overrides::run, b"train.train_iters=20\nmodel.num_layers=2\ndataset.kind=mock".to_vec()),
        ("recipe", targets::recipe::run, [&[0], &file("recipes/tiny.toml")[..]].concat()),
        (
            "recipe in YAML",
            targets::recipe::run,
            [&[1], &file("bridge-core/config/tests/fixtures/config/tiny.yaml")[..]].concat(),
        ),
        ("reference", targets::reference::run, file(&format!("{GOLDEN}/golden.safetensors"))),
        ("safetensors", targets::safetensors::run, file(&format!("{GOLDEN}/model.safetensors"))),
        ("token_files", targets::token_files::run, token_files),
        (
            "tokenizer",
            targets::tokenizer::run,
            joined(&file(&format!("{chat}/tokenizer.json")), &file(&format!("{chat}/tokenizer_config.json"))),
        ),
        ("weights_index", targets::weights_index::run, index.to_vec()),
    ]
}

/// A number that follows from another, evenly spread (splitmix64).
fn mixed(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as usize
}

/// The seed with some of its bytes changed, doubled, left out or replaced by extreme values; mostly
/// near its beginning, where headers are.
fn mutated(seed: &[u8], state: &mut u64) -> Vec<u8> {
    const WORDS: [&[u8]; 8] =
        [b"18446744073709551615", b"-1", b"[[[[[[[[", b"null", b"1e999", &[0xff; 8], &[0; 8], b"/dev/zero"];
    let mut data = seed.to_vec();
    for _ in 0..1 + mixed(state) % 4 {
        let reach = if mixed(state).is_multiple_of(2) { data.len().min(400) } else { data.len() };
        let at = mixed(state) % reach.max(1);
        let end = (at + 1 + mixed(state) % 24).min(data.len());
        if at >= end {
            return data;
        }
        match mixed(state) % 6 {
            0 => data[at] ^= 1 << (mixed(state) % 8),
            1 => data.truncate(at),
            2 => drop(data.drain(at..end)),
            3 => {
                let again = data[at..end].to_vec();
                data.splice(at..at, again);
            }
            4 => data[at..end].fill(0xff),
            _ => {
                let word = WORDS[mixed(state) % WORDS.len()];
                data.splice(at..end, word.iter().copied());
            }
        }
    }
    data
}

#[test]
fn every_target_is_listed_and_takes_mutated_seeds() {
    let runs = std::env::var("BRIDGE_HOSTILE_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let all = targets();
    for entry in fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(all.iter().any(|(target, ..)| *target == name), "{name} is not run here");
    }
    for (name, run, seed) in all {
        run(&seed);
        for number in 0..runs {
            let mut state = number;
            let data = mutated(&seed, &mut state);
            let ended = std::panic::catch_unwind(|| run(&data));
            assert!(ended.is_ok(), "{name}: input {number} panics");
        }
    }
}
