//! tiktoken's ranks of byte sequences as tokenizers of the `tokenizers` library.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{TokenizerError, byte_level};
use crate::untrusted_io;

/// Pattern that splits text into words, by upstream's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TiktokenPattern {
    /// Letters of any case together.
    V1,
    /// A capital letter begins a word.
    V2,
}

impl TiktokenPattern {
    fn expression(self) -> &'static str {
        match self {
            Self::V1 => r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            Self::V2 => {
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            }
        }
    }
}

/// The parameters of a tokenizer of ranks.
#[derive(Debug, Clone)]
pub struct TiktokenParams<'a> {
    /// Pattern that splits text into words.
    pub pattern: TiktokenPattern,
    /// Ids that come before the ranks.
    pub num_special_tokens: usize,
    /// Names of the first of those; `None` for upstream's.
    pub special_tokens: Option<&'a [String]>,
    /// Number of ids, special ones included; ranks beyond it are left out. `None` takes all.
    pub vocab_size: Option<usize>,
}

/// Upstream's names.
const SPECIAL: [&str; 7] = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"];

/// File of ranks as `tokenizer.json` and `tokenizer_config.json`: JSON objects with `rank` and
/// `token_bytes` in base64, or lines of base64 and rank.
///
/// # Errors
/// A file that cannot be read, or has no ranks; more names than special ids.
pub(super) fn load(path: &Path, params: &TiktokenParams) -> Result<(Value, Value), TokenizerError> {
    let text = untrusted_io::read_text(path, untrusted_io::TABLE_BYTES).map_err(TokenizerError::io("read", path))?;
    let malformed =
        |problem: String| TokenizerError::malformed(path, format!("not a file of tiktoken ranks: {problem}"));
    let mut ranks = if text.trim_start().starts_with('[') { ranks_of_json(&text) } else { ranks_of_lines(&text) }
        .map_err(malformed)?;
    let special = params.num_special_tokens;
    if let Some(size) = params.vocab_size {
        let room = size
            .checked_sub(special)
            .ok_or_else(|| malformed(format!("{size} ids have no room for {special} special ones")))?;
        ranks.retain(|(_, rank)| *rank < room as u64);
    }
    if ranks.is_empty() {
        return Err(malformed("it has none".to_owned()));
    }
    ranks.sort_by_key(|(_, rank)| *rank);
    if let Some(at) = ranks.iter().enumerate().position(|(at, (_, rank))| at as u64 != *rank) {
        return Err(malformed(format!("rank {at} is missing, or there twice")));
    }
    let names = match params.special_tokens {
        Some(names) => names.to_vec(),
        None => SPECIAL.map(str::to_owned).to_vec(),
    };
    if names.len() > special {
        return Err(malformed(format!("{} special tokens have names, and there is room for {special}", names.len())));
    }
    Ok(convert(&ranks, &names, params))
}

fn ranks_of_json(text: &str) -> Result<Vec<(Vec<u8>, u64)>, String> {
    let list: Vec<Value> = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    let rank = |entry: &Value| Some((STANDARD.decode(entry["token_bytes"].as_str()?).ok()?, entry["rank"].as_u64()?));
    list.iter()
        .enumerate()
        .map(|(at, entry)| rank(entry).ok_or_else(|| format!("entry {at} has no rank and token_bytes")))
        .collect()
}

fn ranks_of_lines(text: &str) -> Result<Vec<(Vec<u8>, u64)>, String> {
    let rank = |line: &str| {
        let (bytes, rank) = line.split_once(' ')?;
        Some((STANDARD.decode(bytes).ok()?, rank.trim().parse().ok()?))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(at, line)| rank(line).ok_or_else(|| format!("line {} is not base64 and a rank", at + 1))).collect()
}

/// A `tokenizer.json` and a `tokenizer_config.json`.
fn convert(ranks: &[(Vec<u8>, u64)], names: &[String], params: &TiktokenParams) -> (Value, Value) {
    let special = params.num_special_tokens;
    let name = |id: usize| names.get(id).cloned().unwrap_or_else(|| format!("<SPECIAL_{id}>"));
    let text = |bytes: &[u8]| byte_level::bytes_to_chars(bytes);
    let mut vocab: Map<String, Value> = (0..special).map(|id| (name(id), id.into())).collect();
    vocab.extend(ranks.iter().map(|(bytes, rank)| (text(bytes), (*rank + special as u64).into())));
    let known: HashMap<&[u8], u64> = ranks.iter().map(|(bytes, rank)| (bytes.as_slice(), *rank)).collect();
    let mut merges = Vec::new();
    for (bytes, _) in ranks {
        let mut pairs: Vec<_> = (1..bytes.len())
            .filter_map(|at| {
                let (left, right) = bytes.split_at(at);
                Some((*known.get(left)?, *known.get(right)?, left, right))
            })
            .collect();
        pairs.sort_by_key(|(left, right, ..)| (*left, *right));
        merges.extend(pairs.into_iter().map(|(.., left, right)| json!([text(left), text(right)])));
    }
    let added: Vec<Value> = (0..special)
        .map(|id| {
            json!({ "id": id, "content": name(id), "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true })
        })
        .collect();
    let split = json!({ "type": "Split", "pattern": { "Regex": params.pattern.expression() }, "behavior": "Isolated", "invert": false });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [split, bytes] },
        "post_processor": null,
        "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": true, "vocab": vocab, "merges": merges,
        },
    });
    let has = |token: &str| (0..special).map(name).find(|name| name == token);
    let config = json!({ "bos_token": has("<s>"), "eos_token": has("</s>"), "pad_token": has("<pad>"), "unk_token": has("<unk>") });
    (tokenizer, config)
}
