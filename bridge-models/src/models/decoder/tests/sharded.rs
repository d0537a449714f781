//! Decoders spread over thread ranks against the same decoder on one rank: initial values, loss, all gradients, logits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bridge_core::model::{Adapter, Declaration, Placement, ReplicaGroup};
use bridge_data::SequencePart;
use bridge_dist::comm::thread::run_ranks;
use bridge_dist::mesh::{Coordinates, Mesh, ParallelSizes, ProcessGroups, RankOrder};
use bridge_dist::region::Cut;
use bridge_kernels::Philox;

use super::*;
use crate::blocks::embedding::vocabulary_rows;
use crate::blocks::head::{Projection, Targets, loss_sum};
use crate::blocks::regions::Regions;

/// How a model is spread.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub tensor: usize,
    pub sequence_parallel: bool,
    pub context: usize,
    pub expert: usize,
    /// As many as `tensor` where not said.
    pub expert_tensor: Option<usize>,
    pub data: usize,
}

pub const ONE: Spread =
    Spread { tensor: 1, sequence_parallel: false, context: 1, expert: 1, expert_tensor: None, data: 1 };

impl Spread {
    fn mesh(self) -> Mesh {
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

/// What one rank has after a step.
struct RankResult {
    coordinates: Coordinates,
    loss: f32,
    parameters: Vec<(Declaration, Vec<f32>, Vec<f32>)>,
}

/// Values, gradients and loss of a whole model.
struct Whole {
    loss: f64,
    values: Values,
    gradients: Values,
}

/// The elements of a whole tensor that a rank holds.
fn held(placement: &Placement, global_shape: &[usize]) -> Vec<usize> {
    placement.held_runs(global_shape).into_iter().flatten().collect()
}

/// Moves vectors off their initial ones and zeros, by the same noise whatever the spread.
fn disturb(chunk: &mut dyn ModelChunk) {
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
fn sequences(vocab_size: usize, data_rank: usize) -> MicroBatch {
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
fn cut(batch: &MicroBatch, rank: usize, ranks: usize) -> MicroBatch {
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

fn build_spread(model: &Model, groups: ProcessGroups, spread: Spread) -> Box<dyn ModelChunk> {
    let (config, adapter) = (&model.config, model.adapter.clone());
    let parallel = Parallel { groups, sequence_parallel: spread.sequence_parallel };
    let context = BuildContext { parallel, adapter, ..context(config) };
    let mut chunk = build_decoder(config, &context, &Stage::whole([config.num_layers])).unwrap();
    disturb(chunk.as_mut());
    chunk
}

type BatchOf<'a> = dyn Fn(usize) -> MicroBatch + Sync + 'a;

/// A model, with an adapter or without.
pub struct Model {
    pub config: DecoderConfig,
    pub adapter: Option<Arc<dyn Adapter>>,
}

/// One step on every rank; `batches` gives each data-parallel rank its sequences.
fn run(config: &DecoderConfig, spread: Spread, batches: &BatchOf, mode: Mode) -> Whole {
    run_model(&Model { config: config.clone(), adapter: None }, spread, batches, mode)
}

/// [`run`], of the parameters that are trained.
fn run_model(model: &Model, spread: Spread, batches: &BatchOf, mode: Mode) -> Whole {
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

/// The whole model from every rank's part, by the rules of the contract (`bridge_core::model::placement`).
fn assemble(results: &[RankResult], spread: Spread) -> Whole {
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
fn assert_same(found: &Whole, expected: &Whole, what: &str) {
    assert!(found.values == expected.values, "{what}: initial values are slices of the unsharded ones");
    let difference = (found.loss / expected.loss - 1.0).abs();
    assert!(difference < 1e-5, "{what}: loss {}, expected {}", found.loss, expected.loss);
    assert_eq!(found.gradients.len(), expected.gradients.len());
    for (name, expected) in &expected.gradients {
        let largest = expected.iter().fold(0.0_f32, |largest, g| largest.max(g.abs()));
        assert!(largest > 0.0, "{what}: the gradient of {name} says nothing");
        for (i, (a, b)) in found.gradients[name].iter().zip(expected).enumerate() {
            assert!((a - b).abs() <= 1e-5 * largest, "{what}: gradient {i} of {name}: {a}, expected {b}");
        }
    }
}

/// Sizes that divide by four, where the decoder needs that, and not where it does not.
fn divisible(config: DecoderConfig) -> DecoderConfig {
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
    };
    let post_norm = ResidualConfig { norms: NormPlacement::Sum, ..ResidualConfig::default() };
    let families = [
        ("llama", llama()),
        ("llama, tied", tied),
        ("blocks side by side in sandwich norms", DecoderConfig { residual, ..llama() }),
        ("gpt2 with post-norm", DecoderConfig { residual: post_norm, ..gpt2() }),
        ("gpt2", gpt2()),
        ("gpt2, untied", untied),
        ("everything", everything()),
    ];
    // Rows of a vocabulary need not divide.
    let rows = |name: &str| if name.contains("tied") { 43 } else { 40 };
    let divisible = |name, config| DecoderConfig { padded_vocab_size: rows(name), ..divisible(config) };
    families.into_iter().map(|(name, config)| (name, divisible(name, config))).collect()
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
        router_in_float32: true,
        aux_loss_coeff: 3.0,
        z_loss_coeff: 0.7,
        dispatcher: Dispatcher::AllToAll,
    };
    let other = MoeConfig {
        layers: LayerPattern::Listed(vec![false, true]),
        shared_expert_intermediate_size: Some(12),
        topk: 3,
        pre_softmax: true,
        topk_scaling_factor: Some(1.5),
        router_in_float32: false,
        dispatcher: Dispatcher::AllGather,
        ..moe.clone()
    };
    let with = |moe| DecoderConfig { moe: Some(moe), ..divisible(llama()) };
    vec![("mixture", with(moe)), ("other mixture", with(other))]
}

/// What one rank computes from the sequences of all data-parallel ranks.
fn on_one_rank(model: &Model, data: usize, mode: Mode) -> Whole {
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

fn check(families: Vec<(&str, DecoderConfig)>, spreads: &[Spread]) {
    for (family, config) in families {
        check_model(family, &Model { config, adapter: None }, spreads);
    }
}

/// Whether the model spread so has the loss, the initial values and the gradients of one rank.
pub fn check_model(name: &str, model: &Model, spreads: &[Spread]) {
    for spread in spreads {
        let expected = on_one_rank(model, spread.data, Mode::Evaluate);
        let batches = |rank: usize| sequences(model.config.vocab_size, rank);
        let found = run_model(model, *spread, &batches, Mode::Evaluate);
        assert_same(&found, &expected, &format!("{name} on {spread:?}"));
    }
}

fn check_families(spreads: &[Spread]) {
    for (family, config) in families() {
        let batches = |rank: usize| sequences(config.vocab_size, rank);
        let expected = run(&config, ONE, &batches, Mode::Evaluate);
        for spread in spreads {
            let found = run(&config, *spread, &batches, Mode::Evaluate);
            assert_same(&found, &expected, &format!("{family} on {spread:?}"));
        }
    }
}

#[test]
fn tensor_parallel_ranks_compute_what_one_does() {
    check_families(&[Spread { tensor: 2, ..ONE }, Spread { tensor: 4, ..ONE }]);
}

#[test]
fn sequence_parallel_ranks_compute_what_one_does() {
    let sequence_parallel = Spread { sequence_parallel: true, ..ONE };
    check_families(&[Spread { tensor: 2, ..sequence_parallel }, Spread { tensor: 4, ..sequence_parallel }]);
}

/// A configuration with so many heads and groups that the matrices divide over so many ranks.
pub fn with_heads(config: DecoderConfig, [heads, groups, ranks]: [usize; 3]) -> DecoderConfig {
    DecoderConfig {
        num_attention_heads: heads,
        num_query_groups: groups,
        ffn_hidden_size: 24,
        padded_vocab_size: 40_usize.next_multiple_of(ranks),
        ..divisible(config)
    }
}

/// Heads, groups and ranks, of which there are more than groups.
const SHARED_HEADS: [[usize; 3]; 7] = [[8, 2, 4], [4, 1, 2], [8, 1, 8], [8, 2, 8], [8, 4, 8], [6, 3, 6], [12, 2, 6]];

#[test]
fn ranks_that_hold_the_same_keys_and_values_compute_what_one_does() {
    for sizes in SHARED_HEADS {
        let tensor = Spread { tensor: sizes[2], ..ONE };
        let mut spreads = vec![tensor];
        if sizes[2].is_power_of_two() {
            spreads.push(Spread { sequence_parallel: true, ..tensor });
        }
        let families = [
            ("llama", llama()),
            ("biases and norms", DecoderConfig { qkv_bias: true, qk_layernorm: true, ..llama() }),
            ("gpt2", gpt2()),
            ("everything", everything()),
        ];
        let name = |family: &str| format!("{family} with heads, groups and ranks {sizes:?}");
        for (family, config) in families {
            check(vec![(&name(family), with_heads(config, sizes))], &spreads);
        }
    }
    let (sizes, tensor) = ([8, 2, 4], Spread { tensor: 4, ..ONE });
    let both = Spread { context: 2, ..tensor };
    check(vec![("over context too", with_heads(everything(), sizes))], &[both]);
    for (family, config) in mixtures() {
        let in_halves = Spread { expert_tensor: Some(2), expert: 2, sequence_parallel: true, ..tensor };
        let config = DecoderConfig { num_query_groups: 2, ..config };
        check(vec![(family, config)], &[tensor, in_halves, Spread { data: 2, ..tensor }]);
    }
}

#[test]
fn context_parallel_ranks_compute_what_one_does() {
    let both = Spread { tensor: 2, context: 2, ..ONE };
    check_families(&[Spread { context: 2, ..ONE }, both, Spread { sequence_parallel: true, ..both }]);
}

#[test]
fn mixtures_on_tensor_and_context_parallel_ranks_compute_what_one_does() {
    let tensor = Spread { tensor: 2, ..ONE };
    let both = Spread { tensor: 2, context: 2, ..ONE };
    check(mixtures(), &[tensor, Spread { sequence_parallel: true, ..tensor }, Spread { context: 2, ..ONE }, both]);
}

#[test]
fn expert_parallel_ranks_compute_what_one_does() {
    let expert = Spread { expert: 2, data: 2, ..ONE };
    let over_context = Spread { expert: 2, context: 2, ..ONE };
    let with_tensor = Spread { tensor: 2, sequence_parallel: true, ..expert };
    let replicated = Spread { expert: 2, data: 4, ..ONE };
    let all = [expert, Spread { expert: 4, data: 4, ..ONE }, over_context, with_tensor, replicated];
    check(mixtures(), &all);
}

#[test]
fn experts_cut_over_other_ranks_than_the_rest_compute_what_one_does() {
    let sequence_parallel = Spread { tensor: 2, sequence_parallel: true, ..ONE };
    let whole_experts = Spread { expert_tensor: Some(1), ..sequence_parallel };
    let over_tensor_ranks = Spread { expert: 2, ..whole_experts };
    let over_all = Spread { expert: 4, data: 2, ..whole_experts };
    let over_context = Spread { expert: 2, context: 2, ..whole_experts };
    let in_halves = Spread { tensor: 4, expert_tensor: Some(2), expert: 2, ..sequence_parallel };
    let only_experts = Spread { expert_tensor: Some(2), data: 2, ..ONE };
    let only_experts_and_parallel = Spread { expert: 2, data: 4, ..only_experts };
    let replicated = Spread { data: 2, expert: 2, ..whole_experts };
    check(mixtures(), &[whole_experts, over_tensor_ranks, over_all, over_context, in_halves]);
    check(mixtures(), &[only_experts, only_experts_and_parallel, replicated]);
}

#[test]
fn experts_cut_over_other_ranks_need_sequence_parallelism() {
    let spread = Spread { tensor: 2, expert_tensor: Some(1), ..ONE };
    let (_, config) = mixtures().remove(0);
    let messages = run_ranks(2, Duration::from_secs(30), |world| {
        let groups = ProcessGroups::new(world, spread.mesh())?;
        let context = BuildContext { parallel: Parallel { groups, sequence_parallel: false }, ..context(&config) };
        let outcome = build_decoder(&config, &context, &Stage::whole([config.num_layers]));
        Ok::<_, bridge_dist::mesh::MeshSetupError>(outcome.unwrap_err().to_string())
    });
    for message in messages.unwrap() {
        assert!(message.starts_with("model.expert_tensor_parallel_size"), "{message}");
        assert!(message.contains("need model.sequence_parallel"), "{message}");
    }
}

#[test]
fn context_parallel_attention_stays_inside_documents() {
    let config = divisible(llama());
    let batches = |rank: usize| MicroBatch {
        document_ids: Some([[0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 1, 2]].concat()),
        ..sequences(config.vocab_size, rank)
    };
    let expected = run(&config, ONE, &batches, Mode::Evaluate);
    let whole = run(&config, ONE, &|rank| sequences(config.vocab_size, rank), Mode::Evaluate);
    assert!(expected.loss != whole.loss, "boundaries matter");
    for context in [2, 4] {
        let spread = Spread { context, ..ONE };
        assert_same(&run(&config, spread, &batches, Mode::Evaluate), &expected, &format!("{spread:?}"));
    }
    // Documents begin where chunks do, so that the positions of some parts count up from 0.
    let restarted = |rank: usize| MicroBatch { position_ids: [[0, 1, 0, 1, 0, 1, 2, 3]; 2].concat(), ..batches(rank) };
    let expected = run(&config, ONE, &restarted, Mode::Evaluate);
    for context in [2, 4] {
        let spread = Spread { context, ..ONE };
        assert_same(&run(&config, spread, &restarted, Mode::Evaluate), &expected, &format!("{spread:?}, restarted"));
    }
}

#[test]
fn residual_dropout_has_the_masks_of_one_rank() {
    for (family, config) in families() {
        let config = DecoderConfig { embedding_dropout: 0.2, hidden_dropout: 0.3, ..config };
        let batches = |rank: usize| sequences(config.vocab_size, rank);
        let mode = Mode::Train(Philox::new(3));
        let expected = run(&config, ONE, &batches, mode);
        let dry = run(&config, ONE, &batches, Mode::Evaluate);
        assert!(dry.loss != expected.loss, "dropout drops something");
        let tensor = Spread { tensor: 2, ..ONE };
        let both = Spread { tensor: 2, sequence_parallel: true, context: 2, ..ONE };
        for spread in [tensor, Spread { sequence_parallel: true, ..tensor }, Spread { context: 2, ..ONE }, both] {
            assert_same(&run(&config, spread, &batches, mode), &expected, &format!("{family} on {spread:?}"));
        }
    }
}

#[test]
fn attention_dropout_differs_between_heads_of_different_ranks_and_repeats() {
    let config = DecoderConfig { attention_dropout: 0.4, ..divisible(llama()) };
    let batches = |rank: usize| sequences(config.vocab_size, rank);
    let mode = Mode::Train(Philox::new(3));
    let spread = Spread { tensor: 2, ..ONE };
    let (one, again) = (run(&config, spread, &batches, mode), run(&config, spread, &batches, mode));
    assert_eq!(one.gradients, again.gradients);
    assert!(one.loss != run(&config, spread, &batches, Mode::Evaluate).loss);
}

#[test]
fn tensor_parallel_logits_are_whole_on_every_rank() {
    let mut families = families();
    families.push(("shared keys and values", with_heads(everything(), [8, 2, 4])));
    for (family, config) in families {
        let ids = tokens(5, config.vocab_size);
        let logits_on = |spread: Spread| {
            let mesh = spread.mesh();
            run_ranks(mesh.world_size(), Duration::from_secs(60), |world| {
                let groups = ProcessGroups::new(world, mesh)?;
                let chunk = build_spread(&Model { config: config.clone(), adapter: None }, groups, spread);
                let model = chunk.inference();
                let mut state = model.new_state();
                let mut all = logits_after(model.as_ref(), &mut state, &ids[..3]);
                all.extend(logits_after(model.as_ref(), &mut state, &ids[3..]));
                Ok::<_, bridge_dist::mesh::MeshSetupError>(all)
            })
            .unwrap()
        };
        let expected = logits_on(ONE).remove(0);
        let spread = Spread { tensor: 2, sequence_parallel: true, ..ONE };
        for found in logits_on(spread).into_iter().chain(logits_on(Spread { tensor: 4, ..spread })) {
            assert_close(&found, &expected, 1e-5);
        }
        assert_eq!(expected.len(), 5 * config.padded_vocab_size, "{family}");
    }
}

/// So many tokens that the loss goes through them in several chunks, whose length depends on the rows of a rank.
#[test]
fn ranks_with_fewer_rows_take_chunks_of_the_same_length() {
    const ROWS: usize = 65_537;
    let (tokens, width) = (600_usize, 4_usize);
    let values = |count: usize, seed: &str| {
        Philox::new(5).derive_name(seed).normal_range(0..count, 0.5).into_iter().collect::<Vec<f32>>()
    };
    let loss = |world: bridge_dist::comm::Group, ranks: usize| {
        let groups = ProcessGroups::new(world, Spread { tensor: ranks, ..ONE }.mesh())?;
        let rows = vocabulary_rows(ROWS, groups.tensor().rank(), ranks);
        let regions = Regions::new(&Parallel { groups, sequence_parallel: false });
        let device = Device::flex();
        let table = values(ROWS * width, "table")[rows.start * width..rows.end * width].to_vec();
        let weight_vc = Tensor::<2>::from_data(TensorData::new(table, [rows.len(), width]), &device);
        let x = Tensor::<3>::from_data(TensorData::new(values(tokens * width, "x"), [1, tokens, width]), &device);
        let labels: Vec<i64> = (0..tokens).map(|i| (i * 7919 % ROWS) as i64).collect();
        let labels_bt = Tensor::<2, Int>::from_data(TensorData::new(labels, [1, tokens]), &device);
        let targets = Targets { labels_bt, mask_bt: Tensor::ones([1, tokens], &device) };
        let projection = Projection { weight_vc, vocab_size: ROWS, softcap: None };
        let sum = loss_sum(x, projection, targets, &regions);
        Ok::<_, bridge_dist::mesh::MeshSetupError>(sum.into_data().iter::<f32>().next().expect("a sum"))
    };
    let on = |ranks| run_ranks(ranks, Duration::from_secs(60), |world| loss(world, ranks)).unwrap();
    let expected = on(1)[0];
    for found in on(2).into_iter().chain(on(3)) {
        assert!((found / expected - 1.0).abs() < 1e-5, "{found}, expected {expected}");
    }
}

#[test]
fn sizes_that_do_not_divide_are_refused_by_key() {
    let cases = [
        ("model.num_query_groups", DecoderConfig { num_attention_heads: 6, num_query_groups: 3, ..divisible(llama()) }),
        ("model.ffn_hidden_size", DecoderConfig { ffn_hidden_size: 29, ..divisible(llama()) }),
    ];
    for (key, config) in cases {
        let mesh = Spread { tensor: 2, ..ONE }.mesh();
        let messages = run_ranks(2, Duration::from_secs(30), |world| {
            let groups = ProcessGroups::new(world, mesh)?;
            let context = BuildContext { parallel: Parallel { groups, sequence_parallel: false }, ..context(&config) };
            let outcome = build_decoder(&config, &context, &Stage::whole([config.num_layers]));
            Ok::<_, bridge_dist::mesh::MeshSetupError>(outcome.unwrap_err().to_string())
        });
        for message in messages.unwrap() {
            assert!(message.starts_with(key) && message.contains("a multiple "), "{message}");
        }
    }
}
