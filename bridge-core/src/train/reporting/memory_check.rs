//! Check of the host's memory against the plan of a run, before a model is built. Memory of devices
//! is not known here: their allocators refuse. Of runs on such devices, only activations and
//! optimizer states in host memory are checked.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;

use crate::config::RunConfig;
use crate::logging::HostMemory;
use crate::model::ModelRegistry;
use crate::plan::offload::Offload;
use crate::plan::{self, Plan, PlanError, PlanOptions, StagePlan};
use crate::train::not_enough_memory::{NotEnoughMemory, bytes};
use crate::train::ranks::agreement;
use crate::train::reporting::reporter::Reporter;

/// Memory of a rank besides the plan: stacks and pools of its threads, waiting batches.
const OF_A_RANK: u64 = 8 << 20;
/// Parts of the memory that are named where it does not suffice.
const NAMED_PARTS: usize = 3;
const SAVED_IN_BACKGROUND: &str = "the checkpoint that is saved in the background";

/// Compares the memory that the run needs on this machine with the available memory, and returns a
/// refusal if it does not fit. A teacher's parameters are in no plan.
///
/// All ranks call this together. Fails if ranks cannot communicate.
pub(in crate::train) fn check(
    config: &RunConfig,
    models: &ModelRegistry,
    groups: &ProcessGroups,
    padded_vocab_size: usize,
    of_teacher: u64,
    reporter: &Reporter,
) -> Result<Option<NotEnoughMemory>, CommError> {
    let moves_activations = plan::settings::activation_offload(config) != Offload::Nothing;
    // States in 8 bits, and remainders, are there too.
    let has_states =
        plan::settings::optimizer_offload(config).is_some() || plan::settings::state_formats(config).is_some();
    if config.validation.skip_train || !(config.computes_on_cpu() || moves_activations || has_states) {
        return Ok(None);
    }
    if !config.train.check_memory {
        reporter.warn("whether the run fits into memory is not checked (train.check_memory = false)");
        return Ok(None);
    }
    let options = PlanOptions { padded_vocab_size: Some(padded_vocab_size), ..PlanOptions::default() };
    let plan = match plan::plan(config, models, &options) {
        Ok(plan) => plan,
        Err(error @ (PlanError::NoCosts { .. } | PlanError::Setting { .. })) => {
            reporter.note(&format!("memory is not checked: {error}"));
            return Ok(None);
        }
        // After other planning errors the model cannot be built either, and building it reports
        // why.
        Err(
            PlanError::Config(_)
            | PlanError::Mesh(_)
            | PlanError::Placement(_)
            | PlanError::Schedule(_)
            | PlanError::Rule(_)
            | PlanError::Model(_),
        ) => return Ok(None),
    };
    if moves_activations && plan.stages.iter().all(|stage| stage.host_activations == 0) {
        reporter.warn(
            "by its plan the run moves no activations to the host: tensors are below 2^20 elements (model.cpu_offloading), or inputs of norms stay \
             where graphs are cut (ddp.overlap_grad_reduce, sharded gradients)",
        );
    }
    let stage = &plan.stages[groups.pipeline().rank()];
    let mine = match config.computes_on_cpu() {
        true => needed_by_rank(config, stage) + of_teacher,
        false => needed_on_host(config, stage),
    };
    let here = agreement::on_this_machine(groups.world(), mine)?;
    let needed = here.iter().sum();
    let room = available().into_iter().min_by_key(|(_, bytes)| *bytes);
    Ok(room.filter(|(_, available)| needed > *available).map(|(limit, available)| NotEnoughMemory {
        needed,
        available,
        limit,
        ranks: match here.len() {
            1 => "1 rank".into(),
            ranks => format!("{ranks} ranks, the largest {}", bytes(here.iter().copied().max().unwrap_or(0))),
        },
        parts: parts(config, &plan, of_teacher),
        advice: advice(config, &plan),
    }))
}

/// Bytes that a rank of a stage needs at its peak.
pub(in crate::train) fn needed_by_rank(config: &RunConfig, stage: &StagePlan) -> u64 {
    // An update in place of values that a save still holds makes new ones. Activations are gone
    // then, all gradients are there.
    let memory = stage.memory;
    let updating = 2 * memory.parameters + memory.optimizer + background_save(config, stage);
    memory.total.max(if background_save(config, stage) > 0 { updating } else { 0 }) + OF_A_RANK
}

/// Bytes of host memory that a rank of a stage with a GPU needs for activations and for optimizer
/// states; in a background save these are there twice.
fn needed_on_host(config: &RunConfig, stage: &StagePlan) -> u64 {
    stage.host_activations + stage.memory.host_optimizer + background_states(config, stage) + OF_A_RANK
}

/// The stage whose ranks need most of the host's memory.
fn neediest_stage<'a>(config: &RunConfig, plan: &'a Plan) -> &'a StagePlan {
    match config.computes_on_cpu() {
        true => plan.largest_stage(),
        false => plan.stages.iter().max_by_key(|stage| needed_on_host(config, stage)).expect("a plan has stages"),
    }
}

/// Bytes of optimizer states in host memory that a save in the background holds.
fn background_states(config: &RunConfig, stage: &StagePlan) -> u64 {
    let settings = &config.checkpoint;
    let is_held = settings.save.is_some() && settings.async_save && settings.save_optim;
    if is_held { stage.memory.host_optimizer } else { 0 }
}

/// Bytes that a save in the background holds while training continues: the values of its step,
/// which the next update replaces.
fn background_save(config: &RunConfig, stage: &StagePlan) -> u64 {
    let settings = &config.checkpoint;
    if settings.save.is_none() || !settings.async_save {
        return 0;
    }
    stage.memory.parameters + if settings.save_optim { stage.memory.optimizer } else { 0 }
}

fn parts(config: &RunConfig, plan: &Plan, of_teacher: u64) -> String {
    let stage = neediest_stage(config, plan);
    let mut parts = stage.memory.parts();
    if config.computes_on_cpu() {
        parts.push((SAVED_IN_BACKGROUND, background_save(config, stage)));
        parts.push(("the teacher", of_teacher));
    } else {
        parts = vec![
            ("activations in host memory", stage.host_activations),
            ("optimizer states in host memory", stage.memory.host_optimizer),
            (SAVED_IN_BACKGROUND, background_states(config, stage)),
        ];
    }
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let of = if plan.layout.world_size > 1 { " a rank" } else { "" };
    let named = parts.into_iter().take(NAMED_PARTS).filter(|(_, size)| *size > 0);
    let named: Vec<String> = named.map(|(name, size)| format!("{name} {}{of}", bytes(size))).collect();
    named.join(", ")
}

/// Changes that would help, the most effective first.
fn advice(config: &RunConfig, plan: &Plan) -> String {
    let stage = neediest_stage(config, plan);
    let memory = stage.memory;
    let states = memory.parameters + memory.gradients + memory.optimizer + memory.backward;
    let mut advice = String::new();
    let mut add = |text: String| {
        let separator = if advice.is_empty() { "" } else { "; " };
        let _ = write!(advice, "{separator}{text}");
    };
    if !config.computes_on_cpu() {
        if stage.host_activations > stage.memory.host_optimizer {
            add("a smaller train.micro_batch_size, or fewer activations moved to the host".into());
        }
        if config.optimizer.optimizer_cpu_offload && stage.memory.host_optimizer > 0 {
            let fraction = config.optimizer.optimizer_offload_fraction;
            add(format!("an optimizer.optimizer_offload_fraction below {fraction}"));
        }
        if plan.layout.data * plan.layout.context > 1 && !config.ddp.use_distributed_optimizer {
            add("ddp.use_distributed_optimizer = true".into());
        }
        if background_states(config, stage) > 0 {
            add("checkpoint.async_save = false".into());
        }
        return advice;
    }
    if states < memory.total / 2 {
        let micro_batch = config.train.micro_batch_size;
        if micro_batch > 1 {
            add(format!("train.micro_batch_size = {} (now {micro_batch})", micro_batch / 2));
        }
        if config.model.recompute_granularity.is_none() {
            add("model.recompute_granularity = \"full\" with model.recompute_method = \"uniform\"".into());
        }
        add(format!("a model.seq_length below {}", config.model.seq_length));
    } else {
        let model = &config.model;
        add(format!(
            "a smaller model (now {} layers of width {}, {} parameters)",
            model.num_layers, model.hidden_size, plan.parameters.total
        ));
        let has_replicas = plan.layout.data * plan.layout.context > 1;
        if has_replicas && !config.ddp.use_distributed_optimizer {
            add("ddp.use_distributed_optimizer = true".into());
        }
        add("more machines, with the model sharded over them (`bridge plan RECIPE --search`)".into());
    }
    if background_save(config, stage) > 0 {
        add("checkpoint.async_save = false".into());
    }
    advice
}

/// Bytes that the machine and the limits of this process leave it now; `None` on systems that do
/// not say.
pub fn available_memory() -> Option<u64> {
    available().into_iter().map(|(_, bytes)| bytes).min()
}

/// Limits of this process's memory, with the bytes that each leaves. Empty on systems that report
/// none.
fn available() -> Vec<(String, u64)> {
    let resident = HostMemory::read().map_or(0, |memory| memory.resident_bytes);
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut limits = Vec::new();
    limits.extend(of_machine(&read("/proc/meminfo")).map(|bytes| ("what the machine has left".to_owned(), bytes)));
    limits.extend(of_process(&read("/proc/self/limits"), resident));
    limits.extend(of_control_groups(&read("/proc/self/cgroup"), Path::new("/sys/fs/cgroup")));
    limits
}

/// Memory from `/proc/meminfo` that new work can have without swapping.
fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Memory that `/proc/self/limits` leaves beside the resident memory. Reserved addresses count
/// against the limit of addresses too, but the allocator reserves less if there are fewer.
fn of_process(limits: &str, resident: u64) -> Vec<(String, u64)> {
    let names =
        [("Max address space", "the limit of addresses, ulimit -v"), ("Max data size", "the limit of data, ulimit -d")];
    let of = |(name, words): (&str, &str)| {
        let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let limit: u64 = rest.split_whitespace().next()?.parse().ok()?;
        Some((words.to_owned(), limit.saturating_sub(resident)))
    };
    names.into_iter().filter_map(of).collect()
}

/// Memory that the control groups of a process (`/proc/self/cgroup`) leave, including their
/// parents. File pages that can be dropped do not count as used.
fn of_control_groups(groups: &str, root: &Path) -> Vec<(String, u64)> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let names = match controllers {
            "" => ["memory.max", "memory.current", ""],
            _ if controllers.split(',').any(|name| name == "memory") => {
                ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_"]
            }
            _ => continue,
        };
        let top = if controllers.is_empty() { root.to_owned() } else { root.join("memory") };
        // In a container the path may be that of the host; the container's own group is at the top
        // then.
        let own = top.join(path.trim_start_matches('/'));
        let folders = own.ancestors().take_while(|folder| folder.starts_with(&top)).map(PathBuf::from);
        limits.extend(folders.filter_map(|folder| of_control_group(&folder, names)));
    }
    limits
}

/// Rest of the limit in the file `limit`. Names in `memory.stat` that include the child groups
/// begin with `prefix`.
fn of_control_group(folder: &Path, [limit, used, prefix]: [&str; 3]) -> Option<(String, u64)> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit_bytes = number(limit)?;
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let of = |name: &str| {
        let line = statistics.lines().find_map(|line| line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|bytes| bytes.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let used = number(used)?.saturating_sub(of("inactive_file") + of("active_file"));
    Some((format!("{limit} of its control group"), limit_bytes.saturating_sub(used)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_system_writes_them() {
        assert_eq!(of_machine("MemTotal:  100 kB\nMemAvailable:      2048 kB\n"), Some(2 << 20));
        let limits = "Limit Soft Limit Hard Limit Units\nMax data size             unlimited            unlimited            bytes\n\
                      Max address space         8589934592           unlimited            bytes\n";
        let found = of_process(limits, 1 << 30);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1, 7 << 30);
    }

    #[test]
    fn control_groups_of_both_versions_are_found_in_containers_too() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let least = |groups: &str| of_control_groups(groups, root.path()).into_iter().map(|(_, bytes)| bytes).min();
        assert_eq!(least("0::/a/b\n"), None);
        write("a/memory.max", "5000\n");
        write("a/memory.current", "3000\n");
        write("a/memory.stat", "anon 1\ninactive_file 400\nactive_file 100\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "7\n");
        // The limit of the group around it.
        assert_eq!(least("0::/a/b\n"), Some(2500));
        write("memory/memory.limit_in_bytes", "9000\n");
        write("memory/memory.usage_in_bytes", "1000\n");
        write("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n");
        // The path is that of the host, where the container has only its own group.
        assert_eq!(least("4:cpu:/x\n5:memory:/docker/1234\n"), Some(8200));
    }
}
