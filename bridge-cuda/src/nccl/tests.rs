//! Tests of this folder that need no GPU, on thread ranks: the whole conformance suite over a
//! carrier that replaces NCCL, stalls, handshakes, and machines without NCCL.

use std::sync::Arc;

use super::carrier::{Carrier, CarrierError, Fabric};
use super::handshake::{Message, shake_hands};
use super::member::{Member, World};
use super::staged::{Controls, Staged};
use super::{NcclCommunicator, NcclInitError, everyone};
use bridge_dist::comm::thread::{BoxError, run_ranks};
use bridge_dist::comm::transport::OpKind;
use bridge_dist::comm::{CommError, CommErrorKind, DType, Group, ReduceOp, UnevenExchange};

#[path = "../../../bridge-dist/tests/suite/mod.rs"]
mod suite;

use suite::{LONG, SHORT};

/// Moves bytes over a group of threads. The ranks in `stalls` never learn that their data has
/// arrived.
#[derive(Clone, Debug)]
struct HostFabric {
    stalls: &'static [usize],
}

const HEALTHY: HostFabric = HostFabric { stalls: &[] };

struct HostCarrier {
    group: Group,
    stalls: bool,
}

impl Fabric for HostFabric {
    type Carrier = HostCarrier;
    type Messages = ();

    fn messages(&self, _member: &Member, _control: &Group) {}

    /// Odd, and far less than the suite's longest buffers.
    fn piece_bytes(&self) -> usize {
        100_001
    }

    fn connect(&self, control: &Group) -> Result<HostCarrier, CarrierError> {
        let group =
            control.split(Some(0), control.rank(), "data").map_err(|error| CarrierError::Failed(*error.kind))?;
        Ok(HostCarrier { group: group.expect("a colour was given"), stalls: self.stalls.contains(&control.rank()) })
    }
}

fn moved(result: Result<(), CommError>) -> Result<(), CarrierError> {
    result.map_err(|error| CarrierError::Failed(*error.kind))
}

impl Carrier for HostCarrier {
    fn all_gather(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), CarrierError> {
        moved(self.group.all_gather(input.into(), output.into()))?;
        if self.stalls { Err(CarrierError::Stalled(SHORT)) } else { Ok(()) }
    }

    fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), CarrierError> {
        moved(self.group.broadcast(data.into(), root))
    }

    fn exchange(&mut self, sends: &[&[u8]], receives: &mut [&mut [u8]]) -> Result<(), CarrierError> {
        let send_counts: Vec<usize> = sends.iter().map(|part| part.len()).collect();
        let recv_counts: Vec<usize> = receives.iter().map(|part| part.len()).collect();
        let mut output = vec![0u8; recv_counts.iter().sum()];
        moved(self.group.all_to_all_uneven(UnevenExchange {
            input: (&sends.concat()).into(),
            send_counts: &send_counts,
            output: (&mut output).into(),
            recv_counts: &recv_counts,
        }))?;
        let mut rest = output.as_slice();
        for part in receives {
            let (first, others) = rest.split_at(part.len());
            part.copy_from_slice(first);
            rest = others;
        }
        Ok(())
    }

    fn abort(&mut self) {}
}

fn staged(bootstrap: &Group, fabric: HostFabric) -> Result<Group, BoxError> {
    let controls = Controls::split(bootstrap, Some(0), bootstrap.rank(), "world")?.ok_or("a colour was given")?;
    Ok(Arc::new(Staged::connect(Arc::new(World::default()), fabric, controls, "world")?))
}

#[test]
fn the_suite_passes_on_a_stand_in_for_nccl() {
    for size in [1, 3] {
        run_ranks(size, LONG, |bootstrap| {
            let comm = staged(&bootstrap, HEALTHY)?;
            for (name, case) in suite::CASES {
                case(&comm).map_err(|error| format!("{name}: {error}"))?;
            }
            Ok::<_, BoxError>(())
        })
        .unwrap_or_else(|error| panic!("{size} ranks: {error}"));
    }
}

#[test]
fn failures_are_found_on_a_stand_in_for_nccl() {
    for size in [2, 3] {
        for (name, case) in suite::failures::CASES {
            run_ranks(size, LONG, |bootstrap| {
                let comm = staged(&bootstrap, HEALTHY)?;
                case(&comm)?;
                // Keep the communicator until all ranks have seen the failure: a rank that leaves
                // is another failure.
                Ok::<_, BoxError>((bootstrap, comm))
            })
            .unwrap_or_else(|error| panic!("{name} on {size} ranks: {error}"));
        }
    }
}

/// The error of an operation on a world in which the data of some ranks stalls, for each rank;
/// `next` runs on ranks whose data arrives.
fn stalled(stalls: &'static [usize], next: fn(&Group) -> Option<CommError>) -> Vec<Option<CommError>> {
    run_ranks(2, LONG, |bootstrap| {
        let comm = staged(&bootstrap, HostFabric { stalls })?;
        let error = match comm.all_reduce((&mut [1f32]).into(), ReduceOp::Sum) {
            Err(error) => {
                let again = comm.barrier().err().ok_or("the world works on")?;
                assert!(matches!(&*again.kind, CommErrorKind::Aborted { .. }), "{again}");
                Some(error)
            }
            Ok(()) => next(&comm),
        };
        Ok::<_, BoxError>((error, bootstrap))
    })
    .unwrap_or_else(|error| panic!("{error}"))
    .into_iter()
    .map(|(error, _)| error)
    .collect()
}

fn text(error: &Option<CommError>) -> String {
    error.as_ref().expect("the stall is noticed").to_string()
}

#[test]
fn data_that_stalls_everywhere_is_reported_by_all() {
    for (rank, error) in stalled(&[0, 1], |_| None).iter().enumerate() {
        let expected = format!(
            "rank {rank} of group `world` (size 2) in all_reduce(sum, 1 x f32): NCCL reported: no data moved for 700ms, although all \
             ranks are present"
        );
        assert_eq!(text(error), expected);
    }
}

#[test]
fn data_that_stalls_on_one_rank_is_reported_by_the_others_too() {
    let errors = stalled(&[0], |comm| comm.barrier().err());
    assert!(text(&errors[0]).ends_with("no data moved for 700ms, although all ranks are present"));
    let expected = "rank 1 of group `world` (size 2) in barrier(): NCCL reported: rank 0 has given up waiting for the data of \
                    all_reduce(sum, 1 x f32)";
    assert_eq!(text(&errors[1]), expected);
}

#[test]
fn a_stall_names_the_rank_that_has_left() {
    let errors = stalled(&[0], |_| None);
    assert!(text(&errors[0]).contains("rank 1 has left the group"), "{}", text(&errors[0]));
    assert!(errors[1].is_none());
}

#[test]
fn handshakes_find_equal_messages_and_name_others() {
    run_ranks(3, LONG, |bootstrap| {
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let world_ranks = bootstrap.world_ranks();
        let member = Member { world: Arc::default(), rank, world_ranks, name: "pp".into() };
        // A ring in which everybody sends and receives at once.
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let len = |from: usize| 10 + from;
        let ring = [
            Message::new(&member, OpKind::Send, (DType::Bf16, len(rank)), next)?,
            Message::new(&member, OpKind::Recv, (DType::Bf16, len(previous)), previous)?,
        ];
        shake_hands(&member, &bootstrap, &ring)?;
        // Both ranks of a message that differs get the error.
        if rank < 2 {
            let kind = if rank == 0 { OpKind::Send } else { OpKind::Recv };
            let message = Message::new(&member, kind, (DType::F32, 5 + rank), 1 - rank)?;
            let error = shake_hands(&member, &bootstrap, &[message]).err().ok_or("unnoticed")?;
            let text = if rank == 0 {
                "rank 0 of group `pp` (size 3) in send(5 x f32, to number 1): rank 1 disagrees: \
                 expected send(5 x f32, to number 1), found recv(6 x f32, from number 0)"
            } else {
                "rank 1 of group `pp` (size 3) in recv(6 x f32, from number 0): rank 0 disagrees: \
                 expected recv(6 x f32, from number 0), found send(5 x f32, to number 1)"
            };
            assert_eq!(error.to_string(), text);
            // The world has failed.
            let error = shake_hands(&member, &bootstrap, &ring).err().ok_or("the world works on")?;
            assert!(matches!(&*error.kind, CommErrorKind::Aborted { .. }), "{error}");
        }
        let error = Message::new(&member, OpKind::Send, (DType::F32, 1), rank).err().ok_or("sent to itself")?;
        assert!(error.to_string().contains("peer"), "{error}");
        Ok::<_, BoxError>(bootstrap)
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn one_rank_without_a_library_stops_all() {
    let results = run_ranks(3, LONG, |bootstrap| {
        let mine = if bootstrap.rank() == 1 {
            Err(NcclInitError::NoDevice { ordinal: 7, count: 4 })
        } else {
            Ok(bootstrap.rank())
        };
        Ok::<_, BoxError>(everyone(&bootstrap, mine).map_err(|error| error.to_string()))
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let own = "CUDA device 7 was requested, but the driver shows 4 (CUDA_VISIBLE_DEVICES hides devices)";
    let other = format!("rank 1 could not start NCCL: {own}");
    assert_eq!(results, [Err(other.clone()), Err(own.to_owned()), Err(other)]);
}

/// A device that no machine has. With any installation every rank gets an error, and no rank panics
/// or waits.
#[test]
fn joining_without_a_device_is_an_error_on_every_rank() {
    let errors = run_ranks(2, LONG, |bootstrap| {
        NcclCommunicator::connect(&bootstrap, 1_000_000).err().ok_or_else(|| BoxError::from("joined"))
    })
    .unwrap_or_else(|error| panic!("{error}"));
    for error in errors {
        let expected = matches!(
            error,
            NcclInitError::MissingLibrary { .. } | NcclInitError::Library { .. } | NcclInitError::NoDevice { .. }
        );
        assert!(expected, "{error}");
    }
}
