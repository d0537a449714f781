//! Code that the kernels of the scan share: sizes, offsets, and the time steps with their decays.
//!
//! A cube works on a block of rows of one chunk, of one head or several. Time steps and decays of
//! all heads are one buffer of [`PLANES`] planes `[b, h, t]`. A sum of logarithms of decay is kept
//! as two numbers, because only differences count, and those of a long chunk would lose digits.

use burn::cubecl;
use burn::cubecl::prelude::*;

use crate::cube::tile::{Rows, SIDE, add_combinations, element, share, tile_len, zeros};

/// Planes of the buffer of time steps: the step, the sum of logarithms of decay within the chunk in
/// two parts, the decay since the chunk's begin (0 where another document has begun), the decay
/// until its end (0 where another document begins), and the first token of the chunk that is of the
/// same document.
pub(super) const PLANES: usize = 6;
const STEP: usize = 0;
const SUM: usize = 1;
const REST: usize = 2;
const SINCE: usize = 3;
const TO_END: usize = 4;
const FIRST: usize = 5;

/// Sizes that may change from call to call without a new kernel; see [`super::ScanOptions`].
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub batches: u32,
    /// Tokens of a sequence.
    pub tokens: u32,
    pub heads: u32,
    pub head_size: u32,
    pub groups: u32,
    pub state: u32,
    /// Tokens of a chunk.
    pub chunk: u32,
}

/// Compile-time constants of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Rows of a tile that a unit has.
    pub r: usize,
    /// Columns of the result that a unit has in each.
    pub columns: usize,
}

/// Position that a cube works on.
#[derive(CubeType, Clone, Copy)]
pub(super) struct CubePosition {
    pub batch: usize,
    pub chunk: usize,
    /// A head, or some heads of a group.
    pub part: usize,
    /// A block of rows.
    pub block: usize,
    /// Tokens of the chunk.
    pub begin: usize,
    pub end: usize,
}

#[cube]
pub(super) fn chunks(sizes: &Sizes) -> usize {
    (sizes.tokens as usize).div_ceil(sizes.chunk as usize)
}

/// The position of this cube, where each chunk of a sequence has `parts` of `blocks`. Its batch is
/// beyond the last for a cube too many.
#[cube]
pub(super) fn cube_position(parts: usize, blocks: usize, sizes: &Sizes) -> CubePosition {
    let (block, rest) = (CUBE_POS % blocks, CUBE_POS / blocks);
    let (part, rest) = (rest % parts, rest / parts);
    let chunks = chunks(sizes);
    let (chunk, batch) = (rest % chunks, rest / chunks);
    let begin = chunk * sizes.chunk as usize;
    let end = min(begin + sizes.chunk as usize, sizes.tokens as usize);
    CubePosition { batch, chunk, part, block, begin, end }
}

/// The values of a head from a token on, `[.., p]`.
#[cube]
pub(super) fn values_at(batch: usize, token: usize, head: usize, end: usize, sizes: &Sizes) -> Rows {
    let (width, p) = (sizes.heads as usize * sizes.head_size as usize, sizes.head_size as usize);
    let stride = width + 2 * sizes.groups as usize * sizes.state as usize;
    let start = (batch * sizes.tokens as usize + token) * stride + head * p;
    Rows { start, stride, step: 1usize.runtime(), count: end - token }
}

/// Inputs of the state of a group from a token on, or outputs: `[.., n]`.
#[cube]
pub(super) fn states_io_at(
    batch: usize,
    token: usize,
    group: usize,
    end: usize,
    sizes: &Sizes,
    #[comptime] outputs: bool,
) -> Rows {
    let (width, n, groups) =
        (sizes.heads as usize * sizes.head_size as usize, sizes.state as usize, sizes.groups as usize);
    let stride = width + 2 * groups * n;
    let mut start = (batch * sizes.tokens as usize + token) * stride + width + group * n;
    if comptime!(outputs) {
        start += groups * n;
    }
    Rows { start, stride, step: 1usize.runtime(), count: end - token }
}

/// A head's rows of `[b, t, h p]` from a token on.
#[cube]
pub(super) fn of_head_at(batch: usize, token: usize, head: usize, end: usize, sizes: &Sizes) -> Rows {
    let stride = sizes.heads as usize * sizes.head_size as usize;
    let start = (batch * sizes.tokens as usize + token) * stride + head * sizes.head_size as usize;
    Rows { start, stride, step: 1usize.runtime(), count: end - token }
}

/// Offset of the state of a head before or after a chunk, `[n, p]` in `[b, h, chunks, n, p]`.
#[cube]
pub(super) fn state_start(batch: usize, head: usize, chunk: usize, sizes: &Sizes) -> usize {
    let of_state = sizes.state as usize * sizes.head_size as usize;
    ((batch * sizes.heads as usize + head) * chunks(sizes) + chunk) * of_state
}

/// Offset of a head's numbers in a plane `[b, h, t]`, and the size of a plane.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Line {
    pub start: usize,
    pub plane: usize,
}

#[cube]
pub(super) fn line(batch: usize, head: usize, sizes: &Sizes) -> Line {
    let (heads, tokens) = (sizes.heads as usize, sizes.tokens as usize);
    Line { start: (batch * heads + head) * tokens, plane: sizes.batches as usize * heads * tokens }
}

#[cube]
pub(super) fn step(steps: &[f32], line: &Line, token: usize) -> f32 {
    steps[STEP * line.plane + line.start + token]
}

#[cube]
pub(super) fn since(steps: &[f32], line: &Line, token: usize) -> f32 {
    steps[SINCE * line.plane + line.start + token]
}

#[cube]
pub(super) fn to_end(steps: &[f32], line: &Line, token: usize) -> f32 {
    steps[TO_END * line.plane + line.start + token]
}

/// For each of a unit's `r` rows from token `first` on, the decay since the chunk's begin if it is
/// for `outputs`, else the step and the decay until the end.
#[cube]
pub(super) fn row_weights(
    steps: &[f32],
    line: &Line,
    first: usize,
    end: usize,
    #[comptime] outputs: bool,
    #[comptime] r: usize,
) -> Array<f32> {
    let y = UNIT_POS as usize / SIDE;
    let mut weights = zeros(r);
    #[unroll]
    for i in 0..r {
        let token = first + y + i * SIDE;
        if token < end {
            if comptime!(outputs) {
                weights[i] = since(steps, line, token);
            } else {
                weights[i] = step(steps, line, token) * to_end(steps, line, token);
            }
        }
    }
    weights
}

/// `product` times the decay between two tokens of a chunk and, if it is `timed`, the earlier one's
/// step; zero if the later one does not see the earlier one.
#[cube]
pub(super) fn decayed(
    product: f32,
    steps: &[f32],
    line: &Line,
    later: usize,
    earlier: usize,
    end: usize,
    #[comptime] timed: bool,
) -> f32 {
    let mut value = 0.0f32;
    if later < end && earlier <= later {
        let (at, from) = (line.start + later, line.start + earlier);
        if earlier >= u32::cast_from(steps[FIRST * line.plane + at]) as usize {
            let whole = steps[SUM * line.plane + at] - steps[SUM * line.plane + from];
            let rest = steps[REST * line.plane + at] - steps[REST * line.plane + from];
            value = product * (whole + rest).exp();
            if comptime!(timed) {
                value *= steps[from];
            }
        }
    }
    value
}

/// A sum in two parts.
#[derive(CubeType)]
pub(super) struct Sum {
    pub whole: f32,
    pub rest: f32,
}

/// Adds without losing digits (Knuth, The Art of Computer Programming 2, 4.2.2, theorem B).
#[cube]
pub(super) fn add(sum: &mut Sum, term: f32) {
    let whole = sum.whole + term;
    let added = whole - sum.whole;
    sum.rest += (sum.whole - (whole - added)) + (term - added);
    sum.whole = whole;
}

/// `ln(1 + e^x)`.
#[cube]
pub(super) fn softplus(x: f32) -> f32 {
    let mut value = x;
    if x <= 30.0f32 {
        // ln(1 + u), corrected for the rounding of 1 + u (Goldberg 1991, theorem 4).
        let u = x.exp();
        let one_and = 1.0f32 + u;
        value = u;
        if one_and != 1.0f32 {
            value = one_and.ln() * u / (one_and - 1.0f32);
        }
    }
    value
}

/// The planes of all heads; a unit a head and chunk. `vectors` are `a_log`, `dt_bias` and `d`, `[3,
/// h]`.
#[cube(launch)]
pub(super) fn fill_steps<P: Int>(
    dt: &[f32],
    vectors: &[f32],
    documents: ComptimeOption<&[P]>,
    steps: &mut [f32],
    sizes: Sizes,
    least: f32,
    largest: f32,
    #[define(P)] _storage: ElemType,
) {
    let (heads, tokens) = (sizes.heads as usize, sizes.tokens as usize);
    let (head, rest) = (ABSOLUTE_POS % heads, ABSOLUTE_POS / heads);
    let chunks = chunks(&sizes);
    let (chunk, batch) = (rest % chunks, rest / chunks);
    if batch >= sizes.batches as usize {
        terminate!();
    }
    let line = line(batch, head, &sizes);
    let rate = -vectors[head].exp();
    let begin = chunk * sizes.chunk as usize;
    let end = min(begin + sizes.chunk as usize, tokens);
    let mut sum = Sum { whole: 0.0f32, rest: 0.0f32 };
    let mut start = begin;
    let mut goes_on = 1.0f32;
    for token in begin..end {
        #[comptime]
        match documents {
            ComptimeOption::Some(documents) => {
                let row = batch * tokens + token;
                // Both operands of `&&` are evaluated in a kernel.
                if token > 0 && documents[row] != documents[max(row, 1) - 1] {
                    start = token;
                    goes_on = 0.0f32;
                }
            }
            ComptimeOption::None => {}
        }
        // Bounds let NaN pass.
        let mut value = softplus(dt[(batch * tokens + token) * heads + head] + vectors[heads + head]);
        if value < least {
            value = least;
        }
        if value > largest {
            value = largest;
        }
        add(&mut sum, rate * value);
        let place = line.start + token;
        steps[STEP * line.plane + place] = value;
        steps[SUM * line.plane + place] = sum.whole;
        steps[REST * line.plane + place] = sum.rest;
        steps[SINCE * line.plane + place] = goes_on * (sum.whole + sum.rest).exp();
        steps[FIRST * line.plane + place] = f32::cast_from(start as u32);
    }
    for token in begin..end {
        let place = line.start + token;
        let mut decay = 0.0f32;
        if token >= start {
            let whole = sum.whole - steps[SUM * line.plane + place];
            decay = (whole + (sum.rest - steps[REST * line.plane + place])).exp();
        }
        steps[TO_END * line.plane + place] = decay;
    }
}

/// Turns each chunk's term of the state into the state before the chunk, and computes the state
/// after the last one; or, `reversed`, turns each chunk's term of the gradient of the state before
/// it into the gradient of the state after it. In place, a unit a number of a head's state.
#[cube(launch)]
pub(super) fn pass_states(
    steps: &[f32],
    initial: ComptimeOption<&[f32]>,
    states: &mut [f32],
    last: &mut [f32],
    sizes: Sizes,
    #[comptime] reversed: bool,
) {
    if ABSOLUTE_POS >= last.len() {
        terminate!();
    }
    let of_state = sizes.state as usize * sizes.head_size as usize;
    let (of_head, element) = (ABSOLUTE_POS / of_state, ABSOLUTE_POS % of_state);
    let (batch, head) = (of_head / sizes.heads as usize, of_head % sizes.heads as usize);
    let (line, chunks) = (line(batch, head, &sizes), chunks(&sizes));
    let mut state = 0.0f32;
    #[comptime]
    match initial {
        ComptimeOption::Some(initial) => state = initial[ABSOLUTE_POS],
        ComptimeOption::None => {}
    }
    for number in 0..chunks {
        let mut chunk = number;
        if comptime!(reversed) {
            chunk = chunks - 1 - number;
        }
        let end = min((chunk + 1) * sizes.chunk as usize, sizes.tokens as usize);
        let place = (of_head * chunks + chunk) * of_state + element;
        let added = states[place];
        states[place] = state;
        state = state * since(steps, &line, end - 1) + added;
    }
    last[ABSOLUTE_POS] = state;
}

/// Contribution of each chunk to the state after it, `B^T (weight x)`, from values; or, with
/// `outputs`, to the gradient of the state before it, `C^T (decay dy)`, from gradients. One cube
/// computes some rows of a head's `[n, p]` of a chunk.
#[cube(launch)]
pub(super) fn sum_chunks<X: Float>(
    xbc: &[X],
    values: &[X],
    steps: &[f32],
    states: &mut [f32],
    sizes: Sizes,
    #[comptime] outputs: bool,
    #[comptime] form: Form,
    #[define(X)] _storage: ElemType,
) {
    let (r, columns) = (comptime!(form.r), comptime!(form.columns));
    let (n, p) = (sizes.state as usize, sizes.head_size as usize);
    let rows = comptime!(form.r * SIDE);
    let at = cube_position(sizes.heads as usize, n.div_ceil(rows), &sizes);
    if at.batch >= sizes.batches as usize {
        terminate!();
    }
    let (head, first) = (at.part, at.block * rows);
    let group = head / (sizes.heads as usize / sizes.groups as usize);
    let line = line(at.batch, head, &sizes);
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let mut tile = Shared::<[f32]>::new_slice(comptime!(tile_len(form.r)));
    let mut sums = zeros(comptime!(form.r * form.columns));
    let mut token = at.begin;
    while token < at.end {
        let from = states_io_at(at.batch, token, group, at.end, &sizes, outputs);
        let mut factors = zeros(comptime!(form.r * form.r));
        #[unroll]
        for j in 0..r {
            let column = x + j * SIDE;
            let mut factor = 0.0f32;
            if token + column < at.end {
                if comptime!(outputs) {
                    factor = since(steps, &line, token + column);
                } else {
                    factor = to_end(steps, &line, token + column) * step(steps, &line, token + column);
                }
            }
            #[unroll]
            for i in 0..r {
                factors[i * r + j] = factor * element::<X>(xbc, &from, column, first + y + i * SIDE, n);
            }
        }
        share(&mut tile, &factors, r);
        if comptime!(outputs) {
            let rows = of_head_at(at.batch, token, head, at.end, &sizes);
            add_combinations::<X>(&mut sums, &mut tile, values, &rows, p, r, columns);
        } else {
            let rows = values_at(at.batch, token, head, at.end, &sizes);
            add_combinations::<X>(&mut sums, &mut tile, values, &rows, p, r, columns);
        }
        token += rows;
    }
    let start = state_start(at.batch, head, at.chunk, &sizes);
    #[unroll]
    for i in 0..r {
        #[unroll]
        for j in 0..columns {
            let (row, column) = (first + y + i * SIDE, x + j * SIDE);
            if row < n && column < p {
                states[start + row * p + column] = sums[i * columns + j];
            }
        }
    }
}
