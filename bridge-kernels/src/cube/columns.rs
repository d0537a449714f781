//! Sums over the rows of a matrix, in an order that depends on its size alone.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::DType;

use super::Buffer;

/// Tile side of one cube: `SIDE` column vectors by `SIDE` row lanes.
const SIDE: usize = 16;

/// Rows that one unit adds up before sums of cubes are.
const ROWS: usize = 16;

/// `sums[block, column]` gets the sum of `x [rows, columns]` over a block of `block_rows` rows.
/// `columns` counts vectors.
#[cube(launch)]
fn block_sums<X: Float, Y: Float, N: Size>(
    x: &[Vector<X, N>],
    sums: &mut [Vector<Y, N>],
    columns: u32,
    block_rows: u32,
    #[define(X, Y)] _storage: [ElemType; 2],
) {
    let mut partial = Shared::<[Vector<f32, N>]>::new_slice(comptime!(SIDE * SIDE));
    let columns = columns as usize;
    let tiles = columns.div_ceil(SIDE);
    let (block, tile) = (CUBE_POS / tiles, CUBE_POS % tiles);
    if block * columns >= sums.len() {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let (lane, column) = (unit / SIDE, tile * SIDE + unit % SIDE);
    let first = block * block_rows as usize;
    let last = min(first + block_rows as usize, x.len() / columns);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    if column < columns {
        for row in range_stepped(first + lane, last, SIDE) {
            sum += Vector::cast_from(x[row * columns + column]);
        }
    }
    partial[unit] = sum;
    sync_cube();
    if lane == 0 && column < columns {
        #[unroll]
        for other in 1..SIDE {
            sum += partial[other * SIDE + unit];
        }
        sums[block * columns + column] = Vector::cast_from(sum);
    }
}

/// The sum of each column of `x [rows, columns]`, in float32 and rounded once to `dtype`.
pub(crate) fn column_sums(x: &Buffer, columns: usize, dtype: DType) -> Buffer {
    let rows = x.len() / columns;
    let block_rows = SIDE * ROWS;
    if rows <= 4 * block_rows {
        return sums_of_blocks(x, columns, rows, dtype);
    }
    let sums = sums_of_blocks(x, columns, block_rows, DType::F32);
    column_sums(&sums, columns, dtype)
}

/// `[blocks, columns]`: the sums of each `block_rows` rows of `x [rows, columns]`.
fn sums_of_blocks(x: &Buffer, columns: usize, block_rows: usize, dtype: DType) -> Buffer {
    let blocks = (x.len() / columns).div_ceil(block_rows);
    let sums = x.uninitialised([blocks, columns], dtype);
    let lanes = x.lanes(columns);
    let vectors = columns / lanes;
    let (count, dim) = x.cubes(blocks * vectors.div_ceil(SIDE), SIDE * SIDE);
    block_sums::launch(
        &x.0.client,
        count,
        dim,
        lanes,
        x.arg(),
        sums.arg(),
        vectors as u32,
        block_rows as u32,
        [x.storage(), sums.storage()],
    );
    sums
}
