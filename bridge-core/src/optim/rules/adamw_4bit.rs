//! AdamW with moments in 4 bits by blocks (Li, Chen and Zhu 2023, arXiv:2309.01507): dynamic codes
//! of the first, linear codes without zero of the second.

use bridge_kernels::optim::{BlockCode, Format};

use crate::config::optimizer_rules;

use super::adamw;
use super::rule::{Rule, State};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::ADAMW_4BIT,
    states: &[
        State { format: Some(|_| Format::Blocks(BlockCode::Signed4)), ..State::zeros("exp_avg") },
        State { format: Some(|_| Format::Blocks(BlockCode::Unsigned4)), ..State::zeros("exp_avg_sq") },
    ],
    ..adamw::RULE
};
