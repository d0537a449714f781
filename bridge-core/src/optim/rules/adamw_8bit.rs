//! AdamW with moments in 8-bit dynamic codes by blocks (Dettmers et al. 2021, arXiv:2110.02861).

use bridge_kernels::optim::{BlockCode, Format};

use crate::config::optimizer_rules;

use super::adamw;
use super::rule::{Rule, State};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::ADAMW_8BIT,
    states: &[
        State { format: Some(|_| Format::Blocks(BlockCode::Signed8)), ..State::zeros("exp_avg") },
        State { format: Some(|_| Format::Blocks(BlockCode::Unsigned8)), ..State::zeros("exp_avg_sq") },
    ],
    ..adamw::RULE
};
