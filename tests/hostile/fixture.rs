//! Inputs to mutate: a recipe, a run on text with its checkpoint and packed text, a Hugging Face
//! folder with reference values. Made once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use bridge_core::checkpoint::{Checksum, METADATA_FILE};
use bridge_tests::{program, recipe, root};
use serde_json::{Value, json};

/// A folder with `recipe.toml`, `text/`, `run/` (`checkpoints/`, `cache/`), `runs/` (its logs),
/// `hf/`, `golden.safetensors` and `model.gguf`.
pub struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    /// The one of this process.
    pub fn shared() -> &'static Self {
        static FIXTURE: OnceLock<Fixture> = OnceLock::new();
        FIXTURE.get_or_init(Self::make)
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::copy(recipe(), at("recipe.toml")).unwrap();
        std::fs::create_dir_all(at("text")).unwrap();
        let words = ["one", "two", "three", "four", "five", "six"];
        let story: Vec<&str> = (0..4000).map(|i| words[i * i % 7 % 6]).collect();
        std::fs::write(at("text/a.txt"), story.join(" ")).unwrap();
        let lines: Vec<String> = story.chunks(40).map(|line| json!({ "text": line.join(" ") }).to_string()).collect();
        std::fs::write(at("text/b.jsonl"), lines.join("\n")).unwrap();
        let golden = root().join("bridge-models/tests/fixtures/golden/llama");
        std::fs::create_dir_all(at("hf")).unwrap();
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(golden.join(name), at("hf").join(name)).unwrap();
        }
        std::fs::copy(golden.join("golden.safetensors"), at("golden.safetensors")).unwrap();
        let export = ["convert", "export", "hf", "model.gguf", "--dtype", "q8_0"];
        let output = Command::new(program()).args(export).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let output = Command::new(program())
            .arg("train")
            .arg(at("recipe.toml"))
            .args(Self::run_overrides())
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { folder }
    }

    /// A short run on the fixture's text.
    pub fn run_overrides() -> [&'static str; 12] {
        [
            "train.train_iters=2",
            "train.num_threads=1",
            "logger.progress=none",
            "dataset.kind=gpt",
            "dataset.source=[\"text/a.txt\", \"text/b.jsonl\"]",
            "dataset.source_cache_dir=run/cache",
            "tokenizer.tokenizer_type=ByteLevelBPE",
            "tokenizer.bpe_vocab_size=300",
            "tokenizer.vocab_size=null",
            "dataset.split=\"90,10,0\"",
            "checkpoint.save=run/checkpoints",
            "model.vocab_size=null",
        ]
    }
}

/// Makes the checksums of a checkpoint's `folder` right again after `file` of it was changed.
pub fn seal_again(folder: &Path, file: &str) {
    let path = folder.join(METADATA_FILE);
    let mut metadata: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    if file != METADATA_FILE {
        // The replacement of a file may be endless, such as a device.
        let is_file = folder.join(file).symlink_metadata().is_ok_and(|metadata| metadata.is_file());
        let bytes = if is_file { std::fs::read(folder.join(file)).unwrap() } else { Vec::new() };
        metadata["content"]["files"][file] =
            json!({ "size": bytes.len(), "checksum": Checksum::compute(&bytes).to_string() });
    }
    write_sealed(&path, &metadata["content"]);
}

/// Writes a file that carries its own checksum.
pub fn write_sealed(path: &Path, content: &Value) {
    let json = serde_json::to_string_pretty(content).unwrap().replace('\n', "\n  ");
    let rest = format!("\",\n  \"content\": {json}\n}}\n");
    let checksum = Checksum::compute(rest.as_bytes());
    std::fs::write(path, format!("{{\n  \"checksum\": \"{checksum}{rest}")).unwrap();
}

/// The newest checkpoint's folder of a copy of the run.
pub fn newest(folder: &Path) -> PathBuf {
    folder.join("run/checkpoints/iter_0000002")
}
