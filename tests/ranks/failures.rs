//! End of a run when one of its ranks fails: all ranks end soon and name it, and the next run
//! resumes.

use std::path::Path;
use std::time::{Duration, Instant};

use bridge_core::logging::flight::{FlightRecord, Missing, missing};
use bridge_core::train::{
    Classified, ErrorClass, LoopRequest, RunContext, RunOptions, StepReport, Subsystem, SubsystemError, TrainError,
    pretrain, run_on_threads,
};
use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;

use super::{config, options};
use bridge_tests::losses_in;

/// Time limit for a rank that hangs. On a busy machine a save takes seconds.
const TIMEOUT: Duration = Duration::from_secs(8);

/// Time limit before the first step, or if no rank hangs: one that is gone is noticed at once.
const PATIENCE: Duration = Duration::from_secs(120);

/// Misbehavior of one rank after its third step.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Panic,
    /// Hangs for longer than other ranks wait.
    Hang,
    /// Panics with a communication error, as a region inside a model does.
    CommunicationPanic,
}

struct Misbehave(Fault);

impl Subsystem for Misbehave {
    fn name(&self) -> &str {
        "misbehaviour"
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        if step.iteration != 3 {
            return Ok(LoopRequest::default());
        }
        match self.0 {
            Fault::Panic => panic!("out of luck"),
            Fault::Hang => std::thread::sleep(2 * TIMEOUT),
            Fault::CommunicationPanic => {
                let error = bridge_dist::comm::single::SingleCommunicator::new("tp");
                let wrong = bridge_dist::comm::Communicator::broadcast(&error, (&mut [0_u8]).into(), 7);
                std::panic::panic_any(wrong.expect_err("there is no rank 7"));
            }
        }
        Ok(LoopRequest::default())
    }
}

/// Trains on three ranks; rank 1 misbehaves, if asked to.
fn train(folder: &Path, fault: Option<Fault>) -> Result<(), TrainError> {
    let save = format!("checkpoint.save={:?}", folder.join("saved"));
    let calls = format!("dist.flight_recorder_dump_path={:?}", folder.join("calls-"));
    let mut overrides = vec![
        calls.as_str(),
        "train.global_batch_size=6",
        save.as_str(),
        "checkpoint.save_interval=2",
        "train.train_iters=5",
    ];
    let after_init = format!("dist.distributed_timeout_seconds_after_init={}", TIMEOUT.as_secs());
    if matches!(fault, Some(Fault::Hang)) {
        overrides.push(&after_init);
    }
    let config = config(folder, 3, &overrides);
    let program = |groups: ProcessGroups| {
        let mut options: RunOptions = options(groups);
        if let Some(fault) = fault.filter(|_| options.groups.world().rank() == 1) {
            options.subsystems.push(Box::new(Misbehave(fault)));
        }
        pretrain(config.clone(), options).map(drop)
    };
    run_on_threads(&config, PATIENCE, program).map(drop)
}

#[test]
fn a_rank_that_fails_ends_the_run_and_the_next_one_resumes() {
    let reference = tempfile::tempdir().unwrap();
    train(reference.path(), None).unwrap();
    let expected = losses_in(&reference.path().join("logs"));
    for fault in [Fault::Panic, Fault::Hang, Fault::CommunicationPanic] {
        let folder = tempfile::tempdir().unwrap();
        let started = Instant::now();
        let error = train(folder.path(), Some(fault)).expect_err("a rank failed");
        assert!(started.elapsed() < 4 * TIMEOUT, "{fault:?} took {:?}", started.elapsed());
        assert!(!error.is_bad_input(), "{error}");
        let text = error.to_string();
        match (fault, &error, error.class()) {
            (Fault::Panic, TrainError::RankPanicked { rank: 1, message, .. }, _) => assert_eq!(message, "out of luck"),
            (Fault::Hang, _, ErrorClass::Communication(error)) => {
                let cause: &CommError = error.root_cause();
                assert!(cause.to_string().contains(&format!("waited {TIMEOUT:?} for rank 1")), "{cause}");
                assert!(cause.operation.contains("all_gather") || cause.operation.contains("all_reduce"), "{cause}");
            }
            (Fault::CommunicationPanic, _, ErrorClass::Communication(_)) => {
                assert!(text.contains("group `tp`") && text.contains("broadcast"), "{text}");
            }
            _ => panic!("{fault:?}: {error:?}"),
        }
        assert_calls_are_told(folder.path(), fault);
        // Rank 1 said why in its own file, if it lived to say anything.
        let log = folder.path().join("logs/ranks/rank_00001.log");
        assert_eq!(log.exists(), !matches!(fault, Fault::Panic), "{fault:?}");
        let saved = std::fs::read_to_string(folder.path().join("saved/latest_checkpointed_iteration.txt")).unwrap();
        assert_eq!(saved.trim(), "2", "{fault:?}");
        train(folder.path(), None).unwrap();
        assert_eq!(losses_in(&folder.path().join("logs")), expected, "{fault:?}: resumed");
    }
}

/// The flight recorder's files tell the ranks that wait in each operation, and the ranks that are
/// missing there.
fn assert_calls_are_told(folder: &Path, fault: Fault) {
    let read = |rank: usize| FlightRecord::read(&folder.join(format!("calls-{rank}"))).expect("a record");
    let records: Vec<FlightRecord> = (0..3).map(read).collect();
    match fault {
        Fault::Panic => assert_eq!(records[1].why, "the rank panicked"),
        Fault::CommunicationPanic => assert!(records[1].why.contains("broadcast"), "{}", records[1].why),
        Fault::Hang => {
            let found = missing(&records);
            let is_told = |call: &Missing| call.missing == [1] && call.group == "world" && call.waiting == [0, 2];
            assert!(found.iter().any(is_told), "{found:?}");
            assert!(records[0].last_open().is_some_and(|call| call.ranks == [0, 1, 2]), "{:?}", records[0]);
        }
    }
}

#[test]
fn ranks_with_other_recipes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let usual = config(folder.path(), 3, &["train.global_batch_size=6"]);
    let other = config(folder.path(), 3, &["train.global_batch_size=6", "optimizer.lr=0.5"]);
    let error = bridge_dist::comm::thread::run_ranks(3, TIMEOUT, |world| {
        let config = if world.rank() == 2 { &other } else { &usual };
        bridge_core::train::process_groups(config, world).map(drop)
    })
    .expect_err("the recipes differ");
    let text = error.to_string();
    assert!(text.contains("different recipes: rank 2 of 3 has another"), "{text}");
    assert!(error.others.len() == 2, "all ranks end: {text}");
}
