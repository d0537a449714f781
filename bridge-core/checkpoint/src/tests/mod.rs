//! Helpers of tests that cover several files of the module.

mod async_saver;
mod concurrent;
mod crash;
mod damage;
mod managers;
mod overwrite;
mod resolve;
mod retention;
mod round_trip;
mod sharded;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};

use super::*;

/// A small deterministic stream of numbers (SplitMix64), so that a failing case comes back.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
}

/// Elements of the tensor `big` of [`snapshot`].
const BIG: usize = 3_000;

/// A checkpoint of `step` whose contents follow from it and from `flavour`.
fn snapshot_of(step: u64, flavour: f32) -> Snapshot {
    let whole = |name: &str, tensor: HostTensor| ShardTensor::whole(name, tensor);
    let model = vec![
        whole("model.big", HostTensor::from_vec([BIG / 30, 30], vec![flavour; BIG]).unwrap()),
        whole("model.bf16", HostTensor::from_vec([3, 1], vec![bf16::from_f32(0.5); 3]).unwrap()),
        whole("model.f16", HostTensor::from_vec([1, 3], vec![f16::from_f32(0.5); 3]).unwrap()),
        whole("model.empty", HostTensor::from_vec([0, 7], Vec::<f32>::new()).unwrap()),
    ];
    let optimizer = vec![
        whole("optimizer.step", HostTensor::scalar(i64::try_from(step).unwrap())),
        whole("optimizer.f64", HostTensor::from_vec([2], vec![f64::MIN_POSITIVE, -0.0]).unwrap()),
        whole("optimizer.i32", HostTensor::from_vec([2], vec![i32::MIN, 7]).unwrap()),
        whole("optimizer.u32", HostTensor::from_vec([2], vec![u32::MAX, 7]).unwrap()),
        whole("optimizer.mask", HostTensor::from_vec([3], vec![true, false, true]).unwrap()),
        whole("rng.bytes", HostTensor::from_vec([5], b"state".to_vec()).unwrap()),
    ];
    let mut train_state = TrainState { step, consumed_train_samples: step * 8, ..TrainState::default() };
    train_state.extra.insert("scheduler".into(), serde_json::json!({"num_steps": step, "lr": 0.1 + 0.2}));
    let run = RunFiles {
        best: None,
        train_state,
        run_config: format!("[train]\ntrain_iters = {step}\n"),
        files: BTreeMap::from([
            ("tokenizer.json".to_owned(), b"{\"version\": \"1.0\"}".to_vec().into()),
            ("tokenizer/merges.txt".to_owned(), b"a b\n".to_vec().into()),
            ("empty.txt".to_owned(), Vec::new().into()),
        ]),
        ..RunFiles::default()
    };
    let groups = [("model", model), ("optimizer", optimizer)];
    Snapshot { run, groups: groups.map(|(name, tensors)| TensorGroup { name: name.into(), tensors }).into() }
}

fn snapshot(step: u64) -> Snapshot {
    snapshot_of(step, step as f32)
}

/// The bytes that are written of a tensor.
pub(super) fn bytes_of(content: &Content) -> Vec<u8> {
    let mut bytes = Vec::new();
    content
        .write(&mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
    bytes
}

/// Panics unless `checkpoint` is, byte for byte, [`snapshot_of`] its step and some flavour; returns
/// the flavour.
fn assert_whole(checkpoint: &Checkpoint) -> f32 {
    let big = checkpoint.load_tensor("model.big").unwrap().to_vec::<f32>().unwrap();
    let expected = snapshot_of(checkpoint.iteration(), big[0]);
    let tensors: Vec<&ShardTensor> = expected.groups.iter().flat_map(|group| &group.tensors).collect();
    assert_eq!(checkpoint.names().count(), tensors.len());
    for tensor in tensors {
        let found = checkpoint.load_tensor(&tensor.name).unwrap();
        assert_eq!(found.dtype(), tensor.source.dtype());
        assert_eq!(found.shape(), tensor.source.shape());
        assert_eq!(found.bytes()[..], bytes_of(&tensor.source), "{}", tensor.name);
    }
    assert_eq!(checkpoint.train_state().unwrap(), expected.run.train_state);
    assert_eq!(checkpoint.run_config().unwrap(), expected.run.run_config);
    for (name, content) in &expected.run.files {
        assert_eq!(&checkpoint.file(name).unwrap(), content, "{name}");
    }
    big[0]
}

fn writer(root: &Path) -> CheckpointWriter {
    CheckpointWriter::open(root, SaveOptions::default()).unwrap()
}

/// A new root with checkpoints of `steps`.
fn root_with(steps: &[u64]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let writer = writer(dir.path());
    for &step in steps {
        writer.save(&snapshot(step)).unwrap();
    }
    dir
}

fn resolve(root: &Path) -> Result<Resolution, CheckpointError> {
    CheckpointStore::open(root)?.resolve(&LoadRequest::default())
}

fn resolve_or_fall_back(root: &Path) -> Result<Resolution, CheckpointError> {
    CheckpointStore::open(root)?.resolve(&LoadRequest { fallback: true, ..LoadRequest::default() })
}

fn found(resolution: Resolution) -> Resolved {
    match resolution {
        Resolution::Found(found) => *found,
        Resolution::NothingFound { searched } => panic!("nothing found in {}", searched.display()),
    }
}

fn folder(root: &Path, step: u64) -> PathBuf {
    root.join(iteration_folder_name(step))
}

/// Everything in a folder, at any depth, that is a file.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.append(&mut files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// The names in a root, sorted.
fn names_in(root: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
