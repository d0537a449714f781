//! Dropout: the masks are those of the CPU, element by element.

use bridge_kernels::dropout::{DropoutKey, cube, dropout, reference};
use bridge_kernels::{Philox, dropout::dropped};
use burn::tensor::Tensor;

use crate::common::{Case, device, read, tensor, values};

#[test]
fn outputs_and_gradients() {
    let key = DropoutKey(Philox::new(0x1234_5678_9abc_def0));
    for (n, rate) in [(1, 0.5), (3, 0.1), (601, 0.3), (10_007, 0.9)] {
        let shaped = |x: &[Tensor<1>]| -> Tensor<2> { x[0].clone().reshape([1, n]) };
        Case {
            name: &format!("dropout of {n} at {rate}"),
            inputs: vec![values(1, n)],
            fused: &|x, _| cube::dropout(&shaped(x), rate, key).expect("it applies").reshape([n]),
            reference: &|x, _| reference(shaped(x), rate, key).reshape([n]),
        }
        .check();
        let y = read(dropout(tensor(&vec![1.0; n], [n], &device()), rate, key));
        let expected = dropped(n, rate, key);
        assert!(y.iter().zip(expected).all(|(y, dropped)| (*y == 0.0) == dropped), "the masks of {n} at {rate}");
    }
}
