//! Small cases of every kernel with `unsafe` in it, so small that Miri runs them: `cargo +nightly
//! miri test -p bridge-kernels --lib cpu::tests`. Numerics are tested from outside, in `tests/ops`.

use super::buffer::{Shared, filled};
use super::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::attention::cpu::{Attention, forward};
use crate::attention::cpu_backward::{Saved, Targets, backward};
use crate::attention::heads::{HeadStrides, Heads, HeadsMut};
use crate::cross_entropy::cpu::{Problem, Projection, WantedGradients, solve};
use crate::cross_entropy::{CrossEntropyOptions, TokenAccuracy};
use crate::embedding::cpu as embedding;
use crate::linear::cpu as linear;

/// Values of order one without a pattern that cancels.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.4).collect()
}

fn assert_close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "element {i}: {got}, expected {want}");
    }
}

/// `x [n, i]` times `w [o, i]` transposed.
fn plain_linear(x: &[f32], w: &[f32], inputs: usize) -> Vec<f32> {
    let product = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>();
    x.chunks(inputs).flat_map(|x| w.chunks(inputs).map(move |w| product(x, w))).collect()
}

#[test]
fn parts_of_a_shared_slice_are_written_by_tasks() {
    let doubled = filled(6, |out| {
        let shared = Shared::new(out);
        rayon::scope(|scope| {
            for task in 0..3 {
                scope.spawn(move |_| {
                    // SAFETY: each task has its own two elements.
                    let part = unsafe { shared.part(2 * task, 2) };
                    part.copy_from_slice(&[task as f32, 2.0 * task as f32]);
                });
            }
        });
    });
    assert_eq!(doubled, [0.0, 0.0, 1.0, 2.0, 2.0, 4.0]);
}

#[test]
#[should_panic(expected = "part 5+2 of a slice of 6")]
fn a_part_beyond_the_end_is_refused() {
    let mut six = [0.0; 6];
    // SAFETY: nothing else is alive.
    unsafe { Shared::new(&mut six).part(5, 2) };
}

#[test]
#[should_panic(expected = "a 2 x 3 matrix spans 7 elements, the slice has 6")]
fn a_matrix_beyond_its_slice_is_refused() {
    Matrix::strided(&[0.0; 6], 2, 3, 4, 1);
}

#[test]
fn products_read_and_write_strided_blocks() {
    let (a, b) = (values(15), values(20));
    // Rows 3 and columns 2 of a 3 x 4 output that is part of a wider one, added to.
    let mut out = vec![1.0; 3 * 6];
    // SAFETY: nothing else touches the block.
    let block = unsafe { MatrixMut::shared(Shared::new(&mut out), 1, 3, 4, 6) };
    gemm(block, Output::Add, 2.0, Matrix::new(&a, 3, 5), Matrix::new(&b, 4, 5).t(), Threads::One);
    let product = plain_linear(&a, &b, 5);
    for (i, row) in out.chunks(6).enumerate() {
        assert_eq!((row[0], row[5]), (1.0, 1.0), "outside the block");
        let expected: Vec<f32> = product[i * 4..][..4].iter().map(|p| 1.0 + 2.0 * p).collect();
        assert_close(&row[1..5], &expected);
    }
    // An empty sum is zero, and empty matrices are allowed.
    let mut none = vec![7.0; 2];
    gemm(
        MatrixMut::new(&mut none, 1, 2),
        Output::Set,
        1.0,
        Matrix::<f32>::new(&[], 1, 0),
        Matrix::<f32>::new(&[], 0, 2),
        Threads::All,
    );
    assert_eq!(none, [0.0, 0.0]);
    gemm(
        MatrixMut::<f32>::new(&mut [], 0, 2),
        Output::Set,
        1.0,
        Matrix::<f32>::new(&[], 0, 5),
        Matrix::new(&b[..10], 5, 2),
        Threads::All,
    );
}

#[test]
fn linear_and_its_gradients() {
    let (x, w, bias) = (values(3 * 5), values(2 * 5), [0.5, -0.25]);
    let (x_matrix, w_matrix) = (Matrix::new(&x, 3, 5), Matrix::new(&w, 2, 5));
    let expected: Vec<f32> = plain_linear(&x, &w, 5).chunks(2).flat_map(|y| [y[0] + 0.5, y[1] - 0.25]).collect();
    assert_close(&linear::forward(x_matrix, w_matrix, Some(&bias), None), &expected);
    let residual = [1.0, -1.0, 2.0, -2.0, 3.0, -3.0];
    let sum: Vec<f32> = expected.iter().zip(residual).map(|(y, x)| y + x).collect();
    assert_close(&linear::forward(x_matrix, w_matrix, Some(&bias), Some(&residual)), &sum);
    let ones = [1.0; 6];
    let dy = Matrix::new(&ones, 3, 2);
    let columns: Vec<f32> = (0..5).map(|i| w[i] + w[5 + i]).collect();
    assert_close(&linear::grad_input(dy, w_matrix), &columns.repeat(3));
    let rows: Vec<f32> = (0..5).map(|i| x[i] + x[5 + i] + x[10 + i]).collect();
    assert_close(&linear::grad_weight(dy, x_matrix), &rows.repeat(2));
    assert_close(&linear::column_sums(&x, 5), &rows);
}

#[test]
fn attention_forward_and_backward() {
    let (b, t, h, g, d) = (2, 3, 4, 2, 2);
    // Query, key and value are slices of one projection.
    let qkv = values(b * t * (h + 2 * g) * d);
    let row = (h + 2 * g) * d;
    let heads = |offset: usize| Heads { data: &qkv[offset * d..], strides: HeadStrides::even([t * row, row, d]) };
    let (q, k, v) = (heads(0), heads(h), heads(h + g));
    let attention = Attention {
        b,
        t,
        s: t,
        h,
        g,
        d,
        width: d,
        scale: 0.7,
        window: None,
        softcap: None,
        dropout: None,
        documents: None,
        choice: None,
        sinks: None,
        probe: None,
    };
    let attended = forward(q, k, v, attention);
    // The first query of a sequence sees its own value only.
    assert_close(&attended.out[..d], &qkv[(h + g) * d..][..d]);
    let d_out = values(b * t * h * d);
    let strides = HeadStrides::contiguous(t, h, d);
    let (out, log_sum_exp) = (Heads { data: &attended.out, strides }, &attended.log_sum_exp[..]);
    let saved = Saved { q, k, v, out, log_sum_exp, d_out: Heads { data: &d_out, strides } };
    // The gradients lie as the projection does.
    let mut gradients = vec![f32::NAN; qkv.len()];
    let data = Shared::new(&mut gradients);
    let target = |head: usize| HeadsMut { data, offset: head * d, strides: q.strides };
    backward(saved, attention, Targets { q: target(0), k: target(h), v: target(h + g) });
    let part =
        |from: usize, to: usize| gradients.chunks(row).flat_map(|token| &token[from * d..to * d]).copied().collect();
    let (dq, dk, dv): (Vec<f32>, Vec<f32>, Vec<f32>) = (part(0, h), part(h, h + g), part(h + g, h + 2 * g));
    // Probabilities add up to one, so the sum of the output's gradient is the sum of the values'
    // gradient.
    let sum = |x: &[f32]| x.iter().sum::<f32>();
    assert_close(&[sum(&dv)], &[sum(&d_out)]);
    // A key added to all keys changes no probability: gradients of the keys that a query sees
    // cancel for equal queries.
    assert_close(&dq[..h * d], &vec![0.0; h * d]);
    assert!(dk.iter().any(|x| *x != 0.0));
}

#[test]
fn cross_entropy_and_embedding() {
    let (n, c, v) = (3, 2, 5);
    let (x, w) = (values(n * c), values(v * c));
    let accuracy = TokenAccuracy::default();
    let problem = Problem {
        x: Matrix::new(&x, n, c),
        weight: Projection::Whole(Matrix::new(&w, v, c)),
        bias: None,
        targets: &[4, 0, 2],
        mask: &[1.0, 0.0, 1.0],
        options: CrossEntropyOptions::default(),
        accuracy: Some(&accuracy),
    };
    let all = WantedGradients { x: true, weight: true, bias: true };
    let solution = solve(problem, all);
    let loss =
        |logits: &[f32], target: usize| f64::from(logits.iter().map(|l| l.exp()).sum::<f32>().ln() - logits[target]);
    let logits = plain_linear(&x, &w, c);
    assert!((solution.loss - loss(&logits[..v], 4) - loss(&logits[2 * v..], 2)).abs() < 1e-5);
    let is_right = |logits: &[f32], target: usize| logits.iter().all(|logit| *logit <= logits[target]);
    let right = [(&logits[..v], 4), (&logits[2 * v..], 2)].into_iter().filter(|(row, target)| is_right(row, *target));
    assert_eq!(accuracy.counts(), Some((right.count() as u64, 2)), "a masked token does not count");
    let best = (0..v).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
    let (accuracy, targets) = (TokenAccuracy::default(), [best, 0, 2]);
    for softcap in [None, Some(3.0)] {
        let options = CrossEntropyOptions { softcap, ..CrossEntropyOptions::default() };
        let problem =
            Problem { targets: &targets, mask: &[1.0, 0.0, 0.0], options, accuracy: Some(&accuracy), ..problem };
        solve(problem, WantedGradients { x: false, weight: false, bias: false });
    }
    assert_eq!(accuracy.counts(), Some((2, 2)));
    assert_eq!(solution.x.unwrap()[c..2 * c], [0.0, 0.0], "a masked token has no gradient");
    assert_eq!(solve(Problem { x: Matrix::new(&[], 0, c), ..problem }, all).loss, 0.0);

    assert_eq!(embedding::forward(&w, c, &[3, 0, 3]), [&w[6..8], &w[..2], &w[6..8]].concat());
    let gradient = embedding::backward(&x, c, &[3, 0, 3], v);
    assert_close(&gradient[6..8], &[x[0] + x[4], x[1] + x[5]]);
    assert_eq!(gradient[2..6], [0.0; 4]);
}
