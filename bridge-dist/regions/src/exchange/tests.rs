//! Operations of tensors on their device against those of host memory, to the bit; counts of
//! operations; errors.

use std::time::{Duration, Instant};

use bridge_kernels::Philox;
use burn::tensor::{DType as TensorDType, Device, FloatDType, Tensor, TensorData};
use half::bf16;

use super::{TensorExchange, wire};
use bridge_dist::comm::counting::{CountingCommunicator, Counts, Ledger};
use bridge_dist::comm::thread::{Devices, RankFailure, run_ranks_on};
use bridge_dist::comm::timed::{CallClock, TimedCommunicator};
use bridge_dist::comm::{CommError, CommErrorKind, DType, Group, HostBuffer, ReduceOp, UnevenExchange};

const LIMIT: Duration = Duration::from_secs(60);

/// Bits of the elements of a tensor or a buffer.
fn bits(x: Tensor<1>) -> Vec<u64> {
    match x.dtype() {
        TensorDType::F32 => host_bits(&x.into_data().try_into_vec::<f32>().unwrap().into()),
        TensorDType::F64 => host_bits(&x.into_data().try_into_vec::<f64>().unwrap().into()),
        TensorDType::F16 => {
            x.into_data().try_into_vec::<half::f16>().unwrap().iter().map(|v| v.to_bits().into()).collect()
        }
        _ => host_bits(&x.into_data().try_into_vec::<bf16>().unwrap().into()),
    }
}

fn host_bits(buffer: &HostBuffer) -> Vec<u64> {
    match buffer {
        HostBuffer::F32(values) => values.iter().map(|value| value.to_bits().into()).collect(),
        HostBuffer::F64(values) => values.iter().map(|value| value.to_bits()).collect(),
        HostBuffer::Bf16(values) => values.iter().map(|value| value.to_bits().into()).collect(),
        other => panic!("no floats: {}", other.dtype()),
    }
}

/// Values of a rank, of very different sizes, so that another order of a sum shows.
fn draw(len: usize, rank: usize, dtype: FloatDType) -> Tensor<1> {
    let values = Philox::new(71 + rank as u64).normal(len, 1.0);
    let scale = |i: usize| [1e-3_f32, 1.0, 4e3][(i + rank) % 3];
    let values: Vec<f32> = values.into_iter().enumerate().map(|(i, value)| value * scale(i)).collect();
    Tensor::from_data(TensorData::new(values, [len]), (&Device::flex(), dtype.into()))
}

fn host(x: &Tensor<1>) -> HostBuffer {
    let data = x.clone().into_data();
    match x.dtype() {
        TensorDType::F32 => data.try_into_vec::<f32>().unwrap().into(),
        TensorDType::F64 => data.try_into_vec::<f64>().unwrap().into(),
        _ => data.try_into_vec::<bf16>().unwrap().into(),
    }
}

/// Runs `program` on 2 to 4 ranks, with each dtype of sums and some lengths: odd ones, some below
/// and some above the size at which sums are divided.
fn on_ranks(program: impl Fn(&Group, FloatDType, usize) -> Result<(), CommError> + Sync) {
    for ranks in 2..=4 {
        run_ranks_on(Devices::Shared, ranks, LIMIT, |group| {
            for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F64] {
                for len in [1, 7, 4099, 24 * 1361, 24 * 1361 + 5] {
                    program(&group, dtype, len)?;
                }
            }
            Ok::<_, CommError>(())
        })
        .unwrap();
    }
}

fn way(group: &Group) -> TensorExchange<'_> {
    TensorExchange::for_device(group, &Device::flex()).expect("these ranks share a device")
}

#[test]
fn sums_have_the_bits_of_host_memory() {
    on_ranks(|group, dtype, len| {
        let x = draw(len, group.rank(), dtype);
        for op in [ReduceOp::Sum, ReduceOp::Avg] {
            let mut expected = host(&x);
            group.all_reduce(expected.view_mut(), op)?;
            assert_eq!(bits(way(group).all_reduce(x.clone(), op)?), host_bits(&expected), "{dtype:?} {len} {op}");
            let started = way(group).start_all_reduce(x.clone(), op)?;
            assert_eq!(bits(started.wait()?), host_bits(&expected), "{dtype:?} {len} {op}");
            let whole = draw(len * group.size(), group.rank(), dtype);
            let mut part = HostBuffer::zeros(wire(whole.dtype()), len);
            group.reduce_scatter(host(&whole).view(), part.view_mut(), op)?;
            let found = way(group).reduce_scatter(whole.clone(), op)?;
            assert_eq!(bits(found), host_bits(&part), "{dtype:?} {len} {op}");
            let started = way(group).start_reduce_scatter(whole, op)?;
            assert_eq!(bits(started.wait()?), host_bits(&part), "{dtype:?} {len} {op}");
        }
        Ok(())
    });
}

#[test]
fn what_is_moved_arrives_as_it_is() {
    on_ranks(|group, dtype, len| {
        let (rank, size) = (group.rank(), group.size());
        let of = |rank: usize| bits(draw(len, rank, dtype));
        let all: Vec<u64> = (0..size).flat_map(of).collect();
        let x = draw(len, rank, dtype);
        assert_eq!(bits(way(group).all_gather(x.clone())?), all);
        assert_eq!(bits(way(group).start_all_gather(x.clone())?.wait()?), all);
        assert_eq!(bits(way(group).broadcast(x.clone(), size - 1)?), of(size - 1));
        // Around the ring, two messages at once with the tags in another order.
        let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
        let sent = [5, 3].map(|tag| way(group).start_send(x.clone() * f64::from(tag), next, tag));
        let received = [3, 5].map(|tag| way(group).start_recv(dtype, len, last, tag));
        for (request, tag) in received.into_iter().zip([3, 5]) {
            assert_eq!(bits(request?.wait()?), bits(draw(len, last, dtype) * f64::from(tag)));
        }
        sent.into_iter().try_for_each(|request| request?.wait())?;
        // The operations did not change the tensor that was sent.
        assert_eq!(bits(x), of(rank));
        Ok(())
    });
}

#[test]
fn uneven_parts_have_the_bits_of_host_memory() {
    on_ranks(|group, dtype, len| {
        let (rank, size) = (group.rank(), group.size());
        // Some pairs exchange nothing; with few elements, some ranks send nothing.
        let count = |from: usize, to: usize| if from + to == 1 { 0 } else { len / (1 + from + 2 * to) };
        let send: Vec<usize> = (0..size).map(|to| count(rank, to)).collect();
        let receive: Vec<usize> = (0..size).map(|from| count(from, rank)).collect();
        let x = draw(send.iter().sum(), rank, dtype);
        let mut expected = HostBuffer::zeros(wire(x.dtype()), receive.iter().sum());
        group.all_to_all_uneven(UnevenExchange {
            input: host(&x).view(),
            send_counts: &send,
            output: expected.view_mut(),
            recv_counts: &receive,
        })?;
        assert_eq!(bits(way(group).all_to_all_uneven(x, &send, &receive)?), host_bits(&expected));
        Ok(())
    });
}

#[test]
fn float16_travels_as_it_is() {
    run_ranks_on(Devices::Shared, 3, LIMIT, |group| {
        let x = draw(11, group.rank(), FloatDType::F16);
        let all: Vec<u64> = (0..3).flat_map(|rank| bits(draw(11, rank, FloatDType::F16))).collect();
        assert_eq!(bits(way(&group).all_gather(x.clone())?), all);
        let (next, last) = ((group.rank() + 1) % 3, (group.rank() + 2) % 3);
        let sent = way(&group).start_send(x, next, 0)?;
        let received = way(&group).start_recv(FloatDType::F16, 11, last, 0)?.wait()?;
        sent.wait()?;
        assert_eq!(bits(received), bits(draw(11, last, FloatDType::F16)));
        Ok::<_, CommError>(())
    })
    .unwrap();
}

/// Four bytes are a number, an infinite one, or none.
#[test]
fn bytes_arrive_as_they_are() {
    run_ranks_on(Devices::Shared, 3, LIMIT, |group| {
        let of = |rank: u32| [0x7fa0_0001 + rank, 0xffff_ffff, rank, 0x7f80_0000, 0x8000_0001];
        let words = of(group.rank() as u32).map(f32::from_bits);
        let gathered = way(&group).start_all_gather_bytes(Tensor::from_data(words, &Device::flex()))?.wait()?;
        assert_eq!(bits(gathered), (0..3).flat_map(of).map(u64::from).collect::<Vec<_>>());
        Ok::<_, CommError>(())
    })
    .unwrap();
}

/// Several operations in flight, with blocking ones between them, waited for in another order.
#[test]
fn started_operations_overlap() {
    run_ranks_on(Devices::Shared, 3, LIMIT, |group| {
        let x = |index: usize| draw(5003 + index, group.rank() + 10 * index, FloatDType::F32);
        let started: Vec<_> =
            (0..6).map(|i| way(&group).start_all_reduce(x(i), ReduceOp::Sum)).collect::<Result<_, _>>()?;
        let gathers: Vec<_> = (0..6).map(|i| way(&group).start_all_gather(x(i))).collect::<Result<_, _>>()?;
        let between = way(&group).all_reduce(x(7), ReduceOp::Sum)?;
        for (i, request) in started.into_iter().enumerate().rev() {
            let mut expected = host(&x(i));
            group.all_reduce(expected.view_mut(), ReduceOp::Sum)?;
            assert_eq!(bits(request.wait()?), host_bits(&expected));
        }
        for (i, request) in gathers.into_iter().enumerate() {
            let all: Vec<u64> = (0..3).flat_map(|rank| bits(draw(5003 + i, rank + 10 * i, FloatDType::F32))).collect();
            assert_eq!(bits(request.wait()?), all);
        }
        let mut expected = host(&x(7));
        group.all_reduce(expected.view_mut(), ReduceOp::Sum)?;
        assert_eq!(bits(between), host_bits(&expected));
        Ok::<_, CommError>(())
    })
    .unwrap();
}

/// The same program through host memory and on the device counts the same, by group and operation,
/// and is logged the same.
#[test]
fn layers_see_the_calls_of_host_memory() {
    type Seen = (Counts, Vec<(String, u64, usize, bool)>);
    let seen = |devices: Devices| -> Vec<Seen> {
        run_ranks_on(devices, 2, LIMIT, |world| {
            let (ledger, clock) = (Ledger::default(), CallClock::default());
            clock.log().keep_all();
            let timed: Group = std::sync::Arc::new(TimedCommunicator::new(world, clock.clone()));
            let counted: Group = std::sync::Arc::new(CountingCommunicator::new(timed, ledger.clone()));
            let group = counted.split(Some(0), counted.rank(), "tp")?.expect("a group");
            program(&group)?;
            let calls = clock.log().calls().into_iter();
            let calls = calls.filter(|call| call.group == "tp");
            let calls = calls.map(|call| (call.operation.to_string(), call.sequence, call.bytes, call.is_background));
            Ok::<_, CommError>((ledger.take(), calls.collect()))
        })
        .unwrap()
    };
    assert_eq!(seen(Devices::Shared), seen(Devices::Apart));
}

/// On the device where the group can, otherwise in host memory.
fn program(group: &Group) -> Result<(), CommError> {
    let x = draw(10, group.rank(), FloatDType::BF16);
    let other = 1 - group.rank();
    let Some(way) = TensorExchange::for_device(group, &Device::flex()) else {
        let (mut whole, mut half) = (HostBuffer::zeros(DType::Bf16, 20), HostBuffer::zeros(DType::Bf16, 5));
        group.all_reduce(host(&x).view_mut(), ReduceOp::Sum)?;
        group.reduce_scatter(host(&x).view(), half.view_mut(), ReduceOp::Avg)?;
        group.all_gather(host(&x).view(), whole.view_mut())?;
        group.broadcast(host(&x).view_mut(), 1)?;
        let send_counts = [4 + group.rank(), 6 - group.rank()];
        let recv_counts = if group.rank() == 0 { [4, 5] } else { [6, 5] };
        let mut received = HostBuffer::zeros(DType::Bf16, recv_counts.iter().sum());
        group.all_to_all_uneven(UnevenExchange {
            input: host(&x).view(),
            send_counts: &send_counts,
            output: received.view_mut(),
            recv_counts: &recv_counts,
        })?;
        group.start_all_reduce(host(&x), ReduceOp::Sum)?.wait()?;
        group.start_reduce_scatter(host(&x), ReduceOp::Sum)?.wait()?;
        group.start_all_gather(host(&x))?.wait()?;
        group.start_all_gather(HostBuffer::U8(vec![7; 40]))?.wait()?;
        let sent = group.start_send(host(&x), other, 1)?;
        group.start_recv(DType::Bf16, 10, other, 1)?.wait()?;
        return sent.wait().map(drop);
    };
    way.all_reduce(x.clone(), ReduceOp::Sum)?;
    way.reduce_scatter(x.clone(), ReduceOp::Avg)?;
    way.all_gather(x.clone())?;
    way.broadcast(x.clone(), 1)?;
    let receive = if group.rank() == 0 { [4, 5] } else { [6, 5] };
    way.all_to_all_uneven(x.clone(), &[4 + group.rank(), 6 - group.rank()], &receive)?;
    way.start_all_reduce(x.clone(), ReduceOp::Sum)?.wait()?;
    way.start_reduce_scatter(x.clone(), ReduceOp::Sum)?.wait()?;
    way.start_all_gather(x.clone())?.wait()?;
    way.start_all_gather_bytes(draw(10, group.rank(), FloatDType::F32))?.wait()?;
    let sent = way.start_send(x, other, 1)?;
    way.start_recv(FloatDType::BF16, 10, other, 1)?.wait()?;
    sent.wait()
}

/// Errors of each rank from a program that goes wrong.
fn errors(limit: Duration, wrong: impl Fn(&Group) -> Result<(), CommError> + Sync) -> Vec<CommError> {
    let begun = Instant::now();
    let found = run_ranks_on(Devices::Shared, 3, limit, |group| {
        let error = wrong(&group).expect_err("the ranks do not fit");
        // The group stays until all have their error.
        Ok::<_, CommError>((error, group))
    });
    assert!(begun.elapsed() < LIMIT);
    found.unwrap().into_iter().map(|(error, _)| error).collect()
}

fn is_mismatch(error: &CommError) -> bool {
    matches!(*error.root_cause().kind, CommErrorKind::Mismatch { .. })
}

#[test]
fn ranks_that_disagree_all_get_an_error() {
    let lengths = errors(LIMIT, |group| {
        let x = draw(if group.rank() == 1 { 8 } else { 9 }, 0, FloatDType::F32);
        way(group).all_reduce(x, ReduceOp::Sum).map(drop)
    });
    assert!(lengths.iter().all(is_mismatch), "{lengths:?}");
    assert!(lengths[0].root_cause().to_string().contains("8 x f32, on the device"), "{}", lengths[0]);
    let started = errors(LIMIT, |group| {
        let dtype = if group.rank() == 1 { FloatDType::F32 } else { FloatDType::BF16 };
        way(group).start_all_gather(draw(9, 0, dtype))?.wait().map(drop)
    });
    assert!(started.iter().all(is_mismatch), "{started:?}");
    let places = errors(LIMIT, |group| match group.rank() {
        1 => group.all_reduce((&mut [1.0_f32; 9]).into(), ReduceOp::Sum),
        _ => way(group).all_reduce(draw(9, 0, FloatDType::F32), ReduceOp::Sum).map(drop),
    });
    assert!(places.iter().all(is_mismatch), "{places:?}");
    let counts = errors(LIMIT, |group| {
        let receive = if group.rank() == 2 { [3, 4, 3] } else { [3, 3, 3] };
        way(group).all_to_all_uneven(draw(9, 0, FloatDType::F32), &[3; 3], &receive).map(drop)
    });
    assert!(counts.iter().all(is_mismatch), "{counts:?}");
    let messages = errors(LIMIT, |group| {
        let (rank, next) = (group.rank(), (group.rank() + 1) % 3);
        let sent = way(group).start_send(draw(9, 0, FloatDType::F32), next, 0)?;
        way(group).start_recv(FloatDType::F32, 9 + usize::from(rank == 0), (rank + 2) % 3, 0)?.wait()?;
        sent.wait()?;
        group.barrier()
    });
    assert!(messages.iter().all(is_mismatch), "{messages:?}");
}

#[test]
fn arguments_that_cannot_be_are_refused_before_anything_is_sent() {
    run_ranks_on(Devices::Shared, 2, LIMIT, |group| {
        let x = draw(9, 0, FloatDType::F32);
        let refused = [
            way(&group).all_reduce(x.clone(), ReduceOp::Max).map(drop),
            way(&group).reduce_scatter(x.clone(), ReduceOp::Sum).map(drop),
            way(&group).broadcast(x.clone(), 2).map(drop),
            way(&group).all_to_all_uneven(x.clone(), &[4, 4], &[4, 4]).map(drop),
            way(&group).start_send(x.clone(), group.rank(), 0).map(drop),
        ];
        for refused in refused {
            assert!(matches!(*refused.unwrap_err().kind, CommErrorKind::InvalidArgument { .. }));
        }
        way(&group).all_reduce(x, ReduceOp::Sum).map(drop)
    })
    .unwrap();
}

#[test]
fn a_rank_that_is_gone_ends_the_operation_of_the_others() {
    let begun = Instant::now();
    let failed = run_ranks_on(Devices::Shared, 3, LIMIT, |group| {
        let started = way(&group).start_all_reduce(draw(9, 0, FloatDType::F32), ReduceOp::Sum)?;
        started.wait()?;
        if group.rank() == 1 {
            return Ok(());
        }
        match group.rank() {
            0 => way(&group).start_all_gather(draw(9, 0, FloatDType::F32))?.wait().map(drop),
            _ => way(&group).all_gather(draw(9, 0, FloatDType::F32)).map(drop),
        }
    });
    let failed = failed.unwrap_err();
    let RankFailure::Failed(error) = &failed.failure else { panic!("{failed}") };
    let error = error.downcast_ref::<CommError>().unwrap();
    assert!(matches!(*error.root_cause().kind, CommErrorKind::PeerGone { peer: 1, .. }), "{error}");
    assert!(failed.others.len() == 1 && begun.elapsed() < LIMIT, "{failed}");
}

/// A rank gives up after the time limit if its peer does something else.
#[test]
fn waiting_ends_with_the_time_limit() {
    let errors = errors(Duration::from_millis(300), |group| match group.rank() {
        0 => way(group).start_recv(FloatDType::F32, 3, 1, 0)?.wait().map(drop),
        _ => way(group).all_reduce(draw(9, 0, FloatDType::F32), ReduceOp::Sum).map(drop),
    });
    assert!(errors.iter().all(|error| matches!(*error.root_cause().kind, CommErrorKind::Timeout { .. })), "{errors:?}");
}
