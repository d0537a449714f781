//! Files that pyarrow has written (tests/fixtures/sft/make_arrow.py): their rows as JSON, truncated
//! files, mutated files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Rows;
use crate::untrusted_io;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sft").join(name)
}

/// All rows, or the first error.
fn rows(path: &Path) -> Result<Vec<Value>, String> {
    let (file, size) = untrusted_io::open(path).unwrap();
    let mut rows = Rows::open(file, size)?;
    let mut found = Vec::new();
    while let Some((number, row)) = rows.next_row()? {
        found.push(row);
        assert_eq!(number, found.len() as u64);
    }
    Ok(found)
}

fn rows_of(bytes: &[u8]) -> Result<Vec<Value>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("training.arrow");
    std::fs::write(&path, bytes).unwrap();
    rows(&path)
}

#[test]
fn every_type_is_read_as_pyarrow_wrote_it() {
    let lines = std::fs::read_to_string(fixture("types.jsonl")).unwrap();
    let expected: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // A stream in several batches, with dictionaries that grow; a file in one batch, compressed by
    // LZ4.
    for name in ["types.arrow", "types_file.arrow"] {
        let found = rows(&fixture(name)).unwrap();
        assert_eq!(found.len(), expected.len());
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let (Value::Object(found), Value::Object(expected)) = (found, expected) else { panic!("rows are objects") };
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
            for (name_of, value) in found {
                assert_eq!(*value, expected[name_of], "{name}, row {number}, {name_of}");
            }
        }
    }
}

#[test]
fn streams_files_and_feather_have_the_same_rows() {
    let [stream, file, feather] =
        ["stream.arrow", "file.arrow", "lz4.feather"].map(|name| rows(&fixture(name)).unwrap());
    assert_eq!(stream.len(), 9);
    assert_eq!(stream[8]["messages"][1]["content"], "answer 8");
    assert!(stream == file && stream == feather);
}

/// A stream may end after any message; everywhere else something is missing. A file says where it
/// ends.
#[test]
fn what_is_cut_off_is_an_error() {
    let whole = std::fs::read(fixture("stream.arrow")).unwrap();
    let mut complete = 0;
    for end in 0..whole.len() {
        match rows_of(&whole[..end]) {
            Ok(rows) => {
                complete += 1;
                assert!([0, 3, 6, 9].contains(&rows.len()), "{end}: {} rows", rows.len());
            }
            Err(problem) => assert!(problem.contains("cut off") || problem.contains("is empty"), "{end}: {problem}"),
        }
    }
    // After the schema and after each of three batches, and within the eight bytes of the end,
    // four of them.
    assert!((4..=8).contains(&complete), "{complete}");
    let whole = std::fs::read(fixture("file.arrow")).unwrap();
    for end in 8..whole.len() {
        assert!(rows_of(&whole[..end]).unwrap_err().contains("is cut off"), "{end}");
    }
}

#[test]
fn what_is_no_value_is_named() {
    for (bytes, expected) in [
        (&b"FEA1 and more"[..], "first Feather format"),
        (b"", "is empty"),
        (b"{\"input\": 1}\n", "expected a message"),
        (b"ARROW1\0\0", "is cut off"),
    ] {
        let problem = rows_of(bytes).unwrap_err();
        assert!(problem.contains(expected), "{problem}");
    }
    // An invalid type of the first column in the schema.
    let mut whole = std::fs::read(fixture("types.arrow")).unwrap();
    let flag = whole.windows(4).position(|bytes| bytes == b"flag").unwrap();
    let mut named = 0;
    for at in flag.saturating_sub(64)..flag {
        let kept = whole[at];
        whole[at] = 7;
        let problem = rows_of(&whole).err().unwrap_or_default();
        named += usize::from(problem.contains("column `flag`: has decimal numbers, which are no values of JSON"));
        whole[at] = kept;
    }
    assert!(named >= 1, "no byte is the type");
    // A number of the third row, as NaN: an error with its row and column.
    let mut whole = std::fs::read(fixture("types.arrow")).unwrap();
    let two_thirds = (2.0f64 / 3.0).to_le_bytes();
    let at = whole.windows(8).position(|bytes| bytes == two_thirds).unwrap();
    whole[at..at + 8].copy_from_slice(&f64::NAN.to_le_bytes());
    let problem = rows_of(&whole).unwrap_err();
    assert!(problem.starts_with("row 3: column `double`: has a number that is not finite"), "{problem}");
}

/// Damaged bytes give rows or an error, in bounded time.
#[test]
fn mutated_bytes_are_rows_or_errors() {
    for name in ["stream.arrow", "file.arrow", "lz4.feather", "types.arrow", "types_file.arrow"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        let (mut read, mut refused) = (0, 0);
        for at in (0..whole.len()).step_by(7) {
            for value in [whole[at] ^ 1 << (at % 8), 0, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                match rows_of(&bytes) {
                    Ok(_) => read += 1,
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(read > 0 && refused > 0, "{name}: {read} read, {refused} refused");
    }
}
