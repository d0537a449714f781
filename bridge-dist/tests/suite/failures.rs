//! Behaviour that every communicator must have when ranks disagree or vanish. Each case gets a
//! fresh world of two or more ranks with a long time limit, returns `Ok` on a rank that saw the
//! expected error, and leaves the world failed.

use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bridge_dist::comm::{CommError, CommErrorKind, Group, ReduceOp, UnevenExchange};

use super::{Case, LONG, Outcome, SHORT};

/// Everything that must fail, and how.
pub const CASES: &[Case] = &[
    ("other_type", other_type),
    ("other_length", other_length),
    ("other_reduction", other_reduction),
    ("other_operation", other_operation),
    ("other_root", other_root),
    ("other_counts", other_counts),
    ("other_message", other_message),
    ("mismatch_in_a_subgroup", mismatch_in_a_subgroup),
    ("mismatch_in_the_background", mismatch_in_the_background),
    ("late_rank", late_rank),
    ("late_first_rank", late_first_rank),
    ("no_message", no_message),
];

/// The time limit that cases wait for, where it is not [`SHORT`]: ranks that poll share a machine's
/// cores badly.
pub static LIMIT: OnceLock<Duration> = OnceLock::new();

/// Runs a barrier, and then sets the time limit that this case waits for. All other cases use the
/// long limit of their world, so that a slow machine cannot turn a mismatch into a timeout.
fn meet(comm: &Group) -> Result<Duration, CommError> {
    let limit = *LIMIT.get().unwrap_or(&SHORT);
    comm.barrier()?;
    comm.set_timeout(limit);
    Ok(limit)
}

fn last(comm: &Group) -> usize {
    comm.size() - 1
}

/// With two ranks there is no majority, and rank 0 is taken to be right; so the last rank is always
/// the odd one.
fn names_the_last_rank(comm: &Group, result: Result<(), CommError>) -> Outcome {
    let error = result.err().ok_or("the mismatch went unnoticed")?;
    assert_eq!((error.rank, error.size()), (comm.rank(), comm.size()), "{error}");
    match &*error.root_cause().kind {
        CommErrorKind::Mismatch { peer, expected, found } => {
            assert_eq!(*peer, last(comm), "{error}");
            assert_ne!(expected, found);
        }
        other => panic!("not a mismatch: {other:?}"),
    }
    // The world stays failed.
    assert!(comm.barrier().is_err());
    Ok(())
}

fn other_type(comm: &Group) -> Outcome {
    let result = if comm.rank() == last(comm) {
        comm.all_reduce((&mut [1f64; 4]).into(), ReduceOp::Sum)
    } else {
        comm.all_reduce((&mut [1f32; 4]).into(), ReduceOp::Sum)
    };
    names_the_last_rank(comm, result)
}

fn other_length(comm: &Group) -> Outcome {
    let len = if comm.rank() == last(comm) { 200_000 } else { 100_000 };
    names_the_last_rank(comm, comm.all_reduce((&mut vec![1f32; len]).into(), ReduceOp::Sum))
}

fn other_reduction(comm: &Group) -> Outcome {
    let op = if comm.rank() == last(comm) { ReduceOp::Max } else { ReduceOp::Sum };
    names_the_last_rank(comm, comm.all_reduce((&mut [1f32; 4]).into(), op))
}

fn other_operation(comm: &Group) -> Outcome {
    let result = if comm.rank() == last(comm) {
        comm.barrier()
    } else {
        comm.all_gather((&[1u8]).into(), (&mut vec![0u8; comm.size()]).into())
    };
    names_the_last_rank(comm, result)
}

fn other_root(comm: &Group) -> Outcome {
    let root = usize::from(comm.rank() == last(comm));
    names_the_last_rank(comm, comm.broadcast((&mut [1f32; 4]).into(), root))
}

fn other_counts(comm: &Group) -> Outcome {
    let size = comm.size();
    let (mut send_counts, recv_counts) = (vec![1; size], vec![1; size]);
    if comm.rank() == last(comm) {
        send_counts[0] = 2;
    }
    let result = comm.all_to_all_uneven(UnevenExchange {
        input: (&vec![1f32; send_counts.iter().sum()]).into(),
        send_counts: &send_counts,
        output: (&mut vec![0f32; size]).into(),
        recv_counts: &recv_counts,
    });
    names_the_last_rank(comm, result)
}

/// The receiver sees the mismatch; everybody else sees the failed world at the latest in the next
/// collective.
fn other_message(comm: &Group) -> Outcome {
    // If failures do not propagate, ranks without a part in the message wait until the limit.
    meet(comm)?;
    if comm.rank() == last(comm) {
        // The sender may or may not notice the mismatch.
        let _ = comm.send((&[1f32; 3]).into(), 0, 1);
    } else if comm.rank() == 0 {
        let error = comm.recv((&mut [0f32; 4]).into(), last(comm), 1).err().ok_or("unnoticed")?;
        let CommErrorKind::Mismatch { peer, found, .. } = &*error.kind else {
            panic!("{error}");
        };
        assert_eq!(*peer, last(comm));
        assert!(found.contains("3 x f32"), "{error}");
    }
    assert!(comm.barrier().is_err());
    Ok(())
}

fn mismatch_in_a_subgroup(comm: &Group) -> Outcome {
    let group = comm.split(Some(0), comm.rank(), "inner")?.ok_or("a colour was given")?;
    let len = if comm.rank() == last(comm) { 1 } else { 2 };
    let error = group.all_reduce((&mut vec![1f32; len]).into(), ReduceOp::Sum).err().ok_or("unnoticed")?;
    assert!(error.to_string().contains("group `inner`"), "{error}");
    assert!(comm.barrier().is_err(), "a failed group fails its world");
    Ok(())
}

fn mismatch_in_the_background(comm: &Group) -> Outcome {
    let len = if comm.rank() == last(comm) { 1 } else { 2 };
    let result = comm.start_all_reduce(vec![1f32; len].into(), ReduceOp::Sum)?.wait();
    names_the_last_rank(comm, result.map(drop))
}

/// The last rank is late: other ranks report this, name the rank, and do not wait for it.
fn late_rank(comm: &Group) -> Outcome {
    let limit = meet(comm)?;
    if comm.rank() == last(comm) {
        sleep(limit * 4);
        assert!(comm.barrier().is_err(), "the world failed while this rank was away");
        return Ok(());
    }
    let start = Instant::now();
    let error = comm.barrier().err().ok_or("nobody noticed")?;
    assert!(start.elapsed() < LONG / 2, "took {:?}", start.elapsed());
    let CommErrorKind::Timeout { missing, .. } = &*error.root_cause().kind else {
        panic!("{error}");
    };
    let ranks: Vec<usize> = missing.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(ranks, [last(comm)], "{error}");
    Ok(())
}

/// The same for rank 0, which may have a special role in the agreement of ranks. It notices the
/// failure in its second operation at the latest: other ranks may have sent their data of the first
/// before they gave up.
fn late_first_rank(comm: &Group) -> Outcome {
    let limit = meet(comm)?;
    if comm.rank() == 0 {
        sleep(limit * 4);
        let noticed = comm.barrier().is_err() || comm.barrier().is_err();
        assert!(noticed, "the world failed while this rank was away");
        return Ok(());
    }
    let start = Instant::now();
    let error = comm.barrier().err().ok_or("nobody noticed")?;
    assert!(start.elapsed() < LONG / 2, "took {:?}", start.elapsed());
    let CommErrorKind::Timeout { missing, .. } = &*error.root_cause().kind else {
        panic!("{error}");
    };
    assert!(matches!(missing[..], [(0, _)]), "{error}");
    Ok(())
}

fn no_message(comm: &Group) -> Outcome {
    let limit = meet(comm)?;
    if comm.rank() == 0 {
        let error = comm.recv((&mut [0f32]).into(), last(comm), 2).err().ok_or("nobody noticed")?;
        assert!(matches!(&*error.root_cause().kind, CommErrorKind::Timeout { .. }), "{error}");
    } else {
        sleep(limit * 2);
        assert!(comm.barrier().is_err(), "the world failed while this rank was away");
    }
    Ok(())
}
