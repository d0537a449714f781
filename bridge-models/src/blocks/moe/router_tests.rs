//! The router against plain operations.

use super::*;
use crate::blocks::moe::choice::{Groups, top_k};
use bridge_core::config::RouterScoreFunction;
use bridge_core::model::{Auxiliary, LayerMetrics, Parallel};
use bridge_kernels::DropoutKey;
use burn::tensor::activation::softmax as burn_softmax;
use burn::tensor::{Device, Int};

use crate::blocks::regions::Regions;

const N: usize = 7;
const E: usize = 5;
const K: usize = 3;

fn settings(pre_softmax: bool) -> MoeConfig {
    MoeConfig {
        num_experts: E,
        topk: K,
        pre_softmax,
        topk_scaling_factor: Some(1.7),
        aux_loss_coeff: 0.6,
        z_loss_coeff: 0.4,
        ..MoeConfig::neutral()
    }
}

fn scores(device: &Device) -> Tensor<3> {
    let values = bridge_kernels::Philox::new(3).normal(N * E, 1.5);
    Tensor::from_data(TensorData::new(values, [1, N, E]), device).require_grad()
}

fn upstream(device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(bridge_kernels::Philox::new(4).normal(N * K, 1.0), [N, K]), device)
}

fn router(moe: &MoeConfig, device: &Device) -> Router {
    Router {
        weight: Param::from_tensor(Tensor::zeros([E, 2], device)),
        bias: None,
        expert_bias: None,
        token_experts: None,
        scales: None,
        norm_epsilon: 1e-5,
        settings: Settings::new(moe),
        coefficients: Coefficients::new(moe),
        training: TrainingSettings::new(moe),
    }
}

fn gradient<const D: usize>(x: &Tensor<D>, loss: Tensor<1>) -> Vec<f32> {
    x.grad(&loss.backward()).unwrap().into_data().try_into_vec().unwrap()
}

fn floats(x: Tensor<2>) -> Vec<f32> {
    x.into_data().try_into_vec().unwrap()
}

fn input<'a>(regions: &'a Regions, auxiliary: Auxiliary<'a>) -> MoeInput<'a> {
    MoeInput { regions, layer: 0, auxiliary, key: None, padding: None, tokens: None, weight_gradients: None }
}

fn choices(routing: &Routing, device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> = routing.experts_nk.iter().map(|expert| *expert as i64).collect();
    Tensor::from_data(TensorData::new(ids, [N, K]), device)
}

/// The experts with the largest scores of each token, without bias, groups or balancing.
fn by_score(scores: &Tensor<3>) -> Vec<usize> {
    let values: Vec<f64> = scores.clone().into_data().iter::<f64>().collect();
    values.chunks_exact(E).flat_map(|row| top_k(row, (0..E).collect(), K)).collect()
}

/// Number of the tokens that chose each expert, `[1, e]`.
fn loads(experts_nk: &[usize], device: &Device) -> Tensor<2> {
    let count = |e| experts_nk.iter().filter(|expert| **expert == e).count() as f32;
    Tensor::from_data(TensorData::new((0..E).map(count).collect::<Vec<f32>>(), [1, E]), device)
}

fn assert_close(found: impl IntoIterator<Item = f32>, expected: impl IntoIterator<Item = f32>) {
    let (found, expected): (Vec<f32>, Vec<f32>) = (found.into_iter().collect(), expected.into_iter().collect());
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 2e-6, "{found}, expected {expected}");
    }
}

#[test]
fn weights_and_gradients_are_those_of_plain_operations() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    for pre_softmax in [false, true] {
        let moe = settings(pre_softmax);
        let x = scores(&device);
        let auxiliary = Auxiliary { gradient_scale: 2.0, metrics: None };
        let routing = router(&moe, &device).route(x.clone(), &input(&regions, auxiliary));
        let found = gradient(&x, (routing.weights_nk.clone() * upstream(&device)).sum());

        let leaf = scores(&device);
        let x: Tensor<2> = leaf.clone().reshape([N, E]);
        let ids = choices(&routing, &device);
        let best = x.clone().sort_descending(1).narrow(1, 0, K);
        assert_eq!(best.into_data(), x.clone().gather(1, ids.clone()).into_data(), "the largest scores, in order");
        let p = burn_softmax(x.clone(), 1);
        let weights = match pre_softmax {
            true => p.clone().gather(1, ids),
            false => burn_softmax(x.clone().gather(1, ids), 1),
        } * 1.7;
        let balance =
            (p.sum_dim(0) * loads(&routing.experts_nk, &device)).sum() * (E as f64 / (K * N * N) as f64 * 0.6);
        let log_z = x.exp().sum_dim(1).log();
        let z = (log_z.clone() * log_z).mean() * 0.4;
        let found_weights: Vec<f32> = routing.weights_nk.into_data().try_into_vec().unwrap();
        let expected_weights: Vec<f32> = weights.clone().into_data().try_into_vec().unwrap();
        assert_close(found_weights, expected_weights);
        assert_close(found, gradient(&leaf, (weights * upstream(&device)).sum() + (balance + z) * 2.0));
    }
}

#[test]
fn softmax_weights_with_a_bias_in_the_choice_are_those_of_plain_operations() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    for pre_softmax in [false, true] {
        let moe = MoeConfig { expert_bias: true, aux_loss_coeff: 0.0, z_loss_coeff: 0.0, ..settings(pre_softmax) };
        let bias = [0.4_f32, -0.3, 0.0, 0.2, -0.1];
        let bias_e = Param::from_tensor(Tensor::<1>::from_floats(bias, &device));
        let router = Router { expert_bias: Some(bias_e), ..router(&moe, &device) };
        let x = scores(&device);
        let routing = router.route(x.clone(), &input(&regions, Auxiliary::default()));
        let found = gradient(&x, (routing.weights_nk.clone() * upstream(&device)).sum());
        let leaf = scores(&device);
        let ids = choices(&routing, &device);
        let p = burn_softmax(leaf.clone().reshape([N, E]), 1);
        let biased = p.clone() + Tensor::<1>::from_floats(bias, &device).unsqueeze();
        let best = biased.clone().sort_descending(1).narrow(1, 0, K);
        assert_close(floats(biased.gather(1, ids.clone())), floats(best));
        assert_ne!(routing.experts_nk, by_score(&leaf), "the case says something");
        let chosen = p.gather(1, ids);
        let sum = if pre_softmax { Tensor::ones([N, 1], &device) } else { chosen.clone().sum_dim(1) };
        let weights = chosen / sum * 1.7;
        assert_close(floats(routing.weights_nk), floats(weights.clone()));
        assert_close(found, gradient(&leaf, (weights * upstream(&device)).sum()));
    }
}

#[test]
fn sparsemixer_weights_each_expert_by_the_scores_close_to_it() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    let moe =
        MoeConfig { score_function: RouterScoreFunction::SparseMixer, sparsemixer_jitter: 0.4, ..settings(false) };
    let moe = MoeConfig { aux_loss_coeff: 0.0, z_loss_coeff: 0.0, ..moe };
    let x = scores(&device);
    let routing = router(&moe, &device).route(x.clone(), &input(&regions, Auxiliary::default()));
    assert_eq!(routing.experts_nk, by_score(&x), "the largest scores, in order");
    let found = gradient(&x, (routing.weights_nk.clone() * upstream(&device)).sum());
    // As transformers' `sparsemixer`, one expert after the other.
    let leaf = scores(&device);
    let s: Tensor<2> = leaf.clone().reshape([N, E]);
    let values = s.clone().detach();
    let ids = choices(&routing, &device);
    let (mut masked, mut weights) = (s.clone(), Vec::new());
    for place in 0..K {
        let id = ids.clone().narrow(1, place, 1);
        let best = masked.clone().detach().max_dim(1);
        let factor = values.clone().abs().max_pair(best.clone().expand([N, E]));
        let is_far = ((best - values.clone()) / factor).greater_elem(0.8);
        let p = burn_softmax(masked.clone().mask_fill(is_far, f32::NEG_INFINITY), 1);
        weights.push(p.gather(1, id.clone()) * 1.7);
        let chosen = Tensor::<1, Int>::arange(0..E as i64, &device).reshape([1, E]).expand([N, E]);
        masked = masked.mask_fill(chosen.equal(id.expand([N, E])), f32::NEG_INFINITY);
    }
    let weights = Tensor::cat(weights, 1);
    let expected = floats(weights.clone());
    assert!(expected.iter().any(|weight| *weight > 1.69) && expected.iter().any(|weight| *weight < 1.6));
    assert_close(floats(routing.weights_nk), expected);
    assert_close(found, gradient(&leaf, (weights * upstream(&device)).sum()));
}

#[test]
fn sigmoid_weights_and_gradients_are_those_of_plain_operations() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    let (sigmoid, root) = (RouterScoreFunction::Sigmoid, RouterScoreFunction::SqrtSoftplus);
    let functions = [(sigmoid, false, 1e-20), (sigmoid, true, 1e-20), (sigmoid, false, 0.3), (root, false, 1e-20)];
    for (score_function, raw_scores, sum_epsilon) in functions {
        let moe = MoeConfig { score_function, raw_scores, sum_epsilon, ..settings(false) };
        let bias = [0.4_f32, -0.3, 0.0, 0.2, -0.1];
        let bias_e = Param::from_tensor(Tensor::<1>::from_floats(bias, &device));
        let router = Router { expert_bias: Some(bias_e), ..router(&moe, &device) };
        let x = scores(&device);
        let auxiliary = Auxiliary { gradient_scale: 2.0, metrics: None };
        let routing = router.route(x.clone(), &input(&regions, auxiliary));
        let found = gradient(&x, (routing.weights_nk.clone() * upstream(&device)).sum());

        let leaf = scores(&device);
        let x: Tensor<2> = leaf.clone().reshape([N, E]);
        let ids = choices(&routing, &device);
        let s = match score_function {
            RouterScoreFunction::SqrtSoftplus => (x.clone().exp() + 1.0).log().sqrt(),
            _ => burn::tensor::activation::sigmoid(x.clone()),
        };
        let biased = s.clone() + Tensor::<1>::from_floats(bias, &device).unsqueeze();
        let best = biased.clone().sort_descending(1).narrow(1, 0, K);
        assert_eq!(best.into_data(), biased.gather(1, ids.clone()).into_data(), "the largest scores with their biases");
        let chosen = s.clone().gather(1, ids);
        let sum = if raw_scores { Tensor::ones([N, 1], &device) } else { chosen.clone().sum_dim(1) + sum_epsilon };
        let weights = chosen / sum * 1.7;
        let p = s.clone() / s.sum_dim(1);
        let by_score = by_score(&leaf);
        assert_ne!(loads(&by_score, &device).into_data(), loads(&routing.experts_nk, &device).into_data());
        let balance = (p.sum_dim(0) * loads(&by_score, &device)).sum() * (E as f64 / (K * N * N) as f64 * 0.6);
        let log_z = x.exp().sum_dim(1).log();
        let z = (log_z.clone() * log_z).mean() * 0.4;
        let found_weights: Vec<f32> = routing.weights_nk.into_data().try_into_vec().unwrap();
        let expected_weights: Vec<f32> = weights.clone().into_data().try_into_vec().unwrap();
        assert_close(found_weights, expected_weights);
        assert_close(found, gradient(&leaf, (weights * upstream(&device)).sum() + (balance + z) * 2.0));
    }
}

#[test]
fn a_table_chooses_and_scores_weigh() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    let moe = MoeConfig { score_function: RouterScoreFunction::SqrtSoftplus, ..settings(false) };
    let table = [[0.0_f32, 3.0, 1.0], [4.0, 2.0, 3.0]];
    let table_vk = Param::from_tensor(Tensor::<2>::from_floats(table, &device));
    let router = Router { token_experts: Some(table_vk), ..router(&moe, &device) };
    let tokens_bt = Tensor::<2, Int>::from_ints([[1, 0, 0, 1, 1, 0, 1]], &device);
    let routed = MoeInput { tokens: Some(&tokens_bt), ..input(&regions, Auxiliary::default()) };
    let x = scores(&device);
    let routing = router.route(x.clone(), &routed);
    for (row, token) in routing.experts_nk.chunks_exact(K).zip([1, 0, 0, 1, 1, 0, 1]) {
        let mut row = row.to_vec();
        row.sort_unstable();
        assert_eq!(row, [[0, 1, 3], [2, 3, 4]][token]);
    }
    let s = (x.reshape([N, E]).exp() + 1.0).log().sqrt().gather(1, choices(&routing, &device));
    assert_close(floats(routing.weights_nk), floats(s.clone() / s.sum_dim(1) * 1.7));
}

/// Only losses that `coefficients` asks for, of `N` tokens in one sequence or in `N` of one token.
fn losses_alone(moe: &MoeConfig, batch: usize, metrics: Option<&LayerMetrics>) -> (Vec<usize>, Vec<f32>) {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    let x: Tensor<3> = scores(&device).without_autodiff().autodiff().reshape([batch, N / batch, E]).require_grad();
    let routing = router(moe, &device).route(x.clone(), &input(&regions, Auxiliary { gradient_scale: 1.0, metrics }));
    (routing.experts_nk, gradient(&x, (routing.weights_nk * 0.0).sum()))
}

#[test]
fn the_loss_of_sequences_is_a_mean_over_them() {
    let device = Device::flex().autodiff();
    let moe = MoeConfig { aux_loss_coeff: 0.0, z_loss_coeff: 0.0, seq_aux_loss_coeff: 0.9, ..settings(false) };
    for batch in [1, N] {
        let metrics = LayerMetrics::default();
        let (experts_nk, found) = losses_alone(&moe, batch, Some(&metrics));
        let leaf = scores(&device);
        let p = burn_softmax(leaf.clone().reshape([N, E]), 1);
        let t = N / batch;
        let mut balance = Tensor::<1>::zeros([1], &device);
        for row in 0..batch {
            let tokens = loads(&experts_nk[row * t * K..(row + 1) * t * K], &device);
            let of_row = p.clone().narrow(0, row * t, t).sum_dim(0);
            balance = balance + (of_row * tokens).sum() * (E as f64 / (K * t * t) as f64 / batch as f64);
        }
        let value: f32 = balance.clone().into_scalar();
        let reported = metrics.take()[&("seq_load_balancing_loss", 0)][0];
        assert!((reported - f64::from(value)).abs() < 1e-6, "{reported}, expected {value}");
        assert_close(found, gradient(&leaf, balance * 0.9));
    }
}

#[test]
fn the_loss_of_the_global_batch_counts_the_tokens_of_all_micro_batches_so_far() {
    let device = Device::flex().autodiff();
    let moe = MoeConfig { aux_loss_coeff: 0.0, z_loss_coeff: 0.0, global_aux_loss_coeff: 0.9, ..settings(false) };
    let step = std::sync::Arc::default();
    // Counts of an earlier micro-batch: every token's first choice on the first expert, all other
    // choices on the last.
    let before = vec![N as f64, 0.0, 0.0, 0.0, (N * (K - 1)) as f64];
    LayerMetrics::of_micro_batch(&step, 0).mean_of_step("tokens_per_expert_by_score", 0, || before.clone());
    let metrics = LayerMetrics::of_micro_batch(&step, 1);
    let (experts_nk, found) = losses_alone(&moe, 1, Some(&metrics));
    let own = loads(&experts_nk, &device);
    let before = Tensor::<1>::from_floats(before.as_slice(), &device).unsqueeze::<2>();
    let leaf = scores(&device);
    let p = burn_softmax(leaf.clone().reshape([N, E]), 1);
    let balance = (p.sum_dim(0) * (own + before) / 2.0).sum() * (E as f64 / (K * N * N) as f64);
    let value: f32 = balance.clone().into_scalar();
    let reported = metrics.take()[&("global_load_balancing_loss", 0)][0];
    assert!((reported - f64::from(value)).abs() < 1e-6, "{reported}, expected {value}");
    assert_close(found, gradient(&leaf, balance * 0.9));
}

#[test]
fn losses_count_the_best_scores_and_loads_what_was_chosen() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    let zero = MoeConfig {
        score_function: RouterScoreFunction::Sigmoid,
        aux_loss_coeff: 0.0,
        z_loss_coeff: 0.0,
        ..settings(false)
    };
    let kinds = [
        ("load_balancing_loss", MoeConfig { aux_loss_coeff: 0.9, ..zero.clone() }),
        ("seq_load_balancing_loss", MoeConfig { seq_aux_loss_coeff: 0.9, ..zero.clone() }),
        ("global_load_balancing_loss", MoeConfig { global_aux_loss_coeff: 0.9, ..zero }),
    ];
    for (name, moe) in kinds {
        let bias = Param::from_tensor(Tensor::<1>::from_floats([9.0, -9.0, 0.0, 9.0, 0.0], &device));
        let router = Router { expert_bias: Some(bias), ..router(&moe, &device) };
        let x = scores(&device);
        let metrics = LayerMetrics::default();
        let auxiliary = Auxiliary { gradient_scale: 1.0, metrics: Some(&metrics) };
        let routing = router.route(x.clone(), &input(&regions, auxiliary));
        let found = gradient(&x, (routing.weights_nk * 0.0).sum());
        let leaf = scores(&device);
        let s = burn::tensor::activation::sigmoid(leaf.clone().reshape([N, E]));
        let p: Tensor<2> = s.clone() / s.sum_dim(1);
        let counted = loads(&by_score(&leaf), &device);
        let balance = (p.sum_dim(0) * counted.clone()).sum() * (E as f64 / (K * N * N) as f64);
        let value: f32 = balance.clone().into_scalar();
        let mut metrics = metrics.take();
        assert!((metrics[&(name, 0)][0] - f64::from(value)).abs() < 1e-6, "{name}");
        assert_close(found, gradient(&leaf, balance * 0.9));
        let given: Vec<f64> = loads(&routing.experts_nk, &device).into_data().iter::<f64>().collect();
        assert_eq!(metrics.remove(&("tokens_per_expert", 0)).unwrap(), given, "what runs report and biases follow");
        assert_ne!(given, counted.into_data().iter::<f64>().collect::<Vec<_>>(), "the case says something");
    }
}

#[test]
fn losses_of_several_kinds_add_up() {
    let zero = MoeConfig { aux_loss_coeff: 0.0, z_loss_coeff: 0.0, ..settings(false) };
    let kinds = [
        MoeConfig { aux_loss_coeff: 0.3, ..zero.clone() },
        MoeConfig { seq_aux_loss_coeff: 0.5, ..zero.clone() },
        MoeConfig { global_aux_loss_coeff: 0.7, ..zero.clone() },
    ];
    let all = MoeConfig { aux_loss_coeff: 0.3, seq_aux_loss_coeff: 0.5, global_aux_loss_coeff: 0.7, ..zero };
    let mut sum = vec![0.0; N * E];
    for moe in &kinds {
        let (_, gradient) = losses_alone(moe, N, None);
        assert!(gradient.iter().any(|g| g.abs() > 1e-4));
        sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
    }
    assert_close(losses_alone(&all, N, None).1, sum);
}

#[test]
fn sinkhorn_gives_all_tokens_and_all_experts_equal_shares() {
    let scores: Vec<f64> = bridge_kernels::Philox::new(3).normal(N * E, 1.5).into_iter().map(f64::from).collect();
    let even = sinkhorn(&scores, E);
    for row in even.chunks_exact(E) {
        assert!((row.iter().sum::<f64>() - 1.0 / N as f64).abs() < 1e-3);
    }
    for expert in 0..E {
        let sum: f64 = even.chunks_exact(E).map(|row| row[expert]).sum();
        assert!((sum - 1.0 / E as f64).abs() < 1e-3, "{sum}");
    }
    // Factors of rows and columns: crossed ratios are those of the exponentials.
    let cross = |of: &dyn Fn(usize) -> f64| of(0) * of(E + 1) / (of(1) * of(E));
    assert!((cross(&|place| even[place]) / cross(&|place| scores[place].exp()) - 1.0).abs() < 1e-9);
}

#[test]
fn sinkhorn_chooses_in_training_and_scores_weigh() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    for (topk, is_sigmoid) in [(2, false), (1, true)] {
        let moe = MoeConfig { topk, sinkhorn: true, num_experts: E, ..MoeConfig::neutral() };
        let router = router(&moe, &device);
        let x = scores(&device);
        let training = MoeInput { key: Some(key()), ..input(&regions, Auxiliary::default()) };
        let routing = router.route(x.clone(), &training);
        let values: Vec<f64> = x.clone().into_data().iter::<f64>().collect();
        let even = sinkhorn(&values, E);
        let best_of = |values: &[f64]| -> Vec<usize> {
            values.chunks_exact(E).flat_map(|row| top_k(row, (0..E).collect(), topk)).collect()
        };
        assert_eq!(routing.experts_nk, best_of(&even));
        assert_ne!(routing.experts_nk, best_of(&values), "the case says something");
        let found = gradient(&x, routing.weights_nk.clone().powf_scalar(2.0).sum());
        let leaf = scores(&device);
        let flat: Tensor<2> = leaf.clone().reshape([N, E]);
        let p = if is_sigmoid { burn::tensor::activation::sigmoid(flat) } else { burn_softmax(flat, 1) };
        let ids: Vec<i64> = routing.experts_nk.iter().map(|expert| *expert as i64).collect();
        let weights = p.gather(1, Tensor::<2, Int>::from_data(TensorData::new(ids, [N, topk]), &device));
        let expected: Vec<f32> = weights.clone().into_data().try_into_vec().unwrap();
        assert_close(routing.weights_nk.into_data().try_into_vec::<f32>().unwrap(), expected);
        assert_close(found, gradient(&leaf, weights.powf_scalar(2.0).sum()));
        let evaluated = router.route(x, &input(&regions, Auxiliary::default()));
        assert_eq!(evaluated.experts_nk, best_of(&values), "outside of training the scores themselves choose");
    }
}

fn key() -> DropoutKey {
    DropoutKey(bridge_kernels::Philox::new(8))
}

#[test]
fn noise_is_on_the_input_of_the_router_and_only_in_training() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    let moe = MoeConfig { input_jitter: 0.25, ..settings(false) };
    let values = bridge_kernels::Philox::new(5).normal(E * 2, 1.0);
    let weight = Param::from_tensor(Tensor::<2>::from_data(TensorData::new(values, [E, 2]), &device));
    let router = Router { weight: weight.clone(), ..router(&moe, &device) };
    let x = Tensor::<3>::ones([2, 3, 2], &device).require_grad();
    let evaluated = router.logits(x.clone(), &input(&regions, Auxiliary::default()));
    let plain = linear(x.clone(), weight.val(), None);
    assert_eq!(evaluated.into_data(), plain.into_data());
    let training = MoeInput { key: Some(key()), ..input(&regions, Auxiliary::default()) };
    let logits = router.logits(x.clone(), &training);
    let again = router.logits(x.clone(), &training);
    assert_eq!(logits.clone().into_data(), again.into_data(), "a recomputed layer draws the same");
    // The gradient with respect to the input is that of the product times the drawn factors, so it
    // yields the factors.
    let factors: Vec<f32> = gradient(&x, logits.clone().sum());
    let sums: Vec<f32> = weight.val().sum_dim(0).into_data().try_into_vec().unwrap();
    let factors: Vec<f32> = factors.iter().enumerate().map(|(place, g)| g / sums[place % 2]).collect();
    assert!(factors.iter().all(|factor| (0.75..=1.25).contains(factor)), "{factors:?}");
    assert!(factors.iter().any(|factor| *factor > 1.1) && factors.iter().any(|factor| *factor < 0.9));
    let noisy = x.clone() * Tensor::<3>::from_data(TensorData::new(factors, [2, 3, 2]), &device);
    let expected: Vec<f32> = linear(noisy, weight.val(), None).into_data().try_into_vec().unwrap();
    assert_close(logits.into_data().try_into_vec::<f32>().unwrap(), expected);
}

#[test]
fn forced_routing_is_even_and_has_the_gradients_of_the_drawn_scores() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    let moe = MoeConfig { force_balancing: true, ..settings(false) };
    let router = router(&moe, &device);
    let training = MoeInput { key: Some(key()), ..input(&regions, Auxiliary::default()) };
    let x = Tensor::<3>::zeros([4, 500, 2], &device).require_grad();
    let logits = router.logits(x.clone(), &training);
    let routing = router.route(logits.clone(), &training);
    for expert in 0..E {
        let share = routing.experts_nk.iter().filter(|chosen| **chosen == expert).count() as f64 / 2000.0;
        assert!((share - K as f64 / E as f64).abs() < 0.05, "expert {expert}: {share}");
    }
    let leaf = scores(&device);
    let drawn = router.training.forced(leaf.clone(), &training);
    let values: Vec<f32> = drawn.clone().into_data().try_into_vec().unwrap();
    assert_eq!(
        gradient(&leaf, drawn.clone().powf_scalar(2.0).sum()),
        values.iter().map(|v| 2.0 * v).collect::<Vec<_>>()
    );
    let evaluated = router.training.forced(leaf.clone(), &input(&regions, Auxiliary::default()));
    assert_eq!(evaluated.into_data(), leaf.into_data());
}

#[test]
fn routing_in_64_bits_is_that_in_32_bits_with_more_of_them() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    let values = |seed, count| bridge_kernels::Philox::new(seed).normal(count, 1.0);
    let of = |precision| {
        let weight = Tensor::<2>::from_data(TensorData::new(values(5, E * 2), [E, 2]), &device).require_grad();
        let moe = MoeConfig { router_precision: precision, ..settings(false) };
        let router = Router { weight: Param::from_tensor(weight), ..router(&moe, &device) };
        let x = Tensor::<3>::from_data(TensorData::new(values(6, N * 2), [1, N, 2]), &device).require_grad();
        let input = input(&regions, Auxiliary::default());
        let logits = router.logits(x.clone(), &input);
        let (dtype, data) = (logits.dtype(), logits.clone().into_data());
        let routing = router.route(logits, &input);
        let gradient = gradient(&x, (routing.weights_nk * upstream(&device)).sum());
        (dtype, data.iter::<f64>().collect::<Vec<f64>>(), routing.experts_nk, gradient)
    };
    let (narrow, wide) = (of(Some(RouterDType::Fp32)), of(Some(RouterDType::Fp64)));
    assert_eq!((narrow.0, wide.0), (DType::F32, DType::F64));
    assert_eq!(narrow.2, wide.2);
    assert_close(narrow.3, wide.3);
    assert!(wide.1.iter().any(|score| f64::from(*score as f32) != *score), "scores have more than 32 bits");
    let exact: Vec<f64> = (0..N * E)
        .map(|place| {
            let (x, w) = (&values(6, N * 2)[place / E * 2..][..2], &values(5, E * 2)[place % E * 2..][..2]);
            x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
        })
        .collect();
    assert!(wide.1.iter().zip(&exact).all(|(found, exact)| (found - exact).abs() < 1e-15));
}

#[test]
fn a_token_uses_experts_of_its_best_groups() {
    let groups = Groups { count: 3, topk: 2, compared: 2 };
    // The last group has the best expert, the other two the better pairs.
    let scores = [0.5, 0.4, 0.1, 0.0, 0.45, 0.46, 0.8, 0.0, 0.02];
    assert_eq!(groups.experts(&scores), [0, 1, 2, 3, 4, 5]);
    assert_eq!(Groups { compared: 1, ..groups }.experts(&scores), [0, 1, 2, 6, 7, 8]);
    assert_eq!(top_k(&scores, groups.experts(&scores), 3), [0, 5, 4]);
    assert_eq!(top_k(&[1.0, 2.0, 2.0, 1.0], vec![0, 1, 2, 3], 3), [1, 2, 0], "of equal scores the lower number");
}

#[test]
fn groups_of_a_said_number_of_best_experts_are_compared_by_probabilities() {
    let grouped = |group_score_topk| MoeConfig {
        num_experts: 4,
        topk: 1,
        num_groups: Some(2),
        group_topk: Some(1),
        group_score_topk,
        ..MoeConfig::neutral()
    };
    // The first group has the best expert and the worst, whose scores add up to less.
    let scores = [3.0, -5.0, 1.0, 1.0];
    let chosen = |moe: MoeConfig, scores: &[f64]| {
        let choice = Choice::from_scores(scores, &[0.0; 4], None, &Settings::new(&moe));
        (choice.experts_nk, choice.weights_nk)
    };
    assert_eq!(chosen(grouped(Some(2)), &scores), (vec![0], vec![1.0]));
    assert_eq!(chosen(MoeConfig { topk: 2, ..grouped(None) }, &scores).0, [2, 3]);
}

#[test]
fn padding_is_not_routed_and_changes_no_loss() {
    let device = Device::flex().autodiff();
    let regions = Regions::new(&Parallel::single());
    let moe = MoeConfig { seq_aux_loss_coeff: 0.3, global_aux_loss_coeff: 0.2, ..settings(false) };
    let own: Vec<f32> = scores(&device).into_data().try_into_vec().unwrap();
    let run = |padded: usize| {
        // The scores of padding must not affect the result.
        let values = [own.clone(), vec![9.0; padded * E]].concat();
        let x = Tensor::<3>::from_data(TensorData::new(values, [1, N + padded, E]), &device).require_grad();
        let mask: Vec<bool> = (0..N + padded).map(|token| token >= N).collect();
        let metrics = LayerMetrics::default();
        let auxiliary = Auxiliary { gradient_scale: 2.0, metrics: Some(&metrics) };
        let padding = (padded > 0).then_some(mask.as_slice());
        let routing = router(&moe, &device).route(x.clone(), &MoeInput { padding, ..input(&regions, auxiliary) });
        let weights = routing.weights_nk.clone().slice([0..N, 0..K]);
        let gradient = gradient(&x, (weights.clone() * upstream(&device)).sum());
        let weights: Vec<f32> = weights.into_data().try_into_vec().unwrap();
        (routing.experts_nk, weights, gradient, metrics.take())
    };
    let (experts, weights, gradient, metrics) = run(0);
    let (padded_experts, padded_weights, padded_gradient, padded_metrics) = run(4);
    assert_eq!(padded_experts[..N * K], experts);
    assert!(padded_experts[N * K..].iter().all(|expert| *expert == E), "padding has no expert");
    assert_eq!((padded_weights, padded_metrics), (weights, metrics));
    assert_eq!(padded_gradient[..N * E], gradient);
    assert!(padded_gradient[N * E..].iter().all(|value| *value == 0.0));
}
