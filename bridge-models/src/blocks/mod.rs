//! Building blocks of layers, for every kind of model.
//!
//! | file | content |
//! | --- | --- |
//! | `embedding`, `attention`, `mlp`, `norm`, `linear`, `residual`, `head` | the maths |
//! | `chunks` | documents of attention inside chunks of positions |
//! | `biased_attention` | attention with relative positions, in both directions, and across sequences |
//! | `gated_delta_net` | linear attention by the gated delta rule |
//! | `key_values`, `recurrent_state` | generation states: KV cache, state of a recurrent block |
//! | `mla` | attention by latent vectors |
//! | `indexer` | choice of the keys that queries attend to |
//! | `output_gate`, `query_scale` | gates on attention's output, factors on queries by position |
//! | `per_layer` | per-layer embeddings, and the branch that they gate |
//! | `moe` | mixture of experts |
//! | `ssm` | the state space blocks of Mamba-2 and of the first Mamba |
//! | `short_conv` | a short convolution between two gates |
//! | `xielu` | activation with trained slopes |
//! | `hyper_connection`, `altup` | several residual streams |
//! | `rope` | rotary frequencies and their scaling |
//! | `init` | initial values of parameters |
//! | `recompute` | parts of a segment that run again in backward |
//! | `context_parallel` | attention over sequences that ranks share |
//! | `regions` | borders at which activations are gathered, summed and sharded |
//!
//! Shape legend: `b` batch, `t` sequence, `n` tokens (`b * t`), `c` hidden size, `h` query heads,
//! `g` key/value groups, `d` head size, `f` feed-forward size, `v` vocabulary.

pub(crate) mod altup;
pub(crate) mod attention;
pub(crate) mod biased_attention;
mod chunks;
pub(crate) mod compressed_attention;
pub(crate) mod context_parallel;
pub(crate) mod embedding;
pub(crate) mod gated_delta_net;
pub(crate) mod head;
pub(crate) mod hyper_connection;
pub(crate) mod indexer;
pub(crate) mod init;
pub(crate) mod key_values;
pub(crate) mod linear;
pub(crate) mod mla;
pub(crate) mod mlp;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod output_gate;
pub(crate) mod per_layer;
pub(crate) mod query_scale;
pub(crate) mod recompute;
pub(crate) mod recurrent_state;
pub(crate) mod regions;
pub(crate) mod residual;
pub(crate) mod rope;
pub(crate) mod short_conv;
pub(crate) mod ssm;
pub(crate) mod xielu;
