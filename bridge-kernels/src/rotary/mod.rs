//! Rotary position embedding (Su et al., arXiv:2104.09864).

pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
pub(crate) mod flex;
mod table;

use burn::tensor::Tensor;

pub use table::{Positions, RotaryPairing, RotaryTable};

use crate::flex::by_element;
use crate::precision::narrow;

/// Rotates the first [`RotaryTable::rotary_size`] elements of every head by its position; the rest
/// passes through.
///
/// Row `i` of the sequence has position `offset + i`, or `positions_bt[i]` where those are given.
///
/// # Shapes
/// `x_bthd` `[b, t, h, d]` -> the same.
///
/// # Panics
/// If the head is smaller than the rotated part, or a position lies beyond the table. On GPUs
/// explicit positions are not checked: results for positions beyond the table are undefined.
pub fn apply_rotary(x_bthd: Tensor<4>, table: &RotaryTable, positions: &Positions) -> Tensor<4> {
    let [b, t, _, d] = x_bthd.dims();
    table.check([b, t], d, positions);
    #[cfg(feature = "cube")]
    if let Some(y) = cube::apply_rotary(&x_bthd, table, positions) {
        return y;
    }
    by_element!(x_bthd, E => flex::apply_rotary::<E>(&x_bthd, table, positions))
        .unwrap_or_else(|| reference(x_bthd, table, positions))
}

/// [`apply_rotary`] in plain Burn operations.
pub fn reference(x_bthd: Tensor<4>, table: &RotaryTable, positions: &Positions) -> Tensor<4> {
    let [b, t, h, d] = x_bthd.dims();
    let rotated = table.rotary_size();
    assert!(rotated <= d, "{rotated} rotated dimensions do not fit a head of {d}");
    let rows = |values: &Tensor<2>| -> Tensor<4> {
        let values = values.clone().to_device(&x_bthd.device());
        match positions {
            Positions::From(offset) => values.narrow(0, *offset, t).reshape([1, t, 1, rotated / 2]),
            Positions::Explicit(ids_bt) => {
                let ids = ids_bt.clone().reshape([b * t]);
                values.select(0, ids).reshape([b, t, 1, rotated / 2])
            }
        }
    };
    let (cos, sin) = table.cos_sin();
    let (cos, sin) = (rows(cos), rows(sin));
    let (cos, sin) = (narrow(cos, x_bthd.dtype()), narrow(sin, x_bthd.dtype()));
    let part = x_bthd.clone().narrow(3, 0, rotated);
    let turned = match table.pairing() {
        RotaryPairing::Halves => {
            let (x1, x2) = (part.clone().narrow(3, 0, rotated / 2), part.narrow(3, rotated / 2, rotated / 2));
            let y1 = x1.clone() * cos.clone() - x2.clone() * sin.clone();
            Tensor::cat(vec![y1, x2 * cos + x1 * sin], 3)
        }
        RotaryPairing::Interleaved => {
            let pairs: Tensor<5> = part.reshape([b, t, h, rotated / 2, 2]);
            let x1 = pairs.clone().narrow(4, 0, 1).reshape([b, t, h, rotated / 2]);
            let x2 = pairs.narrow(4, 1, 1).reshape([b, t, h, rotated / 2]);
            let y1 = x1.clone() * cos.clone() - x2.clone() * sin.clone();
            let y2 = x2 * cos + x1 * sin;
            Tensor::stack::<5>(vec![y1, y2], 4).reshape([b, t, h, rotated])
        }
    };
    if rotated == d {
        return turned;
    }
    Tensor::cat(vec![turned, x_bthd.narrow(3, rotated, d - rotated)], 3)
}
