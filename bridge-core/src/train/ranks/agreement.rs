//! Collective work of the ranks of a run besides moving tensors: creating their groups, agreeing on
//! success, summing figures.

use bridge_dist::comm::{BufferMut, CommError, CommErrorKind, Communicator, Group, ReduceOp, all_gather_bytes};
use bridge_dist::mesh::ProcessGroups;
use serde::Serialize;
use serde::de::DeserializeOwned;
use twox_hash::XxHash3_64;

use crate::config::RunConfig;
use crate::logging::host_name;
use crate::train::engine::forward_step::{Losses, Ratio};
use crate::train::error::{Classified, CommonError};
use crate::train::ranks::device::LocalRank;
use crate::train::ranks::error::RanksError;

/// Makes the groups of a run from a communicator of all its ranks.
///
/// All ranks call this at the same time, each with its own configuration; they must be equal.
///
/// # Errors
/// If the world has another size than the configuration was finalized for, if ranks have different
/// configurations, or if a rank is gone.
pub fn process_groups(config: &RunConfig, world: Group) -> Result<ProcessGroups, RanksError> {
    if world.size() == 1 && config.parallel.world_size == 1 {
        return Ok(ProcessGroups::single());
    }
    same_recipe(config, world.as_ref())?;
    let mesh = config.mesh().map_err(|error| RanksError::Mesh(error.into()))?;
    Ok(ProcessGroups::new(world, mesh)?)
}

/// Refuses a world whose ranks were given different recipes.
fn same_recipe(config: &RunConfig, world: &dyn Communicator) -> Result<(), RanksError> {
    // The bits are reinterpreted, because a hash has no sign.
    let mine = XxHash3_64::oneshot(config.to_toml().as_bytes()) as i64;
    let mut all = vec![0_i64; world.size()];
    world.all_gather((&[mine]).into(), (&mut all).into())?;
    let votes = |hash: &i64| all.iter().filter(|other| *other == hash).count();
    // The recipe of most ranks, of several such the one of the lowest rank, is taken to be the
    // right one.
    let usual = all.iter().rev().max_by_key(|hash| votes(hash)).copied().unwrap_or(mine);
    let others: Vec<usize> = (0..all.len()).filter(|rank| all[*rank] != usual).collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(RanksError::RecipesDiffer { rank: world.rank(), others, size: all.len() })
}

/// Exchanges the outcome of work that each rank did on its own, so that all ranks fail together.
///
/// # Errors
/// This rank's error; [`CommonError::OtherRank`] if only others failed; a communication error.
pub(in crate::train) fn agree<T, E: Classified + From<CommonError>>(
    groups: &ProcessGroups,
    doing: &str,
    result: Result<T, E>,
) -> Result<T, E> {
    let world = groups.world();
    if world.size() == 1 {
        return result;
    }
    let mine = match &result {
        Ok(_) => 0_u8,
        Err(error) if error.is_bad_input() => BAD_INPUT,
        Err(_) => FAILED,
    };
    let mut all = vec![0_u8; world.size()];
    let shared = world.all_gather((&[mine]).into(), (&mut all).into());
    let value = result?;
    shared.map_err(CommonError::from)?;
    match all.iter().position(|status| *status != 0) {
        None => Ok(value),
        Some(rank) => Err(failed_on(world, rank, doing, all[rank]).into()),
    }
}

/// Ends the run on all ranks: with `error` on rank `rank`, and with one that names that rank on the
/// others.
pub(in crate::train) fn fail_on<E: From<CommonError>>(world: &Group, rank: usize, doing: &str, error: Option<E>) -> E {
    error.filter(|_| world.rank() == rank).unwrap_or_else(|| failed_on(world, rank, doing, FAILED).into())
}

fn failed_on(world: &Group, rank: usize, doing: &str, status: u8) -> CommonError {
    CommonError::OtherRank {
        rank,
        doing: doing.to_owned(),
        is_bad_input: status == BAD_INPUT,
        source: program_failed(world.as_ref(), rank, doing),
    }
}

const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;

/// As a communication error, so that a launcher sees that the cause is elsewhere.
fn program_failed(world: &dyn Communicator, rank: usize, doing: &str) -> CommError {
    CommError {
        rank: world.rank(),
        world_ranks: world.world_ranks(),
        group: world.name().to_owned(),
        operation: doing.to_owned(),
        kind: Box::new(CommErrorKind::ProgramFailed { message: format!("rank {rank} reported an error") }),
    }
}

/// Runs `work` on rank 0 first, then on all other ranks, which find rank 0's files.
pub(in crate::train) fn rank_zero_first<T, E: Classified + From<CommonError>>(
    groups: &ProcessGroups,
    doing: &str,
    mut work: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut done = None;
    let first = if is_rank_zero(groups) { work().map(|value| done = Some(value)) } else { Ok(()) };
    agree(groups, doing, first)?;
    let value = done.map_or_else(work, Ok);
    agree(groups, doing, value)
}

/// True for rank 0, which prints and writes logs.
pub(in crate::train) fn is_rank_zero(groups: &ProcessGroups) -> bool {
    groups.world().rank() == 0
}

/// This rank's place among those on its machine. All ranks call this together. Fails if ranks
/// cannot tell each other where they are.
pub(in crate::train) fn local_rank(world: &Group) -> Result<LocalRank, CommError> {
    if world.size() == 1 {
        return Ok(LocalRank::ALONE);
    }
    Ok(LocalRank::among(&machines(world)?, world.rank()))
}

/// The first rank on the machine of this one. All ranks call this together.
pub(in crate::train) fn first_of_machine(world: &Group) -> Result<usize, CommError> {
    if world.size() == 1 {
        return Ok(0);
    }
    let machines = machines(world)?;
    Ok(machines.iter().position(|machine| *machine == machines[world.rank()]).unwrap_or(0))
}

/// The value of each rank on this machine.
pub(in crate::train) fn on_this_machine(world: &Group, value: u64) -> Result<Vec<u64>, CommError> {
    if world.size() == 1 {
        return Ok(vec![value]);
    }
    let machines = machines(world)?;
    let mut all = vec![0_i64; world.size()];
    // Memory of a rank is far below 2^63.
    world.all_gather((&[value as i64]).into(), (&mut all).into())?;
    let here = all.iter().zip(&machines).filter(|(_, machine)| **machine == machines[world.rank()]);
    Ok(here.map(|(value, _)| *value as u64).collect())
}

/// The machine of each rank, as a number.
fn machines(world: &Group) -> Result<Vec<i64>, CommError> {
    // Containers share the kernel, and with it the number of its start, but not the name.
    let started = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // The bits are reinterpreted, because a hash has no sign.
    let mine = XxHash3_64::oneshot(format!("{}\n{started}", host_name()).as_bytes()) as i64;
    let mut all = vec![0_i64; world.size()];
    world.all_gather((&[mine]).into(), (&mut all).into())?;
    Ok(all)
}

/// Adds up figures over a group.
pub(in crate::train) fn sum(group: &Group, figures: &mut [f64]) -> Result<(), CommError> {
    reduce(group, figures, ReduceOp::Sum)
}

/// The largest of each figure over a group.
pub(in crate::train) fn max(group: &Group, figures: &mut [f64]) -> Result<(), CommError> {
    reduce(group, figures, ReduceOp::Max)
}

fn reduce(group: &Group, figures: &mut [f64], op: ReduceOp) -> Result<(), CommError> {
    if group.size() == 1 || figures.is_empty() {
        return Ok(());
    }
    group.all_reduce(BufferMut::from(figures), op)
}

/// Adds up losses over the data and context parallel ranks and hands those of the last pipeline
/// stage to all stages. All ranks have the same names.
pub(in crate::train) fn all_reduce_losses(groups: &ProcessGroups, losses: &mut Losses) -> Result<(), CommError> {
    let mut figures: Vec<f64> = losses.values().flat_map(|ratio| [ratio.numerator, ratio.denominator]).collect();
    share_from_last_stage(groups, &mut figures)?;
    for (ratio, figures) in losses.values_mut().zip(figures.chunks_exact(2)) {
        *ratio = Ratio { numerator: figures[0], denominator: figures[1] };
    }
    Ok(())
}

/// Adds up figures over the data and context parallel ranks and hands those of the last pipeline
/// stage to all stages.
pub(in crate::train) fn share_from_last_stage(groups: &ProcessGroups, figures: &mut [f64]) -> Result<(), CommError> {
    sum(groups.data_context(), figures)?;
    let pipeline = groups.pipeline();
    if pipeline.size() > 1 && !figures.is_empty() {
        pipeline.broadcast(BufferMut::from(figures), pipeline.size() - 1)?;
    }
    Ok(())
}

/// Value of each rank, in rank order; no number in it may be infinite. All ranks call this
/// together.
pub(in crate::train) fn gather<T: Serialize + DeserializeOwned + Clone>(
    world: &Group,
    mine: &T,
) -> Result<Vec<T>, CommError> {
    if world.size() == 1 {
        return Ok(vec![mine.clone()]);
    }
    let mine = serde_json::to_vec(mine).expect("names and numbers are JSON");
    let read = |text: Vec<u8>| serde_json::from_slice(&text).expect("every rank writes what it says this way");
    Ok(all_gather_bytes(world.as_ref(), &mine)?.into_iter().map(read).collect())
}

/// True if any rank votes true. All ranks call this together.
pub(in crate::train) fn any(world: &Group, vote: bool) -> Result<bool, CommError> {
    let mut figures = [f64::from(u8::from(vote))];
    max(world, &mut figures)?;
    Ok(figures[0] > 0.0)
}
