//! `[mixed_precision]`: a recipe's name or its settings. The named recipes are in
//! `finalize::presets`.

use super::super::choice::{AmaxAlgo, DType, Fp4Format, Fp4Recipe, Fp8Format, Fp8Recipe};
use super::super::field::Field;
use super::super::limits::Limits;
use super::super::node::{Data, Node};
use super::super::reader::Reader;
use super::super::refusal::{no_counterpart, not_built};
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
        /// Autocast dtype.
        autocast_dtype: Option<DType> = None => no_counterpart("the dtype of PyTorch's autocast").same_as("mixed_precision.params_dtype");
        /// Autocast.
        autocast_enabled: bool = false
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
        /// 8-bit dot-product attention.
        fp8_dot_product_attention: bool = false
            => not_built("attention scores and their product with values in the 8 bits of fp8");
        /// 8-bit multi-head attention.
        fp8_multi_head_attention: bool = false => not_built("attention with its projections in the 8 bits of fp8");
        /// 8-bit parameters.
        fp8_param: Option<bool> = None => not_built("weights kept in the 8 bits of fp8").inert(&["false"]);
        /// Gather 8-bit parameters.
        fp8_param_gather: bool = false;
        /// 4-bit format.
        fp4: Option<Fp4Format> = None => not_built("4-bit matrix multiplications; numbers have 32 or 16 bits");
        /// 4-bit scaling.
        fp4_recipe: Option<Fp4Recipe> = Some(Fp4Recipe::Nvfp4) => not_built("how the scales of fp4 are chosen");
        /// Share gradient buffers with the mxfp8 gather.
        reuse_grad_buf_for_mxfp8_param_ag: bool = false
            => not_built("one buffer for gradients and gathered 8-bit weights; there are no 8-bit weights");
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
