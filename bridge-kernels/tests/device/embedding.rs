//! Embedding look-up: rows of ids that come once, often, and not at all.

use bridge_kernels::embedding::{embedding, reference};
use burn::tensor::Tensor;

use crate::common::{Case, device, ints, read, tensor, values};
use crate::half::dtypes;

fn check([b, t]: [usize; 2], [v, c]: [usize; 2], id: impl Fn(usize) -> usize) {
    let ids: Vec<i64> = (0..b * t).map(|place| id(place) as i64).collect();
    let flat = move |y: Tensor<3>| y.reshape([b * t * c]);
    Case {
        name: &format!("embedding of {b} x {t} in {v} x {c}"),
        inputs: vec![values(1, v * c)],
        fused: &|x, device| flat(embedding(x[0].clone().reshape([v, c]), ints(&ids, [b, t], device))),
        reference: &|x, device| flat(reference(x[0].clone().reshape([v, c]), ints(&ids, [b, t], device))),
    }
    .check();
}

#[test]
fn outputs_and_gradients() {
    check([1, 1], [1, 1], |_| 0);
    check([2, 19], [7, 5], |place| (place * place + place / 3) % 6);
    check([3, 7], [31, 13], |place| 30 - place);
    // One id takes most of the tokens, in runs of other lengths.
    check([2, 150], [40, 33], |place| if place % 7 == 3 { place % 40 } else { 39 });
}

#[test]
fn a_view_of_a_table_is_read_as_it_is() {
    let (v, c) = (11, 6);
    let ids = [3, 10, 3];
    let table = tensor::<2>(&values(5, v * c), [c, v], &device()).transpose();
    let rows = read(embedding(table.clone(), ints(&ids, [1, 3], &device())));
    let expected = ids.iter().flat_map(|id| read(table.clone().narrow(0, *id as usize, 1)));
    assert_eq!(rows, expected.collect::<Vec<_>>());
}

#[test]
fn gradients_of_16_bits_are_summed_in_32() {
    for (dtype, _) in dtypes() {
        let device = device().autodiff();
        let table = tensor::<2>(&values(2, 9 * 4), [9, 4], &device).cast(dtype).require_grad();
        // Added one by one in 16 bits, ones stop at 256 or at 2048.
        let ids = ints(&vec![7; 3000], [3, 1000], &device);
        let gradients = embedding(table.clone(), ids).sum().backward();
        let gradient = table.grad(&gradients).expect("the table is tracked");
        assert_eq!(gradient.dtype(), dtype.into());
        let rounded = read(tensor::<1>(&[3000.0], [1], &device).cast(dtype))[0];
        let expected: Vec<f32> = (0..36).map(|place| if place / 4 == 7 { rounded } else { 0.0 }).collect();
        assert_eq!(read(gradient), expected, "{dtype:?}");
    }
}

#[test]
fn a_row_outside_the_table_is_not_finite() {
    for id in [-1, 5] {
        let table = tensor::<2>(&values(3, 5 * 3), [5, 3], &device());
        let rows = read(embedding(table, ints(&[2, id], [1, 2], &device())));
        assert!(rows[..3].iter().all(|x| x.is_finite()) && rows[3..].iter().all(|x| !x.is_finite()), "{rows:?}");
    }
}
