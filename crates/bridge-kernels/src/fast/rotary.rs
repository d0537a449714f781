//! Rotary embedding on Flex.

use burn::tensor::Tensor;

use super::{Values, attach_one, gradient, indices, tensor};
use crate::cpu::rotary::{Direction, Rotation, rotate};
use crate::rotary::{Positions, RotaryTable};

/// See [`crate::apply_rotary`].
pub(crate) fn apply_rotary(x_bthd: &Tensor<4>, table: &RotaryTable, positions: &Positions) -> Option<Tensor<4>> {
    let dims = x_bthd.dims();
    let [b, t, heads, head_size] = dims;
    let values = Values::contiguous_of(x_bthd)?;
    let (cos, sin) = table.cos_sin();
    let (cos, sin) = (Values::contiguous_of(cos)?, Values::contiguous_of(sin)?);
    let positions: Vec<usize> = match positions {
        Positions::From(offset) => (0..b).flat_map(|_| *offset..offset + t).collect(),
        Positions::Explicit(ids_bt) => indices(ids_bt)?,
    };
    let length = table.length();
    if let Some(position) = positions.iter().find(|p| **p >= length) {
        panic!("rotary position {position} is beyond the table's {length}");
    }
    let (pairs, pairing) = (table.rotary_size() / 2, table.pairing());
    let turn = move |x: &[f32], direction| {
        let rotation = Rotation { cos: cos.slice(), sin: sin.slice(), pairs, pairing, heads, head_size };
        rotate(x, &positions, rotation, direction)
    };
    let y = tensor(turn(values.slice(), Direction::Forward), dims);
    Some(attach_one(y, x_bthd.clone(), move |dy| gradient(turn(dy.slice(), Direction::Backward), dims)))
}
