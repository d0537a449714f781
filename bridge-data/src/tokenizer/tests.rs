//! Loading, special tokens, bytes, the Null tokenizer, and the identity of the fast path with the
//! library's own.

use proptest::prelude::*;

use super::*;

/// Text with everything the pattern tells apart, and the special token written out.
const CORPUS: &str = "The model's loss isn't low; we'll see \u{2013} they've said 1234 times.\n\n  Indented\tcode: \
    fn main() { println!(\"{}\", 0xFF); }\r\n\u{e9}t\u{e9} na\u{ef}ve \u{4f60}\u{597d}\u{3000}\u{4e16}\u{754c} \u{1f600}\u{1f680} \
    \u{661}\u{662}\u{663} \u{bd} x\u{b2} \u{a0}\u{2003}end<|endoftext|>Next   doc'S 'tis 'RE I'd";

fn trained() -> HuggingFaceTokenizer {
    let params = BpeTrainParams { vocab_size: 420, min_frequency: 1, special_tokens: vec!["<pad>".into()] };
    train_byte_level_bpe(&params, (0..4).map(|_| CORPUS.to_owned())).expect("trainable")
}

#[test]
fn text_round_trips() {
    let tokenizer = trained();
    let ids = tokenizer.encode(CORPUS).expect("encodable");
    assert_eq!(tokenizer.decode(&ids).expect("decodable"), CORPUS);
    assert!(ids.contains(&0), "the special token is recognized");
    assert!(ids.len() < CORPUS.len() / 2, "{} ids", ids.len());
    let bytes: usize = ids.iter().map(|&id| tokenizer.id_to_bytes(id).expect("known").len()).sum();
    assert_eq!(bytes, CORPUS.len() - "<|endoftext|>".len(), "a special token stands for no text");
    assert_eq!(tokenizer.id_to_bytes(420), None);
    assert!(matches!(tokenizer.decode(&[420]), Err(TokenizerError::UnknownId { id: 420, .. })));
    assert!(tokenizer.decode(&[-1]).is_err());
}

#[test]
fn training_is_repeatable() {
    let [first, second] = [trained(), trained()];
    assert_eq!(first.json(), second.json());
    assert_eq!(first.unique_identifier(), second.unique_identifier());
    assert_eq!((first.eod(), first.bos(), first.pad()), (Some(0), Some(0), None));
    assert_eq!(require_eod(&first).expect("has one"), 0);
}

#[test]
fn saved_tokenizers_load_from_folder_and_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let tokenizer = trained();
    tokenizer.save_assets(folder.path()).expect("saved");
    for path in [folder.path().to_owned(), folder.path().join("tokenizer.json")] {
        let loaded = HuggingFaceTokenizer::load(path).expect("loadable");
        assert_eq!(loaded.unique_identifier(), tokenizer.unique_identifier());
        assert_eq!(loaded.encode(CORPUS).expect("encodable"), tokenizer.encode(CORPUS).expect("encodable"));
    }
}

#[test]
fn gpt2s_two_files_load() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let vocab = r#"{"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "<|endoftext|>": 5}"#;
    std::fs::write(folder.path().join("vocab.json"), vocab).expect("written");
    std::fs::write(folder.path().join("merges.txt"), "#version: 0.2\na b\nĠ ab\n").expect("written");
    let tokenizer = HuggingFaceTokenizer::load(folder.path()).expect("loadable");
    assert_eq!(tokenizer.encode("ab ab<|endoftext|>ba").expect("encodable"), [2, 4, 5, 1, 0]);
    assert_eq!((tokenizer.eod(), tokenizer.vocab_size()), (Some(5), 6));
    std::fs::write(folder.path().join("merges.txt"), "a z\n").expect("written");
    let error = HuggingFaceTokenizer::load(folder.path()).expect_err("unknown token").to_string();
    assert!(error.contains("vocab.json") && error.contains("merges.txt"), "{error}");
}

/// A word-level tokenizer without any special token.
const PLAIN: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"hello": 0, "world": 1, "<end>": 2, "[UNK]": 3}, "unk_token": "[UNK]"}}"#;

#[test]
fn companion_files_name_the_special_tokens() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    write("tokenizer.json", PLAIN);
    let load = || HuggingFaceTokenizer::load(folder.path());
    let plain = load().expect("loadable");
    assert_eq!(plain.eod(), None);
    let error = require_eod(&plain).expect_err("none").to_string();
    assert!(error.contains("eos_token"), "{error}");
    assert_eq!(plain.encode("hello there world").expect("encodable"), [0, 3, 1]);
    assert_eq!(plain.split_point("hello world", 0), None);

    write("config.json", r#"{"eos_token_id": 1}"#);
    assert_eq!(load().expect("loadable").eod(), Some(1));
    write("tokenizer_config.json", r#"{"eos_token": "<end>", "pad_token": "[UNK]"}"#);
    let named = load().expect("loadable");
    assert_eq!((named.eod(), named.pad()), (Some(2), Some(3)));
    write("tokenizer_config.json", r#"{"eos_token": "<none>"}"#);
    let error = load().expect_err("an unknown token").to_string();
    assert!(error.contains("\"<none>\"") && error.contains(&*folder.path().to_string_lossy()), "{error}");
}

#[test]
fn what_stands_before_a_text_is_the_post_processors() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    let load = || HuggingFaceTokenizer::load(folder.path()).expect("loadable");
    write("tokenizer.json", PLAIN);
    assert_eq!(load().prefix(), [0_i64; 0]);
    let piece = |id: &str| format!(r#"{{"SpecialToken": {{"id": "{id}", "type_id": 0}}}}"#);
    let sequence = r#"{"Sequence": {"id": "A", "type_id": 0}}"#;
    let processor = format!(
        r#"{{"type": "TemplateProcessing", "single": [{}, {sequence}, {}], "pair": [{sequence}, {{"Sequence": {{"id": "B", "type_id": 0}}}}],
            "special_tokens": {{"<end>": {{"id": "<end>", "ids": [2], "tokens": ["<end>"]}}, "world": {{"id": "world", "ids": [1], "tokens": ["world"]}}}}}}"#,
        piece("world"),
        piece("<end>"),
    );
    write("tokenizer.json", &PLAIN.replace(r#""post_processor": null"#, &format!(r#""post_processor": {processor}"#)));
    assert_eq!(load().prefix(), [1]);
    assert_eq!(load().encode("hello").expect("encodable"), [0]);
    // The configuration counts, as in transformers.
    for (config, expected) in [
        (r#"{"bos_token": "<end>"}"#, &[1][..]),
        (r#"{"bos_token": "<end>", "add_bos_token": true}"#, &[2]),
        (r#"{"bos_token": "<end>", "add_bos_token": false}"#, &[]),
        (r#"{"add_bos_token": true}"#, &[]),
    ] {
        write("tokenizer_config.json", config);
        assert_eq!(load().prefix(), expected, "{config}");
    }
}

/// A SentencePiece model alone is a tokenizer, and files beside it count.
#[test]
fn a_folder_with_a_sentencepiece_model_is_a_tokenizer() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/llama.model");
    for name in ["tokenizer.model", "spiece.model"] {
        let folder = tempfile::tempdir().unwrap();
        assert!(!HuggingFaceTokenizer::is_in(folder.path()));
        std::fs::copy(&fixture, folder.path().join(name)).unwrap();
        assert!(HuggingFaceTokenizer::is_in(folder.path()));
        let (alone, of_file) = (
            HuggingFaceTokenizer::load(folder.path()).unwrap(),
            HuggingFaceTokenizer::sentencepiece(&fixture).unwrap(),
        );
        assert_eq!(alone.encode("The capital").unwrap(), of_file.encode("The capital").unwrap());
        assert_eq!((alone.bos(), alone.eod()), (of_file.bos(), of_file.eod()));
        assert_eq!(alone.prefix(), [alone.bos().unwrap()]);
        std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"add_bos_token": false}"#).unwrap();
        std::fs::write(folder.path().join("special_tokens_map.json"), r#"{"eos_token": "<s>"}"#).unwrap();
        let with_files = HuggingFaceTokenizer::load(folder.path()).unwrap();
        assert_eq!((with_files.prefix(), with_files.eod()), (&[][..], of_file.bos()));
    }
}

/// A folder of GPT-2's two files with these files beside.
fn with_files(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("temporary folder");
    let vocab = r#"{"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "<": 5, ">": 6, "x": 7, "<s>": 8, "s": 9}"#;
    let two = [("vocab.json", vocab), ("merges.txt", "#version: 0.2\na b\nĠ ab\n")];
    for (name, text) in two.iter().chain(files) {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

#[test]
fn tokens_that_files_beside_name_are_whole() {
    // As transformers 5 encodes.
    let model = ("config.json", r#"{"vocab_size": 12}"#);
    let text = "a<s> <x>  b<s>";
    let decoder = r#"{"added_tokens_decoder": {
        "8": {"content": "<s>", "special": true, "lstrip": false, "rstrip": false, "normalized": false, "single_word": false},
        "10": {"content": "<x>", "special": false, "lstrip": true, "rstrip": true, "normalized": true, "single_word": false}}}"#;
    let plain: &[i64] = &[0, 5, 9, 6, 3, 5, 7, 6, 3, 3, 1, 5, 9, 6];
    let named: &[i64] = &[0, 8, 3, 5, 7, 6, 3, 3, 1, 8];
    let both: &[i64] = &[0, 8, 3, 10, 3, 3, 1, 8];
    for (files, expected) in [
        (&[][..], plain),
        (&[("tokenizer_config.json", r#"{"bos_token": "<s>"}"#)], named),
        (&[("special_tokens_map.json", r#"{"unk_token": {"content": "<s>"}}"#)], named),
        (&[("tokenizer_config.json", decoder)], &[0, 8, 10, 1, 8]),
        (&[("added_tokens.json", r#"{"<s>": 8, "<x>": 10}"#)], both),
        (&[model, ("tokenizer_config.json", r#"{"extra_special_tokens": ["<s>", "<x>"]}"#)], both),
        (&[model, ("tokenizer_config.json", r#"{"extra_special_tokens": {"eox_token": "<x>", "s": "<s>"}}"#)], both),
        (&[model, ("tokenizer_config.json", r#"{"bos_token": "<s>", "additional_special_tokens": ["<x>"]}"#)], both),
    ] {
        let folder = with_files(files);
        let tokenizer = HuggingFaceTokenizer::load(folder.path()).expect("loadable");
        assert_eq!(tokenizer.encode(text).expect("encodable"), expected, "{files:?}");
        // Added tokens are saved.
        let saved = tempfile::tempdir().expect("temporary folder");
        tokenizer.save_assets(saved.path()).expect("saved");
        let loaded = HuggingFaceTokenizer::load(saved.path()).expect("loadable");
        assert_eq!(loaded.unique_identifier(), tokenizer.unique_identifier(), "{files:?}");
    }
    let small = ("config.json", r#"{"text_config": {"vocab_size": 10}}"#);
    for (files, expected) in [
        (&[("tokenizer_config.json", r#"{"extra_special_tokens": ["<x>"]}"#)][..], "no token \"<x>\""),
        (&[small, ("tokenizer_config.json", r#"{"extra_special_tokens": ["<x>"]}"#)], "leave no room"),
        (&[small, ("tokenizer_config.json", decoder)], "leave no room"),
        (&[("added_tokens.json", r#"{"<x>": 11}"#)], "has the id 11, the tokenizer has 10"),
        (&[("added_tokens.json", r#"{"<s>": 10}"#)], "has the id 10, the tokenizer has 8"),
        (&[("added_tokens.json", "[]")], "expected a JSON object"),
    ] {
        let folder = with_files(files);
        let error = HuggingFaceTokenizer::load(folder.path()).expect_err("refused").to_string();
        assert!(error.contains(expected) && error.contains(&*folder.path().to_string_lossy()), "{files:?}: {error}");
    }
}

#[test]
fn unusable_files_are_errors() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let missing = folder.path().join("nothing");
    for path in [folder.path(), &missing] {
        assert!(matches!(HuggingFaceTokenizer::load(path), Err(TokenizerError::NotFound(_))));
    }
    let path = folder.path().join("tokenizer.json");
    for text in ["{", "{}", "[1]"] {
        std::fs::write(&path, text).expect("written");
        let error = HuggingFaceTokenizer::load(&path).expect_err(text).to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }
}

#[test]
fn special_tokens_are_added_behind_the_vocabulary() {
    let tokenizer = trained();
    let size = tokenizer.vocab_size() as i64;
    let extended = tokenizer.with_special_tokens(&["<fim>".into(), "<pad>".into()]).expect("extendable");
    assert_eq!(extended.token_to_id("<fim>"), Some(size));
    assert_eq!((extended.vocab_size() as i64, extended.eod()), (size + 1, Some(0)));
    assert_eq!(extended.encode("<fim><pad>").expect("encodable"), [size, 1]);
}

#[test]
fn vocabularies_that_cannot_be_are_refused() {
    let params = BpeTrainParams { vocab_size: 256, ..BpeTrainParams::default() };
    let error = train_byte_level_bpe(&params, std::iter::empty()).expect_err("too small").to_string();
    assert!(error.contains("256") && error.contains("257"), "{error}");
}

#[test]
fn null_tokenizer() {
    let tokenizer = NullTokenizer::new(10);
    assert_eq!(tokenizer.encode("3 1 10").expect("integers"), [3, 1, 10]);
    assert_eq!(tokenizer.decode(&[3, 1, 10]).expect("known"), "3 1 10");
    assert_eq!((tokenizer.vocab_size(), tokenizer.eod()), (11, Some(10)));
    assert_eq!(tokenizer.id_to_bytes(3), None, "numbers are no text to count bytes of");
    assert!(tokenizer.encode("3 x").expect_err("no integer").to_string().contains("\"x\""));
    for text in ["11", "-1"] {
        assert!(matches!(tokenizer.encode(text), Err(TokenizerError::UnknownId { .. })));
    }
}

#[test]
fn the_fast_path_gives_the_librarys_ids() {
    let tokenizer = trained();
    let spellings =
        ["a", "'s", " ", "  ", "\n", "\t", "1", "\u{3000}", "\u{e9}", "!", "<|endoftext|>", "<|end", "'", "\u{bd}"];
    // Every sequence of up to three of these.
    for first in spellings {
        for second in spellings {
            for third in spellings {
                let text = format!("{first}{second}{third}");
                let expected = tokenizer.encode_reference(&text).expect("encodable");
                assert_eq!(tokenizer.encode(&text).expect("encodable"), expected, "{text:?}");
            }
        }
    }
}

#[test]
fn every_character_is_classified_as_the_library_does() {
    let tokenizer = trained();
    let text: String = (0..0x11_0000u32)
        .step_by(3)
        .filter_map(char::from_u32)
        .flat_map(|c| ['a', c, '1', c, c, ' ', c, '!'])
        .collect();
    for chunk in text.as_bytes().chunks(1 << 16) {
        let chunk = String::from_utf8_lossy(chunk);
        assert!(tokenizer.encode(&chunk).expect("encodable") == tokenizer.encode_reference(&chunk).expect("encodable"));
    }
}

proptest! {
    #[test]
    fn cutting_at_split_points_keeps_the_ids(text in "(\\PC|[ \n\t'a-z]){0,200}", from in 0usize..100) {
        let tokenizer = trained_once();
        let whole = tokenizer.encode(&text).expect("encodable");
        prop_assert_eq!(&tokenizer.encode_reference(&text).expect("encodable"), &whole);
        if let Some(at) = tokenizer.split_point(&text, from) {
            prop_assert!(at >= from && at < text.len());
            let mut parts = tokenizer.encode(&text[..at]).expect("encodable");
            parts.extend(tokenizer.encode(&text[at..]).expect("encodable"));
            prop_assert_eq!(parts, whole);
        }
    }
}

fn trained_once() -> &'static HuggingFaceTokenizer {
    static TOKENIZER: std::sync::LazyLock<HuggingFaceTokenizer> = std::sync::LazyLock::new(trained);
    &TOKENIZER
}

/// Ids that Python's libraries make of the same files and texts (tests/fixtures/tokenizers).
#[test]
fn files_of_other_programs_give_their_ids() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
    let at = |name: &str| folder.join(name);
    let check = |name: &str, tokenizer: HuggingFaceTokenizer| {
        let cases = std::fs::read_to_string(at(&format!("{name}.jsonl"))).unwrap();
        let mut wrong = Vec::new();
        for line in cases.lines() {
            let case: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = case["text"].as_str().unwrap();
            let ids = serde_json::json!(tokenizer.encode(text).unwrap());
            if ids != case["ids"] {
                wrong.push(format!("{text:?}: {ids}, expected {}", case["ids"]));
            }
        }
        assert!(wrong.is_empty(), "{name}: {} differ:\n{}", wrong.len(), wrong.join("\n"));
        // The tokenizer saved with a checkpoint is the same.
        let saved = tempfile::tempdir().unwrap();
        tokenizer.save_assets(saved.path()).unwrap();
        let loaded = HuggingFaceTokenizer::load(saved.path()).unwrap();
        let text = "The capital of France is Paris.";
        assert_eq!(loaded.encode(text).unwrap(), tokenizer.encode(text).unwrap());
        assert_eq!((loaded.eod(), loaded.bos(), loaded.pad()), (tokenizer.eod(), tokenizer.bos(), tokenizer.pad()));
    };
    for name in ["unigram", "unigram_bytes", "bpe", "llama", "bare", "char"] {
        let tokenizer = HuggingFaceTokenizer::sentencepiece(&at(&format!("{name}.model"))).unwrap();
        assert_eq!((tokenizer.bos(), tokenizer.eod()), (Some(1), Some(2)));
        check(name, tokenizer);
    }
    for (name, pattern) in [("tiktoken_v1", TiktokenPattern::V1), ("tiktoken_v2", TiktokenPattern::V2)] {
        for file in ["ranks.json", "ranks.tiktoken"] {
            let params = TiktokenParams { pattern, num_special_tokens: 10, special_tokens: None, vocab_size: None };
            let tokenizer = HuggingFaceTokenizer::tiktoken(&at(file), &params).unwrap();
            assert_eq!((tokenizer.bos(), tokenizer.eod(), tokenizer.vocab_size()), (Some(1), Some(2), 430));
            assert_eq!(tokenizer.encode("<SPECIAL_9>").unwrap(), [9]);
            check(name, tokenizer);
        }
    }
    for (name, case) in [("wordpiece_lower", Case::Lower), ("wordpiece_kept", Case::Kept)] {
        check(name, HuggingFaceTokenizer::wordpiece(&at("vocab.txt"), case).unwrap());
    }
}

#[test]
fn files_that_are_no_tokenizers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/llama.model");
    let whole = std::fs::read(model).unwrap();
    let params =
        TiktokenParams { pattern: TiktokenPattern::V1, num_special_tokens: 10, special_tokens: None, vocab_size: None };
    for bytes in
        [&b""[..], b"\xff\xff\xff\xff", b"{}", b"[{}]", b"YQ== 0\nYg== 2\n", b"[UNK]\n", &whole[..whole.len() / 2 - 1]]
    {
        std::fs::write(&path, bytes).unwrap();
        assert!(HuggingFaceTokenizer::sentencepiece(&path).is_err());
        assert!(HuggingFaceTokenizer::wordpiece(&path, Case::Kept).is_err());
        assert!(HuggingFaceTokenizer::tiktoken(&path, &params).is_err());
    }
    // Any byte may be changed: an error or a tokenizer, and no panic.
    for at in (0..whole.len()).step_by(37) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bytes).unwrap();
        let _ = HuggingFaceTokenizer::sentencepiece(&path).map(|tokenizer| tokenizer.encode("The capital"));
    }
}
