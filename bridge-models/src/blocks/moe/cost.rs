//! Cost of a mixture of experts, if the router sends every expert the same number of tokens.

use bridge_core::model::{Exchange, PassKind, SegmentCost, TrafficKind, Workload};
use bridge_dist::comm::Operation::{AllGather, AllReduce, AllToAll, ReduceScatter};
use bridge_dist::mesh::GroupKind;
use bridge_kernels::offload::Module;

use crate::architecture::config::{DecoderConfig, MoeConfig};
use crate::blocks::linear::flops;
use crate::blocks::mlp::{block_flops, block_operands, inner_bytes, kept_inner_bytes, unit_bytes};
use crate::blocks::norm::statistics;
use crate::blocks::regions::{enter_exchanges, exchange, leave_exchanges};
use bridge_core::config::TokenDispatcher;

const FLOAT32: u64 = 4;
const FLOAT64: u64 = 8;
const INT64: u64 = 8;

/// Cost of the block.
pub(super) fn cost(config: &DecoderConfig, moe: &MoeConfig, work: &Workload) -> SegmentCost {
    let (c, a) = (config.hidden_size as u64, work.activation_bytes);
    // Elements of a token between the residual stream and the experts.
    let w = moe.expert_width(config) as u64;
    let expert_ranks = work.place.expert_tensor.size as u64;
    let local = work.tokens_between_blocks();
    let (topk, active) = (moe.topk as u64, active_experts(moe));
    let routed = (local as f64 * active) as u64;
    // The normalized tokens, router logits and probabilities.
    let (of_router, weighted) = (2 * local * moe.num_choices() as u64 * FLOAT32, local * topk * w * a);
    let mut kept = local * c * a + of_router;
    if moe.scaled_router {
        kept += local * c * a + statistics(config.norm, local).kept;
    }
    // Rows that arrive at the experts of this rank, and results that return to be weighted.
    let arriving = routed * expert_ranks * w * a;
    kept += work.input_alone(routed * expert_ranks * w) + weighted;
    let latent = moe.latent_size.map_or(0, |latent| latent as u64);
    // Inputs of the projections around the experts: the stream, which is counted already, and the
    // outputs of experts.
    kept += work.input_alone(local * latent) + if latent > 0 { work.input_besides(local * c) } else { 0 };
    let width = moe.ffn_hidden_size / work.place.expert_tensor.size;
    let hidden = inner_bytes(config, routed * expert_ranks, width, work);
    // A grouped operation over all experts recomputes the units' outputs, and so do separate
    // experts with `moe_act` recompute.
    let unit = unit_bytes(routed * expert_ranks, width, work);
    // Products of 8 bits are made expert by expert.
    let is_grouped = moe.grouped_gemm && work.eight_bits.is_none();
    let recomputed = if config.recomputed.moe_act || is_grouped { unit } else { 0 };
    kept += match recomputed {
        0 => kept_inner_bytes(config, routed * expert_ranks, width, work),
        recomputed => hidden - recomputed,
    };
    // The operation over all experts holds them already where backward counts them.
    let brought_back_by_parts = if is_grouped { 0 } else { recomputed };
    let each = (routed * expert_ranks).div_ceil((moe.num_experts / work.place.expert.size).max(1) as u64);
    let in_hand = block_operands(config, each, [w as usize, width], work);
    let (mut backward, mut brought_back, mut recomputed_flops) = (hidden + in_hand, brought_back_by_parts, 0.0);
    let shared = moe.shared_expert_intermediate_size.unwrap_or(0);
    if shared > 0 {
        let (rows, width) = (work.tokens(), shared / work.place.tensor.size);
        let hidden = inner_bytes(config, rows, width, work);
        kept += if work.place.sequence_parallel { work.input_alone(rows * c) } else { work.input_besides(rows * c) };
        backward = backward.max(hidden + block_operands(config, rows, [config.hidden_size, width], work));
        if config.recomputed.shared_experts {
            brought_back = brought_back.max(hidden);
            recomputed_flops = block_flops(config, work.all_tokens(), shared) / 3.0;
        } else {
            kept += kept_inner_bytes(config, rows, width, work);
        }
    }
    SegmentCost {
        flops: experts_flops(config, moe, work) + block_flops(config, work.all_tokens(), shared),
        kept,
        modules: vec![(Module::ExpertFc1.name(), arriving), (Module::MoeAct.name(), hidden - unit)],
        unmoved: of_router + weighted,
        backward: backward + routed * expert_ranks * w * a,
        brought_back,
        recomputed_flops,
        idle_parameters: (expert_parameters(config, moe) as f64 * (moe.num_experts as f64 - active)) as u64
            + identity_parameters(config, moe),
        exchanges: exchanges(config, moe, work),
        ..SegmentCost::default()
    }
}

/// Experts of a token that are not the identity, if all are chosen alike.
fn active_experts(moe: &MoeConfig) -> f64 {
    (moe.topk * moe.num_experts) as f64 / moe.num_choices() as f64
}

/// FLOPs of the experts, and of the layers around them.
fn experts_flops(config: &DecoderConfig, moe: &MoeConfig, work: &Workload) -> f64 {
    let (tokens, width) = (work.all_tokens(), moe.expert_width(config));
    let around = moe.latent_size.map_or(0.0, |latent| flops(tokens, config.hidden_size, 2 * latent));
    around + flops(tokens * active_experts(moe), width, (config.fc1_blocks() + 1) * moe.ffn_hidden_size)
}

/// Elements of the matrices of identity experts.
fn identity_parameters(config: &DecoderConfig, moe: &MoeConfig) -> u64 {
    let one = config.fc1_blocks() * moe.ffn_hidden_size * config.hidden_size;
    if moe.identity_weights { (one * moe.num_identity_experts) as u64 } else { 0 }
}

/// Elements of one expert.
fn expert_parameters(config: &DecoderConfig, moe: &MoeConfig) -> u64 {
    let (c, f, first) = (moe.expert_width(config), moe.ffn_hidden_size, config.fc1_blocks() * moe.ffn_hidden_size);
    let biases = if moe.linear_bias { first + c } else { 0 };
    (first * c + c * f + biases) as u64
}

/// If experts are sharded over the same ranks as the rest, tokens enter one tensor-parallel region
/// that spans router, experts and shared experts. If not, each rank routes the tokens of its
/// residual stream, and the ranks of an expert exchange theirs.
fn exchanges(config: &DecoderConfig, moe: &MoeConfig, work: &Workload) -> Vec<Exchange> {
    let row = config.hidden_size as u64 * work.collective_bytes;
    let routed_row = moe.expert_width(config) as u64 * work.collective_bytes;
    // With layers around the experts these are in a region of their own.
    let shares_region = moe.latent_size.is_none();
    // Tokens by score, probabilities and tokens of each expert, and the sum of squared
    // log-partitions.
    let statistics = (3 * moe.num_choices() as u64 + 1) * FLOAT64;
    let told = |group| exchange(TrafficKind::Expert, group, AllReduce, PassKind::Forward, 1, statistics);
    let mut all = vec![told(GroupKind::Context)];
    if work.place.expert_tensor.size == work.place.tensor.size {
        all.extend(enter_exchanges(moe.num_choices() as u64 * FLOAT32, work));
        all.extend(enter_exchanges(routed_row, work));
        all.extend(dispatch(moe, work.tokens(), routed_row, work));
        all.extend(leave_exchanges(routed_row, work));
        if moe.shared_expert_intermediate_size.is_some() && !shares_region {
            all.extend(enter_exchanges(row, work));
            all.extend(leave_exchanges(row, work));
        }
        return all;
    }
    all.push(told(GroupKind::Tensor));
    let (tokens, ranks) = (work.tokens_between_blocks(), work.place.expert_tensor.size as u64);
    all.extend(share(moe, tokens, routed_row, GroupKind::ExpertTensor, ranks));
    all.extend(dispatch(moe, tokens * ranks, routed_row, work));
    if moe.shared_expert_intermediate_size.is_some() {
        all.extend(enter_exchanges(row, work));
        all.extend(leave_exchanges(row, work));
    }
    all
}

/// `tokens` to their experts and back.
fn dispatch(moe: &MoeConfig, tokens: u64, row: u64, work: &Workload) -> Vec<Exchange> {
    match moe.dispatcher {
        TokenDispatcher::AllGather => share(moe, tokens, row, GroupKind::Expert, work.place.expert.size as u64),
        TokenDispatcher::AllToAll | TokenDispatcher::Flex => {
            let choices = (tokens as f64 * active_experts(moe)) as u64 * row;
            // How many tokens go to each expert; the tokens, to their experts and back, in forward
            // and in backward.
            vec![
                exchange(
                    TrafficKind::Expert,
                    GroupKind::Expert,
                    AllToAll,
                    PassKind::Forward,
                    1,
                    moe.num_experts as u64 * INT64,
                ),
                exchange(TrafficKind::Expert, GroupKind::Expert, AllToAll, PassKind::Forward, 2, choices),
                exchange(TrafficKind::Expert, GroupKind::Expert, AllToAll, PassKind::Backward, 2, choices),
            ]
        }
    }
}

/// Choices, `tokens` and weights of each rank to all of a group; the outputs of each rank's experts
/// are summed.
fn share(moe: &MoeConfig, tokens: u64, row: u64, group: GroupKind, ranks: u64) -> Vec<Exchange> {
    let (choices, rows) = (tokens * moe.topk as u64, tokens * row);
    let of = |operation, pass, bytes| exchange(TrafficKind::Expert, group, operation, pass, 1, bytes);
    vec![
        of(AllGather, PassKind::Forward, choices * INT64),
        of(AllGather, PassKind::Forward, rows),
        of(AllGather, PassKind::Forward, choices * FLOAT32),
        of(ReduceScatter, PassKind::Forward, ranks * rows),
        of(AllGather, PassKind::Backward, rows),
        of(ReduceScatter, PassKind::Backward, ranks * choices * FLOAT32),
        of(ReduceScatter, PassKind::Backward, ranks * rows),
    ]
}
