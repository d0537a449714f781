//! Signs of life of a rank and its progress, which another thread may read while the rank works.
//! Readers decide what follows.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Section of a run that a rank is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Getting ready, up to the first step.
    Setup,
    /// A training step.
    Step,
    /// Saving a checkpoint.
    Checkpointing,
    /// Anything else, as evaluations.
    OutOfSection,
    /// The rank's part of the run is over.
    Ended,
}

impl Section {
    /// Sections with a time limit.
    pub const TIMED: [Self; 4] = [Self::Setup, Self::Step, Self::Checkpointing, Self::OutOfSection];

    /// Name in settings and files.
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

/// The heartbeat of one rank.
#[derive(Debug)]
pub struct Heartbeat {
    origin: Instant,
    /// Milliseconds from the origin to the last sign of life.
    beat: AtomicU64,
    section: AtomicU8,
    /// Milliseconds from the origin to the beginning of the section.
    entered: AtomicU64,
    /// Milliseconds of the longest section of each kind, in the order of [`Section::TIMED`].
    longest: [AtomicU64; 4],
    /// True if the first step, which takes longer than others, is over.
    is_warm: AtomicBool,
    /// Milliseconds of the last step; 0 before the first one is over.
    last_step: AtomicU64,
    /// Steps that are done.
    done: AtomicU64,
    /// Step of the newest complete checkpoint, also one that the run began with; 0 without one.
    saved: AtomicU64,
}

impl Default for Heartbeat {
    /// Heartbeat of a rank that starts.
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            origin: Instant::now(),
            beat: zero(),
            section: AtomicU8::new(0),
            entered: zero(),
            longest: std::array::from_fn(|_| zero()),
            is_warm: AtomicBool::new(false),
            last_step: zero(),
            done: zero(),
            saved: zero(),
        }
    }
}

impl Heartbeat {
    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Records a sign of life.
    pub fn beat(&self) {
        self.beat.store(self.now(), Ordering::Relaxed);
    }

    /// Records that the rank begins a section.
    pub fn enter(&self, section: Section) {
        let now = self.now();
        let left = Section::of_number(self.section.swap(section as u8, Ordering::Relaxed));
        let entered = self.entered.swap(now, Ordering::Relaxed);
        self.beat.store(now, Ordering::Relaxed);
        if left == Section::Step {
            self.last_step.store(now.saturating_sub(entered).max(1), Ordering::Relaxed);
        }
        let counts = left != Section::Step || self.is_warm.swap(true, Ordering::Relaxed);
        if let Some(longest) = self.longest.get(left as usize).filter(|_| counts) {
            longest.fetch_max(now.saturating_sub(entered), Ordering::Relaxed);
        }
    }

    /// The longest time of each kind of section so far, in the order of [`Section::TIMED`]. The
    /// first step does not count.
    pub fn longest(&self) -> [Duration; 4] {
        std::array::from_fn(|place| Duration::from_millis(self.longest[place].load(Ordering::Relaxed)))
    }

    /// Records that `step` steps are done.
    pub fn step_done(&self, step: u64) {
        self.done.store(step, Ordering::SeqCst);
    }

    /// Records that the checkpoint of `step` is complete. Step 0 has no checkpoint.
    pub fn checkpoint_saved(&self, step: u64) {
        self.saved.store(step, Ordering::SeqCst);
    }

    /// Time of the last step; zero before the first one is over.
    pub fn last_step(&self) -> Duration {
        Duration::from_millis(self.last_step.load(Ordering::Relaxed))
    }

    /// Steps that are done.
    pub fn steps_done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Step of the newest complete checkpoint; 0 without one.
    pub fn saved_step(&self) -> u64 {
        self.saved.load(Ordering::SeqCst)
    }

    /// Section that the rank is in.
    pub fn section(&self) -> Section {
        Section::of_number(self.section.load(Ordering::Relaxed))
    }

    /// Time since the rank entered the section.
    pub fn in_section(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.entered.load(Ordering::Relaxed)))
    }

    /// Time since the last sign of life.
    pub fn silence(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.beat.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_has_the_section_and_when_it_began() {
        let heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.section(), Section::Setup);
        std::thread::sleep(Duration::from_millis(30));
        assert!(heartbeat.silence() >= Duration::from_millis(29));
        let since = Instant::now();
        heartbeat.enter(Section::Step);
        assert_eq!(heartbeat.last_step(), Duration::ZERO);
        assert!(heartbeat.longest()[0] >= Duration::from_millis(29));
        assert_eq!(heartbeat.section(), Section::Step);
        let is_fresh = |since: Instant| heartbeat.silence() <= since.elapsed() + Duration::from_millis(1);
        assert!(is_fresh(since));
        std::thread::sleep(Duration::from_millis(30));
        let since = Instant::now();
        heartbeat.beat();
        assert!(heartbeat.in_section() >= Duration::from_millis(29) && is_fresh(since));
        heartbeat.enter(Section::OutOfSection);
        assert_eq!(heartbeat.longest()[1], Duration::ZERO, "the first step does not count");
        assert!(heartbeat.last_step() >= Duration::from_millis(29));
        for section in Section::TIMED.into_iter().chain([Section::Ended]) {
            heartbeat.enter(section);
            assert_eq!(heartbeat.section(), section);
        }
    }
}
