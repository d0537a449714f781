//! The machine's transitions, one run of a step at a time, and its exit codes.

use proptest::prelude::*;

use super::*;
use crate::config::{ErrorInjectionType, RerunMode};

const SITE: &str = "found NaN in local forward loss calculation";

fn config(injection: ErrorInjection, device: usize) -> RerunConfig {
    let placement = RankLocation { rank: 0, node: "n0".into(), device };
    RerunConfig { mode: RerunMode::ValidateResults, injection, placement }
}

fn validating(device: usize) -> RerunStateMachine {
    RerunStateMachine::new(config(ErrorInjection::default(), device))
}

/// The next pass of a run on one rank.
fn alone(machine: &mut RerunStateMachine) -> NextPass {
    machine.next_pass(&mut Ok::<_, ()>).unwrap()
}

/// Runs one step in which pass `i` yields `results[i]`; NaN is rejected. Returns the conclusions of
/// all passes.
fn step(machine: &mut RerunStateMachine, severity: Severity, results: &[f64]) -> Vec<FindingKind> {
    let mut findings = Vec::new();
    let mut results = results.iter();
    while alone(machine) == NextPass::Run {
        let result = *results.next().expect("no more passes than results");
        let validation = Validation { result, rejected: result.is_nan(), message: SITE, tolerance: 0.0, severity };
        findings.extend(machine.validate_result(validation).unwrap().map(|found| found.kind));
    }
    assert_eq!(results.next(), None, "as many passes as results");
    findings
}

/// A machine past the first iteration, in which nothing is judged.
fn warm(device: usize) -> RerunStateMachine {
    let mut machine = validating(device);
    assert_eq!(step(&mut machine, Severity::Fatal, &[f64::NAN]), []);
    assert_eq!(machine.exit_decision(), ExitDecision::Continue);
    machine
}

/// Saves and loads through JSON, as another process would.
fn resume(machine: &RerunStateMachine, config: RerunConfig) -> RerunStateMachine {
    let json = serde_json::to_string(&machine.checkpoint().unwrap()).unwrap();
    let mut resumed = RerunStateMachine::new(config);
    resumed.load_checkpoint(serde_json::from_str(&json).unwrap()).unwrap();
    resumed
}

#[test]
fn accepted_results_run_once() {
    let mut machine = warm(0);
    assert_eq!(step(&mut machine, Severity::Fatal, &[1.0]), []);
    assert_eq!((machine.state(), machine.iteration()), (RerunState::NotRunningYet, 2));
    assert_eq!(machine.checkpoint(), None);
}

#[test]
fn passes_of_a_step_by_name() {
    let mut machine = warm(0);
    let nan =
        || Validation { result: f64::NAN, rejected: true, message: SITE, tolerance: 0.0, severity: Severity::Fatal };
    assert_eq!(alone(&mut machine), NextPass::Run);
    assert_eq!(machine.state(), RerunState::InitialRun);
    machine.validate_result(nan()).unwrap();
    assert_eq!(alone(&mut machine), NextPass::Run);
    assert_eq!(machine.state(), RerunState::RerunningInPlace);
    machine.validate_result(nan()).unwrap();
    assert_eq!(alone(&mut machine), NextPass::Exit);
    assert_eq!(machine.state(), RerunState::WillRerunFromCheckpoint);
}

/// Severity, results of the passes, conclusions, state afterwards, decision.
type Row = (Severity, &'static [f64], &'static [FindingKind], RerunState, ExitDecision);

#[test]
fn reruns_in_place() {
    use FindingKind::{Reproducible, RerunRequested, Transient};
    use Severity::{Fatal, NonFatal};
    const NAN: f64 = f64::NAN;
    let rows: [Row; 4] = [
        (Fatal, &[NAN, 1.0], &[RerunRequested, Transient], RerunState::RerunningInPlace, ExitDecision::Exit(17)),
        (NonFatal, &[NAN, 1.0], &[RerunRequested, Transient], RerunState::NotRunningYet, ExitDecision::Continue),
        (
            Fatal,
            &[NAN, NAN],
            &[RerunRequested, Reproducible],
            RerunState::WillRerunFromCheckpoint,
            ExitDecision::SaveAndExit(16),
        ),
        (NonFatal, &[NAN, NAN], &[RerunRequested, Reproducible], RerunState::NotRunningYet, ExitDecision::Continue),
    ];
    for (severity, results, findings, state, decision) in rows {
        let mut machine = warm(0);
        assert_eq!(step(&mut machine, severity, results), findings);
        assert_eq!((machine.state(), machine.exit_decision()), (state, decision), "{severity:?} {results:?}");
    }
}

#[test]
fn reruns_from_a_checkpoint() {
    use FindingKind::{Correct, Persistent, SameDevice};
    use Severity::{Fatal, NonFatal};
    const NAN: f64 = f64::NAN;
    // Device of the rerun, then as above.
    let rows: [(usize, Row); 5] = [
        (0, (Fatal, &[NAN], &[SameDevice], RerunState::RerunningAgainFromCheckpoint, ExitDecision::Exit(16))),
        (1, (Fatal, &[2.0], &[Persistent], RerunState::RerunningFromCheckpoint, ExitDecision::Exit(17))),
        (1, (Fatal, &[NAN], &[Correct], RerunState::RerunningFromCheckpoint, ExitDecision::Exit(17))),
        (1, (NonFatal, &[2.0], &[Persistent], RerunState::NotRunningYet, ExitDecision::Continue)),
        (1, (NonFatal, &[NAN], &[Correct], RerunState::NotRunningYet, ExitDecision::Continue)),
    ];
    for (device, (severity, results, findings, state, decision)) in rows {
        let mut failed = warm(0);
        step(&mut failed, Fatal, &[NAN, NAN]);
        let mut machine = resume(&failed, config(ErrorInjection::default(), device));
        assert_eq!(machine.state(), RerunState::WillRerunFromCheckpoint);
        assert_eq!(step(&mut machine, severity, results), findings);
        assert_eq!((machine.state(), machine.exit_decision()), (state, decision), "{device} {severity:?} {results:?}");
        assert_eq!(machine.iteration(), 2, "the iteration in doubt keeps its number");
    }
}

#[test]
fn a_rerun_that_never_reaches_the_call_ends_the_run() {
    let mut machine = warm(0);
    alone(&mut machine);
    let nan =
        Validation { result: f64::NAN, rejected: true, message: SITE, tolerance: 0.0, severity: Severity::NonFatal };
    machine.validate_result(nan).unwrap();
    alone(&mut machine);
    assert_eq!(alone(&mut machine), NextPass::Exit);
    assert_eq!(machine.exit_decision(), ExitDecision::Exit(17));
}

#[test]
fn injected_faults_take_the_path_they_are_named_for() {
    for (kind, in_place, elsewhere) in [
        (ErrorInjectionType::TransientError, ExitDecision::Exit(17), None),
        (ErrorInjectionType::PersistentError, ExitDecision::SaveAndExit(16), Some(FindingKind::Persistent)),
        (ErrorInjectionType::CorrectResult, ExitDecision::SaveAndExit(16), Some(FindingKind::Correct)),
    ] {
        let injection = ErrorInjection { rate: 1, kind, seed: 7 };
        let mut machine = RerunStateMachine::new(config(injection, 0));
        step(&mut machine, Severity::Fatal, &[1.0]);
        assert_eq!(step(&mut machine, Severity::Fatal, &[1.0, 1.0])[0], FindingKind::RerunRequested);
        assert_eq!(machine.exit_decision(), in_place, "{kind:?}");
        if let Some(expected) = elsewhere {
            let mut machine = resume(&machine, config(injection, 1));
            assert_eq!(step(&mut machine, Severity::Fatal, &[1.0]), [expected]);
            assert_eq!(machine.exit_decision(), ExitDecision::Exit(17));
        }
    }
}

#[test]
fn injection_keeps_its_rate() {
    let injection = ErrorInjection { rate: 8, kind: ErrorInjectionType::TransientError, seed: 1 };
    let mut machine = RerunStateMachine::new(config(injection, 0));
    let mut num_reruns = 0;
    for iteration in 0..4000 {
        let mut num_passes = 0;
        while alone(&mut machine) == NextPass::Run {
            num_passes += 1;
            let (message, severity) = (SITE, Severity::NonFatal);
            let validation = Validation { result: 1.0, rejected: false, message, tolerance: 0.0, severity };
            machine.validate_result(validation).unwrap();
        }
        assert!(iteration > 0 || num_passes == 1);
        num_reruns += num_passes - 1;
    }
    assert!((400..600).contains(&num_reruns), "{num_reruns} of 4000, expected about 500");
}

#[test]
fn disabled_mode_reports_at_once_from_the_first_iteration() {
    let disabled = RerunConfig { mode: RerunMode::Disabled, ..config(ErrorInjection::default(), 3) };
    let mut machine = RerunStateMachine::new(disabled);
    assert_eq!(alone(&mut machine), NextPass::Run);
    let validation =
        |severity| Validation { result: f64::NAN, rejected: true, message: SITE, tolerance: 0.0, severity };
    let finding = machine.validate_result(validation(Severity::NonFatal)).unwrap().unwrap();
    assert_eq!(finding.kind, FindingKind::Tolerated);
    let error = machine.validate_result(validation(Severity::Fatal)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("Rank 0, node n0, device 3, iteration 1: Unexpected result NaN (message='{SITE}')")
    );
    assert_eq!(alone(&mut machine), NextPass::Done);
    assert_eq!(machine.exit_decision(), ExitDecision::Continue);
}

#[test]
fn disabling_reruns_drops_a_pending_one() {
    let mut failed = warm(0);
    step(&mut failed, Severity::Fatal, &[f64::NAN, f64::NAN]);
    let disabled = RerunConfig { mode: RerunMode::Disabled, ..config(ErrorInjection::default(), 0) };
    let mut machine = resume(&failed, disabled);
    assert_eq!((machine.state(), machine.iteration()), (RerunState::NotRunningYet, 1));
    assert_eq!(machine.mode(), RerunMode::Disabled);

    let mut other = failed.checkpoint().unwrap();
    other.state = RerunState::InitialRun;
    assert_eq!(machine.load_checkpoint(other), Err(RerunCheckpointError { found: RerunState::InitialRun }));
}

/// The next pass, with the given votes of other ranks.
fn with_others(machine: &mut RerunStateMachine, votes: &[bool]) -> Result<NextPass, &'static str> {
    let mut votes = votes.iter();
    machine.next_pass(&mut |vote| votes.next().map(|other| *other || vote).ok_or("no more votes"))
}

#[test]
fn ranks_follow_each_other_and_the_graver_request_wins() {
    // Another rank asks for the rerun; then it asks for a checkpoint.
    let mut machine = warm(0);
    alone(&mut machine);
    assert_eq!(with_others(&mut machine, &[true]), Ok(NextPass::Run));
    assert_eq!(with_others(&mut machine, &[true]), Ok(NextPass::Exit));
    assert_eq!(machine.exit_decision(), ExitDecision::SaveAndExit(16));

    // Checkpoint no, exit yes, go on yes: exit.
    let mut machine = warm(0);
    alone(&mut machine);
    with_others(&mut machine, &[true]).unwrap();
    assert_eq!(with_others(&mut machine, &[false, true, true]), Ok(NextPass::Exit));
    assert_eq!(machine.exit_decision(), ExitDecision::Exit(17));

    // A failing collective is passed on.
    let mut machine = warm(0);
    alone(&mut machine);
    assert_eq!(with_others(&mut machine, &[]), Err("no more votes"));
}

#[test]
fn calls_are_told_apart_by_their_place_in_the_pass() {
    let mut machine = warm(0);
    let mut passes: [&[f64]; 2] = [&[1.0, f64::NAN], &[5.0, f64::NAN]];
    let mut findings = Vec::new();
    for results in &mut passes {
        assert!(alone(&mut machine) == NextPass::Run);
        for result in results.iter().copied() {
            let (message, severity) = (SITE, Severity::Fatal);
            let validation = Validation { result, rejected: result.is_nan(), message, tolerance: 0.0, severity };
            findings.extend(machine.validate_result(validation).unwrap().map(|found| found.kind));
        }
    }
    // The first call differs between the passes, but it is not the one in question.
    assert_eq!(findings, [FindingKind::RerunRequested, FindingKind::Reproducible]);
}

#[test]
fn differences() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for (a, b, expected) in [
        (1.0, 1.0, 0.0),
        (nan, nan, 0.0),
        (inf, inf, 0.0),
        (nan, 1.0, inf),
        (1.0, inf, inf),
        (inf, -inf, inf),
        (1.0, 3.0, 1.0),
        (2.0, -2.0, inf),
        (0.0, -0.0, 0.0),
    ] {
        assert_eq!(relative_difference(&a, &b), expected, "{a} {b}");
    }
}

proptest! {
    #[test]
    fn differences_are_symmetric_and_never_nan(a in any::<f64>(), b in any::<f64>()) {
        let forth = relative_difference(&a, &b);
        prop_assert!(forth >= 0.0);
        prop_assert_eq!(forth, relative_difference(&b, &a));
    }
}
