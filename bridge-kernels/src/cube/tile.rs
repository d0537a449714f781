//! Products of tiles in float32, by cubes of [`SIDE`] times [`SIDE`] units.
//!
//! A tile has `SIDE r` rows and columns. Unit `(y, x)` has its elements in rows `y + SIDE i` and
//! columns `x + SIDE j`, element `i r + j` of an array of `r r`. Sums of a unit for wider rows,
//! `columns` of each, are ordered in the same way: element `i columns + j`. All units of a cube
//! must call these functions together. The order of a sum depends on sizes only.

use burn::cubecl;
use burn::cubecl::prelude::*;

use super::Buffer;

/// Units of a cube along each side of a tile.
pub(crate) const SIDE: usize = 16;
/// From a row of a stage to the next: odd, so that the rows of a column lie in different banks of
/// memory.
const PITCH: usize = SIDE + 1;

/// Elements of the shared memory through which rows come.
pub(crate) fn stage_len(r: usize) -> usize {
    2 * r * SIDE * PITCH
}

/// Elements of a tile in shared memory.
pub(crate) fn tile_len(r: usize) -> usize {
    r * SIDE * tile_pitch(r)
}

/// Elements from one row of a tile in shared memory to the next.
pub(crate) fn tile_pitch(r: usize) -> usize {
    r * SIDE + 1
}

/// A matrix in a buffer: where its elements are, and how many rows it has.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Rows {
    pub start: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Elements from one column to the next.
    pub step: usize,
    pub count: usize,
}

/// The element in `row` and `column`, or zero beyond the last row or `columns`.
#[cube]
pub(crate) fn element<X: Float>(x: &[X], rows: &Rows, row: usize, column: usize, columns: usize) -> f32 {
    let mut value = 0.0f32;
    if row < rows.count && column < columns {
        value = f32::cast_from(x[rows.start + row * rows.stride + column * rows.step]);
    }
    value
}

/// An array of zeros.
#[cube]
pub(crate) fn zeros(#[comptime] length: usize) -> Array<f32> {
    let mut sums = Array::<f32>::new(length);
    #[unroll]
    for i in 0..length {
        sums[i] = 0.0f32;
    }
    sums
}

/// Adds `a b^T` to a tile: the first `SIDE r` rows of each, of `depth` elements.
#[cube]
pub(crate) fn add_products<A: Float, B: Float>(
    sums: &mut Array<f32>,
    a: &[A],
    rows_a: &Rows,
    b: &[B],
    rows_b: &Rows,
    depth: usize,
    stage: &mut Shared<[f32]>,
    #[comptime] r: usize,
) {
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let second = comptime!(r * SIDE * PITCH);
    let mut first = 0usize;
    while first < depth {
        // Other units may still read the previous content of the stage.
        sync_cube();
        #[unroll]
        for i in 0..r {
            let row = y + i * SIDE;
            stage[row * PITCH + x] = element::<A>(a, rows_a, row, first + x, depth);
            stage[second + row * PITCH + x] = element::<B>(b, rows_b, row, first + x, depth);
        }
        sync_cube();
        for k in 0..SIDE {
            let mut right = Array::<f32>::new(r);
            #[unroll]
            for j in 0..r {
                right[j] = stage[second + (x + j * SIDE) * PITCH + k];
            }
            #[unroll]
            for i in 0..r {
                let left = stage[(y + i * SIDE) * PITCH + k];
                #[unroll]
                for j in 0..r {
                    sums[i * r + j] += left * right[j];
                }
            }
        }
        first += SIDE;
    }
}

/// Adds to the unit's rows the product of the tile, of which the first `depth` columns count, and
/// the first `depth` rows of `b`, of `width` elements.
#[cube]
pub(crate) fn add_combinations<B: Float>(
    sums: &mut Array<f32>,
    tile: &mut Shared<[f32]>,
    b: &[B],
    rows: &Rows,
    width: usize,
    #[comptime] r: usize,
    #[comptime] columns: usize,
) {
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let pitch = comptime!(tile_pitch(r));
    let depth = min(rows.count, comptime!(r * SIDE));
    for k in 0..depth {
        let mut right = Array::<f32>::new(columns);
        #[unroll]
        for j in 0..columns {
            right[j] = element::<B>(b, rows, k, x + j * SIDE, width);
        }
        #[unroll]
        for i in 0..r {
            let left = tile[(y + i * SIDE) * pitch + k];
            #[unroll]
            for j in 0..columns {
                sums[i * columns + j] += left * right[j];
            }
        }
    }
}

/// As [`add_combinations`] with rows of `a` times a factor each, `r` of a unit: adds their product
/// with `b`, which has as many rows as those have elements.
#[cube]
pub(crate) fn add_row_products<A: Float, B: Float>(
    sums: &mut Array<f32>,
    factors: &Array<f32>,
    a: &[A],
    rows_a: &Rows,
    b: &[B],
    rows_b: &Rows,
    width: usize,
    tile: &mut Shared<[f32]>,
    #[comptime] r: usize,
    #[comptime] columns: usize,
) {
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let mut first = 0usize;
    while first < rows_b.count {
        let mut part = zeros(comptime!(r * r));
        #[unroll]
        for i in 0..r {
            #[unroll]
            for j in 0..r {
                let value = element::<A>(a, rows_a, y + i * SIDE, first + x + j * SIDE, rows_b.count);
                part[i * r + j] = factors[i] * value;
            }
        }
        share(tile, &part, r);
        let others = Rows {
            start: rows_b.start + first * rows_b.stride,
            stride: rows_b.stride,
            step: rows_b.step,
            count: rows_b.count - first,
        };
        add_combinations::<B>(sums, tile, b, &others, width, r, columns);
        first += comptime!(r * SIDE);
    }
}

/// Puts the units' elements into the tile in shared memory, once all have read the old elements.
#[cube]
pub(crate) fn share(tile: &mut Shared<[f32]>, values: &Array<f32>, #[comptime] r: usize) {
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let pitch = comptime!(tile_pitch(r));
    sync_cube();
    #[unroll]
    for i in 0..r {
        #[unroll]
        for j in 0..r {
            tile[(y + i * SIDE) * pitch + x + j * SIDE] = values[i * r + j];
        }
    }
    sync_cube();
}

/// Sums of the values that the units of a row have, for each of the unit's rows.
#[cube]
pub(crate) fn row_sums(values: &mut Array<f32>, stage: &mut Shared<[f32]>, #[comptime] r: usize) {
    gather_rows(values, stage, r);
    let y = UNIT_POS as usize / SIDE;
    #[unroll]
    for i in 0..r {
        let mut sum = 0.0f32;
        for k in 0..SIDE {
            sum += stage[(y + i * SIDE) * PITCH + k];
        }
        values[i] = sum;
    }
}

/// Maxima of the values that the units of a row have, for each of the unit's rows.
#[cube]
pub(crate) fn row_maxima(values: &mut Array<f32>, stage: &mut Shared<[f32]>, #[comptime] r: usize) {
    gather_rows(values, stage, r);
    let y = UNIT_POS as usize / SIDE;
    #[unroll]
    for i in 0..r {
        let mut largest = stage[(y + i * SIDE) * PITCH];
        for k in 1..SIDE {
            largest = max(largest, stage[(y + i * SIDE) * PITCH + k]);
        }
        values[i] = largest;
    }
}

#[cube]
fn gather_rows(values: &mut Array<f32>, stage: &mut Shared<[f32]>, #[comptime] r: usize) {
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    sync_cube();
    #[unroll]
    for i in 0..r {
        stage[(y + i * SIDE) * PITCH + x] = values[i];
    }
    sync_cube();
}

/// Number of columns that a unit has of rows of `width`.
pub(crate) fn columns_of_unit(width: usize) -> usize {
    width.div_ceil(SIDE)
}

impl Buffer {
    /// Number of rows of a tile that a unit has, for matrices of `rows` rows and units that sum
    /// `columns` of each; `None` if the device's cubes are too small.
    pub fn tile_rows(&self, rows: usize, columns: usize) -> Option<usize> {
        let hardware = &self.0.client.properties().hardware;
        (hardware.max_units_per_cube as usize >= SIDE * SIDE).then_some(())?;
        let fits = |r: usize| size_of::<f32>() * (stage_len(r) + tile_len(r)) <= hardware.max_shared_memory_size;
        // More would not fit the registers.
        let suits = |r: &usize| (*r == 1 || (SIDE * r < 2 * rows && r * columns <= 64)) && fits(*r);
        [4, 2, 1].into_iter().find(suits)
    }

    /// A grid with at least `cubes` cubes that work on tiles.
    pub fn cube_per_tile(&self, cubes: usize) -> (CubeCount, CubeDim) {
        self.cubes(cubes, SIDE * SIDE)
    }
}
