//! A split's name on the command line.

use bridge_data::gpt::Split;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Parser of the name of a split.
pub fn split_parser() -> impl TypedValueParser<Value = Split> {
    let helps = ["The training split", "The validation split", "The test split"];
    let values = Split::ALL.into_iter().zip(helps).map(|(split, help)| PossibleValue::new(split.name()).help(help));
    let named = |name: String| Split::ALL.into_iter().find(|split| split.name() == name).expect("a possible value");
    PossibleValuesParser::new(values).map(named)
}
