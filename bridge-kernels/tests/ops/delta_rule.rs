//! The gated delta rule.

use bridge_kernels::gated_delta_rule::{
    DeltaInputs, DeltaOptions, gated_delta_rule, gated_delta_rule_from, gated_delta_rule_reference,
};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::common::{Case, assert_close, assert_same_on_any_threads, ints, read, run_all, tensor, values, wide};

/// Sequences, tokens, key heads, value heads, channels of a key, channels of a value, decays of a
/// head.
type Sizes = [usize; 7];

fn delta_inputs(v: &[Tensor<1>], [b, t, g, h, k, p, e]: Sizes) -> DeltaInputs {
    DeltaInputs {
        q_btgk: v[0].clone().reshape([b, t, g, k]),
        k_btgk: v[1].clone().reshape([b, t, g, k]),
        v_bthp: v[2].clone().reshape([b, t, h, p]),
        decay_bthe: v[3].clone().reshape([b, t, h, e]),
        beta_bth: v[4].clone().reshape([b, t, h]),
        document_ids: None,
    }
}

/// Values whose decays are powers of e to about `-strength`.
fn delta_values([b, t, g, h, k, p, e]: Sizes, strength: f32) -> Vec<Vec<f32>> {
    let decays = values(4, b * t * h * e).iter().map(|v| -strength * v.exp()).collect();
    let steps = values(5, b * t * h).iter().map(|v| (1.0 + (-v).exp()).recip()).collect();
    vec![values(1, b * t * g * k), values(2, b * t * g * k), values(3, b * t * h * p), decays, steps]
}

fn delta_options([_, _, _, _, k, _, _]: Sizes, chunk_size: usize) -> DeltaOptions {
    DeltaOptions { chunk_size, ..DeltaOptions::new(k) }
}

/// Documents of the tokens of `b` sequences: runs of 1 to 5 tokens, which differ between sequences.
fn documents(b: usize, t: usize) -> Vec<i64> {
    let begins = |i: &usize| (i % t).is_multiple_of(7) || (i % t + i / t) % 5 == 3;
    (0..b * t).map(|i| (0..=i).filter(begins).count() as i64).collect()
}

/// The recurrence, token by token.
fn plain_rule(v: &[Vec<f64>], ids: Option<&[i64]>, sizes: Sizes, options: &DeltaOptions) -> Vec<f64> {
    let [b, t, g, h, k, p, e] = sizes;
    let unit = |x: &[f64]| -> Vec<f64> {
        let squares: f64 = x.iter().map(|x| x * x).sum();
        let length = options.norm_epsilon.map_or(1.0, |epsilon| (squares + f64::from(epsilon)).sqrt());
        x.iter().map(|x| x / length).collect()
    };
    let mut y = vec![0.0; b * t * h * p];
    for (batch, head) in (0..b * h).map(|i| (i / h, i % h)) {
        let mut state = vec![0.0; k * p];
        for row in (0..t).map(|token| batch * t + token) {
            if ids.is_some_and(|ids| row % t > 0 && ids[row] != ids[row - 1]) {
                state.fill(0.0);
            }
            let at = (row * g + head / (h / g)) * k;
            let (query, key) = (unit(&v[0][at..at + k]), unit(&v[1][at..at + k]));
            let at = row * h + head;
            for (i, s) in state.iter_mut().enumerate() {
                *s *= v[3][at * e + i / p % e].exp();
            }
            for channel in 0..p {
                let column = |state: &[f64], row: &[f64]| (0..k).map(|i| row[i] * state[i * p + channel]).sum::<f64>();
                let written = v[4][at] * (v[2][at * p + channel] - column(&state, &key));
                (0..k).for_each(|i| state[i * p + channel] += key[i] * written);
                y[at * p + channel] = f64::from(options.scale) * column(&state, &query);
            }
        }
    }
    y
}

/// Sizes, tokens of a chunk, and strength of the decays.
const CASES: [(Sizes, usize, f32); 12] = [
    ([1, 1, 1, 1, 2, 1, 1], 64, 1.0),
    ([2, 1, 1, 2, 3, 2, 3], 64, 1.0),
    ([1, 7, 1, 2, 3, 5, 1], 7, 1.0),
    ([2, 13, 2, 2, 5, 3, 1], 5, 0.1),
    ([2, 13, 2, 6, 3, 2, 1], 4, 1.0),
    ([1, 13, 1, 3, 5, 3, 5], 5, 0.1),
    ([2, 11, 2, 4, 3, 2, 3], 64, 1.0),
    // Several blocks of a chunk.
    ([1, 41, 1, 1, 3, 2, 1], 37, 0.1),
    ([1, 41, 1, 1, 3, 2, 3], 37, 0.1),
    ([1, 67, 1, 1, 5, 2, 5], 64, 1.0),
    // Decays over a block that would overflow as a power of their own.
    ([1, 37, 1, 2, 3, 2, 3], 64, 4.0),
    ([1, 37, 1, 2, 3, 2, 1], 64, 4.0),
];

#[test]
fn outputs_and_gradients() {
    for (sizes, chunk, strength) in CASES {
        let options = delta_options(sizes, chunk);
        let [b, t, _, h, _, p, _] = sizes;
        let ids = documents(b, t);
        for ids in [None, Some(ids.as_slice())] {
            let inputs = |v: &[Tensor<1>]| {
                let document_ids = ids.map(|ids| ints(ids, [b, t]));
                DeltaInputs { document_ids, ..delta_inputs(v, sizes) }
            };
            Case {
                name: &format!("gated_delta_rule {sizes:?} in chunks of {chunk}, documents {}", ids.is_some()),
                inputs: delta_values(sizes, strength),
                fast: &|v| gated_delta_rule(inputs(v), &options).reshape([b * t * h * p]),
                reference: &|v| gated_delta_rule_reference(inputs(v), None, &options).0.reshape([b * t * h * p]),
                plain: &|v| plain_rule(v, ids, sizes, &options),
            }
            .check();
        }
    }
}

#[test]
fn keys_as_they_are() {
    let sizes = [1, 19, 1, 2, 3, 2, 3];
    let [b, t, _, h, _, p, _] = sizes;
    let options = DeltaOptions { scale: 0.7, norm_epsilon: None, chunk_size: 8 };
    let mut inputs = delta_values(sizes, 0.5);
    inputs[..2].iter_mut().flatten().for_each(|x| *x *= 0.4);
    Case {
        name: "gated_delta_rule without norm",
        inputs,
        fast: &|v| gated_delta_rule(delta_inputs(v, sizes), &options).reshape([b * t * h * p]),
        reference: &|v| gated_delta_rule_reference(delta_inputs(v, sizes), None, &options).0.reshape([b * t * h * p]),
        plain: &|v| plain_rule(v, None, sizes, &options),
    }
    .check();
}

#[test]
fn a_sequence_goes_on_from_its_state() {
    for (e, ids) in [(1, false), (5, false), (1, true), (5, true)] {
        let sizes = [2, 83, 2, 4, 5, 3, e];
        let [b, t, _, h, k, p, _] = sizes;
        let (inputs, options) = (delta_values(sizes, 0.1), delta_options(sizes, 64));
        let tensors: Vec<Tensor<1>> = inputs.iter().map(|v| tensor(v, [v.len()], &Device::flex())).collect();
        let ids = ids.then(|| ints(&documents(b, t), [b, t]));
        let whole = DeltaInputs { document_ids: ids, ..delta_inputs(&tensors, sizes) };
        let expected = wide(&read(gated_delta_rule(whole.clone(), &options)));
        let lengths = if whole.document_ids.is_none() {
            vec![vec![83], vec![1; 83], vec![4, 65, 1, 13]]
        } else {
            // A part does not know the document of the token before it, so parts begin with one.
            vec![vec![83]]
        };
        for lengths in lengths {
            for rule in [gated_delta_rule_from, gated_delta_rule_reference] {
                let (mut state, mut outputs, mut start) = (None, Vec::new(), 0);
                for length in &lengths {
                    let part = |x: &Tensor<4>| x.clone().narrow(1, start, *length);
                    let part = DeltaInputs {
                        q_btgk: part(&whole.q_btgk),
                        k_btgk: part(&whole.k_btgk),
                        v_bthp: part(&whole.v_bthp),
                        decay_bthe: part(&whole.decay_bthe),
                        beta_bth: whole.beta_bth.clone().narrow(1, start, *length),
                        document_ids: whole.document_ids.clone(),
                    };
                    let (y, after) = rule(part, state.take(), &options);
                    assert_eq!(after.dims(), [b, h, k, p]);
                    (state, start) = (Some(after), start + length);
                    outputs.push(y);
                }
                assert_close(&format!("{lengths:?}"), &read(Tensor::cat(outputs, 1)), &expected, 2e-6);
            }
        }
    }
}

#[test]
fn sixteen_bits_are_widened_and_rounded_once() {
    for e in [1, 3] {
        let sizes = [1, 19, 1, 2, 3, 4, e];
        let options = delta_options(sizes, 8);
        let tensors: Vec<Tensor<1>> =
            delta_values(sizes, 0.5).iter().map(|v| tensor(v, [v.len()], &Device::flex())).collect();
        let mut narrow: Vec<Tensor<1>> = tensors.iter().map(|x| x.clone().cast(FloatDType::BF16)).collect();
        let mut widened: Vec<Tensor<1>> = narrow.iter().map(|x| x.clone().cast(FloatDType::F32)).collect();
        // Decays stay in float32.
        (narrow[3], widened[3]) = (tensors[3].clone(), tensors[3].clone());
        let found = read(gated_delta_rule(delta_inputs(&narrow, sizes), &options));
        let expected = wide(&read(gated_delta_rule(delta_inputs(&widened, sizes), &options)));
        assert_close("gated_delta_rule in bfloat16", &found, &expected, 4e-3);
    }
}

#[test]
fn threads_change_no_bit() {
    for e in [1, 8] {
        let sizes = [2, 150, 2, 6, 8, 16, e];
        let [b, t, _, h, _, p, _] = sizes;
        let options = delta_options(sizes, 64);
        assert_same_on_any_threads("gated_delta_rule", || {
            run_all(&delta_values(sizes, 0.1), |v| {
                gated_delta_rule(delta_inputs(v, sizes), &options).reshape([b * t * h * p])
            })
        });
    }
}
