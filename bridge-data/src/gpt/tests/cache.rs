//! The cache of index arrays: used, checked, repaired.

use std::collections::BTreeSet;

use super::*;
use crate::indexed::{IndexedDatasetBuilder, TokenDtype};

fn cached_params(folder: &Path) -> GptDatasetParams {
    GptDatasetParams {
        cache: IndexCache::Folder(folder.to_owned()),
        ..params(&["a", "b"], Some(vec![0.5, 0.5]), "70,20,10")
    }
}

fn all_samples(datasets: &Datasets) -> Vec<Sample> {
    let splits = [&datasets.train, &datasets.valid, &datasets.test];
    splits
        .into_iter()
        .flatten()
        .flat_map(|dataset| (0..dataset.len()).map(|i| dataset.get(i).expect("in range")))
        .collect()
}

/// The files of a cache folder with their content.
fn cache_files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(&path).expect("file"))).collect()
}

#[test]
fn caches_are_used_checked_and_repaired() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let recorder = Arc::new(Recorder::default());
    let ctx = DatasetBuildContext { progress: recorder.clone(), ..context([60, 8, 4]) };
    let provider = GptDatasetProvider::new(cached_params(folder.path())).expect("valid parameters");
    let build = || all_samples(&provider.build(&ctx).expect("buildable"));
    let fresh = build();
    assert_eq!(recorder.take(), (vec![false; 6], vec![]));
    let files = cache_files(folder.path());
    // Six datasets with three arrays, three blends with two, a description and a fingerprint each.
    assert_eq!(files.len(), 6 * 5 + 3 * 4);
    assert_eq!(build(), fresh);
    assert_eq!(recorder.take(), (vec![true; 6], vec![]));

    for (path, content) in files.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "npy")) {
        for damage in ["cut", "flip"] {
            let mut damaged = content.clone();
            match damage {
                "cut" => damaged.truncate(content.len() - 3),
                _ => damaged[content.len() - 4] ^= 1,
            }
            std::fs::write(path, damaged).expect("damaged");
            assert_eq!(build(), fresh, "{damage} {}", path.display());
            assert_eq!(recorder.take().1.len(), 1, "{damage} {}", path.display());
            assert_eq!(std::fs::read(path).expect("repaired"), *content);
        }
    }
}

#[test]
fn caches_without_a_fingerprint_are_checked_in_full() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let recorder = Arc::new(Recorder::default());
    let ctx = DatasetBuildContext { progress: recorder.clone(), ..context([60, 8, 4]) };
    let provider = GptDatasetProvider::new(cached_params(folder.path())).expect("valid parameters");
    let fresh = all_samples(&provider.build(&ctx).expect("buildable"));
    let strip = || {
        for (path, _) in cache_files(folder.path()) {
            if path.to_string_lossy().ends_with("fingerprint.json") {
                std::fs::remove_file(path).expect("removed");
            }
        }
    };
    strip();
    recorder.take();
    assert_eq!(all_samples(&provider.build(&ctx).expect("buildable")), fresh);
    assert_eq!(recorder.take(), (vec![true; 6], vec![]));
    for name in ["document_index.npy", "-sample_index.npy", "shuffle_index.npy"] {
        let files = cache_files(folder.path());
        let found = files.iter().find(|(path, _)| path.to_string_lossy().ends_with(name));
        let (path, content) = found.expect("cached");
        let mut damaged = content.clone();
        let last = damaged.len() - 2;
        damaged[last] ^= 0x40;
        std::fs::write(path, damaged).expect("damaged");
        assert_eq!(all_samples(&provider.build(&ctx).expect("buildable")), fresh);
        assert_eq!(recorder.take().1.len(), 1, "{name}");
        strip();
    }
}

/// Checksums of the damaged arrays do not make their numbers right.
#[test]
fn wrong_numbers_with_a_right_fingerprint_are_rebuilt() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let recorder = Arc::new(Recorder::default());
    let ctx = DatasetBuildContext { progress: recorder.clone(), ..context([60, 8, 4]) };
    let provider = GptDatasetProvider::new(cached_params(folder.path())).expect("valid parameters");
    let fresh = all_samples(&provider.build(&ctx).expect("buildable"));
    recorder.take();
    for name in ["document_index.npy", "-sample_index.npy", "shuffle_index.npy"] {
        let files = cache_files(folder.path());
        let found = files.iter().find(|(path, _)| path.to_string_lossy().ends_with(name));
        let (path, content) = found.expect("cached");
        let mut wrong = content.clone();
        let last = wrong.len() - 2;
        wrong[last] ^= 0x40;
        std::fs::write(path, &wrong).expect("written");
        let fingerprint =
            PathBuf::from(path.to_string_lossy().replace(name.trim_start_matches('-'), "fingerprint.json"));
        let text = std::fs::read_to_string(&fingerprint).expect("written with the arrays");
        let sum = |bytes: &[u8]| crate::npy::checksum(bytes).to_string();
        assert!(text.contains(&sum(content)), "{text}");
        std::fs::write(&fingerprint, text.replace(&sum(content), &sum(&wrong))).expect("forged");
        assert_eq!(all_samples(&provider.build(&ctx).expect("buildable")), fresh);
        assert_eq!(recorder.take().1.len(), 1, "{name}");
    }
}

#[test]
fn changed_data_is_not_served_from_the_cache() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let prefix = folder.path().join("data");
    let write = |documents: &[&[i64]]| {
        let mut builder = IndexedDatasetBuilder::create(&prefix, TokenDtype::U16).expect("created");
        for tokens in documents {
            builder.add_document(tokens, &[tokens.len()]).expect("added");
        }
        builder.finalize().expect("written");
    };
    let params = GptDatasetParams {
        sequence_length: 4,
        cache: IndexCache::Default,
        source: GptSource::Blend { blend: Blend { paths: vec![prefix.clone()], weights: None }, split: "1".into() },
        ..params(&["a"], None, "1")
    };
    let sorted_tokens = || {
        let samples = all_samples(&build(params.clone(), [3, 0, 0]));
        samples.iter().flat_map(|sample| sample.tokens.clone()).collect::<BTreeSet<i64>>()
    };
    write(&[&[1, 2, 3, 4, 5, 6, 7], &[8, 9, 10, 11, 12, 13]]);
    sorted_tokens();
    assert!(prefix.join("cache/GPTDataset_indices").is_dir());
    // As many documents and tokens as before, other boundaries.
    write(&[&[21, 22, 23], &[24, 25, 26, 27, 28, 29, 30, 31, 32, 33]]);
    assert!(sorted_tokens().iter().all(|&token| token > 20));
}
