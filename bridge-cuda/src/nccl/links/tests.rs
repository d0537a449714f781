//! Links over a channel of host memory that replaces NCCL: neither end returns before the other has
//! arrived, as if nothing were buffered.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Channel, End, Links, Way};
use crate::nccl::carrier::CarrierError;
use crate::nccl::member::{Member, World};
use bridge_dist::comm::device::{DeviceMemory, DevicePart};
use bridge_dist::comm::thread::{BoxError, run_ranks};
use bridge_dist::comm::transport::{GroupMember, Signature};
use bridge_dist::comm::{CommError, CommErrorKind, DType, Group};
use bridge_dist::schedule::{Action, Direction, Message, PipelineShape, ScheduleKind, rank_actions};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(400);

/// Bytes that only the stand-in reads.
#[derive(Debug)]
struct HostMemory(Vec<u8>);

impl DeviceMemory for HostMemory {
    fn empty(&self, elements: usize) -> Arc<dyn DeviceMemory> {
        Arc::new(Self(vec![0; elements]))
    }
}

fn part(bytes: Vec<u8>) -> DevicePart {
    DevicePart { dtype: DType::U8, len: bytes.len(), memory: Arc::new(HostMemory(bytes)) }
}

fn bytes(part: &DevicePart) -> Vec<u8> {
    let memory: &dyn Any = part.memory.as_ref();
    memory.downcast_ref::<HostMemory>().expect("the memory of these tests").0.clone()
}

/// Ends of this rank stall.
#[derive(Clone)]
struct HostWay {
    stalls: Option<usize>,
}

struct HostChannel(End, bool);

impl Way for HostWay {
    type Channel = HostChannel;

    fn open(&self, part: &DevicePart) -> Result<Vec<u8>, CarrierError> {
        Ok(bytes(part))
    }

    fn connect(&self, end: &End) -> Result<HostChannel, CarrierError> {
        Ok(HostChannel(end.clone(), self.stalls == Some(end.member.rank)))
    }
}

/// Tags of the data and of the answer to it.
const DATA: u32 = 10;
const TAKEN: u32 = 11;

fn moved(result: Result<(), CommError>) -> Result<(), CarrierError> {
    result.map_err(|error| CarrierError::Failed(*error.kind))
}

impl Channel for HostChannel {
    type Opened = Vec<u8>;

    fn send(&mut self, _signature: &Signature, data: Vec<u8>) -> Result<(), CarrierError> {
        let Self(End { control, peer, .. }, stalls) = self;
        if *stalls {
            return Err(CarrierError::Stalled(SHORT));
        }
        moved(control.send((&data).into(), *peer, DATA))?;
        moved(control.recv((&mut [0_u8]).into(), *peer, TAKEN))
    }

    fn receive(&mut self, sent: &Signature, _like: &DevicePart) -> Result<DevicePart, CarrierError> {
        let Self(End { control, peer, .. }, stalls) = self;
        if *stalls {
            return Err(CarrierError::Stalled(SHORT));
        }
        let mut data = vec![0_u8; sent.len.expect("messages have lengths") as usize];
        moved(control.recv((&mut data).into(), *peer, DATA))?;
        moved(control.send((&[1_u8]).into(), *peer, TAKEN))?;
        Ok(part(data))
    }

    fn abort(&mut self) {}
}

fn member(group: &Group) -> Member {
    Member {
        world: Arc::new(World::default()),
        rank: group.rank(),
        world_ranks: group.world_ranks(),
        name: "pp".into(),
    }
}

fn links(group: &Group) -> Links<HostWay> {
    Links::new(&member(group), group, HostWay { stalls: None })
}

/// Content of a message from a rank, by number; some messages are empty.
fn content(from: usize, number: usize) -> Vec<u8> {
    (0..(number * 7 + from) % 5 * 100).map(|i| (i + 31 * from + 3 * number) as u8).collect()
}

fn like(from: usize, number: usize) -> DevicePart {
    part(content(from, number).iter().map(|_| 0).collect())
}

#[test]
fn messages_come_by_tag_whatever_was_started_first() {
    run_ranks(3, LONG, |group| {
        let links = links(&group);
        let (rank, next, last) = (group.rank(), (group.rank() + 1) % 3, (group.rank() + 2) % 3);
        // All ranks send before they receive, both ways round; two messages of each tag.
        let sent: Vec<_> = (0..6)
            .flat_map(|number| [next, last].map(|to| (number, to)))
            .map(|(number, to)| links.start_send(&part(content(rank, number)), to, number as u32 % 3))
            .collect::<Result<_, _>>()?;
        for from in [next, last] {
            // Only one receive is there when the first message comes, which is another one's.
            let third = links.start_recv(like(from, 2), from, 2)?.wait()?;
            let order = [1, 0, 5, 3, 4];
            let started: Vec<_> = order
                .iter()
                .map(|&number| links.start_recv(like(from, number), from, number as u32 % 3))
                .collect::<Result<_, _>>()?;
            assert_eq!(bytes(&third), content(from, 2));
            for (&number, request) in order.iter().zip(started).rev() {
                assert_eq!(bytes(&request.wait()?), content(from, number), "{number} of {from} to {rank}");
            }
        }
        sent.into_iter().try_for_each(bridge_dist::comm::Request::wait)?;
        Ok::<_, BoxError>(group)
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

/// Posts the receives of two boundaries ahead and starts sends, as a pipeline does.
fn run_schedule(links: &Links<HostWay>, rank: usize, actions: &[Action]) -> Result<(), CommError> {
    let name = |from: usize, Message { microbatch, boundary, .. }: Message, direction: Direction| {
        let mut content = content(from, 3 * microbatch + boundary + 1);
        content.extend([microbatch as u8, boundary as u8, direction as u8]);
        content
    };
    let mut later = actions.iter().filter(|action| !action.is_send()).filter_map(Action::message);
    let mut post = || -> Result<Option<_>, CommError> {
        let Some((direction, message)) = later.next() else { return Ok(None) };
        let expected = name(message.peer, message, direction);
        let request = links.start_recv(part(vec![0; expected.len()]), message.peer, message.tag(direction))?;
        Ok(Some((request, expected)))
    };
    let mut posted: std::collections::VecDeque<_> = [post()?, post()?].into_iter().flatten().collect();
    let mut sent = Vec::new();
    for action in actions {
        let Some((direction, message)) = action.message() else { continue };
        if action.is_send() {
            let data = part(name(rank, message, direction));
            sent.push(links.start_send(&data, message.peer, message.tag(direction))?);
        } else {
            let (request, expected) = posted.pop_front().expect("a receive was posted");
            assert_eq!(bytes(&request.wait()?), expected);
            posted.extend(post()?);
        }
    }
    sent.into_iter().try_for_each(bridge_dist::comm::Request::wait)
}

/// The order in which ranks send each other activations and gradients is another one than that in
/// which they wait for them.
#[test]
fn no_schedule_stands_still() {
    let interleaved = |microbatch_group_size| ScheduleKind::Interleaved { microbatch_group_size };
    let cases = [
        (ScheduleKind::GPipe, 3, 1, 5),
        (ScheduleKind::OneForwardOneBackward, 2, 1, 5),
        (ScheduleKind::OneForwardOneBackward, 4, 1, 7),
        (interleaved(2), 2, 2, 6),
        (interleaved(2), 2, 3, 4),
        (interleaved(3), 3, 2, 6),
        (interleaved(5), 4, 2, 10),
        (ScheduleKind::ZeroBubbleH1, 4, 1, 6),
        (ScheduleKind::ForwardOnly, 3, 2, 4),
    ];
    for (kind, num_stages, num_chunks, num_microbatches) in cases {
        let shape = PipelineShape { num_stages, num_chunks, num_microbatches };
        run_ranks(num_stages, LONG, |group| {
            let (links, actions) = (links(&group), rank_actions(kind, shape, group.rank())?);
            for _ in 0..2 {
                run_schedule(&links, group.rank(), &actions)?;
            }
            Ok::<_, BoxError>(group)
        })
        .unwrap_or_else(|error| panic!("{kind}, {shape:?}: {error}"));
    }
}

/// The errors of two ranks, of which the second does something else than the first.
fn errors(
    limit: Duration,
    stalls: Option<usize>,
    wrong: impl Fn(&Links<HostWay>, usize) -> Result<(), CommError> + Sync,
) -> [CommError; 2] {
    let begun = Instant::now();
    let found = run_ranks(2, limit, |group| {
        let member = member(&group);
        let links = Links::new(&member, &group, HostWay { stalls });
        let error = wrong(&links, group.rank()).expect_err("the ranks do not fit");
        let again = member.check_world(&Signature::bare(bridge_dist::comm::transport::OpKind::Barrier));
        assert!(matches!(*again.expect_err("the world has failed").kind, CommErrorKind::Aborted { .. }));
        assert!(matches!(
            *links.start_recv(part(vec![0]), 1 - group.rank(), 0).unwrap_err().kind,
            CommErrorKind::Aborted { .. }
        ));
        Ok::<_, BoxError>((error, group))
    });
    assert!(begun.elapsed() < LONG);
    let found = found.unwrap_or_else(|error| panic!("{error}"));
    found.into_iter().map(|(error, _)| error).collect::<Vec<_>>().try_into().expect("two ranks")
}

#[test]
fn a_message_of_another_length_is_a_mismatch() {
    run_ranks(2, LONG, |group| {
        let links = links(&group);
        if group.rank() == 0 {
            links.start_send(&part(vec![1; 9]), 1, 4)?.wait()?;
        } else {
            let error = links.start_recv(part(vec![0; 8]), 0, 4)?.wait().expect_err("lengths differ");
            let text = "rank 1 of group `pp` (size 2) in recv(8 x u8, from number 0, tag 4, on the device): rank 0 disagrees: expected \
                        recv(8 x u8, from number 0, tag 4, on the device), found a message of 9 x u8 on the device";
            assert_eq!(error.to_string(), text);
        }
        Ok::<_, BoxError>(group)
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn waiting_ends_with_the_time_limit() {
    let [receiver, other] =
        errors(SHORT, None, |links, rank| links.start_recv(part(vec![0]), 1 - rank, 0)?.wait().map(drop));
    for error in [&receiver, &other] {
        assert!(matches!(*error.kind, CommErrorKind::Timeout { .. }), "{error}");
    }
    assert!(receiver.to_string().ends_with("waited 400ms for rank 1"), "{receiver}");
    // No rank receives.
    let both = errors(SHORT, None, |links, rank| links.start_send(&part(vec![7]), 1 - rank, 0)?.wait());
    assert!(both.iter().all(|error| matches!(*error.kind, CommErrorKind::Timeout { .. })), "{both:?}");
}

#[test]
fn data_that_stalls_names_the_other_rank() {
    let [sender, receiver] = errors(SHORT, Some(0), |links, rank| match rank {
        0 => links.start_send(&part(vec![7]), 1, 0)?.wait(),
        _ => links.start_recv(part(vec![0]), 0, 0)?.wait().map(drop),
    });
    assert_eq!(sender.missing_ranks(), Some(vec![1]), "{sender}");
    assert_eq!(receiver.missing_ranks(), Some(vec![0]), "{receiver}");
}

#[test]
fn a_rank_that_is_gone_ends_messages_of_both_directions() {
    for sends in [false, true] {
        let found = run_ranks(2, LONG, |group| {
            let links = links(&group);
            if group.rank() == 1 {
                return Ok(None);
            }
            let ended = match sends {
                true => links.start_send(&part(vec![7]), 1, 0)?.wait(),
                false => links.start_recv(part(vec![0]), 1, 0)?.wait().map(drop),
            };
            Ok::<_, BoxError>(ended.err())
        });
        let error = found.unwrap_or_else(|error| panic!("{error}"))[0].clone().expect("its peer has left");
        assert!(matches!(*error.kind, CommErrorKind::PeerGone { peer: 1, .. }), "{error}");
    }
}

#[test]
fn what_nobody_waits_for_does_not_hold_up_the_end() {
    let begun = Instant::now();
    run_ranks(2, LONG, |group| {
        let links = links(&group);
        let other = 1 - group.rank();
        // The message is received, since a receive takes it, though both requests are dropped; the
        // second receive gets none.
        drop(links.start_send(&part(vec![7]), other, 0)?);
        drop(links.start_recv(part(vec![0]), other, 0)?);
        drop(links.start_recv(part(vec![0]), other, 1)?);
        drop(links);
        group.barrier()?;
        Ok::<_, BoxError>(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    assert!(begun.elapsed() < LONG / 2);
}
