//! The arguments of `bridge init`. `ask` has the questions to the user for missing ones.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::model::Size;

/// The text and the model.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Text to train on: files or folders with text, JSON Lines, or Megatron's token files.
    pub data: Vec<PathBuf>,
    /// Kind of the data; detected by default.
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,
    /// Continue to train the model of this Hugging Face folder.
    #[arg(long, value_name = "FOLDER", conflicts_with = "size")]
    pub model: Option<PathBuf>,
    /// Train a new model of this size: nano, tiny, small, medium, 135m, 350m, 1b. By default, what
    /// this machine trains in the given time.
    #[arg(long, value_parser = Size::named)]
    pub size: Option<Size>,
    /// Time for training with its evaluations on this machine, such as 30m, 1h or 2d; an hour by
    /// default, if no size is given.
    #[arg(long, value_parser = seconds)]
    pub time: Option<f64>,
    /// Name of the run and of its folders; that of the data by default.
    #[arg(long)]
    pub name: Option<String>,
    /// The recipe to write; the name with `.toml` by default.
    #[arg(long, short)]
    pub output: Option<PathBuf>,
    /// Compute device.
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Replace a recipe that exists, and use the folders of a run that exists.
    #[arg(long)]
    pub force: bool,
}

/// Kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Documents.
    Text,
    /// Conversations.
    Chat,
}

/// A length of time as people write it.
pub fn seconds(text: &str) -> Result<f64, String> {
    let units = [('s', 1.0), ('m', 60.0), ('h', 3600.0), ('d', 86400.0)];
    let unit = units.into_iter().find(|(unit, _)| text.ends_with(*unit));
    let value = unit.and_then(|(unit, length)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * length));
    let value = value.filter(|value| (10.0..=3.2e7).contains(value));
    value.ok_or_else(|| "expected a length of time from 10s to 370d, such as 30m or 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read() {
        assert_eq!([seconds("30m"), seconds("1.5h"), seconds("45s")], [Ok(1800.0), Ok(5400.0), Ok(45.0)]);
        assert!(["", "h", "1", "-1h", "nans", "1e9d", "5s"].iter().all(|text| seconds(text).is_err()));
    }
}
