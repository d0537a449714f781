//! Drives the conformance suite on the communicators that live in one process, and checks features
//! that only they have: the launcher, panics, ranks that leave.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bridge_dist::comm::counting::{CountingCommunicator, Ledger};
use bridge_dist::comm::single::SingleCommunicator;
use bridge_dist::comm::thread::{BoxError, RankFailure, run_ranks, world};
use bridge_dist::comm::{CommErrorKind, Communicator, Group, ReduceOp};

mod suite;

use suite::LONG;

#[test]
fn single() {
    let comm: Group = Arc::new(SingleCommunicator::new("alone"));
    for (name, case) in suite::CASES {
        case(&comm).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// All cases in one world, so that one case's leftovers would disturb the next.
fn threads(size: usize) {
    run_ranks(size, LONG, |comm| {
        for (name, case) in suite::CASES {
            case(&comm).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok::<_, BoxError>(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

/// Counting changes nothing.
#[test]
fn counted_threads() {
    run_ranks(3, LONG, |comm| {
        let comm: Group = Arc::new(CountingCommunicator::new(comm, Ledger::default()));
        for (name, case) in suite::CASES {
            case(&comm).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok::<_, BoxError>(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn one_thread() {
    threads(1);
}

#[test]
fn two_threads() {
    threads(2);
}

#[test]
fn three_threads() {
    threads(3);
}

#[test]
fn four_threads() {
    threads(4);
}

#[test]
fn five_threads() {
    threads(5);
}

/// A world of one thread rank without the launcher's shortcut: the thread implementation itself
/// must cope with one rank.
#[test]
fn a_thread_world_of_one() {
    let comm: Group = Arc::new(world(1, LONG).remove(0));
    for (name, case) in suite::CASES {
        case(&comm).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn failures_on_threads() {
    for size in [2, 3, 5] {
        for (name, case) in suite::failures::CASES {
            run_ranks(size, LONG, |comm| {
                case(&comm)?;
                // Keep the communicator until all ranks have seen the failure: a rank that leaves
                // is another failure.
                Ok::<_, BoxError>(comm)
            })
            .unwrap_or_else(|error| panic!("{name} on {size} ranks: {error}"));
        }
    }
}

#[test]
fn a_panic_reaches_everyone_at_once() {
    let start = Instant::now();
    let error = run_ranks(3, LONG, |comm| {
        let inner = comm.split(Some(0), 0, "inner")?.ok_or("a colour was given")?;
        if comm.rank() == 1 {
            inner.broadcast((&mut [1u8]).into(), 0)?;
            panic!("out of luck");
        }
        inner.broadcast((&mut [1u8]).into(), 0)?;
        inner.all_reduce((&mut vec![0f32; 100_000]).into(), ReduceOp::Sum)?;
        Ok::<_, BoxError>(())
    })
    .unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20), "the time limit was waited for");
    assert_eq!(error.rank, 1);
    assert!(matches!(&error.failure, RankFailure::Panicked(message) if message == "out of luck"), "{error}");
    assert!(error.operation.contains("broadcast(1 x u8, root number 0) of group `inner`"), "{error}");
    assert_eq!(error.others.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn an_error_of_the_program_is_the_one_reported() {
    let error = run_ranks(3, LONG, |comm| {
        if comm.rank() == 2 {
            return Err(BoxError::from("no such file"));
        }
        comm.barrier()?;
        Ok(())
    })
    .unwrap_err();
    assert_eq!(error.rank, 2);
    assert_eq!(error.others.len(), 2);
    assert!(error.to_string().starts_with("rank 2 failed: no such file"), "{error}");
}

#[test]
fn a_rank_that_returns_early_is_missed_at_once() {
    let start = Instant::now();
    let error = run_ranks(2, LONG, |comm| if comm.rank() == 0 { comm.recv((&mut [0u8]).into(), 1, 0) } else { Ok(()) })
        .unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20), "the time limit was waited for");
    assert_eq!(error.rank, 0);
    assert!(error.to_string().contains("rank 1 has left the group"), "{error}");
}

#[test]
fn messages_outlive_their_sender() {
    let received = run_ranks(2, LONG, |comm| {
        let mut data = [0u8];
        if comm.rank() == 0 {
            std::thread::sleep(Duration::from_millis(50));
            comm.recv((&mut data).into(), 1, 0)?;
        } else {
            comm.send((&[42u8]).into(), 0, 0)?;
        }
        Ok::<_, BoxError>(data[0])
    });
    assert_eq!(received.unwrap(), [42, 0]);
}

#[test]
fn a_panicking_thread_without_the_launcher_fails_its_world() {
    let mut comms = world(2, LONG);
    let (second, first) = (comms.remove(1), comms.remove(0));
    let thread = std::thread::spawn(move || {
        let _mine = second;
        panic!("dropped while unwinding");
    });
    assert!(thread.join().is_err());
    let error = first.barrier().unwrap_err();
    assert!(matches!(&*error.root_cause().kind, CommErrorKind::Panicked { .. }), "{error}");
}

#[test]
fn a_single_rank_that_fails_is_reported_too() {
    let error = run_ranks(1, LONG, |comm| comm.send((&[1u8]).into(), 0, 0)).unwrap_err();
    assert_eq!(error.rank, 0);
    assert!(error.to_string().contains("peer"), "{error}");
}

#[test]
fn results_come_in_rank_order() {
    let ranks = run_ranks(4, LONG, |comm| Ok::<_, BoxError>(comm.rank() * 10)).unwrap();
    assert_eq!(ranks, [0, 10, 20, 30]);
}
