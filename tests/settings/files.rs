//! Text, token files and a tokenizer. Made once, copied into the folder `data` of each run.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use bridge_data::indexed::{IndexedDatasetBuilder, TokenDtype};
use tempfile::TempDir;

use bridge_tests::copy;

static FILES: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    folder
});

/// Copies all files to a folder.
pub fn copy_to(target: &Path) {
    copy(FILES.path(), target);
}

fn make(folder: &Path) {
    let docs = folder.join("docs");
    std::fs::create_dir_all(&docs).unwrap();
    for number in 0..10 {
        std::fs::write(docs.join(format!("{number}.txt")), text(number, 200)).unwrap();
    }
    let mut lines = String::new();
    for number in 0..60 {
        let record = serde_json::json!({"text": text(number, 40), "other": text(number + 100, 40)});
        writeln!(lines, "{record}").unwrap();
    }
    std::fs::write(folder.join("lines.jsonl"), lines).unwrap();
    let functions = (0..20).map(|number| format!("/// Returns {number} in any case.\nfn of_{number}() {{}}\n"));
    std::fs::write(folder.join("code.rs"), functions.collect::<String>()).unwrap();
    examples(folder);
    tokens(&folder.join("tokens"), 80, 13);
    tokens(&folder.join("more"), 60, 29);
    tokens(&folder.join("few"), 3, 7);
    tokens(&folder.join("fewer"), 2, 11);
    let trained = Command::new(bridge_tests::program())
        .args(["tokenizer", "train", "--vocab-size", "300", "--output"])
        .arg(folder.join("tokenizer"))
        .args(["--special-token", "<pre>", "--special-token", "<mid>", "--special-token", "<suf>"])
        .arg(docs.join("*.txt"))
        .output()
        .unwrap();
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    // The token that ends documents pads as well.
    let names = folder.join("tokenizer/tokenizer_config.json");
    let text = std::fs::read_to_string(&names).unwrap();
    let chat = folder.join("chat_tokenizer");
    copy(&folder.join("tokenizer"), &chat);
    std::fs::write(chat.join("tokenizer_config.json"), text.replacen('{', "{\"bos_token\": \"<pre>\",", 1)).unwrap();
    let template =
        "{% for m in messages %}<mid>{{ m.role[:1] }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    std::fs::write(chat.join("chat_template.jinja"), template).unwrap();
    tokenizers(folder);
    std::fs::write(&names, text.replacen('{', "{\"pad_token\": \"<|endoftext|>\",", 1)).unwrap();
}

/// Files of tokenizers of other programs.
fn tokenizers(folder: &Path) {
    let target = folder.join("tokenizers");
    copy(&bridge_tests::root().join("bridge-data/tests/fixtures/tokenizers"), &target);
    let words = std::fs::read_to_string(target.join("vocab.txt")).unwrap();
    std::fs::write(target.join("words.txt"), words + "river\nstone\nbridge\n").unwrap();
    let trained = std::fs::read_to_string(folder.join("tokenizer/tokenizer.json")).unwrap();
    let trained: serde_json::Value = serde_json::from_str(&trained).unwrap();
    std::fs::write(target.join("vocab.json"), trained["model"]["vocab"].to_string()).unwrap();
    let pair = |pair: &serde_json::Value| match pair.as_str() {
        Some(text) => text.to_owned(),
        None => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    };
    let merges: Vec<String> = trained["model"]["merges"].as_array().unwrap().iter().map(pair).collect();
    std::fs::write(target.join("merges.txt"), merges.join("\n")).unwrap();
    std::fs::write(target.join("few_merges.txt"), merges[..merges.len() / 3].join("\n")).unwrap();
    std::fs::write(target.join("tokenizer_config.json"), "{\"eos_token\": \"<|endoftext|>\"}").unwrap();
    std::fs::write(folder.join("camel.txt"), "helloWorldAgain and more\n\n".repeat(4000)).unwrap();
    let template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    std::fs::write(folder.join("other.jinja"), template).unwrap();
}

/// Folders with the splits of fine-tuning data.
fn examples(folder: &Path) {
    let write = |name: &str, words: usize, bad: bool| {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for (split, count) in [("training", 40), ("validation", 20), ("test", 20)] {
            let mut lines = if bad { "{\"no\": 1}\n".to_owned() } else { String::new() };
            for number in 0..count {
                let answer = text(number + 7, 1 + number % 3);
                let record = serde_json::json!({"input": text(number, words), "other": text(number + 50, words), "output": answer});
                writeln!(lines, "{record}").unwrap();
            }
            std::fs::write(folder.join(format!("{split}.jsonl")), lines).unwrap();
        }
    };
    write("examples", 3, false);
    write("long_examples", 12, false);
    write("bad_examples", 3, true);
    let chats = folder.join("chats");
    std::fs::create_dir_all(&chats).unwrap();
    let message = |role: &str, number: usize| serde_json::json!({"role": role, "content": text(number, 3)});
    let line = |number| {
        format!("{}\n", serde_json::json!({"messages": [message("user", number), message("assistant", number + 1)]}))
    };
    std::fs::write(chats.join("training.jsonl"), (0..20).map(line).collect::<String>()).unwrap();
    let preferences = folder.join("preferences");
    std::fs::create_dir_all(&preferences).unwrap();
    let line = |number: usize| {
        let [chosen, rejected] = [2, 3].map(|factor| "ab ".repeat(1 + factor * number % 5));
        format!("{}\n", serde_json::json!({ "prompt": "cd", "chosen": chosen, "rejected": rejected }))
    };
    std::fs::write(preferences.join("training.jsonl"), (0..20).map(line).collect::<String>()).unwrap();
}

/// Words in an order that looks drawn.
fn text(number: usize, words: usize) -> String {
    const WORDS: [&str; 12] =
        ["river", "stone", "bridge", "train", "of", "the", "late", "morning", "runs", "over", "under", "and"];
    let mut state = number * 7919 + 17;
    let mut text = String::new();
    for word in 0..words {
        state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
        text.push_str(WORDS[state / 65_536 % WORDS.len()]);
        text.push(if word % 11 == 10 { '\n' } else { ' ' });
    }
    text
}

/// A `.bin`/`.idx` pair of ids below 509, of documents that end with 511.
fn tokens(prefix: &Path, documents: i64, step: i64) {
    let mut builder = IndexedDatasetBuilder::create(prefix, TokenDtype::U16).unwrap();
    for document in 0..documents {
        let mut tokens: Vec<i64> = (0..20 + document).map(|i| (i * i + step * document) % 509).collect();
        tokens.push(511);
        builder.add_item(&tokens).unwrap();
        builder.end_document();
    }
    builder.finalize().unwrap();
}
