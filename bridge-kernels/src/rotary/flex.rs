//! Rotary embedding on Flex.

use burn::tensor::Tensor;

use super::cpu::{Direction, Rotation, rotate, rotate_in_place};
use super::table::{Positions, RotaryPairing, RotaryTable};
use crate::cpu::element::Element;
use crate::flex::{Typed, Values, attach_one, gradient, indices, tensor};

pub(crate) fn apply_rotary<E: Element>(
    x_bthd: &Tensor<4>,
    table: &RotaryTable,
    positions: &Positions,
) -> Option<Tensor<4>> {
    let dims = x_bthd.dims();
    let [b, t, heads, head_size] = dims;
    let values = Typed::<E>::contiguous_of(x_bthd)?;
    let rotation = BatchRotation::new(table, positions, [b, t], [heads, 1, 1], head_size)?;
    let y = tensor(rotation.copy(values.slice(), Direction::Forward), dims);
    Some(attach_one(y, x_bthd.clone(), move |dy: Typed<E>| {
        gradient(rotation.copy(dy.slice(), Direction::Backward), dims)
    }))
}

/// A rotation of all tokens of a batch.
pub(crate) struct BatchRotation {
    cos: Values,
    sin: Values,
    pairs: usize,
    pairing: RotaryPairing,
    positions: Vec<usize>,
    /// Heads of a token, heads of a group, and rotated heads of a group.
    heads: [usize; 3],
    head_size: usize,
}

impl BatchRotation {
    /// By the positions of `b * t` tokens, each of `heads` heads in groups of `group`, of which the
    /// first `rotated` are rotated; `None` if the tables are not on Flex. Panics if a
    /// position lies beyond the table.
    pub fn new(
        table: &RotaryTable,
        positions: &Positions,
        [b, t]: [usize; 2],
        [heads, group, rotated]: [usize; 3],
        head_size: usize,
    ) -> Option<Self> {
        let (cos, sin) = table.cos_sin();
        let (cos, sin) = (Values::widened_of(cos)?, Values::widened_of(sin)?);
        let positions: Vec<usize> = match positions {
            Positions::From(offset) => (0..b).flat_map(|_| *offset..offset + t).collect(),
            Positions::Explicit(ids_bt) => indices(ids_bt)?,
        };
        let length = table.length();
        if let Some(position) = positions.iter().find(|p| **p >= length) {
            panic!("rotary position {position} is beyond the table's {length}");
        }
        let (pairs, pairing) = (table.rotary_size() / 2, table.pairing());
        Some(Self { cos, sin, pairs, pairing, positions, heads: [heads, group, rotated], head_size })
    }

    /// A rotated copy.
    pub fn copy<E: Element>(&self, x: &[E], direction: Direction) -> Vec<E> {
        rotate(x, &self.positions, self.rotation(), direction)
    }

    /// Rotates.
    pub fn in_place<E: Element>(&self, x: &mut [E], direction: Direction) {
        rotate_in_place(x, &self.positions, self.rotation(), direction);
    }

    fn rotation(&self) -> Rotation<'_> {
        let Self { pairs, pairing, head_size, heads: [heads, group, rotated], .. } = *self;
        Rotation { cos: self.cos.slice(), sin: self.sin.slice(), pairs, pairing, head_size, heads, group, rotated }
    }
}
