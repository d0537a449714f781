//! Products of tiles on matrix units, whose operands are in registers: `mma.m16n8k16` of PTX, of
//! 16-bit elements with sums in float32.
//!
//! A cube has [`PLANES`] planes of [`LANES`] units. A plane multiplies 16 rows at a time. In the
//! tile of sums, unit `l` of a plane has rows `l / 4` and `l / 4 + 8`, and of each eight columns
//! numbers `2 (l % 4)` and the next one; so sums of 16 x 16, rounded, are the first factor of
//! another product as they are.
//!
//! For tests, devices without matrix units can emulate this (`emulated`): registers are exchanged
//! through shared memory.

use burn::cubecl;
use burn::cubecl::cmma::MmaDefinition;
use burn::cubecl::prelude::*;

use super::tile::Rows;

/// Two adjacent elements, the content of a register.
pub(crate) type Pair<X> = Vector<X, Const<2>>;
/// Four adjacent elements, two registers of a factor: a unit's single read from shared memory.
pub(crate) type Quad<X> = Vector<X, Const<4>>;

/// Units of a plane.
pub(crate) const LANES: usize = 32;
/// Planes of a cube.
pub(crate) const PLANES: usize = 4;
/// Units of a cube.
pub(crate) const UNITS: usize = LANES * PLANES;
/// Rows of a plane.
pub(crate) const PLANE_ROWS: usize = 16;
/// Rows of a cube.
pub(crate) const ROWS: usize = PLANE_ROWS * PLANES;
/// Numbers that a plane exchanges where matrix units are emulated.
const EXCHANGED: usize = 16 * 16 + 16 * 8;

/// Numbers of shared memory that [`multiply`] and the reductions want.
pub(crate) const fn exchange_len(emulated: bool) -> usize {
    if emulated { EXCHANGED * PLANES } else { 1 }
}

/// Quads between the rows of a tile of `columns` columns in shared memory: as many as the row has,
/// or a few more, so that the four rows which half of a plane reads at once are in different banks.
const fn row_quads(columns: usize) -> usize {
    let quads = columns / 4;
    quads + (12 - quads % 8) % 8
}

/// Quads of a tile in shared memory.
pub(crate) const fn tile_quads(rows: usize, columns: usize) -> usize {
    rows * row_quads(columns)
}

/// This unit's place in its plane.
#[cube]
pub(crate) fn lane() -> usize {
    UNIT_POS as usize % LANES
}

/// True if this unit is the first of the four that share a row.
#[cube]
pub(crate) fn is_first_of_row() -> bool {
    lane() % 4 < 1
}

/// The first row of this unit's plane.
#[cube]
pub(crate) fn plane_row() -> usize {
    UNIT_POS as usize / LANES * PLANE_ROWS
}

/// The row, of those of the cube, of this unit's sums that have the number `half`, 0 or 1, in each
/// tile.
#[cube]
pub(crate) fn row_of(half: usize) -> usize {
    plane_row() + lane() / 4 + 8 * half
}

/// The column of the first of the two sums that this unit has in each row of a tile.
#[cube]
pub(crate) fn column_of(tile: usize) -> usize {
    8 * tile + lane() % 4 * 2
}

/// Sums of `tiles` tiles of eight columns: two registers each, for the unit's two rows.
#[cube]
pub(crate) fn sums(#[comptime] tiles: usize) -> Array<Pair<f32>> {
    let mut sums = Array::<Pair<f32>>::new(comptime!(2 * tiles));
    #[unroll]
    for i in 0..comptime!(2 * tiles) {
        sums[i] = Vector::new(0.0f32);
    }
    sums
}

/// Half of a quad.
#[cube]
fn half_of<X: Float>(quad: Quad<X>, #[comptime] half: usize) -> Pair<X> {
    let mut pair = Pair::<X>::new(quad.extract(comptime!(2 * half)));
    pair.insert(1usize, quad.extract(comptime!(2 * half + 1)));
    pair
}

/// The first factor, `[16, 16]`: rows of this unit's plane in a tile, from column `16 * step` on.
/// Its columns are permuted in the same way as in [`second_factor`], so that the elements of a unit
/// are adjacent.
#[cube]
pub(crate) fn first_factor<X: Float>(
    tile: &Shared<[Quad<X>]>,
    #[comptime] columns: usize,
    step: usize,
) -> Array<Pair<X>> {
    let mut factor = Array::<Pair<X>>::new(4usize);
    let start = (plane_row() + lane() / 4) * comptime!(row_quads(columns)) + 4 * step + lane() % 4;
    #[unroll]
    for i in 0..2usize {
        let quad = tile[start + comptime!(i * 8 * row_quads(columns))];
        factor[i] = half_of::<X>(quad, 0usize);
        factor[i + 2] = half_of::<X>(quad, 1usize);
    }
    factor
}

/// The first factor, made of the sums of two neighbouring tiles, rounded.
#[cube]
fn first_factor_of_sums<X: Float>(sums: &Array<Pair<f32>>, step: usize) -> Array<Pair<X>> {
    let mut factor = Array::<Pair<X>>::new(4usize);
    #[unroll]
    for i in 0..4usize {
        factor[i] = Vector::cast_from(sums[4 * step + i]);
    }
    factor
}

/// The second factor, `[16, 8]`, of which a tile has the transpose: rows `8 * number` and on, from
/// column `16 * step` on.
#[cube]
pub(crate) fn second_factor<X: Float>(
    tile: &Shared<[Quad<X>]>,
    #[comptime] columns: usize,
    number: usize,
    step: usize,
) -> Array<Pair<X>> {
    let mut factor = Array::<Pair<X>>::new(2usize);
    let quad = tile[(8 * number + lane() / 4) * comptime!(row_quads(columns)) + 4 * step + lane() % 4];
    factor[0] = half_of::<X>(quad, 0usize);
    factor[1] = half_of::<X>(quad, 1usize);
    factor
}

/// Adds the product of `a [16, 16]` and `b [16, 8]` to the sums of a tile.
#[cube]
pub(crate) fn multiply<X: Float>(
    a: &Array<Pair<X>>,
    b: &Array<Pair<X>>,
    sums: &mut Array<Pair<f32>>,
    tile: usize,
    exchange: &mut Shared<[f32]>,
    #[comptime] emulated: bool,
) {
    if comptime!(emulated) {
        multiply_emulated::<X>(a, b, sums, tile, exchange);
    } else {
        let definition = MmaDefinition::<X, X, f32>::new(16usize, 8usize, 16usize);
        let mut registers = Array::<Pair<f32>>::new(2usize);
        registers[0] = sums[2 * tile];
        registers[1] = sums[2 * tile + 1];
        let registers = definition.execute(a, b, &registers);
        sums[2 * tile] = registers[0];
        sums[2 * tile + 1] = registers[1];
    }
}

#[cube]
fn multiply_emulated<X: Float>(
    a: &Array<Pair<X>>,
    b: &Array<Pair<X>>,
    sums: &mut Array<Pair<f32>>,
    tile: usize,
    exchange: &mut Shared<[f32]>,
) {
    let start = UNIT_POS as usize / LANES * EXCHANGED;
    let (row, column) = (lane() / 4, lane() % 4 * 2);
    #[unroll]
    for i in 0..4usize {
        let place = start + (row + comptime!(i % 2 * 8)) * 16 + column + comptime!(i / 2 * 8);
        exchange[place] = f32::cast_from(a[i].extract(0usize));
        exchange[place + 1] = f32::cast_from(a[i].extract(1usize));
    }
    #[unroll]
    for i in 0..2usize {
        let place = start + 256 + (column + comptime!(8 * i)) * 8 + row;
        exchange[place] = f32::cast_from(b[i].extract(0usize));
        exchange[place + 8] = f32::cast_from(b[i].extract(1usize));
    }
    sync_cube();
    #[unroll]
    for i in 0..2usize {
        let mut register = sums[2 * tile + i];
        #[unroll]
        for j in 0..2usize {
            let mut sum = register.extract(j);
            for k in 0..16usize {
                let first = exchange[start + (row + comptime!(8 * i)) * 16 + k];
                sum += first * exchange[start + 256 + k * 8 + column + j];
            }
            register.insert(j, sum);
        }
        sums[2 * tile + i] = register;
    }
    sync_cube();
}

/// Adds combinations of `rows` rows of `columns` columns, of which a tile has the transpose, with
/// sums as weights, rounded.
#[cube]
pub(crate) fn add_combinations<X: Float>(
    into: &mut Array<Pair<f32>>,
    weights: &Array<Pair<f32>>,
    transposed: &Shared<[Quad<X>]>,
    exchange: &mut Shared<[f32]>,
    #[comptime] rows: usize,
    #[comptime] columns: usize,
    #[comptime] emulated: bool,
) {
    #[unroll(!emulated)]
    for step in 0..comptime!(rows / 16) {
        let first = first_factor_of_sums::<X>(weights, step);
        #[unroll(!emulated)]
        for tile in 0..comptime!(columns / 8) {
            let second = second_factor::<X>(transposed, rows, tile, step);
            multiply::<X>(&first, &second, into, tile, exchange, emulated);
        }
    }
}

/// The largest value of the four units that share a row.
#[cube]
pub(crate) fn row_max(value: f32, exchange: &mut Shared<[f32]>, #[comptime] emulated: bool) -> f32 {
    let mut largest = value;
    if comptime!(emulated) {
        exchange[UNIT_POS as usize] = value;
        sync_cube();
        let first = UNIT_POS as usize / 4 * 4;
        #[unroll]
        for i in 0..4usize {
            largest = max(largest, exchange[first + i]);
        }
        sync_cube();
    } else {
        largest = max(largest, plane_shuffle_xor(largest, 1u32));
        largest = max(largest, plane_shuffle_xor(largest, 2u32));
    }
    largest
}

/// The sum of the values of the four units that share a row, the same in all of them.
#[cube]
pub(crate) fn row_sum(value: f32, exchange: &mut Shared<[f32]>, #[comptime] emulated: bool) -> f32 {
    let mut sum = value;
    if comptime!(emulated) {
        exchange[UNIT_POS as usize] = value;
        sync_cube();
        let first = UNIT_POS as usize / 4 * 4;
        // In the order in which shuffles add.
        sum = (exchange[first] + exchange[first + 1]) + (exchange[first + 2] + exchange[first + 3]);
        sync_cube();
    } else {
        sum += plane_shuffle_xor(sum, 1u32);
        sum += plane_shuffle_xor(sum, 2u32);
    }
    sum
}

/// Brings `rows` rows of `columns` columns into shared memory; `from` counts vectors of four
/// elements or more, and the elements of a tile beyond its rows are zero. Followed by a
/// `sync_cube`.
#[cube]
pub(crate) fn load<X: Float, N: Size>(
    tile: &mut Shared<[Quad<X>]>,
    x: &[Vector<X, N>],
    from: &Rows,
    #[comptime] rows: usize,
    #[comptime] columns: usize,
) {
    let lanes = N::value();
    let vectors = comptime!(columns / lanes);
    for i in range_stepped(UNIT_POS as usize, comptime!(rows * vectors), UNITS) {
        let (row, vector) = (i / vectors, i % vectors);
        let mut value = Vector::<X, N>::new(X::cast_from(0.0f32));
        if row < from.count {
            value = x[from.start + row * from.stride + vector];
        }
        let place = row * comptime!(row_quads(columns)) + vector * comptime!(lanes / 4);
        #[unroll]
        for j in 0..comptime!(lanes / 4) {
            let mut quad = Quad::<X>::new(value.extract(comptime!(4 * j)));
            #[unroll]
            for k in 1..4usize {
                quad.insert(k, value.extract(comptime!(4 * j + k)));
            }
            tile[place + j] = quad;
        }
    }
}

/// Brings the transpose of `rows` rows of `columns` columns into shared memory, as
/// [`add_combinations`] reads it: of each 16 rows, a quad has two neighbours and those eight rows
/// on, as the sums of two tiles that a unit has in a row. Followed by a `sync_cube`.
#[cube]
pub(crate) fn load_transposed<X: Float, N: Size>(
    tile: &mut Shared<[Quad<X>]>,
    x: &[Vector<X, N>],
    from: &Rows,
    #[comptime] rows: usize,
    #[comptime] columns: usize,
) {
    let lanes = N::value();
    let quads = comptime!(rows / 4);
    for i in range_stepped(UNIT_POS as usize, comptime!(quads * columns / lanes), UNITS) {
        let (quad_of_rows, vector) = (i % quads, i / quads);
        let row = quad_of_rows / 4 * 16 + quad_of_rows % 4 * 2;
        let mut values = Array::<Vector<X, N>>::new(4usize);
        #[unroll]
        for k in 0..4usize {
            let row = row + comptime!(k / 2 * 8 + k % 2);
            values[k] = Vector::new(X::cast_from(0.0f32));
            if row < from.count {
                values[k] = x[from.start + row * from.stride + vector];
            }
        }
        #[unroll]
        for j in 0..lanes {
            let mut quad = Quad::<X>::new(values[0].extract(j));
            #[unroll]
            for k in 1..4usize {
                quad.insert(k, values[k].extract(j));
            }
            tile[(vector * lanes + j) * comptime!(row_quads(rows)) + quad_of_rows] = quad;
        }
    }
}
