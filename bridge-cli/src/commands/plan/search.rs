//! `bridge plan --search`: the fastest layouts that fit, and where those that the user has named
//! stand among them.

use std::time::Instant;

use bridge_core::config::{Node, RawConfig, SAME_SETTINGS, diff};
use bridge_core::plan::{Divided, Plan, PlannedLayout, Recomputed, Search, SearchOptions, search, with_room};
use bridge_models::registry;
use serde_json::{Value, json};

use super::room::Room;
use super::text::{Table, bytes, number, seconds, time_parts};
use crate::failure::Failure;
use crate::output::line;

/// A layout that the user has named, or the recipe's own: its plan, or why a run with it is
/// refused.
pub struct Named {
    /// Name of the layout.
    pub name: String,
    /// The recipe with it, and the plan.
    pub plan: Result<(RawConfig, Plan), Failure>,
}

/// Searches, and prints the layouts that were found and the rank of each named layout among them.
pub fn run(
    recipe: &RawConfig,
    options: &SearchOptions,
    room: &Room,
    named: &[Named],
    is_json: bool,
) -> Result<u8, Failure> {
    let started = Instant::now();
    let models = registry().models;
    let found = search(recipe, &models, options);
    let took = started.elapsed().as_secs_f64();
    let layout_verdicts: Vec<(String, LayoutVerdict)> = named
        .iter()
        .map(|named| {
            (
                named.name.clone(),
                LayoutVerdict::judge(named, &found, room, |raw, plan| with_room(plan, raw, &models, options)),
            )
        })
        .collect();
    if is_json {
        print_json(recipe, &found, &layout_verdicts)?;
    } else {
        print(recipe, options, room, &found, took);
        for (name, layout_verdict) in &layout_verdicts {
            line(&format!("{name}: {}", layout_verdict.words(room)));
        }
    }
    Ok(0)
}

/// Result for a named layout.
enum LayoutVerdict {
    /// The layout fits; `place` counts from 1, in the order of step time.
    Place { place: usize, is_found: bool, plan: Box<Plan> },
    /// It does not fit; with more recompute it may.
    NoRoom { plan: Box<Plan>, with_recompute: Option<Box<PlannedLayout>>, place: usize },
    /// A run with it is refused.
    Refused(String),
}

impl LayoutVerdict {
    fn judge(
        named: &Named,
        search: &Search,
        room: &Room,
        with_room: impl Fn(&RawConfig, &Plan) -> Option<PlannedLayout>,
    ) -> Self {
        let (raw, plan) = match &named.plan {
            Ok(planned) => planned,
            Err(failure) => return Self::Refused(failure.text()),
        };
        let place = |plan: &Plan| {
            1 + search.found.iter().filter(|found| found.plan.step_seconds() < plan.step_seconds()).count()
        };
        if !room.fits(plan) {
            let with_recompute = with_room(raw, plan).map(Box::new);
            let place = with_recompute.as_ref().map_or(0, |found| place(&found.plan));
            return Self::NoRoom { plan: Box::new(plan.clone()), with_recompute, place };
        }
        let is_found = search.found.iter().any(|found| found.plan.layout == plan.layout);
        Self::Place { place: place(plan), is_found, plan: Box::new(plan.clone()) }
    }

    fn words(&self, room: &Room) -> String {
        match self {
            Self::Place { place, is_found, plan } => {
                let among = if *is_found { "; its parallel sizes are in the list" } else { "" };
                format!("fits, and would be number {place}: {}{among}", summary(plan))
            }
            Self::NoRoom { plan, with_recompute, place } => {
                let remedy = with_recompute.as_ref().map_or_else(
                    || "; it does not fit with every layer recomputed either".into(),
                    |found| {
                        format!(
                            "; with {} recomputed it fits, and would be number {place}: {}",
                            recomputed(found),
                            summary(&found.plan)
                        )
                    },
                );
                format!("{}{remedy}", room.verdict(plan))
            }
            Self::Refused(message) => format!("refused: {message}"),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Place { place, is_found, plan } => {
                json!({ "fits": true, "place": place, "is_found": is_found, "plan": plan })
            }
            Self::NoRoom { plan, with_recompute, place } => json!({
                "fits": false,
                "plan": plan,
                "with_recompute": with_recompute.as_ref().map(|found| json!({ "sizes": found.sizes, "place": place, "plan": found.plan })),
            }),
            Self::Refused(message) => json!({ "refused": message }),
        }
    }
}

fn summary(plan: &Plan) -> String {
    let utilization = plan.estimate.map_or(0.0, |estimate| 100.0 * estimate.model_flops_utilization);
    format!("{} a step, MFU {utilization:.1}%, {} a rank", seconds(plan.step_seconds()), bytes(plan.most_memory()))
}

fn recomputed(found: &PlannedLayout) -> &'static str {
    match (found.sizes.recomputed, found.sizes.divided) {
        (_, Divided::All) | (Recomputed::Layers, Divided::Optimizer) => "layers",
        (Recomputed::FeedForward, Divided::Optimizer) => "feed-forward",
        (Recomputed::Nothing, Divided::Optimizer) => "nothing",
    }
}

fn divided(found: &PlannedLayout) -> &'static str {
    match found.sizes.divided {
        Divided::Optimizer => "optimizer",
        Divided::All => "all (FSDP)",
    }
}

fn print(recipe: &RawConfig, options: &SearchOptions, room: &Room, search: &Search, took: f64) {
    let name = recipe.name.clone().unwrap_or_else(|| "recipe".into());
    let counts = &search.counts;
    line(&format!("{name} on {} ranks, {} of memory each", options.world_size, bytes(room.memory)));
    line(&format!(
        "{} layouts looked at in {}: {} far too large, {} planned in full ({} do not fit, {} a run refuses)",
        counts.layouts,
        seconds(took),
        counts.too_large,
        counts.planned,
        counts.without_room,
        counts.refused
    ));
    if search.found.is_empty() {
        why_none(recipe, options, room, search);
        return;
    }
    line("");
    let mut table = Table::new(&[
        "",
        "layout",
        "data",
        "divided",
        "recomputed",
        "step",
        "MFU",
        "memory",
        "computing",
        "waiting",
        "bubble",
        "update",
        "replicas",
    ]);
    for (index, found) in search.found.iter().enumerate() {
        let Some(estimate) = found.plan.estimate else { continue };
        let share = |time: f64| format!("{:.1}%", 100.0 * time / estimate.step_seconds);
        let mut row = vec![
            (index + 1).to_string(),
            found.sizes.to_string(),
            found.plan.layout.data.to_string(),
            divided(found).into(),
            recomputed(found).into(),
            seconds(estimate.step_seconds),
            format!("{:.1}%", 100.0 * estimate.model_flops_utilization),
            bytes(found.plan.most_memory()),
        ];
        row.extend(time_parts(&estimate).map(|(_, time)| share(time)));
        table.rows.push(row);
    }
    table.print();
    line("");
    why(recipe, search);
}

/// Refusals that are shown where nothing was found.
const REFUSALS: usize = 3;

/// The reasons why nothing was found.
fn why_none(recipe: &RawConfig, options: &SearchOptions, room: &Room, search: &Search) {
    let (counts, world) = (&search.counts, options.world_size);
    if counts.layouts == 0 && search.refusals.is_empty() {
        let batch = recipe.train.global_batch_size.unwrap_or(1);
        let replicas: Vec<String> = search.replicas.iter().map(ToString::to_string).collect();
        line(&match replicas.as_slice() {
            [] => format!(
                "none fits: no tensor size that divides model.num_attention_heads = {}, no context size and no number of equal stages divides {world} ranks",
                recipe.model.num_attention_heads
            ),
            replicas => format!(
                "none fits: layouts on {world} ranks have {} replicas, and train.global_batch_size = {batch} is a multiple of none of these numbers",
                replicas.join(", ")
            ),
        });
        return;
    }
    if let Some(smallest) = &search.smallest {
        line(&format!(
            "none fits: the smallest is {} with {} recomputed; {}",
            smallest.sizes,
            recomputed(smallest),
            room.verdict(&smallest.plan)
        ));
    } else {
        line("none can be run:");
    }
    for (refusal, count) in search.refusals.iter().take(REFUSALS) {
        line(&format!("{count} layouts are refused: {refusal}"));
    }
}

/// Difference of the fastest layout from others, and its settings.
fn why(recipe: &RawConfig, search: &Search) {
    let fastest = &search.found[0];
    if let (Some(first), Some(other)) =
        (fastest.plan.estimate, search.found.get(1).and_then(|found| found.plan.estimate))
    {
        let parts = time_parts(&first).into_iter().zip(time_parts(&other));
        let gains = parts.map(|((what, first), (_, other))| (what, other - first));
        if let Some((what, gain)) = gains.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, gain)| *gain > 0.0) {
            line(&format!("number 1 beats number 2 by {what}: {} less", seconds(gain)));
        }
    }
    if let Some(estimate) = fastest.plan.estimate {
        line(&format!("number 1: {} tokens per second", number(estimate.tokens_per_second)));
    }
    line(&format!("its settings: {}", settings(recipe, fastest).join(" ")));
    line("");
}

/// Settings of `recipe` for a layout.
fn settings(recipe: &RawConfig, found: &PlannedLayout) -> Vec<String> {
    let changed = found.sizes.apply(recipe);
    let mut differences = diff(recipe.recipe(), changed.recipe());
    let keys: Vec<String> = differences.iter().map(|difference| difference.key.clone()).collect();
    // The first of several settings with the same meaning is named, and those with which the recipe
    // contradicts it.
    let repeats = |key: &str| {
        let same = SAME_SETTINGS.iter().find(|same| same.contains(&key));
        same.is_some_and(|same| !recipe.is_explicit(key) && same[0] != key && keys.iter().any(|other| other == same[0]))
    };
    differences.retain(|difference| !repeats(&difference.key));
    let differences = differences.into_iter();
    let value = |value: Option<Node>| value.map_or_else(|| "null".into(), |value| value.to_inline());
    differences.map(|difference| format!("{}={}", difference.key, value(difference.right))).collect()
}

fn print_json(recipe: &RawConfig, search: &Search, layout_verdicts: &[(String, LayoutVerdict)]) -> Result<(), Failure> {
    for (index, found) in search.found.iter().enumerate() {
        let value = json!({
            "kind": "layout",
            "place": index + 1,
            "sizes": found.sizes,
            "settings": settings(recipe, found),
            "plan": serde_json::to_value(&found.plan).map_err(Failure::run)?,
        });
        line(&value.to_string());
    }
    for (name, layout_verdict) in layout_verdicts {
        line(&json!({ "kind": "named", "name": name, "standing": layout_verdict.json() }).to_string());
    }
    let refusals: Vec<Value> =
        search.refusals.iter().map(|(why, count)| json!({ "why": why, "layouts": count })).collect();
    let smallest = search.smallest.as_ref().map(|found| json!({ "sizes": found.sizes, "plan": found.plan }));
    let found = json!({ "kind": "search", "counts": search.counts, "refusals": refusals, "smallest": smallest });
    line(&found.to_string());
    Ok(())
}
