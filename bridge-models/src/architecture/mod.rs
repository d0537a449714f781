//! Architecture of a model as plain data, below the blocks that are built from it.
//!
//! | file | content |
//! | --- | --- |
//! | `config` | [`DecoderConfig`](config::DecoderConfig): the resolved architecture, a row a setting |
//! | `choices` | values that its fields choose from |
//! | `section`, `moe_codecs` | the same from and to the `[model]` section of a recipe |
//! | `derived` | sizes and factors that follow from its fields |
//! | `difference` | the first field in which two decoders differ |
//! | `hybrid` | models whose layers have one block each, such as Mamba-2 hybrids |
//! | `linear_attention` | layers with linear attention |
//! | `recompute` | parts of a segment that run again in backward |
//! | `validate`, `encoder`, `experts`, `limits`, `divisions` | checks that fields fit each other, and the ranks |

pub(crate) mod choices;
pub(crate) mod config;
pub(crate) mod derived;
pub(crate) mod difference;
pub(crate) mod divisions;
pub(crate) mod encoder;
mod experts;
pub(crate) mod hybrid;
pub(crate) mod latent;
pub(crate) mod limits;
mod linear_attention;
pub(crate) mod moe_codecs;
pub(crate) mod recompute;
pub(crate) mod section;
pub(crate) mod validate;
