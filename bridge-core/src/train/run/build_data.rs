//! The data of a run on all of its ranks: preparing, building, comparing with the data of the run's
//! start, and counting of epochs.

use std::sync::Arc;

use bridge_data::DataParallel;
use bridge_dist::mesh::ProcessGroups;

use crate::checkpoint::TrainState;
use crate::config::{FINETUNING, RunConfig};
use crate::train::data::data_lengths::check_lengths;
use crate::train::data::registry::Registry;
use crate::train::data::run_data::RunData;
use crate::train::ranks::agreement;
use crate::train::resume::lineage::{Lineage, ResumeReport};
use crate::train::run::error::TrainError;
use crate::train::run::preparation::{Preparation, prepare_text_of_ranks};

/// The data of a run that starts from `initial_state`. Another process that needs the same text may
/// have it when all ranks have opened it.
pub(in crate::train) fn build_data(
    preparation: &Preparation,
    registry: &Registry,
    lineage: &Lineage,
    initial_state: &TrainState,
) -> Result<(Arc<RunConfig>, RunData, ResumeReport), TrainError> {
    let Preparation { config, groups, reporter, .. } = *preparation;
    let text = prepare_text_of_ranks(preparation)?;
    let build = |config: &Arc<RunConfig>| {
        agreement::rank_zero_first(groups, "preparing data", || {
            RunData::build(config, &registry.datasets, &text, &reporter.progress(), data_parallel(groups), None)
        })
    };
    let (mut config, mut data) = (Arc::clone(config), build(config)?);
    let epoch = data.datasets().train.as_ref().map_or(0, |train| train.len());
    if let Some(counted) = config.with_epoch(epoch, &registry.kinds()) {
        let epochs = config.train.num_epochs.unwrap_or_default();
        config = Arc::new(counted?);
        let iterations = config.train.train_iters;
        reporter.note(&format!("train.num_epochs = {epochs} of {epoch} samples: {iterations} iterations"));
        data = build(&config)?;
    }
    let config_of_run = &config;
    let report = match agreement::is_rank_zero(groups) {
        true => {
            let report = lineage.check_data(config_of_run, &data, text.prefix.as_deref());
            let unevaluated = unevaluated(config_of_run, data.has_valid());
            report.map(|report| report.with(data.repeats()).with(unevaluated.into_iter().collect()))
        }
        false => Ok(ResumeReport::default()),
    };
    let report = agreement::agree(groups, "comparing the data with the checkpoint's", report)?;
    drop(text);
    agreement::agree(groups, "looking at the data's length", check_lengths(config_of_run, &data, initial_state))?;
    Ok((config, data, report))
}

/// Warning for a run that is to be evaluated on files of examples, and has no validation data.
fn unevaluated(config: &RunConfig, has_valid: bool) -> Option<String> {
    let validation = &config.validation;
    let interval = validation.eval_interval.filter(|_| validation.full_validation || validation.eval_iters > 0)?;
    let asks = config.dataset.kind == FINETUNING && config.dataset.do_validation && !has_valid;
    asks.then(|| {
        format!(
            "validation.eval_interval = {interval}, and there is no validation data: nothing is evaluated. Put a file validation.jsonl beside \
             the training data, or leave the setting out"
        )
    })
}

/// This rank's place among those that read different samples.
fn data_parallel(groups: &ProcessGroups) -> DataParallel {
    DataParallel { rank: groups.data().rank(), size: groups.data().size() }
}
