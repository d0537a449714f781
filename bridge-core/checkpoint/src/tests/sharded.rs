//! Checkpoints written by several ranks, and read at other layouts.

use std::ops::Range;
use std::time::Duration;

use bridge_dist::comm::Group;
use bridge_dist::comm::thread::run_ranks;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Tensors of a small model: name, shape, dimension that tensor parallelism cuts, and in how many
/// blocks.
type Case = (&'static str, &'static [usize], Option<(usize, usize)>);

const TENSORS: &[Case] = &[
    ("embedding", &[24, 5], Some((0, 1))),
    ("fc1", &[48, 5], Some((0, 2))),
    ("fc2", &[5, 24], Some((1, 1))),
    ("gated", &[3, 16], Some((1, 2))),
    ("norm", &[5], None),
];

/// Distribution of a checkpoint: tensor-parallel ranks, and among them owners of flat ranges (a
/// distributed optimizer).
#[derive(Clone, Copy, Debug)]
struct Spread {
    tensor: usize,
    owners: usize,
}

impl Spread {
    fn ranks(self) -> usize {
        self.tensor * self.owners
    }

    /// The part of tensor `index` that `rank` has of the whole, and the range of it that it owns.
    fn local(self, index: usize, rank: usize) -> (LocalShard, Range<usize>) {
        let (_, shape, cut) = TENSORS[index];
        let (tensor_rank, owner) = (rank % self.tensor, rank / self.tensor);
        let mut shard = LocalShard::whole(shape);
        if let Some((dim, blocks)) = cut.filter(|_| self.tensor > 1) {
            let (size, block) = (shape[dim], shape[dim] / blocks);
            let part = block / self.tensor;
            let starts = (0..blocks).map(|b| b * block + tensor_rank * part);
            shard.shape[dim] = size / self.tensor;
            shard.shard = Some(Shard { dim, size, parts: starts.map(|start| start..start + part).collect() });
        }
        let count = shard.num_elements();
        let owned = count * owner / self.owners..count * (owner + 1) / self.owners;
        let is_copy = shard.shard.is_none() && tensor_rank > 0;
        (shard, if is_copy { 0..0 } else { owned })
    }
}

/// Every element of the whole says where it is.
fn whole(index: usize) -> Vec<f32> {
    let count: usize = TENSORS[index].1.iter().product();
    (0..count).map(|i| (1000 * index + i) as f32).collect()
}

/// The elements `flat` of a part, cut out of the whole without the code under test.
fn cut_out(index: usize, shard: &LocalShard, flat: Range<usize>) -> Vec<f32> {
    let whole = whole(index);
    let shape = shard.global_shape();
    flat.map(|mut i| {
        let mut at = vec![0; shape.len()];
        for d in (0..shape.len()).rev() {
            at[d] = i % shard.shape[d];
            i /= shard.shape[d];
        }
        if let Some(cut) = &shard.shard {
            at[cut.dim] = cut.parts.iter().cloned().flatten().nth(at[cut.dim]).unwrap();
        }
        whole[at.iter().zip(&shape).fold(0, |sum, (i, size)| sum * size + i)]
    })
    .collect()
}

fn rank_snapshot(spread: Spread, rank: usize, step: u64) -> Snapshot {
    let mut tensors = Vec::new();
    for (index, (name, ..)) in TENSORS.iter().enumerate() {
        let (shard, owned) = spread.local(index, rank);
        if owned.is_empty() {
            continue;
        }
        let values = cut_out(index, &shard, owned.clone());
        let values = HostTensor::from_vec([values.len()], values).unwrap();
        tensors.extend(ShardTensor::of_local(name, &shard, owned, &values).unwrap());
    }
    let mut run = RunFiles { train_state: TrainState { step, ..TrainState::default() }, ..RunFiles::default() };
    if rank == 0 {
        run.run_config = "[train]\n".into();
        run.files.insert("tokenizer.json".into(), b"{}".to_vec().into());
    }
    Snapshot { run, groups: vec![TensorGroup { name: "model".into(), tensors }] }
}

fn save(root: &Path, spread: Spread, step: u64) -> Vec<SaveReport> {
    let ranks = run_ranks(spread.ranks(), TIMEOUT, |group| {
        let rank = group.rank();
        ShardedWriter::open(root, SaveOptions::default(), group)?.save(&rank_snapshot(spread, rank, step))
    });
    ranks.unwrap()
}

const SPREADS: [Spread; 5] = [
    Spread { tensor: 1, owners: 1 },
    Spread { tensor: 1, owners: 3 },
    Spread { tensor: 2, owners: 1 },
    Spread { tensor: 4, owners: 1 },
    Spread { tensor: 2, owners: 2 },
];

#[test]
fn what_any_ranks_saved_any_other_ranks_read() {
    for saved in SPREADS {
        let dir = tempfile::tempdir().unwrap();
        let reports = save(dir.path(), saved, 7);
        assert!(reports.iter().all(|report| report.iteration == 7 && report.path == folder(dir.path(), 7)));
        let resolved = found(resolve(dir.path()).unwrap());
        let checkpoint = resolved.checkpoint;
        assert!(resolved.report.is_empty());
        assert_eq!(checkpoint.run_config().unwrap(), "[train]\n");
        for loaded in SPREADS {
            for rank in 0..loaded.ranks() {
                for (index, (name, ..)) in TENSORS.iter().enumerate() {
                    let (shard, owned) = loaded.local(index, rank);
                    for flat in [0..shard.num_elements(), owned] {
                        let found = checkpoint.load_local(name, &shard, flat.clone()).unwrap();
                        let expected = cut_out(index, &shard, flat);
                        assert_eq!(found.to_vec::<f32>().unwrap(), expected, "{name}, {saved:?} -> {loaded:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_metadata_says_which_slice_of_the_whole_each_piece_is() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), Spread { tensor: 2, owners: 1 }, 1);
    let checkpoint = found(resolve(dir.path()).unwrap()).checkpoint;
    let record = checkpoint.tensor("fc1").unwrap();
    assert_eq!(record.shape, [48, 5]);
    let mut slices: Vec<_> =
        record.slices.iter().map(|s| (s.slice.offset.clone(), s.slice.extent.clone(), &s.file)).collect();
    slices.sort();
    let file = |rank: usize| format!("model-rank0000{rank}.safetensors");
    let expected: Vec<_> =
        [(0, 0), (12, 1), (24, 0), (36, 1)].map(|(row, rank)| (vec![row, 0], vec![12, 5], file(rank))).into();
    assert_eq!(slices.into_iter().map(|(a, b, c)| (a, b, c.clone())).collect::<Vec<_>>(), expected);
    assert_eq!(checkpoint.tensor("norm").unwrap().slices.len(), 1);
}

#[test]
fn a_tensor_of_another_size_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), Spread { tensor: 1, owners: 1 }, 1);
    let checkpoint = found(resolve(dir.path()).unwrap()).checkpoint;
    let error = checkpoint.load_local("fc1", &LocalShard::whole([48, 6]), 0..288).unwrap_err().to_string();
    assert!(error.contains("expected F32 [48, 6]") && error.contains("found F32 [48, 5]"), "{error}");
}

/// Saves with one rank's snapshot spoilt. Returns each rank's error.
fn failed_save(root: &Path, spoil: impl Fn(usize, &mut Snapshot) + Sync) -> Vec<String> {
    let spread = Spread { tensor: 2, owners: 2 };
    let ranks = run_ranks(spread.ranks(), TIMEOUT, |group| {
        let rank = group.rank();
        let mut snapshot = rank_snapshot(spread, rank, 2);
        spoil(rank, &mut snapshot);
        let writer = ShardedWriter::open(root, SaveOptions::default(), group)?;
        Ok::<_, CheckpointError>(writer.save(&snapshot).unwrap_err().to_string())
    });
    ranks.unwrap()
}

#[test]
fn a_failure_on_any_rank_is_one_on_all_and_leaves_nothing() {
    let dir = root_with(&[1]);
    let before = files_below(dir.path());
    for spoilt in 0..4 {
        let messages = failed_save(dir.path(), |rank, snapshot| {
            if rank == spoilt {
                snapshot.groups[0].name = "no/name".into();
            }
        });
        for (rank, message) in messages.iter().enumerate() {
            let expected = if rank == spoilt { "no/name".to_owned() } else { format!("rank {spoilt} failed") };
            assert!(message.contains(&expected), "{message}");
        }
        assert_eq!(files_below(dir.path()), before);
    }
    // The ranks' slices overlap: only the first rank sees it, all fail.
    let messages = failed_save(dir.path(), |rank, snapshot| {
        if rank == 3 {
            *snapshot = rank_snapshot(Spread { tensor: 2, owners: 2 }, 1, 2);
        }
    });
    assert!(messages[0].contains("overlap"), "{}", messages[0]);
    assert!(messages[1..].iter().all(|message| message.contains("rank 0 failed in publishing")), "{messages:?}");
    assert_eq!(files_below(dir.path()), before);
    assert_eq!(found(resolve(dir.path()).unwrap()).checkpoint.iteration(), 1);
}

#[test]
fn a_rank_that_dies_leaves_the_checkpoint_before() {
    let dir = root_with(&[1]);
    let spread = Spread { tensor: 2, owners: 1 };
    let outcome = run_ranks(2, TIMEOUT, |group| {
        let rank = group.rank();
        let writer = ShardedWriter::open(dir.path(), SaveOptions::default(), group)?;
        assert!(rank == 0, "the second rank dies");
        writer.save(&rank_snapshot(spread, rank, 2)).map(drop)
    });
    assert!(outcome.unwrap_err().to_string().contains("the second rank dies"));
    let unfinished = |name: &&String| name.contains("0000002");
    assert_eq!(names_in(dir.path()).iter().find(unfinished), None);
    assert_eq!(found(resolve(dir.path()).unwrap()).checkpoint.iteration(), 1);
}

#[test]
fn ranks_save_together_in_the_background() {
    let dir = tempfile::tempdir().unwrap();
    let spread = Spread { tensor: 2, owners: 2 };
    let ranks = run_ranks(spread.ranks(), TIMEOUT, |world| {
        let rank = world.rank();
        let group: Group = world.split(Some(0), rank, "checkpoint")?.expect("every rank is in the group");
        let mut saver = AsyncSaver::new(ShardedWriter::open(dir.path(), SaveOptions::default(), group)?)?;
        for step in 1..4 {
            saver.submit(rank_snapshot(spread, rank, step))?;
            // Training communicates meanwhile.
            let mut sum = [1_f32];
            world.all_reduce((&mut sum).into(), bridge_dist::comm::ReduceOp::Sum)?;
            assert_eq!(sum, [4.0]);
        }
        let report = saver.finish()?.expect("the last save was not collected");
        Ok::<_, CheckpointError>(report.iteration)
    });
    assert_eq!(ranks.unwrap(), [3; 4]);
    let store = CheckpointStore::open(dir.path()).unwrap();
    assert_eq!(store.list().unwrap().len(), 3);
    assert!(store.list().unwrap().iter().all(|summary| summary.damage.is_empty()));
}

/// Checkpoint that three ranks find together in a root of checkpoints 1 and 2.
fn resolve_on_three_ranks(root: &Path, fallback: bool) -> Result<(u64, String), String> {
    let request = LoadRequest { fallback, ..LoadRequest::default() };
    let look = |verifier: &Verifier<'_>| CheckpointStore::open(root)?.resolve_with(&request, verifier);
    let found = run_ranks(3, TIMEOUT, |group| {
        let found = verify_with_all_ranks(&group, look).expect("ranks can communicate");
        assert_eq!(found.is_some(), group.rank() == 0);
        Ok::<_, CheckpointError>(found.map(|found| match found {
            Ok(Resolution::Found(found)) => Ok((found.checkpoint.iteration(), found.report.to_string())),
            Ok(Resolution::NothingFound { .. }) => Err("nothing".to_owned()),
            Err(error) => Err(error.to_string()),
        }))
    });
    found.expect("no rank fails").swap_remove(0).expect("the first rank has looked")
}

#[test]
fn ranks_verify_together_what_one_would_verify_alone() {
    let dir = root_with(&[1, 2]);
    assert_eq!(resolve_on_three_ranks(dir.path(), false), Ok((2, String::new())));
    let newest = folder(dir.path(), 2);
    // The damage is found and named as by one process, independent of the rank that reads the file.
    let files: Vec<(PathBuf, Vec<u8>)> =
        files_below(&newest).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    for (path, original) in files.iter().filter(|(_, original)| !original.is_empty()) {
        // In the header of a shard, and in its data.
        for index in [9.min(original.len() - 1), original.len() - 1] {
            let mut bytes = original.clone();
            bytes[index] ^= 1;
            fs::write(path, bytes).unwrap();
            let error = resolve_on_three_ranks(dir.path(), false).expect_err("it is damaged");
            assert_eq!(error, resolve(dir.path()).expect_err("it is damaged").to_string());
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(error.contains(&name) && error.contains("iteration 1 is intact"), "{error}");
            let (iteration, report) = resolve_on_three_ranks(dir.path(), true).expect("1 is intact");
            assert!(iteration == 1 && report.contains(&name), "{report}");
        }
        fs::write(path, original).unwrap();
    }
    fs::remove_dir_all(&newest).unwrap();
    assert!(resolve_on_three_ranks(dir.path(), true).is_ok());
    let nothing = tempfile::tempdir().unwrap();
    assert_eq!(resolve_on_three_ranks(nothing.path(), false), Err("nothing".to_owned()));
}
