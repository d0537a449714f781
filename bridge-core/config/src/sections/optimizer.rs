//! `[optimizer]` and `[optimizer_config_override_provider]`: names, defaults, ranges.

use super::super::choice::{
    DType, Fp8Recipe, MatmulPrecision, Moment2Method, MuonCoefficients, MuonScalarOptimizer, MuonScaleMode,
    OptimizerName, ParameterRuleRole,
};
use super::super::limits::Limits;
use super::super::refusal::{no_counterpart, not_built};
use super::super::rule::{excludes, idle_unless, needs};
use super::super::section::section;
use crate::optimizer_rules::NAMES;

/// Learning rates above this overflow every parameter in a few steps.
const LEARNING_RATE: Limits = Limits::between(0.0, 1000.0);

/// Condition: the loss scale is constant.
const CONSTANT: &str = "optimizer.loss_scale: it is about the dynamic loss scale";

section! {
    /// Optimizer hyper-parameters.
    pub struct OptimizerConfig {
        /// Optimizer.
        optimizer: OptimizerName = OptimizerName::default() => not_built("an optimizer that has no rule").built(NAMES);
        /// Peak learning rate. Required.
        lr: Option<f64> = None, LEARNING_RATE;
        /// Floor of the learning rate; null is 0.
        min_lr: Option<f64> = None, LEARNING_RATE;
        /// Separate peak rate of embedding and output layers.
        decoupled_lr: Option<f64> = None, LEARNING_RATE;
        /// Separate floor of embedding and output layers.
        decoupled_min_lr: Option<f64> = None, LEARNING_RATE, needs("optimizer.decoupled_lr");
        /// Weight decay.
        weight_decay: f64 = 0.01, Limits::between(0.0, 1000.0);
        /// Keep decay on query and key norms (`model.qk_layernorm`).
        apply_wd_to_qk_layernorm: bool = false, idle_unless("model.qk_layernorm");
        /// Mirror of `model.fp16`.
        fp16: bool = false;
        /// Mirror of `model.bf16`.
        bf16: bool = false;
        refused fp8_recipe = None::<Fp8Recipe>, "Mirror of the precision recipe."
            => no_counterpart("the optimizer's copy of model.fp8_recipe, which it does not read").same_as("model.fp8_recipe").upstream(&["tensorwise", "delayed"]);
        refused reuse_grad_buf_for_mxfp8_param_ag = false, "Share the gradient buffer with the mxfp8 gather."
            => not_built("one buffer for gradients and gathered 8-bit weights; there are no 8-bit weights").execution_only();
        /// Mirror of `model.params_dtype`.
        params_dtype: DType = DType::Float32;
        /// Keep states and master weights in the dtypes that `main_params_dtype`, `exp_avg_dtype`
        /// and `exp_avg_sq_dtype` say.
        use_precision_aware_optimizer: bool = false;
        /// With `use_precision_aware_optimizer`, bfloat16 parameters and float32 masters: keep only
        /// the low 16 bits of masters, to which parameters have the others. No bit of training
        /// changes.
        @execution store_param_remainders: bool = true;
        /// With `use_precision_aware_optimizer` and bfloat16 parameters: the dtype in which
        /// gradients are summed and handed to the update; bfloat16 goes with
        /// `ddp.grad_reduce_in_fp32 = false`.
        main_grads_dtype: DType = DType::Float32
            => not_built("gradients for the update in another dtype than float32 or bfloat16").built(&["bfloat16"]);
        /// Master weight dtype; float16 has one scale a tensor.
        main_params_dtype: DType = DType::Float32
            => not_built("master weights in another dtype than float32 or float16").built(&["float16"]);
        /// First moment dtype; float16 and uint8 (8-bit floats E4M3) have one scale a tensor;
        /// others than float32 need `use_precision_aware_optimizer`; "fp8" is uint8.
        exp_avg_dtype: DType = DType::Float32;
        /// Second moment dtype, as `exp_avg_dtype`.
        exp_avg_sq_dtype: DType = DType::Float32;
        /// Constant loss scale in fp16; null scales dynamically.
        loss_scale: Option<f64> = None, Limits::LOSS_SCALE, needs("model.fp16");
        /// First dynamic scale.
        initial_loss_scale: f64 = 4_294_967_296.0, Limits::LOSS_SCALE, needs("model.fp16"), excludes(CONSTANT);
        /// Smallest dynamic scale.
        min_loss_scale: f64 = 1.0, Limits::LOSS_SCALE, needs("model.fp16"), excludes(CONSTANT);
        /// Steps without overflow before the scale grows.
        loss_scale_window: f64 = 1000.0, Limits::POSITIVE, needs("model.fp16"), excludes(CONSTANT);
        /// Overflows tolerated before the scale shrinks.
        hysteresis: usize = 2, Limits::SIZE, needs("model.fp16"), excludes(CONSTANT);
        /// Decay of the first moment.
        adam_beta1: f64 = 0.9, Limits::BELOW_ONE;
        /// Decay of the second moment.
        adam_beta2: f64 = 0.999, Limits::BELOW_ONE;
        /// Added to the root of the second moment.
        adam_eps: f64 = 1e-8, Limits::above_zero_to(1.0);
        /// Weight decay decoupled from the gradient (AdamW) instead of L2.
        decoupled_weight_decay: bool = true;
        /// Momentum of SGD.
        sgd_momentum: f64 = 0.9, Limits::BELOW_ONE;
        /// Decay of Muon's momentum.
        muon_momentum: f64 = 0.95, Limits::BELOW_ONE;
        /// Orthogonalize the parts of a fused projection (queries, gates, keys, values) each by
        /// itself.
        muon_split_qkv: bool = true;
        /// Nesterov momentum in Muon.
        muon_nesterov: bool = false;
        /// Factor of Muon's update by the shape of the matrix: "spectral" is the root of the larger
        /// side, "unit_rms_norm" that of rows by columns, "shape_scaling" the same from 1 on.
        muon_scale_mode: MuonScaleMode = MuonScaleMode::Spectral;
        /// Precision of the products in Muon's iteration: "medium" is bfloat16 on GPUs; all others,
        /// and any on CPUs, are float32.
        muon_fp32_matmul_prec: MatmulPrecision = MatmulPrecision::Medium;
        /// Polynomials of Muon's iteration.
        muon_coefficient_type: MuonCoefficients = MuonCoefficients::Quintic;
        /// Steps of Muon's iteration.
        muon_num_ns_steps: usize = 5, Limits::SIZE;
        refused muon_tp_mode = String::from("duplicated"), "Orthogonalization under tensor parallelism."
            => not_built("updates of shards as if each were a matrix; Bridge gathers whole matrices, as \"duplicated\" and \"distributed\" do")
                .inert(&["distributed"]).upstream(&["blockwise"]);
        refused muon_use_syrk = false, "Triton kernel of the symmetric products in Muon's iteration."
            => no_counterpart("a kernel of Triton");
        /// Further factor of Muon's update; 0.2 makes it as large as Adam's.
        muon_extra_scale_factor: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Optimizer of the parameters that are not matrices of hidden layers, beside Muon.
        muon_scalar_optimizer: MuonScalarOptimizer = MuonScalarOptimizer::Adam;
        /// Interpolation weight of the momentum in Lion's update direction.
        lion_beta1: f64 = 0.95, Limits::BELOW_ONE;
        /// Decay of Lion's momentum.
        lion_beta2: f64 = 0.98, Limits::BELOW_ONE;
        /// Decay of AdEMAMix's slow momentum, after its warm-up.
        ademamix_beta3: f64 = 0.9999, Limits::BELOW_ONE;
        /// Weight of AdEMAMix's slow momentum, after its warm-up.
        ademamix_alpha: f64 = 5.0, Limits::NON_NEGATIVE;
        /// Steps in which `ademamix_alpha` grows from 0; 0 is no warm-up. The paper takes all
        /// steps.
        ademamix_alpha_warmup: usize = 0;
        /// Steps in which the half-life of AdEMAMix's slow momentum grows from that of
        /// `adam_beta1`; 0 is no warm-up. The paper takes all steps.
        ademamix_beta3_warmup: usize = 0;
        /// Decay of SOAP's preconditioners.
        soap_shampoo_beta: f64 = 0.95, Limits::BELOW_ONE;
        /// Steps from one change of SOAP's bases to the next.
        soap_precondition_frequency: usize = 1, Limits::SIZE;
        /// Precondition by KL-Shampoo: each side is measured with the inverse of the other.
        soap_use_kl_shampoo: bool = true;
        /// Steps in which schedule-free AdamW's learning rate grows from 0 to `lr`; 0 is no
        /// warm-up.
        schedule_free_warmup_steps: usize = 0;
        /// Exponent of the decay of Adafactor's second moments: they keep `1 - step ^ -rate`.
        adafactor_decay_rate: f64 = 0.8, Limits::above_zero_to(1.0);
        /// Largest root mean square of Adafactor's update before the learning rate; larger updates
        /// are scaled down to it.
        adafactor_clip_threshold: f64 = 1.0, Limits::ABOVE_ZERO;
        /// Added to Adafactor's squared gradients.
        adafactor_eps: f64 = 1e-30, Limits::above_zero_to(1.0);
        /// Multiply Adafactor's rate by the root mean square of the parameter, 0.001 at least.
        adafactor_scale_parameter: bool = false;
        /// Second moment of adaptive Muon: of elements, of rows or columns, or of the whole matrix.
        adaptive_muon_moment2_method: Moment2Method = Moment2Method::Adamuon;
        /// Decay of adaptive Muon's second moment.
        adaptive_muon_beta2: f64 = 0.95, Limits::BELOW_ONE;
        /// Added to the root of adaptive Muon's second moment; with "normuon" the least moment.
        adaptive_muon_eps: f64 = 1e-8, Limits::above_zero_to(1.0);
        /// Shard optimizer state over data parallelism.
        @execution use_distributed_optimizer: bool = false;
        refused use_layer_wise_distributed_optimizer = false, "Shard by whole layers."
            => not_built("state sharded by layers; use_distributed_optimizer shards it by elements, and Muon's by matrices");
        /// Mirror of the ddp setting.
        @execution overlap_param_gather: bool = false;
        refused overlap_param_gather_with_optimizer_step = false, "Gather while stepping."
            => not_built("gathering parameters while others are updated; ddp.overlap_param_gather gathers in the next forward");
        /// Keep states and master weights in host memory and update them there, with the model on a
        /// GPU: of `optimizer_offload_fraction`.
        @execution optimizer_cpu_offload: bool = false;
        /// With `optimizer_cpu_offload`: the share of the trained elements of a rank whose states
        /// are in host memory, 1 for all; whole parameters, from the first on.
        @execution optimizer_offload_fraction: f64 = 0.0, Limits::FRACTION,
            idle_unless("optimizer.optimizer_cpu_offload");
        refused use_torch_optimizer_for_cpu_offload = false, "Plain implementation on the host."
            => no_counterpart("PyTorch's optimizer for optimizer_cpu_offload");
        /// With `optimizer_cpu_offload`: bring the gradients of the next two parameters to the host
        /// while one is updated.
        @execution overlap_cpu_optimizer_d2h_h2d: bool = false, idle_unless("optimizer.optimizer_cpu_offload");
        refused @execution pin_cpu_grads = true, "Page-locked gradients."
            => no_counterpart("page-locked gradients of optimizer_cpu_offload").inert(&["false"]);
        refused @execution pin_cpu_params = true, "Page-locked parameters."
            => no_counterpart("page-locked parameters of optimizer_cpu_offload").inert(&["false"]);
        /// Limit of the global L2 norm of gradients; 0 disables clipping.
        clip_grad: f64 = 1.0, Limits::NON_NEGATIVE;
        /// Skip the update of a step whose gradients have a norm above this, as if they were not
        /// finite; null skips none. The schedule does not advance.
        grad_norm_skip_threshold: Option<f64> = None, Limits::ABOVE_ZERO;
        /// Decay of exponential moving averages of the weights, in float32; null keeps none.
        /// Evaluations use them; they are saved beside the weights, and `bridge convert export
        /// --ema` writes them.
        ema_decay: Option<f64> = None, Limits::BELOW_ONE,
            needs("checkpoint.save_optim: averages are saved with the states"),
            excludes("ddp.fp8_param_gather: evaluations replace the weights that are gathered as codes"),
            excludes("optimizer.optimizer = schedule_free_adamw: it keeps averages of its own");
        /// Count zero gradient entries.
        @execution log_num_zeros_in_grad: bool = false,
            idle_unless("logger.skip_train_metrics_log != true: steps are not logged");
        refused @execution barrier_with_L1_time = false, "Barrier around level-1 timers."
            => no_counterpart("the optimizer's copy of logger.barrier_with_L1_time, which applies to all timers").same_as("logger.barrier_with_L1_time");
        refused config_logger_dir = String::new(), "Debug dump folder."
            => no_counterpart("a folder for dumps of constructor arguments; logger.save_config_filepath writes the resolved configuration");
        refused optimizer_cuda_graph = false, "Capture the optimizer step."
            => not_built("the optimizer step captured as a CUDA graph");
    }
}

section! {
    /// Settings of single parameters. A parameter must meet all conditions that are given; of
    /// several rules that set the same, the last one holds.
    pub struct ParameterRule {
        /// Name of the parameter, by Megatron or by Hugging Face: `*` is any run of characters, and
        /// a pattern between slashes is a regular expression. `match` is the same.
        pattern: String = String::from("*");
        /// Layers of the parameter, counted from 0.
        layers: Vec<usize> = Vec::new();
        /// Roles of the parameter.
        roles: Vec<ParameterRuleRole> = Vec::new();
        /// Optimizer.
        optimizer: Option<OptimizerName> = None;
        /// Peak learning rate.
        lr: Option<f64> = None, LEARNING_RATE;
        /// Factor on the learning rate.
        lr_mult: Option<f64> = None, LEARNING_RATE;
        /// Floor of the learning rate.
        min_lr: Option<f64> = None, LEARNING_RATE;
        /// Weight decay.
        weight_decay: Option<f64> = None, Limits::between(0.0, 1000.0);
        /// Epsilon of the optimizer.
        eps: Option<f64> = None, Limits::above_zero_to(1.0);
        /// Decay of the optimizer's momentum.
        momentum: Option<f64> = None, Limits::BELOW_ONE;
        alias "match" = pattern;
    }
}

impl ParameterRule {
    /// True if the pattern matches a parameter of this name.
    pub fn matches_name(&self, name: &str) -> bool {
        self.regex().is_ok_and(|regex| regex.is_match(name).unwrap_or(false))
    }

    /// The pattern as a regular expression.
    pub(crate) fn regex(&self) -> Result<fancy_regex::Regex, Box<fancy_regex::Error>> {
        let pattern = self.pattern.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
        let glob = || format!("^{}$", fancy_regex::escape(&self.pattern).replace("\\*", ".*"));
        fancy_regex::Regex::new(&pattern.map_or_else(glob, str::to_owned)).map_err(Box::new)
    }

    /// Settings that the rule gives, as recipes write them.
    pub fn set(&self) -> Vec<String> {
        let numbers = [
            ("lr", self.lr),
            ("lr_mult", self.lr_mult),
            ("min_lr", self.min_lr),
            ("weight_decay", self.weight_decay),
            ("eps", self.eps),
            ("momentum", self.momentum),
        ];
        let numbers = numbers.into_iter().filter_map(|(name, value)| Some(format!("{name} = {}", value?)));
        self.optimizer.map(|name| format!("optimizer = {name}")).into_iter().chain(numbers).collect()
    }
}

section! {
    /// Settings of single parameters beside the usual ones of groups.
    pub struct OptimizerConfigOverrideProvider {
        /// Rules, in the order in which they are applied.
        rules: Vec<ParameterRule> = Vec::new();
    }
}
