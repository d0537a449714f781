//! Rotary embedding: a unit a vector of elements.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Device, Tensor};

use super::table::{Positions, RotaryPairing, RotaryTable};
use crate::cube::{Buffer, attach_one};

/// Sizes that may change from call to call without a new kernel. Head sizes are counted in vectors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    heads: u32,
    head_size: u32,
    /// Rotated pairs of a head; the remaining elements are copied.
    pairs: u32,
}

/// Rotation of elements: the factors of the elements themselves, the factors of the other elements
/// of their pairs, and the distance to those, which lie behind or, if `back`, in front.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct PairRotation<N: Size> {
    own: Vector<f32, N>,
    other: Vector<f32, N>,
    distance: usize,
    back: bool,
}

/// Rotation of the vector in `column` of a head at a position, forward or, with a `direction` of
/// -1, backward. Interleaved pairs are rotated in vectors of one element.
#[cube]
pub(crate) fn pair_rotation<N: Size>(
    cos: &[Vector<f32, N>],
    sin: &[Vector<f32, N>],
    position: usize,
    column: usize,
    pairs: usize,
    direction: f32,
    #[comptime] interleaved: bool,
) -> PairRotation<N> {
    let mut pair = column % pairs;
    let mut first = column < pairs;
    let mut distance = pairs;
    if comptime!(interleaved) {
        pair = column / 2;
        first = column == 2 * pair;
        distance = 1;
    }
    let angle = position * pairs + pair;
    let mut other = sin[angle] * Vector::new(direction);
    if first {
        other = -other;
    }
    PairRotation::<N> { own: cos[angle], other, distance, back: !first }
}

/// Index of the other elements of the pairs that the vector at index `element` belongs to.
#[cube]
pub(crate) fn partner<N: Size>(element: usize, rotation: &PairRotation<N>) -> usize {
    let mut partner = element + rotation.distance;
    if rotation.back {
        partner = element - rotation.distance;
    }
    partner
}

/// Rotates elements, given the other elements of their pairs.
#[cube]
pub(crate) fn rotated<X: Float, N: Size>(
    own: Vector<X, N>,
    other: Vector<X, N>,
    rotation: &PairRotation<N>,
) -> Vector<X, N> {
    Vector::cast_from(
        Vector::<f32, N>::cast_from(own) * rotation.own + Vector::<f32, N>::cast_from(other) * rotation.other,
    )
}

/// Rotates each pair `(x1, x2)` of a head into `(x1 cos - x2 sin, x2 cos + x1 sin)`; back again
/// with a `direction` of -1. A unit a vector.
///
/// There is one position for each token, or for each token of a row, the same in all rows.
#[cube(launch)]
fn rotate<X: Float, P: Int, N: Size>(
    x: &[Vector<X, N>],
    cos: &[Vector<f32, N>],
    sin: &[Vector<f32, N>],
    positions: &[P],
    y: &mut [Vector<X, N>],
    sizes: Sizes,
    direction: f32,
    #[comptime] interleaved: bool,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let element = ABSOLUTE_POS;
    if element >= y.len() {
        terminate!();
    }
    let (head_size, pairs) = (sizes.head_size as usize, sizes.pairs as usize);
    let token = element / head_size / sizes.heads as usize;
    let column = element % head_size;
    let mut value = x[element];
    if column < 2 * pairs {
        let position = u32::cast_from(positions[token % positions.len()]) as usize;
        let rotation = pair_rotation::<N>(cos, sin, position, column, pairs, direction, interleaved);
        value = rotated::<X, N>(value, x[partner::<N>(element, &rotation)], &rotation);
    }
    y[element] = value;
}

/// `first`, `first + 1` and so on: a unit each.
#[cube(launch)]
fn count_up(positions: &mut [i32], first: i32) {
    let i = ABSOLUTE_POS;
    if i < positions.len() {
        positions[i] = first + i32::cast_from(i);
    }
}

/// `length` positions from `first`, on the device of `near`; `None` for no positions, or too many
/// to index. They are counted on the device: an upload for each layer would take longer than the
/// rotation, and is not recorded ([`crate::graph`]).
fn counting(near: &Buffer, first: usize, length: usize) -> Option<Buffer> {
    let end = first.checked_add(length).filter(|_| length > 0)?;
    i32::try_from(end).ok()?;
    let positions = near.uninitialised([length], DType::I32);
    let (count, dim) = positions.unit_per_element();
    count_up::launch(&near.0.client, count, dim, positions.arg(), first as i32);
    Some(positions)
}

/// A table and where in it tokens are.
pub(crate) struct Angles {
    pub cos: Buffer,
    pub sin: Buffer,
    /// Position of each token, or of each token of a row if all rows are alike.
    pub positions: Buffer,
    /// Rotated pairs of a head.
    pub pairs: usize,
    pub pairing: RotaryPairing,
}

impl Angles {
    /// Rotation of rows of `t` tokens. `None` if there are no tokens, or too many to index.
    pub fn from_table(table: &RotaryTable, positions: &Positions, t: usize, device: &Device) -> Option<Self> {
        let (cos, sin) = table.cos_sin();
        let cos = Buffer::from_f32(&cos.clone().to_device(device))?;
        let positions = match positions {
            Positions::From(offset) => counting(&cos, *offset, t)?,
            Positions::Explicit(ids_bt) => Buffer::from_integers(ids_bt)?,
        };
        Some(Self {
            cos,
            sin: Buffer::from_f32(&sin.clone().to_device(device))?,
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

    pub fn is_interleaved(&self) -> bool {
        self.pairing == RotaryPairing::Interleaved
    }

    /// Elements of a vector of `x` for heads of this size: the two elements of a pair are in
    /// different vectors, in the same lane.
    pub fn lanes(&self, x: &Buffer, head_size: usize) -> usize {
        let lanes = if self.is_interleaved() { 1 } else { x.lanes(head_size) };
        if self.pairs.is_multiple_of(lanes) { lanes } else { 1 }
    }
}

/// Tensor to rotate and its rotation.
struct Rotation {
    angles: Angles,
    heads: usize,
    head_size: usize,
}

impl Rotation {
    fn run(&self, x: &Buffer, direction: f32) -> Buffer {
        let (y, angles) = (x.uninitialised_like(), &self.angles);
        let lanes = angles.lanes(x, self.head_size);
        let (count, dim) = y.grid(y.len() / lanes);
        let [heads, head_size, pairs] =
            [self.heads, self.head_size / lanes, angles.pairs / lanes].map(|size| size as u32);
        rotate::launch(
            &x.0.client,
            count,
            dim,
            lanes,
            x.arg(),
            angles.cos.arg(),
            angles.sin.arg(),
            angles.positions.arg(),
            y.arg(),
            SizesLaunch::new(heads, head_size, pairs),
            direction,
            angles.is_interleaved(),
            [x.storage(), angles.positions.storage()],
        );
        y
    }
}

/// See [`crate::apply_rotary`]. Explicit positions are not compared with the table's length: they
/// are on the device.
pub fn apply_rotary(x_bthd: &Tensor<4>, table: &RotaryTable, positions: &Positions) -> Option<Tensor<4>> {
    let [_, t, heads, head_size] = x_bthd.dims();
    let x = Buffer::from_tensor(x_bthd)?;
    let device = x_bthd.device().without_autodiff();
    let rotation = Rotation { angles: Angles::from_table(table, positions, t, &device)?, heads, head_size };
    let y = rotation.run(&x, 1.0);
    Some(attach_one(y, x_bthd, move |dy| rotation.run(&dy, -1.0)))
}
