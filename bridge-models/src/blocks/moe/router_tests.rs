//! The router against plain operations.

use super::*;
use bridge_core::model::{Auxiliary, Parallel};
use burn::tensor::activation::softmax as burn_softmax;
use burn::tensor::{Device, Int};

use crate::blocks::regions::Regions;

const N: usize = 7;
const E: usize = 5;
const K: usize = 3;

fn settings(pre_softmax: bool) -> Settings {
    Settings {
        topk: K,
        score_function: ScoreFunction::Softmax,
        raw_scores: false,
        groups: None,
        pre_softmax,
        scaling_factor: 1.7,
        in_float32: false,
        aux_loss_coeff: 0.6,
        z_loss_coeff: 0.4,
    }
}

fn scores(device: &Device) -> Tensor<2> {
    let values = bridge_kernels::Philox::new(3).normal(N * E, 1.5);
    Tensor::from_data(TensorData::new(values, [N, E]), device).require_grad()
}

fn upstream(device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(bridge_kernels::Philox::new(4).normal(N * K, 1.0), [N, K]), device)
}

fn router(settings: Settings, device: &Device) -> Router {
    Router { weight: Param::from_tensor(Tensor::zeros([E, 2], device)), bias: None, expert_bias: None, settings }
}

fn gradient(x: &Tensor<2>, loss: Tensor<1>) -> Vec<f32> {
    x.grad(&loss.backward()).unwrap().into_data().try_into_vec().unwrap()
}

#[test]
fn weights_and_gradients_are_those_of_plain_operations() {
    let device = Device::flex().autodiff();
    for pre_softmax in [false, true] {
        let settings = settings(pre_softmax);
        let router = router(settings, &device);
        let regions = Regions::new(&Parallel::single());
        let auxiliary = Auxiliary { gradient_scale: 2.0, metrics: None };
        let x = scores(&device);
        let routing =
            router.route(x.clone(), &MoeInput { regions: &regions, layer: 0, auxiliary, weight_gradients: None });
        let found = gradient(&x, (routing.weights_nk.clone() * upstream(&device)).sum());

        let x = scores(&device);
        let ids: Vec<i64> = routing.experts_nk.iter().map(|expert| *expert as i64).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [N, K]), &device);
        let best = x.clone().sort_descending(1).narrow(1, 0, K);
        assert_eq!(best.into_data(), x.clone().gather(1, ids.clone()).into_data(), "the largest scores, in order");
        let p = burn_softmax(x.clone(), 1);
        let weights = match pre_softmax {
            true => p.clone().gather(1, ids),
            false => burn_softmax(x.clone().gather(1, ids), 1),
        } * settings.scaling_factor;
        let tokens: Vec<f32> =
            (0..E).map(|e| routing.experts_nk.iter().filter(|expert| **expert == e).count() as f32).collect();
        let tokens = Tensor::<2>::from_data(TensorData::new(tokens, [1, E]), &device);
        let balance = (p.sum_dim(0) * tokens).sum() * (E as f64 / (K * N * N) as f64 * settings.aux_loss_coeff);
        let log_z = x.clone().exp().sum_dim(1).log();
        let z = (log_z.clone() * log_z).mean() * settings.z_loss_coeff;
        let found_weights: Vec<f32> = routing.weights_nk.into_data().try_into_vec().unwrap();
        let expected_weights: Vec<f32> = weights.clone().into_data().try_into_vec().unwrap();
        let expected = gradient(&x, (weights * upstream(&device)).sum() + (balance + z) * 2.0);
        for (found, expected) in found_weights.iter().zip(&expected_weights).chain(found.iter().zip(&expected)) {
            assert!((found - expected).abs() < 2e-6, "{found}, expected {expected}");
        }
    }
}

#[test]
fn sigmoid_weights_and_gradients_are_those_of_plain_operations() {
    let device = Device::flex().autodiff();
    for raw_scores in [false, true] {
        let settings = Settings { score_function: ScoreFunction::Sigmoid, raw_scores, ..settings(false) };
        let bias = [0.4_f32, -0.3, 0.0, 0.2, -0.1];
        let bias_e = Param::from_tensor(Tensor::<1>::from_floats(bias, &device));
        let router = Router { expert_bias: Some(bias_e), ..router(settings, &device) };
        let regions = Regions::new(&Parallel::single());
        let auxiliary = Auxiliary { gradient_scale: 2.0, metrics: None };
        let x = scores(&device);
        let input = MoeInput { regions: &regions, layer: 0, auxiliary, weight_gradients: None };
        let routing = router.route(x.clone(), &input);
        let found = gradient(&x, (routing.weights_nk.clone() * upstream(&device)).sum());

        let x = scores(&device);
        let ids: Vec<i64> = routing.experts_nk.iter().map(|expert| *expert as i64).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [N, K]), &device);
        let s = burn::tensor::activation::sigmoid(x.clone());
        let biased = s.clone() + Tensor::<1>::from_floats(bias, &device).unsqueeze();
        let best = biased.clone().sort_descending(1).narrow(1, 0, K);
        assert_eq!(best.into_data(), biased.gather(1, ids.clone()).into_data(), "the largest scores with their biases");
        let chosen = s.clone().gather(1, ids);
        let sum = if raw_scores { Tensor::ones([N, 1], &device) } else { chosen.clone().sum_dim(1) };
        let weights = chosen / sum * settings.scaling_factor;
        let tokens: Vec<f32> =
            (0..E).map(|e| routing.experts_nk.iter().filter(|expert| **expert == e).count() as f32).collect();
        let tokens = Tensor::<2>::from_data(TensorData::new(tokens, [1, E]), &device);
        let p = s.clone() / s.sum_dim(1);
        let balance = (p.sum_dim(0) * tokens).sum() * (E as f64 / (K * N * N) as f64 * settings.aux_loss_coeff);
        let log_z = x.clone().exp().sum_dim(1).log();
        let z = (log_z.clone() * log_z).mean() * settings.z_loss_coeff;
        let found_weights: Vec<f32> = routing.weights_nk.into_data().try_into_vec().unwrap();
        let expected_weights: Vec<f32> = weights.clone().into_data().try_into_vec().unwrap();
        let expected = gradient(&x, (weights * upstream(&device)).sum() + (balance + z) * 2.0);
        for (found, expected) in found_weights.iter().zip(&expected_weights).chain(found.iter().zip(&expected)) {
            assert!((found - expected).abs() < 2e-6, "{found}, expected {expected}");
        }
    }
}

#[test]
fn a_token_uses_experts_of_its_best_groups() {
    let groups = Groups { count: 3, topk: 2, compared: 2 };
    // The last group has the best expert, the other two the better pairs.
    let scores = [0.5, 0.4, 0.1, 0.0, 0.45, 0.46, 0.8, 0.0, 0.02];
    assert_eq!(groups.experts(&scores), [0, 1, 2, 3, 4, 5]);
    assert_eq!(Groups { compared: 1, ..groups }.experts(&scores), [0, 1, 2, 6, 7, 8]);
    assert_eq!(best(&scores, groups.experts(&scores), 3), [0, 5, 4]);
    assert_eq!(best(&[1.0, 2.0, 2.0, 1.0], vec![0, 1, 2, 3], 3), [1, 2, 0], "of equal scores the lower number");
}
