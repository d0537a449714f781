//! The writer of a run's checkpoints: on the training thread, or in the background.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use bridge_dist::mesh::ProcessGroups;

use crate::checkpoint::{
    AsyncSaver, CheckpointError, CheckpointManager, NamedManager, RetentionPolicy, SaveOptions, SaveReport,
    ShardedWriter, Snapshot,
};
use crate::config::{CheckpointConfig, ConfigError, ErrorKind, RunConfig};
use crate::logging::SaveStage;
use crate::resilience::Heartbeat;
use crate::train::resume::error::ResumeError;

/// Writes checkpoints with all ranks, on the training thread or in the background.
#[derive(Debug)]
pub(in crate::train) enum Saver {
    /// `checkpoint.async_save = false`.
    Sync(Box<ShardedWriter>),
    /// `checkpoint.async_save = true`.
    Async(AsyncSaver),
}

/// Save options of a run. A writing rank gives heartbeats.
pub(super) fn options(settings: &CheckpointConfig, heartbeat: &Arc<Heartbeat>) -> SaveOptions {
    let heartbeat = Arc::clone(heartbeat);
    SaveOptions {
        storage_writers: NonZeroUsize::new(settings.storage_writers_per_rank).unwrap_or(NonZeroUsize::MIN),
        producer: concat!("bridge ", env!("CARGO_PKG_VERSION")).to_owned(),
        progress: Some(Arc::new(move |_| heartbeat.beat())),
        ..SaveOptions::default()
    }
}

/// The manager that a configuration names, of those that the program has registered.
pub(in crate::train) fn named_manager(
    config: &RunConfig,
    managers: &BTreeMap<String, Arc<dyn CheckpointManager>>,
) -> Result<Option<NamedManager>, ResumeError> {
    const KEY: &str = "checkpoint.custom_manager_class";
    let Some(name) = &config.checkpoint.custom_manager_class else { return Ok(None) };
    match managers.get(name) {
        Some(manager) => Ok(Some(NamedManager { name: name.clone(), manager: Arc::clone(manager) })),
        None => {
            let known: Vec<&str> = managers.keys().map(String::as_str).collect();
            let expected = match known.as_slice() {
                [] => "null: this program has registered none (RunOptions::managers)".to_owned(),
                known => format!("one of {}", known.join(", ")),
            };
            let error = ConfigError::new(ErrorKind::WrongType, KEY, "no checkpoint manager of this name is registered")
                .with_found(format!("{name:?}"))
                .with_expected(expected)
                .with_nearest(name, known)
                .with_location(config.location(KEY));
            Err(error.into())
        }
    }
}

impl Saver {
    /// The saver a configuration asks for; `None` without `checkpoint.save`. All ranks call this
    /// together.
    pub(in crate::train) fn open(
        config: &RunConfig,
        groups: &ProcessGroups,
        heartbeat: &Arc<Heartbeat>,
        manager: Option<NamedManager>,
    ) -> Result<Option<Self>, ResumeError> {
        let settings = &config.checkpoint;
        let Some(root) = &settings.save else { return Ok(None) };
        let retain = settings.save_retain_interval.map(|n| n as u64);
        let options = SaveOptions {
            retention: RetentionPolicy::new(settings.most_recent_k.unwrap_or(-1), retain)?,
            manager,
            ..options(settings, heartbeat)
        };
        // A group of its own: a save in the background communicates while training does.
        let world = groups.world();
        let group = world.split(Some(0), world.rank(), "checkpoint")?.unwrap_or_else(|| world.clone());
        let writer = ShardedWriter::open(root, options, group)?;
        Ok(Some(if settings.async_save { Self::Async(AsyncSaver::new(writer)?) } else { Self::Sync(Box::new(writer)) }))
    }

    /// Saves `snapshot`, or begins to; the report where it is on disk.
    pub(in crate::train) fn save(
        &mut self,
        snapshot: Snapshot,
    ) -> Result<(SaveStage, Option<SaveReport>), CheckpointError> {
        match self {
            Self::Sync(writer) => writer.save(&snapshot).map(|report| (SaveStage::Saved, Some(report))),
            // `submit` returns the report of an earlier save.
            Self::Async(saver) => saver.submit(snapshot).map(|_| (SaveStage::Begun, None)),
        }
    }

    /// The report of a save that ended in the background since the last call.
    pub(in crate::train) fn poll(&mut self) -> Result<Option<SaveReport>, CheckpointError> {
        match self {
            Self::Sync(_) => Ok(None),
            Self::Async(saver) => saver.poll(),
        }
    }

    /// Waits for the save in the background.
    pub(in crate::train) fn finish(&mut self) -> Result<Option<SaveReport>, CheckpointError> {
        match self {
            Self::Sync(_) => Ok(None),
            Self::Async(saver) => saver.finish(),
        }
    }
}
