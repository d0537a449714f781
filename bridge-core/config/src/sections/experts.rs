//! Settings of experts in `[model]`.

/// Declares a section of the given rows and of the settings of experts behind them.
macro_rules! with_experts {
    ($(#[$($meta:tt)*])* pub struct $Name:ident { $($rows:tt)* }) => { section! {
        $(#[$($meta)*])*
        pub struct $Name {
        $($rows)*

        /// Experts per layer; null means a dense model.
        num_moe_experts: Option<usize> = None, COUNT;
        /// Experts beside these whose output is their input; the router chooses among all (ours).
        moe_num_identity_experts: usize = 0, COUNT_OR_ZERO;
        /// Keep matrices that a file has of these experts, which no computation reads (ours).
        moe_identity_expert_weights: bool = false;
        /// Experts stand beside the dense block of a layer and read its norm; their output is added
        /// at the end of the next layer, which has none (ours).
        moe_shortcut: bool = false;
        /// N: layer i has experts if i mod N is 0; list: 1 means experts.
        moe_layer_freq: OneOrMany<usize> = OneOrMany::One(1),
            idle_unless("model.hybrid_override_pattern = null: it says the block of each layer");
        /// Expert width; null means `ffn_hidden_size`.
        moe_ffn_hidden_size: Option<usize> = None, Limits::SIZE;
        /// Experts per token.
        moe_router_topk: usize = 2, COUNT;
        /// Balancing of the load of experts: `aux_loss`, `seq_aux_loss`, `global_aux_loss`,
        /// `sinkhorn`, `none`; or a list of losses.
        @training moe_router_load_balancing_type: OneOrMany<LoadBalancing> = OneOrMany::One(LoadBalancing::AuxLoss);
        /// Weight of the balancing loss; a list of them for a list of losses.
        @training moe_aux_loss_coeff: OneOrMany<f64> = OneOrMany::One(0.0);
        /// Weight of the router z-loss.
        @training moe_z_loss_coeff: Option<f64> = None;
        /// Noise on the router's input in training: each element is multiplied by a number between
        /// one minus and one plus this.
        @training moe_input_jitter_eps: Option<f64> = None, Limits::between(0.0, 1.0),
            idle_unless("model.moe_router_force_load_balancing != true: scores are drawn");
        /// Gate.
        moe_router_score_function: RouterScoreFunction = RouterScoreFunction::Softmax,
            idle_unless("model.moe_router_load_balancing_type != sinkhorn");
        /// Experts whose scores are further below the best, relative to their size, than twice this
        /// are left out of the best one's weight (ours).
        moe_router_sparsemixer_jitter: f64 = 0.01, Limits::NON_NEGATIVE,
            idle_unless("model.moe_router_score_function = sparsemixer");
        /// Bias of the router (ours; upstream with `add_bias_linear`).
        moe_router_bias: bool = false;
        /// With sigmoid scores: weights are the scores themselves, not their shares of the chosen
        /// scores' sum (ours).
        moe_router_raw_scores: bool = false, needs("model.moe_router_score_function = sigmoid | = sqrtsoftplus");
        /// With sigmoid scores: added to the sum of the chosen ones, by which weights are divided
        /// (ours).
        moe_router_sum_epsilon: f64 = 1e-20, Limits::NON_NEGATIVE,
            needs("model.moe_router_score_function = sigmoid | = sqrtsoftplus");
        /// Score before choosing experts.
        moe_router_pre_softmax: bool = false, idle_unless("model.moe_router_score_function != sigmoid"),
            idle_unless("model.moe_router_load_balancing_type != sinkhorn");
        /// Multiplies selected scores.
        moe_router_topk_scaling_factor: Option<f64> = None;
        /// Router arithmetic.
        @training moe_router_dtype: Option<RouterDType> = None;
        /// Expert groups.
        moe_router_num_groups: Option<usize> = None, COUNT,
            idle_unless("model.moe_router_load_balancing_type != sinkhorn");
        /// Groups per token.
        moe_router_group_topk: Option<usize> = None, COUNT;
        /// Experts whose scores, of a softmax their probabilities, add up to a group's; null is
        /// `moe_router_topk` / `moe_router_group_topk`, as upstream (ours).
        moe_router_group_score_topk: Option<usize> = None, COUNT, needs("model.moe_router_num_groups");
        /// Load balancing without a loss: a bias of each expert counts in the choice, and moves
        /// after each step.
        moe_router_enable_expert_bias: bool = false, needs("model.moe_router_score_function = sigmoid | = sqrtsoftplus | = softmax");
        /// Step size of the expert biases, up or down; 0 keeps the biases unchanged.
        @training moe_router_bias_update_rate: f64 = 1e-3, Limits::NON_NEGATIVE;
        /// Keep the router's parameters as they are.
        @training freeze_moe_router: bool = false;
        /// Parameters that keep their values, by name; `*` is any run of characters (ours).
        @training freeze_parameters: Vec<String> = Vec::new(),
            excludes("peft: all but the adapters is frozen there"), Group::EveryKind;
        /// Routing by random scores in training, for benchmarks.
        @training moe_router_force_load_balancing: bool = false;
        /// First layers whose tokens go to experts that a table has for each token of the
        /// vocabulary, weighted by the router; it is not trained (ours).
        moe_num_hash_layers: usize = 0, COUNT_OR_ZERO;
        /// Multiply the input of an expert by its weight, not the output.
        moe_apply_probs_on_input: bool = false;
        /// Biases of the routed experts; null is as in the MLP (ours).
        moe_linear_bias: Option<bool> = None;
        /// Width of all shared experts.
        moe_shared_expert_intermediate_size: Option<usize> = None, Limits::SIZE;
        /// A dense MLP beside the experts of a layer, each with norms of its own (ours).
        moe_dense_beside: bool = false,
            needs("model.norm_placement = before | = sandwich"),
            needs("model.block_order = sequential");
        /// The router reads the stream divided by its root mean square, with learned factors, and
        /// the weights of experts have learned factors too (ours).
        moe_router_scales: bool = false;
        /// `glu_output_limits` of experts, not of shared ones (ours).
        moe_glu_output_limits: Option<Vec<f64>> = None, Limits::at_least(0.0),
            needs("model.gated_linear_unit"),
            needs("model.activation_func = silu");
        /// Bound of the gates of experts from above and of their linear halves on both sides, not
        /// of shared ones (ours).
        moe_activation_func_clamp_value: Option<f64> = None, Limits::ABOVE_ZERO,
            needs("model.gated_linear_unit"),
            needs("model.activation_func = silu");
        /// Gate of the shared expert.
        moe_shared_expert_gate: bool = false, needs("model.moe_shared_expert_intermediate_size");
        /// Factor on the sum of the experts' and shared experts' outputs (ours).
        moe_output_multiplier: f64 = 1.0, Limits::ABOVE_ZERO;
        refused moe_shared_expert_overlap = false, "Overlap of the shared expert."
            => no_counterpart("a second stream of a GPU; shared experts run after the routed ones, with the same result");
        /// Dispatch method.
        @execution moe_token_dispatcher_type: TokenDispatcher = TokenDispatcher::AllGather
            => no_counterpart("GPU libraries that dispatch tokens (flex); tokens are dispatched as with alltoall").built(&["alltoall"]);
        refused moe_flex_dispatcher_backend = one_of("deepep", &["deepep", "hybridep"]), "Library of flex dispatch."
            => no_counterpart("the GPU library of the flex dispatcher");
        /// Tokens that an expert takes of a micro-batch in training, as a multiple of the mean over
        /// experts; null drops none.
        @training moe_expert_capacity_factor: Option<f64> = None, Limits::ABOVE_ZERO,
            excludes("model.moe_router_load_balancing_type = sinkhorn");
        refused moe_pad_expert_input_to_capacity = false, "Pad to capacity."
            => no_counterpart("shapes that stay the same for captured graphs; experts compute the rows that they have, with the same result");
        /// Tokens that an expert over capacity drops: those with the smallest weights, or the last.
        @training moe_token_drop_policy: TokenDropPolicy = TokenDropPolicy::Probs,
            idle_unless("model.moe_expert_capacity_factor");
        /// Grouped GEMM of the experts: those of a rank are one operation, which keeps less for
        /// backward, with the same result. Experts that an adapter changes are computed one after
        /// the other all the same.
        @execution moe_grouped_gemm: bool = false;
        refused @execution moe_permute_fusion = false, "Fused permutation."
            => no_counterpart("a GPU library's kernel; rows are gathered in one pass, with the same result").upstream(&["true"]);
        refused moe_router_fusion = false, "Fused router."
            => no_counterpart("a GPU library's kernel; scores, choice and losses are one pass");
        /// Report the router of each layer: its losses, and the tokens of each expert.
        @execution moe_per_layer_logging: bool = false;
        /// Width that routed experts read and write, with linear layers from and to the residual
        /// stream around them; null is its width.
        moe_latent_size: Option<usize> = None, Limits::SIZE;
        refused overlap_moe_expert_parallel_comm = false, "Overlap of the expert exchange."
            => not_built("token dispatch overlapped with the computation of another micro-batch").execution_only();
        refused delay_wgrad_compute = false, "Delay weight gradients."
            => not_built("weight gradients deferred to overlap with overlap_moe_expert_parallel_comm").execution_only();
        }
    } };
}

pub(super) use with_experts;
