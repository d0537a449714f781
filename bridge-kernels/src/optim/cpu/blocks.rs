//! Codes of 8 and 4 bits that are multiples of one scale a block: dynamic codes (Dettmers 2016,
//! arXiv:1511.04561) by blocks (Dettmers et al. 2021, arXiv:2110.02861) as bitsandbytes has them,
//! and the 4-bit codes of Li, Chen and Zhu 2023 (arXiv:2309.01507) as torchao has them.

use rayon::prelude::*;

use super::CHUNK;
use super::low_precision::largest_of;
use crate::cpu::simd::vectorised;

/// Elements that share a scale.
pub const BLOCK: usize = 256;

/// Code of the elements of a state by blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockCode {
    /// 8-bit dynamic code of numbers of both signs.
    Signed8,
    /// 8-bit dynamic code of numbers from 0 on.
    Unsigned8,
    /// 4-bit dynamic code of numbers of both signs.
    Signed4,
    /// 4-bit linear code of numbers from 0 on. It has no zero, because roots of it are divisors.
    Unsigned4,
}

/// Numbers that codes stand for, relative to the scale of the block.
struct Table {
    /// Number of each code, ascending.
    values: [f32; 256],
    /// Code of the smallest magnitude.
    zero: usize,
    /// Largest number of codes below `zero`.
    negatives: usize,
    /// Magnitudes between which rounding changes from one code to the next.
    midpoints: [f32; 256],
    /// For each [`cell`] of magnitudes, the code above `zero` of the smallest of them.
    cells: [u8; CELLS],
}

/// Mantissa bits that tell cells apart: no cell has two midpoints.
const CELL_BITS: u32 = 7;
/// Exponent of the first cell: below it, 8-bit codes are zero.
const FIRST_EXPONENT: u32 = 127 - 22;
const CELLS: usize = (22 << CELL_BITS) + 1;

/// Cell of a magnitude up to 1.
#[inline(always)]
const fn cell(magnitude: u32) -> usize {
    let cell = (magnitude >> (23 - CELL_BITS)).saturating_sub(FIRST_EXPONENT << CELL_BITS) as usize;
    if cell < CELLS { cell } else { CELLS - 1 }
}

static SIGNED8: Table = Table::dynamic(7, 0, true);
static UNSIGNED8: Table = Table::dynamic(7, 1, false);
static SIGNED4: Table = Table::dynamic(3, 0, true);
static UNSIGNED4: Table = Table::linear16();

impl Table {
    /// Dynamic code: decades up to 1, each of which has twice as many numbers as the one below,
    /// with `2^first` in the lowest; the centres of equal intervals from 0.1 to 1, zero, and 1.
    const fn dynamic(decades: usize, first: u32, is_signed: bool) -> Self {
        const POWERS: [f32; 7] = [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6];
        let mut magnitudes = [0.0; 256];
        let (mut count, mut decade) = (1, 0);
        while decade < decades {
            let intervals = 1_usize << (decade as u32 + first);
            let mut i = 0;
            while i < intervals {
                let centre = (bound(i, intervals) + bound(i + 1, intervals)) / 2.0;
                magnitudes[count] = POWERS[decades - 1 - decade] * centre;
                (count, i) = (count + 1, i + 1);
            }
            decade += 1;
        }
        magnitudes[count] = 1.0;
        Self::new(&magnitudes, count + 1, if is_signed { count - 1 } else { 0 })
    }

    /// Sixteenths up to 1.
    const fn linear16() -> Self {
        let mut magnitudes = [0.0; 256];
        let mut i = 0;
        while i < 16 {
            magnitudes[i] = (i + 1) as f32 / 16.0;
            i += 1;
        }
        Self::new(&magnitudes, 16, 0)
    }

    /// Table of the first `count` magnitudes, which ascend; of them `negatives` from the second on
    /// also with the other sign.
    const fn new(magnitudes: &[f32; 256], count: usize, negatives: usize) -> Self {
        let mut table =
            Self { values: [1.0; 256], zero: negatives, negatives, midpoints: [f32::INFINITY; 256], cells: [0; CELLS] };
        let mut i = 0;
        while i < count {
            table.values[negatives + i] = magnitudes[i];
            if 0 < i && i <= negatives {
                table.values[negatives - i] = -magnitudes[i];
            }
            if i > 0 {
                table.midpoints[i - 1] = (magnitudes[i - 1] + magnitudes[i]) / 2.0;
            }
            i += 1;
        }
        let (mut code, mut i) = (0, 0);
        while i < CELLS {
            let lowest = if i == 0 { 0 } else { ((FIRST_EXPONENT << CELL_BITS) + i as u32) << (23 - CELL_BITS) };
            while table.midpoints[code] < f32::from_bits(lowest) {
                code += 1;
            }
            table.cells[i] = code as u8;
            i += 1;
        }
        table
    }

    /// Code of the nearest number to `x`, which is -1 to 1.
    #[inline(always)]
    fn encode(&self, x: f32) -> u8 {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let code = usize::from(self.cells[cell(magnitude)]);
        let code = code + usize::from(f32::from_bits(magnitude) > self.midpoints[code]);
        let code = if x < 0.0 { self.zero - code.min(self.negatives) } else { self.zero + code };
        code as u8
    }
}

/// Bound `i` of the intervals between 0.1 and 1, rounded as `torch.linspace` does: from the nearer
/// end, once.
const fn bound(i: usize, intervals: usize) -> f32 {
    let step = ((1.0_f32 - 0.1) / intervals as f32) as f64;
    let is_low = i < intervals.div_ceil(2);
    (if is_low { 0.1_f32 as f64 + step * i as f64 } else { 1.0 - step * (intervals - i) as f64 }) as f32
}

impl BlockCode {
    /// Bits of a code.
    pub const fn bits(self) -> usize {
        match self {
            Self::Signed8 | Self::Unsigned8 => 8,
            Self::Signed4 | Self::Unsigned4 => 4,
        }
    }

    /// Bytes of the codes of some elements.
    pub const fn bytes(self, elements: usize) -> usize {
        (elements * self.bits()).div_ceil(8)
    }

    fn table(self) -> &'static Table {
        match self {
            Self::Signed8 => &SIGNED8,
            Self::Unsigned8 => &UNSIGNED8,
            Self::Signed4 => &SIGNED4,
            Self::Unsigned4 => &UNSIGNED4,
        }
    }

    /// Values of codes, block by block.
    #[inline(always)]
    pub fn widen(self, codes: &[u8], scales: &[f32], to: &mut [f32]) {
        let table = self.table();
        for ((to, codes), scale) in to.chunks_mut(BLOCK).zip(codes.chunks(self.bytes(BLOCK))).zip(scales) {
            if self.bits() == 8 {
                for (to, code) in to.iter_mut().zip(codes) {
                    *to = table.values[usize::from(*code)] * scale;
                }
            } else {
                for (to, pair) in to.chunks_mut(2).zip(codes) {
                    let pair = [pair >> 4, pair & 15];
                    for (to, code) in to.iter_mut().zip(pair) {
                        *to = table.values[usize::from(code)] * scale;
                    }
                }
            }
        }
    }

    /// Codes and scales of values, block by block. The scale is the largest magnitude of the block.
    #[inline(always)]
    pub fn narrow(self, from: &[f32], codes: &mut [u8], scales: &mut [f32]) {
        for ((from, codes), scale) in from.chunks(BLOCK).zip(codes.chunks_mut(self.bytes(BLOCK))).zip(scales) {
            *scale = largest_of(from);
            self.encode(from, *scale, codes);
        }
    }

    /// [`narrow`](Self::narrow) that finds the codes and scales which [`widen`](Self::widen) made
    /// the values from. If a block's largest magnitude was negative, its scale is not among the
    /// values: no negative number of a code is -1.
    pub fn recover(self, from: &[f32], codes: &mut [u8], scales: &mut [f32]) {
        let lowest = -self.table().values[0];
        let mut wide = [0.0; BLOCK];
        for ((from, codes), scale) in from.chunks(BLOCK).zip(codes.chunks_mut(self.bytes(BLOCK))).zip(scales) {
            let (wide, largest) = (&mut wide[..from.len()], largest_of(from));
            // Two roundings, of the product and of this quotient, are between them.
            let of_negative = (largest / lowest).to_bits().saturating_sub(2);
            let candidates = (0..5).map(|more| f32::from_bits(of_negative + more));
            let is_origin = |candidate: &f32| {
                self.encode(from, *candidate, codes);
                self.widen(codes, &[*candidate], wide);
                wide == from
            };
            let found = std::iter::once(largest).chain(candidates).find(is_origin);
            *scale = found.unwrap_or(largest);
            if found.is_none() {
                self.encode(from, largest, codes);
            }
        }
    }

    /// Codes of a block with this scale.
    #[inline(always)]
    fn encode(self, from: &[f32], scale: f32, codes: &mut [u8]) {
        let (table, divisor) = (self.table(), if scale == 0.0 { 1.0 } else { scale });
        if self.bits() == 8 {
            for (code, x) in codes.iter_mut().zip(from) {
                *code = table.encode(x / divisor);
            }
        } else {
            for (pair, from) in codes.iter_mut().zip(from.chunks(2)) {
                let low = from.get(1).map_or(0, |x| table.encode(x / divisor));
                *pair = table.encode(from[0] / divisor) << 4 | low;
            }
        }
    }
}

/// Rounds values to codes by [`BlockCode::narrow`] or [`BlockCode::recover`].
pub fn round(to: BlockSliceMut<'_>, from: &[f32], round: impl Fn(BlockCode, &[f32], &mut [u8], &mut [f32]) + Sync) {
    let parts: Vec<_> = to.parts(CHUNK).zip(from.chunks(CHUNK)).collect();
    parts.into_par_iter().for_each(|(to, from)| vectorised!(round(to.code, from, to.codes, to.scales)));
}

/// Elements as codes of one length, to be read.
#[derive(Clone, Copy)]
pub struct BlockSlice<'a> {
    pub code: BlockCode,
    pub codes: &'a [u8],
    pub scales: &'a [f32],
    pub len: usize,
}

impl BlockSlice<'_> {
    /// Some elements, from the beginning of a block.
    #[inline(always)]
    pub fn part(self, start: usize, len: usize) -> Self {
        let bytes = self.code.bytes(start)..self.code.bytes(start + len);
        let blocks = start / BLOCK..(start + len).div_ceil(BLOCK);
        Self { codes: &self.codes[bytes], scales: &self.scales[blocks], len, ..self }
    }
}

/// Elements as codes, to be updated.
pub struct BlockSliceMut<'a> {
    pub code: BlockCode,
    pub codes: &'a mut [u8],
    pub scales: &'a mut [f32],
    pub len: usize,
}

impl<'a> BlockSliceMut<'a> {
    /// Parts of `len` elements each, which is a multiple of the block.
    pub fn parts(self, len: usize) -> impl Iterator<Item = Self> {
        let Self { code, codes, scales, len: all } = self;
        let parts = codes.chunks_mut(code.bytes(len)).zip(scales.chunks_mut(len / BLOCK)).enumerate();
        parts.map(move |(i, (codes, scales))| Self { code, codes, scales, len: len.min(all - i * len) })
    }

    pub fn as_slice(&self) -> BlockSlice<'_> {
        BlockSlice { code: self.code, codes: self.codes, scales: self.scales, len: self.len }
    }

    /// Rounds values to the elements from `start` on, which begins a block.
    #[inline(always)]
    pub fn narrow(&mut self, start: usize, from: &[f32]) {
        let bytes = self.code.bytes(start)..self.code.bytes(start + from.len());
        let blocks = start / BLOCK..(start + from.len()).div_ceil(BLOCK);
        self.code.narrow(from, &mut self.codes[bytes], &mut self.scales[blocks]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: [(BlockCode, &str); 4] = [
        (BlockCode::Signed8, "signed8"),
        (BlockCode::Unsigned8, "unsigned8"),
        (BlockCode::Signed4, "signed4"),
        (BlockCode::Unsigned4, "unsigned4"),
    ];

    /// Maps of bitsandbytes 0.50 (`create_dynamic_map`) and torchao 0.18, and the codes that
    /// torchao (`quantize_8bit_with_qmap`, `quantize_4bit_with_qmap`) makes of [`inputs`] by them.
    fn expected<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> Vec<T> {
        let file = include_str!("../../../tests/fixtures/blocks.txt");
        let line = file.lines().find_map(|line| line.strip_prefix(name)).expect("the fixture has it");
        line.split_whitespace().map(|word| word.parse().expect("a number")).collect()
    }

    /// Values of many sizes, in four blocks of which the last is short and one is tiny.
    fn inputs(code: BlockCode) -> Vec<f32> {
        let value = |i: i32| {
            let value = (i * 7919 % 1009 - 504) as f32 / 504.0 * 2_f32.powi(-(i % 17));
            value * if (256..512).contains(&i) { 2_f32.powi(-60) } else { 1.0 }
        };
        let is_signed = matches!(code, BlockCode::Signed8 | BlockCode::Signed4);
        (0..829).map(value).map(|x| if is_signed { x } else { x.abs() }).collect()
    }

    fn narrowed(code: BlockCode, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let (mut codes, mut scales) = (vec![0; code.bytes(values.len())], vec![0.0; values.len().div_ceil(BLOCK)]);
        let to = BlockSliceMut { code, codes: &mut codes, scales: &mut scales, len: values.len() };
        round(to, values, BlockCode::narrow);
        (codes, scales)
    }

    fn widened(code: BlockCode, codes: &[u8], scales: &[f32], len: usize) -> Vec<f32> {
        let mut values = vec![0.0; len];
        code.widen(codes, scales, &mut values);
        values
    }

    #[test]
    fn codes_are_those_of_bitsandbytes_and_torchao() {
        for (code, name) in CODES {
            let map: Vec<f32> = expected(&format!("{name}.map"));
            assert_eq!(code.table().values[..map.len()], map, "{name}");
            let (codes, scales) = narrowed(code, &inputs(code));
            assert_eq!(scales, expected::<f32>(&format!("{name}.scales")), "{name}");
            let unpacked: Vec<u8> = match code.bits() {
                8 => codes,
                _ => codes.iter().flat_map(|pair| [pair >> 4, pair & 15]).take(829).collect(),
            };
            let expected: Vec<u8> = expected(&format!("{name}.codes"));
            let different: Vec<usize> = (0..829).filter(|i| unpacked[*i] != expected[*i]).collect();
            // Values midway between two numbers are rounded to one or the other.
            assert!(different.len() <= 2, "{name}: {different:?}");
            assert!(different.iter().all(|i| unpacked[*i].abs_diff(expected[*i]) == 1), "{name}: {different:?}");
        }
    }

    #[test]
    fn each_magnitude_gets_the_nearest_number() {
        for (code, name) in CODES {
            let table = code.table();
            let map: Vec<f32> = expected(&format!("{name}.map"));
            for i in 0..200_000_u32 {
                // All exponents down to 2^-40, and 1.
                let magnitude = f32::from_bits((0x3f80_0000 - i * 1678).max(1));
                for x in if table.negatives > 0 { vec![magnitude, -magnitude] } else { vec![magnitude] } {
                    let found = (table.values[usize::from(table.encode(x))] - x).abs();
                    let nearest = map.iter().map(|number| (number - x).abs()).fold(f32::MAX, f32::min);
                    assert!(found <= nearest * 1.0001, "{name}: {x}");
                }
            }
        }
    }

    #[test]
    fn widened_values_are_recovered() {
        for (code, name) in CODES {
            let inputs: Vec<f32> = inputs(code).iter().map(|x| -x.abs()).collect();
            let inputs = if code.table().negatives > 0 { inputs } else { super::tests::inputs(code) };
            let (codes, scales) = narrowed(code, &inputs);
            let values = widened(code, &codes, &scales, inputs.len());
            let (mut again, mut scales_again) = (codes.clone(), vec![0.0; scales.len()]);
            code.recover(&values, &mut again, &mut scales_again);
            assert_eq!(widened(code, &again, &scales_again, inputs.len()), values, "{name}");
            // Values that no codes have made get the nearest codes.
            code.recover(&inputs, &mut again, &mut scales_again);
            assert_eq!((again, scales_again), (codes, scales), "{name}");
        }
    }
}
