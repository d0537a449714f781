//! Cost of a model with frozen weights, some of them beside branches of an adapter: derived from
//! the declarations and the cost of the model that is trained in full.

use super::{
    Component, Declaration, Outline, ParameterRole, PassKind, ReplicaGroup, Segment, SegmentCost, SegmentRole, Workload,
};

impl Outline {
    /// This outline with the costs of its adapter: products of an adapter's matrices are added,
    /// gradients of frozen weights are subtracted, and segments before the first trained parameter
    /// have no backward. The current `costs` must be those of a fully trained model.
    ///
    /// Tensors that backward keeps are counted as if all weights were trained, plus the branches'
    /// inner values: layers without a branch keep less.
    #[must_use]
    pub fn adapted(mut self, work: &Workload) -> Self {
        let parameters = self.declarations.parameters();
        let is_plain = |parameter: &Declaration| parameter.trainable && !parameter.of_adapter;
        let segments = self.declarations.segments();
        // Products alone: a router's bias and a rotary table have no gradient in any model.
        if parameters.iter().all(|parameter| is_plain(parameter) || !is_product(parameter, None)) {
            return self;
        }
        let begins = segments.first().is_some_and(|segment| segment.role == SegmentRole::Embedding);
        let trained = parameters.iter().filter(|parameter| parameter.trainable);
        let first = trained.map(|parameter| parameter.segments[0]).min().unwrap_or(segments.len());
        for (index, (cost, segment)) in self.costs.iter_mut().flatten().zip(segments).enumerate() {
            let here = parameters.iter().filter(|parameter| parameter.segments.contains(&index));
            let here: Vec<&Declaration> = here.filter(|parameter| is_product(parameter, Some(*segment))).collect();
            adapt(cost, &here, work);
            if begins && index < first {
                cut_backward(cost);
            }
        }
        self
    }
}

/// True if a parameter is the matrix of a product, in `segment` if that is given.
fn is_product(parameter: &Declaration, segment: Option<Segment>) -> bool {
    let is_head = segment.is_some_and(|segment| segment.role == SegmentRole::Head);
    parameter.shape.len() == 2
        && match parameter.role {
            ParameterRole::Weight | ParameterRole::Channels | ParameterRole::Output => true,
            // A table that is tied to the head.
            ParameterRole::Embedding => is_head || segment.is_none(),
            ParameterRole::Bias
            | ParameterRole::Norm
            | ParameterRole::QueryKeyNorm
            | ParameterRole::ExpertBias
            | ParameterRole::CastState => false,
        }
}

fn adapt(cost: &mut SegmentCost, parameters: &[&Declaration], work: &Workload) {
    let elements = |parameter: &Declaration| {
        let others = if parameter.placement.replicas == ReplicaGroup::Expert { work.place.expert.size } else { 1 };
        (others * parameter.global_shape().iter().product::<usize>()) as f64
    };
    let is_of_expert = |parameter: &&&Declaration| parameter.component == Component::Experts && !parameter.of_adapter;
    let of_experts: f64 = parameters.iter().filter(is_of_expert).map(|parameter| elements(parameter)).sum();
    let met = 1.0 - cost.idle_parameters as f64 / of_experts.max(1.0);
    for parameter in parameters {
        let share = if parameter.component == Component::Experts { met } else { 1.0 };
        let product = 2.0 * work.all_tokens() * share * elements(parameter);
        if parameter.of_adapter {
            cost.flops += 3.0 * product;
            // Of two matrices, `[r, i]` and `[o, r]`, the values between them.
            let rank = parameter.shape.iter().min().copied().unwrap_or(0) as u64;
            cost.kept += (work.tokens() * rank * work.activation_bytes) / 2;
        } else if !parameter.trainable {
            cost.flops -= product;
            cost.skipped_flops += product;
        }
    }
}

/// Leaves the forward alone.
fn cut_backward(cost: &mut SegmentCost) {
    let all = cost.flops + cost.skipped_flops;
    (cost.flops, cost.skipped_flops) = (all / 3.0, all / 3.0 * 2.0);
    (cost.kept, cost.backward, cost.deferred) = (0, 0, 0);
    (cost.brought_back, cost.recomputed_flops) = (0, 0.0);
    (cost.modules, cost.unmoved) = (Vec::new(), 0);
    cost.exchanges.retain(|exchange| exchange.pass == PassKind::Forward);
}
