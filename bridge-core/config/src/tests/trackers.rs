//! Settings of trackers.

use super::assert_all_refused;

const REFUSED: &[(&[&str], &str)] = &[
    (&["logger.wandb_project=a/b"], "logger.wandb_project"),
    (&["logger.wandb_project=''"], "logger.wandb_project"),
    (&["logger.wandb_exp_name=x"], "logger.wandb_exp_name"),
    (&["logger.wandb_save_dir=x"], "logger.wandb_save_dir"),
    (&["logger.wandb_entity=x"], "logger.wandb_entity"),
    (&["logger.wandb_project=x", "logger.wandb_entity=''"], "logger.wandb_entity"),
    (&["logger.comet_project=x"], "logger.comet_experiment_name"),
    (&["logger.comet_experiment_name=x"], "logger.comet_experiment_name"),
    (&["logger.comet_workspace=x"], "logger.comet_workspace"),
    (&["logger.comet_tags=[x]"], "logger.comet_tags"),
    (&["logger.comet_project=x", "logger.comet_experiment_name=y", "logger.comet_tags=['']"], "logger.comet_tags"),
    (&["logger.comet_project=x", "logger.comet_experiment_name=y", "logger.comet_api_key=z"], "logger.comet_api_key"),
];

#[test]
fn settings_of_trackers_need_each_other() {
    assert_all_refused(REFUSED);
}
