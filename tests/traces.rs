//! Traces of steps (`profiling`) and `bridge trace`: the recorded spans cover the steps, and
//! tracing changes no results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use bridge_core::logging::trace::{Event, Part, Phase, Trace};
use bridge_tests::{losses, program, run_in};
use serde_json::Value;

const TRACED: [&str; 6] = [
    "train.train_iters=6",
    "train.num_threads=1",
    "profiling.use_pytorch_profiler=true",
    "profiling.profile_step_start=2",
    "profiling.profile_step_end=5",
    "checkpoint.save=saved",
];

fn trace_of(folder: &Path, rank: usize) -> Trace {
    Trace::read(&folder.join(format!("runs/tiny/trace/rank_{rank:05}.json"))).expect("a trace")
}

/// Ranks as `bridge trace --json` has them.
fn summary(folder: &Path) -> Vec<Value> {
    let output = Command::new(program()).args(["trace", "runs/tiny", "--json"]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Layers and micro-batches of the segments' spans in one iteration.
fn visited(trace: &Trace, what: &str) -> BTreeSet<(u64, u64)> {
    let is_step = |event: &&Event| event.cat == Some(Part::Step) && event.number("iteration") == Some(4);
    let step = trace.events.iter().find(is_step).expect("iteration 4 is traced");
    let inside = |event: &&Event| event.ts >= step.ts && event.end() <= step.end() && event.name.ends_with(what);
    let numbers = |event: &Event| Some((event.number("layer")?, event.number("microbatch")?));
    trace.events.iter().filter(inside).filter_map(numbers).collect()
}

#[test]
fn spans_cover_steps_and_name_layers_and_micro_batches() {
    let folder = tempfile::tempdir().unwrap();
    let larger = ["model.hidden_size=128", "model.seq_length=128", "checkpoint.save_interval=4"];
    run_in(folder.path(), &[&TRACED[..], &larger, &["train.global_batch_size=4", "train.micro_batch_size=2"]].concat());
    let trace = trace_of(folder.path(), 0);
    let steps = trace.events.iter().filter_map(|event| event.number("iteration"));
    assert_eq!(steps.collect::<Vec<_>>(), [3, 4, 5]);
    assert_viewable(&trace);
    assert_parses(&folder.path().join("runs/tiny/trace/rank_00000.json"));
    let all: BTreeSet<(u64, u64)> = (0..2).flat_map(|layer| (0..2).map(move |batch| (layer, batch))).collect();
    for what in ["attention-forward", "mlp-forward", "attention-backward", "mlp-backward"] {
        assert_eq!(visited(&trace, what), all, "{what}");
    }
    let names: BTreeSet<&str> = trace.events.iter().map(|event| event.name.as_str()).collect();
    for name in ["batch-generator", "embedding-forward", "head-backward", "optimizer", "save-checkpoint", "report"] {
        assert!(names.contains(name), "{name} in {names:?}");
    }
    let summary = summary(folder.path());
    let coverage = summary[0]["coverage"].as_f64().unwrap();
    assert!(coverage >= 0.98, "{coverage}");
    assert!(summary[0]["planned_flops"].as_f64().unwrap() > 0.0);
    for step in summary[0]["steps"].as_array().unwrap() {
        let parts: f64 = step["parts"].as_object().unwrap().values().map(|part| part.as_f64().unwrap()).sum();
        let whole = step["seconds"].as_f64().unwrap() - step["uncovered"].as_f64().unwrap();
        assert!((parts - whole).abs() <= 1e-6 * whole.max(1.0), "{parts} {whole}");
        assert!(step["parts"]["backward"].as_f64() > Some(0.0) && step["parts"]["forward"].as_f64() > Some(0.0));
    }
}

/// Behavior of Perfetto's parser for a file: times in nanoseconds, where a span must not exceed its
/// parent at all; ends of asynchronous spans that find their beginnings; names of all processes
/// with events.
fn assert_parses(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let events = file["traceEvents"].as_array().expect("events");
    let nanoseconds = |value: &Value| (value.as_f64().expect("a number") * 1e3).round() as i64;
    let (mut spans, mut begun) = (BTreeMap::<(u64, u64), Vec<(i64, i64)>>::new(), BTreeMap::new());
    let (mut named, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for event in events {
        let number = |key: &str| event[key].as_u64().unwrap_or_else(|| panic!("{key} of {event}"));
        let (pid, tid) = (number("pid"), number("tid"));
        let name = event["name"].as_str().filter(|name| !name.is_empty()).unwrap_or_else(|| panic!("{event}"));
        match event["ph"].as_str().unwrap() {
            "M" => {
                assert!(name == "process_name" && event["args"]["name"].is_string(), "{event}");
                assert!(named.insert(pid), "one name a process: {event}");
                continue;
            }
            "X" => {
                let (start, duration) = (nanoseconds(&event["ts"]), nanoseconds(&event["dur"]));
                assert!(start >= 0 && duration >= 0, "{event}");
                spans.entry((pid, tid)).or_default().push((start, start + duration));
            }
            side @ ("b" | "e") => {
                let key = (pid, event["cat"].to_string(), event["id"].as_str().expect("an id").to_owned());
                let at = nanoseconds(&event["ts"]);
                match side {
                    "b" => assert!(begun.insert(key, at).is_none(), "begun twice: {event}"),
                    _ => assert!(begun.remove(&key).is_some_and(|start| start <= at), "no beginning: {event}"),
                }
            }
            other => panic!("{other}: {event}"),
        }
        assert!(event["cat"].is_string() && event.get("args").is_none_or(Value::is_object), "{event}");
        seen.insert(pid);
    }
    assert!(begun.is_empty(), "no end: {begun:?}");
    assert_eq!(named, seen);
    for (track, mut spans) in spans {
        spans.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let mut open: Vec<i64> = Vec::new();
        for (start, end) in spans {
            open.retain(|until| *until > start);
            assert!(open.last().is_none_or(|until| end <= *until), "{track:?}: {start} to {end} in {open:?}");
            open.push(end);
        }
    }
}

/// Needs of viewers: spans of a rank that are nested or apart, and names for all of them.
fn assert_viewable(trace: &Trace) {
    let mut open: Vec<f64> = Vec::new();
    let mut spans: Vec<&Event> = trace.events.iter().filter(|event| event.ph == Phase::X && event.pid == 0).collect();
    spans.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.end().total_cmp(&a.end())));
    for span in spans {
        open.retain(|end| *end > span.ts);
        // A nanosecond of rounding.
        assert!(open.iter().all(|end| span.end() <= end + 2e-3), "{span:?} is in a span until {open:?}");
        open.push(span.end());
        assert!(!span.name.is_empty() && span.cat.is_some() && span.ts >= 0.0, "{span:?}");
    }
    let named = trace.events.iter().filter(|event| event.ph == Phase::M);
    assert_eq!(named.count(), trace.header.ranks.len(), "each rank has a name");
}

#[test]
fn a_trace_changes_no_loss() {
    for more in [
        &["model.share_embeddings_and_output_weights=true"][..],
        &["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"],
        &["--ranks", "2", "model.pipeline_model_parallel_size=2", "model.pipeline_schedule=zb_h1"],
        &["--ranks", "2", "ddp.use_distributed_optimizer=true", "ddp.overlap_grad_reduce=true"],
    ] {
        let (plain, traced) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        run_in(plain.path(), &[&TRACED[..2], more].concat());
        run_in(traced.path(), &[&TRACED[..5], more].concat());
        assert_eq!(losses(plain.path()), losses(traced.path()), "{more:?}");
        let names: BTreeSet<String> = trace_of(traced.path(), 0).events.into_iter().map(|event| event.name).collect();
        assert_eq!(names.contains("attention-recompute"), more[0].contains("recompute"), "{more:?} {names:?}");
        assert!(names.contains("mlp-backward"), "{more:?} {names:?}");
    }
}

#[test]
fn ranks_merge_and_their_traffic_is_the_plans() {
    let folder = tempfile::tempdir().unwrap();
    let layout = ["--ranks", "4", "model.pipeline_model_parallel_size=2", "ddp.use_distributed_optimizer=true"];
    run_in(
        folder.path(),
        &[&TRACED[..5], &layout, &["train.global_batch_size=8", "train.micro_batch_size=2"]].concat(),
    );
    let ranks = summary(folder.path());
    assert_eq!(ranks.len(), 4);
    for rank in &ranks {
        let coverage = rank["coverage"].as_f64().unwrap();
        assert!(coverage >= 0.98, "{coverage} of {}", rank["rank"]);
        let of = |group: &str| {
            let rows = rank["traffic"].as_array().unwrap().iter();
            rows.filter(|row| row["group"] == group).cloned().collect::<Vec<_>>()
        };
        for group in ["dp-cp", "pp"] {
            let rows = of(group);
            assert!(!rows.is_empty(), "{group} in {rank}");
            for row in rows {
                assert_eq!(row["measured"], row["planned"], "{row}");
            }
        }
    }
    let arguments = ["trace", "runs/tiny/trace/rank_00001.json", "runs/tiny/trace", "--output", "merged.json"];
    let output = Command::new(program()).args(arguments).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "rank 1 is in it twice");
    let arguments = ["trace", "runs/tiny", "--output", "merged.json"];
    let output = Command::new(program()).args(arguments).current_dir(folder.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("bubble") && text.contains("reduce_scatter"), "{text}");
    let merged = Trace::read(&folder.path().join("merged.json")).unwrap();
    assert_eq!(merged.header.ranks.len(), 4);
    assert_viewable(&merged);
    for file in ["runs/tiny/trace/rank_00000.json", "runs/tiny/trace/rank_00003.json", "merged.json"] {
        assert_parses(&folder.path().join(file));
    }
    let calls: Vec<&Event> = merged.events.iter().filter(|event| event.text("group") == Some("dp-cp")).collect();
    assert!(calls.iter().all(|event| event.number("bytes").is_some() && event.args.contains_key("ranks")));
    let sides = |phase| merged.events.iter().filter(|event| event.ph == phase).count();
    assert!(sides(Phase::Begins) > 0 && sides(Phase::Begins) == sides(Phase::Ends));
    let begins = |rank| {
        let step = |event: &&Event| event.pid == rank && event.cat == Some(Part::Step);
        merged.events.iter().find(step).unwrap().ts
    };
    // One clock: threads of a process begin a step within the time of a barrier.
    assert!((begins(0) - begins(3)).abs() < 1e6);
}
