//! The file format against Megatron's own files, every token type, and damaged files.

use proptest::prelude::*;

use super::*;
use crate::DataError;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/megatron-data");

fn fixture(name: &str) -> PathBuf {
    Path::new(FIXTURES).join(name)
}

fn open(prefix: &Path) -> Result<IndexedDataset, DataError> {
    IndexedDataset::open(prefix, BinAccess::Mmap)
}

/// Writes documents, each a list of sequences.
fn write(prefix: &Path, dtype: TokenDtype, documents: &[Vec<Vec<i64>>]) {
    let mut builder = IndexedDatasetBuilder::create(prefix, dtype).expect("created");
    for document in documents {
        for sequence in document {
            builder.add_item(sequence).expect("added");
        }
        builder.end_document();
    }
    builder.finalize().expect("written");
}

#[test]
fn megatrons_files_come_out_byte_for_byte() {
    let folder = tempfile::tempdir().expect("temporary folder");
    for (name, dtype) in [("a", TokenDtype::U16), ("b", TokenDtype::I32), ("c", TokenDtype::U16)] {
        for access in [BinAccess::Mmap, BinAccess::Pread] {
            let source = IndexedDataset::open(fixture(name), access).expect("fixture");
            assert_eq!(source.dtype(), dtype);
            let copy = folder.path().join(name);
            let mut builder = IndexedDatasetBuilder::create(&copy, dtype).expect("created");
            for i in 0..source.num_documents() {
                let sequences = source.slice(source.document(i).expect("exists")).expect("readable");
                let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
                builder.add_document(&sequences.concat(), &lengths).expect("added");
            }
            builder.finalize().expect("written");
            for path in [bin_path, idx_path] {
                let (copied, original) = (std::fs::read(path(&copy)), std::fs::read(path(&fixture(name))));
                assert_eq!(copied.expect("copy"), original.expect("fixture"));
            }
        }
    }
}

#[test]
fn parts_of_sequences() {
    let dataset = open(&fixture("a")).expect("fixture");
    let whole = dataset.sequence(3).expect("readable");
    assert_eq!(whole.len(), dataset.sequence_length(3));
    assert_eq!(dataset.get(3, 2, Some(1)).expect("inside"), whole[2..3]);
    assert_eq!(dataset.get(3, 2, None).expect("inside"), whole[2..]);
    assert_eq!(dataset.get(3, whole.len(), None).expect("the end"), [0i64; 0]);
    for (i, offset, length) in
        [(3, whole.len() + 1, None), (3, 0, Some(whole.len() + 1)), (3, 1, Some(usize::MAX)), (57, 0, None)]
    {
        assert!(matches!(dataset.get(i, offset, length), Err(DataError::OutOfRange { .. })));
    }
    assert_eq!(dataset.num_tokens(), dataset.bin_bytes() / 2);
    assert_eq!(dataset.document(57), None);
}

#[test]
fn every_token_type_keeps_its_extremes() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let extremes = |dtype| match dtype {
        TokenDtype::U8 => (0, 255),
        TokenDtype::I8 => (-128, 127),
        TokenDtype::I16 => (-32768, 32767),
        TokenDtype::U16 => (0, 65535),
        TokenDtype::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        TokenDtype::I64 => (i64::MIN, i64::MAX),
        TokenDtype::F32 => (-(1 << 24), 1 << 24),
        TokenDtype::F64 => (-(1 << 53), 1 << 53),
    };
    for dtype in TokenDtype::ALL {
        assert_eq!(TokenDtype::from_code(dtype.code()), Some(dtype));
        let prefix = folder.path().join(dtype.name());
        let (low, high) = extremes(dtype);
        write(&prefix, dtype, &[vec![vec![low, 1, high], vec![]], vec![vec![high]]]);
        let dataset = open(&prefix).expect("written");
        assert_eq!(dataset.slice(0..3).expect("readable"), [vec![low, 1, high], vec![], vec![high]]);
        assert_eq!(dataset.document(0), Some(0..2));
        assert_eq!(dataset.floats(2).expect("readable"), [high as f64]);
        assert_eq!(dataset.raw(2).expect("readable").len(), dtype.size());
        let mut builder = IndexedDatasetBuilder::create(&prefix, dtype).expect("created");
        for beyond in [low.checked_sub(1), high.checked_add(1)].into_iter().flatten() {
            let error = builder.add_item(&[beyond]).expect_err("too large").to_string();
            assert!(error.contains(dtype.name()) && error.contains(&beyond.to_string()), "{error}");
        }
    }
}

#[test]
fn floats_that_are_no_ids_are_refused_as_ids() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let prefix = folder.path().join("floats");
    let mut builder = IndexedDatasetBuilder::create(&prefix, TokenDtype::F32).expect("created");
    builder.add_sequence(SequenceTokens::Floats(&[0.5, f64::NAN]), 0).expect("added");
    builder.end_document();
    builder.finalize().expect("written");
    let dataset = open(&prefix).expect("written");
    assert!(dataset.sequence(0).expect_err("no integer").to_string().contains("0.5"));
    assert_eq!(dataset.floats(0).expect("readable")[0], 0.5);
    let mut integers = IndexedDatasetBuilder::create(&prefix, TokenDtype::U8).expect("created");
    assert!(integers.add_sequence(SequenceTokens::Floats(&[1.0]), 0).is_err());
}

#[test]
fn modes_of_multimodal_datasets() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let prefix = folder.path().join("multimodal");
    let mut builder =
        IndexedDatasetBuilder::create_with_modes(&prefix, TokenDtype::I32, ModeColumn::Present).expect("created");
    builder.add_sequence(SequenceTokens::Integers(&[1, 2]), 1).expect("added");
    builder.add_item(&[3]).expect("added");
    builder.end_document();
    builder.finalize().expect("written");
    let dataset = IndexedDataset::open_with_modes(&prefix, BinAccess::Mmap, ModeColumn::Present).expect("written");
    assert_eq!([dataset.mode(0), dataset.mode(1)], [1, 0]);
    assert_eq!(open(&prefix).expect("readable as text").mode(0), 0);
    let mut text = IndexedDatasetBuilder::create(folder.path().join("text"), TokenDtype::I32).expect("created");
    assert!(text.add_sequence(SequenceTokens::Integers(&[1]), 1).is_err());
}

#[test]
fn datasets_are_joined() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let prefix = folder.path().join("joined");
    let mut builder = IndexedDatasetBuilder::create(&prefix, TokenDtype::U16).expect("created");
    builder.add_document(&[1, 2, 3], &[1, 2]).expect("added");
    builder.add_index(fixture("a")).expect("joined");
    builder.add_index(fixture("c")).expect("joined");
    let error = builder.add_index(fixture("b")).expect_err("another type").to_string();
    assert!(error.contains("int32") && error.contains("uint16"), "{error}");
    builder.finalize().expect("written");
    let joined = open(&prefix).expect("written");
    assert_eq!((joined.len(), joined.num_documents()), (2 + 57 + 140, 1 + 57 + 140));
    assert_eq!(joined.sequence(1).expect("readable"), [2, 3]);
    assert_eq!(joined.document(1), Some(2..3));
    let c = open(&fixture("c")).expect("fixture");
    assert_eq!(joined.sequence(2 + 57 + 99).expect("readable"), c.sequence(99).expect("readable"));
}

#[test]
fn nothing_appears_before_it_is_complete() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let prefix = folder.path().join("sub/data");
    let names = || {
        let entries = std::fs::read_dir(folder.path().join("sub")).expect("folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let mut builder = IndexedDatasetBuilder::create(&prefix, TokenDtype::U8).expect("created");
    builder.add_item(&[1]).expect("added");
    assert!(names().iter().all(|name| name.contains("partial")));
    let error = builder.finalize().expect_err("an open document").to_string();
    assert!(error.contains("end_document"), "{error}");
    assert_eq!(names(), [""; 0]);
    write(&prefix, TokenDtype::U8, &[vec![vec![1]]]);
    assert_eq!(names(), ["data.bin", "data.idx"]);
}

#[test]
fn lengths_must_add_up() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut builder = IndexedDatasetBuilder::create(folder.path().join("x"), TokenDtype::U8).expect("created");
    for lengths in [&[1][..], &[2, 2], &[usize::MAX, 4]] {
        assert!(builder.add_document(&[1, 2, 3], lengths).is_err());
    }
    builder.add_document(&[1, 2, 3], &[0, 3]).expect("added");
    assert_eq!(builder.num_sequences(), 2);
}

#[test]
fn an_empty_dataset_opens() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let prefix = folder.path().join("empty");
    write(&prefix, TokenDtype::U16, &[]);
    for access in [BinAccess::Mmap, BinAccess::Pread] {
        let dataset = IndexedDataset::open(&prefix, access).expect("written");
        assert!(dataset.is_empty());
        assert!(dataset.sequence(0).is_err());
    }
}

/// A copy of a fixture whose index or tokens can be damaged.
fn damaged(change: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>)) -> Result<IndexedDataset, DataError> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let prefix = folder.path().join("data");
    let mut index = std::fs::read(idx_path(&fixture("a"))).expect("fixture");
    let mut bin = std::fs::read(bin_path(&fixture("a"))).expect("fixture");
    change(&mut index, &mut bin);
    std::fs::write(idx_path(&prefix), index).expect("written");
    std::fs::write(bin_path(&prefix), bin).expect("written");
    open(&prefix)
}

#[test]
fn damage_is_described() {
    type Change = fn(&mut Vec<u8>, &mut Vec<u8>);
    let cases: [(Change, &[&str]); 11] = [
        (|index, _| index[0] = b'X', &["magic", "MMIDIDX", "XMIDIDX"]),
        (|index, _| index.truncate(20), &["truncated header", "34", "20"]),
        (|index, _| index.clear(), &["magic"]),
        (|index, _| index[9] = 2, &["version", "1", "found 2"]),
        (|index, _| index[17] = 9, &["type code 9", "8 uint16"]),
        (|index, _| index.truncate(1181), &["truncated index", "1182", "1181"]),
        (|_, bin| bin.truncate(5000), &["data.bin", "truncated tokens", "5008", "5000"]),
        (|index, _| index[18 + 7] = 0xff, &["impossible number of sequences"]),
        (|index, _| index[34 + 3] = 0x80, &["sequence 0 has length"]),
        (|index, _| index[34 + 4 * 57 + 8 + 7] = 0x80, &["sequence 1", "byte offset"]),
        (|index, _| *index.last_mut().expect("bytes") = 1, &["document boundaries", "0 .. 57"]),
    ];
    for (change, texts) in cases {
        let error = damaged(change).expect_err(texts[0]).to_string();
        for text in texts {
            assert!(error.contains(text), "{text}: {error}");
        }
    }
    let disorder = damaged(|index, _| {
        let boundaries = 34 + 12 * 57;
        index[boundaries + 8 * 5] = 56;
    });
    assert!(disorder.expect_err("out of order").to_string().contains("document boundary 6"));
    assert!(open(&fixture("none")).expect_err("missing").to_string().contains("none.idx"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Flipped bits and a truncated index give an error or readable data, never a panic.
    #[test]
    fn a_damaged_index_never_panics(cut in 0usize..1300, flips in prop::collection::vec((0usize..1182, 0u8..8), 0..4)) {
        let opened = damaged(|index, _| {
            for &(at, bit) in &flips {
                index[at] ^= 1 << bit;
            }
            index.truncate(cut);
        });
        if let Ok(dataset) = opened {
            for i in 0..dataset.len().min(1000) {
                let _ = dataset.sequence(i);
                let _ = dataset.mode(i);
            }
            for i in 0..dataset.num_documents().min(1000) {
                let _ = dataset.document(i).map(|range| dataset.slice(range));
            }
        }
    }

    #[test]
    fn what_is_written_is_read(documents in prop::collection::vec(
        prop::collection::vec(prop::collection::vec(0i64..60000, 0..20), 0..4), 0..12,
    )) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let prefix = folder.path().join("data");
        write(&prefix, TokenDtype::U16, &documents);
        let dataset = open(&prefix).expect("written");
        prop_assert_eq!(dataset.num_documents(), documents.len());
        for (i, document) in documents.iter().enumerate() {
            let range = dataset.document(i).expect("exists");
            prop_assert_eq!(&dataset.slice(range).expect("readable"), document);
        }
    }
}
