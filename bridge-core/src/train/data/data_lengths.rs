//! Check before the start that the splits are long enough for the run. The module `data` knows how
//! they are read.

use bridge_data::sampler::{Incomplete, Sampler, SamplerKind, SamplerParams};

use crate::checkpoint::TrainState;
use crate::config::{ConfigError, DataloaderType, ErrorKind, RunConfig};
use crate::logging::Split;
use crate::schedule::NumMicrobatchesCalculator;
use crate::train::data::error::InputError;
use crate::train::data::run_data::{RunData, evaluation_params, train_params};
use crate::train::settings;

/// Refuses a run that would come to the end of its data, or could not read it at all, after
/// `start`.
///
/// # Errors
/// An error that names the setting, the needed and the available amount of data.
pub(in crate::train) fn check_lengths(
    config: &RunConfig,
    data: &RunData,
    start: &TrainState,
) -> Result<(), InputError> {
    let last = last_iteration(config, start.step);
    let is_external = config.dataset.dataloader_type == Some(DataloaderType::External);
    if let Some(train) = &data.datasets().train
        && !config.validation.skip_train
        && !is_external
        && start.step < last
    {
        let params = train_params(config, train.len(), start.consumed_train_samples, data.place());
        check_train(config, &params, start.step..last)?;
    }
    let evaluates = config.validation.eval_iters > 0;
    let splits = [(Split::Valid, evaluates || config.validation.full_validation), (Split::Test, evaluates)];
    for (split, _) in splits.into_iter().filter(|(_, is_evaluated)| *is_evaluated) {
        for set in data.evaluated(split) {
            let consumed = start.consumed_valid_samples;
            let params = evaluation_params(config, split, set.dataset.len(), consumed, data.place());
            check_evaluation(config, &params, split)?;
        }
    }
    Ok(())
}

/// The iteration after which training ends at the latest.
fn last_iteration(config: &RunConfig, done: u64) -> u64 {
    let next_exit = |interval: usize| (done / interval.max(1) as u64 + 1) * interval as u64;
    let all = config.train.train_iters as u64;
    config.train.exit_interval.map_or(all, |interval| all.min(next_exit(interval)))
}

fn check_train(config: &RunConfig, params: &SamplerParams, steps: std::ops::Range<u64>) -> Result<(), InputError> {
    let (total, consumed) = (params.total_samples, params.consumed_samples);
    let SamplerKind::Single { incomplete } = params.kind else { return Ok(Sampler::new(*params).map(drop)?) };
    let unit = (params.micro_batch_size * params.data_parallel.size) as u64;
    let left = (total as u64).saturating_sub(consumed);
    let there = if incomplete == Incomplete::Drop { left / unit } else { left.div_ceil(unit) };
    let mut batches = NumMicrobatchesCalculator::new(settings::batch_size(config))?;
    let mut asked = 0;
    // The number of steps may be large, but is counted in no time.
    for step in steps.clone() {
        batches.update(consumed + asked * unit);
        asked += batches.num_microbatches();
        if asked <= there {
            continue;
        }
        let before = if consumed > 0 { format!(" ({consumed} of them consumed before)") } else { String::new() };
        let (begun, size) = (step - steps.start, batches.current_running_global_batch_size());
        let message = format!(
            "the train split ends too soon: it has {total} samples{before}, which are read once, and iteration {} of {} needs {size}: \
             after {begun} iterations of this run {} are left. Use more data or fewer iterations, or read the data again with \
             dataset.dataloader_type = \"cyclic\"",
            step + 1,
            steps.end,
            left.saturating_sub((asked - batches.num_microbatches()) * unit),
        );
        return Err(refused(config, "train.train_iters", &message));
    }
    Ok(())
}

fn check_evaluation(config: &RunConfig, params: &SamplerParams, split: Split) -> Result<(), InputError> {
    let (total, ranks) = (params.total_samples, params.data_parallel.size);
    let unit = params.micro_batch_size * ranks;
    let (name, validation) = (split.name(), &config.validation);
    let problem = match params.kind {
        SamplerKind::Cyclic { .. } if total < unit => format!(
            "one batch takes {unit}: validation.eval_micro_batch_size = {} on each of {ranks} data-parallel ranks. Give the split a \
             larger share, evaluate with smaller batches, or set this to 0",
            params.micro_batch_size
        ),
        // All of the validation split is read however long it is.
        SamplerKind::Single { .. }
            if split == Split::Test && total.div_ceil(unit) < validation.eval_iters * validation.num_microbatches =>
        {
            format!(
                "it is read once, {} times validation.eval_global_batch_size = {}. Give the split a larger share, or evaluate less",
                validation.eval_iters, validation.eval_global_batch_size
            )
        }
        _ => return Ok(Sampler::new(*params).map(drop)?),
    };
    let message = format!("the {name} split is too short: it has {total} samples, and {problem}");
    Err(refused(config, "validation.eval_iters", &message))
}

fn refused(config: &RunConfig, key: &str, message: &str) -> InputError {
    let error = ConfigError::new(ErrorKind::Conflict, key, message);
    error.with_location(config.location(key)).into()
}
