//! `[optimizer]` and `[optimizer_config_override_provider]`: names, defaults, ranges.

use super::super::choice::{DType, Fp8Recipe, OptimizerKind};
use super::super::limits::Limits;
use super::super::section::section;

/// Learning rates above this overflow every parameter in a few steps.
const LEARNING_RATE: Limits = Limits::between(0.0, 1000.0);

section! {
    /// Optimizer hyper-parameters.
    pub struct OptimizerConfig {
        /// Which optimizer.
        optimizer: OptimizerKind = OptimizerKind::Adam;
        /// Peak learning rate. Required.
        lr: Option<f64> = None, LEARNING_RATE;
        /// Floor of the learning rate; null is 0.
        min_lr: Option<f64> = None, LEARNING_RATE;
        /// Separate peak rate of embedding and output layers.
        decoupled_lr: Option<f64> = None, LEARNING_RATE;
        /// Separate floor of embedding and output layers.
        decoupled_min_lr: Option<f64> = None, LEARNING_RATE;
        /// Weight decay.
        weight_decay: f64 = 0.01, Limits::between(0.0, 1000.0);
        /// Keep decay on query and key norms (`model.qk_layernorm`).
        apply_wd_to_qk_layernorm: bool = false;
        /// Mirror of `model.fp16`.
        fp16: bool = false;
        /// Mirror of `model.bf16`.
        bf16: bool = false;
        /// Mirror of the precision recipe.
        fp8_recipe: Option<Fp8Recipe> = None;
        /// Share the gradient buffer with the mxfp8 gather.
        reuse_grad_buf_for_mxfp8_param_ag: bool = false;
        /// Mirror of `model.params_dtype`.
        params_dtype: DType = DType::Float32;
        /// Optimizer states in reduced dtype.
        use_precision_aware_optimizer: bool = false;
        /// Keep only the low 16 bits of master weights.
        store_param_remainders: bool = true;
        /// Master gradient dtype.
        main_grads_dtype: DType = DType::Float32;
        /// Master weight dtype.
        main_params_dtype: DType = DType::Float32;
        /// First moment dtype.
        exp_avg_dtype: DType = DType::Float32;
        /// Second moment dtype.
        exp_avg_sq_dtype: DType = DType::Float32;
        /// Constant loss scale in fp16; null scales dynamically.
        loss_scale: Option<f64> = None, Limits::ABOVE_ZERO;
        /// First dynamic scale.
        initial_loss_scale: f64 = 4_294_967_296.0, Limits::ABOVE_ZERO;
        /// Smallest dynamic scale.
        min_loss_scale: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Clean steps before the scale grows.
        loss_scale_window: f64 = 1000.0, Limits::POSITIVE;
        /// Bad steps tolerated before the scale shrinks.
        hysteresis: usize = 2, Limits::POSITIVE;
        /// Decay of the first moment.
        adam_beta1: f64 = 0.9, Limits::BELOW_ONE;
        /// Decay of the second moment.
        adam_beta2: f64 = 0.999, Limits::BELOW_ONE;
        /// Added to the root of the second moment.
        adam_eps: f64 = 1e-8, Limits::above_zero_to(1.0);
        /// Weight decay apart from the gradient (AdamW) instead of L2.
        decoupled_weight_decay: bool = true;
        /// Momentum of SGD.
        sgd_momentum: f64 = 0.9, Limits::BELOW_ONE;
        /// Momentum of Muon.
        muon_momentum: f64 = 0.95, Limits::BELOW_ONE;
        /// Treat query, key and value apart.
        muon_split_qkv: bool = true;
        /// Nesterov momentum.
        muon_nesterov: bool = false;
        /// Update scaling rule.
        muon_scale_mode: String = "spectral".into();
        /// Newton-Schulz precision.
        muon_fp32_matmul_prec: String = "medium".into();
        /// Newton-Schulz coefficients.
        muon_coefficient_type: String = "quintic".into();
        /// Newton-Schulz steps.
        muon_num_ns_steps: usize = 5, Limits::POSITIVE;
        /// Orthogonalization under tensor parallelism.
        muon_tp_mode: String = "blockwise".into();
        /// Extra update scale.
        muon_extra_scale_factor: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Optimizer of everything that is no matrix.
        muon_scalar_optimizer: String = "adam".into();
        /// Lion's first constant.
        lion_beta1: f64 = 0.95, Limits::BELOW_ONE;
        /// Lion's second constant.
        lion_beta2: f64 = 0.98, Limits::BELOW_ONE;
        /// SOAP's preconditioner decay.
        soap_shampoo_beta: f64 = 0.95, Limits::BELOW_ONE;
        /// Steps between SOAP's preconditioner updates.
        soap_precondition_frequency: usize = 1, Limits::POSITIVE;
        /// SOAP's KL variant.
        soap_use_kl_shampoo: bool = true;
        /// Second moment of adaptive Muon.
        adaptive_muon_moment2_method: String = "adamuon".into();
        /// Its decay.
        adaptive_muon_beta2: f64 = 0.95, Limits::BELOW_ONE;
        /// Its epsilon.
        adaptive_muon_eps: f64 = 1e-8, Limits::above_zero_to(1.0);
        /// Shard optimizer state over data parallelism.
        use_distributed_optimizer: bool = false;
        /// Shard by whole layers.
        use_layer_wise_distributed_optimizer: bool = false;
        /// Mirror of the ddp setting.
        overlap_param_gather: bool = false;
        /// Gather while stepping.
        overlap_param_gather_with_optimizer_step: bool = false;
        /// Optimizer on the host.
        optimizer_cpu_offload: bool = false;
        /// Share of it on the host.
        optimizer_offload_fraction: f64 = 0.0, Limits::FRACTION;
        /// Plain implementation on the host.
        use_torch_optimizer_for_cpu_offload: bool = false;
        /// Overlap host transfers.
        overlap_cpu_optimizer_d2h_h2d: bool = false;
        /// Page-locked gradients.
        pin_cpu_grads: bool = true;
        /// Page-locked parameters.
        pin_cpu_params: bool = true;
        /// Limit of the global L2 norm of gradients; 0 is off.
        clip_grad: f64 = 1.0, Limits::NON_NEGATIVE;
        /// Count zero gradient entries.
        log_num_zeros_in_grad: bool = false;
        /// Barrier around level-1 timers.
        barrier_with_L1_time: bool = false;
        /// Debug dump folder.
        config_logger_dir: String = String::new();
        /// Capture the optimizer step.
        optimizer_cuda_graph: bool = false;
    }
}

/// Per-parameter optimizer overrides; the standard rules have no settings, code replaces them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OptimizerConfigOverrideProvider {}

mod empty_section {
    //! The macro wants at least one row, and this section has none.
    use super::OptimizerConfigOverrideProvider;
    use crate::config::node::{Data, Node};
    use crate::config::section::{FieldSpec, Reader, Section, section_field};

    impl Section for OptimizerConfigOverrideProvider {
        fn fields() -> Vec<FieldSpec> {
            Vec::new()
        }
        fn names() -> Vec<&'static str> {
            Vec::new()
        }
        fn assign(&mut self, _: &str, _: &Node, _: &mut Reader<'_>) -> bool {
            false
        }
        fn value(&self, _: &str) -> Option<Node> {
            None
        }
        fn to_node(&self) -> Node {
            Data::Table(Vec::new()).into()
        }
    }

    section_field!(OptimizerConfigOverrideProvider);
}
