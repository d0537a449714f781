//! Rotary embedding: a unit an element.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Device, Int as IntKind, Tensor};

use super::table::{Positions, RotaryPairing, RotaryTable};
use crate::cube::{Buffer, attach_one};

/// Sizes that may change from call to call without a new kernel.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    heads: u32,
    head_size: u32,
    /// Rotated pairs of a head; what is beyond them is copied.
    pairs: u32,
}

/// Turns each pair `(x1, x2)` of a head into `(x1 cos - x2 sin, x2 cos + x1 sin)`; back again with a `turn` of -1.
///
/// There is one position for each token, or for each token of a row, the same in all rows.
#[cube(launch)]
fn rotate<X: Float, P: Int>(
    x: &[X],
    cos: &[f32],
    sin: &[f32],
    positions: &[P],
    y: &mut [X],
    sizes: Sizes,
    turn: f32,
    #[comptime] interleaved: bool,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let element = ABSOLUTE_POS;
    if element >= y.len() {
        terminate!();
    }
    let (head_size, pairs) = (sizes.head_size as usize, sizes.pairs as usize);
    let token = element / head_size / sizes.heads as usize;
    let lane = element % head_size;
    if lane >= 2 * pairs {
        y[element] = x[element];
        terminate!();
    }
    let mut pair = lane % pairs;
    let mut first = lane < pairs;
    let mut distance = pairs;
    if comptime!(interleaved) {
        pair = lane / 2;
        first = lane == 2 * pair;
        distance = 1;
    }
    let position = u32::cast_from(positions[token % positions.len()]) as usize;
    let angle = position * pairs + pair;
    // The other of the pair, with the sign that its sine has.
    let mut partner = element - distance;
    let mut sine = sin[angle] * turn;
    if first {
        partner = element + distance;
        sine = -sine;
    }
    y[element] = X::cast_from(f32::cast_from(x[element]) * cos[angle] + f32::cast_from(x[partner]) * sine);
}

/// A table and where in it tokens are.
pub(crate) struct Angles {
    pub cos: Buffer,
    pub sin: Buffer,
    /// Of each token, or of each token of a row, the same in all rows.
    pub positions: Buffer,
    /// Rotated pairs of a head.
    pub pairs: usize,
    pub pairing: RotaryPairing,
}

impl Angles {
    /// Those of rows of `t` tokens. `None` if there are no tokens, or too many to index.
    pub fn of(table: &RotaryTable, positions: &Positions, t: usize, device: &Device) -> Option<Self> {
        let (cos, sin) = table.cos_sin();
        let positions = match positions {
            Positions::From(offset) => {
                let (offset, t) = (i64::try_from(*offset).ok()?, i64::try_from(t).ok()?);
                Buffer::of_integers(&Tensor::<1, IntKind>::arange(offset..offset + t, device))?
            }
            Positions::Explicit(ids_bt) => Buffer::of_integers(ids_bt)?,
        };
        Some(Self {
            cos: Buffer::of_f32(&cos.clone().to_device(device))?,
            sin: Buffer::of_f32(&sin.clone().to_device(device))?,
            positions,
            pairs: table.rotary_size() / 2,
            pairing: table.pairing(),
        })
    }

    /// No pair is rotated, so that kernels read nothing here. On the device of `x`.
    pub fn none(x: &Buffer) -> Self {
        // As long as the longest vector: some devices compare.
        let [cos, sin, positions] = [DType::F32, DType::F32, DType::I32].map(|dtype| x.uninitialised([4], dtype));
        Self { cos, sin, positions, pairs: 0, pairing: RotaryPairing::Halves }
    }
}

/// What is rotated, and how.
struct Rotation {
    angles: Angles,
    heads: usize,
    head_size: usize,
}

impl Rotation {
    fn run(&self, x: &Buffer, turn: f32) -> Buffer {
        let (y, angles) = (x.uninitialised_like(), &self.angles);
        let (count, dim) = y.unit_per_element();
        rotate::launch(
            &x.0.client,
            count,
            dim,
            x.arg(),
            angles.cos.arg(),
            angles.sin.arg(),
            angles.positions.arg(),
            y.arg(),
            SizesLaunch::new(self.heads as u32, self.head_size as u32, angles.pairs as u32),
            turn,
            angles.pairing == RotaryPairing::Interleaved,
            [x.storage(), angles.positions.storage()],
        );
        y
    }
}

/// See [`crate::apply_rotary`]. Explicit positions are not compared with the table's length: they are on the device.
pub fn apply_rotary(x_bthd: &Tensor<4>, table: &RotaryTable, positions: &Positions) -> Option<Tensor<4>> {
    let [_, t, heads, head_size] = x_bthd.dims();
    let x = Buffer::of(x_bthd)?;
    let device = x_bthd.device().without_autodiff();
    let rotation = Rotation { angles: Angles::of(table, positions, t, &device)?, heads, head_size };
    let y = rotation.run(&x, 1.0);
    Some(attach_one(y, x_bthd, move |dy| rotation.run(&dy, -1.0)))
}
