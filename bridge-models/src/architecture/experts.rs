//! Consistency of the settings of experts. Each error has the key of the `[model]` section.

use bridge_core::config::RouterScoreFunction;
use bridge_core::model::ModelBuildError;

use super::config::MoeConfig;
use super::limits::{LARGEST_SIZE, invalid, refuse};

impl MoeConfig {
    pub(super) fn validate(&self) -> Result<(), ModelBuildError> {
        let sizes = [
            ("model.num_moe_experts", self.num_experts),
            ("model.moe_ffn_hidden_size", self.ffn_hidden_size),
            ("model.moe_latent_size", self.latent_size.unwrap_or(1)),
            ("model.moe_shared_expert_intermediate_size", self.shared_expert_intermediate_size.unwrap_or(1)),
            ("model.moe_router_topk", self.topk),
        ];
        if let Some((key, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(invalid(key, "expected at least 1, found 0".into()));
        }
        let message = format!("expected at most {LARGEST_SIZE} experts, found {}", self.num_choices());
        refuse(self.num_choices() > LARGEST_SIZE, "model.moe_num_identity_experts", message)?;
        let message = format!("expected at most num_moe_experts ({}), found {}", self.num_choices(), self.topk);
        refuse(self.topk > self.num_choices(), "model.moe_router_topk", message)?;
        let without = [
            ("model.moe_router_num_groups", self.num_groups.is_some()),
            ("model.moe_expert_capacity_factor", self.capacity_factor.is_some()),
            ("model.moe_latent_size", self.latent_size.is_some()),
        ];
        let set = without.into_iter().find(|(_, is_set)| *is_set && self.num_identity_experts > 0);
        if let Some((key, _)) = set {
            return Err(invalid(key, "expected null with moe_num_identity_experts".into()));
        }
        if let Some(groups) = self.num_groups {
            let chosen = self.group_topk.unwrap_or(0);
            let fits = groups > 0 && self.num_experts.is_multiple_of(groups) && (1..=groups).contains(&chosen);
            if !fits || self.topk > chosen * (self.num_experts / groups) {
                let message = format!(
                    "expected equal groups of {} experts of which moe_router_group_topk ({chosen}) have enough for {} experts a token, \
                     found {groups}",
                    self.num_experts, self.topk
                );
                return Err(invalid("model.moe_router_num_groups", message));
            }
            if self.group_score_topk.is_none() && !self.topk.is_multiple_of(chosen) {
                let message = format!(
                    "expected a divisor of moe_router_topk ({}) where moe_router_group_score_topk is not set, found {chosen}",
                    self.topk
                );
                return Err(invalid("model.moe_router_group_topk", message));
            }
        }
        let message = "cannot be combined with biases of experts, which would need the weights too";
        refuse(self.weighted_inputs && self.linear_bias, "model.moe_apply_probs_on_input", message)?;
        if self.hash_layers > 0 && (self.num_experts > 256 || self.sinkhorn || self.num_groups.is_some()) {
            let message = "expected at most 256 experts, which 16 bits count, without groups or Sinkhorn's balancing";
            return Err(invalid("model.moe_num_hash_layers", message.into()));
        }
        if self.score_function == RouterScoreFunction::SparseMixer {
            let excluded = [
                ("model.moe_router_pre_softmax", self.pre_softmax),
                ("model.moe_router_num_groups", self.num_groups.is_some()),
                ("model.moe_router_enable_expert_bias", self.expert_bias),
            ];
            if let Some((key, _)) = excluded.into_iter().find(|(_, is_set)| *is_set) {
                let message = "cannot be combined with moe_router_score_function = \"sparsemixer\"";
                return Err(invalid(key, message.into()));
            }
        }
        let factors = [
            ("model.moe_output_multiplier", self.output_multiplier),
            ("model.moe_router_sum_epsilon", self.sum_epsilon),
            ("model.moe_router_sparsemixer_jitter", self.sparsemixer_jitter),
            ("model.moe_aux_loss_coeff", self.aux_loss_coeff),
            ("model.moe_aux_loss_coeff", self.seq_aux_loss_coeff),
            ("model.moe_aux_loss_coeff", self.global_aux_loss_coeff),
            ("model.moe_input_jitter_eps", self.input_jitter),
            ("model.moe_expert_capacity_factor", self.capacity_factor.unwrap_or(1.0)),
            ("model.moe_z_loss_coeff", self.z_loss_coeff),
            ("model.moe_router_topk_scaling_factor", self.topk_scaling_factor.unwrap_or(1.0)),
        ];
        match factors.into_iter().find(|(_, factor)| !(*factor >= 0.0 && factor.is_finite())) {
            Some((key, factor)) => Err(invalid(key, format!("expected a number of at least 0, found {factor}"))),
            None => Ok(()),
        }
    }
}
