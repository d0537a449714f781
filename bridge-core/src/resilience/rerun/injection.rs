//! Fault injection to test the state machine. Active only if a rate is set.

use serde::{Deserialize, Serialize};

use crate::config::ErrorInjectionType;

use super::state::{Call, RerunState};

/// Rate and type of injected faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorInjection {
    /// One fault per this many validations, on average; 0 for none.
    pub rate: u64,
    /// Type of the fault.
    pub kind: ErrorInjectionType,
    /// Seed of the draws. With the same seed on all ranks at most one of any `rate` ranks is hit by
    /// a draw.
    pub seed: u64,
}

/// Draws faults and remembers the pending one.
#[derive(Clone, Debug)]
pub(super) struct Injector {
    config: ErrorInjection,
    rank: u64,
    random_state: u64,
    /// At most one fault is pending at a time.
    pub(super) pending: Option<Fault>,
}

/// A fault that was injected, and is not judged yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) call: Call,
    /// Type of the fault.
    pub(super) kind: ErrorInjectionType,
}

impl Injector {
    pub(super) fn new(config: ErrorInjection, rank: usize) -> Self {
        Self { config, rank: rank as u64, random_state: config.seed, pending: None }
    }

    /// True if a fault is injected into `call` of an initial run.
    pub(super) fn hits(&mut self, call: &Call) -> bool {
        if self.config.rate == 0 || self.pending.is_some() {
            return false;
        }
        let draw = self.next_random() % self.config.rate;
        let hit = (draw + self.rank % self.config.rate).is_multiple_of(self.config.rate);
        if hit {
            self.pending = Some(Fault { call: call.clone(), kind: self.config.kind });
        }
        hit
    }

    /// The pending fault, if it was injected into `call`.
    fn fault_of(&self, call: &Call) -> Option<&Fault> {
        self.pending.as_ref().filter(|fault| fault.call == *call)
    }

    /// True if the pending fault is in `call`.
    pub(super) fn has_hit(&self, call: &Call) -> bool {
        self.fault_of(call).is_some()
    }

    /// True if the pending fault changes the result of a rerun of `call`.
    pub(super) fn distorts(&self, call: &Call, state: RerunState) -> bool {
        self.fault_of(call).is_some_and(|fault| match fault.kind {
            ErrorInjectionType::CorrectResult => false,
            ErrorInjectionType::TransientError => state == RerunState::RerunningInPlace,
            ErrorInjectionType::PersistentError => state == RerunState::RerunningFromCheckpoint,
        })
    }

    /// The state of the draws, if there are any.
    pub(super) fn draws(&self) -> Option<u64> {
        (self.config.rate > 0).then_some(self.random_state)
    }

    pub(super) fn continue_at(&mut self, draws: u64) {
        self.random_state = draws;
    }

    /// SplitMix64 (Steele, Lea & Flood 2014): enough to spread a few faults.
    fn next_random(&mut self) -> u64 {
        self.random_state = self.random_state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random_state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
