//! `checkpoint.custom_manager_class`: checkpoints that a program keeps in another place than the run's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::checkpoint::{CheckpointManager, CheckpointStore, ManagerError};
use bridge_core::config::RunConfig;
use bridge_core::train::{RunOptions, pretrain, rank_timeout, run_on_threads};
use bridge_tests::records_in;

use super::{config, options};

/// Another folder, with the manifests beside the files.
struct Elsewhere(PathBuf);

impl Elsewhere {
    fn folder(&self, iteration: u64) -> PathBuf {
        self.0.join(iteration.to_string())
    }

    fn manifest_of(&self, iteration: u64) -> PathBuf {
        self.0.join(format!("{iteration}.manifest"))
    }
}

fn unless_gone(result: std::io::Result<()>) -> Result<(), ManagerError> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

impl CheckpointManager for Elsewhere {
    fn list(&self) -> Result<Vec<u64>, ManagerError> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.0)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            found.extend(name.strip_suffix(".manifest").map(str::parse::<u64>).transpose()?);
        }
        Ok(found)
    }

    fn put(&self, iteration: u64, name: &str, file: &Path) -> Result<(), ManagerError> {
        let to = self.folder(iteration).join(name);
        std::fs::create_dir_all(to.parent().ok_or("no folder")?)?;
        std::fs::copy(file, to)?;
        Ok(())
    }

    fn commit(&self, iteration: u64, manifest: &[u8]) -> Result<(), ManagerError> {
        Ok(std::fs::write(self.manifest_of(iteration), manifest)?)
    }

    fn manifest(&self, iteration: u64) -> Result<Vec<u8>, ManagerError> {
        Ok(std::fs::read(self.manifest_of(iteration))?)
    }

    fn open(&self, iteration: u64, name: &str, file: &Path) -> Result<bool, ManagerError> {
        let from = self.folder(iteration).join(name);
        Ok(from.exists() && std::fs::copy(from, file).map(|_| true)?)
    }

    fn delete(&self, iteration: u64) -> Result<(), ManagerError> {
        unless_gone(std::fs::remove_file(self.manifest_of(iteration)))?;
        unless_gone(std::fs::remove_dir_all(self.folder(iteration)))
    }
}

fn train(config: &RunConfig, place: &Path) -> Result<(), String> {
    let program = |groups| {
        let manager: Arc<dyn CheckpointManager> = Arc::new(Elsewhere(place.to_owned()));
        let managers = BTreeMap::from([("elsewhere".to_owned(), manager)]);
        pretrain(config.clone(), RunOptions { managers, ..options(groups) }).map(drop)
    };
    run_on_threads(config, rank_timeout(config), program).map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_run_goes_on_from_where_its_checkpoints_are_kept() {
    let plain = tempfile::tempdir().unwrap();
    let steps = ["train.train_iters=6", "validation.eval_iters=0", "logger.log_interval=1"];
    train(&config(plain.path(), 2, &steps), plain.path()).unwrap();
    for background in ["false", "true"] {
        let (folder, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let save = folder.path().join("saved");
        let settings = [
            format!("checkpoint.save={save:?}"),
            format!("checkpoint.async_save={background}"),
            "checkpoint.save_interval=1".into(),
            "checkpoint.most_recent_k=2".into(),
            "checkpoint.custom_manager_class=elsewhere".into(),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let part = |exit: &str| config(folder.path(), 2, &[&steps, &settings[..], &[exit]].concat());
        train(&part("train.exit_interval=4"), place.path()).unwrap();
        let mut kept = Elsewhere(place.path().to_owned()).list().unwrap();
        kept.sort_unstable();
        assert_eq!(kept, [3, 4]);
        // The machine is lost.
        std::fs::remove_dir_all(&save).unwrap();
        train(&part("train.exit_interval=null"), place.path()).unwrap();
        assert_eq!(records_in(&folder.path().join("logs"), "train"), records_in(&plain.path().join("logs"), "train"));
        assert_eq!(CheckpointStore::open(&save).unwrap().list().unwrap().len(), 2);
    }
}

#[test]
fn a_name_that_is_not_registered_is_an_error_with_the_nearest() {
    let (folder, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let save = format!("checkpoint.save={:?}", folder.path().join("saved"));
    let wrong = config(folder.path(), 1, &[&save, "checkpoint.custom_manager_class=elsewere"]);
    let error = train(&wrong, place.path()).unwrap_err();
    for part in ["checkpoint.custom_manager_class", "elsewere", "did you mean", "elsewhere"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let error = pretrain(wrong, options(bridge_dist::mesh::ProcessGroups::single())).unwrap_err().to_string();
    assert!(error.contains("has registered none"), "{error}");
}
