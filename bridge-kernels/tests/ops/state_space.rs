//! The operations of Mamba-2: the convolution, the scan, the gated norm, and the cut of the
//! projection before them; the scan of the first Mamba.

use bridge_kernels::causal_conv::{
    causal_conv, causal_conv_reference, linear_causal_conv, linear_causal_conv_reference,
};
use bridge_kernels::gated_norm::{gated_rms_norm, gated_rms_norm_reference};
use bridge_kernels::selective_scan::{SelectiveInputs, selective_scan, selective_scan_from, selective_scan_reference};
use bridge_kernels::split::{split, split_reference};
use bridge_kernels::ssd_scan::{ScanInputs, ssd_scan, ssd_scan_from, ssd_scan_reference};
use burn::tensor::{Device, FloatDType, Int, Tensor};

use crate::common::{Case, assert_close, assert_same_on_any_threads, ints, read, run_all, tensor, values, wide};
use crate::operands::scan::{Sizes, scan_inputs, scan_options, scan_values};
use crate::plain;

type Convolution = fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>, Option<Tensor<2, Int>>) -> Tensor<3>;

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Documents of the tokens of `b` sequences: runs of 1 to 5 tokens, which differ between sequences.
fn documents(b: usize, t: usize) -> Vec<i64> {
    let begins = |i: &usize| (i % t).is_multiple_of(7) || (i % t + i / t) % 5 == 3;
    (0..b * t).map(|i| (0..=i).filter(begins).count() as i64).collect()
}

/// True if a token and one before it in the sequence are of one document.
fn is_one_document(ids: Option<&[i64]>, row: usize, lag: usize) -> bool {
    ids.is_none_or(|ids| ids[row - lag..=row].iter().all(|id| *id == ids[row]))
}

fn plain_conv(v: &[Vec<f64>], ids: Option<&[i64]>, [b, t, c, k]: [usize; 4], unit: fn(f64) -> f64) -> Vec<f64> {
    let (x, weight, bias) = (&v[0], &v[1], v.get(2));
    let mut y = vec![0.0; b * t * c];
    for (index, y) in y.iter_mut().enumerate() {
        let (row, channel) = (index / c, index % c);
        let mut sum = bias.map_or(0.0, |bias| bias[channel]);
        for lag in (0..k.min(row % t + 1)).take_while(|lag| is_one_document(ids, row, *lag)) {
            sum += weight[channel * k + k - 1 - lag] * x[(row - lag) * c + channel];
        }
        *y = unit(sum);
    }
    y
}

#[test]
fn convolution() {
    for [b, t, c, k] in [[1, 1, 5, 4], [2, 3, 7, 4], [1, 67, 3, 2], [3, 41, 5, 3], [2, 5, 3, 1]] {
        let inputs = [values(1, b * t * c), values(2, c * k), values(3, c)];
        let ids = documents(b, t);
        for (arity, ids, has_silu) in [
            (2, None, true),
            (3, None, true),
            (3, Some(ids.as_slice()), true),
            (2, None, false),
            (3, Some(ids.as_slice()), false),
        ] {
            let (fast, reference, unit): (Convolution, Convolution, fn(f64) -> f64) = match has_silu {
                true => (causal_conv, causal_conv_reference, silu),
                false => (linear_causal_conv, linear_causal_conv_reference, |x| x),
            };
            let taken = |v: &[Tensor<1>]| (v[0].clone().reshape([b, t, c]), v[1].clone().reshape([c, k]));
            let ids_bt = || ids.map(|ids| ints(ids, [b, t]));
            Case {
                name: &format!(
                    "causal_conv {b} x {t} x {c}, {k} taps, {arity} inputs, documents {}, SiLU {has_silu}",
                    ids.is_some()
                ),
                inputs: inputs[..arity].to_vec(),
                fast: &|v| {
                    let (x, w) = taken(v);
                    fast(x, w, v.get(2).cloned(), ids_bt()).reshape([b * t * c])
                },
                reference: &|v| {
                    let (x, w) = taken(v);
                    reference(x, w, v.get(2).cloned(), ids_bt()).reshape([b * t * c])
                },
                plain: &|v| plain_conv(v, ids, [b, t, c, k], unit),
            }
            .check();
        }
    }
}

fn plain_gated_norm(x: &[f64], z: &[f64], weight: &[f64], groups: usize, epsilon: f64) -> Vec<f64> {
    let (c, size) = (weight.len(), weight.len() / groups);
    let gated: Vec<f64> = x.iter().zip(z).map(|(x, z)| x * silu(*z)).collect();
    let norm = |group: &[f64]| {
        let mean = group.iter().map(|v| v * v).sum::<f64>() / size as f64;
        group.iter().map(|v| v / (mean + epsilon).sqrt()).collect::<Vec<_>>()
    };
    gated.chunks(size).flat_map(norm).enumerate().map(|(i, v)| v * weight[i % c]).collect()
}

#[test]
fn gated_norm() {
    let epsilon = 1e-5;
    for (n, c, groups) in [(1, 7, 1), (3, 15, 3), (37, 26, 2), (2, 131, 1)] {
        Case {
            name: &format!("gated_rms_norm {n} x {c} in {groups} groups"),
            inputs: vec![values(1, n * c), values(2, n * c), values(3, c)],
            fast: &|v| {
                let [x, z] = [0, 1].map(|i| v[i].clone().reshape([1, n, c]));
                gated_rms_norm(x, z, v[2].clone(), groups, epsilon).reshape([n * c])
            },
            reference: &|v| {
                let [x, z] = [0, 1].map(|i| v[i].clone().reshape([1, n, c]));
                gated_rms_norm_reference(x, z, v[2].clone(), groups, epsilon).reshape([n * c])
            },
            plain: &|v| plain_gated_norm(&v[0], &v[1], &v[2], groups, epsilon),
        }
        .check();
    }
}

#[test]
fn parts_of_a_projection() {
    let (n, sizes) = (37, [5, 11, 2]);
    // Each part with another factor; the gradient of the second is never asked for.
    let join = |[a, b, c]: [Tensor<3>; 3]| (a.sum_dim(2) * 2.0 + b.sum_dim(2) * 0.0 + c.sum_dim(2)).reshape([n]);
    Case {
        name: "split",
        inputs: vec![values(1, n * 18)],
        fast: &|v| join(split(v[0].clone().reshape([1, n, 18]), sizes)),
        reference: &|v| join(split_reference(v[0].clone().reshape([1, n, 18]), sizes)),
        plain: &|v| {
            let row = |row: &[f64]| 2.0 * row[..5].iter().sum::<f64>() + row[16..].iter().sum::<f64>();
            v[0].chunks(18).map(row).collect()
        },
    }
    .check();
    let x = tensor(&values(1, 36), [2, 1, 18], &Device::flex().autodiff()).require_grad();
    let [_, _, last] = split(x.clone(), sizes);
    let gradient = read(x.grad(&last.sum().backward()).unwrap());
    let expected = |i: usize| if i % 18 < 16 { 0.0 } else { 1.0 };
    assert!(gradient.iter().enumerate().all(|(i, g)| *g == expected(i)), "parts that nothing reads have no gradient");
}

fn plain_scan(v: &[Vec<f64>], ids: Option<&[i64]>, [b, t, h, p, g, n]: Sizes, [least, largest]: [f64; 2]) -> Vec<f64> {
    let columns = h * p + 2 * g * n;
    let mut y = vec![0.0; b * t * h * p];
    for (batch, head) in (0..b * h).map(|i| (i / h, i % h)) {
        let mut state = vec![0.0; n * p];
        let group = head / (h / g);
        for row in (0..t).map(|token| batch * t + token) {
            if row % t > 0 && !is_one_document(ids, row, 1) {
                state.fill(0.0);
            }
            let xbc = &v[0][row * columns..(row + 1) * columns];
            let (inputs, outputs) = (&xbc[h * p + group * n..], &xbc[h * p + (g + group) * n..]);
            let dt = (v[1][row * h + head] + v[3][head]).exp().ln_1p().clamp(least, largest);
            let decay = (-v[2][head].exp() * dt).exp();
            for channel in 0..p {
                let x = xbc[head * p + channel];
                let mut sum = v[4][head] * x;
                for i in 0..n {
                    let s = &mut state[i * p + channel];
                    *s = decay * *s + dt * inputs[i] * x;
                    sum += outputs[i] * *s;
                }
                y[(row * h + head) * p + channel] = sum;
            }
        }
    }
    y
}

#[test]
fn scan() {
    let cases: [(Sizes, usize, [f32; 2]); 6] = [
        ([1, 1, 1, 1, 1, 1], 4, [0.0, f32::INFINITY]),
        ([1, 7, 2, 3, 1, 5], 7, [0.0, f32::INFINITY]),
        ([2, 13, 3, 2, 3, 3], 5, [0.0, f32::INFINITY]),
        ([1, 17, 6, 3, 1, 2], 4, [0.0, f32::INFINITY]),
        // Steps outside the range have no gradient.
        ([1, 11, 2, 3, 2, 3], 3, [0.2, 0.6]),
        ([1, 5, 5, 2, 1, 3], 64, [0.0, f32::INFINITY]),
    ];
    for (sizes, chunk, range) in cases {
        let options = scan_options(sizes, chunk, range);
        let [b, t, h, p, ..] = sizes;
        let ids = documents(b, t);
        for ids in [None, Some(ids.as_slice())] {
            let inputs = |v: &[Tensor<1>]| {
                let document_ids = ids.map(|ids| ints(ids, [b, t]));
                ScanInputs { document_ids, ..scan_inputs(v, sizes) }
            };
            Case {
                name: &format!("ssd_scan {sizes:?} in chunks of {chunk}, documents {}", ids.is_some()),
                inputs: scan_values(sizes),
                fast: &|v| ssd_scan(inputs(v), &options).reshape([b * t * h * p]),
                reference: &|v| ssd_scan_reference(inputs(v), None, &options).0.reshape([b * t * h * p]),
                plain: &|v| plain_scan(v, ids, sizes, range.map(f64::from)),
            }
            .check();
        }
    }
}

#[test]
fn a_scan_goes_on_from_its_state() {
    let sizes = [2, 19, 3, 5, 1, 7];
    let [b, t, h, p, _, n] = sizes;
    let (inputs, options) = (scan_values(sizes), scan_options(sizes, 4, [0.0, f32::INFINITY]));
    let tensors: Vec<Tensor<1>> = inputs.iter().map(|v| tensor(v, [v.len()], &Device::flex())).collect();
    let whole = scan_inputs(&tensors, sizes);
    let expected = wide(&read(ssd_scan(whole.clone(), &options)));
    for lengths in [vec![19], vec![1; 19], vec![4, 3, 1, 11]] {
        for scan in [ssd_scan_from, ssd_scan_reference] {
            let (mut state, mut outputs, mut start) = (None, Vec::new(), 0);
            for length in &lengths {
                let part = ScanInputs {
                    xbc_btf: whole.xbc_btf.clone().narrow(1, start, *length),
                    dt_bth: whole.dt_bth.clone().narrow(1, start, *length),
                    ..whole.clone()
                };
                let (y, after) = scan(part, state.take(), &options);
                assert_eq!(after.dims(), [b, h, n, p]);
                (state, start) = (Some(after), start + length);
                outputs.push(y);
            }
            assert_close(&format!("{lengths:?}"), &read(Tensor::cat(outputs, 1)), &expected, 2e-6);
        }
    }
    assert_eq!(expected.len(), b * t * h * p);
}

#[test]
fn sixteen_bits_are_widened_and_rounded_once() {
    let sizes = [1, 9, 2, 3, 1, 4];
    let options = scan_options(sizes, 4, [0.0, f32::INFINITY]);
    let tensors: Vec<Tensor<1>> = scan_values(sizes).iter().map(|v| tensor(v, [v.len()], &Device::flex())).collect();
    let narrow: Vec<Tensor<1>> = tensors.iter().map(|x| x.clone().cast(FloatDType::BF16)).collect();
    let widened: Vec<Tensor<1>> = narrow.iter().map(|x| x.clone().cast(FloatDType::F32)).collect();
    let found = read(ssd_scan(scan_inputs(&narrow, sizes), &options));
    let expected = wide(&read(ssd_scan(scan_inputs(&widened, sizes), &options)));
    assert_close("ssd_scan in bfloat16", &found, &expected, 4e-3);
}

#[test]
fn threads_change_no_bit() {
    let sizes = [2, 150, 6, 8, 2, 8];
    let [b, t, h, p, ..] = sizes;
    let options = scan_options(sizes, 32, [0.0, f32::INFINITY]);
    let inputs = scan_values(sizes);
    assert_same_on_any_threads("ssd_scan", || {
        run_all(&inputs, |v| ssd_scan(scan_inputs(v, sizes), &options).reshape([b * t * h * p]))
    });
    let (c, k) = (40, 4);
    let inputs = [values(1, b * t * c), values(2, c * k), values(3, c)];
    assert_same_on_any_threads("causal_conv", || {
        run_all(&inputs, |v| {
            let (x, w) = (v[0].clone().reshape([b, t, c]), v[1].clone().reshape([c, k]));
            causal_conv(x, w, Some(v[2].clone()), None).reshape([b * t * c])
        })
    });
    let inputs = [values(1, b * t * c), values(2, b * t * c), values(3, c)];
    assert_same_on_any_threads("gated_rms_norm", || {
        run_all(&inputs, |v| {
            let [x, z] = [0, 1].map(|i| v[i].clone().reshape([b, t, c]));
            gated_rms_norm(x, z, v[2].clone(), 4, 1e-5).reshape([b * t * c])
        })
    });
}

#[test]
fn numbers_are_compared_with_plain_ones() {
    // The comparison itself: a scan without decay and with steps of one is a sum of products.
    let sizes = [1, 3, 1, 1, 1, 1];
    let v = vec![vec![1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0], vec![0.0; 3], vec![-40.0], vec![0.0], vec![0.0]];
    let y = plain_scan(&v, None, sizes, [1.0, 1.0]);
    assert!((plain::dot(&y, &[1.0, 1.0, 1.0]) - 10.0).abs() < 1e-9, "{y:?}");
}

/// Sequences, tokens, channels, and numbers of a channel's state.
type SelectiveSizes = [usize; 4];

fn selective_values([b, t, i, n]: SelectiveSizes) -> Vec<Vec<f32>> {
    let counts = [b * t * i, b * t * i, i * n, b * t * n, b * t * n, i, i];
    counts.into_iter().zip(1..).map(|(count, seed)| values(seed, count)).collect()
}

fn selective_inputs(v: &[Tensor<1>], ids: Option<&[i64]>, [b, t, i, n]: SelectiveSizes) -> SelectiveInputs {
    SelectiveInputs {
        x_bti: v[0].clone().reshape([b, t, i]),
        dt_bti: v[1].clone().reshape([b, t, i]),
        a_log_in: v[2].clone().reshape([i, n]),
        b_btn: v[3].clone().reshape([b, t, n]),
        c_btn: v[4].clone().reshape([b, t, n]),
        dt_bias_i: v[5].clone(),
        d_i: v[6].clone(),
        document_ids: ids.map(|ids| ints(ids, [b, t])),
    }
}

fn plain_selective_scan(v: &[Vec<f64>], ids: Option<&[i64]>, [b, t, i, n]: SelectiveSizes) -> Vec<f64> {
    let mut y = vec![0.0; b * t * i];
    for (batch, channel) in (0..b * i).map(|index| (index / i, index % i)) {
        let mut state = vec![0.0; n];
        for row in (0..t).map(|token| batch * t + token) {
            if row % t > 0 && !is_one_document(ids, row, 1) {
                state.fill(0.0);
            }
            let (place, numbers) = (row * i + channel, row * n..(row + 1) * n);
            let (x, dt) = (v[0][place], (v[1][place] + v[5][channel]).exp().ln_1p());
            let sides = v[3][numbers.clone()].iter().zip(&v[4][numbers]);
            y[place] = v[6][channel] * x;
            for ((s, a_log), (input, output)) in state.iter_mut().zip(&v[2][channel * n..]).zip(sides) {
                *s = (-a_log.exp() * dt).exp() * *s + dt * x * input;
                y[place] += output * *s;
            }
        }
    }
    y
}

#[test]
fn selective_scans() {
    for sizes in [[1, 1, 1, 1], [2, 7, 3, 5], [1, 70, 19, 2], [2, 33, 16, 4]] {
        let [b, t, i, _] = sizes;
        let ids = documents(b, t);
        for ids in [None, Some(ids.as_slice())] {
            Case {
                name: &format!("selective_scan {sizes:?}, documents {}", ids.is_some()),
                inputs: selective_values(sizes),
                fast: &|v| selective_scan(selective_inputs(v, ids, sizes)).reshape([b * t * i]),
                reference: &|v| selective_scan_reference(selective_inputs(v, ids, sizes), None).0.reshape([b * t * i]),
                plain: &|v| plain_selective_scan(v, ids, sizes),
            }
            .check();
        }
    }
}

#[test]
fn a_selective_scan_goes_on_from_its_state() {
    let sizes = [2, 37, 19, 3];
    let [_, _, i, n] = sizes;
    let tensors: Vec<Tensor<1>> =
        selective_values(sizes).iter().map(|v| tensor(v, [v.len()], &Device::flex())).collect();
    let whole = selective_inputs(&tensors, None, sizes);
    let expected = wide(&read(selective_scan(whole.clone())));
    for lengths in [vec![37], vec![1; 37], vec![4, 3, 1, 29]] {
        for scan in [selective_scan_from, selective_scan_reference] {
            let (mut state, mut outputs, mut start) = (None, Vec::new(), 0);
            for length in &lengths {
                let cut = |x: &Tensor<3>| x.clone().narrow(1, start, *length);
                let part = SelectiveInputs {
                    x_bti: cut(&whole.x_bti),
                    dt_bti: cut(&whole.dt_bti),
                    b_btn: cut(&whole.b_btn),
                    c_btn: cut(&whole.c_btn),
                    ..whole.clone()
                };
                let (y, after) = scan(part, state.take());
                assert_eq!(after.dims(), [2, i, n]);
                (state, start) = (Some(after), start + length);
                outputs.push(y);
            }
            assert_close(&format!("{lengths:?}"), &read(Tensor::cat(outputs, 1)), &expected, 2e-6);
        }
    }
}

#[test]
fn threads_change_no_bit_of_a_selective_scan() {
    let sizes = [2, 150, 40, 8];
    let [b, t, i, _] = sizes;
    let inputs = selective_values(sizes);
    assert_same_on_any_threads("selective_scan", || {
        run_all(&inputs, |v| selective_scan(selective_inputs(v, None, sizes)).reshape([b * t * i]))
    });
}
