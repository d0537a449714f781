//! Matrix products with operands or results in bfloat16, summed in float32.
//!
//! The left operand is packed first, in blocks of rows and of `k`. Tasks then take groups of
//! columns: each packs its columns of the right operand, and computes their tiles with all rows of
//! the block. Sums of longer `k` wait in float32, so that a result is rounded once.

#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(test)]
mod tests;

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
        self == Self::Copies || has_avx512_bf16()
    }

    /// The fastest form of this machine, the same in all of its processes.
    fn of_machine() -> Self {
        match (has_avx512_bf16(), has_slow_pairs()) {
            (true, false) => Self::Pairs,
            (true, true) => Self::Widened,
            (false, _) => Self::Copies,
        }
    }

    /// The form that the environment asks for, or that of the machine.
    fn chosen() -> Self {
        static CHOSEN: OnceLock<Form> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let Ok(name) = std::env::var(VARIABLE) else { return Self::of_machine() };
            let form = match name.as_str() {
                "pairs" => Self::Pairs,
                "widened" => Self::Widened,
                "copies" => Self::Copies,
                _ => panic!("{VARIABLE}: expected pairs, widened or copies, found `{name}`"),
            };
            assert!(form.is_supported(), "{VARIABLE}: this machine has no AVX-512 BF16 for `{name}`");
            form
        })
    }
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
    match form {
        #[cfg(target_arch = "x86_64")]
        Form::Pairs => blocks::<A, B, O, true>(out, output, factors, threads),
        #[cfg(target_arch = "x86_64")]
        Form::Widened => blocks::<A, B, O, false>(out, output, factors, threads),
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

#[cfg(target_arch = "x86_64")]
pub use packed::blocks;

#[cfg(target_arch = "x86_64")]
mod packed {
    use rayon::prelude::*;

    use super::Factors;
    use super::kernel::{
        COLUMNS, FEW, Line, ROWS, Terms, arrange, dots, pack_columns, pack_rows, row_lines, steps, tile,
    };
    use crate::cpu::buffer::{arbitrary, filled};
    use crate::cpu::element::Element;
    use crate::cpu::gemm::{Matrix, MatrixMut, Output, PARALLEL_WORK, Threads};

    /// Steps along `k` of a block, at most: the first-level cache holds a panel of rows.
    const STEPS: usize = 512;
    /// Values of a packed group of columns: half a megabyte, which the second-level cache holds.
    const GROUP: usize = 1 << 17;
    /// Values of a packed block of rows, about: 4 MiB.
    const BLOCK: usize = 1 << 20;

    /// See the module. Shapes have been checked.
    pub fn blocks<A: Element, B: Element, O: Element, const PAIRS: bool>(
        out: &MatrixMut<'_, O>,
        output: Output,
        factors: Factors<'_, A, B>,
        threads: Threads,
    ) {
        let Factors { a, b, scale, bias, residual } = factors;
        let (m, n, k) = (a.rows(), b.cols(), a.cols());
        if m <= FEW && b.strides()[0] == 1 {
            return few_rows::<A, B, O, PAIRS>(out, output, factors, threads);
        }
        let is_parallel = threads == Threads::All && m * n * k >= PARALLEL_WORK;
        let count = steps::<PAIRS>(k).div_ceil(STEPS).max(1);
        let longest = k.div_ceil(count).next_multiple_of(2);
        // Blocks of `k` have a size by the shape alone, so that sums have a fixed order.
        let ranges = (0..count).map(|i| (i * longest).min(k)..((i + 1) * longest).min(k));
        // Old values in bfloat16 are widened once.
        let old = match out.wide() {
            None if output == Output::Add => Some(filled(m * n, |old: &mut [f32]| {
                for (i, old) in old.chunks_exact_mut(n).enumerate() {
                    // SAFETY: no task runs yet.
                    crate::cpu::element::widen_into(old, unsafe { out.row(i) });
                }
            })),
            _ => None,
        };
        let mut scratch =
            old.unwrap_or_else(|| if count > 1 && out.wide().is_none() { arbitrary(m * n) } else { Vec::new() });
        let sums = match out.wide() {
            Some(out) => out,
            None => {
                let rows = if scratch.is_empty() { 0 } else { m };
                MatrixMut::new(&mut scratch, rows, n)
            }
        };
        for (i, range) in ranges.enumerate() {
            let is_last = i + 1 == count;
            let terms = Terms {
                scale,
                sums: (i > 0 || output == Output::Add).then_some(&sums),
                bias: bias.filter(|_| is_last),
                residual: residual.filter(|_| is_last),
            };
            let (a, b) = (a.col_range(range.start, range.len()), b.row_range(range.start, range.len()));
            match is_last {
                true => block::<A, B, O, PAIRS>(out, a, b, terms, is_parallel),
                false => block::<A, B, f32, PAIRS>(&sums, a, b, terms, is_parallel),
            }
        }
    }

    /// Columns of one task of [`few_rows`], at least.
    const FEWEST_COLUMNS: usize = 64;

    /// The product of a few rows, as decode makes them: columns are read where they are.
    fn few_rows<A: Element, B: Element, O: Element, const PAIRS: bool>(
        out: &MatrixMut<'_, O>,
        output: Output,
        factors: Factors<'_, A, B>,
        threads: Threads,
    ) {
        let Factors { a, b, scale, bias, residual } = factors;
        let (m, n) = (a.rows(), b.cols());
        let lines = filled(m * row_lines::<PAIRS>(a.cols()), |lines| {
            for (row, lines) in lines.chunks_exact_mut(row_lines::<PAIRS>(a.cols()).max(1)).enumerate() {
                let a = a.row_range(row, 1);
                arrange::<A, PAIRS>(lines, a.data().iter().step_by(a.strides()[1].max(1)).take(a.cols()).copied());
            }
        });
        let mut sums = vec![[0.0; FEW]; n];
        let columns = if threads == Threads::One { n } else { n.div_ceil(rayon::current_num_threads()) };
        let columns = columns.max(FEWEST_COLUMNS);
        let fill = |(i, sums): (usize, &mut [[f32; FEW]])| {
            let columns = b.t().row_range(i * columns, sums.len());
            // SAFETY: forms by blocks are chosen only where the machine has them.
            unsafe { dots::<B, PAIRS>(sums, &lines, m, columns) };
        };
        match sums.len() > columns {
            true => sums.par_chunks_mut(columns).enumerate().for_each(fill),
            false => fill((0, &mut sums)),
        }
        for row in 0..m {
            // SAFETY: no task runs any more.
            let y = unsafe { out.row(row) };
            for (column, (y, sums)) in y.iter_mut().zip(&sums).enumerate() {
                let old = if output == Output::Add { y.wide() } else { 0.0 };
                let residual = residual.map_or(0.0, |x| x.row(row)[column].wide());
                *y = O::narrow(scale * sums[row] + old + bias.map_or(0.0, |bias| bias[column]) + residual);
            }
        }
    }

    /// One block of `k`.
    fn block<A: Element, B: Element, O: Element, const PAIRS: bool>(
        out: &MatrixMut<'_, O>,
        a: Matrix<'_, A>,
        b: Matrix<'_, B>,
        terms: Terms<'_>,
        is_parallel: bool,
    ) {
        let (m, n, steps) = (a.rows(), b.cols(), steps::<PAIRS>(a.cols()));
        let rows = (BLOCK / steps.max(1) / ROWS).max(4) * ROWS;
        // As few blocks as that takes, of about one size.
        let rows = m.div_ceil(m.div_ceil(rows)).next_multiple_of(ROWS);
        let mut panels = arbitrary::<u32>(rows.min(m) * steps);
        for top in (0..m).step_by(rows) {
            let count = rows.min(m - top);
            let panels = &mut panels[..count * steps];
            let pack = |(i, panel): (usize, &mut [u32])| {
                let first = top + i * ROWS;
                // SAFETY: forms by blocks are chosen only where the machine has them.
                unsafe { pack_rows::<A, PAIRS>(panel, a.row_range(first, ROWS.min(m - first))) };
            };
            let length = (ROWS * steps).max(1);
            match is_parallel {
                true => panels.par_chunks_mut(length).enumerate().with_min_len(4).for_each(pack),
                false => panels.chunks_mut(length).enumerate().for_each(pack),
            }
            let rows = Rows { panels, top, count, steps };
            let columns = n.div_ceil(COLUMNS);
            let threads = if is_parallel { rayon::current_num_threads() } else { 1 };
            let groups = columns.div_ceil((GROUP / (COLUMNS * steps.max(1))).max(1));
            // Each thread gets the same number of groups, and rows where there are few columns.
            let groups = groups.next_multiple_of(threads).min(columns);
            let parts = threads.div_ceil(groups).min(count.div_ceil(ROWS));
            let task = |lines: &mut Vec<Line>, task: usize| {
                let (group, part) = (task / parts, task % parts);
                let own = columns * group / groups * COLUMNS..(columns * (group + 1) / groups * COLUMNS).min(n);
                let (tiles, all) = (count.div_ceil(ROWS), parts);
                rows.multiply::<B, O, PAIRS>(out, own, tiles * part / all..tiles * (part + 1) / all, b, lines, terms);
            };
            match groups * parts {
                1 => task(&mut Vec::new(), 0),
                tasks if is_parallel => (0..tasks).into_par_iter().with_max_len(1).for_each_init(Vec::new, task),
                tasks => (0..tasks).fold(Vec::new(), |mut lines, i| (task(&mut lines, i), lines).1).clear(),
            }
        }
    }

    /// A packed block of rows.
    struct Rows<'a> {
        panels: &'a [u32],
        /// First row, and number of rows.
        top: usize,
        count: usize,
        steps: usize,
    }

    impl Rows<'_> {
        /// The tiles of some columns and of some panels of rows.
        fn multiply<B: Element, O: Element, const PAIRS: bool>(
            &self,
            out: &MatrixMut<'_, O>,
            columns: std::ops::Range<usize>,
            panels: std::ops::Range<usize>,
            b: Matrix<'_, B>,
            lines: &mut Vec<Line>,
            terms: Terms<'_>,
        ) {
            let steps = self.steps;
            let of_panel = 2 * steps;
            let needed = columns.len().div_ceil(COLUMNS) * of_panel;
            if lines.len() < needed {
                *lines = arbitrary(needed);
            }
            for (i, column) in columns.clone().step_by(COLUMNS).enumerate() {
                let own = b.col_range(column, COLUMNS.min(columns.end - column));
                // SAFETY: forms by blocks are chosen only where the machine has them.
                unsafe { pack_columns::<B, PAIRS>(&mut lines[i * of_panel..][..of_panel], own) };
            }
            for panel in panels {
                let first = panel * ROWS;
                let rows = ROWS.min(self.count - first);
                let left = &self.panels[first * steps..][..rows * steps];
                for (i, column) in columns.clone().step_by(COLUMNS).enumerate() {
                    let right = Line::values(&lines[i * of_panel..][..of_panel]);
                    // SAFETY: as above; tasks have different tiles.
                    unsafe { tile::<O, PAIRS>(out, [self.top + first, column], rows, [left, right], terms) };
                }
            }
        }
    }
}
