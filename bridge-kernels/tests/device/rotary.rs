//! Rotary position embedding.

use bridge_kernels::rotary::{Positions, RotaryPairing, RotaryTable, apply_rotary, cube, reference};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, device, ints, read, tensor, values};

#[test]
fn outputs_and_gradients() {
    let (b, t, h) = (2, 5, 3);
    let explicit = [16, 0, 3, 3, 7, 1, 2, 15, 4, 0];
    for pairing in [RotaryPairing::Halves, RotaryPairing::Interleaved] {
        // Rotated whole, and in part.
        for (d, given) in [(6, false), (11, false), (6, true), (11, true)] {
            let table =
                |device: &Device| RotaryTable::new(&[1.0, 0.1, 0.013], 17, pairing, &device.clone().without_autodiff());
            let positions = |device: &Device| match given {
                true => Positions::Explicit(ints(&explicit, [b, t], device)),
                false => Positions::From(4),
            };
            let heads = |x: &[Tensor<1>]| -> Tensor<4> { x[0].clone().reshape([b, t, h, d]) };
            Case {
                name: &format!("{pairing:?}, d = {d}, explicit positions: {given}"),
                inputs: vec![values(1, b * t * h * d)],
                fused: &|x, device| {
                    let y = cube::apply_rotary(&heads(x), &table(device), &positions(device));
                    y.expect("it applies").reshape([b * t * h * d])
                },
                reference: &|x, device| {
                    reference(heads(x), &table(device), &positions(device)).reshape([b * t * h * d])
                },
            }
            .check();
        }
    }
}

#[test]
fn views_of_a_wider_projection_and_a_table_elsewhere() {
    let table = RotaryTable::new(&[1.0, 0.5], 9, RotaryPairing::Halves, &Device::flex());
    let view = tensor(&values(1, 2 * 3 * 24), [2, 3, 24], &device()).narrow(2, 8, 8).reshape([2, 3, 2, 4]);
    let expected = reference(view.clone(), &table, &Positions::From(0));
    let y = cube::apply_rotary(&view, &table, &Positions::From(0)).expect("it applies");
    assert_close("view", &read(y.clone()), &read(expected), 2e-6);
    assert_eq!(read(apply_rotary(view, &table, &Positions::From(0))), read(y), "the public function takes the kernel");
}
