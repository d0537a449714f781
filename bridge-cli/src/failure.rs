//! Failure of a command: exit code 2 for bad input or configuration, 128 + n if signal n ended it,
//! 1 for everything else.

use std::fmt::Display;
use std::path::Path;

use bridge_core::config::ConfigErrors;
use bridge_core::logging::terminal::complain;
use bridge_core::train::{Classified, ErrorClass, TrainError};
use serde_json::{Value, json};

use crate::output::line;
use crate::speech::ErrorForm;

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

    /// A command that needs a cargo feature of `bridge-cli` which this build does not have.
    #[cfg(not(all(feature = "trackers", feature = "ui")))]
    pub fn without_feature(command: &str, feature: &str) -> Self {
        Self::input(format!(
            "{command}: this program was built without the `{feature}` feature; build with `--features bridge-cli/{feature}`"
        ))
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

    /// The failure with its subject before the message, where a command has several subjects.
    pub fn about(self, subject: impl Display) -> Self {
        match self {
            Self::Input(message) => Self::Input(format!("{subject}: {message}")),
            Self::Run(message) => Self::Run(format!("{subject}: {message}")),
            Self::Config(_) | Self::Stopped(..) => self,
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

    /// Message of the failure.
    pub fn text(&self) -> String {
        match self {
            Self::Config(errors) => errors.to_string(),
            Self::Input(message) | Self::Run(message) | Self::Stopped(message, _) => message.clone(),
        }
    }

    /// Prints it.
    pub fn print(&self, form: ErrorForm) {
        match self {
            _ if form == ErrorForm::Json => line(&self.to_json().to_string()),
            Self::Config(errors) => complain(&errors.to_string()),
            Self::Input(message) | Self::Run(message) => complain(&format!("error: {message}")),
            Self::Stopped(message, _) => complain(message),
        }
    }
}

impl Failure {
    /// `ok`, the exit code, and a list of errors, each with the same keys: `key`, `message`,
    /// `found`, `expected`, `hint`, `file`, `line`.
    fn to_json(&self) -> Value {
        let errors = match self {
            Self::Config(errors) => errors.to_json(),
            Self::Input(message) | Self::Run(message) | Self::Stopped(message, _) => json!([of_message(message)]),
        };
        json!({ "ok": false, "exit_code": self.exit_code(), "errors": errors })
    }
}

/// The error of a message, which begins with the option or file that it is about, if it is about
/// one. A key of the file may follow.
fn of_message(message: &str) -> Value {
    let (subject, rest) = message.split_once(": ").unwrap_or_default();
    let option = subject.starts_with("--").then_some(subject);
    let file = Some(subject).filter(|subject| option.is_none() && Path::new(subject).components().count() > 1);
    let file = file.or_else(|| Some(subject).filter(|subject| !subject.is_empty() && Path::new(subject).exists()));
    let of_key = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c));
    let key = rest.split_once(": ").filter(|(key, rest)| of_key(key) && rest.starts_with("expected "));
    let key = option.or(key.filter(|_| file.is_some()).map(|(key, _)| key));
    json!({ "key": key, "message": message, "found": null, "expected": null, "hint": null, "file": file, "line": null })
}

impl<E: Into<TrainError>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        match (&error, error.class()) {
            (_, ErrorClass::Config(errors)) => Self::Config(errors.clone()),
            (TrainError::Stopped(reason), _) => {
                Self::Stopped(error.to_string(), u8::try_from(reason.exit_code()).unwrap_or(1))
            }
            _ if error.is_bad_input() => Self::Input(error.to_string()),
            _ => Self::Run(error.to_string()),
        }
    }
}
