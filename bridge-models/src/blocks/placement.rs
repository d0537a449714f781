//! Which slice of each parameter a rank holds: one table, read when initial values are cut and when checkpoints are.

use std::ops::Range;

use bridge_core::model::{ModelBuildError, Parallel, Placement, ReplicaGroup, Shard, SharedRows};

use crate::models::decoder::config::{DecoderConfig, MoeConfig};
use crate::models::decoder::validate::invalid;

/// Experts of a layer, and widths of what a layer with experts has.
#[derive(Clone, Copy, Debug, Default)]
struct ExpertSizes {
    num_experts: usize,
    ffn_hidden_size: usize,
    shared_size: usize,
}

/// How the parameters of a decoder lie among the ranks.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    rank: usize,
    ranks: usize,
    expert_rank: usize,
    expert_ranks: usize,
    expert_tensor_rank: usize,
    expert_tensor_ranks: usize,
    sequence_parallel: bool,
    qkv_size: usize,
    query_groups: usize,
    head_size: usize,
    heads_size: usize,
    ffn_hidden_size: usize,
    fc1_blocks: usize,
    padded_vocab_size: usize,
    experts: ExpertSizes,
}

impl Layout {
    pub fn new(config: &DecoderConfig, parallel: &Parallel) -> Self {
        let experts = config.moe.as_ref().map(|moe| ExpertSizes {
            num_experts: moe.num_experts,
            ffn_hidden_size: moe.ffn_hidden_size,
            shared_size: moe.shared_expert_intermediate_size.unwrap_or(0),
        });
        Self {
            rank: parallel.tensor_rank(),
            ranks: parallel.tensor_size(),
            expert_rank: parallel.groups.expert().rank(),
            expert_ranks: parallel.groups.expert().size(),
            expert_tensor_rank: parallel.groups.expert_tensor().rank(),
            expert_tensor_ranks: parallel.groups.expert_tensor().size(),
            sequence_parallel: parallel.sequence_parallel,
            qkv_size: config.qkv_size(),
            query_groups: config.num_query_groups,
            head_size: config.kv_channels,
            heads_size: config.num_attention_heads * config.kv_channels,
            ffn_hidden_size: config.ffn_hidden_size,
            fc1_blocks: config.fc1_blocks(),
            padded_vocab_size: config.padded_vocab_size,
            experts: experts.unwrap_or_default(),
        }
    }

    /// Ranks of the tensor-parallel group.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Global numbers of the experts of this rank, of `num_experts`.
    pub fn local_experts(&self, num_experts: usize) -> Range<usize> {
        let each = num_experts / self.expert_ranks;
        self.expert_rank * each..(self.expert_rank + 1) * each
    }

    /// The name inside a layer of the parameter at the field path `path`: a block with experts is called as one without, and numbers of
    /// experts are global.
    pub fn name_in_layer(&self, path: &str) -> String {
        const EXPERTS: &str = "experts.local_experts.";
        let Some(path) = path.strip_prefix("moe.") else {
            return path.to_owned();
        };
        match path.strip_prefix(EXPERTS).and_then(|rest| rest.split_once('.')) {
            Some((local, rest)) => {
                let local: usize = local.parse().expect("children of a Vec are numbered");
                format!("mlp.{EXPERTS}{}.{rest}", self.local_experts(self.experts.num_experts).start + local)
            }
            None => format!("mlp.{path}"),
        }
    }

    /// Where the parameter called `name` lies.
    pub fn placement(&self, name: &str) -> Placement {
        let is_expert = name.contains(".experts.");
        let (replicas, rank, ranks) = match is_expert {
            true => (ReplicaGroup::Expert, self.expert_tensor_rank, self.expert_tensor_ranks),
            false => (ReplicaGroup::Dense, self.rank, self.ranks),
        };
        if ranks == 1 {
            return Placement { replicas, ..Placement::default() };
        }
        let ffn = match (is_expert, name.contains(".shared_experts.")) {
            (true, _) => self.experts.ffn_hidden_size,
            (_, true) => self.experts.shared_size,
            (false, false) => self.ffn_hidden_size,
        };
        let even = |dim, size, blocks| Some(Shard::even(dim, size, blocks, rank, ranks));
        let mut path = name.rsplit('.');
        let (kind, module) = (path.next().unwrap_or_default(), path.next().unwrap_or_default());
        let shared = if module == "linear_qkv" { self.shared_heads() } else { None };
        let shard = match (module, kind) {
            ("linear_qkv", _) => {
                shared.map_or_else(|| even(0, self.qkv_size, 1), |rows| Some(self.part_of_group(rows)))
            }
            ("linear_proj", "weight") => even(1, self.heads_size, 1),
            ("linear_fc1", _) => even(0, self.fc1_blocks * ffn, self.fc1_blocks),
            ("linear_fc2", "weight") => even(1, ffn, 1),
            // Padding must not depend on the ranks, or a checkpoint would: rows need not divide.
            ("word_embeddings" | "output_layer", _) => Some(Shard::balanced(0, self.padded_vocab_size, rank, ranks)),
            _ => None,
        };
        // Norms of query and key see only this rank's heads; everything else that is whole sees all tokens, or with
        // sequence parallelism this rank's.
        let sees_part = self.sequence_parallel || matches!(module, "q_layernorm" | "k_layernorm");
        Placement { partial_gradient: shard.is_none() && sees_part, shard, replicas, shared }
    }

    /// The key and the value head that this rank holds with others, where there are more ranks than such heads.
    fn shared_heads(&self) -> Option<SharedRows> {
        let ranks = self.ranks / self.query_groups;
        (ranks > 1).then(|| SharedRows { count: 2 * self.head_size, ranks, rank: self.rank % ranks })
    }

    /// Of the rows of one group (its query heads, then key and value) this rank's part of the first, and `rows` of the others.
    fn part_of_group(&self, rows: SharedRows) -> Shard {
        let of_group = self.qkv_size / self.query_groups;
        let start = self.rank / rows.ranks * of_group;
        let queries = of_group - rows.count;
        let part = queries / rows.ranks;
        let first = start + rows.rank * part;
        Shard { dim: 0, size: self.qkv_size, parts: vec![first..first + part, start + queries..start + of_group] }
    }
}

/// The rows of a vocabulary of `size` that rank `rank` of `ranks` tensor-parallel ones holds.
pub(crate) fn vocabulary_rows(size: usize, rank: usize, ranks: usize) -> Range<usize> {
    Shard::balanced(0, size, rank, ranks).parts[0].clone()
}

/// Refuses sizes that do not divide over the ranks.
pub(crate) fn check_divides(config: &DecoderConfig, parallel: &Parallel) -> Result<(), ModelBuildError> {
    let ranks = parallel.tensor_size();
    let mut sizes = vec![
        ("model.num_attention_heads", config.num_attention_heads),
        ("model.ffn_hidden_size", config.ffn_hidden_size),
    ];
    if let Some(moe) = &config.moe {
        sizes.extend(
            moe.shared_expert_intermediate_size.map(|size| ("model.moe_shared_expert_intermediate_size", size)),
        );
        check_experts(config, moe, parallel)?;
    }
    if config.padded_vocab_size < ranks {
        let message = format!("expected a row for each of {ranks} ranks, found {}", config.padded_vocab_size);
        return Err(invalid("padded vocabulary size", message));
    }
    if let Some((key, size)) = sizes.into_iter().find(|(_, size)| !size.is_multiple_of(ranks)) {
        let message = format!("expected a multiple of model.tensor_model_parallel_size = {ranks}, found {size}");
        return Err(invalid(key, message));
    }
    let groups = config.num_query_groups;
    if groups.is_multiple_of(ranks) || ranks.is_multiple_of(groups) {
        return Ok(());
    }
    let message =
        format!("expected a multiple or a divisor of model.tensor_model_parallel_size = {ranks}, found {groups}");
    Err(invalid("model.num_query_groups", message))
}

fn check_experts(config: &DecoderConfig, moe: &MoeConfig, parallel: &Parallel) -> Result<(), ModelBuildError> {
    let groups = &parallel.groups;
    let (tensor, expert, expert_tensor) =
        (parallel.tensor_size(), groups.expert().size(), groups.expert_tensor().size());
    for (key, size, ranks_key, ranks) in [
        ("model.num_moe_experts", moe.num_experts, "model.expert_model_parallel_size", expert),
        ("model.moe_ffn_hidden_size", moe.ffn_hidden_size, "model.expert_tensor_parallel_size", expert_tensor),
    ] {
        if !size.is_multiple_of(ranks) {
            return Err(invalid(key, format!("expected a multiple of {ranks_key} = {ranks}, found {size}")));
        }
    }
    if expert_tensor != tensor && tensor > 1 && !parallel.sequence_parallel {
        let message = format!(
            "expected model.tensor_model_parallel_size = {tensor}, found {expert_tensor}: experts that are cut over other ranks than the rest \
             need model.sequence_parallel, which gives each rank tokens of its own"
        );
        return Err(invalid("model.expert_tensor_parallel_size", message));
    }
    let shared = tensor.max(expert_tensor);
    if config.mlp_bias && shared > 1 {
        let message = format!("expected false: experts with biases cannot be cut over {shared} ranks");
        return Err(invalid("model.add_bias_linear", message));
    }
    Ok(())
}
