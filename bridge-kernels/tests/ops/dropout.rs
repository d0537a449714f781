//! Dropout.

use bridge_kernels::Philox;
use bridge_kernels::dropout::{DropoutKey, dropout, reference};
use burn::tensor::Device;

use crate::common::{assert_same_on_any_threads, read, run_all, tensor, values};

fn key() -> DropoutKey {
    DropoutKey(Philox::new(5).derive(3))
}

#[test]
fn the_mask_is_the_references_and_the_gradient_uses_it() {
    for n in [1, 3, 4, 63, 65, 20_001] {
        let x = values(1, n);
        let run = |operation: &dyn Fn(burn::tensor::Tensor<1>) -> burn::tensor::Tensor<1>| {
            run_all(std::slice::from_ref(&x), |t| operation(t[0].clone()))
        };
        let fast = run(&|x| dropout(x, 0.3, key()));
        assert_eq!(fast, run(&|x| reference(x, 0.3, key())), "{n} elements");
    }
    let kept = read(dropout(tensor(&[1.0; 20_001], [20_001], &Device::flex()), 0.3, key()));
    let share = kept.iter().filter(|v| **v != 0.0).count() as f64 / 20_001.0;
    assert!((share - 0.7).abs() < 0.02, "kept {share}");
    assert!(kept.iter().all(|v| *v == 0.0 || (*v - 1.0 / 0.7).abs() < 1e-6));
}

#[test]
fn no_dropout_is_the_identity_and_views_work() {
    let device = Device::flex();
    let x = tensor(&values(1, 35), [5, 7], &device);
    assert_eq!(read(dropout(x.clone(), 0.0, key())), read(x.clone()));
    let view = x.transpose();
    let copied = tensor(&read(view.clone()), [7, 5], &device);
    assert_eq!(read(dropout(view, 0.5, key())), read(dropout(copied, 0.5, key())));
}

#[test]
fn the_same_on_any_number_of_threads() {
    let x = [values(1, 70_001)];
    assert_same_on_any_threads("dropout", || run_all(&x, |t| dropout(t[0].clone(), 0.1, key())));
}

#[test]
#[should_panic(expected = "a dropout rate lies in [0, 1), got 1")]
fn a_rate_of_one_is_refused() {
    dropout(tensor(&[0.0], [1], &Device::flex()), 1.0, key());
}
