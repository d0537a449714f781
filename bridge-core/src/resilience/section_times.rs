//! Time limits of a rank's sections: defaults, or learned from the durations of sections
//! (`ft_state.json`), and the messages of a rank to its monitor. Ending a late rank is not part of
//! this file.

use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;
use serde::{Deserialize, Serialize};

use super::Section;

/// The file of learned limits, in the folder of checkpoints.
pub const FT_STATE_FILE: &str = "ft_state.json";

/// Factor between the longest time seen and the limit of a section.
const SAFETY: f64 = 5.0;
/// Learned limits are not below this many seconds: a machine that does other things as well may
/// hold up a rank that long.
const LEAST: f64 = 10.0;

/// Seconds that a rank may be in each section.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SectionLimits {
    /// Time from the start to the first step.
    pub setup: f64,
    /// A step.
    pub step: f64,
    /// A save.
    pub checkpointing: f64,
    /// Anything else.
    pub out_of_section: f64,
}

impl Default for SectionLimits {
    fn default() -> Self {
        Self { setup: 600.0, step: 180.0, checkpointing: 420.0, out_of_section: 300.0 }
    }
}

impl SectionLimits {
    /// Limits that runs which save to `root` have learned; the defaults if they have not.
    ///
    /// # Errors
    /// A file that cannot be read, or has something else.
    pub fn read(root: &Path) -> Result<Self, (PathBuf, String)> {
        let path = root.join(FT_STATE_FILE);
        match untrusted_io::read(&path, untrusted_io::TABLE_BYTES) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err((path, error.to_string())),
            Ok(bytes) => {
                let limits = serde_json::from_slice(&bytes).map_err(|error| error.to_string());
                limits.and_then(Self::checked).map_err(|reason| (path, reason))
            }
        }
    }

    fn checked(self) -> Result<Self, String> {
        let is_time = |seconds: &f64| seconds.is_finite() && *seconds > 0.0;
        match Section::TIMED.map(|section| self.seconds(section).unwrap_or(0.0)).iter().all(is_time) {
            true => Ok(self),
            false => Err("limits are seconds above 0".to_owned()),
        }
    }

    /// Keeps them for later runs.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, root: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::other)?;
        untrusted_io::replace(&root.join(FT_STATE_FILE), &text)
    }

    /// Limits from the longest time in each section, in the order of [`Section::TIMED`]. A section
    /// that was not seen yet keeps its limit.
    #[must_use]
    pub fn learned(self, longest: [f64; 4]) -> Self {
        let limit = |longest: f64, now: f64| if longest > 0.0 { (longest * SAFETY).max(LEAST) } else { now };
        Self {
            setup: limit(longest[0], self.setup),
            step: limit(longest[1], self.step),
            checkpointing: limit(longest[2], self.checkpointing),
            out_of_section: limit(longest[3], self.out_of_section),
        }
    }

    /// Limit of a section in seconds; `None` for a rank that is done.
    pub fn seconds(&self, section: Section) -> Option<f64> {
        match section {
            Section::Setup => Some(self.setup),
            Section::Step => Some(self.step),
            Section::Checkpointing => Some(self.checkpointing),
            Section::OutOfSection => Some(self.out_of_section),
            Section::Ended => None,
        }
    }
}

/// Message of a rank to its monitor, about twice a second: a JSON object a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatMessage {
    /// The rank.
    pub rank: usize,
    /// Process of the rank.
    pub process: u32,
    /// Section that the rank is in.
    pub section: Section,
    /// Seconds that it has been at that.
    pub seconds: f64,
    /// Seconds that it may be; `None` for a rank that is done.
    pub limit: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_learned_and_kept() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(SectionLimits::read(root.path()), Ok(SectionLimits::default()));
        let learned = SectionLimits::default().learned([4.0, 0.1, 0.0, 3.0]);
        let expected = SectionLimits { setup: 20.0, step: 10.0, checkpointing: 420.0, out_of_section: 15.0 };
        assert_eq!(learned, expected);
        learned.write(root.path()).unwrap();
        assert_eq!(SectionLimits::read(root.path()), Ok(learned));
        for bad in ["{}", "[]", "{\"setup\": -1, \"step\": 1, \"checkpointing\": 1, \"out_of_section\": 1}"] {
            std::fs::write(root.path().join(FT_STATE_FILE), bad).unwrap();
            assert!(SectionLimits::read(root.path()).is_err(), "{bad}");
        }
    }
}
