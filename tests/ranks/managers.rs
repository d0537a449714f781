//! `checkpoint.custom_manager_class`: checkpoints that a program keeps in another place than the
//! run's folder.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bridge_core::checkpoint::{CheckpointManager, CheckpointStore};
use bridge_core::config::RunConfig;
use bridge_core::train::{RunOptions, pretrain, rank_timeout, run_on_threads};
use bridge_tests::records_in;

use super::elsewhere::Elsewhere;
use super::{config, options};

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
