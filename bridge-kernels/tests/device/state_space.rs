//! The operations of Mamba-2: the convolution and the gated norm.

use bridge_kernels::causal_conv::{causal_conv, causal_conv_reference, cube as conv};
use bridge_kernels::gated_norm::{cube as norm, gated_rms_norm, gated_rms_norm_reference};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, device, ints, read, tensor, values};

/// Documents of the tokens of `b` sequences: runs of 1 to 5 tokens, others in each sequence.
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
                let y = norm::gated_rms_norm(&x, &z, &v[2], (groups, epsilon));
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
    let y = norm::gated_rms_norm(&x, &z, &weight, (1, 1e-5)).expect("it applies");
    assert_close("slices", &read(y.clone()), &read(expected), 2e-6);
    assert_eq!(read(gated_rms_norm(x, z, weight, 1, 1e-5)), read(y), "the public function takes the kernel");
}
