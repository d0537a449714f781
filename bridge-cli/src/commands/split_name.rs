//! A split's name on the command line.

use bridge_data::gpt::Split;
use clap::ValueEnum;

/// A split of a recipe's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SplitName {
    /// The training split.
    Train,
    /// The validation split.
    Valid,
    /// The test split.
    Test,
}

impl From<SplitName> for Split {
    fn from(name: SplitName) -> Self {
        match name {
            SplitName::Train => Self::Train,
            SplitName::Valid => Self::Valid,
            SplitName::Test => Self::Test,
        }
    }
}
