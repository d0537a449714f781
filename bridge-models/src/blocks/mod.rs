//! Building blocks of layers, for every kind of model.
//!
//! | file | content |
//! | --- | --- |
//! | `embedding`, `attention`, `mlp`, `norm`, `linear`, `residual`, `head` | the maths |
//! | `biased_attention` | attention with relative positions, in both directions, and across sequences |
//! | `key_values` | KV cache |
//! | `mla` | attention by latent vectors |
//! | `moe` | mixture of experts |
//! | `ssm` | Mamba-2's state space block |
//! | `rope` | rotary frequencies and their scaling |
//! | `init` | initial values of parameters |
//! | `recompute` | parts of a segment that run again in backward |
//! | `context_parallel` | attention over sequences that ranks share |
//! | `regions` | borders at which activations are gathered, summed and sharded |
//!
//! Shape legend: `b` batch, `t` sequence, `n` tokens (`b * t`), `c` hidden size, `h` query heads,
//! `g` key/value groups, `d` head size, `f` feed-forward size, `v` vocabulary.

pub(crate) mod attention;
pub(crate) mod biased_attention;
pub(crate) mod context_parallel;
pub(crate) mod embedding;
pub(crate) mod head;
pub(crate) mod init;
pub(crate) mod key_values;
pub(crate) mod linear;
pub(crate) mod mla;
pub(crate) mod mlp;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod recompute;
pub(crate) mod regions;
pub(crate) mod residual;
pub(crate) mod rope;
pub(crate) mod ssm;
