//! Decoders spread over thread ranks against the same decoder on one rank: initial values, loss,
//! all gradients, logits.

use std::time::Duration;

use bridge_dist::comm::thread::run_ranks;
use bridge_dist::mesh::ProcessGroups;
use bridge_kernels::Philox;

use super::spread::*;
use super::*;
use crate::blocks::embedding::vocabulary_rows;
use crate::blocks::head::{Projection, Targets, loss_sum};
use crate::blocks::regions::Regions;

#[test]
fn tensor_parallel_ranks_compute_what_one_does() {
    check_families(&[Spread { tensor: 2, ..ONE }, Spread { tensor: 4, ..ONE }]);
}

#[test]
fn sequence_parallel_ranks_compute_what_one_does() {
    let sequence_parallel = Spread { sequence_parallel: true, ..ONE };
    check_families(&[Spread { tensor: 2, ..sequence_parallel }, Spread { tensor: 4, ..sequence_parallel }]);
}

/// Configuration with these numbers of heads and groups, whose matrices divide over this number of
/// ranks.
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
            ("sinks", DecoderConfig { attention_sinks: true, ..llama() }),
            ("gates of the projection", gates()[0].clone()),
            ("gates of elements", gates()[1].clone()),
            ("gates of heads", gates()[2].clone()),
            ("everything", everything()),
            ("norms over projections", factors()[0].clone()),
        ];
        let name = |family: &str| format!("{family} with heads, groups and ranks {sizes:?}");
        for (family, config) in families {
            check(vec![(&name(family), with_heads(config, sizes))], &spreads);
        }
    }
    let (sizes, tensor) = ([8, 2, 4], Spread { tensor: 4, ..ONE });
    let mut windowed = with_heads(switches()[3].clone(), sizes);
    windowed.windowed.num_query_groups = Some(1);
    check(vec![("other heads in windows", windowed)], &[tensor, Spread { sequence_parallel: true, ..tensor }]);
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
fn grouped_experts_compute_what_those_apart_do() {
    let grouped = |config: &DecoderConfig, is_grouped| {
        let moe = config.moe.clone().map(|moe| MoeConfig { grouped_gemm: is_grouped, ..moe });
        DecoderConfig { moe, ..config.clone() }
    };
    // More experts than the tokens choose.
    let (_, mixture) = mixtures().remove(0);
    let many = mixture.moe.clone().map(|moe| MoeConfig { num_experts: 24, topk: 1, pre_softmax: true, ..moe });
    let idle = ("idle experts", DecoderConfig { moe: many, ..mixture });
    let expert = Spread { expert: 2, data: 2, ..ONE };
    let in_halves = Spread { tensor: 2, sequence_parallel: true, ..expert };
    for (name, config) in mixtures().into_iter().chain([idle]) {
        for spread in [ONE, Spread { tensor: 2, ..ONE }, expert, Spread { expert: 4, data: 4, ..ONE }, in_halves] {
            let step = |is_grouped| {
                let config = grouped(&config, is_grouped);
                run(&config, spread, &|rank| sequences(config.vocab_size, rank), Mode::Train(Philox::new(11)))
            };
            let (found, expected) = (step(true), step(false));
            assert!(found.loss == expected.loss, "{name}, {spread:?}: the loss");
            for (parameter, expected) in &expected.gradients {
                assert!(found.gradients[parameter] == *expected, "{name}, {spread:?}: the gradient of {parameter}");
            }
            let is_idle = |(name, gradient): (&String, &Vec<f32>)| {
                name.contains("local_experts") && gradient.iter().all(|g| *g == 0.0)
            };
            assert_eq!(found.gradients.iter().any(is_idle), name == "idle experts", "{name}, {spread:?}: idle experts");
        }
    }
}

#[test]
fn routers_of_every_kind_do_on_many_ranks_what_they_do_on_one() {
    let tensor = Spread { tensor: 2, ..ONE };
    let sequence = Spread { sequence_parallel: true, ..tensor };
    let own_tokens = Spread { expert_tensor: Some(1), expert: 2, context: 2, ..sequence };
    let shared = [tensor, sequence, Spread { context: 2, ..ONE }, own_tokens];
    for (name, config) in super::spread::routers() {
        // The loss of the global batch also depends on other replicas, which are earlier or later
        // micro-batches on one rank.
        let replicas = config.moe.as_ref().is_some_and(|moe| moe.global_aux_loss_coeff == 0.0);
        let replicas = replicas.then_some(Spread { expert: 2, data: 2, ..ONE });
        let spreads: Vec<Spread> = shared.into_iter().chain(replicas).collect();
        let model = Model { config, adapter: None };
        super::spread::check_mode(name, &model, &spreads, Mode::Train(Philox::new(11)));
    }
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

/// Enough tokens that the loss processes them in several chunks, whose length depends on the rows
/// of a rank.
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
        let projection =
            Projection { weight_vc: weight_vc.into(), bias_v: None, vocab_size: ROWS, multiplier: 1.0, softcap: None };
        let sum = loss_sum(x, projection, targets, &regions, None);
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
