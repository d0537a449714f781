//! Products by blocks, whose operands are packed for a micro-kernel.

use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use super::Factors;
use super::kernel::{COLUMNS, LANES, Left, Line, MicroKernel, Terms};
use super::vectors::{FEW, arrange, dots, row_lines};
use crate::cpu::buffer::{arbitrary, filled};
use crate::cpu::element::Element;
use crate::cpu::gemm::{Matrix, MatrixMut, Output, PARALLEL_WORK, Threads};

/// Values of a packed block of rows, about: 4 MiB.
const BLOCK: usize = 1 << 20;

/// Multiplies by blocks; see the documentation of [`super`]. The caller has checked the shapes.
pub fn blocks<A: Element, B: Element, O: Element, K: MicroKernel>(
    out: &MatrixMut<'_, O>,
    output: Output,
    factors: Factors<'_, A, B>,
    threads: Threads,
) {
    let Factors { a, b, scale, bias, residual } = factors;
    let (m, n, k) = (a.rows(), b.cols(), a.cols());
    let is_parallel = threads == Threads::All && m * n * k >= PARALLEL_WORK;
    let count = k.div_ceil(K::LONGEST).max(1);
    let longest = k.div_ceil(count).next_multiple_of(K::UNIT);
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
            true => block::<A, B, O, K>(out, a, b, terms, is_parallel),
            false => block::<A, B, f32, K>(&sums, a, b, terms, is_parallel),
        }
    }
}

/// Columns of one task of [`few_rows`], at least.
const FEWEST_COLUMNS: usize = 64;

/// The product of a few rows, as decode makes them: columns are read where they are.
pub fn few_rows<A: Element, B: Element, O: Element, const PAIRS: bool>(
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
fn block<A: Element, B: Element, O: Element, K: MicroKernel>(
    out: &MatrixMut<'_, O>,
    a: Matrix<'_, A>,
    b: Matrix<'_, B>,
    terms: Terms<'_>,
    is_parallel: bool,
) {
    let (m, n, steps) = (a.rows(), b.cols(), K::steps(a.cols()));
    let in_place = a.with_elements().filter(|a| K::reads_in_place(*a));
    // Rows of panels that are read where they are, from the first on.
    let unpacked = if in_place.is_some() { m / K::ROWS * K::ROWS } else { 0 };
    let rows = if unpacked > 0 { m } else { (BLOCK / steps.max(1) / K::ROWS).max(4) * K::ROWS };
    // As few blocks as that takes, of about one size.
    let rows = m.div_ceil(m.div_ceil(rows)).next_multiple_of(K::ROWS);
    let mut lines = arbitrary::<Line>((K::stored_rows(rows.min(m) - unpacked) * steps).div_ceil(LANES));
    for top in (0..m).step_by(rows) {
        let count = rows.min(m - top);
        let panels = &mut Line::values_mut(&mut lines)[..K::stored_rows(count - unpacked) * steps];
        let pack = |(i, panel): (usize, &mut [u32])| {
            let first = top + unpacked + i * K::ROWS;
            // SAFETY: forms by blocks are chosen only where the machine has them.
            unsafe { K::pack_rows(panel, a.row_range(first, K::ROWS.min(m - first))) };
        };
        let length = (K::ROWS * steps).max(1);
        match is_parallel {
            true => panels.par_chunks_mut(length).enumerate().with_min_len(4).for_each(pack),
            false => panels.chunks_mut(length).enumerate().for_each(pack),
        }
        let rows = Rows { in_place, unpacked, panels, top, count, steps };
        let columns = n.div_ceil(COLUMNS);
        let threads = if is_parallel { rayon::current_num_threads() } else { 1 };
        let groups = columns.div_ceil((K::GROUP / (COLUMNS * steps.max(1))).max(1));
        // Each thread gets the same number of groups, and rows where there are few columns.
        let groups = groups.next_multiple_of(threads).min(columns);
        let parts = threads.div_ceil(groups).min(count.div_ceil(K::ROWS));
        let task = |lines: &mut Vec<Line>, task: usize| {
            let (group, part) = (task / parts, task % parts);
            let own = columns * group / groups * COLUMNS..(columns * (group + 1) / groups * COLUMNS).min(n);
            let (tiles, all) = (count.div_ceil(K::ROWS), parts);
            rows.multiply::<B, O, K>(out, own, tiles * part / all..tiles * (part + 1) / all, b, lines, terms);
        };
        match groups * parts {
            1 => task(&mut Vec::new(), 0),
            tasks if is_parallel => (0..tasks).into_par_iter().with_max_len(1).for_each_init(Vec::new, task),
            tasks => (0..tasks).fold(Vec::new(), |mut lines, i| (task(&mut lines, i), lines).1).clear(),
        }
    }
}

/// A block of rows.
struct Rows<'a> {
    in_place: Option<Matrix<'a, bf16>>,
    /// Rows that are read in place, the first ones.
    unpacked: usize,
    /// The other rows, packed.
    panels: &'a [u32],
    /// First row, and number of rows.
    top: usize,
    count: usize,
    steps: usize,
}

impl Rows<'_> {
    fn panel<K: MicroKernel>(&self, panel: usize) -> (Range<usize>, Left<'_>) {
        let first = panel * K::ROWS;
        let rows = K::ROWS.min(self.count - first);
        let left = match self.in_place {
            Some(a) if first < self.unpacked => Left::Rows(a.row_range(first, rows)),
            _ => {
                let start = (first - self.unpacked) * self.steps;
                Left::Panel(&self.panels[start..][..K::stored_rows(rows) * self.steps])
            }
        };
        (self.top + first..self.top + first + rows, left)
    }

    /// The tiles of some columns and of some panels of rows.
    fn multiply<B: Element, O: Element, K: MicroKernel>(
        &self,
        out: &MatrixMut<'_, O>,
        columns: Range<usize>,
        panels: Range<usize>,
        b: Matrix<'_, B>,
        lines: &mut Vec<Line>,
        terms: Terms<'_>,
    ) {
        let of_panel = COLUMNS * self.steps;
        let needed = columns.len().div_ceil(COLUMNS) * of_panel;
        if lines.len() * LANES < needed {
            *lines = arbitrary(needed.div_ceil(LANES));
        }
        let right = &mut Line::values_mut(lines)[..needed];
        for (i, column) in columns.clone().step_by(COLUMNS).enumerate() {
            let own = b.col_range(column, COLUMNS.min(columns.end - column));
            // SAFETY: forms by blocks are chosen only where the machine has them.
            unsafe { K::pack_columns(&mut right[i * of_panel..][..of_panel], own) };
        }
        // SAFETY: as above.
        let kernel = unsafe { K::start() };
        for panel in panels.clone() {
            let (rows, left) = self.panel::<K>(panel);
            let next = (panel + 1 < panels.end).then(|| self.panel::<K>(panel + 1).1);
            // SAFETY: tasks have different tiles.
            unsafe { kernel.tiles(out, [rows, columns.clone()], left, next, right, terms) };
        }
    }
}
