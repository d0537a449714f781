//! The operations of Mamba-2: the convolution.

use bridge_kernels::causal_conv::{causal_conv, causal_conv_reference, cube as conv};
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
fn convolution_of_views() {
    let x = tensor(&values(1, 2 * 11 * 7), [2, 7, 11], &device()).swap_dims(1, 2);
    let weight = tensor(&values(2, 7 * 3), [3, 7], &device()).swap_dims(0, 1);
    let expected = causal_conv_reference(x.clone(), weight.clone(), None, None);
    let y = conv::causal_conv(&x, &weight, None, None).expect("it applies");
    assert_close("permuted", &read(y.clone()), &read(expected), 2e-6);
    assert_eq!(read(causal_conv(x, weight, None, None)), read(y), "the public function takes the kernel");
}
