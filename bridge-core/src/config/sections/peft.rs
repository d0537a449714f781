//! `[peft]`: names, defaults, ranges.

use std::collections::BTreeMap;

use super::super::choice::{AdapterInit, DType, DropoutPosition, PeftKind};
use super::super::limits::Limits;
use super::super::section::section;

section! {
    /// Adapters. `alpha` is null in the table so that it can default by kind.
    pub struct PeftConfig {
        /// Adapter method.
        kind: PeftKind = PeftKind::Lora;
        /// Modules to adapt.
        target_modules: Vec<String> = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
            .map(String::from)
            .to_vec();
        /// Modules left out; only without targets.
        exclude_modules: Vec<String> = Vec::new();
        /// Fused-name mapping.
        canonical_mapping: BTreeMap<String, String> = BTreeMap::new();
        /// Rank.
        dim: usize = 32, Limits::SIZE;
        /// Scale numerator; null is 32 for lora and 64 for dora.
        alpha: Option<usize> = None, Limits::SIZE;
        /// Adapter dropout.
        dropout: f64 = 0.0, Limits::BELOW_ONE;
        /// Where dropout acts.
        dropout_position: DropoutPosition = DropoutPosition::Pre;
        /// Initialization of A.
        lora_A_init_method: AdapterInit = AdapterInit::Xavier;
        /// Initialization of B.
        lora_B_init_method: AdapterInit = AdapterInit::Zero;
        /// All-to-all adapter communication.
        a2a_experimental: bool = false;
        /// Adapter dtype.
        lora_dtype: Option<DType> = None;
        /// Expert adapters of rank dim / topk.
        normalize_moe_lora: bool = false;
    }
}
