//! Cross-entropy over a vocabulary spread over threads, against the loss with the whole vocabulary.

use std::sync::{Barrier, Mutex};

use bridge_kernels::cross_entropy::{CrossEntropyOptions, OutputLayer, linear_cross_entropy};
use bridge_kernels::vocab_parallel_cross_entropy::{
    Targets, VocabularyExchange, VocabularyShard, reference, vocab_parallel_cross_entropy,
};
use burn::tensor::{Device, Tensor};

use crate::common::{assert_close, ints, read, tensor, values, wide};

/// Ranks that are threads: each leaves its values, and all read everyone's in rank order.
struct Meeting {
    values: Mutex<Vec<Vec<f32>>>,
    barrier: Barrier,
}

impl Meeting {
    fn new(ranks: usize) -> Self {
        Self { values: Mutex::new(vec![Vec::new(); ranks]), barrier: Barrier::new(ranks) }
    }
}

struct Rank<'a> {
    rank: usize,
    meeting: &'a Meeting,
}

impl Rank<'_> {
    fn combine(&self, values: &mut [f32], combine: fn(f32, f32) -> f32) {
        self.meeting.values.lock().unwrap()[self.rank] = values.to_vec();
        self.meeting.barrier.wait();
        let all = self.meeting.values.lock().unwrap().clone();
        for (i, value) in values.iter_mut().enumerate() {
            *value = all.iter().map(|values| values[i]).reduce(combine).unwrap();
        }
        self.meeting.barrier.wait();
    }
}

impl VocabularyExchange for Rank<'_> {
    fn max(&self, values: &mut [f32]) {
        self.combine(values, f32::max);
    }

    fn sum(&self, values: &mut [f32]) {
        self.combine(values, |a, b| a + b);
    }
}

type Operation = fn(Tensor<2>, OutputLayer, Targets, &VocabularyShard<'_>, &CrossEntropyOptions) -> Tensor<1>;

/// Sizes of one case: tokens, hidden size, ranks, rows of each rank.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    n: usize,
    c: usize,
    ranks: usize,
    v: usize,
}

/// Targets, one of them beyond the vocabulary where it does not count.
fn targets(n: usize, v: usize) -> (Vec<i64>, Vec<f32>) {
    let mask: Vec<f32> = (0..n).map(|i| [1.0, 0.0, 0.5, 1.0, 2.0][i % 5]).collect();
    let mut ids: Vec<i64> = (0..n).map(|i| (i * 7919 % v) as i64).collect();
    if n > 1 {
        ids[1] = -100;
    }
    (ids, mask)
}

fn check(operation: Operation, sizes: Sizes, options: CrossEntropyOptions) {
    let Sizes { n, c, ranks, v } = sizes;
    let (x, w, b) = (values(1, n * c), values(2, ranks * v * c), values(3, ranks * v));
    let (ids, mask) = targets(n, ranks * v);
    let device = Device::flex().autodiff();
    let leaf = |values: &[f32], rows: usize| tensor(values, [rows, c], &device).require_grad();
    let factor = 1.5;

    let bias_leaf = |values: &[f32]| tensor(values, [values.len()], &device).require_grad();
    let layer = |w: &Tensor<2>, b: &Tensor<1>| OutputLayer { weight_vc: w.clone().into(), bias_v: Some(b.clone()) };

    let (whole_x, whole_w, whole_b) = (leaf(&x, n), leaf(&w, ranks * v), bias_leaf(&b));
    let mask_n = || tensor(&mask, [n], &Device::flex());
    let loss =
        linear_cross_entropy(whole_x.clone(), layer(&whole_w, &whole_b), ints(&ids, [n]), mask_n(), &options) * factor;
    let expected_loss = wide(&read(loss.clone()));
    let gradients = loss.backward();
    let expected_x = wide(&read(whole_x.grad(&gradients).unwrap()));
    let expected_w = wide(&read(whole_w.grad(&gradients).unwrap()));
    let expected_b = wide(&read(whole_b.grad(&gradients).unwrap()));

    let meeting = Meeting::new(ranks);
    let run = |rank: usize| {
        let exchange = Rank { rank, meeting: &meeting };
        let shard = VocabularyShard { start: rank * v, size: ranks * v, exchange: &exchange };
        let (x, w) = (leaf(&x, n), leaf(&w[rank * v * c..(rank + 1) * v * c], v));
        let b = bias_leaf(&b[rank * v..(rank + 1) * v]);
        let targets = Targets { ids_n: ints(&ids, [n]), mask_n: mask_n() };
        let loss = operation(x.clone(), layer(&w, &b), targets, &shard, &options) * factor;
        let value = read(loss.clone());
        let gradients = loss.backward();
        [value, read(x.grad(&gradients).unwrap()), read(w.grad(&gradients).unwrap()), read(b.grad(&gradients).unwrap())]
    };
    let run = &run;
    let results: Vec<[Vec<f32>; 4]> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    let name = format!("{sizes:?}, {options:?}");
    let mut sum_x = vec![0.0_f32; n * c];
    for [loss, dx, ..] in &results {
        assert_eq!(loss, &results[0][0], "{name}: all ranks have the same loss");
        assert_close(&format!("{name}: loss"), loss, &expected_loss, 2e-6);
        sum_x.iter_mut().zip(dx).for_each(|(sum, dx)| *sum += dx);
    }
    let all_w: Vec<f32> = results.iter().flat_map(|[_, _, dw, _]| dw.clone()).collect();
    let all_b: Vec<f32> = results.iter().flat_map(|[.., db]| db.clone()).collect();
    assert_close(&format!("{name}: gradient of the bias"), &all_b, &expected_b, 1e-5);
    assert_close(&format!("{name}: gradient of the hidden states"), &sum_x, &expected_x, 1e-5);
    assert_close(&format!("{name}: gradient of the weight"), &all_w, &expected_w, 1e-5);
}

#[test]
fn ranks_together_have_the_loss_and_gradients_of_one() {
    for operation in [vocab_parallel_cross_entropy as Operation, reference] {
        for softcap in [None, Some(2.5)] {
            for z_loss in [None, Some(0.03)] {
                let options = CrossEntropyOptions { softcap, z_loss };
                check(operation, Sizes { n: 7, c: 5, ranks: 3, v: 11 }, options);
            }
        }
        check(operation, Sizes { n: 1, c: 3, ranks: 4, v: 1 }, CrossEntropyOptions::default());
        check(operation, Sizes { n: 11, c: 2, ranks: 2, v: 131 }, CrossEntropyOptions::default());
    }
}

#[test]
fn several_chunks_of_tokens() {
    // More tokens than one chunk has at this vocabulary.
    check(vocab_parallel_cross_entropy, Sizes { n: 131, c: 2, ranks: 2, v: 65_537 }, CrossEntropyOptions::default());
}

#[test]
#[should_panic(expected = "not in 0..22")]
fn a_target_outside_the_vocabulary_is_named() {
    let meeting = Meeting::new(1);
    let exchange = Rank { rank: 0, meeting: &meeting };
    let shard = VocabularyShard { start: 0, size: 22, exchange: &exchange };
    let device = Device::flex();
    let targets = Targets { ids_n: ints(&[22], [1]), mask_n: tensor(&[1.0], [1], &device) };
    let (x, w) = (tensor(&[1.0], [1, 1], &device), tensor(&[1.0; 22], [22, 1], &device));
    vocab_parallel_cross_entropy(x, w, targets, &shard, &CrossEntropyOptions::default());
}
