//! Rotary position embedding.

use bridge_kernels::rotary::{Positions, RotaryPairing, RotaryTable, apply_rotary, reference};
use burn::tensor::Device;

use crate::common::{Case, assert_close, assert_same_on_any_threads, ints, read, run_all, tensor, values, wide};

/// Rotation of `x [b, t, h, d]` by the given positions, in float64 but with the table's float32
/// angles.
fn plain(
    x: &[f64],
    positions: &[usize],
    heads: usize,
    d: usize,
    frequencies: &[f32],
    pairing: RotaryPairing,
) -> Vec<f64> {
    let pairs = frequencies.len();
    let mut y = x.to_vec();
    for (token, position) in positions.iter().enumerate() {
        for head in 0..heads {
            for (i, frequency) in frequencies.iter().enumerate() {
                let start = (token * heads + head) * d;
                let (first, second) = match pairing {
                    RotaryPairing::Halves => (start + i, start + pairs + i),
                    RotaryPairing::Interleaved => (start + 2 * i, start + 2 * i + 1),
                };
                let angle = f64::from(*position as f32 * frequency);
                let (sin, cos) = angle.sin_cos();
                y[first] = x[first] * cos - x[second] * sin;
                y[second] = x[second] * cos + x[first] * sin;
            }
        }
    }
    y
}

#[test]
fn outputs_and_gradients() {
    let frequencies = [1.0, 0.1, 0.013];
    let (b, t, h) = (2, 5, 3);
    for pairing in [RotaryPairing::Halves, RotaryPairing::Interleaved] {
        for d in [6, 11] {
            let table = RotaryTable::new(&frequencies, 17, pairing, &Device::flex());
            let explicit: Vec<i64> = vec![16, 0, 3, 3, 7, 1, 2, 15, 4, 0];
            let cases = [
                (Positions::From(4), (0..b).flat_map(|_| 4..4 + t).collect::<Vec<usize>>()),
                (Positions::Explicit(ints(&explicit, [b, t])), explicit.iter().map(|p| *p as usize).collect()),
            ];
            for (positions, expected) in cases {
                Case {
                    name: &format!("{pairing:?}, d = {d}"),
                    inputs: vec![values(1, b * t * h * d)],
                    fast: &|x| {
                        apply_rotary(x[0].clone().reshape([b, t, h, d]), &table, &positions).reshape([b * t * h * d])
                    },
                    reference: &|x| {
                        reference(x[0].clone().reshape([b, t, h, d]), &table, &positions).reshape([b * t * h * d])
                    },
                    plain: &|v| plain(&v[0], &expected, h, d, &frequencies, pairing),
                }
                .check();
            }
        }
    }
}

#[test]
fn views_of_a_wider_projection() {
    let device = Device::flex();
    let table = RotaryTable::new(&[1.0, 0.5], 9, RotaryPairing::Halves, &device);
    let view = tensor(&values(1, 2 * 3 * 24), [2, 3, 24], &device).narrow(2, 8, 8).reshape([2, 3, 2, 4]);
    let expected = plain(&wide(&read(view.clone())), &[0, 1, 2, 0, 1, 2], 2, 4, &[1.0, 0.5], RotaryPairing::Halves);
    assert_close("view", &read(apply_rotary(view, &table, &Positions::From(0))), &expected, 2e-6);
}

#[test]
fn the_same_on_any_number_of_threads() {
    let table = RotaryTable::new(&[1.0, 0.5, 0.1], 97, RotaryPairing::Halves, &Device::flex());
    let x = [values(1, 3 * 97 * 11 * 7)];
    assert_same_on_any_threads("rotary", || {
        run_all(&x, |t| {
            apply_rotary(t[0].clone().reshape([3, 97, 11, 7]), &table, &Positions::From(0)).reshape([3 * 97 * 11 * 7])
        })
    });
}

#[test]
#[should_panic(expected = "rotary: positions up to 6 are beyond the table's 5")]
fn a_position_beyond_the_table_is_named() {
    let table = RotaryTable::new(&[1.0], 5, RotaryPairing::Halves, &Device::flex());
    apply_rotary(tensor(&[0.0; 8], [1, 4, 1, 2], &Device::flex()), &table, &Positions::From(2));
}
