//! Builds a decoder over thread ranks and on one, and compares the two.

use bridge_core::config::{BlockOrder, NormPlacement, RouterDType, TokenDispatcher, TokenDropPolicy};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bridge_core::model::{Adapter, Declaration, Placement, ReplicaGroup};
use bridge_data::SequencePart;
use bridge_dist::comm::thread::run_ranks;
use bridge_dist::mesh::{Coordinates, Mesh, ParallelSizes, ProcessGroups, RankOrder};
use bridge_kernels::Philox;
use bridge_regions::Cut;

use super::*;

/// Distribution of a model.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub tensor: usize,
    pub sequence_parallel: bool,
    pub context: usize,
    pub expert: usize,
    /// Equal to `tensor` if `None`.
    pub expert_tensor: Option<usize>,
    pub data: usize,
}

pub const ONE: Spread =
    Spread { tensor: 1, sequence_parallel: false, context: 1, expert: 1, expert_tensor: None, data: 1 };

impl Spread {
    pub fn mesh(self) -> Mesh {
        let sizes = ParallelSizes {
            tensor_model_parallel_size: self.tensor,
            context_parallel_size: self.context,
            expert_model_parallel_size: self.expert,
            expert_tensor_parallel_size: self.expert_tensor,
            ..ParallelSizes::default()
        };
        Mesh::new(self.tensor * self.context * self.data, sizes, RankOrder::default()).unwrap()
    }
}

/// Result of one rank after a step.
pub struct RankResult {
    coordinates: Coordinates,
    loss: f32,
    parameters: Vec<(Declaration, Vec<f32>, Vec<f32>)>,
}

/// Values, gradients and loss of a whole model.
pub struct Whole {
    pub loss: f64,
    pub values: Values,
    pub gradients: Values,
}

/// The elements of a whole tensor that a rank holds.
pub fn held(placement: &Placement, global_shape: &[usize]) -> Vec<usize> {
    placement.held_runs(global_shape).into_iter().flatten().collect()
}

/// Moves vectors off their initial ones and zeros, by noise that does not depend on the layout.
pub fn disturb(chunk: &mut dyn ModelChunk) {
    let infos: BTreeMap<_, _> = chunk.parameters().iter().map(|info| (info.name.clone(), info.clone())).collect();
    chunk.update_parameters(&mut |name, value| {
        let info = &infos[name];
        if info.shape.len() > 1 {
            return value.into();
        }
        let global = info.global_shape();
        let noise = Philox::new(5).derive_name(name).normal(global[0], 0.2);
        let own: Vec<f32> = held(&info.placement, &global).into_iter().map(|i| noise[i]).collect();
        let device = value.device();
        (value + Tensor::<1>::from_floats(own.as_slice(), &device)).into()
    });
}

/// Sequences of eight tokens, some targets masked, for one data-parallel rank.
pub fn sequences(vocab_size: usize, data_rank: usize) -> MicroBatch {
    let (batch_size, seq_length) = (2, 8);
    let all: Vec<i64> = tokens(100, vocab_size).split_off(data_rank * 20);
    let count = batch_size * seq_length;
    let mut loss_mask = vec![1.0; count];
    loss_mask[4] = 0.0;
    loss_mask[13] = 0.5;
    MicroBatch {
        tokens: all[..count].to_vec(),
        labels: all[1..=count].to_vec(),
        loss_mask,
        position_ids: (0..batch_size).flat_map(|_| 0..seq_length as i64).collect(),
        batch_size,
        seq_length,
        ..MicroBatch::default()
    }
}

/// The part of each sequence that a context-parallel rank gets.
pub fn cut(batch: &MicroBatch, rank: usize, ranks: usize) -> MicroBatch {
    if ranks == 1 {
        return batch.clone();
    }
    let places: Vec<usize> = (0..batch.batch_size)
        .flat_map(|row| {
            let parts = Cut::Zigzag.parts(batch.seq_length, rank, ranks);
            parts.into_iter().flatten().map(move |place| row * batch.seq_length + place)
        })
        .collect();
    fn pick<T: Copy>(values: &[T], places: &[usize]) -> Vec<T> {
        places.iter().map(|place| values[*place]).collect()
    }
    MicroBatch {
        tokens: pick(&batch.tokens, &places),
        labels: pick(&batch.labels, &places),
        loss_mask: pick(&batch.loss_mask, &places),
        position_ids: pick(&batch.position_ids, &places),
        batch_size: batch.batch_size,
        seq_length: batch.seq_length / ranks,
        document_ids: batch.document_ids.as_ref().map(|ids| pick(ids, &places)),
        part: SequencePart::of_rank(rank, ranks),
        extras: batch.extras.clone(),
    }
}

pub fn build_spread(model: &Model, groups: ProcessGroups, spread: Spread) -> Box<dyn ModelChunk> {
    let (config, adapter) = (&model.config, model.adapter.clone());
    let parallel = Parallel { groups, sequence_parallel: spread.sequence_parallel };
    let context = BuildContext { parallel, adapter, ..context(config) };
    let mut chunk = build_decoder(config, &context, &Stage::whole([config.num_layers])).unwrap();
    disturb(chunk.as_mut());
    chunk
}

pub type BatchOf<'a> = dyn Fn(usize) -> MicroBatch + Sync + 'a;

/// A model, with an adapter or without.
pub struct Model {
    pub config: DecoderConfig,
    pub adapter: Option<Arc<dyn Adapter>>,
}

/// One step on every rank; `batches` gives each data-parallel rank its sequences.
pub fn run(config: &DecoderConfig, spread: Spread, batches: &BatchOf, mode: Mode) -> Whole {
    run_model(&Model { config: config.clone(), adapter: None }, spread, batches, mode)
}

/// [`run`], of the parameters that are trained.
pub fn run_model(model: &Model, spread: Spread, batches: &BatchOf, mode: Mode) -> Whole {
    let mesh = spread.mesh();
    let results = run_ranks(mesh.world_size(), Duration::from_secs(60), |world| {
        let groups = ProcessGroups::new(world, mesh)?;
        let coordinates = groups.coordinates();
        let batch = cut(&batches(groups.data().rank()), groups.context().rank(), spread.context);
        let chunk = build_spread(model, groups, spread);
        let batch = Batch::new(&batch, &device());
        let (loss, mut gradients) = loss_and_gradients(chunk.as_ref(), &batch, mode);
        let mut values = values(chunk.as_ref());
        let mut take = |info: Declaration| {
            let gradient = gradients.remove(&info.name).unwrap_or_else(|| panic!("{} has no gradient", info.name));
            let value = values.remove(&info.name).unwrap();
            (info, value, gradient)
        };
        let trained = chunk.parameters().iter().filter(|info| info.trainable).cloned();
        let parameters = trained.map(&mut take).collect();
        assert!(gradients.is_empty(), "frozen parameters have no gradients");
        Ok::<_, bridge_dist::mesh::MeshSetupError>(RankResult { coordinates, loss, parameters })
    });
    assemble(&results.unwrap_or_else(|error| panic!("{spread:?}: {error}")), spread)
}

/// The whole model from every rank's part, by the rules of the contract
/// (`bridge_core::model::placement`).
pub fn assemble(results: &[RankResult], spread: Spread) -> Whole {
    let by_tensor = |rank: usize| results.iter().filter(move |result| result.coordinates.tp == rank);
    let loss_of = |rank: usize| by_tensor(rank).map(|result| f64::from(result.loss)).sum::<f64>();
    for rank in 1..spread.tensor {
        assert_eq!(loss_of(rank), loss_of(0), "tensor-parallel ranks have the same loss");
    }
    let names: BTreeSet<&String> =
        results.iter().flat_map(|result| result.parameters.iter().map(|(info, ..)| &info.name)).collect();
    let mut whole = Whole { loss: loss_of(0), values: Values::new(), gradients: Values::new() };
    for name in names {
        let of = |result: &'_ RankResult| result.parameters.iter().find(|(info, ..)| info.name == *name).cloned();
        let (first, ..) = results.iter().find_map(of).unwrap();
        let size = first.global_shape().iter().product();
        let (mut value, mut gradient) = (vec![f32::NAN; size], vec![0.0_f64; size]);
        let rank_of = |result: &RankResult| match first.placement.replicas {
            ReplicaGroup::Dense => result.coordinates.tp,
            ReplicaGroup::Expert => result.coordinates.expert_tp,
        };
        for rank in 0..=results.iter().map(rank_of).max().unwrap() {
            let mut own_gradient: Vec<f64> = Vec::new();
            let mut places = Vec::new();
            for (info, own_value, part) in results.iter().filter(|result| rank_of(result) == rank).filter_map(of) {
                places = held(&info.placement, &info.global_shape());
                for (place, own) in places.iter().zip(&own_value) {
                    assert!(value[*place].is_nan() || value[*place] == *own, "copies of {name} differ");
                    value[*place] = *own;
                }
                own_gradient.resize(part.len(), 0.0);
                own_gradient.iter_mut().zip(part).for_each(|(sum, part)| *sum += f64::from(part));
            }
            let is_copy = first.placement.shard.is_none() && !first.placement.partial_gradient;
            for (place, own) in places.into_iter().zip(own_gradient) {
                match is_copy && rank > 0 {
                    true => assert!((gradient[place] - own).abs() <= 1e-5 * own.abs().max(1.0), "copies of {name}"),
                    false => gradient[place] += own,
                }
            }
        }
        assert!(value.iter().all(|value| !value.is_nan()), "parts of {name} are missing");
        whole.values.insert(name.clone(), value);
        whole.gradients.insert(name.clone(), gradient.into_iter().map(|g| g as f32).collect());
    }
    whole
}

#[track_caller]
pub fn assert_same(found: &Whole, expected: &Whole, what: &str) {
    assert!(found.values == expected.values, "{what}: initial values are slices of the unsharded ones");
    let difference = (found.loss / expected.loss - 1.0).abs();
    assert!(difference < 1e-5, "{what}: loss {}, expected {}", found.loss, expected.loss);
    assert_eq!(found.gradients.len(), expected.gradients.len());
    for (name, expected) in &expected.gradients {
        let largest = expected.iter().fold(0.0_f32, |largest, g| largest.max(g.abs()));
        assert!(largest > 0.0, "{what}: the gradient of {name} says nothing");
        // A single number's gradient is a sum over all tokens and channels, which may cancel.
        let largest = if expected.len() == 1 { largest.max(0.1) } else { largest };
        for (i, (a, b)) in found.gradients[name].iter().zip(expected).enumerate() {
            assert!((a - b).abs() <= 1e-5 * largest, "{what}: gradient {i} of {name}: {a}, expected {b}");
        }
    }
}

/// Sizes that divide by four, where the decoder needs that, and not where it does not.
pub fn divisible(config: DecoderConfig) -> DecoderConfig {
    let groups = if config.num_query_groups == config.num_attention_heads { 8 } else { 4 };
    DecoderConfig {
        num_layers: 2,
        num_attention_heads: 8,
        num_query_groups: groups,
        kv_channels: 10,
        ffn_hidden_size: 28,
        padded_vocab_size: 40,
        no_rope_layers: LayerPattern::None,
        window_layers: LayerPattern::Listed(vec![true, false]),
        output_limits: config.output_limits.map(|limits| limits[..2].to_vec()),
        activation_sparsity: config.activation_sparsity.as_ref().map(|shares| shares[..2].to_vec()),
        ..config
    }
}

pub fn families() -> Vec<(&'static str, DecoderConfig)> {
    let tied = DecoderConfig { share_embeddings_and_output_weights: true, ..llama() };
    let untied = DecoderConfig { share_embeddings_and_output_weights: false, ..gpt2() };
    let residual = ResidualConfig {
        norms: NormPlacement::Sandwich,
        blocks: BlockOrder::Parallel,
        branch_multiplier: 0.7,
        stream_multiplier: 1.2,
        adds_to_norm: false,
    };
    let after_norm = ResidualConfig { adds_to_norm: true, ..ResidualConfig::default() };
    let post_norm = ResidualConfig { norms: NormPlacement::Sum, ..ResidualConfig::default() };
    let [whole, centred, local, limited] = factors();
    let [fused, element, head, unrotated] = gates();
    let [bare, without_weights, sloped, windowed] = switches();
    let [mixed, apart, one_of_three] = streams();
    let [vectors_in_parallel, vectors] = layer_ends();
    let families = [
        ("norms without weights, a bias of the output", bare),
        ("LayerNorms without weights", without_weights),
        ("trained slopes, a bias of a tied output", sloped),
        ("other heads in windows", windowed),
        ("norms over projections", whole),
        ("norms without biases, tied", centred),
        ("a base in windows", local),
        ("a gate with limits", limited),
        ("gates of the projection", fused),
        ("gates of elements", element),
        ("gates of heads", head),
        ("vectors of layers in blocks side by side", vectors_in_parallel),
        ("vectors of layers", vectors),
        ("queries that grow", unrotated),
        ("llama", llama()),
        ("llama, tied", tied),
        ("further tokens", DecoderConfig { mtp_num_layers: 2, mtp_loss_scaling_factor: 0.7, ..llama() }),
        ("sinks", DecoderConfig { attention_sinks: true, ..llama() }),
        ("blocks side by side in sandwich norms", DecoderConfig { residual, ..llama() }),
        (
            "blocks added to norms, muP",
            DecoderConfig { residual: after_norm, width_multiplier: Some(1.7), softmax_scale: 0.1, ..llama() },
        ),
        ("gpt2 with post-norm", DecoderConfig { residual: post_norm, ..gpt2() }),
        ("gpt2", gpt2()),
        ("gpt2, untied", untied),
        ("everything", everything()),
        ("longrope", longrope()),
        ("streams that mix", mixed),
        ("streams of which one is read", one_of_three),
        ("streams apart, tied", apart),
    ];
    // Rows of a vocabulary need not divide.
    let rows = |name: &str| if name.contains("tied") { 43 } else { 40 };
    let divisible = |name, config| DecoderConfig { padded_vocab_size: rows(name), ..divisible(config) };
    let [shared, keys_as_values] = shared_keys().map(|config| DecoderConfig {
        num_layers: 4,
        num_kv_shared_layers: 2,
        window_layers: LayerPattern::Listed(vec![true, false, true, false]),
        ..super::spread::divisible(config)
    });
    let shared = [("shared keys and values", shared), ("keys that are values", keys_as_values)];
    families.into_iter().map(|(name, config)| (name, divisible(name, config))).chain(shared).collect()
}

/// A Llama-like model with experts in some layers or all, and every loss and factor the router has.
pub fn mixtures() -> Vec<(&'static str, DecoderConfig)> {
    let moe = MoeConfig {
        num_experts: 4,
        layers: LayerPattern::All,
        ffn_hidden_size: 20,
        shared_expert_intermediate_size: None,
        topk: 2,
        pre_softmax: false,
        topk_scaling_factor: None,
        router_precision: Some(RouterDType::Fp32),
        aux_loss_coeff: 3.0,
        z_loss_coeff: 0.7,
        dispatcher: TokenDispatcher::AllToAll,
        ..MoeConfig::neutral()
    };
    let other = MoeConfig {
        layers: LayerPattern::Listed(vec![false, true]),
        shared_expert_intermediate_size: Some(12),
        topk: 3,
        pre_softmax: true,
        topk_scaling_factor: Some(1.5),
        router_precision: None,
        dispatcher: TokenDispatcher::AllGather,
        ..moe.clone()
    };
    let narrow = MoeConfig { latent_size: Some(12), ..moe.clone() };
    let other_narrow = MoeConfig { latent_size: Some(8), ..other.clone() };
    let beside = MoeConfig { dense_beside: true, scaled_router: true, ..other.clone() };
    let weighted = MoeConfig { weighted_inputs: true, output_multiplier: 0.5, ..moe.clone() };
    let other_weighted = MoeConfig { weighted_inputs: true, ..other.clone() };
    let biased = MoeConfig { linear_bias: true, router_bias: true, ..other.clone() };
    let all = [
        ("mixture", moe),
        ("other mixture", other),
        ("narrow experts", narrow),
        ("other narrow experts", other_narrow),
        ("experts beside a dense block", beside),
        ("weighted inputs of experts", weighted),
        ("weighted inputs of other experts", other_weighted),
    ];
    let with = |moe| DecoderConfig { moe: Some(moe), ..divisible(llama()) };
    let biased = DecoderConfig { mlp_bias: true, ..with(biased) };
    let further = DecoderConfig { mtp_num_layers: 1, ..with(all[0].1.clone()) };
    let identities =
        MoeConfig { num_identity_experts: 3, topk: 4, shared_expert_intermediate_size: None, ..all[1].1.clone() };
    let shortcut = MoeConfig {
        shortcut: true,
        num_identity_experts: 1,
        layers: LayerPattern::Listed(vec![true, false]),
        ..all[0].1.clone()
    };
    let shortcut = DecoderConfig { hidden_dropout: 0.1, ..with(shortcut) };
    let beside = [("identity experts", with(identities)), ("experts beside dense blocks", shortcut)];
    let all = all.into_iter().map(|(name, moe)| (name, with(moe)));
    let further = ("mixture of further tokens", further);
    all.chain([("mixture with biases", biased), further]).chain(beside).collect()
}

/// Mixtures whose routers behave differently in training, or depend on more than one token.
pub fn routers() -> Vec<(&'static str, DecoderConfig)> {
    let (_, mixture) = mixtures().remove(0);
    let moe = mixture.moe.clone().unwrap();
    let plain = MoeConfig { aux_loss_coeff: 0.0, z_loss_coeff: 0.0, ..moe.clone() };
    let all = [
        ("jitter", MoeConfig { input_jitter: 0.3, ..moe.clone() }),
        ("forced", MoeConfig { force_balancing: true, ..moe.clone() }),
        ("64 bits", MoeConfig { router_precision: Some(RouterDType::Fp64), ..moe.clone() }),
        ("losses of all kinds", MoeConfig { seq_aux_loss_coeff: 2.0, global_aux_loss_coeff: 1.0, ..moe }),
        ("capacity", MoeConfig { capacity_factor: Some(0.75), ..plain.clone() }),
        (
            "capacity by position, tokens everywhere",
            MoeConfig {
                capacity_factor: Some(0.75),
                drop_policy: TokenDropPolicy::Position,
                dispatcher: TokenDispatcher::AllGather,
                ..plain.clone()
            },
        ),
        ("sinkhorn", MoeConfig { sinkhorn: true, ..plain.clone() }),
        ("sinkhorn, one expert", MoeConfig { sinkhorn: true, topk: 1, ..plain }),
    ];
    all.into_iter().map(|(name, moe)| (name, DecoderConfig { moe: Some(moe), ..mixture.clone() })).collect()
}

/// Result of one rank alone on the sequences of all data-parallel ranks.
pub fn on_one_rank(model: &Model, data: usize, mode: Mode) -> Whole {
    let batch = |rank| sequences(model.config.vocab_size, rank);
    let runs = (0..data).map(|rank| run_model(model, ONE, &|_| batch(rank), mode));
    let sum = |mut sum: Whole, run: Whole| {
        sum.loss += run.loss;
        for (name, gradient) in run.gradients {
            sum.gradients.get_mut(&name).unwrap().iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        }
        sum
    };
    runs.reduce(sum).unwrap()
}

pub fn check(families: Vec<(&str, DecoderConfig)>, spreads: &[Spread]) {
    for (family, config) in families {
        check_model(family, &Model { config, adapter: None }, spreads);
    }
}

/// Checks that the distributed model has the loss, the initial values and the gradients of one
/// rank.
pub fn check_model(name: &str, model: &Model, spreads: &[Spread]) {
    check_mode(name, model, spreads, Mode::Evaluate);
}

/// [`check_model`] in this mode.
pub fn check_mode(name: &str, model: &Model, spreads: &[Spread], mode: Mode) {
    for spread in spreads {
        let expected = on_one_rank(model, spread.data, mode);
        let batches = |rank: usize| sequences(model.config.vocab_size, rank);
        let found = run_model(model, *spread, &batches, mode);
        assert_same(&found, &expected, &format!("{name} on {spread:?}"));
    }
}

pub fn check_families(spreads: &[Spread]) {
    for (family, config) in families() {
        let batches = |rank: usize| sequences(config.vocab_size, rank);
        let expected = run(&config, ONE, &batches, Mode::Evaluate);
        for spread in spreads {
            let found = run(&config, *spread, &batches, Mode::Evaluate);
            assert_same(&found, &expected, &format!("{family} on {spread:?}"));
        }
    }
}
