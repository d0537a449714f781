//! Temporary saves, between the persistent ones (`checkpoint.non_persistent_*`): where
//! they lie, how they are made, and which of them a run starts from. They belong to one run, which
//! the folder of its persistent checkpoints names.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bridge_data::untrusted_io;
use bridge_dist::mesh::ProcessGroups;

use super::saver::options;
use crate::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, IDENTITY_FILE, LoadRequest, LocalCheckpointWriter, Replication,
    Resolution, RetentionPolicy, SaveOptions, SaveReport, ShardedWriter, Snapshot, Verification, assemble,
    parse_iteration, verify_with_all_ranks,
};
use crate::config::{CheckpointConfig, NonPersistentType, RunConfig};
use crate::resilience::Heartbeat;
use crate::train::ranks::agreement;
use crate::train::resume::error::ResumeError;

/// The folder of global saves, where the recipe names none.
const FOLDER: &str = "non_persistent";
/// The file system of a machine's memory.
const MEMORY: &str = "/dev/shm";

/// Place of temporary saves.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SaveLocation {
    /// One folder for all ranks.
    Global(PathBuf),
    /// A folder on each machine, with one for each rank in it.
    Local(PathBuf),
}

impl SaveLocation {
    /// Place of the saves of the run `identity`; `None` if the recipe asks for no temporary
    /// saves.
    fn from_config(settings: &CheckpointConfig, identity: &str) -> Option<Self> {
        let save = settings.save.as_deref()?;
        Some(match settings.non_persistent_ckpt_type? {
            NonPersistentType::Global => Self::Global(match &settings.non_persistent_global_ckpt_dir {
                Some(folder) => folder.join(identity),
                None => save.join(FOLDER),
            }),
            NonPersistentType::Local => Self::Local(settings.non_persistent_local_ckpt_dir.as_deref()?.join(identity)),
            NonPersistentType::InMemory => Self::Local(Path::new(MEMORY).join(format!("bridge-{identity}"))),
        })
    }

    fn folder(&self) -> &Path {
        match self {
            Self::Global(folder) | Self::Local(folder) => folder,
        }
    }
}

/// Makes temporary saves, together with the other ranks.
#[derive(Debug)]
pub(in crate::train) struct NonPersistentSaves {
    writer: Writer,
    place: SaveLocation,
    /// Name of the place for people.
    told: String,
    is_first: bool,
}

#[derive(Debug)]
enum Writer {
    Global(ShardedWriter),
    Local(LocalCheckpointWriter),
}

impl NonPersistentSaves {
    /// Temporary saves of a configuration; `None` if it asks for none. Saves that are
    /// newer than `start`, where the run resumes, are of abandoned steps: they are deleted. All
    /// ranks call this together.
    pub(in crate::train) fn open(
        config: &RunConfig,
        groups: &ProcessGroups,
        start: u64,
        heartbeat: &Arc<Heartbeat>,
    ) -> Result<Option<Self>, ResumeError> {
        let settings = &config.checkpoint;
        let Some(save) = settings.save.as_deref().filter(|_| settings.non_persistent_ckpt_type.is_some()) else {
            return Ok(None);
        };
        let world = groups.world();
        let is_first = agreement::is_rank_zero(groups);
        let named = if is_first { name_run(save) } else { Ok(()) };
        agreement::agree(groups, "naming the run", named)?;
        let identity = agreement::agree(groups, "reading the name of the run", identity(save))?.unwrap_or_default();
        let Some(place) = SaveLocation::from_config(settings, &identity) else { return Ok(None) };
        let group = world.split(Some(0), world.rank(), "temporary saves")?.unwrap_or_else(|| world.clone());
        let writer = match &place {
            SaveLocation::Global(root) => {
                let is_newer = is_first && newest_in(root).is_some_and(|newest| newest > start);
                agreement::agree(groups, "deleting temporary saves", if is_newer { remove(root) } else { Ok(()) })?;
                let options = SaveOptions { retention: RetentionPolicy::new(1, None)?, ..options(settings, heartbeat) };
                Writer::Global(ShardedWriter::open(root, options, group)?)
            }
            SaveLocation::Local(root) => {
                let replication = settings.replication.then(|| Replication {
                    jump: settings.replication_jump.unwrap_or(1),
                    factor: settings.replication_factor,
                });
                let writer = LocalCheckpointWriter::open(root, options(settings, heartbeat), group, replication)?;
                let forgotten = writer.forget(|iteration| iteration > start).map_err(ResumeError::from);
                agreement::agree(groups, "deleting temporary saves", forgotten)?;
                Writer::Local(writer)
            }
        };
        let told = match (&place, &settings.non_persistent_local_ckpt_dir, &settings.non_persistent_global_ckpt_dir) {
            (SaveLocation::Local(_), Some(folder), _) | (SaveLocation::Global(_), _, Some(folder)) => {
                folder.display().to_string()
            }
            (SaveLocation::Local(_), None, _) => "memory".to_owned(),
            (SaveLocation::Global(folder), _, None) => folder.display().to_string(),
        };
        Ok(Some(Self { writer, place, told, is_first }))
    }

    /// The place in words.
    pub(in crate::train) fn told(&self) -> &str {
        &self.told
    }

    /// Saves the snapshots of all ranks, replacing the previous temporary save.
    pub(in crate::train) fn save(&self, snapshot: &Snapshot) -> Result<SaveReport, CheckpointError> {
        match &self.writer {
            Writer::Global(writer) => writer.save(snapshot),
            Writer::Local(writer) => writer.save(snapshot),
        }
    }

    /// Other ranks that keep copies of this rank's saves.
    pub(in crate::train) fn peers(&self) -> Vec<usize> {
        match &self.writer {
            Writer::Global(_) => Vec::new(),
            Writer::Local(writer) => writer.peers(),
        }
    }

    /// Deletes all temporary saves: a persistent checkpoint has their state.
    pub(in crate::train) fn remove(&self) -> Result<(), ResumeError> {
        match &self.writer {
            Writer::Global(_) if self.is_first => remove(self.place.folder())?,
            Writer::Global(_) => {}
            Writer::Local(writer) => {
                writer.remove()?;
                // Only the last rank finds the folder empty; on other ranks removal fails.
                let _ = std::fs::remove_dir(self.place.folder());
            }
        }
        Ok(())
    }
}

fn remove(folder: &Path) -> Result<(), ResumeError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(cannot(folder, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn cannot(folder: &Path, error: &std::io::Error) -> ResumeError {
    ResumeError::Folder {
        key: "checkpoint.non_persistent_ckpt_type",
        path: folder.to_owned(),
        message: error.to_string(),
    }
}

/// The name of the run that saves to `save`, if it has one.
fn identity(save: &Path) -> Result<Option<String>, ResumeError> {
    let path = save.join(IDENTITY_FILE);
    let text = match untrusted_io::read(&path, untrusted_io::TABLE_BYTES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => String::from_utf8_lossy(&read.map_err(|error| cannot(&path, &error))?).trim().to_owned(),
    };
    let is_name = !text.is_empty() && text.chars().all(|letter| letter.is_ascii_hexdigit());
    if is_name { Ok(Some(text)) } else { Err(cannot(&path, &std::io::Error::other("it is not the name of a run"))) }
}

/// Gives the run that saves to `save` a name, if it has none.
fn name_run(save: &Path) -> Result<(), ResumeError> {
    if identity(save)?.is_some() {
        return Ok(());
    }
    let name = RandomState::new().hash_one((SystemTime::now(), std::process::id()));
    let path = save.join(IDENTITY_FILE);
    untrusted_io::replace(&path, format!("{name:016x}\n").as_bytes()).map_err(|error| cannot(&path, &error))
}

/// The iteration of the newest folder of a checkpoint, which may not be whole.
fn newest_in(root: &Path) -> Option<u64> {
    let entries = std::fs::read_dir(root).ok()?.flatten();
    entries.filter_map(|entry| parse_iteration(entry.file_name().to_str()?)).max()
}

/// The iteration of the newest save of a run on this machine, persistent or temporary. Completeness
/// is not checked.
pub(in crate::train) fn newest_save(settings: &CheckpointConfig) -> Option<u64> {
    let save = settings.save.as_deref()?;
    let temporary = identity(save).ok().flatten().and_then(|identity| SaveLocation::from_config(settings, &identity));
    let temporary = temporary.and_then(|place| match place {
        SaveLocation::Global(folder) => newest_in(&folder),
        SaveLocation::Local(folder) => {
            std::fs::read_dir(folder).ok()?.flatten().filter_map(|rank| newest_in(&rank.path())).max()
        }
    });
    newest_in(save).max(temporary)
}

/// A temporary save to start from.
pub(super) struct Newer {
    pub checkpoint: Checkpoint,
    /// A folder that is only there until it is loaded, on the rank that deletes it.
    pub assembled: Option<PathBuf>,
    pub message: String,
}

/// Finds an intact temporary save of this run that is newer than `above`. Returns it with messages
/// about other saves; only the first rank has messages. All ranks call this together.
pub(super) fn find_newer(
    config: &RunConfig,
    groups: &ProcessGroups,
    above: Option<u64>,
) -> Result<(Option<Newer>, Vec<String>), ResumeError> {
    let settings = &config.checkpoint;
    let is_resumed = settings.load.is_none() || settings.load == settings.save;
    let applies = is_resumed && settings.ckpt_step.is_none() && !settings.finetune;
    let Some(save) = settings.save.as_deref().filter(|_| applies && settings.non_persistent_ckpt_type.is_some()) else {
        return Ok((None, Vec::new()));
    };
    let identity = agreement::agree(groups, "reading the name of the run", identity(save))?;
    let place = identity.and_then(|identity| SaveLocation::from_config(settings, &identity));
    match place {
        None => Ok((None, Vec::new())),
        Some(SaveLocation::Global(root)) => find_global(&root, groups, above),
        Some(SaveLocation::Local(root)) => find_pieces(&root, groups, above),
    }
}

fn find_global(
    root: &Path,
    groups: &ProcessGroups,
    above: Option<u64>,
) -> Result<(Option<Newer>, Vec<String>), ResumeError> {
    let request = LoadRequest { fallback: true, ..LoadRequest::default() };
    let looked = verify_with_all_ranks(groups.world(), |verifier| {
        let found = CheckpointStore::open(root).and_then(|store| store.resolve_with(&request, verifier));
        match found {
            Ok(Resolution::Found(found)) => (Some(found.checkpoint.iteration()), Vec::new()),
            Ok(Resolution::NothingFound { .. }) => (None, Vec::new()),
            // Temporary saves only save steps: without them the run resumes from the
            // persistent ones.
            Err(error) => (None, vec![format!("temporary saves: {error}")]),
        }
    })?;
    let (found, notes) = looked.unwrap_or_default();
    let mut shared = [found.map_or(-1.0, |iteration| iteration as f64)];
    agreement::max(groups.world(), &mut shared)?;
    let found = (shared[0] >= 0.0).then_some(shared[0] as u64);
    let Some(iteration) = found.filter(|iteration| above.is_none_or(|above| *iteration > above)) else {
        return Ok((None, notes));
    };
    let opened = CheckpointStore::open(root).and_then(|store| store.open_iteration(iteration, Verification::Sizes));
    let checkpoint = agreement::agree(groups, "opening a temporary save", opened.map_err(ResumeError::from))?;
    let message = format!("resuming from {} (iteration {iteration}, a temporary save)", checkpoint.path().display());
    Ok((Some(Newer { checkpoint, assembled: None, message }), notes))
}

fn find_pieces(
    root: &Path,
    groups: &ProcessGroups,
    above: Option<u64>,
) -> Result<(Option<Newer>, Vec<String>), ResumeError> {
    let world = groups.world();
    let leader = agreement::first_of_machine(world)?;
    let assembly = assemble(root, leader, world, above)?;
    let is_first = agreement::is_rank_zero(groups);
    let notes = if is_first { assembly.notes } else { Vec::new() };
    let found = assembly.found.map(|found| {
        let from_others = match found.received {
            0 => String::new(),
            count => format!(", {count} of its files from another machine"),
        };
        let iteration = found.checkpoint.iteration();
        let message =
            format!("resuming from {} (iteration {iteration}, a temporary save{from_others})", root.display());
        let assembled = (leader == world.rank()).then_some(found.folder);
        Newer { checkpoint: found.checkpoint, assembled, message }
    });
    Ok((found, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_one_name() {
        let save = tempfile::tempdir().unwrap();
        assert_eq!(identity(save.path()).unwrap(), None);
        name_run(save.path()).unwrap();
        let name = identity(save.path()).unwrap().unwrap();
        name_run(save.path()).unwrap();
        assert_eq!(identity(save.path()).unwrap(), Some(name.clone()));
        let settings = CheckpointConfig {
            save: Some(save.path().to_owned()),
            non_persistent_ckpt_type: Some(NonPersistentType::InMemory),
            ..CheckpointConfig::default()
        };
        let place = SaveLocation::from_config(&settings, &name).unwrap();
        assert_eq!(place.folder(), Path::new("/dev/shm").join(format!("bridge-{name}")));
        std::fs::write(save.path().join(IDENTITY_FILE), "../../etc").unwrap();
        assert!(identity(save.path()).is_err(), "a name is no path");
    }
}
