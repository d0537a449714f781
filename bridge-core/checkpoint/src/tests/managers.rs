//! Checkpoints that a manager keeps in another place: stored files after a save and after a save
//! interrupted at any operation, and fetched checkpoints.

use std::sync::{Arc, Mutex};

use bridge_dist::comm::Group;
use bridge_dist::comm::single::SingleCommunicator;

use super::*;

/// A store of objects by iteration and name. After some operations nothing works any more, as for a
/// process that is killed.
#[derive(Default)]
struct Objects {
    stored: Mutex<Stored>,
    left: Mutex<Option<usize>>,
}

/// Objects by iteration and name.
type Stored = BTreeMap<(u64, String), Vec<u8>>;

const MANIFEST: &str = "manifest";

impl Objects {
    fn operation(&self) -> Result<(), ManagerError> {
        let mut left = self.left.lock().unwrap();
        match left.as_mut() {
            Some(0) => return Err("the process is gone".into()),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    fn names(&self, iteration: u64) -> Vec<String> {
        let stored = self.stored.lock().unwrap();
        stored.keys().filter(|(of, _)| *of == iteration).map(|(_, name)| name.clone()).collect()
    }

    /// Works from now on, or stops after this number of operations.
    fn stop_after(&self, operations: Option<usize>) {
        *self.left.lock().unwrap() = operations;
    }
}

impl CheckpointManager for Objects {
    fn list(&self) -> Result<Vec<u64>, ManagerError> {
        self.operation()?;
        let stored = self.stored.lock().unwrap();
        Ok(stored.keys().filter(|(_, name)| name == MANIFEST).map(|(iteration, _)| *iteration).collect())
    }

    fn put(&self, iteration: u64, name: &str, file: &Path) -> Result<(), ManagerError> {
        self.operation()?;
        self.stored.lock().unwrap().insert((iteration, name.to_owned()), fs::read(file)?);
        Ok(())
    }

    fn commit(&self, iteration: u64, manifest: &[u8]) -> Result<(), ManagerError> {
        self.operation()?;
        self.stored.lock().unwrap().insert((iteration, MANIFEST.into()), manifest.to_vec());
        Ok(())
    }

    fn manifest(&self, iteration: u64) -> Result<Vec<u8>, ManagerError> {
        self.operation()?;
        Ok(self.stored.lock().unwrap().get(&(iteration, MANIFEST.into())).ok_or("no manifest")?.clone())
    }

    fn open(&self, iteration: u64, name: &str, file: &Path) -> Result<bool, ManagerError> {
        self.operation()?;
        let stored = self.stored.lock().unwrap();
        let Some(bytes) = stored.get(&(iteration, name.to_owned())) else { return Ok(false) };
        fs::write(file, bytes)?;
        Ok(true)
    }

    fn delete(&self, iteration: u64) -> Result<(), ManagerError> {
        self.operation()?;
        self.stored.lock().unwrap().remove(&(iteration, MANIFEST.to_owned()));
        for name in self.names(iteration) {
            self.operation()?;
            self.stored.lock().unwrap().remove(&(iteration, name));
        }
        Ok(())
    }

    fn clear_up(&self) -> Result<(), ManagerError> {
        let committed = self.list()?;
        self.stored.lock().unwrap().retain(|(iteration, _), _| committed.contains(iteration));
        Ok(())
    }
}

fn named(objects: &Arc<Objects>) -> NamedManager {
    NamedManager { name: "objects".into(), manager: Arc::clone(objects) as Arc<dyn CheckpointManager> }
}

fn options(objects: &Arc<Objects>, keep: i64) -> SaveOptions {
    let retention = RetentionPolicy::new(keep, None).unwrap();
    SaveOptions { retention, manager: Some(named(objects)), ..SaveOptions::default() }
}

/// The iteration and the first number of the checkpoint fetched to an empty folder, and the notes.
fn fetched(objects: &Arc<Objects>) -> (Option<(u64, f32)>, Vec<String>) {
    let root = tempfile::tempdir().unwrap();
    let notes = named(objects).fetch(root.path(), None).unwrap();
    let found = match CheckpointStore::open(root.path()).unwrap().resolve(&LoadRequest::default()).unwrap() {
        Resolution::Found(found) => {
            assert!(found.report.is_empty(), "{}", found.report);
            let value = found.checkpoint.load_float_rows("model.big", 0..1).unwrap()[0];
            Some((found.checkpoint.iteration(), value))
        }
        Resolution::NothingFound { .. } => None,
    };
    (found, notes)
}

#[test]
fn checkpoints_come_back_from_where_they_are_kept() {
    let objects = Arc::new(Objects::default());
    assert_eq!(fetched(&objects), (None, Vec::new()));
    let root = tempfile::tempdir().unwrap();
    let writer = CheckpointWriter::open(root.path(), options(&objects, 2)).unwrap();
    for step in [3, 5, 8] {
        let report = writer.save(&snapshot_of(step, step as f32)).unwrap();
        assert!(report.prune_error.is_none());
    }
    // Retention deletes the same checkpoints in the manager.
    let mut listed = objects.list().unwrap();
    listed.sort_unstable();
    assert_eq!(listed, [5, 8]);
    assert_eq!(objects.names(3), [""; 0]);
    let (found, notes) = fetched(&objects);
    assert_eq!(found, Some((8, 8.0)));
    assert!(notes[0].contains("fetched iteration 8 from objects"), "{notes:?}");
    // A checkpoint that is present and as new is not fetched again.
    assert_eq!(named(&objects).fetch(root.path(), None).unwrap(), [""; 0]);
    // Fetches a given step.
    let other = tempfile::tempdir().unwrap();
    named(&objects).fetch(other.path(), Some(5)).unwrap();
    assert_eq!(CheckpointStore::open(other.path()).unwrap().list().unwrap().len(), 1);
    assert!(other.path().join("iter_0000005").is_dir());
}

#[test]
fn a_damaged_one_there_is_skipped_and_a_damaged_one_here_comes_back() {
    let objects = Arc::new(Objects::default());
    let root = tempfile::tempdir().unwrap();
    let writer = CheckpointWriter::open(root.path(), options(&objects, -1)).unwrap();
    for step in [1, 2] {
        writer.save(&snapshot_of(step, step as f32)).unwrap();
    }
    let shard = objects.names(2).into_iter().find(|name| name.starts_with("model")).unwrap();
    // Here.
    let file = root.path().join("iter_0000002").join(&shard);
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(named(&objects).fetch(root.path(), None).unwrap().len(), 1);
    let found = CheckpointStore::open(root.path()).unwrap().resolve(&LoadRequest::default()).unwrap();
    assert!(matches!(found, Resolution::Found(found) if found.checkpoint.iteration() == 2 && found.report.is_empty()));
    // There: a bit, a file, the manifest.
    let harms: [fn(&mut Stored, &str); 3] = [
        |stored, shard| *stored.get_mut(&(2, shard.to_owned())).unwrap().last_mut().unwrap() ^= 1,
        |stored, shard| drop(stored.remove(&(2, shard.to_owned()))),
        |stored, _| stored.get_mut(&(2, MANIFEST.into())).unwrap().truncate(40),
    ];
    for harm in harms {
        harm(&mut objects.stored.lock().unwrap(), &shard);
        let (found, notes) = fetched(&objects);
        assert_eq!(found, Some((1, 1.0)));
        assert!(notes[0].contains("iteration 2 of objects is damaged"), "{notes:?}");
    }
}

#[test]
fn a_save_that_is_cut_short_anywhere_leaves_the_one_before_or_itself() {
    // The second save is of another iteration, or of the same one again.
    for second in [1, 2] {
        let mut ends = Vec::new();
        for operations in 0.. {
            let objects = Arc::new(Objects::default());
            let root = tempfile::tempdir().unwrap();
            let writer = CheckpointWriter::open(root.path(), options(&objects, -1)).unwrap();
            writer.save(&snapshot_of(0, 10.0)).unwrap();
            writer.save(&snapshot_of(1, 1.0)).unwrap();
            objects.stop_after(Some(operations));
            let saved = writer.save(&snapshot_of(second, 7.0));
            objects.stop_after(None);
            let (found, notes) = fetched(&objects);
            assert_eq!(notes.len(), 1, "{notes:?}");
            match saved {
                Ok(_) => assert_eq!(found, Some((second, 7.0))),
                Err(error) => {
                    assert!(error.to_string().contains("custom_manager_class = objects"), "{error}");
                    // One that is replaced is gone as long as it is.
                    let before = if second == 1 { vec![(0, 10.0), (1, 1.0)] } else { vec![(1, 1.0)] };
                    assert!(before.contains(&found.unwrap()), "{found:?} after {operations} operations");
                }
            }
            // The next run clears up, and saves.
            let writer = CheckpointWriter::open(root.path(), options(&objects, -1)).unwrap();
            let committed = objects.list().unwrap();
            assert!(objects.stored.lock().unwrap().keys().all(|(iteration, _)| committed.contains(iteration)));
            writer.save(&snapshot_of(3, 3.0)).unwrap();
            assert_eq!(fetched(&objects).0, Some((3, 3.0)));
            ends.push(found.unwrap().1);
            if ends.last() == Some(&7.0) {
                break;
            }
        }
        assert!(ends.len() > 5, "{ends:?}");
    }
}

#[test]
fn saves_in_the_background_are_kept_too() {
    let objects = Arc::new(Objects::default());
    let root = tempfile::tempdir().unwrap();
    let group: Group = Arc::new(SingleCommunicator::new("world"));
    let writer = ShardedWriter::open(root.path(), options(&objects, 1), group).unwrap();
    let mut saver = AsyncSaver::new(writer).unwrap();
    for step in [1, 2] {
        saver.submit(snapshot_of(step, step as f32)).unwrap();
    }
    assert_eq!(saver.finish().unwrap().unwrap().iteration, 2);
    assert_eq!((objects.list().unwrap(), fetched(&objects).0), (vec![2], Some((2, 2.0))));
    objects.stop_after(Some(2));
    saver.submit(snapshot_of(3, 3.0)).unwrap();
    let error = saver.finish().unwrap_err().to_string();
    assert!(error.contains("store") && error.contains("iteration 3"), "{error}");
}

#[test]
fn a_place_that_cannot_be_reached_is_an_error() {
    let objects = Arc::new(Objects::default());
    let root = tempfile::tempdir().unwrap();
    CheckpointWriter::open(root.path(), options(&objects, 1)).unwrap().save(&snapshot_of(1, 1.0)).unwrap();
    let empty = tempfile::tempdir().unwrap();
    for operations in 0..3 {
        objects.stop_after(Some(operations));
        let error = named(&objects).fetch(empty.path(), None).unwrap_err();
        assert!(matches!(&error, CheckpointError::Manager { manager, .. } if manager == "objects"), "{error}");
        assert!(!empty.path().join("iter_0000001").exists());
    }
}
