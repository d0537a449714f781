//! The conformance suite: requirements of every communicator, as functions over a world
//! communicator. Drivers run them on each implementation and world size. Expected values are
//! computed here in the simplest way from each rank's known data.

use std::time::Duration;

use bridge_dist::comm::thread::BoxError;
use bridge_dist::comm::{
    Buffer, CommError, CommErrorKind, Communicator, DType, Element, Group, HostBuffer, ReduceOp, Request,
    UnevenExchange,
};
use half::bf16;

pub mod failures;

pub type Outcome = Result<(), BoxError>;
pub type Case = (&'static str, fn(&Group) -> Outcome);

/// Everything that must work.
pub const CASES: &[Case] = &[
    ("all_reduce", all_reduce),
    ("reduce_scatter", reduce_scatter),
    ("all_gather", all_gather),
    ("broadcast", broadcast),
    ("all_to_all", all_to_all),
    ("all_to_all_uneven", all_to_all_uneven),
    ("rank_order", rank_order),
    ("messages", messages),
    ("message_order", message_order),
    ("barrier", barrier),
    ("time_limits", time_limits),
    ("split", split),
    ("concurrent_groups", concurrent_groups),
    ("non_blocking_collectives", non_blocking_collectives),
    ("non_blocking_beside_blocking", non_blocking_beside_blocking),
    ("non_blocking_messages", non_blocking_messages),
    ("dropped_requests", dropped_requests),
    ("invalid_arguments", invalid_arguments),
];

const LENGTHS: [usize; 5] = [0, 1, 7, 1000, LARGE];
/// More than implementations move in one piece.
const LARGE: usize = 600_011;
const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];

/// The small number that rank `rank` holds at `index`: exact in every type, sums of five fit a byte
/// and the eight bits of bf16.
fn small(rank: usize, index: usize) -> i64 {
    ((index * 7 + rank * 13) % 31) as i64
}

trait Number: Element + PartialEq + std::fmt::Debug {
    fn from_i64(value: i64) -> Self;
    /// `sum / count` as the type rounds it.
    fn quotient(sum: i64, count: usize) -> Self;
}

macro_rules! numbers {
    ($($type:ty: $of:expr, $quotient:expr);*) => { $(
        impl Number for $type {
            fn from_i64(value: i64) -> Self {
                $of(value)
            }
            fn quotient(sum: i64, count: usize) -> Self {
                $quotient(sum, count)
            }
        }
    )* };
}
numbers!(
    f32: |v| v as f32, |s, n| s as f32 / n as f32;
    f64: |v| v as f64, |s, n| s as f64 / n as f64;
    bf16: |v| bf16::from_f32(v as f32), |s, n| bf16::from_f32(s as f32 / n as f32);
    i64: |v| v, |_, _| panic!("integers have no average");
    i32: |v| v as i32, |_, _| panic!("integers have no average");
    u8: |v| v as u8, |_, _| panic!("integers have no average")
);

fn mine<T: Number>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|index| T::from_i64(small(rank, index))).collect()
}

fn reduced<T: Number>(op: ReduceOp, size: usize, index: usize) -> T {
    let values = (0..size).map(|rank| small(rank, index));
    match op {
        ReduceOp::Sum => T::from_i64(values.sum()),
        ReduceOp::Max => T::from_i64(values.max().unwrap()),
        ReduceOp::Min => T::from_i64(values.min().unwrap()),
        ReduceOp::Avg => T::quotient(values.sum(), size),
    }
}

fn ops<T: Number>(len: usize) -> impl Iterator<Item = ReduceOp> {
    let of_type = OPS.into_iter().filter(|op| *op != ReduceOp::Avg || T::DTYPE.is_float());
    // One operation is enough to see that long buffers are put together rightly.
    of_type.filter(move |op| len < LARGE || *op == ReduceOp::Sum)
}

/// Runs a generic function for each element type.
macro_rules! each_type {
    ($function:ident, $comm:expr) => {{
        $function::<f32>($comm)?;
        $function::<bf16>($comm)?;
        $function::<f64>($comm)?;
        $function::<i64>($comm)?;
        $function::<i32>($comm)?;
        $function::<u8>($comm)
    }};
}

/// Long buffers for one type only, to keep the suite fast.
fn lengths<T: Number>() -> impl Iterator<Item = usize> {
    LENGTHS.into_iter().filter(|len| *len < LARGE || T::DTYPE == DType::F32)
}

fn all_reduce(comm: &Group) -> Outcome {
    fn typed<T: Number>(comm: &Group) -> Outcome {
        for len in lengths::<T>() {
            for op in ops::<T>(len) {
                let mut data = mine::<T>(comm.rank(), len);
                comm.all_reduce((&mut data).into(), op)?;
                let right = data.iter().enumerate().all(|(i, x)| *x == reduced(op, comm.size(), i));
                assert!(right, "all_reduce({op}) of {len} x {}", T::DTYPE);
            }
        }
        Ok(())
    }
    each_type!(typed, comm)
}

fn reduce_scatter(comm: &Group) -> Outcome {
    fn typed<T: Number>(comm: &Group) -> Outcome {
        for len in lengths::<T>() {
            for op in ops::<T>(len) {
                let mut output = vec![T::from_i64(1); len];
                let input = mine::<T>(comm.rank(), len * comm.size());
                comm.reduce_scatter((&input).into(), (&mut output).into(), op)?;
                let start = comm.rank() * len;
                let right = output.iter().enumerate().all(|(i, x)| *x == reduced(op, comm.size(), start + i));
                assert!(right, "reduce_scatter({op}) of {len} x {}", T::DTYPE);
            }
        }
        Ok(())
    }
    each_type!(typed, comm)
}

fn all_gather(comm: &Group) -> Outcome {
    fn typed<T: Number>(comm: &Group) -> Outcome {
        for len in lengths::<T>() {
            let mut output = vec![T::from_i64(1); len * comm.size()];
            comm.all_gather((&mine::<T>(comm.rank(), len)).into(), (&mut output).into())?;
            let expected: Vec<T> = (0..comm.size()).flat_map(|rank| mine::<T>(rank, len)).collect();
            assert!(output == expected, "all_gather of {len} x {}", T::DTYPE);
        }
        Ok(())
    }
    each_type!(typed, comm)
}

fn broadcast(comm: &Group) -> Outcome {
    fn typed<T: Number>(comm: &Group) -> Outcome {
        for root in 0..comm.size() {
            for len in lengths::<T>() {
                let mut data = mine::<T>(comm.rank(), len);
                comm.broadcast((&mut data).into(), root)?;
                assert!(data == mine::<T>(root, len), "broadcast of {len} x {} from {root}", T::DTYPE);
            }
        }
        Ok(())
    }
    each_type!(typed, comm)
}

fn all_to_all(comm: &Group) -> Outcome {
    fn typed<T: Number>(comm: &Group) -> Outcome {
        for len in lengths::<T>() {
            let size = comm.size();
            let mut output = vec![T::from_i64(1); len * size];
            comm.all_to_all((&mine::<T>(comm.rank(), len * size)).into(), (&mut output).into())?;
            let own = comm.rank() * len..(comm.rank() + 1) * len;
            let expected: Vec<T> =
                (0..size).flat_map(|from| mine::<T>(from, len * size)[own.clone()].to_vec()).collect();
            assert!(output == expected, "all_to_all of {len} x {}", T::DTYPE);
        }
        Ok(())
    }
    each_type!(typed, comm)
}

fn all_to_all_uneven(comm: &Group) -> Outcome {
    /// Number of elements that `from` sends to `to`; zero for some pairs, and far more in one
    /// direction than in the other.
    fn count(from: usize, to: usize) -> usize {
        (from * 3 + to * 1001) % 4 * (1 + from)
    }
    fn typed<T: Number>(comm: &Group) -> Outcome {
        let (rank, size) = (comm.rank(), comm.size());
        let sent = |from: usize| -> Vec<usize> { (0..size).map(|to| count(from, to)).collect() };
        let send_counts = sent(rank);
        let recv_counts: Vec<usize> = (0..size).map(|from| count(from, rank)).collect();
        let mut output = vec![T::from_i64(1); recv_counts.iter().sum()];
        comm.all_to_all_uneven(UnevenExchange {
            input: (&mine::<T>(rank, send_counts.iter().sum())).into(),
            send_counts: &send_counts,
            output: (&mut output).into(),
            recv_counts: &recv_counts,
        })?;
        let expected: Vec<T> = (0..size)
            .flat_map(|from| {
                let start: usize = sent(from)[..rank].iter().sum();
                mine::<T>(from, start + count(from, rank))[start..].to_vec()
            })
            .collect();
        assert_eq!(output, expected, "all_to_all_uneven of {}", T::DTYPE);
        Ok(())
    }
    each_type!(typed, comm)
}

/// Sums whose value depends on the order, for short and long buffers and repeated runs: always the
/// rank-ordered one.
fn rank_order(comm: &Group) -> Outcome {
    let value = |rank: usize, index: usize| ((rank * 1_000_003 + index * 7919) % 100_003) as f32 * 1e-3 - 37.7;
    for len in [5, 100_000, LARGE] {
        let expected: Vec<f32> = (0..len)
            .map(|index| (1..comm.size()).fold(value(0, index), |sum, rank| sum + value(rank, index)))
            .collect();
        for _ in 0..2 {
            let input: Vec<f32> = (0..len).map(|index| value(comm.rank(), index)).collect();
            let mut data = input.clone();
            comm.all_reduce((&mut data).into(), ReduceOp::Sum)?;
            assert!(data == expected, "blocking, {len}");
            let data = comm.start_all_reduce(input.into(), ReduceOp::Sum)?.wait()?;
            assert!(data == HostBuffer::from(expected.clone()), "non-blocking, {len}");
        }
    }
    // bf16 accumulates in float32: 256 + 1 + 1 + ... is lost in bf16 arithmetic.
    let own = if comm.rank() == 0 { 256.0 } else { 1.0 };
    let mut data = [bf16::from_f32(own)];
    comm.all_reduce((&mut data).into(), ReduceOp::Sum)?;
    assert_eq!(data[0], bf16::from_f32(255.0 + comm.size() as f32));
    // A NaN anywhere shows everywhere.
    let mut data = [if comm.rank() + 1 == comm.size() { f32::NAN } else { 1.0 }];
    comm.all_reduce((&mut data).into(), ReduceOp::Max)?;
    assert!(data[0].is_nan());
    Ok(())
}

/// The ranks after and before this one in a ring; none in a world of one.
fn ring(comm: &Group) -> Option<(usize, usize)> {
    let (rank, size) = (comm.rank(), comm.size());
    (size > 1).then(|| ((rank + 1) % size, (rank + size - 1) % size))
}

fn messages(comm: &Group) -> Outcome {
    fn typed<T: Number>(comm: &Group) -> Outcome {
        let Some((next, previous)) = ring(comm) else {
            return Ok(());
        };
        for len in lengths::<T>() {
            let data = mine::<T>(comm.rank(), len);
            let mut received = vec![T::from_i64(1); len];
            // Rank 0 sends first, so that the ring works without buffering.
            if comm.rank() == 0 {
                comm.send((&data).into(), next, 3)?;
            }
            comm.recv((&mut received).into(), previous, 3)?;
            if comm.rank() != 0 {
                comm.send((&data).into(), next, 3)?;
            }
            assert!(received == mine::<T>(previous, len), "message of {len} x {}", T::DTYPE);
        }
        Ok(())
    }
    each_type!(typed, comm)
}

/// Order within a tag is kept; tags are independent of each other.
fn message_order(comm: &Group) -> Outcome {
    let Some((next, previous)) = ring(comm) else {
        return Ok(());
    };
    let mut sends: Vec<Request> = Vec::new();
    for index in 0..4i32 {
        sends.push(comm.start_send(vec![index].into(), next, (index % 2) as u32)?);
    }
    for (tag, index) in [(1, 1), (1, 3), (0, 0), (0, 2)] {
        let mut data = [-1i32];
        comm.recv((&mut data).into(), previous, tag)?;
        assert_eq!(data, [index]);
    }
    for (index, send) in sends.into_iter().enumerate() {
        assert_eq!(send.wait()?, HostBuffer::from(vec![index as i32]));
    }
    Ok(())
}

/// A new limit holds for groups that were made before. A group of one never waits, so only larger
/// groups have to keep the limit.
fn time_limits(comm: &Group) -> Outcome {
    let part = comm.split(Some(0), comm.rank(), "part")?.ok_or("a colour was given")?;
    let usual = comm.timeout();
    let other = usual / 2;
    comm.barrier()?;
    comm.set_timeout(other);
    comm.barrier()?;
    let found = [comm.timeout(), part.timeout()];
    comm.barrier()?;
    comm.set_timeout(usual);
    comm.barrier()?;
    if comm.size() > 1 {
        assert_eq!(found, [other, other]);
    }
    assert_eq!(comm.timeout(), usual);
    Ok(())
}

fn barrier(comm: &Group) -> Outcome {
    for _ in 0..20 {
        comm.barrier()?;
    }
    Ok(())
}

fn split(comm: &Group) -> Outcome {
    let (rank, size) = (comm.rank(), comm.size());
    // Even and odd ranks, in reverse order.
    let halves = comm.split(Some(rank % 2), size - rank, "halves")?.ok_or("a colour was given")?;
    let members: Vec<usize> = (0..size).rev().filter(|other| other % 2 == rank % 2).collect();
    assert_eq!(halves.size(), members.len());
    assert_eq!(members[halves.rank()], rank);
    assert_eq!(halves.name(), "halves");
    assert_eq!(*halves.world_ranks(), members);
    let mut ranks = vec![0i64; halves.size()];
    halves.all_gather((&[rank as i64]).into(), (&mut ranks).into())?;
    assert_eq!(ranks, members.iter().map(|&rank| rank as i64).collect::<Vec<_>>());
    // A group of a group, and equal keys.
    let whole = halves.split(Some(0), 0, "again")?.ok_or("a colour was given")?;
    assert_eq!((whole.rank(), whole.size()), (halves.rank(), halves.size()));
    assert_eq!(*whole.world_ranks(), members);
    // A rank does not have to join any group.
    let first = comm.split((rank == 0).then_some(9), 0, "first")?;
    assert_eq!(first.map(|group| group.world_ranks().to_vec()), (rank == 0).then(|| vec![0]));
    Ok(())
}

/// Different groups work at the same time, at different speeds, and the world still works.
fn concurrent_groups(comm: &Group) -> Outcome {
    let color = comm.rank() % 2;
    let group = comm.split(Some(color), comm.rank(), "pair")?.ok_or("a colour was given")?;
    let rounds = if color == 0 { 50 } else { 5 };
    for round in 0..rounds {
        let mut data = [group.rank() as f32 + round as f32];
        group.all_reduce((&mut data).into(), ReduceOp::Sum)?;
        let size = group.size() as f32;
        assert_eq!(data, [size * (size - 1.0) / 2.0 + size * round as f32]);
    }
    let mut total = [rounds];
    comm.all_reduce((&mut total).into(), ReduceOp::Sum)?;
    let expected: i32 = (0..comm.size()).map(|rank| if rank.is_multiple_of(2) { 50 } else { 5 }).sum();
    assert_eq!(total, [expected]);
    Ok(())
}

fn non_blocking_collectives(comm: &Group) -> Outcome {
    let (rank, size) = (comm.rank(), comm.size());
    for len in [0, 3, 200_003] {
        let reduce = comm.start_all_reduce(mine::<f32>(rank, len).into(), ReduceOp::Sum)?;
        let scatter = comm.start_reduce_scatter(mine::<f64>(rank, len * size).into(), ReduceOp::Max)?;
        let mut gather = comm.start_all_gather(mine::<bf16>(rank, len).into())?;
        // Waited for in another order than started.
        while !gather.test()? {
            std::thread::yield_now();
        }
        let expected: Vec<bf16> = (0..size).flat_map(|rank| mine::<bf16>(rank, len)).collect();
        assert!(gather.wait()? == HostBuffer::from(expected));
        let expected: Vec<f64> = (0..len).map(|i| reduced(ReduceOp::Max, size, rank * len + i)).collect();
        assert!(scatter.wait()? == HostBuffer::from(expected));
        let expected: Vec<f32> = (0..len).map(|i| reduced(ReduceOp::Sum, size, i)).collect();
        assert!(reduce.wait()? == HostBuffer::from(expected));
    }
    Ok(())
}

/// A started collective and blocking ones of the same group do not disturb each other, in whichever
/// order ranks wait.
fn non_blocking_beside_blocking(comm: &Group) -> Outcome {
    let size = comm.size() as i64;
    for round in 0..10i64 {
        let started = comm.start_all_reduce(vec![round; 1000].into(), ReduceOp::Sum)?;
        let mut data = [round + 1];
        if comm.rank().is_multiple_of(2) {
            comm.all_reduce((&mut data).into(), ReduceOp::Sum)?;
            assert_eq!(started.wait()?, HostBuffer::from(vec![round * size; 1000]));
        } else {
            // The other half of the ranks may still be in the blocking one.
            let result = started.wait()?;
            comm.all_reduce((&mut data).into(), ReduceOp::Sum)?;
            assert_eq!(result, HostBuffer::from(vec![round * size; 1000]));
        }
        assert_eq!(data, [(round + 1) * size]);
    }
    Ok(())
}

fn non_blocking_messages(comm: &Group) -> Outcome {
    let Some((next, previous)) = ring(comm) else {
        return Ok(());
    };
    for len in [0, 5, 300_001] {
        // Receives match in the order in which they start, even if the last is waited for first.
        let first = comm.start_recv(DType::F32, len, previous, 8)?;
        let second = comm.start_recv(DType::F32, len, previous, 8)?;
        let sends = [0, 100].map(|shift| comm.start_send(mine::<f32>(comm.rank() + shift, len).into(), next, 8));
        assert!(second.wait()? == HostBuffer::from(mine::<f32>(previous + 100, len)));
        let mut first = first;
        while !first.test()? {
            std::thread::yield_now();
        }
        assert!(first.wait()? == HostBuffer::from(mine::<f32>(previous, len)));
        for (send, shift) in sends.into_iter().zip([0, 100]) {
            assert!(send?.wait()? == HostBuffer::from(mine::<f32>(comm.rank() + shift, len)));
        }
    }
    Ok(())
}

fn dropped_requests(comm: &Group) -> Outcome {
    // A collective that one rank does not wait for still completes on other ranks.
    let request = comm.start_all_reduce(vec![1i32].into(), ReduceOp::Sum)?;
    if comm.rank() == 0 {
        drop(request);
    } else {
        assert_eq!(request.wait()?, HostBuffer::from(vec![comm.size() as i32]));
    }
    if let Some((next, previous)) = ring(comm) {
        // A dropped receive still takes its message.
        drop(comm.start_recv(DType::I32, 1, previous, 5)?);
        let sends = [10, 20].map(|value| comm.start_send(vec![value].into(), next, 5));
        let mut data = [0i32];
        comm.recv((&mut data).into(), previous, 5)?;
        assert_eq!(data, [20]);
        for send in sends {
            let _ = send?.wait()?;
        }
    }
    comm.barrier()?;
    Ok(())
}

fn invalid<T>(result: Result<T, CommError>, expected: &str) {
    let error = result.err().expect("the arguments are wrong");
    assert!(matches!(&*error.kind, CommErrorKind::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

/// Wrong arguments are refused without touching the other ranks, so the world goes on.
fn invalid_arguments(comm: &Group) -> Outcome {
    let size = comm.size();
    let (mut short, mut ints) = ([0f32; 1], [0i32; 8]);
    let long = vec![0f32; 3 * size];
    invalid(comm.all_reduce((&mut ints).into(), ReduceOp::Avg), "average");
    invalid(comm.start_all_reduce(vec![1u8].into(), ReduceOp::Avg), "average");
    invalid(comm.reduce_scatter((&long).into(), (&mut short).into(), ReduceOp::Sum), "length of the output");
    invalid(comm.all_gather((&long).into(), (&mut short).into()), "length of the output");
    invalid(comm.all_gather((&[0f32; 8]).into(), (&mut ints).into()), "element type of the output");
    invalid(comm.broadcast((&mut short).into(), size), "root");
    invalid(comm.all_to_all((&long).into(), (&mut short).into()), "length of the output");
    invalid(comm.send((&short).into(), comm.rank(), 0), "peer");
    invalid(comm.recv((&mut short).into(), size, 0), "peer");
    invalid(comm.start_recv(DType::F32, 1, size, 0), "peer");
    if let Some((next, _)) = ring(comm) {
        invalid(comm.send((&short).into(), next, bridge_dist::comm::MAX_TAG + 1), "tag");
        invalid(comm.start_reduce_scatter(vec![0f32; size + 1].into(), ReduceOp::Sum), "length of the input");
    }
    invalid(
        comm.all_to_all_uneven(UnevenExchange {
            input: Buffer::from(&long),
            send_counts: &vec![2; size],
            output: (&mut vec![0f32; 2 * size]).into(),
            recv_counts: &vec![2; size],
        }),
        "sum of the send counts",
    );
    comm.barrier()?;
    Ok(())
}

/// The time limit of worlds in which something fails on purpose.
pub const SHORT: Duration = Duration::from_millis(700);

/// The time limit of worlds in which nothing may fail, generous because machines are shared.
#[allow(dead_code)]
pub const LONG: Duration = Duration::from_secs(60);

#[allow(dead_code)]
fn assert_object_safe(_: &dyn Communicator) {}
