//! Mixture of experts: a router sends each token to a few of many feed-forward blocks (Shazeer et
//! al., arXiv:1701.06538).
//!
//! | file | content |
//! | --- | --- |
//! | `router` | scores of experts |
//! | `choice` | top-k selection of experts |
//! | `balance` | auxiliary losses, Sinkhorn's normalization |
//! | `beside` | a dense block beside experts |
//! | `capacity` | assignments dropped above the capacity of an expert |
//! | `cost` | FLOPs, bytes and messages |
//! | `dispatch` | tokens to the ranks that hold their experts, and back |
//! | `input` | inputs besides the residual stream |
//! | `rows` | gathering rows of a matrix, also of none |
//!
//! Further shape letters: `e` experts, `k` experts a token, `m` rows that a rank's experts work on.

mod balance;
mod beside;
mod capacity;
mod choice;
mod cost;
mod dispatch;
mod input;
mod router;
mod rows;

use bridge_core::model::{
    Component, GradientScope, Initial, ParameterRole, Scope, SegmentCost, TensorPartition, Workload,
};
use bridge_kernels::linear;
use bridge_regions::{gather_sequence, reduce_scatter_sequence};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;

pub(crate) use self::beside::DenseAndExperts;
pub(crate) use self::input::MoeInput;
use self::router::{Router, Routing};
use self::rows::take_rows;
use super::init::InitialValues;
use super::linear::{Linear, LinearConfig};
use super::mlp::Mlp;
use super::recompute::recomputed;
use super::regions::Regions;
use crate::architecture::config::{DecoderConfig, MoeConfig};
use crate::architecture::recompute::RecomputedParts;
use bridge_core::config::TokenDispatcher;

/// A feed-forward block made of a router and experts, of which this rank may hold a part.
#[derive(Module, Debug)]
pub(crate) struct Moe {
    router: Router,
    /// Between the residual stream and the narrower one that experts work in.
    latent: Option<Latent>,
    experts: Experts,
    shared_experts: Option<Mlp>,
    /// Weight whose product with a token is the gate of the shared experts' output, `[1, c]`.
    shared_gate: Option<Param<Tensor<2>>>,
    /// Matrices of identity experts, which no computation reads.
    identity_weights: Vec<Param<Tensor<2>>>,
    /// True if the router may choose experts that are the identity.
    has_identities: bool,
    /// Factor on the output.
    #[module(skip)]
    multiplier: f64,
    #[module(skip)]
    dispatcher: TokenDispatcher,
    #[module(skip)]
    recomputed: RecomputedParts,
}

/// Linear layers around the experts, of which each rank has the whole: to their width, and back.
#[derive(Module, Debug)]
struct Latent {
    fc1_latent_proj: Linear,
    fc2_latent_proj: Linear,
}

impl Latent {
    fn new(config: &DecoderConfig, width: usize, scope: &Scope) -> Self {
        let (initial, cut) = (InitialValues::new(config), TensorPartition::Replicated(GradientScope::ResidualStream));
        let (c, bias) = (config.hidden_size, config.mlp_bias);
        let down = LinearConfig { inputs: c, outputs: width, bias, cut, initial: initial.weight };
        let up = LinearConfig { inputs: width, outputs: c, bias, cut, initial: initial.output };
        Self {
            fc1_latent_proj: Linear::new(&down, scope, "fc1_latent_proj"),
            fc2_latent_proj: Linear::new(&up, scope, "fc2_latent_proj"),
        }
    }
}

/// The experts of this rank.
#[derive(Module, Debug)]
struct Experts {
    local_experts: Vec<Mlp>,
    /// All are one operation, rather than some for each.
    #[module(skip)]
    is_grouped: bool,
    /// True if inputs are multiplied by the weights of choices, not outputs.
    #[module(skip)]
    weighted_inputs: bool,
    /// True if outputs of the activation are recomputed in backward, as the single operation over
    /// all experts does anyway.
    #[module(skip)]
    recomputes_activation: bool,
}

impl Moe {
    /// The block at `scope`; expert numbers in names are global.
    pub fn new(config: &DecoderConfig, moe: &MoeConfig, scope: &Scope) -> Self {
        let router = Router::new(config, moe, &scope.child("router"));
        let all_experts = scope.child("experts").child("local_experts");
        let experts = all_experts.experts(moe.num_experts);
        let identity_weight = |number: usize| {
            let scope =
                all_experts.child(&number.to_string()).child("linear_fc1").component(Component::Experts).frozen();
            let (shape, cut) = (
                [config.fc1_blocks() * moe.ffn_hidden_size, config.hidden_size],
                TensorPartition::Replicated(GradientScope::ResidualStream),
            );
            scope.parameter("weight", shape, cut, Initial::Zeros, ParameterRole::Weight)
        };
        let identities = moe.num_experts..if moe.identity_weights { moe.num_choices() } else { moe.num_experts };
        let place = scope.place();
        let activation_clamp = moe.activation_clamp.or(config.activation_clamp);
        let of_experts = DecoderConfig { mlp_bias: moe.linear_bias, activation_clamp, ..config.clone() };
        let expert = |scope: &Scope| {
            Mlp::of_terms(&of_experts, moe.expert_width(config), moe.ffn_hidden_size, scope, place.expert_tensor.size)
        };
        let shared_scope = scope.child("shared_experts");
        let shared = |size: usize| Mlp::of_terms(config, config.hidden_size, size, &shared_scope, place.tensor.size);
        let gate = || {
            let (shape, cut) = ([1, config.hidden_size], TensorPartition::Replicated(GradientScope::OwnPart));
            shared_scope.parameter("gate_weight", shape, cut, InitialValues::new(config).weight, ParameterRole::Weight)
        };
        Self {
            router,
            latent: moe.latent_size.map(|width| Latent::new(config, width, scope)),
            experts: Experts::new(experts.iter().map(expert).collect(), config, moe),
            shared_experts: moe.shared_expert_intermediate_size.map(shared),
            shared_gate: moe.shared_gate.then(gate),
            identity_weights: identities.map(identity_weight).collect(),
            has_identities: moe.num_identity_experts > 0,
            multiplier: moe.output_multiplier,
            dispatcher: moe.dispatcher,
            recomputed: config.recomputed,
        }
    }

    /// The block with these bounds of the units of shared and of routed experts
    /// ([`Mlp::limited`]).
    pub fn limited(mut self, [shared, routed]: [Option<f64>; 2]) -> Self {
        self.shared_experts = self.shared_experts.map(|block| block.limited(shared));
        let experts = self.experts.local_experts.into_iter();
        self.experts.local_experts = experts.map(|expert| expert.limited(routed)).collect();
        self
    }

    /// Cost of the block.
    pub fn cost(config: &DecoderConfig, moe: &MoeConfig, work: &Workload) -> SegmentCost {
        cost::cost(config, moe, work)
    }

    /// `[b, t, c]` of the residual stream -> the same. The router reads `scored_btc`, if it is
    /// given, in place of the experts' input.
    pub fn forward(&self, x_btc: Tensor<3>, scored_btc: Option<Tensor<3>>, input: &MoeInput) -> Tensor<3> {
        let logits_bte = self.router.logits(scored_btc.unwrap_or_else(|| x_btc.clone()), input);
        let y_btc = if input.regions.shards_experts_alike() {
            self.forward_in_region(x_btc, logits_bte, input)
        } else {
            self.forward_on_own_tokens(x_btc, logits_bte, input)
        };
        if self.multiplier == 1.0 { y_btc } else { y_btc * self.multiplier }
    }

    /// Experts, shared or not, are cut over the tensor-parallel ranks: one region has them all.
    fn forward_in_region(&self, x_btc: Tensor<3>, logits_bte: Tensor<3>, input: &MoeInput) -> Tensor<3> {
        let regions = input.regions;
        // Each tensor-parallel rank has a part of every expert it shares, so its gradients of
        // scores are terms of a sum.
        let logits_bte = regions.enter(logits_bte);
        let Some(latent) = &self.latent else {
            let x_btc = regions.enter(x_btc);
            let shape = x_btc.dims();
            let x_nc = flat(x_btc);
            let routing = self.router.route(logits_bte, input);
            let mut y_nc = self.experts(x_nc.clone(), routing, regions);
            if let Some(term_nc) = self.shared_term(x_nc) {
                y_nc = y_nc + term_nc;
            }
            return regions.leave(y_nc.reshape(shape));
        };
        let narrow_btl = regions.enter(latent.fc1_latent_proj.forward(x_btc.clone(), None));
        let shape = narrow_btl.dims();
        let routing = self.router.route(logits_bte, input);
        let y_btl = regions.leave(self.experts(flat(narrow_btl), routing, regions).reshape(shape));
        self.with_shared(latent.fc2_latent_proj.forward(y_btl, None), x_btc, regions)
    }

    /// Experts are cut over other ranks than all else, or not at all: each rank routes the tokens
    /// of its residual stream, and the ranks that share experts show each other theirs.
    fn forward_on_own_tokens(&self, x_btc: Tensor<3>, logits_bte: Tensor<3>, input: &MoeInput) -> Tensor<3> {
        let (regions, group) = (input.regions, input.regions.expert_tensor());
        let routing = self.router.route(logits_bte, input);
        let narrow = |latent: &Latent| latent.fc1_latent_proj.forward(x_btc.clone(), None);
        let routed_btc = self.latent.as_ref().map_or_else(|| x_btc.clone(), narrow);
        let shape = routed_btc.dims();
        let gathered_nc = gather_sequence(flat(routed_btc), TOKENS, group);
        let terms_nc = self.experts(gathered_nc, dispatch::gather_routing(routing, group), regions);
        let y_btc = reduce_scatter_sequence(terms_nc, TOKENS, group).reshape(shape);
        let y_btc = match &self.latent {
            Some(latent) => latent.fc2_latent_proj.forward(y_btc, None),
            None => y_btc,
        };
        self.with_shared(y_btc, x_btc, regions)
    }

    /// The sum of `y_btc` and the shared experts' output for `x_btc`, both in the layout of the
    /// residual stream.
    fn with_shared(&self, y_btc: Tensor<3>, x_btc: Tensor<3>, regions: &Regions) -> Tensor<3> {
        if self.shared_experts.is_none() {
            return y_btc;
        }
        let x_btc = regions.enter(x_btc);
        let whole = x_btc.dims();
        match self.shared_term(flat(x_btc)) {
            Some(term_nc) => y_btc + regions.leave(term_nc.reshape(whole)),
            None => y_btc,
        }
    }

    /// This rank's term of the shared experts' output, gated if there is a gate: `[n, c]` -> the
    /// same.
    fn shared_term(&self, x_nc: Tensor<2>) -> Option<Tensor<2>> {
        let (shared, gate) = (self.shared_experts.as_ref()?, &self.shared_gate);
        if !self.recomputed.shared_experts {
            return Some(gated_term(shared, gate, x_nc));
        }
        let parts = (shared.in_this_pass(), gate.clone());
        Some(recomputed(parts, [x_nc], |(shared, gate), [x_nc]| gated_term(shared, gate, x_nc)))
    }

    /// `[n, c]` -> the same, or this rank's terms of it if several ranks share the experts.
    fn experts(&self, x_nc: Tensor<2>, routing: Routing, regions: &Regions) -> Tensor<2> {
        // Identity experts stay local; ranks that share the others have equal terms of theirs.
        let share = 1.0 / regions.expert_tensor().size() as f64;
        // One use of the input for both: the sum of its gradients is then one of two terms beside
        // shared experts too, equal in any order.
        let x_nc = if self.has_identities && self.shared_experts.is_some() { x_nc * 1.0 } else { x_nc };
        let identities = self.has_identities.then(|| dispatch::identities(x_nc.clone(), &routing) * share);
        let y_nc = self.dispatched(x_nc, routing, regions);
        match identities {
            Some(term_nc) => y_nc + term_nc,
            None => y_nc,
        }
    }

    /// [`Self::experts`] without those that are the identity.
    fn dispatched(&self, x_nc: Tensor<2>, routing: Routing, regions: &Regions) -> Tensor<2> {
        match self.dispatcher {
            TokenDispatcher::AllToAll | TokenDispatcher::Flex => {
                dispatch::all_to_all(x_nc, routing, regions.expert(), &self.experts)
            }
            TokenDispatcher::AllGather => dispatch::all_gather(x_nc, routing, regions.expert(), &self.experts),
        }
    }
}

/// A term of the shared experts' output, times the gate if there is one: `[n, c]` -> the same.
fn gated_term(shared: &Mlp, gate: &Option<Param<Tensor<2>>>, x_nc: Tensor<2>) -> Tensor<2> {
    let Some(weight_1c) = gate else { return shared.forward_term(x_nc) };
    let gate_n1 = sigmoid(linear(x_nc.clone(), weight_1c.val(), None));
    shared.forward_term(x_nc) * gate_n1
}

/// The dimension of tokens in `[n, ..]`.
const TOKENS: usize = 0;

/// `[b, t, c]` -> `[b * t, c]`.
fn flat(x_btc: Tensor<3>) -> Tensor<2> {
    let [b, t, c] = x_btc.dims();
    x_btc.reshape([b * t, c])
}

impl Experts {
    /// Experts with an adapted layer are not grouped, because the adapted layer is a separate
    /// operation.
    fn new(local_experts: Vec<Mlp>, config: &DecoderConfig, moe: &MoeConfig) -> Self {
        let is_grouped = moe.grouped_gemm && local_experts.iter().all(Mlp::is_plain);
        let (weighted_inputs, recomputes_activation) = (moe.weighted_inputs, config.recomputed.moe_act);
        Self { local_experts, is_grouped, weighted_inputs, recomputes_activation }
    }

    /// Minimum rows passed to each expert: 1 if each expert is a separate matrix product, which
    /// cannot be empty; 0 for grouped GEMM.
    fn min_rows_per_expert(&self) -> usize {
        usize::from(!self.is_grouped)
    }

    /// Rows, `[m, c]`, times the weights of their choices, `[m, 1]`, if inputs have the weights.
    fn weighted(&self, rows_mc: Tensor<2>, weights_m1: impl FnOnce() -> Tensor<2>) -> Tensor<2> {
        if self.weighted_inputs { rows_mc * weights_m1() } else { rows_mc }
    }

    /// `[m, c]`, rows of the first expert first and `counts` of each, at least
    /// [`Self::min_rows_per_expert`], -> the same.
    fn forward(&self, rows_mc: Tensor<2>, counts: &[usize]) -> Tensor<2> {
        assert_eq!(counts.len(), self.local_experts.len(), "one count for each expert of the rank");
        if self.is_grouped {
            return Mlp::forward_terms(&self.local_experts, rows_mc, counts);
        }
        let mut start = 0;
        let outputs = self.local_experts.iter().zip(counts).map(|(expert, count)| {
            let range = start..start + count;
            start = range.end;
            let rows = take_rows(rows_mc.clone(), range);
            if self.recomputes_activation { expert.forward_term_recomputing(rows) } else { expert.forward_expert(rows) }
        });
        Tensor::cat(outputs.collect(), 0)
    }
}
