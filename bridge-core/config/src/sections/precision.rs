//! `[mixed_precision]`: a recipe's name or its settings. The named recipes are in
//! `finalize::presets`.

use super::super::choice::{AmaxAlgo, DType, Fp8Format, Fp8Recipe};
use super::super::field::Field;
use super::super::limits::Limits;
use super::super::node::{Data, Node};
use super::super::reader::Reader;
use super::super::refusal::{no_counterpart, not_built};
use super::super::refused_values::one_or_null;
use super::super::section::{Section, section};
use super::super::spec::TypeSpec;

section! {
    /// A precision recipe; its settings are copied onto model, optimizer and ddp.
    pub struct MixedPrecisionConfig {
        /// Plain 32-bit.
        fp32: bool = false;
        /// 16-bit IEEE compute.
        fp16: bool = false;
        /// bfloat16 compute.
        bf16: bool = false;
        /// Parameter dtype.
        params_dtype: Option<DType> = None;
        /// Inter-stage dtype.
        pipeline_dtype: Option<DType> = None;
        refused autocast_dtype = None::<DType>, "Autocast dtype."
            => no_counterpart("the dtype of PyTorch's autocast").same_as("mixed_precision.params_dtype");
        refused autocast_enabled = false, "Autocast."
            => not_built("PyTorch's autocast, which chooses a dtype for each operation");
        /// Reduce gradients in 32 bits.
        grad_reduce_in_fp32: bool = true;
        /// As `model.fp8`.
        fp8: Option<Fp8Format> = None;
        /// As `model.fp8_recipe`.
        fp8_recipe: Option<Fp8Recipe> = Some(Fp8Recipe::Tensorwise)
            => not_built("scales of fp8 from a factory in code")
                .built(&["tensorwise", "delayed", "mxfp8", "blockwise"]).inert(&["null"]);
        /// As `model.first_last_layers_bf16`.
        first_last_layers_bf16: bool = false;
        /// As `model.num_layers_at_start_in_bf16`.
        num_layers_at_start_in_bf16: usize = 0, Limits::between(0.0, 65_536.0);
        /// As `model.num_layers_at_end_in_bf16`.
        num_layers_at_end_in_bf16: usize = 0, Limits::between(0.0, 65_536.0);
        /// As `model.fp8_margin`.
        fp8_margin: i64 = 0, Limits::between(-64.0, 64.0);
        /// As `model.fp8_amax_history_len`.
        fp8_amax_history_len: usize = 1, Limits::between(1.0, 65_536.0);
        /// As `model.fp8_amax_compute_algo`.
        fp8_amax_compute_algo: AmaxAlgo = AmaxAlgo::MostRecent;
        /// As `model.fp8_wgrad`.
        fp8_wgrad: bool = true;
        refused fp8_dot_product_attention = false, "8-bit dot-product attention."
            => not_built("attention scores and their product with values in the 8 bits of fp8");
        refused fp8_multi_head_attention = false, "8-bit multi-head attention."
            => not_built("attention with its projections in the 8 bits of fp8");
        refused fp8_param = None::<bool>, "8-bit parameters."
            => not_built("weights kept in the 8 bits of fp8").inert(&["false"]).execution_only();
        /// Gather 8-bit parameters.
        fp8_param_gather: bool = false;
        refused fp4 = one_or_null(None, &["e2m1"]), "4-bit format."
            => not_built("4-bit matrix multiplications; numbers have 32 or 16 bits");
        refused fp4_recipe = one_or_null(Some("nvfp4"), &["nvfp4", "custom"]), "4-bit scaling."
            => not_built("how the scales of fp4 are chosen");
        refused reuse_grad_buf_for_mxfp8_param_ag = false, "Share gradient buffers with the mxfp8 gather."
            => not_built("one buffer for gradients and gathered 8-bit weights; there are no 8-bit weights").execution_only();
        /// Constant loss scale.
        loss_scale: Option<f64> = None, Limits::LOSS_SCALE;
        /// First dynamic scale.
        initial_loss_scale: f64 = 4_294_967_296.0, Limits::LOSS_SCALE;
        /// Smallest dynamic scale.
        min_loss_scale: f64 = 1.0, Limits::LOSS_SCALE;
        /// Steps without overflow before the scale grows.
        loss_scale_window: f64 = 1000.0, Limits::POSITIVE;
        /// Overflows tolerated before the scale shrinks.
        hysteresis: usize = 2, Limits::SIZE;
    }
}

/// A precision recipe, by name or by its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum Precision {
    /// The name of a recipe, such as `bf16_mixed`; hyphens count as underscores.
    Named(String),
    /// The settings.
    Custom(MixedPrecisionConfig),
}

impl Field for Precision {
    fn read(node: &Node, reader: &mut Reader<'_>) -> Option<Self> {
        match &node.data {
            Data::String(name) => Some(Self::Named(name.clone())),
            Data::Table(_) => MixedPrecisionConfig::read(node, reader).map(Self::Custom),
            _ => reader.wrong_type(node, &Self::spec()),
        }
    }
    fn write(&self) -> Node {
        match self {
            Self::Named(name) => Node::string(name),
            Self::Custom(config) => config.to_node(),
        }
    }
    fn spec() -> TypeSpec {
        TypeSpec::OneOf(vec![TypeSpec::String, MixedPrecisionConfig::spec()])
    }
}
