//! Events of subsystems at every kind of end of training, and the evaluation at the end.

use std::path::Path;
use std::sync::{Arc, Mutex};

use bridge_core::config::{World, load};
use bridge_core::resilience::Signal;
use bridge_core::train::{
    CancelHandle, Classified, ExitReason, LoopRequest, Registry, RunContext, RunOptions, StepReport, Subsystem,
    SubsystemError, TrainEnd, TrainError, pretrain, rank_timeout, run_on_threads,
};
use bridge_data::{DataError, Dataset, DatasetBuildContext, DatasetProvider, Datasets, Sample};
use bridge_models::registry;

use super::{config, options, token_files};
use bridge_tests::{bridge, recipe};

/// Event of training that a subsystem saw.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Start,
    End(ExitReason),
    Failure(String),
}

type Seen = Arc<Mutex<Vec<Event>>>;

/// Records its events, and calls `at_step_3` once.
struct Witness {
    seen: Seen,
    at_step_3: Box<dyn Fn() + Send>,
}

impl Subsystem for Witness {
    fn name(&self) -> &str {
        "witness"
    }

    fn on_run_start(&mut self, _run: &mut RunContext) -> Result<(), SubsystemError> {
        self.seen.lock().unwrap().push(Event::Start);
        Ok(())
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        if step.iteration == 3 {
            (self.at_step_3)();
        }
        Ok(LoopRequest::default())
    }

    fn on_run_end(&mut self, _run: &mut RunContext, end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        let event = end.map_or_else(|error| Event::Failure(error.to_string()), |reason| Event::End(reason.clone()));
        self.seen.lock().unwrap().push(event);
        Ok(())
    }
}

/// Trains on one rank in `folder`. Returns the events of subsystems and the end of the run.
fn train_in(
    folder: &Path,
    overrides: &[&str],
    cancel: &CancelHandle,
    at_step_3: impl Fn() + Send + 'static,
) -> (Vec<Event>, Result<ExitReason, TrainError>) {
    let seen = Seen::default();
    let mut options = RunOptions { cancel: cancel.clone(), ..options(bridge_dist::mesh::ProcessGroups::single()) };
    options.subsystems.push(Box::new(Witness { seen: Arc::clone(&seen), at_step_3: Box::new(at_step_3) }));
    let outcome = pretrain(config(folder, 1, overrides), options).map(|report| report.reason);
    let seen = seen.lock().unwrap().clone();
    (seen, outcome)
}

/// As [`train_in`], in a folder of its own.
fn train(overrides: &[&str]) -> (Vec<Event>, Result<ExitReason, TrainError>) {
    let folder = tempfile::tempdir().unwrap();
    train_in(folder.path(), overrides, &CancelHandle::default(), || {})
}

fn assert_ends(overrides: &[&str], expected: &ExitReason) {
    let (seen, outcome) = train(overrides);
    assert_eq!(seen, [Event::Start, Event::End(expected.clone())], "{overrides:?}");
    assert_eq!(outcome.unwrap(), *expected, "{overrides:?}");
}

#[test]
fn subsystems_are_told_why_training_ended() {
    assert_ends(&["train.train_iters=4"], &ExitReason::Completed);
    assert_ends(&["train.exit_interval=2"], &ExitReason::Interval(2));
    let (seen, _) = train(&["train.exit_duration_in_mins=1e-7"]);
    let [Event::Start, Event::End(ExitReason::Duration(minutes))] = seen[..] else { panic!("{seen:?}") };
    assert!(minutes > 1e-7, "{minutes}");

    let (folder, cancel) = (tempfile::tempdir().unwrap(), CancelHandle::default());
    let handle = cancel.clone();
    let (seen, _) = train_in(folder.path(), &[], &cancel, move || handle.cancel());
    assert_eq!(seen, [Event::Start, Event::End(ExitReason::Cancelled)]);

    let overrides = ["train.train_iters=5000", "train.exit_signal=SIGUSR2", "train.exit_signal_handler=true"];
    let folder = tempfile::tempdir().unwrap();
    let (seen, outcome) = train_in(folder.path(), &overrides, &CancelHandle::default(), || {
        let process = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-USR2", &process]).status().unwrap().success());
    });
    assert_eq!(seen, [Event::Start, Event::End(ExitReason::Signal(Signal::Usr2))]);
    assert_eq!(outcome.unwrap().exit_code(), 128 + 12);
}

/// Options of a rank whose program began an hour ago.
fn options_since_an_hour(groups: bridge_dist::mesh::ProcessGroups) -> RunOptions {
    let started = std::time::Instant::now().checked_sub(std::time::Duration::from_secs(3600)).unwrap();
    RunOptions { program_start: started, ..options(groups) }
}

/// A deadline ends the process, which is not the run's here.
#[test]
fn a_deadline_needs_a_process_of_the_runs_own() {
    let folder = tempfile::tempdir().unwrap();
    let save = format!("checkpoint.save={:?}", folder.path().join("saved"));
    let error = train_in(
        folder.path(),
        &["train.exit_signal_deadline_s=5", "train.exit_signal_handler=true", &save],
        &CancelHandle::default(),
        || (),
    );
    let error = error.1.unwrap_err().to_string();
    assert!(error.contains("train.exit_signal_deadline_s") && error.contains("WatchSignals::Process"), "{error}");
}

#[test]
fn time_that_is_over_ends_an_evaluation_and_saves_once() {
    for ranks in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        let save = format!("checkpoint.save={:?}", folder.path().join("saved"));
        let evaluates = ["validation.eval_interval=1", "validation.eval_iters=2", "train.exit_duration_in_mins=59.5"];
        let saves = [&save, "checkpoint.save_interval=1", "logger.log_progress=true", "train.global_batch_size=6"];
        let config = config(folder.path(), ranks, &[&evaluates[..], &saves].concat());
        let ends = run_on_threads(&config, rank_timeout(&config), |groups| {
            let report = pretrain(config.clone(), options_since_an_hour(groups))?;
            Ok((report.reason, report.train_state.step))
        });
        for (reason, step) in ends.unwrap() {
            assert!(matches!(reason, ExitReason::Duration(minutes) if minutes >= 60.0), "{reason:?}");
            assert_eq!(step, 1);
        }
        let log = std::fs::read_to_string(folder.path().join("saved/progress.txt")).unwrap();
        assert_eq!(log.matches("Saved checkpoint\tIteration: 1\t").count(), 1, "{log}");
        assert_eq!(losses_in_logs(folder.path()), [0.0_f32; 0], "figures of a part would pass for those of the whole");
    }
}

#[test]
fn time_that_is_over_ends_the_last_evaluations() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 1, &["validation.skip_train=true", "train.exit_duration_in_mins=59.5"]);
    let report = pretrain(config, options_since_an_hour(bridge_dist::mesh::ProcessGroups::single())).unwrap();
    assert!(matches!(report.reason, ExitReason::Duration(_)), "{:?}", report.reason);
    assert!(report.validation.is_none() && report.test.is_none());
}

/// Time before the first step counts for the run too; a run that has done everything has not run
/// out of time.
#[test]
fn time_counts_from_the_start_of_the_program() {
    let reason = |overrides: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let options = options_since_an_hour(bridge_dist::mesh::ProcessGroups::single());
        let report = pretrain(config(folder.path(), 1, overrides), options).unwrap();
        (report.reason, report.train_state.step)
    };
    let (ended, step) = reason(&["train.exit_duration_in_mins=59.5"]);
    assert!(matches!(ended, ExitReason::Duration(minutes) if minutes >= 60.0), "{ended:?}");
    assert_eq!(step, 1);
    assert_eq!(reason(&["train.exit_duration_in_mins=90", "train.train_iters=2"]), (ExitReason::Completed, 2));
}

#[test]
fn subsystems_are_told_of_nothing_where_nothing_is_trained() {
    let folder = tempfile::tempdir().unwrap();
    let save = format!("checkpoint.save={:?}", folder.path().join("saved"));
    let overrides = [save.as_str(), "train.train_iters=2"];
    let never = CancelHandle::default();
    assert_eq!(train_in(folder.path(), &overrides, &never, || {}).0.len(), 2);
    let (seen, outcome) = train_in(folder.path(), &overrides, &never, || {});
    assert_eq!((seen.len(), outcome.unwrap()), (0, ExitReason::Completed));
}

/// Data that can be read up to a sample.
struct Torn {
    seq_length: usize,
}

const READABLE: usize = 20;

impl DatasetProvider for Torn {
    fn build(&self, context: &DatasetBuildContext) -> Result<Datasets, DataError> {
        let split = |length: usize| -> Option<Arc<dyn Dataset>> {
            (length > 0).then(|| Arc::new(TornSplit { length, seq_length: self.seq_length }) as _)
        };
        Ok(Datasets { train: split(context.train_samples), ..Datasets::default() })
    }
}

struct TornSplit {
    length: usize,
    seq_length: usize,
}

impl Dataset for TornSplit {
    fn len(&self) -> usize {
        self.length
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        if index >= READABLE {
            return Err(DataError::Parameter(format!("sample {index} is torn")));
        }
        let tokens: Vec<i64> = (0..=self.seq_length as i64).map(|i| (i * 7 + index as i64) % 500).collect();
        Ok(Sample {
            labels: tokens[1..].to_vec(),
            loss_mask: vec![1.0; self.seq_length],
            position_ids: (0..self.seq_length as i64).collect(),
            tokens: tokens[..self.seq_length].to_vec(),
            document_ids: None,
            extras: Default::default(),
        })
    }
}

fn registry_with_torn() -> Registry {
    let mut registry = registry();
    registry.datasets.register("torn", [], |context| Ok(Box::new(Torn { seq_length: context.section.seq_length })));
    registry
}

#[test]
fn subsystems_are_told_of_errors_on_every_rank() {
    for ranks in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let log_dir = format!("logger.log_dir={:?}", folder.path().join("logs"));
        let overrides = [&log_dir, "dataset.kind=torn", "train.global_batch_size=8", "train.num_threads=1"];
        let overrides = overrides.map(str::to_owned);
        let registry = registry_with_torn();
        let config =
            load(&recipe(), &overrides, &registry.kinds(), &World { size: ranks }).expect("the recipe is right");
        let all = Seen::default();
        let error = run_on_threads(&config, rank_timeout(&config), |groups| {
            let mut options = RunOptions { registry: registry.clone(), ..options(groups) };
            options.subsystems.push(Box::new(Witness { seen: Arc::clone(&all), at_step_3: Box::new(|| {}) }));
            pretrain(config.clone(), options).map(drop)
        })
        .expect_err("the data is torn");
        assert!(error.is_bad_input(), "{error}");
        let seen = all.lock().unwrap().clone();
        let failure = |event: &Event| match event {
            Event::Failure(message) => Some(message.clone()),
            _ => None,
        };
        let ends: Vec<String> = seen.iter().filter_map(failure).collect();
        assert_eq!((seen.len(), ends.len()), (2 * ranks, ranks), "{seen:?}");
        assert!(ends.iter().all(|end| end.contains("is torn") || end.contains("failed while reading")), "{ends:?}");
    }
}

#[test]
fn a_whole_split_is_not_evaluated_twice_at_the_end() {
    let evaluations = |overrides: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let data = format!("dataset.data_path={:?}", token_files(folder.path(), "tokens"));
        let data = [data.as_str(), "dataset.kind=gpt", "dataset.split=50,50,0"];
        let config = config(folder.path(), 1, &[&data[..], overrides].concat());
        let report = pretrain(config, options(bridge_dist::mesh::ProcessGroups::single())).unwrap();
        let last = report.validation.expect("there is validation data");
        assert_eq!(last.iteration, 6);
        (losses_in_logs(folder.path()), last.loss().unwrap())
    };
    let common = ["train.train_iters=6", "validation.eval_interval=3"];
    let (whole, last) = evaluations(&[&common[..], &["validation.full_validation=true"]].concat());
    assert_eq!(whole.len(), 2);
    assert_eq!(whole[1], last);
    // Parts of a split follow each other, so the last evaluation is of other samples.
    let (parts, last) = evaluations(&common);
    assert_eq!(parts.len(), 3);
    assert_eq!(parts[2], last);
    assert_ne!(parts[1], parts[2]);
}

#[test]
fn a_resumed_run_makes_up_for_a_validation_that_was_stopped() {
    for train_iters in ["train.train_iters=6", "train.train_iters=3"] {
        let common = [train_iters, "validation.eval_interval=3"];
        let whole = tempfile::tempdir().unwrap();
        train_in(whole.path(), &common, &CancelHandle::default(), || {}).1.unwrap();
        let (folder, cancel) = (tempfile::tempdir().unwrap(), CancelHandle::default());
        let save = format!("checkpoint.save={:?}", folder.path().join("saved"));
        let saves = [&common[..], &[save.as_str()]].concat();
        let handle = cancel.clone();
        let (_, outcome) = train_in(folder.path(), &saves, &cancel, move || handle.cancel());
        assert_eq!(outcome.unwrap(), ExitReason::Cancelled);
        assert_eq!(losses_in_logs(folder.path()), [0.0_f32; 0], "the validation after step 3 was stopped");
        train_in(folder.path(), &saves, &CancelHandle::default(), || {}).1.unwrap();
        assert_eq!(losses_in_logs(folder.path()), losses_in_logs(whole.path()), "{train_iters}");
    }
}

fn losses_in_logs(folder: &Path) -> Vec<f32> {
    let losses = bridge_tests::records_in(&folder.join("logs"), "valid");
    losses.into_iter().map(|loss| loss as f32).collect()
}

#[test]
fn times_are_those_of_all_ranks() {
    let printed = |arguments: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let common = ["logger.timing_log_level=1", "logger.log_interval=10", "train.train_iters=10"];
        let output = bridge_tests::bridge(folder.path(), &[&common[..], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let all = printed(&["--ranks", "2", "logger.timing_log_option=all"]);
    let ranks = all.split("times across ranks (ms):\n  forward-backward:\n").nth(1).expect("a report");
    let lines: Vec<&str> = ranks.lines().take(2).collect();
    assert!(lines[0].starts_with("     rank  0: ") && lines[1].starts_with("     rank  1: "), "{all}");
    let range = printed(&["--ranks", "2"]);
    assert!(range.contains("(min, max) time across ranks (ms):\n    forward-backward ..."), "{range}");
    let single = printed(&[]);
    assert!(single.contains("\ntime (ms):\n    forward-backward ...") && !single.contains("across ranks"), "{single}");
}

/// Fully sharded parameters stay sharded when training has ended, until all ranks ask for the
/// whole.
#[test]
fn whole_parameters_come_back_when_all_ask() {
    let values = |setting: &[&str]| -> Vec<Vec<f32>> {
        let folder = tempfile::tempdir().unwrap();
        // One micro-batch, so that gradients are added up in one order.
        let common = ["train.micro_batch_size=4", "train.train_iters=3", "validation.eval_iters=0"];
        let config = config(folder.path(), 2, &[&common[..], setting].concat());
        let program = |groups| {
            let mut run = pretrain(config.clone(), options(groups))?.run;
            run.make_parameters_whole()?;
            let mut values = Vec::new();
            run.chunks()[0].visit_parameters(&mut |_, value| values.extend(value.into_data().iter::<f32>()));
            Ok(values)
        };
        run_on_threads(&config, rank_timeout(&config), program).unwrap()
    };
    let full = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    let sharded = values(&full);
    assert_eq!(sharded[0].len(), 164_160);
    assert_eq!(sharded[0], sharded[1]);
    assert_eq!(sharded, values(&[]), "what is sharded changes no bit");
    // Weights that were gathered as 8-bit codes are gathered in full precision.
    let eight_bits = ["model.fp8=hybrid", "model.fp8_recipe=tensorwise"];
    let codes = [&full[..], &eight_bits, &["ddp.fp8_param_gather=true"]].concat();
    assert_eq!(values(&codes), values(&eight_bits), "nor does it as codes");
}

/// Each rank has the whole model under data and context parallelism; where none has, the recipe is
/// refused before anything is written.
#[test]
fn a_sample_ends_the_run_or_is_refused_at_its_begin() {
    let short = ["generate.prompt=1 2 3", "generate.temperature=0", "generate.max_tokens=4", "train.train_iters=4"];
    let sample = |layout: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let output = bridge(folder.path(), &[&short, layout].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_empty = std::fs::read_dir(folder.path()).unwrap().next().is_none();
        (output.status.code(), text.split_once("sample:\n").map(|(_, sample)| sample.to_owned()), is_empty)
    };
    let (code, one, _) = sample(&[]);
    assert_eq!((code, one.is_some()), (Some(0), true));
    for layout in
        [["--ranks", "2", "model.context_parallel_size=2"], ["--ranks", "2", "ddp.use_distributed_optimizer=true"]]
    {
        assert_eq!(sample(&layout), (Some(0), one.clone(), false), "{layout:?}");
    }
    for layout in [
        ["--ranks", "2", "model.tensor_model_parallel_size=2"],
        ["--ranks", "2", "model.pipeline_model_parallel_size=2"],
    ] {
        assert_eq!(sample(&layout), (Some(2), None, true), "{layout:?}");
    }
}
