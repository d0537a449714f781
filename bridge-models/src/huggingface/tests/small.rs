//! Code that the tests of several families share: small `config.json`s.

use serde_json::{Map, Value, json};

use crate::decoder::DecoderConfig;
use crate::huggingface::fields::Fields;
use crate::huggingface::{Family, HfError};

/// The decoder of a small `config.json` of `family`: four layers of width 24, six heads in three
/// groups.
pub(crate) fn parse(family: &Family, more: Value) -> Result<DecoderConfig, HfError> {
    let sizes = json!({
        "vocab_size": 50, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 4, "num_attention_heads": 6,
        "num_key_value_heads": 3,
    });
    let tables = [sizes, more].map(|table| table.as_object().unwrap().clone());
    let settings: Map<String, Value> = tables.into_iter().flatten().collect();
    family.decoder_config(&Fields::new(&settings))
}

/// [`parse`] with a check that the decoder's own `config.json` has the same meaning.
pub(crate) fn read_back(family: &Family, more: Value) -> DecoderConfig {
    let config = parse(family, more).unwrap();
    let settings = family.settings(&config).unwrap();
    assert_eq!(family.decoder_config(&Fields::new(&settings)).unwrap(), config);
    config
}

/// The key that an error is about.
pub(crate) fn wrong_key(family: &Family, more: Value) -> String {
    match parse(family, more) {
        Err(HfError::Setting { key, .. }) => key,
        other => panic!("{other:?}"),
    }
}
