//! The checksum of checkpoint files, and JSON files that carry their own. Knows nothing about the
//! content of the files.

use std::fmt;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use twox_hash::xxhash3_128::Hasher;

const ALGORITHM: &str = "xxh3-128";

/// XXH3-128 of a byte string: it detects accidental corruption (flipped, lost or foreign bytes),
/// not forgery.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum(u128);

impl Checksum {
    /// The checksum of `bytes`.
    #[must_use]
    pub fn compute(bytes: &[u8]) -> Self {
        Self(Hasher::oneshot(bytes))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM}:{:032x}", self.0)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Checksum {
    type Err = String;

    /// Reads exactly the output of [`Display`](fmt::Display): lower case, 32 digits. Other forms
    /// are refused, so that no changed byte of a stored checksum goes unnoticed.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || format!("expected `{ALGORITHM}:` and 32 lower-case hexadecimal digits, found `{text}`");
        let digits = text.strip_prefix(ALGORITHM).and_then(|rest| rest.strip_prefix(':')).ok_or_else(bad)?;
        let canonical = digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !canonical {
            return Err(bad());
        }
        u128::from_str_radix(digits, 16).map(Self).map_err(|_| bad())
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A [`Checksum`] computed incrementally.
pub(super) struct ChecksumBuilder(Hasher);

impl ChecksumBuilder {
    pub(super) fn new() -> Self {
        Self(Hasher::new())
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub(super) fn finish(&self) -> Checksum {
        Checksum(self.0.finish_128())
    }
}

/// The beginning of a sealed file, up to the checksum's text.
const SEAL_PREFIX: &str = "{\n  \"checksum\": \"";
/// Bytes of the checksum's text: algorithm, colon, 32 digits.
const SEAL_LEN: usize = ALGORITHM.len() + 1 + 32;

/// Why a sealed file cannot be trusted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SealError {
    /// The file is not in the form of a sealed file, or its content has an unexpected form.
    Malformed(String),
    /// The form is right, but the checksum or some byte after it has changed.
    Mismatch { expected: Checksum, found: Checksum },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed<T> {
    checksum: Checksum,
    content: T,
}

/// Serialises `content` as JSON whose first field is the checksum of everything that follows it.
/// The text before the checksum is constant and compared on reading, so every byte of the file is
/// covered. Fails if `content` cannot be written as JSON, such as a map whose keys are not strings.
pub(super) fn seal<T: Serialize>(content: &T) -> Result<(Vec<u8>, Checksum), serde_json::Error> {
    let json = serde_json::to_string_pretty(content)?.replace('\n', "\n  ");
    let rest = format!("\",\n  \"content\": {json}\n}}\n");
    let checksum = Checksum::compute(rest.as_bytes());
    Ok((format!("{SEAL_PREFIX}{checksum}{rest}").into_bytes(), checksum))
}

/// The checksum that a sealed file states, without looking at the rest of it.
pub(super) fn stated_checksum(bytes: &[u8]) -> Result<Checksum, SealError> {
    let text = bytes
        .strip_prefix(SEAL_PREFIX.as_bytes())
        .and_then(|rest| rest.get(..SEAL_LEN))
        .and_then(|seal| std::str::from_utf8(seal).ok())
        .ok_or_else(|| SealError::Malformed("it does not begin with a checksum".to_owned()))?;
    text.parse().map_err(SealError::Malformed)
}

/// Reads a file written by [`seal`].
///
/// # Errors
/// [`SealError`], if any byte differs from the written one.
pub(super) fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, Checksum), SealError> {
    let expected = stated_checksum(bytes)?;
    let found = Checksum::compute(&bytes[SEAL_PREFIX.len() + SEAL_LEN..]);
    if expected != found {
        return Err(SealError::Mismatch { expected, found });
    }
    let sealed: Sealed<T> = serde_json::from_slice(bytes).map_err(|e| SealError::Malformed(e.to_string()))?;
    Ok((sealed.content, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_text_round_trips_and_is_strict() {
        let checksum = Checksum::compute(b"bridge");
        let text = checksum.to_string();
        assert_eq!(text.parse::<Checksum>().unwrap(), checksum);
        for bad in [text.to_uppercase(), text.replace("xxh3", "xxh4"), format!("{text}0"), text[..40].to_owned()] {
            assert!(bad.parse::<Checksum>().is_err(), "{bad}");
        }
    }

    #[test]
    fn checksum_is_the_published_xxh3_128() {
        // The value of the empty input, from the XXH3 specification's reference implementation.
        assert_eq!(Checksum::compute(b"").to_string(), "xxh3-128:99aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn pieces_hash_like_the_whole() {
        let bytes: Vec<u8> = (0..70_000u32).map(|i| (i % 251) as u8).collect();
        let mut builder = ChecksumBuilder::new();
        bytes.chunks(997).for_each(|piece| builder.update(piece));
        assert_eq!(builder.finish(), Checksum::compute(&bytes));
    }

    #[test]
    fn every_single_bit_of_a_sealed_file_counts() {
        let content = serde_json::json!({"iteration": 100, "names": ["a", "b\n"], "x": 0.1});
        let (bytes, checksum) = seal(&content).unwrap();
        assert_eq!(unseal::<serde_json::Value>(&bytes).unwrap(), (content, checksum));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(unseal::<serde_json::Value>(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(unseal::<serde_json::Value>(&bytes[..len]).is_err(), "cut to {len}");
        }
    }
}
