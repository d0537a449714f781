//! Reductions over the units of a cube, in an order that depends on their number alone.
//!
//! All units of a cube must call them together; `units` is their number, a power of two.

use burn::cubecl;
use burn::cubecl::prelude::*;

/// The sum of `value` over all units of the cube, in all units.
#[cube]
pub(crate) fn cube_sum(value: f32, #[comptime] units: usize) -> f32 {
    let mut partial = Shared::<[f32]>::new_slice(units);
    let unit = UNIT_POS as usize;
    partial[unit] = value;
    sync_cube();
    let mut half = CUBE_DIM as usize / 2;
    while half > 0 {
        if unit < half {
            let other = partial[unit + half];
            partial[unit] += other;
        }
        sync_cube();
        half /= 2;
    }
    let total = partial[0];
    // The next reduction may be given the same memory.
    sync_cube();
    total
}

/// The largest `value` of all units of the cube, in all units.
#[cube]
pub(crate) fn cube_max<T: Numeric>(value: T, #[comptime] units: usize) -> T {
    let mut partial = Shared::<[T]>::new_slice(units);
    let unit = UNIT_POS as usize;
    partial[unit] = value;
    sync_cube();
    let mut half = CUBE_DIM as usize / 2;
    while half > 0 {
        if unit < half {
            let other = partial[unit + half];
            partial[unit] = max(partial[unit], other);
        }
        sync_cube();
        half /= 2;
    }
    let largest = partial[0];
    sync_cube();
    largest
}
