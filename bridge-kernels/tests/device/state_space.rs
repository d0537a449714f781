//! The operations of Mamba-2: the convolution, the gated norm, the scan.

use bridge_kernels::causal_conv::{causal_conv, causal_conv_reference, cube as conv};
use bridge_kernels::gated_norm::{cube as norm, gated_rms_norm, gated_rms_norm_reference};
use bridge_kernels::ssd_scan::{ScanInputs, cube as scan, ssd_scan, ssd_scan_from, ssd_scan_reference};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, device, ints, read, tensor, values};
use crate::operands::scan::{Sizes, scan_inputs, scan_options, scan_values};

/// Documents of the tokens of `b` sequences: runs of 1 to 5 tokens, which differ between sequences.
fn documents(b: usize, t: usize) -> Vec<i64> {
    let begins = |i: &usize| (i % t).is_multiple_of(7) || (i % t + i / t) % 5 == 3;
    (0..b * t).map(|i| (0..=i).filter(begins).count() as i64).collect()
}

#[test]
fn convolution() {
    for [b, t, c, k] in [[1, 1, 5, 4], [2, 3, 7, 4], [1, 67, 3, 2], [3, 41, 5, 3], [2, 5, 3, 1], [1, 131, 2, 4]] {
        let inputs = [values(1, b * t * c), values(2, c * k), values(3, c)];
        let ids = documents(b, t);
        for (arity, ids) in [(2, None), (3, None), (2, Some(&ids)), (3, Some(&ids))] {
            let taken = |v: &[Tensor<1>]| (v[0].clone().reshape([b, t, c]), v[1].clone().reshape([c, k]));
            let ids_bt = |device: &Device| ids.map(|ids| ints(ids, [b, t], device));
            Case {
                name: &format!("causal_conv {b} x {t} x {c}, {k} taps, {arity} inputs, documents {}", ids.is_some()),
                inputs: inputs[..arity].to_vec(),
                fused: &|v, device| {
                    let (x, w) = taken(v);
                    let y = conv::causal_conv(&x, &w, v.get(2), ids_bt(device).as_ref());
                    y.expect("it applies").reshape([b * t * c])
                },
                reference: &|v, device| {
                    let (x, w) = taken(v);
                    causal_conv_reference(x, w, v.get(2).cloned(), ids_bt(device)).reshape([b * t * c])
                },
            }
            .check();
        }
    }
}

#[test]
fn gated_norm() {
    let epsilon = 1e-5;
    for (n, c, groups) in [(1, 7, 1), (3, 15, 3), (67, 26, 2), (2, 601, 1), (131, 5, 5)] {
        let taken = |v: &[Tensor<1>]| [0, 1].map(|i| v[i].clone().reshape([1, n, c]));
        Case {
            name: &format!("gated_rms_norm {n} x {c} in {groups} groups"),
            inputs: vec![values(1, n * c), values(2, n * c), values(3, c)],
            fused: &|v, _| {
                let [x, z] = taken(v);
                let y = norm::gated_rms_norm(&x, &z, &v[2], groups, epsilon);
                y.expect("it applies").reshape([n * c])
            },
            reference: &|v, _| {
                let [x, z] = taken(v);
                gated_rms_norm_reference(x, z, v[2].clone(), groups, epsilon).reshape([n * c])
            },
        }
        .check();
    }
}

#[test]
fn convolution_of_views() {
    let x = tensor(&values(1, 2 * 11 * 7), [2, 7, 11], &device()).swap_dims(1, 2);
    let weight = tensor(&values(2, 7 * 3), [3, 7], &device()).swap_dims(0, 1);
    let expected = causal_conv_reference(x.clone(), weight.clone(), None, None);
    let y = conv::causal_conv(&x, &weight, None, None).expect("it applies");
    assert_close("permuted", &read(y.clone()), &read(expected), 2e-6);
    assert_eq!(read(causal_conv(x, weight, None, None)), read(y), "the public function takes the kernel");
}

#[test]
fn gated_norm_of_views() {
    let all = tensor(&values(1, 2 * 11 * 7), [2, 11, 7], &device());
    let [x, z] = [(1, 2), (0, 3)].map(|(batch, column)| all.clone().narrow(0, batch, 1).narrow(2, column, 3));
    let weight = tensor(&values(3, 5), [5], &device()).narrow(0, 2, 3);
    let expected = gated_rms_norm_reference(x.clone(), z.clone(), weight.clone(), 1, 1e-5);
    let y = norm::gated_rms_norm(&x, &z, &weight, 1, 1e-5).expect("it applies");
    assert_close("slices", &read(y.clone()), &read(expected), 2e-6);
    assert_eq!(read(gated_rms_norm(x, z, weight, 1, 1e-5)), read(y), "the public function takes the kernel");
}

#[test]
fn scan_outputs_and_gradients() {
    let cases: [(Sizes, usize, [f32; 2]); 8] = [
        ([1, 1, 1, 1, 1, 1], 4, [0.0, f32::INFINITY]),
        ([1, 7, 2, 3, 1, 5], 7, [0.0, f32::INFINITY]),
        ([2, 13, 3, 2, 3, 3], 5, [0.0, f32::INFINITY]),
        ([1, 17, 6, 3, 1, 2], 4, [0.0, f32::INFINITY]),
        // Steps outside the range have no gradient.
        ([1, 11, 2, 3, 2, 3], 3, [0.2, 0.6]),
        ([1, 5, 5, 2, 1, 3], 64, [0.0, f32::INFINITY]),
        // Several tiles of each size, more heads of a group than one cube sums, states and heads
        // wider than a tile.
        ([1, 61, 9, 3, 1, 19], 23, [0.0, f32::INFINITY]),
        ([1, 41, 2, 37, 2, 67], 37, [0.0, f32::INFINITY]),
    ];
    for (sizes, chunk, range) in cases {
        let options = scan_options(sizes, chunk, range);
        let [b, t, h, p, ..] = sizes;
        let ids = documents(b, t);
        for ids in [None, Some(&ids)] {
            let inputs = |v: &[Tensor<1>], device: &Device| {
                let document_ids = ids.map(|ids| ints(ids, [b, t], device));
                ScanInputs { document_ids, ..scan_inputs(v, sizes) }
            };
            Case {
                name: &format!("ssd_scan {sizes:?} in chunks of {chunk}, documents {}", ids.is_some()),
                inputs: scan_values(sizes),
                fused: &|v, device| {
                    scan::ssd_scan(&inputs(v, device), &options).expect("it applies").reshape([b * t * h * p])
                },
                reference: &|v, device| {
                    ssd_scan_reference(inputs(v, device), None, &options).0.reshape([b * t * h * p])
                },
            }
            .check();
        }
    }
}

#[test]
fn a_scan_goes_on_from_its_state() {
    let sizes = [2, 19, 3, 5, 1, 7];
    let [b, _, h, p, _, n] = sizes;
    let (inputs, options) = (scan_values(sizes), scan_options(sizes, 4, [0.0, f32::INFINITY]));
    let tensors: Vec<Tensor<1>> = inputs.iter().map(|v| tensor(v, [v.len()], &device())).collect();
    let whole = scan_inputs(&tensors, sizes);
    let expected = read(ssd_scan_reference(whole.clone(), None, &options).0);
    assert_eq!(read(ssd_scan(whole.clone(), &options)), read(scan::ssd_scan(&whole, &options).expect("it applies")));
    for lengths in [vec![19], vec![1; 19], vec![4, 3, 1, 11]] {
        let (mut state, mut outputs, mut start) = (None, Vec::new(), 0);
        for length in &lengths {
            let part = ScanInputs {
                xbc_btf: whole.xbc_btf.clone().narrow(1, start, *length),
                dt_bth: whole.dt_bth.clone().narrow(1, start, *length),
                ..whole.clone()
            };
            let (y, after) = ssd_scan_from(part.clone(), state.clone(), &options);
            let (same, _) = scan::ssd_scan_from(&part, state.as_ref(), &options).expect("it applies");
            assert_eq!(read(y.clone()), read(same), "the public function takes the kernel");
            assert_eq!(after.dims(), [b, h, n, p]);
            (state, start) = (Some(after), start + length);
            outputs.push(y);
        }
        assert_close(&format!("{lengths:?}"), &read(Tensor::cat(outputs, 1)), &expected, 2e-6);
    }
}

/// Over long chunks the gradients of the decays are small sums of large terms, which float32 makes
/// of the reference, too. Both are compared with the CPU's kernel, which adds in float64.
#[test]
fn long_chunks() {
    for (sizes, chunk) in [([1, 151, 2, 5, 1, 7], 71), ([2, 301, 3, 5, 1, 7], 130)] {
        let options = scan_options(sizes, chunk, [0.0, f32::INFINITY]);
        let run = |operation: &dyn Fn(ScanInputs) -> Tensor<3>, device: &Device| -> Vec<Vec<f32>> {
            let device = device.clone().autodiff();
            let inputs = scan_values(sizes);
            let inputs: Vec<Tensor<1>> = inputs.iter().map(|v| tensor(v, [v.len()], &device).require_grad()).collect();
            let y = operation(scan_inputs(&inputs, sizes));
            let cotangent = tensor(&values(999, y.shape().num_elements()), y.dims(), &device);
            let gradients = (y.clone() * cotangent).sum().backward();
            let gradients = inputs.iter().map(|x| read(x.grad(&gradients).expect("it is tracked")));
            std::iter::once(read(y)).chain(gradients).collect()
        };
        let expected = run(&|inputs| ssd_scan(inputs, &options), &Device::flex());
        let reference = run(&|inputs| ssd_scan_reference(inputs, None, &options).0, &Device::flex());
        let found = run(&|inputs| scan::ssd_scan(&inputs, &options).expect("it applies"), &device());
        for (i, expected) in expected.iter().enumerate() {
            let [found, reference] = [&found[i], &reference[i]].map(|values| relative_error(values, expected));
            println!("{sizes:?}: {i}: {found:.1e}, of the reference {reference:.1e}");
            assert!(found <= 3.0 * reference + 1e-6, "{sizes:?}: {i}: {found:.1e}, of the reference {reference:.1e}");
        }
    }
}

fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
    let difference = squares(&mut found.iter().zip(expected).map(|(found, expected)| found - expected));
    (difference / squares(&mut expected.iter().copied())).sqrt()
}
