//! Executes action lists on virtual clocks: finds deadlocks and messages in the wrong order, and
//! measures memory and bubbles.

use std::collections::{BTreeMap, VecDeque};

use super::action::{Action, Direction};
use super::check::validate;
use super::{PipelineSchedule, ScheduleError, ScheduleKind};

/// Durations, in any one unit of time. A whole backward takes `backward_input + backward_weight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A chunk's forward.
    pub forward: u64,
    /// The input part of a chunk's backward.
    pub backward_input: u64,
    /// The weight part of a chunk's backward.
    pub backward_weight: u64,
    /// Time from the start of a send until its data can be used.
    pub transfer: u64,
}

impl Default for Costs {
    /// Backward takes twice as long as forward; transfers take no time.
    fn default() -> Self {
        Self { forward: 1, backward_input: 1, backward_weight: 1, transfer: 0 }
    }
}

/// Completion rule of sends in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// Each send waits for its receive: the strictest reading of a message-passing library.
    Rendezvous,
    /// A send waits only while this many earlier messages to the same rank are not received.
    Buffered {
        /// Messages that may be in transit from one rank to another.
        capacity: usize,
    },
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationReport {
    /// When the last rank finished.
    pub makespan: u64,
    /// Time each rank spent computing.
    pub busy: Vec<u64>,
    /// Largest number of micro-batch-chunks on each rank whose forward is done and whose backward
    /// (the weight part included) is not. Activation memory is proportional to it. 0 for
    /// forward-only.
    pub max_in_flight: Vec<usize>,
    /// Largest number of messages in transit from any rank to any other.
    pub max_buffered: usize,
}

impl SimulationReport {
    /// The share of the ranks' time that is not spent computing, `0.0..1.0`.
    pub fn bubble_fraction(&self) -> f64 {
        let available = self.makespan * self.busy.len() as u64;
        if available == 0 {
            return 0.0;
        }
        1.0 - self.busy.iter().sum::<u64>() as f64 / available as f64
    }
}

/// Validates a schedule and executes it.
///
/// # Errors
/// If a list is invalid, messages arrive in an unexpected order, or ranks deadlock.
pub fn simulate(schedule: &PipelineSchedule, costs: Costs, sends: Sends) -> Result<SimulationReport, ScheduleError> {
    validate(schedule)?;
    let mut machine = Machine {
        schedule,
        costs,
        sends,
        ranks: vec![RankState::default(); schedule.shape.num_stages],
        links: BTreeMap::new(),
    };
    loop {
        let mut moved = false;
        for rank in 0..schedule.shape.num_stages {
            while machine.step(rank)? {
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    machine.finish()
}

#[derive(Clone, Default)]
struct RankState {
    next: usize,
    clock: u64,
    busy: u64,
    in_flight: usize,
    max_in_flight: usize,
}

/// Messages from one rank to another.
#[derive(Default)]
struct Link {
    /// Queues by boundary and direction: the micro-batch and the arrival time of its data.
    queues: BTreeMap<(usize, Direction), VecDeque<(usize, u64)>>,
    /// When each message was sent.
    sent: Vec<u64>,
    /// When each message was received, in the order of the receives.
    received: Vec<u64>,
}

impl Link {
    /// The most messages in transit at once. A message that is received at the instant of a send
    /// still counts then.
    fn max_buffered(&self) -> usize {
        let counts = self.sent.iter().enumerate().map(|(index, time)| {
            let received = self.received.partition_point(|receipt| receipt < time);
            (index + 1).saturating_sub(received)
        });
        counts.max().unwrap_or(0)
    }
}

struct Machine<'a> {
    schedule: &'a PipelineSchedule,
    costs: Costs,
    sends: Sends,
    ranks: Vec<RankState>,
    links: BTreeMap<(usize, usize), Link>,
}

impl Machine<'_> {
    fn current(&self, rank: usize) -> Option<Action> {
        self.schedule.ranks[rank].get(self.ranks[rank].next).copied()
    }

    /// Executes a rank's next action if possible; returns whether it did.
    fn step(&mut self, rank: usize) -> Result<bool, ScheduleError> {
        let Some(action) = self.current(rank) else { return Ok(false) };
        match action {
            Action::Forward { .. } => {
                self.compute(rank, self.costs.forward);
                let state = &mut self.ranks[rank];
                if self.schedule.kind != ScheduleKind::ForwardOnly {
                    state.in_flight += 1;
                    state.max_in_flight = state.max_in_flight.max(state.in_flight);
                }
            }
            Action::BackwardInput { .. } => self.compute(rank, self.costs.backward_input),
            Action::BackwardWeight { .. } => {
                self.compute(rank, self.costs.backward_weight);
                self.ranks[rank].in_flight -= 1;
            }
            Action::Backward { .. } => {
                self.compute(rank, self.costs.backward_input + self.costs.backward_weight);
                self.ranks[rank].in_flight -= 1;
            }
            Action::SendActivation(_) | Action::SendGradient(_) => return Ok(self.send(rank, action)),
            Action::RecvActivation(_) | Action::RecvGradient(_) => return self.receive(rank, action),
        }
        self.ranks[rank].next += 1;
        Ok(true)
    }

    fn compute(&mut self, rank: usize, cost: u64) {
        self.ranks[rank].clock += cost;
        self.ranks[rank].busy += cost;
    }

    fn send(&mut self, rank: usize, action: Action) -> bool {
        let Some((direction, message)) = action.message() else { return false };
        let clock = self.ranks[rank].clock;
        let started = match self.sends {
            Sends::Rendezvous => {
                let peer_clock = self.ranks[message.peer].clock;
                let waiting = self.current(message.peer).filter(|other| !other.is_send());
                let meets = waiting.and_then(|other| other.message()).is_some_and(|(other_direction, other)| {
                    (other_direction, other.boundary, other.peer) == (direction, message.boundary, rank)
                });
                // The peer may be at its receive and already have its message.
                let link = self.links.entry((rank, message.peer)).or_default();
                if !meets || link.sent.len() > link.received.len() {
                    return false;
                }
                clock.max(peer_clock)
            }
            Sends::Buffered { capacity } => {
                let link = self.links.entry((rank, message.peer)).or_default();
                match link.sent.len().checked_sub(capacity) {
                    None => clock,
                    // The buffer is full until the receive that empties the oldest place.
                    Some(oldest) => match link.received.get(oldest) {
                        Some(&freed) => clock.max(freed),
                        None => return false,
                    },
                }
            }
        };
        let link = self.links.entry((rank, message.peer)).or_default();
        let arrival = started + self.costs.transfer;
        let queue = link.queues.entry((message.boundary, direction)).or_default();
        queue.push_back((message.microbatch, arrival));
        link.sent.push(started);
        self.ranks[rank].clock = match self.sends {
            Sends::Rendezvous => arrival,
            Sends::Buffered { .. } => started,
        };
        self.ranks[rank].next += 1;
        true
    }

    fn receive(&mut self, rank: usize, action: Action) -> Result<bool, ScheduleError> {
        let Some((direction, message)) = action.message() else { return Ok(false) };
        let link = self.links.entry((message.peer, rank)).or_default();
        let queue = link.queues.entry((message.boundary, direction)).or_default();
        let Some((found, arrival)) = queue.pop_front() else { return Ok(false) };
        if found != message.microbatch {
            return Err(ScheduleError::WrongOrder { rank, action, expected: message.microbatch, found });
        }
        let state = &mut self.ranks[rank];
        state.clock = state.clock.max(arrival);
        link.received.push(state.clock);
        state.next += 1;
        Ok(true)
    }

    fn finish(self) -> Result<SimulationReport, ScheduleError> {
        let blocked: Vec<(usize, Action)> =
            (0..self.ranks.len()).filter_map(|rank| Some((rank, self.current(rank)?))).collect();
        if !blocked.is_empty() {
            return Err(ScheduleError::Deadlock { blocked });
        }
        for (&(from, to), link) in &self.links {
            let count = link.sent.len() - link.received.len();
            if count > 0 {
                return Err(ScheduleError::Unreceived { from, to, count });
            }
        }
        Ok(SimulationReport {
            makespan: self.ranks.iter().map(|rank| rank.clock).max().unwrap_or(0),
            busy: self.ranks.iter().map(|rank| rank.busy).collect(),
            max_in_flight: self.ranks.iter().map(|rank| rank.max_in_flight).collect(),
            max_buffered: self.links.values().map(Link::max_buffered).max().unwrap_or(0),
        })
    }
}
