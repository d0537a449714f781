//! The fast path against the library: ids and offsets of every kind of tokenizer that it takes, on
//! text of all kinds.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::{AddedToken, Tokenizer as Inner};

use super::byte_level::CL100K;
use super::*;

/// Pieces of text that patterns, normalizers and added tokens tell apart.
const PIECES: [&str; 73] = [
    "a",
    "B",
    "word",
    "Word",
    "the",
    " the",
    "'s",
    "'S",
    "'\u{17f}",
    "'re",
    "'LL",
    "'Ve",
    "'x",
    "'",
    "''",
    "I'm",
    " ",
    "  ",
    "   ",
    "\u{2581}",
    "\u{2581}\u{2581}",
    "\t",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r",
    "\r\n",
    "\r\n\r\n",
    "\u{85}",
    "\u{a0}",
    "\u{3000}",
    "\u{200b}",
    "\u{1c}",
    "\u{b}",
    "1",
    "12",
    "1234567",
    "\u{661}\u{662}",
    "\u{bd}",
    "\u{b2}",
    "!",
    "!?",
    "...",
    "/",
    "//\n",
    "{\"",
    "\"}",
    "\u{2013}",
    "\u{e9}",
    "e\u{301}",
    "\u{301}",
    "\u{301}\u{302}",
    "\u{1112}\u{1161}\u{11ab}",
    "\u{d55c}",
    "\u{1e9b}\u{323}",
    "\u{2126}",
    "\u{212b}",
    "\u{915}\u{93c}",
    "\u{4f60}\u{597d}",
    "\u{1f600}",
    "\u{1f468}\u{200d}\u{1f469}",
    "\u{fffd}",
    "\0",
    "\u{10ffff}",
    "<t>",
    "<x>",
    "<r>",
    "<",
    "x>",
    "<s>",
    "</s>",
    "<0x0A>",
    "\u{1c5}",
];

/// Tokenizers of bytes by pattern and normalizer, and whether the fast path takes their offsets.
fn byte_tokenizers() -> Vec<(String, HuggingFaceTokenizer)> {
    let text = PIECES.concat()
        + "The words of the text, and the others' words: they're 1234 or 56.\n\n  The end of the word\n";
    let params = BpeTrainParams { vocab_size: 400, min_frequency: 1, special_tokens: Vec::new() };
    let trained = train_byte_level_bpe(&params, (0..4).map(|_| text.clone())).expect("trainable");
    let tokenizer: Value = serde_json::from_str(trained.json()).expect("JSON");
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let words = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    // Tekken's, which needs a regular expression.
    const CASES: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let split = |expression: &str| {
        let split =
            json!({ "type": "Split", "pattern": { "Regex": expression }, "behavior": "Isolated", "invert": false });
        json!({ "type": "Sequence", "pretokenizers": [split, bytes] })
    };
    let mut made = Vec::new();
    let patterns = CL100K.iter().map(|(expression, _)| split(expression)).chain([split(CASES), words]);
    for (number, pattern) in patterns.enumerate() {
        for normalizer in [Value::Null, json!({ "type": "NFC" })] {
            let mut changed = tokenizer.clone();
            changed["pre_tokenizer"] = pattern.clone();
            changed["normalizer"] = normalizer.clone();
            changed["post_processor"] = bytes.clone();
            changed["model"]["ignore_merges"] = number.is_multiple_of(2).into();
            let name = format!("bytes {number} {normalizer}");
            let is_gpt2 = number == 4;
            if !(is_gpt2 && normalizer.is_object()) {
                made.extend(with_added_tokens(&name, &changed, is_gpt2, normalizer.is_null()));
            }
        }
    }
    made
}

/// Tokenizers of characters, with every way to put a blank before words.
fn blank_tokenizers() -> Vec<(String, HuggingFaceTokenizer)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/llama.model");
    let read = HuggingFaceTokenizer::sentencepiece(&file).expect("loadable");
    let tokenizer: Value = serde_json::from_str(read.json()).expect("JSON");
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" });
    let prepend = json!({ "type": "Prepend", "prepend": "\u{2581}" });
    let prepends = json!({ "type": "Sequence", "normalizers": [prepend, replace] });
    let split =
        json!({ "type": "Split", "pattern": { "String": " " }, "behavior": "MergedWithPrevious", "invert": false });
    let metaspace = |scheme: &str, split: bool| json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": split });
    let mut kinds = vec![(prepends.clone(), Value::Null), (replace.clone(), Value::Null), (replace, split)];
    kinds.push((prepends, metaspace("never", false)));
    for splits in [false, true] {
        kinds.extend(["never", "first", "always"].map(|scheme| (Value::Null, metaspace(scheme, splits))));
    }
    let mut made = Vec::new();
    for (number, (normalizer, pre_tokenizer)) in kinds.into_iter().enumerate() {
        let mut changed = tokenizer.clone();
        changed["normalizer"] = normalizer.clone();
        changed["pre_tokenizer"] = pre_tokenizer.clone();
        changed["model"]["byte_fallback"] = number.is_multiple_of(2).into();
        let name = format!("blanks {normalizer} {pre_tokenizer}");
        made.extend(with_added_tokens(&name, &changed, false, normalizer.is_null()));
    }
    made
}

/// A tokenizer with different kinds of added tokens, each time.
fn with_added_tokens(
    name: &str,
    tokenizer: &Value,
    is_gpt2: bool,
    may_normalize: bool,
) -> Vec<(String, HuggingFaceTokenizer)> {
    let kinds: [&[(&str, &str)]; 5] = [
        &[("<t>", ""), ("<x>", "")],
        &[("<t>", "normalized"), ("<x>", "")],
        &[("<t>", "rstrip"), ("<x>", "lstrip")],
        &[("<t>", "lstrip rstrip"), ("<x>", "")],
        &[("\n\n", ""), ("\u{2581}\u{2581}", ""), ("  ", ""), ("<x>", "")],
    ];
    let kinds = kinds.iter().enumerate().filter(|(kind, _)| (*kind != 1 || may_normalize) && (*kind < 2 || !is_gpt2));
    let made = kinds.map(|(kind, tokens)| {
        let mut changed = tokenizer.clone();
        let added = changed["added_tokens"].as_array().cloned().unwrap_or_default();
        let first = tokenizer["model"]["vocab"].as_object().map_or(0, |vocab| vocab.len());
        let mut added: Vec<Value> = added.into_iter().map(|mut token| { token["normalized"] = false.into(); token }).collect();
        for (at, (content, flags)) in tokens.iter().enumerate() {
            let is = |flag: &str| flags.contains(flag);
            added.push(json!({ "id": first + at, "content": content, "single_word": false, "lstrip": is("lstrip"), "rstrip": is("rstrip"),
                               "normalized": is("normalized"), "special": kind != 4 }));
        }
        changed["added_tokens"] = added.into();
        let inner = changed.to_string().parse().expect("a tokenizer");
        let made = HuggingFaceTokenizer::from_parts(inner, Vec::new()).expect("a tokenizer");
        (format!("{name} {kind}"), made)
    });
    made.collect()
}

static TOKENIZERS: LazyLock<Vec<(String, HuggingFaceTokenizer)>> = LazyLock::new(|| {
    let made: Vec<_> = byte_tokenizers().into_iter().chain(blank_tokenizers()).collect();
    for (name, tokenizer) in &made {
        assert_eq!(tokenizer.is_fast(), [true, true], "{name}");
    }
    made
});

/// Tokenizers that look like those of the fast path and that the library reads otherwise.
static UNUSUAL: LazyLock<Vec<(String, HuggingFaceTokenizer)>> = LazyLock::new(|| {
    let nfc = json!({ "type": "NFC" });
    let words = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let parsed = |tokenizer: &Value| -> Inner { tokenizer.to_string().parse().expect("a tokenizer") };
    let of_json =
        |tokenizer: &Value| HuggingFaceTokenizer::from_parts(parsed(tokenizer), Vec::new()).expect("a tokenizer");
    let mut made = Vec::new();
    for (name, tokenizer) in byte_tokenizers().into_iter().chain(blank_tokenizers()) {
        let json: Value = serde_json::from_str(tokenizer.json()).expect("JSON");
        if name.starts_with("bytes 4") {
            let mut trimmed = json.clone();
            (trimmed["normalizer"], trimmed["post_processor"]) = (nfc.clone(), words.clone());
            made.push((format!("{name}, NFC and trimmed"), of_json(&trimmed)));
        }
        if json["pre_tokenizer"]["prepend_scheme"] == "first" {
            let mut composed = json.clone();
            composed["normalizer"] = nfc.clone();
            made.push((format!("{name}, NFC"), of_json(&composed)));
        }
        if name.starts_with("blanks") {
            let mut whole = json.clone();
            whole["model"]["ignore_merges"] = true.into();
            let size = whole["model"]["vocab"].as_object().map_or(0, |vocab| vocab.len()) + 100;
            whole["model"]["vocab"]["\u{2581}\u{4f60}\u{597d}"] = size.into();
            made.push((format!("{name}, whole words"), of_json(&whole)));
        }
        if json["normalizer"].is_object() {
            let mut inner = parsed(&json);
            let twice =
                [AddedToken::from("<x>", true).normalized(true), AddedToken::from("<r>", true).normalized(true)];
            inner.add_special_tokens(&twice);
            inner.add_special_tokens(&[AddedToken::from("<r>", true).normalized(false)]);
            made.push((
                format!("{name}, twice"),
                HuggingFaceTokenizer::from_parts(inner, Vec::new()).expect("a tokenizer"),
            ));
        }
    }
    made
});

fn compare(text: &str) {
    for (name, tokenizer) in TOKENIZERS.iter().chain(&*UNUSUAL) {
        let expected = tokenizer.offsets_reference(text).expect("encodable");
        let mut found = Vec::new();
        tokenizer.encode_with_offsets(text, &mut |id, bytes| found.push((id, bytes))).expect("encodable");
        assert_eq!(found, expected, "{name}: {text:?}");
        let ids: Vec<i64> = expected.iter().map(|(id, _)| *id).collect();
        assert_eq!(tokenizer.encode(text).expect("encodable"), ids, "{name}: {text:?}");
    }
}

#[test]
fn pieces_of_all_kinds_give_the_librarys_ids_and_offsets() {
    compare("");
    for first in PIECES {
        compare(first);
        compare(&PIECES.iter().rev().map(|second| format!("{second}{first}")).collect::<String>());
    }
    for run in [" ", "\n", "\r\n", "\t", "\u{3000}", "a", "1", "!", "\u{301}", "\u{4f60}", "\u{2581}", " \n"] {
        let long = run.repeat(100);
        for text in [long.clone(), format!("a{long}"), format!("{long}a"), format!("x {long}\n{long} y")] {
            compare(&text);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn random_text_gives_the_librarys_ids_and_offsets(
        pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..60),
        others in proptest::collection::vec(any::<char>(), 0..20),
    ) {
        let mut text = pieces.concat();
        for (at, c) in others.into_iter().enumerate() {
            text.insert(text.floor_char_boundary(at * 7 % (text.len() + 1)), c);
        }
        compare(&text);
    }
}

/// A tokenizer of characters with merges of its own tokens, two by two; if `is_odd` is true, of
/// bytes and of unknown characters too, and without tokens for all bytes.
fn merging_tokenizer(pairs: &[(usize, usize)], kind: usize, is_odd: bool) -> HuggingFaceTokenizer {
    let mut tokens: Vec<String> =
        ["\u{2581}", "a", "b", ".", "\u{201c}", "\u{e9}"].iter().map(|&token| token.to_owned()).collect();
    if is_odd {
        tokens.extend(["<unk>", "<0xE4>", "<0xBD>", "<0xA0>", "<0x0A>"].map(str::to_owned));
    }
    let mut merges = Vec::new();
    for (left, right) in pairs {
        let pair = [left, right].map(|at| tokens[at % tokens.len()].clone());
        let merged = pair.concat();
        // With such tokens a text is no list of words.
        let crosses = merged.trim_start_matches('\u{2581}').contains('\u{2581}');
        if !tokens.contains(&merged) && !crosses && merged.len() < 24 {
            tokens.push(merged);
            merges.push(json!(pair));
        }
    }
    let named = if is_odd { 0 } else { 256 };
    tokens.extend(["<unk>".to_owned()].into_iter().chain((0..named).map(|byte: u32| format!("<{byte:#04X}>"))));
    let mut vocab: Vec<String> = Vec::new();
    tokens.into_iter().for_each(|token| {
        if !vocab.contains(&token) {
            vocab.push(token)
        }
    });
    let vocab: Value = vocab.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" });
    let prepend = json!({ "type": "Prepend", "prepend": "\u{2581}" });
    let metaspace = json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": true });
    let (normalizer, pre_tokenizer) = match kind {
        0 => (replace, Value::Null),
        1 => (json!({ "type": "Sequence", "normalizers": [prepend, replace] }), Value::Null),
        _ => (Value::Null, metaspace),
    };
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
        "model": { "type": "BPE", "unk_token": "<unk>", "fuse_unk": kind != 1, "byte_fallback": true, "vocab": vocab, "merges": merges },
    });
    HuggingFaceTokenizer::from_parts(tokenizer.to_string().parse().expect("a tokenizer"), Vec::new())
        .expect("a tokenizer")
}

proptest! {
    #[test]
    fn words_between_which_no_token_reaches_are_merged_as_in_the_whole_text(
        pairs in proptest::collection::vec((0..40usize, 0..40usize), 0..30),
        kind in 0..3usize,
        is_odd in any::<bool>(),
        texts in proptest::collection::vec("[ab.\u{e9}\u{201c}\u{2581}\u{4f60}\n 1]{0,40}", 8),
    ) {
        let tokenizer = merging_tokenizer(&pairs, kind, is_odd);
        prop_assert!(tokenizer.is_fast()[0]);
        for text in texts {
            let expected = tokenizer.offsets_reference(&text).expect("encodable");
            let mut found = Vec::new();
            tokenizer.encode_with_offsets(&text, &mut |id, bytes| found.push((id, bytes))).expect("encodable");
            prop_assert_eq!(&found, &expected, "{:?}", text);
            let ids: Vec<i64> = expected.iter().map(|(id, _)| *id).collect();
            prop_assert_eq!(tokenizer.encode(&text).expect("encodable"), ids, "{:?}", text);
        }
    }
}

#[test]
fn words_end_where_no_token_goes_on() {
    // Tokens: ab, a blank before a, and "." behind itself.
    let tokenizer = merging_tokenizer(&[(1, 2), (0, 1), (3, 3)], 0, false);
    let fast = super::fast::FastBpe::for_tokenizer(&tokenizer.json().parse().expect("a tokenizer")).expect("fast");
    assert_eq!(
        fast.words("ab.ab..b ab\u{2581}ab  b"),
        ["ab", ".", "ab", "..", "b", " ab", "\u{2581}ab", " ", " ", "b"]
    );
}

/// Every character before and after others, by the pattern and by its regular expression.
#[test]
fn patterns_are_those_of_the_regular_expressions() {
    let text: String = (0..0x11_0000u32)
        .step_by(5)
        .filter_map(char::from_u32)
        .flat_map(|c| ['a', c, 'b', '1', c, c, ' ', c, '!', c, '\n', c, ' ', ' ', '\'', c])
        .collect();
    for (expression, pattern) in CL100K {
        let split = tokenizers::pre_tokenizers::split::Split::new(
            tokenizers::pre_tokenizers::split::SplitPattern::Regex(expression.to_owned()),
            tokenizers::SplitDelimiterBehavior::Isolated,
            false,
        );
        let split = split.expect("a pattern");
        let mut at = 0;
        let words = byte_level::words(&text, pattern).map(|word| {
            at += word.len();
            (at - word.len(), at)
        });
        assert!(words.eq(split.regex.find_iter(&text)), "{expression}");
    }
}
