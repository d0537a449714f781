//! Requests of the page. Runs are named by the numbers of the list of runs, never by a path.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bridge_telemetry::logging::curves::{Curve, smooth};
use bridge_telemetry::logging::runs::differences_of_configs;
use serde_json::{Map, Value, json};

use crate::details;
use crate::index::{Axis, Buckets, Table, buckets};
use crate::library::{Entry, Library, Reading};
use crate::request::{Answer, Ask};

const PAGE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/app.js");

/// Stretches of a curve.
const POINTS: f64 = 4000.0;
/// Margin of a curve beyond the requested range, as a share of it on each side: for drawing its
/// edges and smoothing there.
const MARGIN: f64 = 0.25;

/// Answers a request.
pub fn answer(library: &Library, ask: &Ask) -> Answer {
    match ask.path.as_str() {
        "/" => Answer::content("text/html; charset=utf-8", PAGE),
        "/style.css" => Answer::content("text/css; charset=utf-8", STYLE),
        "/app.js" => Answer::content("text/javascript; charset=utf-8", SCRIPT),
        "/api/runs" => runs(library),
        "/api/series" => chosen(library, ask).and_then(|chosen| series(ask, &chosen)).unwrap_or_else(|refused| refused),
        "/api/differences" => chosen(library, ask).map_or_else(|refused| refused, |chosen| differences(&chosen)),
        "/api/run" => of_run(library, ask, |entry| Answer::json(&details::details(&library.root, entry))),
        "/api/trace" => of_run(library, ask, |entry| details::trace(entry, ask.text("file"))),
        "/api/times" => of_run(library, ask, details::times),
        _ => Answer::refused(404, "there is no such page"),
    }
}

fn of_run(library: &Library, ask: &Ask, make: impl FnOnce(&Entry) -> Answer) -> Answer {
    let id = ask.text("run");
    library.entry(id).map_or_else(
        || Answer::refused(404, &format!("run: there is none with the number {id:?}")),
        |entry| make(&entry),
    )
}

/// The runs of a list `1,2,3`.
fn chosen(library: &Library, ask: &Ask) -> Result<Vec<Arc<Entry>>, Answer> {
    let entry = |id: &str| {
        let missing = || Answer::refused(404, &format!("runs: there is none with the number {id:?}"));
        library.entry(id).ok_or_else(missing)
    };
    let entries: Vec<_> =
        ask.text("runs").split(',').filter(|id| !id.is_empty()).map(entry).collect::<Result<_, _>>()?;
    entries.iter().for_each(|entry| library.touch(entry));
    Ok(entries)
}

fn runs(library: &Library) -> Answer {
    let (_, problems) = library.found();
    let entries = library.entries();
    let mut figures = BTreeSet::new();
    let of = |entry: &Arc<Entry>| {
        entry.prepare();
        entry.read(|known| {
            figures.extend(known.table().figures().map(|(kind, name)| (kind.to_owned(), name)));
            let folder = entry.folder.strip_prefix(&library.root).unwrap_or(Path::new(""));
            let folder = folder.to_string_lossy();
            let reading = match known.reading {
                Reading::Sample => "sample",
                Reading::Whole => "whole",
                Reading::NoRoom => "no room",
            };
            json!({
                "id": entry.id, "folder": if folder.is_empty() { ".".into() } else { folder }, "head": known.head,
                "reading": reading, "read": known.read.0, "best_valid": best_valid(known.table()), "size": known.read.1, "damaged": known.damaged(),
                "version": known.version, "problem": known.problem,
            })
        })
    };
    let runs: Vec<Value> = entries.iter().map(of).collect();
    let root = library.root.display().to_string();
    Answer::json(&json!({ "root": root, "problems": problems, "runs": runs, "figures": figures }))
}

/// The lowest validation loss and its iteration.
fn best_valid(table: &Table) -> Option<(f64, u32)> {
    let losses = table.series("valid", "loss")?;
    let finite = losses.points().filter(|(_, loss)| loss.is_finite());
    finite.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(iteration, loss)| (loss, iteration))
}

fn series(ask: &Ask, chosen: &[Arc<Entry>]) -> Result<Answer, Answer> {
    let refused = |text: String| Answer::refused(400, &text);
    let axis = Axis::named(ask.text("x"))
        .ok_or_else(|| refused(format!("x: expected step, time or tokens, found {:?}", ask.text("x"))))?;
    let points = ask.number("points").unwrap_or(600.0).clamp(2.0, POINTS);
    let range = (ask.number("from").unwrap_or(f64::MIN), ask.number("to").unwrap_or(f64::MAX));
    if range.0 > range.1 {
        return Err(refused(format!("from: expected at most to, found {} and {}", range.0, range.1)));
    }
    let is_all = range == (f64::MIN, f64::MAX);
    let margin = if is_all { 0.0 } else { (range.1 - range.0) * MARGIN };
    let wide = (range.0 - margin, range.1 + margin);
    let count = if is_all { points } else { points * (1.0 + 2.0 * MARGIN) } as usize;
    let is_smoothed = ask.text("smooth") == "1";
    let mut curves = Map::new();
    for entry in chosen {
        entry.prepare();
        let curve = entry.read(|known| {
            let found = buckets(known.table(), ask.text("kind"), ask.text("name"), axis, wide, count)?;
            let mut curve = of_buckets(&found, is_smoothed);
            curve["version"] = known.version.into();
            curve["whole"] = (known.reading == Reading::Whole).into();
            Some(curve)
        });
        curves.insert(entry.id.to_string(), curve.unwrap_or(Value::Null));
    }
    Ok(Answer::json(&curves))
}

/// A curve as it is sent: values with as many digits as can be seen.
fn of_buckets(found: &Buckets, is_smoothed: bool) -> Value {
    let values = |values: &[f64]| -> Vec<Value> {
        values
            .iter()
            .map(|value| if (*value as f32).is_finite() { json!(*value as f32) } else { json!(value) })
            .collect()
    };
    let places: Vec<f64> = found.x.iter().map(|x| (x * 100.0).round() / 100.0).collect();
    let smoothed = is_smoothed.then(|| {
        let curve: Curve = found.x.iter().copied().zip(found.mean.iter().copied()).collect();
        values(&smooth(&curve).into_iter().map(|point| point.1).collect::<Vec<_>>())
    });
    json!({
        "x": places, "min": values(&found.min), "max": values(&found.max), "mean": values(&found.mean),
        "smooth": smoothed, "not_finite": found.not_finite, "ends": found.ends,
    })
}

fn differences(chosen: &[Arc<Entry>]) -> Answer {
    let configs: Vec<Option<String>> =
        chosen.iter().map(|entry| entry.read(|known| known.head.config.clone())).collect();
    // Runs without a known configuration would differ in all settings.
    let known: Vec<(&Arc<Entry>, &str)> =
        chosen.iter().zip(&configs).filter_map(|(entry, config)| Some((entry, config.as_deref()?))).collect();
    let texts: Vec<&str> = known.iter().map(|(_, config)| *config).collect();
    let runs: Vec<u32> = known.iter().map(|(entry, _)| entry.id).collect();
    let unknown: Vec<u32> = chosen.iter().map(|entry| entry.id).filter(|id| !runs.contains(id)).collect();
    let differences = if texts.is_empty() { Vec::new() } else { differences_of_configs(&texts) };
    Answer::json(&json!({ "runs": runs, "unknown": unknown, "differences": differences }))
}
