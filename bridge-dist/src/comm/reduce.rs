//! Rank-ordered reduction of host buffers: the arithmetic of every sum, for all implementations.
//!
//! The result of an element depends only on the ranks' elements in rank order, never on how the
//! buffer was divided into slices, so it is the same on all ranks, with all implementations, and
//! from run to run.

use half::bf16;

use super::buffer::{Buffer, BufferMut, DType, Element, ReduceOp};

/// Elements per block: the accumulator of a block stays in the first-level cache while all inputs
/// pass by.
const BLOCK: usize = 2048;

/// Writes `inputs[0] op inputs[1] op ...` to `output`.
///
/// All buffers have the same type and length (the callers have checked it), and there is at least
/// one input. An average of integers was refused earlier.
pub(crate) fn reduce_ordered(op: ReduceOp, inputs: &[Buffer<'_>], output: BufferMut<'_>) {
    match output.dtype() {
        DType::F32 => reduce_floats::<f32>(op, inputs, output),
        DType::F64 => reduce_floats::<f64>(op, inputs, output),
        DType::Bf16 => reduce_bf16(op, inputs, output),
        DType::I64 => reduce_integers::<i64>(op, inputs, output),
        DType::I32 => reduce_integers::<i32>(op, inputs, output),
        DType::U8 => reduce_integers::<u8>(op, inputs, output),
    }
}

/// Splits `len` elements into `parts` consecutive slices whose lengths differ by at most one.
pub fn slice_of(len: usize, parts: usize, index: usize) -> std::ops::Range<usize> {
    let (base, longer) = (len / parts, len % parts);
    let start = index * base + index.min(longer);
    start..start + base + usize::from(index < longer)
}

trait Float: Element + PartialOrd + std::ops::Add<Output = Self> + std::ops::Div<Output = Self> {
    fn from_count(count: usize) -> Self;
}

impl Float for f32 {
    fn from_count(count: usize) -> Self {
        count as f32
    }
}

impl Float for f64 {
    fn from_count(count: usize) -> Self {
        count as f64
    }
}

trait Integer: Element + Ord {
    fn wrapping_sum(self, other: Self) -> Self;
}

macro_rules! integer {
    ($($type:ty),*) => { $(
        impl Integer for $type {
            fn wrapping_sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
        }
    )* };
}
integer!(i64, i32, u8);

// `x != x` is the portable test for NaN; a NaN on any rank has to show on all of them.
#[allow(clippy::eq_op)]
fn float_max<T: PartialOrd + Copy>(a: T, b: T) -> T {
    if b > a || b != b { b } else { a }
}

#[allow(clippy::eq_op)]
fn float_min<T: PartialOrd + Copy>(a: T, b: T) -> T {
    if b < a || b != b { b } else { a }
}

fn reduce_floats<T: Float>(op: ReduceOp, inputs: &[Buffer<'_>], output: BufferMut<'_>) {
    match op {
        ReduceOp::Sum => fold::<T>(inputs, output, |a, b| a + b, |x| x),
        ReduceOp::Max => fold::<T>(inputs, output, float_max, |x| x),
        ReduceOp::Min => fold::<T>(inputs, output, float_min, |x| x),
        ReduceOp::Avg => {
            let count = T::from_count(inputs.len());
            fold::<T>(inputs, output, |a, b| a + b, move |x| x / count);
        }
    }
}

fn reduce_integers<T: Integer>(op: ReduceOp, inputs: &[Buffer<'_>], output: BufferMut<'_>) {
    match op {
        ReduceOp::Max => fold::<T>(inputs, output, Ord::max, |x| x),
        ReduceOp::Min => fold::<T>(inputs, output, Ord::min, |x| x),
        ReduceOp::Sum | ReduceOp::Avg => fold::<T>(inputs, output, T::wrapping_sum, |x| x),
    }
}

fn fold<T: Element>(
    inputs: &[Buffer<'_>],
    mut output: BufferMut<'_>,
    combine: impl Fn(T, T) -> T,
    finish: impl Fn(T) -> T,
) {
    let output: &mut [T] = bytemuck::cast_slice_mut(output.bytes_mut());
    let inputs: Vec<&[T]> = inputs.iter().map(|x| bytemuck::cast_slice(x.bytes())).collect();
    for (index, block) in output.chunks_mut(BLOCK).enumerate() {
        let range = index * BLOCK..index * BLOCK + block.len();
        block.copy_from_slice(&inputs[0][range.clone()]);
        for input in &inputs[1..] {
            for (a, &b) in block.iter_mut().zip(&input[range.clone()]) {
                *a = combine(*a, b);
            }
        }
        for a in block.iter_mut() {
            *a = finish(*a);
        }
    }
}

fn reduce_bf16(op: ReduceOp, inputs: &[Buffer<'_>], output: BufferMut<'_>) {
    match op {
        ReduceOp::Sum => fold_bf16(inputs, output, |a, b| a + b, 1.0),
        ReduceOp::Avg => fold_bf16(inputs, output, |a, b| a + b, inputs.len() as f32),
        ReduceOp::Max => fold_bf16(inputs, output, float_max, 1.0),
        ReduceOp::Min => fold_bf16(inputs, output, float_min, 1.0),
    }
}

fn fold_bf16(inputs: &[Buffer<'_>], mut output: BufferMut<'_>, combine: impl Fn(f32, f32) -> f32, divisor: f32) {
    let output: &mut [bf16] = bytemuck::cast_slice_mut(output.bytes_mut());
    let inputs: Vec<&[bf16]> = inputs.iter().map(|x| bytemuck::cast_slice(x.bytes())).collect();
    let mut sums = [0f32; BLOCK];
    for (index, block) in output.chunks_mut(BLOCK).enumerate() {
        let range = index * BLOCK..index * BLOCK + block.len();
        let sums = &mut sums[..block.len()];
        for (a, b) in sums.iter_mut().zip(&inputs[0][range.clone()]) {
            *a = b.to_f32();
        }
        for input in &inputs[1..] {
            for (a, b) in sums.iter_mut().zip(&input[range.clone()]) {
                *a = combine(*a, b.to_f32());
            }
        }
        for (out, sum) in block.iter_mut().zip(sums) {
            *out = bf16::from_f32(*sum / divisor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_rank_order() {
        // 1e8 + 1 - 1e8 is 0 in float32 from left to right, and 1 in other orders.
        let inputs = [[1e8f32], [1.0], [-1e8]];
        let views: Vec<Buffer<'_>> = inputs.iter().map(Buffer::from).collect();
        let mut output = [7f32];
        reduce_ordered(ReduceOp::Sum, &views, (&mut output).into());
        assert_eq!(output, [0.0]);
    }

    #[test]
    fn bf16_is_rounded_once() {
        // 256 + 1 rounds back to 256 in bf16, so a bf16 accumulator would stay at 256.
        let inputs = [[bf16::from_f32(256.0)], [bf16::ONE], [bf16::ONE]];
        let views: Vec<Buffer<'_>> = inputs.iter().map(Buffer::from).collect();
        let mut output = [bf16::ZERO];
        reduce_ordered(ReduceOp::Sum, &views, (&mut output).into());
        assert_eq!(output[0].to_f32(), 258.0);
    }

    #[test]
    fn nan_wins_max_and_min_from_either_side() {
        for inputs in [[[f64::NAN], [1.0]], [[1.0], [f64::NAN]]] {
            let views: Vec<Buffer<'_>> = inputs.iter().map(Buffer::from).collect();
            for op in [ReduceOp::Max, ReduceOp::Min] {
                let mut output = [0f64];
                reduce_ordered(op, &views, (&mut output).into());
                assert!(output[0].is_nan());
            }
        }
    }

    #[test]
    fn slices_cover_everything_once() {
        for len in [0, 1, 7, 12, 1000] {
            for parts in 1..6 {
                let mut next = 0;
                for index in 0..parts {
                    let range = slice_of(len, parts, index);
                    assert_eq!(range.start, next);
                    next = range.end;
                }
                assert_eq!(next, len);
            }
        }
    }
}
