//! How a command fails: exit code 2 for bad input or configuration, 128 + n if signal n ended it, 1 for everything else.

use std::fmt::Display;

use bridge_core::config::ConfigErrors;
use bridge_core::train::TrainError;

/// A failed command.
#[derive(Debug)]
pub enum Failure {
    /// The recipe, with all its problems.
    Config(ConfigErrors),
    /// Bad input from the user.
    Input(String),
    /// Anything else.
    Run(String),
    /// The run was stopped before it had begun, with a message and an exit code.
    Stopped(String, u8),
}

impl Failure {
    /// Bad input.
    pub fn input(message: impl Display) -> Self {
        Self::Input(message.to_string())
    }

    /// A failure that bad input did not cause.
    pub fn run(message: impl Display) -> Self {
        Self::Run(message.to_string())
    }

    /// The failure with the layout that it concerns, if several are compared.
    pub fn in_layout(self, layout: impl Display) -> Self {
        match self {
            Self::Config(errors) => Self::Input(format!("layout {layout}:\n{errors}")),
            Self::Input(message) => Self::Input(format!("layout {layout}: {message}")),
            Self::Run(message) => Self::Run(format!("layout {layout}: {message}")),
            Self::Stopped(message, code) => Self::Stopped(message, code),
        }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Input(_) => 2,
            Self::Run(_) => 1,
            Self::Stopped(_, code) => *code,
        }
    }

    /// Prints to stderr.
    pub fn print(&self) {
        match self {
            Self::Config(errors) => eprintln!("{errors}"),
            Self::Input(message) | Self::Run(message) => eprintln!("error: {message}"),
            Self::Stopped(message, _) => eprintln!("{message}"),
        }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::Config(errors)
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Config(errors) => Self::Config(errors),
            TrainError::Stopped(ref reason) => {
                let code = u8::try_from(reason.exit_code()).unwrap_or(1);
                Self::Stopped(error.to_string(), code)
            }
            error if error.is_bad_input() => Self::Input(error.to_string()),
            error => Self::Run(error.to_string()),
        }
    }
}
