//! Gradients on disk: `checkpoint.save_wgrads_interval` and `checkpoint.save_dgrads_interval`. They
//! have their own folders and are written like checkpoints, by all ranks together and published by
//! one rename.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use burn::tensor::Tensor;
use bytes::Bytes;

use super::gradient_dumps::{Dump, GRADIENTS};
use super::{host, local_shards};
use crate::checkpoint::{CheckpointError, DType, HostTensor, RunFiles, ShardTensor, Snapshot, TensorGroup, TrainState};
use crate::optim::SavedGradient;
use crate::train::engine::residual_gradients::ResidualPart;
use crate::train::ranks::agreement;
use crate::train::resume::error::ResumeError;
use crate::train::step::training_run::TrainingRun;

/// Writes the gradients of the step that the optimizer is about to take, if they are due. They
/// still have the loss scale, and are not yet divided by `divisor`; the written values are the
/// gradient of the loss. All ranks call this together. A failed write is reported, and the run
/// continues.
pub(in crate::train) fn save_gradients(
    run: &mut TrainingRun,
    loss_scale: f64,
    divisor: f64,
) -> Result<(), ResumeError> {
    let step = run.state.train_state.step + 1;
    let is_due = |dump: &Option<Dump>| dump.as_ref().is_some_and(|dump| dump.is_due(step));
    let (weights, residuals) = (is_due(&run.outputs.dumps.weights), is_due(&run.outputs.dumps.residuals));
    if !weights && !residuals {
        return Ok(());
    }
    // Gradients are not written while a background save is running.
    run.outputs.await_save(&run.state, &run.groups)?;
    let unscale = 1.0 / (loss_scale * divisor);
    if weights {
        let tensors = weight_gradients(run, unscale);
        let tensors = agreement::agree(&run.groups, "copying gradients", tensors.map_err(ResumeError::from))?;
        write(run, "weights", run.outputs.dumps.weights.as_ref(), tensors)?;
    }
    if residuals {
        let unscale = unscale / run.training.optimizer.distribution().loss_factor();
        let kept = run.training.residual_gradients.end();
        let tensors = residual_gradients(run, kept, unscale as f32);
        let tensors = agreement::agree(&run.groups, "copying gradients", tensors.map_err(ResumeError::from))?;
        write(run, "activations", run.outputs.dumps.residuals.as_ref(), tensors)?;
    }
    Ok(())
}

/// Writes the tensors of all ranks.
fn write(run: &TrainingRun, of: &str, dump: Option<&Dump>, tensors: Vec<ShardTensor>) -> Result<(), ResumeError> {
    let Some(dump) = dump else { return Ok(()) };
    let step = run.state.train_state.step + 1;
    let extra = [(GRADIENTS.to_owned(), of.into())].into_iter().collect();
    let train_state = TrainState { step, extra, ..TrainState::default() };
    let run_config = if agreement::is_rank_zero(&run.groups) { run.state.config.to_toml() } else { String::new() };
    let files = RunFiles { train_state, run_config, ..RunFiles::default() };
    let name = folder_name(&dump.root).to_owned();
    let snapshot = Snapshot { run: files, groups: vec![TensorGroup { name, tensors }] };
    match dump.writer.save(&snapshot) {
        Ok(report) => {
            let megabytes = report.bytes as f64 / 1e6;
            let folder = report.path.display();
            run.note(&format!("gradients of {of} of iteration {step} in {folder} ({megabytes:.1} MB)"));
            Ok(())
        }
        Err(CheckpointError::Comm(error)) => Err(error.into()),
        Err(error) => {
            run.outputs.reporter.warn(&format!("gradients of {of} of iteration {step} are not saved: {error}"));
            Ok(())
        }
    }
}

fn folder_name(root: &Path) -> &str {
    root.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Gradients of parameters that this rank saves, by the parameters' names. A parameter that no loss
/// of this step depended on has zeros.
fn weight_gradients(run: &TrainingRun, unscale: f64) -> Result<Vec<ShardTensor>, CheckpointError> {
    let training = &run.training;
    let device = training.device.clone().without_autodiff();
    let shards: BTreeMap<_, _> = training.chunks.iter().flat_map(|chunk| local_shards(chunk.as_ref())).collect();
    let mut tensors = Vec::new();
    let mut failure = None;
    training.optimizer.distribution().visit_saved(
        &training.gradients,
        &mut |SavedGradient { name, elements, gradient }| {
            let Some(shard) = shards.get(name).filter(|_| !elements.is_empty()) else { return };
            let gradient = gradient.unwrap_or_else(|| Tensor::zeros([elements.len()], &device));
            let of_loss = gradient.mul_scalar(unscale);
            match host(of_loss).and_then(|values| ShardTensor::of_local(name, shard, elements, &values)) {
                Ok(slices) => tensors.extend(slices),
                Err(error) => failure = Some(error),
            }
        },
    );
    failure.map_or(Ok(tensors), Err)
}

/// Gradients of the residual stream that this rank saves: for each segment a tensor
/// `[micro-batches, samples, tokens, hidden size]` of its input, with the samples of all
/// data-parallel ranks in rank order.
fn residual_gradients(
    run: &TrainingRun,
    kept: BTreeMap<String, Vec<ResidualPart>>,
    unscale: f32,
) -> Result<Vec<ShardTensor>, CheckpointError> {
    let groups = &run.groups;
    let (tensor, context, data) = (groups.tensor(), groups.context(), groups.data());
    let divides = run.state.config.model.sequence_parallel;
    // Ranks of a tensor-parallel group hold the same stream, or parts of it.
    if !divides && tensor.rank() > 0 {
        return Ok(Vec::new());
    }
    let mut tensors = Vec::new();
    for (segment, parts) in kept {
        let name = format!("{segment}.input");
        for (index, part) in parts.iter().enumerate() {
            let [samples, tokens, hidden] = part.shape;
            let (within, size) = if divides { (tensor.rank(), tensor.size()) } else { (0, 1) };
            let of_context = context_ranges(tokens * size, context.rank(), context.size());
            let own = common(&of_context, within * tokens..(within + 1) * tokens);
            let global = [parts.len(), data.size() * samples, tokens * size * context.size(), hidden];
            let mut begin = 0;
            for range in own {
                let rows = (0..samples).map(|sample| (sample * tokens + begin) * hidden);
                let values = rows.flat_map(|start| &part.values[start..start + range.len() * hidden]);
                let bytes: Vec<u8> = values.flat_map(|value| (value * unscale).to_le_bytes()).collect();
                let source = HostTensor::new(DType::F32, [1, samples, range.len(), hidden], Bytes::from(bytes))?;
                let offset = [index, data.rank() * samples, range.start, 0];
                tensors.push(ShardTensor::slice(name.clone(), global, offset, source));
                begin += range.len();
            }
        }
    }
    Ok(tensors)
}

/// The tokens of the whole sequence that a context-parallel rank has of it, in its order: `tokens`
/// of them.
fn context_ranges(tokens: usize, rank: usize, ranks: usize) -> Vec<Range<usize>> {
    if ranks == 1 {
        return std::iter::once(0..tokens).collect();
    }
    let chunk = tokens / 2;
    [rank, 2 * ranks - 1 - rank].map(|place| place * chunk..(place + 1) * chunk).to_vec()
}

/// Parts of consecutive ranges that lie at the places `wanted`.
fn common(ranges: &[Range<usize>], wanted: Range<usize>) -> Vec<Range<usize>> {
    let mut begin = 0;
    let mut found = Vec::new();
    for range in ranges {
        let (from, to) = (wanted.start.max(begin), wanted.end.min(begin + range.len()));
        if from < to {
            found.push(range.start + from - begin..range.start + to - begin);
        }
        begin += range.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_of_a_sequence_have_each_token_once() {
        // 12 tokens over 3 context ranks, and 2 tensor ranks within each.
        let mut seen: Vec<usize> = Vec::new();
        for context in 0..3 {
            let ranges = context_ranges(4, context, 3);
            for tensor in 0..2 {
                seen.extend(common(&ranges, tensor * 2..(tensor + 1) * 2).into_iter().flatten());
            }
        }
        assert_eq!(context_ranges(4, 1, 3), [2..4, 8..10]);
        assert_eq!(common(&[2..4, 8..10], 1..3), [3..4, 8..9]);
        seen.sort_unstable();
        assert_eq!(seen, (0..12).collect::<Vec<_>>());
        assert_eq!(context_ranges(5, 0, 1)[0], 0..5);
    }
}
