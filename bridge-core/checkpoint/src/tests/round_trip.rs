//! Saved state equals loaded state, whole and in parts, from one rank and from several.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;

#[test]
fn everything_comes_back() {
    let dir = root_with(&[0, 100]);
    let resolved = found(resolve(dir.path()).unwrap());
    assert!(resolved.report.is_empty());
    assert_eq!(resolved.checkpoint.iteration(), 100);
    assert_eq!(resolved.checkpoint.path(), dir.path().join("iter_0000100"));
    assert_whole(&resolved.checkpoint);
    assert_eq!(resolved.checkpoint.names_in("model").count(), 4);
    assert_eq!(fs::read_to_string(dir.path().join(LATEST_FILE)).unwrap().trim(), "100");
    assert_eq!(names_in(dir.path()), [JOURNAL_FILE, "iter_0000000", "iter_0000100", LATEST_FILE]);
}

/// Numbers from 0 on, made a few at a time.
struct Counting {
    shape: [usize; 2],
    made: usize,
}

impl TensorStream for Counting {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write(&self, write: &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>) -> Result<(), CheckpointError> {
        let numbers: Vec<f32> = (0..self.made).map(|i| i as f32).collect();
        numbers.chunks(7).try_for_each(|piece| write(bytemuck::cast_slice(piece)))
    }
}

#[test]
fn values_may_be_made_while_they_are_written() {
    let saved = |made: usize| {
        let dir = tempfile::tempdir().unwrap();
        let stream = Arc::new(Counting { shape: [10, 3], made });
        let tensors = vec![ShardTensor::streamed("w", stream), ShardTensor::whole("x", HostTensor::scalar(1f32))];
        let snapshot = Snapshot { groups: vec![TensorGroup { name: "model".into(), tensors }], ..snapshot(5) };
        let writer = CheckpointWriter::open(dir.path(), SaveOptions::default()).unwrap();
        (writer.save(&snapshot), dir)
    };
    let (report, dir) = saved(30);
    report.unwrap();
    let checkpoint = found(resolve(dir.path()).unwrap()).checkpoint;
    let values = checkpoint.load_tensor("w").unwrap().to_vec::<f32>().unwrap();
    assert_eq!(values, (0..30).map(|i| i as f32).collect::<Vec<_>>());
    for made in [29, 31] {
        let (report, dir) = saved(made);
        assert!(matches!(report, Err(CheckpointError::InvalidTensor { .. })), "{made}");
        assert!(names_in(dir.path()).is_empty());
    }
}

#[test]
fn shards_are_plain_safetensors() {
    let dir = root_with(&[1]);
    let bytes = fs::read(folder(dir.path(), 1).join("model-rank00000.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let big = tensors.tensor("model.big").unwrap();
    assert_eq!((big.dtype(), big.shape()), (safetensors::Dtype::F32, &[BIG / 30, 30][..]));
    assert_eq!(big.data(), bytemuck::cast_slice::<f32, u8>(&vec![1.0; BIG]));
    assert_eq!(tensors.tensor("model.empty").unwrap().shape(), [0, 7]);
}

#[test]
fn a_report_counts_what_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let weights = vec![1.0f32, 2.0, 3.0];
    let tensors = vec![ShardTensor::whole("w", HostTensor::from_vec([3], weights.clone()).unwrap())];
    let snapshot = Snapshot { groups: vec![TensorGroup { name: "model".into(), tensors }], ..Snapshot::default() };
    let report = writer(dir.path()).save(&snapshot).unwrap();
    assert_eq!(report.path, folder(dir.path(), 0));
    let on_disk: u64 = files_below(&report.path).iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!(report.bytes, on_disk);
    let checkpoint = found(resolve(dir.path()).unwrap()).checkpoint;
    assert_eq!(checkpoint.load_tensor("w").unwrap().to_vec::<f32>().unwrap(), weights);
}

#[test]
fn shards_split_and_are_written_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let options = SaveOptions {
        max_shard_bytes: 8,
        storage_writers: NonZeroUsize::new(3).unwrap(),
        progress: Some(Arc::new(move |progress| sink.lock().unwrap().push(progress))),
        ..SaveOptions::default()
    };
    CheckpointWriter::open(dir.path(), options).unwrap().save(&snapshot(5)).unwrap();
    let checkpoint = found(resolve(dir.path()).unwrap()).checkpoint;
    assert!(checkpoint.file_names().filter(|name| name.starts_with("optimizer-rank00000")).count() >= 4);
    assert_whole(&checkpoint);
    let seen = seen.lock().unwrap();
    let total: usize = snapshot(5).groups.iter().flat_map(|g| &g.tensors).map(|t| bytes_of(&t.source).len()).sum();
    assert!(seen.iter().all(|p| p.iteration == 5 && p.bytes_total == total as u64));
    assert_eq!(seen.iter().map(|p| p.bytes_done).max(), Some(total as u64));
}

#[test]
fn both_kinds_of_path_open() {
    let dir = root_with(&[3, 4]);
    let at = |path: &Path, ckpt_step| {
        CheckpointStore::open(path).unwrap().resolve(&LoadRequest { ckpt_step, ..LoadRequest::default() })
    };
    assert_eq!(found(at(dir.path(), None).unwrap()).checkpoint.iteration(), 4);
    assert_eq!(found(at(dir.path(), Some(3)).unwrap()).checkpoint.iteration(), 3);
    assert_eq!(found(at(&folder(dir.path(), 3), None).unwrap()).checkpoint.iteration(), 3);
    assert_eq!(found(at(&folder(dir.path(), 3), Some(3)).unwrap()).checkpoint.iteration(), 3);
    assert!(matches!(at(&folder(dir.path(), 3), Some(4)), Err(CheckpointError::StepNotFound { step: 4, .. })));
    // A renamed checkpoint is still found, and so is a checkpoint behind symbolic links.
    let base = dir.path().join("base");
    fs::rename(folder(dir.path(), 3), &base).unwrap();
    assert_eq!(found(at(&base, None).unwrap()).checkpoint.iteration(), 3);
    std::os::unix::fs::symlink(&base, folder(dir.path(), 3)).unwrap();
    assert_eq!(found(at(dir.path(), Some(3)).unwrap()).checkpoint.iteration(), 3);
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    assert_eq!(found(at(&link, None).unwrap()).checkpoint.iteration(), 4);
}

#[test]
fn the_list_tells_what_is_there() {
    let dir = root_with(&[1, 2]);
    fs::remove_file(folder(dir.path(), 1).join(TRAIN_STATE_FILE)).unwrap();
    let list = CheckpointStore::open(dir.path()).unwrap().list().unwrap();
    let brief: Vec<_> = list.iter().map(|s| (s.iteration, s.is_complete(), s.bytes > 0)).collect();
    assert_eq!(brief, [(Some(1), false, false), (Some(2), true, true)]);
    assert_eq!(list[0].damage, [Damage::FileMissing { file: TRAIN_STATE_FILE.into() }]);
    assert!(list[1].saved_at.unwrap().elapsed().unwrap().as_secs() < 600);
}

#[test]
fn wrong_expectations_name_both_sides_and_a_neighbour() {
    let dir = root_with(&[1]);
    let checkpoint = found(resolve(dir.path()).unwrap()).checkpoint;
    let text = checkpoint.load_tensor("model.bg").unwrap_err().to_string();
    assert!(text.contains("no tensor `model.bg`; the nearest name is `model.big`"), "{text}");
    checkpoint.expect("model.bf16", DType::BF16, &[3, 1]).unwrap();
    let text = checkpoint.expect("model.bf16", DType::F16, &[1, 3]).unwrap_err().to_string();
    assert!(text.contains("expected F16 [1, 3], found BF16 [3, 1]; the nearest name is `model.f16`"), "{text}");
    let bad: [(&[usize], &[usize]); 7] = [
        (&[0, 0], &[4, 1]),
        (&[0], &[1]),
        (&[2, 0], &[usize::MAX, 1]),
        (&[0, 0, 0], &[1, 1, 1]),
        (&[usize::MAX, 0], &[0, 1]),
        (&[0, 0], &[1]),
        (&[0], &[1, 1]),
    ];
    for (offset, extent) in bad {
        let slice = TensorSlice { offset: offset.to_vec(), extent: extent.to_vec() };
        let error = checkpoint.load_slice("model.bf16", &slice).unwrap_err();
        assert!(matches!(error, CheckpointError::InvalidSlice { .. }), "{slice}");
    }
    let error = checkpoint.read_slice_into("model.bf16", &TensorSlice::whole(&[3, 1]), &mut [0; 5]).unwrap_err();
    assert!(error.to_string().contains("takes 6 bytes, the buffer has 5"), "{error}");
    assert!(checkpoint.file("tokeniser.json").is_err());
}

/// A matrix cut into tiles that four ranks hold, and columns so wide apart that the window moves
/// on.
#[test]
fn slices_of_several_ranks_are_one_tensor() {
    const ROWS: usize = 6;
    const COLUMNS: usize = 20_000;
    let value = |row: usize, column: usize| (row * COLUMNS + column) as f32;
    let dir = tempfile::tempdir().unwrap();
    let writer = writer(dir.path());
    let staging = writer.begin(7).unwrap();
    let mut shards = Vec::new();
    let tiles = [(0..2, 0..500), (0..2, 500..COLUMNS), (2..6, 0..12_000), (2..6, 12_000..COLUMNS)];
    for (rank, (rows, columns)) in tiles.into_iter().enumerate() {
        let elements = rows.clone().flat_map(|r| columns.clone().map(move |c| value(r, c))).collect();
        let tile = HostTensor::from_vec([rows.len(), columns.len()], elements).unwrap();
        let tensors = vec![ShardTensor::slice("w", [ROWS, COLUMNS], [rows.start, columns.start], tile)];
        let joined = Staging::join(dir.path(), 7, SaveOptions::default()).unwrap();
        let written = joined.write_shards(rank, &[TensorGroup { name: "model".into(), tensors }]).unwrap();
        // The shards as ranks send them to each other.
        shards.extend(serde_json::from_str::<Vec<WrittenShard>>(&serde_json::to_string(&written).unwrap()).unwrap());
    }
    let run = RunFiles { train_state: TrainState { step: 7, ..TrainState::default() }, ..RunFiles::default() };
    writer.publish(staging, &run, &shards).unwrap();

    let checkpoint = found(resolve(dir.path()).unwrap()).checkpoint;
    assert_eq!(checkpoint.tensor("w").unwrap().slices.len(), 4);
    let parts =
        [(0..6, 0..COLUMNS), (1..5, 499..501), (0..6, 11_999..12_002), (3..4, 0..COLUMNS), (2..2, 0..3), (5..6, 7..8)];
    for (rows, columns) in parts {
        let expected: Vec<f32> = rows.clone().flat_map(|r| columns.clone().map(move |c| value(r, c))).collect();
        let part = checkpoint.load_slice("w", &TensorSlice::from_iter([rows.clone(), columns.clone()])).unwrap();
        assert_eq!(part.shape(), [rows.len(), columns.len()]);
        assert_eq!(part.to_vec::<f32>().unwrap(), expected, "{rows:?} {columns:?}");
    }
}

#[test]
fn a_narrow_column_of_a_long_matrix_moves_the_window() {
    let (rows, columns) = (70_000, 11);
    let dir = tempfile::tempdir().unwrap();
    let elements: Vec<i32> = (0..rows * columns).collect();
    let shape = [rows as usize, columns as usize];
    let tensors = vec![ShardTensor::whole("w", HostTensor::from_vec(shape, elements).unwrap())];
    let groups = vec![TensorGroup { name: "model".into(), tensors }];
    writer(dir.path()).save(&Snapshot { groups, ..Snapshot::default() }).unwrap();
    let checkpoint = found(resolve(dir.path()).unwrap()).checkpoint;
    let part =
        checkpoint.load_slice("w", &TensorSlice::from_iter([0..shape[0], 4..6])).unwrap().to_vec::<i32>().unwrap();
    let expected: Vec<i32> = (0..rows).flat_map(|row| [row * columns + 4, row * columns + 5]).collect();
    assert!(part == expected);
}

#[test]
fn snapshots_that_are_no_checkpoint_are_refused_without_a_trace() {
    let dir = root_with(&[1]);
    let writer = writer(dir.path());
    let tensor = |name: &str| ShardTensor::whole(name, HostTensor::scalar(1f32));
    let with_tensors = |tensors: Vec<ShardTensor>| {
        let mut snapshot = snapshot(2);
        snapshot.groups.push(TensorGroup { name: "extra".into(), tensors });
        snapshot
    };
    let with_file = |name: &str| {
        let mut snapshot = snapshot(2);
        snapshot.run.files.insert(name.into(), Vec::new().into());
        snapshot
    };
    let half = ShardTensor::slice("x", [2, 2], [0, 0], HostTensor::from_vec([1, 2], vec![0f32; 2]).unwrap());
    let bad = [
        (with_tensors(vec![tensor("x"), tensor("x")]), "twice"),
        (with_tensors(vec![tensor("model.big")]), "in group model"),
        (with_tensors(vec![half]), "2 of 4 elements"),
        (with_file(METADATA_FILE), METADATA_FILE),
        (with_file(TRAIN_STATE_FILE), TRAIN_STATE_FILE),
        (with_file("model-rank00000.safetensors"), "model-rank00000"),
        (with_file("../escape"), "../escape"),
        (with_file("/absolute"), "/absolute"),
        (with_file("tokenizer.json/inside"), "tokenizer.json"),
    ];
    for (snapshot, part) in bad {
        let text = writer.save(&snapshot).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
        assert_eq!(names_in(dir.path()), [JOURNAL_FILE, "iter_0000001", LATEST_FILE]);
    }
    assert_eq!(found(resolve(dir.path()).unwrap()).checkpoint.iteration(), 1);
}

#[test]
fn ranks_without_a_common_folder_are_told() {
    let dir = root_with(&[]);
    assert!(Staging::join(dir.path(), 7, SaveOptions::default()).unwrap_err().to_string().contains("join"));
    let writer = writer(dir.path());
    let staging = writer.begin(7).unwrap();
    let shards = staging.write_shards(0, &snapshot(7).groups).unwrap();
    fs::remove_file(dir.path().join(".tmp-iter_0000007").join(&shards[0].file)).unwrap();
    let error = writer.publish(staging, &snapshot(7).run, &shards).unwrap_err().to_string();
    assert!(error.contains(&shards[0].file), "{error}");
    let staging = writer.begin(7).unwrap();
    assert!(writer.publish(staging, &snapshot(8).run, &[]).unwrap_err().to_string().contains("step is 8"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_part_of_any_tensor_is_that_part(
        shape in prop::collection::vec(1usize..6, 0..4),
        cut in any::<u64>(),
        picks in prop::collection::vec((any::<u64>(), any::<u64>()), 4),
    ) {
        let count: usize = shape.iter().product();
        let elements: Vec<u32> = (0..u32::try_from(count).unwrap()).collect();
        // Two ranks share the first dimension.
        let rows = shape.first().copied().unwrap_or(1);
        let at = usize::try_from(cut % (rows as u64 + 1)).unwrap();
        let split = at * count / rows;
        let tensors = if shape.is_empty() {
            vec![ShardTensor::whole("w", HostTensor::from_vec(shape.clone(), elements.clone()).unwrap())]
        } else {
            [(0, at, &elements[..split]), (at, rows - at, &elements[split..])].map(|(start, len, elements)| {
                let mut extent = shape.clone();
                extent[0] = len;
                let mut offset = vec![0; shape.len()];
                offset[0] = start;
                ShardTensor::slice("w", shape.clone(), offset, HostTensor::from_vec(extent, elements.to_vec()).unwrap())
            }).into()
        };
        // Both in one group would have the same key when one of them is empty and begins where the
        // other does.
        let groups = tensors.into_iter().enumerate()
            .map(|(rank, tensor)| (rank, [TensorGroup { name: "model".into(), tensors: vec![tensor] }]));
        let dir = tempfile::tempdir().unwrap();
        let writer = writer(dir.path());
        let staging = writer.begin(0).unwrap();
        let shards: Vec<_> = groups.flat_map(|(rank, group)| staging.write_shards(rank, &group).unwrap()).collect();
        writer.publish(staging, &RunFiles::default(), &shards).unwrap();
        let checkpoint = found(resolve(dir.path()).unwrap()).checkpoint;

        let ranges: Vec<_> = shape.iter().zip(&picks).map(|(&dim, (a, b))| {
            let pick = |x: &u64| usize::try_from(x % (dim as u64 + 1)).unwrap();
            pick(a).min(pick(b))..pick(a).max(pick(b))
        }).collect();
        let expected: Vec<u32> = elements.iter().copied().filter(|&index| {
            let mut index = index as usize;
            shape.iter().zip(&ranges).rev().all(|(&dim, range)| {
                let at = index % dim;
                index /= dim;
                range.contains(&at)
            })
        }).collect();
        prop_assert_eq!(checkpoint.load_slice("w", &ranges.into_iter().collect()).unwrap().to_vec::<u32>().unwrap(), expected);
    }
}
