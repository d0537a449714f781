//! Changes of a recipe with which it fits on a device, found by planning them.

use bridge_core::plan::Plan;
use serde_json::{Value, json};

/// Remedies that are named.
const NAMED: usize = 5;

/// Single settings that reduce a rank's memory, the cheapest in time first.
const SINGLE: [&[&str]; 8] = [
    &["ddp.use_distributed_optimizer=true"],
    &["train.micro_batch_size=1"],
    &["model.recompute_granularity=selective", "model.recompute_modules=[core_attn]"],
    &["model.recompute_granularity=selective", "model.recompute_modules=[mlp]"],
    RECOMPUTED,
    &["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"],
    SHARDED,
    &["optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_fraction=1.0"],
];
const RECOMPUTED: &[&str] = &[
    "model.recompute_granularity=full",
    "model.recompute_method=uniform",
    "model.recompute_num_layers=1",
    "model.recompute_modules=null",
];
const SHARDED: &[&str] = &["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
const ONE: &[&str] = &["train.micro_batch_size=1"];

/// A change with which a recipe fits.
#[derive(Debug)]
pub struct Remedy {
    /// Settings, as overrides.
    pub settings: Vec<String>,
    /// The plan with them.
    pub plan: Plan,
}

impl Remedy {
    /// The remedy as JSON.
    pub fn json(&self) -> Value {
        json!({
            "settings": self.settings,
            "world_size": self.plan.layout.world_size,
            "needed_bytes": self.plan.most_memory(),
        })
    }
}

/// Remedies for a plan that does not fit: single changes, or the first of their combinations, on
/// `ranks` ranks or more. `try_out` plans the recipe with settings on a number of ranks, `None` for
/// as few as the sizes allow, and returns the plan if it fits.
pub fn remedies(ranks: Option<usize>, try_out: impl Fn(&[String], Option<usize>) -> Option<Plan>) -> Vec<Remedy> {
    let remedy = |settings: &[&str], ranks: Option<usize>| {
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let plan = try_out(&settings, ranks)?;
        Some(Remedy { settings, plan })
    };
    let mut found: Vec<Remedy> = SINGLE.iter().filter_map(|settings| remedy(settings, ranks)).take(NAMED).collect();
    if !found.is_empty() {
        return found;
    }
    let tensor = [1, 2, 4, 8].map(|size| {
        let tensor = format!("model.tensor_model_parallel_size={size}");
        let mut settings = vec![tensor];
        settings.extend((size > 1).then(|| "model.sequence_parallel=true".to_owned()));
        settings
    });
    let common = [ONE, RECOMPUTED].concat();
    let mut combined: Vec<Vec<String>> = Vec::new();
    for sizes in &tensor {
        for shared in [&["ddp.use_distributed_optimizer=true"][..], SHARDED] {
            let settings = common.iter().chain(shared).map(|setting| (*setting).to_owned());
            combined.push(settings.chain(sizes.iter().filter(|size| !size.ends_with("size=1")).cloned()).collect());
        }
    }
    // More ranks are a change too, the largest one.
    let fewest = ranks.unwrap_or(1);
    let worlds = std::iter::once(ranks).chain((1..=7).map(|doubled| Some(fewest << doubled)));
    for world in worlds {
        let tried = combined.iter().find_map(|settings| {
            let plan = try_out(settings, world)?;
            Some(Remedy { settings: settings.clone(), plan })
        });
        if let Some(remedy) = tried {
            found.push(remedy);
            break;
        }
    }
    found
}
