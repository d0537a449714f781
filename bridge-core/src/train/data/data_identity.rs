//! Identity of the token files that a run reads, so that a resumed run can compare them. Their
//! place does not matter.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bridge_data::indexed::{BinAccess, IndexedDataset, bin_path, idx_path};
use bridge_data::tokenizer::Tokenizer;
use bridge_data::{DataError, pack};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use twox_hash::XxHash3_64;

use crate::config::{Blend, RunConfig};
use crate::train::data::gpt_data::member_prefix;

/// A pair of token files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::train) struct TokenFile {
    /// Documents.
    documents: u64,
    /// Tokens.
    tokens: u64,
    /// Checksum of the sizes, the beginnings and the ends of both files.
    digest: String,
}

impl TokenFile {
    /// Documents and tokens of all files.
    pub fn totals(files: &[Self]) -> (u64, u64) {
        (files.iter().map(|file| file.documents).sum(), files.iter().map(|file| file.tokens).sum())
    }
}

/// The token files that a recipe names, in its order; `text` is the prefix of those made of its
/// text. Fails on files that cannot be read.
pub(in crate::train) fn token_files(config: &RunConfig, text: Option<&Path>) -> Result<Vec<TokenFile>, DataError> {
    text.map(Path::to_owned).into_iter().chain(named(config)).map(|prefix| token_file(&prefix)).collect()
}

/// The prefixes that a recipe names.
fn named(config: &RunConfig) -> Vec<PathBuf> {
    let dataset = &config.dataset;
    let of_splits = dataset.blend_per_split.iter().flatten().flatten();
    let blends: Vec<&Blend> = dataset.blend.iter().chain(of_splits).collect();
    blends.iter().flat_map(|blend| &blend.paths).map(|path| member_prefix(Path::new(path))).collect()
}

/// Warning about token files that Bridge packed with another tokenizer than the run's. A tokenizer
/// without text is not compared. Fails on records that cannot be read.
pub(in crate::train) fn packed_otherwise(
    config: &RunConfig,
    tokenizer: &dyn Tokenizer,
) -> Result<Vec<String>, DataError> {
    let content = |identifier: &Value| identifier["content"].as_str().map(str::to_owned);
    let Some(own) = content(&tokenizer.unique_identifier()) else { return Ok(Vec::new()) };
    let mut said = Vec::new();
    for prefix in named(config) {
        let packed = pack::packed_with(&prefix)?.as_ref().and_then(content);
        if let Some(packed) = packed.filter(|packed| *packed != own) {
            said.push(format!(
                "dataset.data_path: {} was packed with another tokenizer than the run's (checksums {packed} and {own}): its ids may stand for \
                 other text",
                prefix.display()
            ));
        }
    }
    Ok(said)
}

fn token_file(prefix: &Path) -> Result<TokenFile, DataError> {
    let dataset = IndexedDataset::open(prefix, BinAccess::Pread)?;
    let mut parts = Vec::new();
    for path in [bin_path(prefix), idx_path(prefix)] {
        parts.extend(ends_of(&path).map_err(DataError::io("read", &path))?);
    }
    Ok(TokenFile {
        documents: dataset.num_documents() as u64,
        tokens: dataset.num_tokens(),
        digest: format!("{:016x}", XxHash3_64::oneshot(&parts)),
    })
}

/// The size, the first and the last bytes of a file.
fn ends_of(path: &Path) -> std::io::Result<Vec<u8>> {
    const LENGTH: u64 = 1 << 20;
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut ends = size.to_le_bytes().to_vec();
    for start in [0, size.saturating_sub(LENGTH)] {
        let mut bytes = vec![0; LENGTH.min(size - start) as usize];
        file.read_exact_at(&mut bytes, start)?;
        ends.extend(bytes);
    }
    Ok(ends)
}
