//! Signs of life of a rank, which another thread may look at while the rank works. Who looks, and what follows, is not decided here.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What a rank is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Getting ready, up to the first step.
    Setup,
    /// A step of training.
    Step,
    /// A save.
    Checkpointing,
    /// Anything else, as evaluations.
    OutOfSection,
    /// Nothing any more: its part of the run is over.
    Ended,
}

impl Section {
    /// Those that take time.
    pub const TIMED: [Self; 4] = [Self::Setup, Self::Step, Self::Checkpointing, Self::OutOfSection];

    /// As settings and files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Step => "step",
            Self::Checkpointing => "checkpointing",
            Self::OutOfSection => "out_of_section",
            Self::Ended => "ended",
        }
    }

    fn of_number(number: u8) -> Self {
        Self::TIMED.get(usize::from(number)).copied().unwrap_or(Self::Ended)
    }
}

/// The pulse of one rank.
#[derive(Debug)]
pub struct Pulse {
    origin: Instant,
    /// Milliseconds from the origin to the last sign of life.
    beat: AtomicU64,
    section: AtomicU8,
    /// Milliseconds from the origin to the moment when it began.
    entered: AtomicU64,
}

impl Default for Pulse {
    /// That of a rank that begins now.
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { origin: Instant::now(), beat: zero(), section: AtomicU8::new(0), entered: zero() }
    }
}

impl Pulse {
    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The rank is alive.
    pub fn beat(&self) {
        self.beat.store(self.now(), Ordering::Relaxed);
    }

    /// The rank begins a section. Returns the one that it leaves, and how long that took.
    pub fn enter(&self, section: Section) -> (Section, Duration) {
        let now = self.now();
        let left = Section::of_number(self.section.swap(section as u8, Ordering::Relaxed));
        let entered = self.entered.swap(now, Ordering::Relaxed);
        self.beat.store(now, Ordering::Relaxed);
        (left, Duration::from_millis(now.saturating_sub(entered)))
    }

    /// What the rank is at.
    pub fn section(&self) -> Section {
        Section::of_number(self.section.load(Ordering::Relaxed))
    }

    /// How long it has been at that.
    pub fn in_section(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.entered.load(Ordering::Relaxed)))
    }

    /// How long ago the last sign of life was.
    pub fn silence(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.beat.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_says_what_a_rank_is_at_and_since_when() {
        let pulse = Pulse::default();
        assert_eq!(pulse.section(), Section::Setup);
        std::thread::sleep(Duration::from_millis(30));
        assert!(pulse.silence() >= Duration::from_millis(29));
        let (left, took) = pulse.enter(Section::Step);
        assert!(left == Section::Setup && took >= Duration::from_millis(29));
        assert!(pulse.section() == Section::Step && pulse.silence() < Duration::from_millis(29));
        std::thread::sleep(Duration::from_millis(30));
        pulse.beat();
        assert!(pulse.in_section() >= Duration::from_millis(29) && pulse.silence() < Duration::from_millis(29));
        for section in Section::TIMED.into_iter().chain([Section::Ended]) {
            pulse.enter(section);
            assert_eq!(pulse.section(), section);
        }
    }
}
