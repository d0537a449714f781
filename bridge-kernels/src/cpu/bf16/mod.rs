//! Matrix products with operands or results in bfloat16, summed in float32.
//!
//! The left operand is packed first, in blocks of rows and of `k`, unless the micro-kernel reads
//! its rows in place. Tasks then take groups of columns: each packs its columns of the right
//! operand, and computes their tiles with the rows of the block, or with a part of them if there
//! are few columns. Sums over several blocks of `k` stay in float32, so that a result is rounded
//! once.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vectors;

use std::borrow::Cow;
use std::sync::OnceLock;

use rayon::prelude::*;

use super::buffer::filled;
use super::element::{Element, narrow_into};
use super::gemm::{Matrix, MatrixMut, Output, Threads, wide};
use super::simd::vectorised;

/// Environment variable that chooses the form of products, for tests.
const VARIABLE: &str = "BRIDGE_BF16_PRODUCTS";

/// Form of products with bfloat16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tile registers of AMX.
    Tiles,
    /// Pairs of bfloat16 by `vdpbf16ps`.
    Pairs,
    /// Float32 by AVX-512, widened in the packing.
    Widened,
    /// A float32 product of widened copies.
    Copies,
}

impl Form {
    /// True if the machine can compute the form.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Tiles => has_avx512_bf16() && has_tiles(),
            Self::Pairs | Self::Widened => has_avx512_bf16(),
            Self::Copies => true,
        }
    }

    /// The fastest form of this machine, the same in all of its processes.
    fn of_machine() -> Self {
        match Self::Tiles.is_supported() {
            true => Self::Tiles,
            false if !has_avx512_bf16() => Self::Copies,
            false if has_slow_pairs() => Self::Widened,
            false => Self::Pairs,
        }
    }

    /// The form that the environment asks for, or that of the machine.
    fn chosen() -> Self {
        static CHOSEN: OnceLock<Form> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let Ok(name) = std::env::var(VARIABLE) else { return Self::of_machine() };
            let form = match name.as_str() {
                "tiles" => Self::Tiles,
                "pairs" => Self::Pairs,
                "widened" => Self::Widened,
                "copies" => Self::Copies,
                _ => panic!("{VARIABLE}: expected tiles, pairs, widened or copies, found `{name}`"),
            };
            assert!(form.is_supported(), "{VARIABLE}: this machine does not have the instructions of `{name}`");
            form
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn has_tiles() -> bool {
    amx::is_usable()
}

#[cfg(target_arch = "x86_64")]
fn has_avx512_bf16() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512bf16") && has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq")
}

/// True for Intel's processors since Sapphire Rapids, which leave bfloat16 to AMX: `vdpbf16ps`
/// starts every other cycle, and makes half the multiply-adds of float32 FMAs.
#[cfg(target_arch = "x86_64")]
fn has_slow_pairs() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    let is_intel = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel";
    is_intel && std::arch::is_x86_feature_detected!("avx512fp16")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512_bf16() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_tiles() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_slow_pairs() -> bool {
    false
}

/// Operands of a product, and values that are added to it: `scale * a * b + bias + residual`.
#[derive(Clone, Copy)]
pub struct Factors<'a, A, B> {
    /// `[m, k]`.
    pub a: Matrix<'a, A>,
    /// `[k, n]`.
    pub b: Matrix<'a, B>,
    pub scale: f32,
    /// `[n]`.
    pub bias: Option<&'a [f32]>,
    /// `[m, n]`, with adjacent columns.
    pub residual: Option<Matrix<'a, half::bf16>>,
}

impl<'a, A: Element, B: Element> Factors<'a, A, B> {
    /// A product alone.
    pub fn new(a: Matrix<'a, A>, b: Matrix<'a, B>) -> Self {
        Self { a, b, scale: 1.0, bias: None, residual: None }
    }
}

/// Writes a product, or adds it to the output. Operands of float32 may be rounded to bfloat16.
///
/// Every element is summed in the same order on any number of threads. Panics if the shapes do not
/// fit.
pub fn product<A: Element, B: Element, O: Element>(
    out: MatrixMut<'_, O>,
    output: Output,
    factors: Factors<'_, A, B>,
    threads: Threads,
) {
    product_by(Form::chosen(), &out, output, factors, threads);
}

fn product_by<A: Element, B: Element, O: Element>(
    form: Form,
    out: &MatrixMut<'_, O>,
    output: Output,
    factors: Factors<'_, A, B>,
    threads: Threads,
) {
    let Factors { a, b, bias, residual, .. } = factors;
    let (m, n) = (out.rows(), out.cols());
    assert!(a.rows() == m && b.cols() == n && b.rows() == a.cols(), "a product of {a:?} and {b:?} is not {m} x {n}");
    assert!(bias.is_none_or(|bias| bias.len() == n), "a bias for each of {n} columns");
    let fits = |x: Matrix<'_, half::bf16>| (x.rows(), x.cols(), x.strides()[1]) == (m, n, 1);
    assert!(residual.is_none_or(fits), "a residual of the product's size");
    if m * n == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if form != Form::Copies && m <= vectors::FEW && b.strides()[0] == 1 {
        return match form {
            Form::Pairs => blocks::few_rows::<A, B, O, true>(out, output, factors, threads),
            _ => blocks::few_rows::<A, B, O, false>(out, output, factors, threads),
        };
    }
    match form {
        #[cfg(target_arch = "x86_64")]
        Form::Tiles => blocks::blocks::<A, B, O, amx::Amx>(out, output, factors, threads),
        #[cfg(target_arch = "x86_64")]
        Form::Pairs => blocks::blocks::<A, B, O, vectors::Vectors<true>>(out, output, factors, threads),
        #[cfg(target_arch = "x86_64")]
        Form::Widened => blocks::blocks::<A, B, O, vectors::Vectors<false>>(out, output, factors, threads),
        _ => copies(out, output, factors, threads),
    }
}

/// The product of widened copies, and a pass over its result.
fn copies<A: Element, B: Element, O: Element>(
    out: &MatrixMut<'_, O>,
    output: Output,
    factors: Factors<'_, A, B>,
    threads: Threads,
) {
    let Factors { a, b, scale, bias, residual } = factors;
    let (m, n) = (out.rows(), out.cols());
    let (a_copy, b_copy) = (widened(a), widened(b));
    let (a, b) = (a_copy.matrix(), b_copy.matrix());
    if let (Some(out), None, None) = (out.wide(), bias, residual) {
        return wide(&out, output, scale, a, b, threads);
    }
    let mut sums = filled(m * n, |sums| wide(&MatrixMut::new(sums, m, n), Output::Set, scale, a, b, threads));
    sums.par_chunks_exact_mut(n).enumerate().for_each(|(i, sums)| {
        // SAFETY: each task has its own row.
        let y = unsafe { out.row(i) };
        vectorised!({
            if output == Output::Add {
                sums.iter_mut().zip(&*y).for_each(|(sum, y)| *sum += y.wide());
            }
            if let Some(bias) = bias {
                sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
            }
            if let Some(residual) = residual {
                sums.iter_mut().zip(residual.row(i)).for_each(|(sum, x)| *sum += x.wide());
            }
            narrow_into(y, sums);
        });
    });
}

/// A matrix in float32, with the elements in the order that they have in memory.
struct Wide<'a> {
    data: Cow<'a, [f32]>,
    shape: [usize; 2],
    strides: [usize; 2],
}

impl Wide<'_> {
    fn matrix(&self) -> Matrix<'_> {
        Matrix::strided(&self.data, self.shape[0], self.shape[1], self.strides[0], self.strides[1])
    }
}

fn widened<E: Element>(x: Matrix<'_, E>) -> Wide<'_> {
    let (shape, [_, col_stride]) = ([x.rows(), x.cols()], x.strides());
    if let Some(wide) = x.wide() {
        return Wide { data: Cow::Borrowed(wide.data()), shape, strides: wide.strides() };
    }
    let is_transposed = col_stride != 1;
    let rows = if is_transposed { x.t() } else { x };
    let (count, len, [row_stride, stride]) = (rows.rows(), rows.cols(), rows.strides());
    let data = filled(count * len, |data| {
        data.par_chunks_exact_mut(len.max(1)).enumerate().for_each(|(i, y)| {
            let x = &rows.data()[i * row_stride..];
            vectorised!(match stride {
                1 => y.iter_mut().zip(x).for_each(|(y, x)| *y = x.wide()),
                _ => y.iter_mut().zip(x.iter().step_by(stride)).for_each(|(y, x)| *y = x.wide()),
            });
        });
    });
    Wide { data: Cow::Owned(data), shape, strides: if is_transposed { [1, len] } else { [len, 1] } }
}
