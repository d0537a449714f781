//! Micro-kernels of products with bfloat16 operands for AVX-512: tiles with sums in float32, and
//! the packing of operands.
//!
//! A step of a panel has a value of every vector. With `PAIRS` that is two elements in bfloat16 for
//! `vdpbf16ps`, without it one in float32.

use std::arch::x86_64::{
    __m256i, __m512, __m512bh, __m512i, _mm256_mask_storeu_epi16, _mm256_maskz_loadu_epi16, _mm512_add_ps,
    _mm512_and_si512, _mm512_castps_si512, _mm512_castsi256_si512, _mm512_castsi512_ps, _mm512_cvtepu16_epi32,
    _mm512_cvtne2ps_pbh, _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_inserti64x4, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mask_storeu_epi32, _mm512_mask_storeu_ps, _mm512_maskz_loadu_epi16,
    _mm512_maskz_loadu_ps, _mm512_mul_ps, _mm512_permutexvar_epi16, _mm512_reduce_add_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_slli_epi32, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};
use std::ops::Range;

use burn::tensor::DType;
use bytemuck::Zeroable;

use super::kernel::{COLUMNS, LANES, Left, Line, MicroKernel, Terms};
use crate::cpu::element::Element;
use crate::cpu::matrix::{Matrix, MatrixMut};

/// Tiles of 14 x 32 sums in vector registers, see the module.
pub struct Vectors<const PAIRS: bool>;

impl<const PAIRS: bool> MicroKernel for Vectors<PAIRS> {
    /// 28 of the 32 registers hold sums.
    const ROWS: usize = 14;
    /// The first-level cache holds a panel of rows.
    const LONGEST: usize = if PAIRS { 1024 } else { 512 };
    const UNIT: usize = 2;
    /// Half a megabyte.
    const GROUP: usize = 1 << 17;

    fn steps(len: usize) -> usize {
        if PAIRS { len.div_ceil(2) } else { len }
    }

    fn stored_rows(rows: usize) -> usize {
        rows
    }

    unsafe fn pack_rows<E: Element>(panel: &mut [u32], rows: Matrix<'_, E>) {
        assert_eq!(panel.len(), rows.rows() * Self::steps(rows.cols()), "a panel fits its rows");
        // SAFETY: the panel has room, and the matrix was checked against its slice.
        unsafe { pack::<E, PAIRS>(panel.as_mut_ptr(), rows.rows(), rows.rows(), rows) };
    }

    unsafe fn pack_columns<E: Element>(panel: &mut [u32], columns: Matrix<'_, E>) {
        assert_eq!(panel.len(), COLUMNS * Self::steps(columns.rows()), "a panel fits its columns");
        let vectors = columns.t();
        for half in 0..2 {
            let first = (half * LANES).min(vectors.rows());
            let count = (vectors.rows() - first).min(LANES);
            // SAFETY: as above; each half writes a line of the two of a step.
            unsafe {
                let to = panel.as_mut_ptr().wrapping_add(half * LANES);
                pack::<E, PAIRS>(to, COLUMNS, LANES, vectors.row_range(first, count));
            }
        }
    }

    unsafe fn start() -> Self {
        Self
    }

    unsafe fn tiles<O: Element>(
        &self,
        out: &MatrixMut<'_, O>,
        [rows, columns]: [Range<usize>; 2],
        left: Left<'_>,
        _next: Option<Left<'_>>,
        right: &[u32],
        terms: Terms<'_>,
    ) {
        let Left::Panel(a) = left else { unreachable!("rows are packed") };
        let panels = columns.len().div_ceil(COLUMNS);
        let of_panel = right.len() / panels.max(1);
        let steps = of_panel / COLUMNS;
        let fits = a.len() == rows.len() * steps && right.len() == panels * steps * COLUMNS;
        assert!(fits && rows.end <= out.rows() && columns.end <= out.cols(), "panels of tiles");
        for (i, column) in columns.clone().step_by(COLUMNS).enumerate() {
            let b = right[i * of_panel..].as_ptr();
            let count = (columns.end - column).min(COLUMNS);
            let terms = TileTerms::new(terms, rows.start, column);
            let (start, stride) = out.start(rows.start, column);
            macro_rules! by_rows {
                ($($rows:literal)+) => {
                    match rows.len() {
                        // SAFETY: the panels and the tile have these sizes.
                        $($rows => unsafe {
                            tile_of::<O, $rows, PAIRS>(steps, a.as_ptr(), b, start, stride, count, terms);
                        },)+
                        _ => unreachable!("a tile has at most {} rows", Self::ROWS),
                    }
                };
            }
            by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        }
    }
}

/// Packs at most [`LANES`] rows of `vectors`. A step writes `lanes` values, zeros for missing rows,
/// and steps are `width` values apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pack<E: Element, const PAIRS: bool>(panel: *mut u32, width: usize, lanes: usize, vectors: Matrix<'_, E>) {
    let (start, count, len) = (vectors.as_ptr(), vectors.rows(), vectors.cols());
    let [vector_stride, stride] = vectors.strides();
    let stored = first(lanes);
    let per_step = if PAIRS { 2 } else { 1 };
    // SAFETY: masks leave out what lies beyond the matrix or the panel.
    unsafe {
        if stride == 1 {
            for k in (0..len).step_by(per_step * LANES) {
                let left = (len - k).min(per_step * LANES);
                let mut rows = [_mm512_setzero_si512(); LANES];
                for (i, row) in rows.iter_mut().enumerate().take(count) {
                    let from = start.add(i * vector_stride + k);
                    *row = if PAIRS { narrow_along(from, left) } else { widened(from, first(left)) };
                }
                transpose(&mut rows);
                let to = panel.add(k / per_step * width);
                for (i, row) in rows.iter().enumerate().take(left.div_ceil(per_step)) {
                    _mm512_mask_storeu_epi32(to.add(i * width).cast(), stored, *row);
                }
            }
            return;
        }
        for k in (0..len).step_by(per_step) {
            let to = panel.add(k / per_step * width);
            let second = PAIRS && k + 1 < len;
            let step = |from: *const E, mask: u16| match PAIRS {
                true => pairs(from, from.wrapping_add(stride), mask, if second { mask } else { 0 }),
                false => widened(from, mask),
            };
            if vector_stride == 1 {
                let values = step(start.add(k * stride), first(count));
                _mm512_mask_storeu_epi32(to.cast(), stored, values);
            } else {
                for i in 0..lanes {
                    let from = start.wrapping_add(i * vector_stride + k * stride);
                    let value = step(from, u16::from(i < count));
                    _mm512_mask_storeu_epi32(to.add(i).cast(), 1, value);
                }
            }
        }
    }
}

/// Mask of the first `count` lanes.
pub fn first(count: usize) -> u16 {
    ((1_u32 << count) - 1) as u16
}

/// `count` adjacent elements in bfloat16, at most 32, and zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub unsafe fn narrow_along<E: Element>(from: *const E, count: usize) -> __m512i {
    let mask = ((1_u64 << count) - 1) as u32;
    // SAFETY: masked elements are not read.
    unsafe {
        match E::DTYPE {
            DType::F32 => {
                let low = _mm512_maskz_loadu_ps(mask as u16, from.cast());
                let high = _mm512_maskz_loadu_ps((mask >> 16) as u16, from.wrapping_add(LANES).cast());
                bits(_mm512_cvtne2ps_pbh(high, low))
            }
            _ => _mm512_maskz_loadu_epi16(mask, from.cast()),
        }
    }
}

/// Pairs in bfloat16 of adjacent elements from `one` and from `other`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub unsafe fn pairs<E: Element>(one: *const E, other: *const E, one_mask: u16, other_mask: u16) -> __m512i {
    // SAFETY: masked elements are not read.
    let both = unsafe {
        match E::DTYPE {
            DType::F32 => {
                let one = _mm512_maskz_loadu_ps(one_mask, one.cast());
                bits(_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(other_mask, other.cast()), one))
            }
            _ => {
                let low = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(one_mask, one.cast()));
                _mm512_inserti64x4::<1>(low, _mm256_maskz_loadu_epi16(other_mask, other.cast()))
            }
        }
    };
    // Elements of the two halves by turns.
    const ORDER: [u16; 2 * LANES] = {
        let mut order = [0; 2 * LANES];
        let mut i = 0;
        while i < order.len() {
            order[i] = (i / 2 + i % 2 * LANES) as u16;
            i += 1;
        }
        order
    };
    // SAFETY: both are 64 bytes.
    _mm512_permutexvar_epi16(unsafe { std::mem::transmute::<[u16; 2 * LANES], __m512i>(ORDER) }, both)
}

/// Adjacent elements in float32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn widened<E: Element>(from: *const E, mask: u16) -> __m512i {
    // SAFETY: masked elements are not read.
    unsafe {
        match E::DTYPE {
            DType::F32 => _mm512_castps_si512(_mm512_maskz_loadu_ps(mask, from.cast())),
            _ => _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from.cast()))),
        }
    }
}

#[inline(always)]
fn bits(x: __m512bh) -> __m512i {
    // SAFETY: both are 64 bytes, and any bits are valid.
    unsafe { std::mem::transmute(x) }
}

#[inline(always)]
fn halves(x: __m512i) -> __m512bh {
    // SAFETY: as above.
    unsafe { std::mem::transmute(x) }
}

/// Transposes 16 x 16 values of 32 bits.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transpose(r: &mut [__m512i; LANES]) {
    let mut t = *r;
    for i in (0..LANES).step_by(2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for i in (0..LANES).step_by(4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for i in 0..4 {
        t[i] = _mm512_shuffle_i32x4::<0x88>(r[i], r[i + 4]);
        t[i + 4] = _mm512_shuffle_i32x4::<0xdd>(r[i], r[i + 4]);
        t[i + 8] = _mm512_shuffle_i32x4::<0x88>(r[i + 8], r[i + 12]);
        t[i + 12] = _mm512_shuffle_i32x4::<0xdd>(r[i + 8], r[i + 12]);
    }
    for i in 0..4 {
        r[i] = _mm512_shuffle_i32x4::<0x88>(t[i], t[i + 8]);
        r[i + 8] = _mm512_shuffle_i32x4::<0xdd>(t[i], t[i + 8]);
        r[i + 4] = _mm512_shuffle_i32x4::<0x88>(t[i + 4], t[i + 12]);
        r[i + 12] = _mm512_shuffle_i32x4::<0xdd>(t[i + 4], t[i + 12]);
    }
}

/// Rows that [`dots`] multiplies at once, at most.
pub const FEW: usize = 4;
/// Vectors that [`dots`] reads at once: with [`FEW`] rows they leave registers for two sums each.
const DOTTED: usize = 4;
/// Elements that a step of [`dots`] reads of a vector.
const STEP: usize = 2 * LANES;

/// Lines that a row of `len` elements takes for [`dots`].
pub const fn row_lines<const PAIRS: bool>(len: usize) -> usize {
    len.div_ceil(STEP) * if PAIRS { 1 } else { 2 }
}

/// Arranges a row for [`dots`]: in bfloat16, or the even and the odd elements of a step in float32.
pub fn arrange<E: Element, const PAIRS: bool>(lines: &mut [Line], row: impl Iterator<Item = E>) {
    lines.fill(Line::zeroed());
    for (i, x) in row.enumerate() {
        let (step, place) = (i / STEP, i % STEP);
        if PAIRS {
            let half = u32::from(half::bf16::narrow(x.wide()).to_bits());
            lines[step].0[place / 2] |= half << (16 * (place % 2));
        } else {
            lines[2 * step + place % 2].0[place / 2] = x.wide().to_bits();
        }
    }
}

/// Writes the products of `rows` arranged rows with each of some vectors, whose elements are
/// adjacent, to `sums`, a row of them for each vector.
///
/// # Safety
/// The machine must have AVX-512 F, BW, VL, DQ and BF16.
pub unsafe fn dots<E: Element, const PAIRS: bool>(
    sums: &mut [[f32; FEW]],
    lines: &[Line],
    rows: usize,
    vectors: Matrix<'_, E>,
) {
    let of_row = row_lines::<PAIRS>(vectors.cols());
    let is_adjacent = vectors.strides()[1] == 1 || vectors.cols() <= 1;
    assert!(is_adjacent && sums.len() == vectors.rows() && lines.len() == rows * of_row, "sums of arranged rows");
    // SAFETY: sums, lines and vectors have these sizes.
    unsafe {
        match rows {
            1 => dots_of::<E, 1, PAIRS>(sums, lines, of_row, vectors),
            2 => dots_of::<E, 2, PAIRS>(sums, lines, of_row, vectors),
            3 => dots_of::<E, 3, PAIRS>(sums, lines, of_row, vectors),
            4 => dots_of::<E, 4, PAIRS>(sums, lines, of_row, vectors),
            _ => unreachable!("at most {FEW} rows"),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn dots_of<E: Element, const R: usize, const PAIRS: bool>(
    sums: &mut [[f32; FEW]],
    lines: &[Line],
    of_row: usize,
    vectors: Matrix<'_, E>,
) {
    let (len, [stride, _]) = (vectors.cols(), vectors.strides());
    for (block, sums) in sums.chunks_mut(DOTTED).enumerate() {
        let mut found = [[[_mm512_setzero_ps(); 2]; R]; DOTTED];
        for (step, k) in (0..len).step_by(STEP).enumerate() {
            for (i, found) in found.iter_mut().enumerate().take(sums.len()) {
                // SAFETY: the vectors and rows are this long, and missing elements are zeros.
                unsafe {
                    let from = vectors.as_ptr().add((block * DOTTED + i) * stride + k);
                    let both = narrow_along(from, (len - k).min(STEP));
                    for (row, found) in found.iter_mut().enumerate() {
                        let x = lines.as_ptr().add(row * of_row).cast::<__m512i>();
                        if PAIRS {
                            found[0] = _mm512_dpbf16_ps(found[0], halves(*x.add(step)), halves(both));
                        } else {
                            let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both));
                            let odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(!0xffff)));
                            found[0] = _mm512_fmadd_ps(_mm512_castsi512_ps(*x.add(2 * step)), even, found[0]);
                            found[1] = _mm512_fmadd_ps(_mm512_castsi512_ps(*x.add(2 * step + 1)), odd, found[1]);
                        }
                    }
                }
            }
        }
        for (sums, found) in sums.iter_mut().zip(found) {
            for (sum, [even, odd]) in sums.iter_mut().zip(found) {
                *sum = _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
            }
        }
    }
}

/// [`Terms`] of a tile, with the elements from one row to the next.
#[derive(Clone, Copy)]
struct TileTerms {
    scale: f32,
    sums: Option<(*mut f32, usize)>,
    bias: Option<*const f32>,
    residual: Option<(*const half::bf16, usize)>,
}

impl TileTerms {
    fn new(terms: Terms<'_>, row: usize, column: usize) -> Self {
        let Terms { scale, sums, bias, residual } = terms;
        Self {
            scale,
            sums: sums.map(|sums| sums.start(row, column)),
            bias: bias.map(|bias| bias[column..].as_ptr()),
            residual: residual.map(|x| (x.data()[row * x.strides()[0] + column..].as_ptr(), x.strides()[0])),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn tile_of<O: Element, const R: usize, const PAIRS: bool>(
    steps: usize,
    mut a: *const u32,
    mut b: *const u32,
    out: *mut O,
    stride: usize,
    columns: usize,
    terms: TileTerms,
) {
    let mut sums = [[_mm512_setzero_ps(); 2]; R];
    // SAFETY: the caller has panels of these sizes, and masks leave out columns that are not there.
    unsafe {
        for _ in 0..steps {
            let right = [_mm512_loadu_si512(b.cast()), _mm512_loadu_si512(b.add(LANES).cast())];
            for (i, sums) in sums.iter_mut().enumerate() {
                let left = _mm512_set1_epi32(*a.add(i) as i32);
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = match PAIRS {
                        true => _mm512_dpbf16_ps(*sum, halves(left), halves(right)),
                        false => _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right), *sum),
                    };
                }
            }
            a = a.add(R);
            b = b.add(COLUMNS);
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (half, sum) in sums.into_iter().enumerate() {
                let column = half * LANES;
                if column < columns {
                    let mask = first((columns - column).min(LANES));
                    store(out.add(i * stride + column), mask, with_terms(sum, i, column, mask, &terms));
                }
            }
        }
    }
}

/// Adds the terms to sums in rows of [`COLUMNS`], and stores these rows and columns of `out`.
///
/// # Safety
/// As [`MicroKernel::tiles`]; the tile must lie inside `out`, and `sums` must have its rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub unsafe fn store_tile<O: Element>(
    out: &MatrixMut<'_, O>,
    [rows, columns]: [Range<usize>; 2],
    sums: *const f32,
    terms: Terms<'_>,
) {
    let has_terms = terms.sums.is_some() || terms.bias.is_some() || terms.residual.is_some();
    let terms = TileTerms::new(terms, rows.start, columns.start);
    let (out, stride) = out.start(rows.start, columns.start);
    for i in 0..rows.len() {
        // SAFETY: masks leave out columns that are not there.
        unsafe {
            let (sums, out) = (sums.add(i * COLUMNS), out.add(i * stride));
            if columns.len() == COLUMNS && !has_terms {
                let scale = _mm512_set1_ps(terms.scale);
                let low = _mm512_mul_ps(_mm512_loadu_ps(sums), scale);
                let high = _mm512_mul_ps(_mm512_loadu_ps(sums.add(LANES)), scale);
                match O::DTYPE {
                    DType::F32 => {
                        _mm512_storeu_ps(out.cast(), low);
                        _mm512_storeu_ps(out.cast::<f32>().add(LANES), high);
                    }
                    _ => _mm512_storeu_si512(out.cast(), bits(_mm512_cvtne2ps_pbh(high, low))),
                }
                continue;
            }
            for column in (0..columns.len()).step_by(LANES) {
                let mask = first((columns.len() - column).min(LANES));
                let sum = _mm512_loadu_ps(sums.add(column));
                store(out.add(column), mask, with_terms(sum, i, column, mask, &terms));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn with_terms(sum: __m512, row: usize, column: usize, mask: u16, terms: &TileTerms) -> __m512 {
    let mut y = _mm512_mul_ps(sum, _mm512_set1_ps(terms.scale));
    // SAFETY: the terms are as large as the tile.
    unsafe {
        if let Some((start, stride)) = terms.sums {
            y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, start.add(row * stride + column)));
        }
        if let Some(bias) = terms.bias {
            y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, bias.add(column)));
        }
        if let Some((start, stride)) = terms.residual {
            let x = widened(start.add(row * stride + column), mask);
            y = _mm512_add_ps(y, _mm512_castsi512_ps(x));
        }
    }
    y
}

/// Stores the values of a mask.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn store<O: Element>(to: *mut O, mask: u16, y: __m512) {
    // SAFETY: masked elements are not written.
    unsafe {
        match O::DTYPE {
            DType::F32 => _mm512_mask_storeu_ps(to.cast(), mask, y),
            _ => {
                let y: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(y));
                _mm256_mask_storeu_epi16(to.cast(), mask, y);
            }
        }
    }
}
