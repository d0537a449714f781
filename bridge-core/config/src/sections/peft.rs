//! `[peft]`: names, defaults, ranges.

use std::collections::BTreeMap;

use super::super::choice::{AdapterInit, BaseQuantization, DType, DropoutPosition, PeftKind};
use super::super::limits::Limits;
use super::super::refusal::{no_counterpart, not_built};
use super::super::rule::{excludes, idle_unless, needs};
use super::super::section::section;

/// Condition: the device multiplies with quantized weights.
const ON_CPU: &str = "device = flex | = cpu: only the CPU has products with quantized weights";
const IN_FLOAT32: &str = "model.params_dtype = float32: products with quantized weights are computed in float32 alone";
const PARAMETERS_SHARDED: &str = "ddp.data_parallel_sharding_strategy = optim_grads_params: ranks own runs of \
                                  elements of one dtype, which end inside blocks";

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
        exclude_modules: Vec<String> = Vec::new(),
            excludes("peft.target_modules | peft.canonical_mapping: set peft.target_modules = [] to adapt all other layers");
        /// Fused layers with the parts that have a branch each, as in linear_qkv = "linear_q,
        /// linear_v"; instead of targets.
        canonical_mapping: BTreeMap<String, String> = BTreeMap::new();
        /// Modules of the base that are trained in full, as the embedding and the head; they have
        /// no branches.
        modules_to_save: Vec<String> = Vec::new();
        /// Rank.
        dim: usize = 32, Limits::SIZE;
        /// Scale numerator; null is 32 for lora and 64 for dora.
        alpha: Option<usize> = None, Limits::SIZE;
        /// Adapter dropout.
        @training dropout: f64 = 0.0, Limits::BELOW_ONE;
        /// Place of adapter dropout.
        @training dropout_position: DropoutPosition = DropoutPosition::Pre, excludes("peft.kind = dora"),
            idle_unless("peft.dropout");
        /// Initialization of A.
        @training lora_A_init_method: AdapterInit = AdapterInit::Xavier
            => not_built("a uniform A: upstream does not say from which range; kaiming draws uniformly").built(&["xavier", "normal", "kaiming", "zero"]);
        /// Initialization of B.
        @training lora_B_init_method: AdapterInit = AdapterInit::Zero
            => not_built("a uniform B: upstream does not say from which range; kaiming draws uniformly").built(&["xavier", "normal", "kaiming", "zero"]);
        refused a2a_experimental = false, "All-to-all adapter communication."
            => no_counterpart("another way to exchange what a branch computes; branches need no exchange of their own here");
        refused lora_dtype = None::<DType>, "Adapter dtype."
            => not_built("a dtype of the adapter's own: all parameters of a model have one");
        /// Expert adapters of rank dim / topk.
        normalize_moe_lora: bool = false, excludes("peft.kind = dora");
        /// Storage of the frozen weights of linear layers; norms and the router keep their dtype.
        base_quantization: BaseQuantization = BaseQuantization::None, needs(ON_CPU), needs(IN_FLOAT32),
            excludes(PARAMETERS_SHARDED);
        /// Storage of the frozen word embedding and head.
        base_quantization_embedding: BaseQuantization = BaseQuantization::None, needs(ON_CPU), needs(IN_FLOAT32),
            excludes(PARAMETERS_SHARDED);
        /// Adjacent inputs of a row that share a scale.
        base_quantization_block_size: usize = 64, Limits::between(2.0, 65536.0),
            idle_unless("peft.base_quantization != none | peft.base_quantization_embedding != none");
    }
}

impl PeftConfig {
    /// `alpha`, also where it is not given.
    pub fn scale_numerator(&self) -> usize {
        self.alpha.unwrap_or(match self.kind {
            PeftKind::Lora => 32,
            PeftKind::Dora => 64,
        })
    }
}
