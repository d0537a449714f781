//! SentencePiece models (`tokenizer.model`) as tokenizers of the `tokenizers` library, so that all
//! else works with them as with a `tokenizer.json`.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::TokenizerError;
use crate::untrusted_io;

/// Character that SentencePiece writes for a blank.
const BLANK: char = '\u{2581}';

/// Types of pieces.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;
const BYTE: u64 = 6;

/// Model as `tokenizer.json` and `tokenizer_config.json`. Fails on a file that cannot be read, or
/// is not a model; a model that puts blanks after words.
pub(super) fn load(path: &Path) -> Result<(Value, Value), TokenizerError> {
    let bytes = untrusted_io::read(path, untrusted_io::TABLE_BYTES).map_err(TokenizerError::io("read", path))?;
    let malformed = |problem: String| TokenizerError::malformed(path, format!("not a SentencePiece model: {problem}"));
    let model = Model::from_bytes(&bytes).ok_or_else(|| malformed("its fields cannot be read".to_owned()))?;
    model.convert().map_err(malformed)
}

/// The fields of a protocol buffer: number and content.
struct Fields<'b>(&'b [u8]);

enum Field<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

impl Fields<'_> {
    fn varint(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl<'b> Iterator for Fields<'b> {
    /// `None` if the bytes are not valid fields.
    type Item = Option<(u64, Field<'b>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let mut read = || {
            let tag = Self::varint(&mut self.0)?;
            let length = match tag & 7 {
                0 => return Some((tag >> 3, Field::Number(Self::varint(&mut self.0)?))),
                1 => 8,
                2 => usize::try_from(Self::varint(&mut self.0)?).ok()?,
                5 => 4,
                _ => return None,
            };
            let (content, rest) = self.0.split_at_checked(length)?;
            self.0 = rest;
            Some((tag >> 3, Field::Bytes(content)))
        };
        let field = read();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

struct Piece {
    text: String,
    score: f64,
    kind: u64,
}

/// Algorithm that chooses pieces.
#[derive(Clone, Copy, PartialEq, Default)]
enum Algorithm {
    #[default]
    Unigram,
    Bpe,
    Word,
    Char,
}

/// The parts of a model that decide on ids.
struct Model {
    pieces: Vec<Piece>,
    algorithm: Algorithm,
    byte_fallback: bool,
    blank_is_suffix: bool,
    bos: i64,
    eos: i64,
    pad: i64,
    charsmap: Vec<u8>,
    dummy_prefix: bool,
    remove_extra_blanks: bool,
}

impl Model {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut model = Self {
            pieces: Vec::new(),
            algorithm: Algorithm::Unigram,
            byte_fallback: false,
            blank_is_suffix: false,
            bos: 1,
            eos: 2,
            pad: -1,
            charsmap: Vec::new(),
            dummy_prefix: true,
            remove_extra_blanks: true,
        };
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(piece)) => model.pieces.push(Piece::from_bytes(piece)?),
                (2, Field::Bytes(trainer)) => model.read_trainer(trainer)?,
                (3, Field::Bytes(normalizer)) => model.read_normalizer(normalizer)?,
                // Test samples, a normalizer for training.
                (_, Field::Bytes(_) | Field::Number(_)) => {}
            }
        }
        (!model.pieces.is_empty()).then_some(model)
    }

    fn read_trainer(&mut self, bytes: &[u8]) -> Option<()> {
        for field in Fields(bytes) {
            match field? {
                (3, Field::Number(kind)) => {
                    self.algorithm = match kind {
                        1 => Algorithm::Unigram,
                        2 => Algorithm::Bpe,
                        3 => Algorithm::Word,
                        4 => Algorithm::Char,
                        _ => return None,
                    }
                }
                (24, Field::Number(flag)) => self.blank_is_suffix = flag != 0,
                (35, Field::Number(flag)) => self.byte_fallback = flag != 0,
                (41, Field::Number(id)) => self.bos = i64::from(id as i32),
                (42, Field::Number(id)) => self.eos = i64::from(id as i32),
                (43, Field::Number(id)) => self.pad = i64::from(id as i32),
                // How it was trained.
                (_, Field::Bytes(_) | Field::Number(_)) => {}
            }
        }
        Some(())
    }

    fn read_normalizer(&mut self, bytes: &[u8]) -> Option<()> {
        for field in Fields(bytes) {
            match field? {
                (2, Field::Bytes(charsmap)) => self.charsmap = charsmap.to_vec(),
                (3, Field::Number(flag)) => self.dummy_prefix = flag != 0,
                (4, Field::Number(flag)) => self.remove_extra_blanks = flag != 0,
                // Name, and rules that the table includes, too.
                (_, Field::Bytes(_) | Field::Number(_)) => {}
            }
        }
        Some(())
    }

    /// A `tokenizer.json` and a `tokenizer_config.json`.
    fn convert(&self) -> Result<(Value, Value), String> {
        if self.blank_is_suffix {
            return Err("it puts blanks behind words (treat_whitespace_as_suffix), which is not supported".to_owned());
        }
        let unknown = self.pieces.iter().position(|piece| piece.kind == UNKNOWN);
        let unknown = unknown.ok_or("it has no piece for what is unknown")?;
        let added =
            self.pieces.iter().enumerate().filter(|(_, piece)| [UNKNOWN, CONTROL, USER_DEFINED].contains(&piece.kind));
        // A user-defined piece is found in normalized text, as by SentencePiece. Where text begins
        // with a blank that was put there, such a piece would begin with one too, and is found
        // before.
        let added: Vec<Value> = added
            .map(|(id, piece)| {
                json!({ "id": id, "content": piece.text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": piece.kind == USER_DEFINED && !self.dummy_prefix,
                        "special": piece.kind != USER_DEFINED })
            })
            .collect();
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": self.normalizer(),
            "pre_tokenizer": self.pre_tokenizer(),
            "post_processor": null,
            "decoder": self.decoder(),
            "model": self.model(unknown),
        });
        let text =
            |id: i64| usize::try_from(id).ok().and_then(|id| self.pieces.get(id)).map(|piece| piece.text.clone());
        let names = json!({
            "bos_token": text(self.bos), "eos_token": text(self.eos), "pad_token": text(self.pad), "unk_token": self.pieces[unknown].text,
        });
        Ok((tokenizer, names))
    }

    fn normalizer(&self) -> Value {
        let mut steps = Vec::new();
        if !self.charsmap.is_empty() {
            steps.push(json!({ "type": "Precompiled", "precompiled_charsmap": STANDARD.encode(&self.charsmap) }));
        }
        if self.remove_extra_blanks {
            steps.push(json!({ "type": "Replace", "pattern": { "Regex": "^ +| +$" }, "content": "" }));
            steps.push(json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " }));
        }
        if self.dummy_prefix {
            steps.push(json!({ "type": "Prepend", "prepend": BLANK.to_string() }));
        }
        steps.push(json!({ "type": "Replace", "pattern": { "String": " " }, "content": BLANK.to_string() }));
        json!({ "type": "Sequence", "normalizers": steps })
    }

    /// Words one by one, where no piece reaches beyond a word: that is the same, and faster.
    fn pre_tokenizer(&self) -> Value {
        let reaches = |piece: &Piece| {
            piece.text.chars().skip(1).any(|c| c == BLANK)
                || piece.text.chars().all(|c| c == BLANK) && piece.text.chars().count() > 1
        };
        match self.algorithm == Algorithm::Word || !self.pieces.iter().any(reaches) {
            true => {
                json!({ "type": "Metaspace", "replacement": BLANK.to_string(), "prepend_scheme": "never", "split": true })
            }
            false => Value::Null,
        }
    }

    fn decoder(&self) -> Value {
        let blank = BLANK.to_string();
        let mut steps = vec![
            json!({ "type": "Replace", "pattern": { "String": blank }, "content": " " }),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
        ];
        if self.dummy_prefix {
            steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        json!({ "type": "Sequence", "decoders": steps })
    }

    fn model(&self, unknown: usize) -> Value {
        let vocab: serde_json::Map<String, Value> =
            self.pieces.iter().enumerate().map(|(id, piece)| (piece.text.clone(), id.into())).collect();
        match self.algorithm {
            Algorithm::Unigram => {
                // A piece that is never used costs more than any way around it.
                const NEVER: f64 = -1e9;
                let lowest = self.pieces.iter().map(|piece| piece.score).fold(0.0, f64::min);
                let highest = self.pieces.iter().map(|piece| piece.score).fold(f64::NEG_INFINITY, f64::max);
                let pieces = self.pieces.iter().map(|piece| {
                    let score = match piece.kind {
                        UNUSED => NEVER,
                        USER_DEFINED => highest * piece.text.len() as f64 - 0.1,
                        BYTE => lowest - 10.0,
                        _ => piece.score,
                    };
                    json!([piece.text, score])
                });
                let pieces: Vec<Value> = pieces.collect();
                json!({ "type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": self.byte_fallback })
            }
            Algorithm::Bpe | Algorithm::Char => json!({
                "type": "BPE", "dropout": null, "unk_token": self.pieces[unknown].text, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": self.byte_fallback, "ignore_merges": false, "vocab": vocab,
                "merges": if self.algorithm == Algorithm::Bpe { self.merges() } else { Vec::new() },
            }),
            Algorithm::Word => json!({ "type": "WordLevel", "vocab": vocab, "unk_token": self.pieces[unknown].text }),
        }
    }

    /// Every two pieces that make a third, those of the highest score first.
    fn merges(&self) -> Vec<Value> {
        let mergeable = |piece: &&Piece| ![UNKNOWN, CONTROL, BYTE, UNUSED].contains(&piece.kind);
        let known: std::collections::HashMap<&str, usize> = self
            .pieces
            .iter()
            .enumerate()
            .filter(|(_, piece)| mergeable(piece))
            .map(|(id, piece)| (piece.text.as_str(), id))
            .collect();
        let mut merges = Vec::new();
        for (id, piece) in self.pieces.iter().enumerate().filter(|(_, piece)| mergeable(piece)) {
            for (at, _) in piece.text.char_indices().skip(1) {
                let (left, right) = piece.text.split_at(at);
                if let (Some(first), Some(second)) = (known.get(left), known.get(right)) {
                    merges.push((piece.score, id, *first, *second, left, right));
                }
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
        merges.into_iter().map(|(.., left, right)| json!([left, right])).collect()
    }
}

impl Piece {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut piece = Self { text: String::new(), score: 0.0, kind: 1 };
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(text)) => piece.text = String::from_utf8(text.to_vec()).ok()?,
                (2, Field::Bytes(score)) => piece.score = f64::from(f32::from_le_bytes(score.try_into().ok()?)),
                (3, Field::Number(kind)) => piece.kind = kind,
                (_, Field::Bytes(_) | Field::Number(_)) => {}
            }
        }
        Some(piece)
    }
}
