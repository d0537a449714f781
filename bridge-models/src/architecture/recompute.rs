//! Parts of a segment that run again in backward, as a recipe names them.

use bridge_core::config::{RecomputeGranularity, TransformerConfig};

/// Names of `model.recompute_modules`.
const MOE_ACT: &str = "moe_act";
const SHARED_EXPERTS: &str = "shared_experts";
const MLA_UP_PROJ: &str = "mla_up_proj";

/// The parts of segments that are recomputed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecomputedParts {
    /// Outputs of the activation of routed experts.
    pub moe_act: bool,
    /// Shared experts.
    pub shared_experts: bool,
    /// Tensors that latent attention derives from its latent vectors: queries, keys, values, and
    /// attention over them.
    pub mla_up_proj: bool,
}

impl RecomputedParts {
    /// Parts that a section names.
    pub fn read(section: &TransformerConfig) -> Self {
        let is_selective = section.recompute_granularity == Some(RecomputeGranularity::Selective);
        let modules = section.recompute_modules.as_deref().filter(|_| is_selective).unwrap_or_default();
        let has = |name: &str| modules.iter().any(|module| module == name);
        Self { moe_act: has(MOE_ACT), shared_experts: has(SHARED_EXPERTS), mla_up_proj: has(MLA_UP_PROJ) }
    }

    /// Sets a section to name them, if there are any.
    pub fn write(self, section: &mut TransformerConfig) {
        let all = [(self.moe_act, MOE_ACT), (self.shared_experts, SHARED_EXPERTS), (self.mla_up_proj, MLA_UP_PROJ)];
        let names: Vec<String> =
            all.into_iter().filter(|(is_named, _)| *is_named).map(|(_, name)| name.into()).collect();
        if !names.is_empty() {
            section.recompute_granularity = Some(RecomputeGranularity::Selective);
            section.recompute_modules = Some(names);
        }
    }
}
