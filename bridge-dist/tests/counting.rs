//! The counting communicator: its sums follow the convention. `conformance.rs` tests that it
//! behaves like the wrapped communicator.

use std::sync::Arc;
use std::time::Duration;

use bridge_dist::comm::counting::{Count, CountingCommunicator, Counts, Ledger};
use bridge_dist::comm::thread::{BoxError, run_ranks};
use bridge_dist::comm::{DType, Group, HostBuffer, Operation, ReduceOp, UnevenExchange};
use half::bf16;

const TIMEOUT: Duration = Duration::from_secs(120);

fn counted(comm: Group) -> (Group, Ledger) {
    let ledger = Ledger::default();
    (Arc::new(CountingCommunicator::new(comm, ledger.clone())), ledger)
}

/// Runs a program on counted ranks and returns each rank's sums.
fn counts_of(size: usize, program: impl Fn(&Group) -> Result<(), BoxError> + Sync) -> Vec<Counts> {
    run_ranks(size, TIMEOUT, |comm| {
        let (comm, ledger) = counted(comm);
        program(&comm)?;
        Ok::<_, BoxError>(ledger.take())
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

fn entry(group: &str, operation: Operation, count: [u64; 3]) -> ((String, Operation), Count) {
    let [operations, elements, bytes] = count;
    ((group.to_owned(), operation), Count { operations, elements, bytes })
}

#[test]
fn collectives_count_what_a_rank_hands_in() {
    let counts = counts_of(3, |comm| {
        comm.all_reduce((&mut [1.0_f32; 5][..]).into(), ReduceOp::Sum)?;
        comm.all_reduce((&mut [bf16::ONE; 7][..]).into(), ReduceOp::Max)?;
        comm.reduce_scatter((&[1_i64; 6][..]).into(), (&mut [0_i64; 2][..]).into(), ReduceOp::Sum)?;
        comm.all_gather((&[1.0_f64; 2][..]).into(), (&mut [0.0_f64; 6][..]).into())?;
        comm.broadcast((&mut [1_u8; 11][..]).into(), 1)?;
        comm.all_to_all((&[1_i32; 6][..]).into(), (&mut [0_i32; 6][..]).into())?;
        let own = |peer: usize| usize::from(peer == comm.rank()) * 4;
        let along: Vec<usize> = (0..3).map(own).collect();
        let mut received = [0_i32; 4];
        let exchange = UnevenExchange {
            input: (&[1_i32; 4][..]).into(),
            send_counts: &along,
            output: (&mut received[..]).into(),
            recv_counts: &along,
        };
        comm.all_to_all_uneven(exchange)?;
        Ok(comm.barrier()?)
    });
    for (rank, counts) in counts.into_iter().enumerate() {
        let root = if rank == 1 { 11 } else { 0 };
        let expected = Counts::from([
            entry("world", Operation::AllReduce, [2, 12, 34]),
            entry("world", Operation::ReduceScatter, [1, 6, 48]),
            entry("world", Operation::AllGather, [1, 2, 16]),
            entry("world", Operation::Broadcast, [1, root, root]),
            entry("world", Operation::AllToAll, [2, 10, 40]),
            entry("world", Operation::Barrier, [1, 0, 0]),
        ]);
        assert_eq!(counts, expected, "rank {rank}");
    }
}

#[test]
fn messages_count_at_both_ends_and_non_blocking_forms_as_blocking_ones() {
    let counts = counts_of(2, |comm| {
        if comm.rank() == 0 {
            comm.send((&[1.0_f32; 9][..]).into(), 1, 3)?;
            comm.start_send(HostBuffer::zeros(DType::Bf16, 4), 1, 3)?.wait()?;
        } else {
            comm.recv((&mut [0.0_f32; 9][..]).into(), 0, 3)?;
            comm.start_recv(DType::Bf16, 4, 0, 3)?.wait()?;
        }
        comm.start_all_reduce(HostBuffer::zeros(DType::F32, 3), ReduceOp::Sum)?.wait()?;
        comm.start_reduce_scatter(HostBuffer::zeros(DType::F32, 8), ReduceOp::Sum)?.wait()?;
        comm.start_all_gather(HostBuffer::zeros(DType::U8, 13))?.wait()?;
        Ok(())
    });
    let both = [
        entry("world", Operation::AllReduce, [1, 3, 12]),
        entry("world", Operation::ReduceScatter, [1, 8, 32]),
        entry("world", Operation::AllGather, [1, 13, 13]),
    ];
    let ends = [Operation::Send, Operation::Recv].map(|end| entry("world", end, [2, 13, 44]));
    for (rank, end) in ends.into_iter().enumerate() {
        assert_eq!(counts[rank], both.clone().into_iter().chain([end]).collect(), "rank {rank}");
    }
}

#[test]
fn groups_are_counted_by_name_and_those_of_one_rank_not_at_all() {
    let counts = counts_of(3, |comm| {
        let color = usize::from(comm.rank() == 2);
        let part = comm.split(Some(color), 0, "part")?.ok_or("every rank has a colour")?;
        part.all_reduce((&mut [1.0_f32; 2][..]).into(), ReduceOp::Sum)?;
        let inner = part.split(Some(0), 0, "inner")?.ok_or("every rank has a colour")?;
        Ok(inner.barrier()?)
    });
    let pair =
        Counts::from([entry("part", Operation::AllReduce, [1, 2, 8]), entry("inner", Operation::Barrier, [1, 0, 0])]);
    assert_eq!(counts, [pair.clone(), pair, Counts::new()]);
}

#[test]
fn failures_do_not_count() {
    let counts = counts_of(2, |comm| {
        let wrong = comm.all_gather((&[1.0_f32; 2][..]).into(), (&mut [0.0_f32; 3][..]).into());
        assert!(wrong.is_err());
        Ok(())
    });
    assert_eq!(counts, [Counts::new(), Counts::new()]);
}

#[test]
fn taking_the_sums_starts_again() {
    let ledger = run_ranks(2, TIMEOUT, |comm| {
        let (comm, ledger) = counted(comm);
        comm.barrier()?;
        assert_eq!(ledger.counts().len(), 1);
        assert_eq!(ledger.take().len(), 1);
        Ok::<_, BoxError>(ledger)
    });
    for ledger in ledger.unwrap_or_else(|error| panic!("{error}")) {
        assert_eq!(ledger.counts(), Counts::new());
    }
}
