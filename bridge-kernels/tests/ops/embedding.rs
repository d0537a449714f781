//! Embedding look-up.

use bridge_kernels::embedding::{embedding, reference};
use burn::tensor::{Device, Tensor};

use crate::common::{assert_close, ints, read, tensor, values, wide};
use crate::plain;

#[test]
fn embedding_looks_up_and_adds_up() {
    let (v, c) = (1201, 5);
    let ids: Vec<i64> = vec![0, 1200, 3, 3, 511, 512, 3, 1200];
    let case = |t: &[Tensor<1>]| (t[0].clone().reshape([v, c]), ints(&ids, [2, 4]));
    let table = values(1, v * c);
    let device = Device::flex().autodiff();
    let run = |operation: fn(Tensor<2>, Tensor<2, burn::tensor::Int>) -> Tensor<3>| {
        let leaf = tensor(&table, [v * c], &device).require_grad();
        let (weight, ids) = case(std::slice::from_ref(&leaf));
        let y = operation(weight, ids);
        let gradients = (y.clone() * tensor(&values(2, 8 * c), [2, 4, c], &device)).sum().backward();
        (read(y), read(leaf.grad(&gradients).unwrap()))
    };
    let (fast, reference) = (run(embedding), run(reference));
    assert_eq!(fast.0, reference.0);
    assert_close("gradient", &fast.1, &wide(&reference.1), 1e-6);
    let used: f64 = plain::dot(&wide(&values(2, 8 * c)), &vec![1.0; 8 * c]);
    assert!((wide(&fast.1).iter().sum::<f64>() - used).abs() < 1e-5, "every token's gradient arrives once");
}

#[test]
#[should_panic(expected = "token id 7 at position 1 is not below the vocabulary size 7")]
fn an_id_outside_the_vocabulary_is_named() {
    embedding(tensor(&[0.0; 7], [7, 1], &Device::flex()), ints(&[0, 7], [1, 2]));
}
