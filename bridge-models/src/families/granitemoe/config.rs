//! Settings of Granite with experts; absent ones have the values of `GraniteMoeConfig`.

use crate::families::granite::config::WITHOUT_MLP_BIAS;
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(WITHOUT_MLP_BIAS),
    Setting::Always(|c| {
        let size = c.ffn_hidden_size;
        experts(c).ffn_hidden_size = size;
    }),
    size_or("num_local_experts", |c| &mut experts(c).num_experts, |_, _| Ok(8)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(2)),
];
