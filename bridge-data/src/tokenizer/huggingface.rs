//! Hugging Face tokenizers: `tokenizer.json`, or GPT-2's `vocab.json` and `merges.txt`. Training
//! belongs to `train`.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer as Inner};
use twox_hash::XxHash3_64;

use super::added::{self, unknown_token};
use super::fast::FastBpe;
use super::special::{self, Named, SpecialNames};
use super::train::END_OF_TEXT;
use super::{Case, TiktokenParams, Tokenizer, TokenizerError, byte_level, sentencepiece, tiktoken, wordpiece};
use crate::manifest::{self, Depth};
use crate::untrusted_io;

const TOKENIZER_FILE: &str = "tokenizer.json";
const CONFIG_FILE: &str = "tokenizer_config.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";
const VOCAB_FILE: &str = "vocab.json";
const MERGES_FILE: &str = "merges.txt";
const SENTENCEPIECE_FILES: [&str; 2] = ["tokenizer.model", "spiece.model"];

/// Encoding of bytes in the strings of the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alphabet {
    /// GPT-2's printable bytes.
    ByteLevel,
    /// SentencePiece's: `▁` is a space, `<0x0A>` a byte.
    Metaspace,
    /// The strings are the text.
    Plain,
}

/// A tokenizer of the `tokenizers` library.
pub struct HuggingFaceTokenizer {
    inner: Inner,
    fast: Option<FastBpe>,
    alphabet: Alphabet,
    vocab_size: usize,
    eod: Option<i64>,
    bos: Option<i64>,
    pad: Option<i64>,
    prefix: Vec<i64>,
    content: String,
    content_hash: u64,
    companions: Vec<(&'static str, String)>,
}

impl std::fmt::Debug for HuggingFaceTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HuggingFaceTokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("eod", &self.eod)
            .finish_non_exhaustive()
    }
}

impl HuggingFaceTokenizer {
    /// Loads a `tokenizer.json`, a folder with one, a folder with `vocab.json` and `merges.txt`, or
    /// a folder with a SentencePiece `tokenizer.model`. The files beside it name the special
    /// tokens; without such files, `<|endoftext|>` ends documents if it is a special token.
    ///
    /// # Errors
    /// Missing or malformed files, special tokens that the vocabulary does not have.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        let (file, folder) = if path.is_dir() {
            (path.join(TOKENIZER_FILE), path.to_owned())
        } else {
            (path.to_owned(), path.parent().map_or_else(PathBuf::new, Path::to_owned))
        };
        if file.is_file() {
            manifest::check(&file.with_extension(""), Depth::Sampled)
                .map_err(|error| TokenizerError::malformed(&file, error))?;
            let content =
                untrusted_io::read_text(&file, untrusted_io::TABLE_BYTES).map_err(TokenizerError::io("read", &file))?;
            let parse = || content.parse::<Inner>().map_err(|error| error.to_string());
            let inner = untrusted_io::contained(parse).and_then(|parsed| parsed);
            let inner = inner.map_err(|error| TokenizerError::malformed(&file, format!("not a tokenizer: {error}")))?;
            check_ids(&inner).map_err(|problem| TokenizerError::malformed(&file, problem))?;
            return Self::assemble(inner, &folder);
        }
        let (vocab, merges) = (path.join(VOCAB_FILE), path.join(MERGES_FILE));
        if vocab.is_file() && merges.is_file() {
            return Self::from_vocab_and_merges(&vocab, &merges);
        }
        let models = SENTENCEPIECE_FILES.map(|name| path.join(name));
        if let Some(model) = models.iter().find(|model| model.is_file()) {
            return Self::from_sentencepiece_folder(model, path);
        }
        Err(TokenizerError::NotFound(path.to_owned()))
    }

    /// Loads GPT-2's two vocabulary files. The files beside the vocabulary name the special tokens.
    ///
    /// # Errors
    /// Missing or malformed files.
    pub fn from_vocab_and_merges(vocab: &Path, merges: &Path) -> Result<Self, TokenizerError> {
        for path in [vocab, merges] {
            let (_, size) = untrusted_io::open(path).map_err(TokenizerError::io("open", path))?;
            if size > untrusted_io::TABLE_BYTES {
                return Err(TokenizerError::malformed(path, format!("it has {size} bytes: no vocabulary has so many")));
            }
        }
        let build = || {
            let builder = BPE::from_file(&vocab.to_string_lossy(), &merges.to_string_lossy());
            builder.build().map_err(|error| error.to_string())
        };
        let model = untrusted_io::contained(build).and_then(|built| built).map_err(|error| {
            TokenizerError::malformed(vocab, format!("unusable with {}: {error}", merges.display()))
        })?;
        let mut inner = byte_level_tokenizer(model);
        check_ids(&inner).map_err(|problem| TokenizerError::malformed(vocab, problem))?;
        if inner.token_to_id(END_OF_TEXT).is_some() {
            inner.add_special_tokens(&[AddedToken::from(END_OF_TEXT, true)]);
        }
        Self::assemble(inner, vocab.parent().unwrap_or(Path::new("")))
    }

    /// Loads a SentencePiece model (`tokenizer.model`).
    ///
    /// # Errors
    /// A file that cannot be read, or is not a model; a model that puts blanks after words.
    pub fn sentencepiece(path: &Path) -> Result<Self, TokenizerError> {
        Self::from_json(path, &sentencepiece::load(path)?)
    }

    /// True if a folder has files that [`Self::load`] reads.
    pub fn is_in(folder: &Path) -> bool {
        let mut names = [TOKENIZER_FILE, VOCAB_FILE].into_iter().chain(SENTENCEPIECE_FILES);
        names.any(|name| folder.join(name).is_file())
    }

    /// A SentencePiece model with the files beside it. The model names the special tokens that
    /// these files do not name. By default texts begin with the beginning-of-sequence token, as in
    /// the classes of transformers for such models.
    fn from_sentencepiece_folder(path: &Path, folder: &Path) -> Result<Self, TokenizerError> {
        let (tokenizer, names) = sentencepiece::load(path)?;
        let parse = || tokenizer.to_string().parse::<Inner>().map_err(|error| error.to_string());
        let inner = untrusted_io::contained(parse).and_then(|parsed| parsed);
        let inner = inner.map_err(|error| TokenizerError::malformed(path, error))?;
        check_ids(&inner).map_err(|problem| TokenizerError::malformed(path, problem))?;
        let mut companions = special::read_companions(folder)?;
        let written = companions.iter().find(|(name, _)| *name == CONFIG_FILE).map_or("{}", |(_, text)| text.as_str());
        let mut config: Map<String, Value> = serde_json::from_str(written).map_err(|error| {
            TokenizerError::malformed(&folder.join(CONFIG_FILE), format!("not a JSON object: {error}"))
        })?;
        let known = special::names(folder, &companions)?;
        for (name, is_known) in [("bos_token", &known.bos), ("eos_token", &known.eos), ("pad_token", &known.pad)]
            .map(|(name, known)| (name, known.is_some()))
        {
            // Null in the configuration means no token.
            if !is_known && !names[name].is_null() {
                config.entry(name).or_insert_with(|| names[name].clone());
            }
        }
        if known.bos.is_some() || config.get("bos_token").is_some_and(|token| !token.is_null()) {
            config.entry("add_bos_token").or_insert(true.into());
        }
        replace_companion(&mut companions, CONFIG_FILE, Value::Object(config).to_string());
        Self::assembled(inner, folder, companions)
    }

    /// Loads tiktoken's ranks: JSON objects with `rank` and `token_bytes`, or lines of base64 and
    /// rank.
    ///
    /// # Errors
    /// A file that cannot be read, or has no ranks; more names than special ids.
    pub fn tiktoken(path: &Path, params: &TiktokenParams) -> Result<Self, TokenizerError> {
        Self::from_json(path, &tiktoken::load(path, params)?)
    }

    /// Loads BERT's vocabulary, one token a line.
    ///
    /// # Errors
    /// A file that cannot be read, or lacks one of BERT's tokens.
    pub fn wordpiece(path: &Path, case: Case) -> Result<Self, TokenizerError> {
        Self::from_json(path, &wordpiece::load(path, case)?)
    }

    /// A tokenizer that was made of another program's file `path`, with the names of its special
    /// tokens.
    fn from_json(path: &Path, (tokenizer, names): &(Value, Value)) -> Result<Self, TokenizerError> {
        let parse = || tokenizer.to_string().parse::<Inner>().map_err(|error| error.to_string());
        let inner = untrusted_io::contained(parse).and_then(|parsed| parsed);
        let inner = inner.map_err(|error| TokenizerError::malformed(path, error))?;
        check_ids(&inner).map_err(|problem| TokenizerError::malformed(path, problem))?;
        Self::from_parts(inner, vec![(CONFIG_FILE, names.to_string())])
    }

    /// Changes `tokenizer_config.json`, as keyword arguments of `transformers` do. Named tokens
    /// that the vocabulary lacks are added.
    ///
    /// # Errors
    /// A configuration that is not a JSON object, or names an invalid token.
    pub fn with_config(self, changes: &Map<String, Value>) -> Result<Self, TokenizerError> {
        let text = self.companion(CONFIG_FILE).unwrap_or("{}");
        let malformed = || TokenizerError::malformed(Path::new(CONFIG_FILE), "expected a JSON object");
        let mut config: Map<String, Value> = serde_json::from_str(text).map_err(|_| malformed())?;
        config.extend(changes.clone());
        let named = changes.iter().filter(|(key, _)| key.ends_with("_token")).filter_map(|(_, value)| value.as_str());
        let tokens: Vec<AddedToken> = named.map(|token| AddedToken::from(token, true)).collect();
        let (mut inner, eod) = (self.inner, self.eod);
        inner.add_special_tokens(&tokens);
        let mut companions = self.companions;
        replace_companion(&mut companions, CONFIG_FILE, Value::Object(config).to_string());
        let changed = Self::from_parts(inner, companions)?;
        Ok(Self { eod: changed.eod.or(eod), ..changed })
    }

    /// The same tokenizer, which writes conversations by `template`.
    ///
    /// # Errors
    /// The tokenizer cannot be written out.
    pub fn with_chat_template(&self, template: String) -> Result<Self, TokenizerError> {
        let mut companions = self.companions.clone();
        // A template for conversations with tools belongs to the one that is replaced.
        companions.retain(|(name, _)| *name != special::TOOL_USE_FILE);
        replace_companion(&mut companions, TEMPLATE_FILE, template);
        Ok(Self { eod: self.eod, bos: self.bos, pad: self.pad, ..Self::from_parts(self.inner.clone(), companions)? })
    }

    fn assemble(inner: Inner, folder: &Path) -> Result<Self, TokenizerError> {
        Self::assembled(inner, folder, special::read_companions(folder)?)
    }

    fn assembled(
        mut inner: Inner,
        folder: &Path,
        companions: Vec<(&'static str, String)>,
    ) -> Result<Self, TokenizerError> {
        let names = special::names(folder, &companions)?;
        let registered = added::register(&mut inner, folder, &companions).and_then(|()| {
            check_ids(&inner).map_err(|problem| TokenizerError::malformed(folder, problem))?;
            Self::with_names(inner, companions, &names)
        });
        registered.map_err(|error| match error {
            TokenizerError::UnknownToken { token, hint, .. } => {
                let place = format!("{}: a file beside the tokenizer names a special token: ", folder.display());
                TokenizerError::UnknownToken { place, token, hint }
            }
            other => other,
        })
    }

    /// A tokenizer built in memory, with its companion files.
    pub(crate) fn from_parts(inner: Inner, companions: Vec<(&'static str, String)>) -> Result<Self, TokenizerError> {
        let names = special::names(Path::new(""), &companions)?;
        Self::with_names(inner, companions, &names)
    }

    fn with_names(
        mut inner: Inner,
        companions: Vec<(&'static str, String)>,
        names: &SpecialNames,
    ) -> Result<Self, TokenizerError> {
        let largest = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        let resolve = |name: &Option<Named>| match name {
            None => Ok(None),
            Some(Named::Id(id)) => Ok(Some(*id)),
            Some(Named::Token(token)) => match inner.token_to_id(token) {
                Some(id) => Ok(Some(i64::from(id))),
                None => Err(unknown_token(&inner, token)),
            },
        };
        let is_special = |id: &u32| inner.get_added_tokens_decoder().get(id).is_some_and(|token| token.special);
        let fallback = inner.token_to_id(END_OF_TEXT).filter(is_special).map(i64::from);
        let (eod, bos, pad) = (resolve(&names.eos)?.or(fallback), resolve(&names.bos)?, resolve(&names.pad)?);
        let content = inner.to_string(true).map_err(|error| TokenizerError::Encode(error.to_string()))?;
        // A model's settings for inference must not truncate or pad training text.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| TokenizerError::Encode(error.to_string()))?;
        let prefix = special::prefix(&inner, &companions, bos);
        Ok(Self {
            fast: FastBpe::for_tokenizer(&inner),
            alphabet: alphabet_of(&content),
            vocab_size: largest,
            eod,
            bos,
            pad,
            prefix,
            content_hash: XxHash3_64::oneshot(content.as_bytes()),
            content,
            companions,
            inner,
        })
    }

    /// Adds special tokens that the vocabulary lacks, with new ids after it.
    ///
    /// # Errors
    /// The extended tokenizer cannot be written out.
    pub fn with_special_tokens(self, tokens: &[String]) -> Result<Self, TokenizerError> {
        let (eod, bos, pad) = (self.eod, self.bos, self.pad);
        let mut inner = self.inner;
        let tokens: Vec<AddedToken> = tokens.iter().map(|token| AddedToken::from(token.as_str(), true)).collect();
        inner.add_special_tokens(&tokens);
        let extended = Self::with_names(inner, self.companions, &SpecialNames::default())?;
        Ok(Self { eod: eod.or(extended.eod), bos, pad, ..extended })
    }

    /// The tokenizer as the text of a `tokenizer.json`.
    pub fn json(&self) -> &str {
        &self.content
    }

    /// The tokens by id; `None` for ids that none has.
    pub(crate) fn tokens(&self) -> Vec<Option<String>> {
        let mut tokens = vec![None; self.vocab_size];
        for (token, id) in self.inner.get_vocab(true) {
            tokens[id as usize] = Some(token);
        }
        tokens
    }

    fn known(&self, id: i64) -> Result<u32, TokenizerError> {
        u32::try_from(id)
            .ok()
            .filter(|&id| (id as usize) < self.vocab_size)
            .ok_or(TokenizerError::UnknownId { id, vocab_size: self.vocab_size })
    }

    /// The library's encoding, with which the fast one must agree.
    pub(crate) fn encode_reference(&self, text: &str) -> Result<Vec<i64>, TokenizerError> {
        let mut ids = Vec::new();
        for piece in byte_level::bounded(text) {
            let encode =
                || self.inner.encode_fast(piece, false).map_err(|error| TokenizerError::Encode(error.to_string()));
            let encoding = untrusted_io::contained(encode).map_err(TokenizerError::Panicked)??;
            ids.extend(encoding.get_ids().iter().map(|&id| i64::from(id)));
        }
        Ok(ids)
    }

    /// True if ids, and offsets too, come from the fast path.
    #[cfg(test)]
    pub(crate) fn is_fast(&self) -> [bool; 2] {
        [self.fast.is_some(), self.fast.as_ref().is_some_and(FastBpe::knows_offsets)]
    }

    /// The library's ids with their offsets, with which the fast ones must agree.
    pub(crate) fn offsets_reference(&self, text: &str) -> Result<Vec<(i64, Range<usize>)>, TokenizerError> {
        let encode = || self.inner.encode(text, false).map_err(|error| TokenizerError::Encode(error.to_string()));
        let encoding = untrusted_io::contained(encode).map_err(TokenizerError::Panicked)??;
        let offsets = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
        Ok(encoding.get_ids().iter().map(|id| i64::from(*id)).zip(offsets).collect())
    }
}

impl Tokenizer for HuggingFaceTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<i64>, TokenizerError> {
        let Some(fast) = &self.fast else { return self.encode_reference(text) };
        let mut ids = Vec::with_capacity(text.len() / 4);
        fast.encode(&self.inner, text, &mut |id, _| ids.push(id))?;
        Ok(ids)
    }

    fn encode_with_offsets(
        &self,
        text: &str,
        on_token: &mut dyn FnMut(i64, Range<usize>),
    ) -> Result<(), TokenizerError> {
        if let Some(fast) = self.fast.as_ref().filter(|fast| fast.knows_offsets()) {
            return fast.encode(&self.inner, text, on_token);
        }
        for (id, bytes) in self.offsets_reference(text)? {
            on_token(id, bytes);
        }
        Ok(())
    }

    fn companion(&self, name: &str) -> Option<&str> {
        self.companions.iter().find(|(companion, _)| *companion == name).map(|(_, text)| text.as_str())
    }

    fn decode(&self, ids: &[i64]) -> Result<String, TokenizerError> {
        let ids = ids.iter().map(|&id| self.known(id)).collect::<Result<Vec<u32>, _>>()?;
        let decode = || self.inner.decode(&ids, false).map_err(|error| TokenizerError::Decode(error.to_string()));
        untrusted_io::contained(decode).map_err(TokenizerError::Panicked)?
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn eod(&self) -> Option<i64> {
        self.eod
    }

    fn bos(&self) -> Option<i64> {
        self.bos
    }

    fn pad(&self) -> Option<i64> {
        self.pad
    }

    fn prefix(&self) -> &[i64] {
        &self.prefix
    }

    fn token_to_id(&self, token: &str) -> Option<i64> {
        self.inner.token_to_id(token).map(i64::from)
    }

    fn id_to_bytes(&self, id: i64) -> Option<Vec<u8>> {
        let id = self.known(id).ok()?;
        let token = self.inner.id_to_token(id)?;
        if let Some(added) = self.inner.get_added_tokens_decoder().get(&id) {
            // A special token has no text: it marks the end of a document.
            return Some(if added.special { Vec::new() } else { token.into_bytes() });
        }
        let byte = || u8::from_str_radix(token.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok();
        Some(match self.alphabet {
            Alphabet::ByteLevel => byte_level::to_bytes(&token).unwrap_or_else(|| token.into_bytes()),
            Alphabet::Metaspace => match byte() {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
            Alphabet::Plain => token.into_bytes(),
        })
    }

    fn unique_identifier(&self) -> serde_json::Value {
        serde_json::json!({
            "class": "HuggingFaceTokenizer",
            "content": format!("{:016x}", self.content_hash),
            "eod": self.eod,
            "pad": self.pad,
        })
    }

    fn save_assets(&self, folder: &Path) -> Result<(), TokenizerError> {
        let files = self
            .companions
            .iter()
            // The model's configuration does not belong to the tokenizer.
            .filter(|(name, _)| !matches!(*name, "config.json" | "generation_config.json"))
            .map(|(name, text)| (*name, text.as_str()))
            .chain([(TOKENIZER_FILE, self.content.as_str())]);
        for (name, text) in files {
            let path = folder.join(name);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).map_err(TokenizerError::io("create the folder", parent))?;
            }
            untrusted_io::replace(&path, text.as_bytes()).map_err(TokenizerError::io("write", &path))?;
        }
        Ok(())
    }

    fn split_point(&self, text: &str, from: usize) -> Option<usize> {
        self.fast.as_ref().filter(|fast| fast.is_gpt2()).and_then(|_| byte_level::split_point(text, from))
    }
}

fn replace_companion(companions: &mut Vec<(&'static str, String)>, name: &'static str, text: String) {
    companions.retain(|(companion, _)| *companion != name);
    // The first file that names a token decides.
    companions.insert(0, (name, text));
}

/// A vocabulary has tables by id, which must fit in memory: ids are below this number.
const MOST_IDS: u32 = 1 << 24;

/// Refuses a vocabulary that is empty, or has ids that no model's does.
fn check_ids(inner: &Inner) -> Result<(), String> {
    let vocab = inner.get_vocab(true);
    match vocab.iter().max_by_key(|(_, id)| **id) {
        None => Err("not a tokenizer: its vocabulary is empty".to_owned()),
        Some((token, id)) if *id >= MOST_IDS => {
            let token: String = token.chars().take(40).collect();
            Err(format!("the token {token:?} has the id {id}, expected one below {MOST_IDS}"))
        }
        Some(_) => Ok(()),
    }
}

/// The parts every byte-level tokenizer shares.
pub(crate) fn byte_level_tokenizer(model: BPE) -> Inner {
    let mut inner = Inner::new(model);
    inner.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    inner.with_decoder(Some(ByteLevel::default()));
    inner.with_post_processor(Some(ByteLevel::new(false, false, true)));
    inner
}

fn alphabet_of(content: &str) -> Alphabet {
    let parsed: serde_json::Value = serde_json::from_str(content).unwrap_or_default();
    let mentions = |part: &str, kind: &str| parsed[part].to_string().contains(kind);
    if mentions("decoder", "\"ByteLevel\"") || mentions("pre_tokenizer", "\"ByteLevel\"") {
        Alphabet::ByteLevel
    } else if mentions("decoder", "\u{2581}") || mentions("pre_tokenizer", "\"Metaspace\"") {
        Alphabet::Metaspace
    } else {
        Alphabet::Plain
    }
}
