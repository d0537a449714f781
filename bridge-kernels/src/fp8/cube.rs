//! Casts to 8 bits on GPUs: the largest magnitude of a tensor, the scale computed from it, and the
//! codes, four in a `u32`. The host reads nothing.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Tensor};

use super::format::Fp8Format;
use crate::cpu::small::{self, Small};
use crate::cube::Buffer;
use crate::cube::reduce::cube_max;
use crate::cublaslt::{CODES_MULTIPLE, Element, Matrix};

/// The bits of infinity. The bits of NaN are larger, those of finite magnitudes smaller.
const INFINITE: u32 = 0x7f80_0000;
/// All bits but the sign's.
const MAGNITUDE: u32 = 0x7fff_ffff;
/// Most cubes that compute the largest magnitude.
const MOST_CUBES: usize = 1024;
/// Codes in a `u32`.
pub(super) const IN_WORD: usize = 4;
/// Words that a unit writes of a transposed row.
const WORDS: usize = CODES_MULTIPLE / IN_WORD;

/// A format as kernels have it. Numbers are bits of float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CodeForm {
    mantissa: u32,
    bias: u32,
    largest: u32,
    least_normal: u32,
    /// A power of two whose unit in the last place is the smallest number of the format.
    power: u32,
    nan: u32,
}

impl CodeForm {
    fn for_format<S: Small>() -> Self {
        Self {
            mantissa: S::MANTISSA,
            bias: S::BIAS,
            largest: S::LARGEST.to_bits(),
            least_normal: S::LEAST_NORMAL.to_bits(),
            power: (151 - S::BIAS - S::MANTISSA) << 23,
            nan: S::NAN,
        }
    }
}

impl Fp8Format {
    pub(super) fn form(self) -> CodeForm {
        match self {
            Self::E4M3 => CodeForm::for_format::<small::E4M3>(),
            Self::E5M2 => CodeForm::for_format::<small::E5M2>(),
        }
    }

    fn element(self) -> Element {
        match self {
            Self::E4M3 => Element::E4M3,
            Self::E5M2 => Element::E5M2,
        }
    }
}

/// The bits of the largest magnitudes of parts of `x`, which order as these do; a cube a part.
#[cube(launch)]
fn magnitudes<X: Float>(x: &[X], parts: &mut [u32], #[comptime] units: usize, #[define(X)] _storage: ElemType) {
    if CUBE_POS >= parts.len() {
        terminate!();
    }
    let step = parts.len() * units;
    let mut largest = 0u32;
    let mut place = CUBE_POS * units + UNIT_POS as usize;
    while place < x.len() {
        largest = max(largest, u32::reinterpret(f32::cast_from(x[place])) & MAGNITUDE);
        place += step;
    }
    let largest = cube_max::<u32>(largest, units);
    if UNIT_POS == 0 {
        parts[CUBE_POS] = largest;
    }
}

/// Writes to `scales` the factor on a tensor before its cast, the inverse, and the largest
/// magnitude, that of `parts` if there are some. One cube.
#[cube(launch)]
fn make_scales(
    parts: ComptimeOption<&[u32]>,
    scales: &mut [f32],
    given: ComptimeOption<&[f32]>,
    #[comptime] most: u32,
    #[comptime] units: usize,
) {
    if CUBE_POS > 0 {
        terminate!();
    }
    let mut bits = 0u32;
    #[comptime]
    match parts {
        ComptimeOption::Some(parts) => {
            for place in range_stepped(UNIT_POS as usize, parts.len(), units) {
                bits = max(bits, parts[place]);
            }
        }
        ComptimeOption::None => {}
    }
    let bits = cube_max::<u32>(bits, units);
    if UNIT_POS == 0 {
        let mut scale = 1.0f32;
        #[comptime]
        match given {
            ComptimeOption::Some(given) => scale = given[0],
            ComptimeOption::None => {
                if bits > 0u32 && bits < INFINITE {
                    scale = f32::new(comptime!(f32::from_bits(most))) / f32::reinterpret(bits);
                    if (u32::reinterpret(scale) & MAGNITUDE) >= INFINITE {
                        scale = f32::new(f32::MAX);
                    }
                }
            }
        }
        scales[0] = scale;
        scales[1] = 1.0f32 / scale;
        // NaN counts as infinite.
        scales[2] = f32::reinterpret(min(bits, INFINITE));
    }
}

/// The code of `x` times a scale: round to nearest even, with saturation. NaN and infinity become
/// NaN. See [`crate::cpu::small::encode`].
#[cube]
pub(super) fn code(x: f32, scale: f32, #[comptime] form: CodeForm) -> u32 {
    let sign = u32::reinterpret(x) >> 31u32;
    let magnitude = min(u32::reinterpret(x * scale) & MAGNITUDE, comptime!(form.largest));
    let dropped = comptime!(23 - form.mantissa);
    let half = comptime!((1u32 << (22 - form.mantissa)) - 1);
    let rounded = (magnitude + half + ((magnitude >> dropped) & 1u32)) >> dropped;
    let mut code = rounded - comptime!((127 - form.bias) << form.mantissa);
    if magnitude < comptime!(form.least_normal) {
        let power = f32::new(comptime!(f32::from_bits(form.power)));
        code = u32::reinterpret(f32::reinterpret(magnitude) + power) - comptime!(form.power);
    }
    if (u32::reinterpret(x) & MAGNITUDE) >= INFINITE {
        code = comptime!(form.nan).runtime();
    }
    code | (sign << 7u32)
}

/// Codes of the rows of `x`, of `words` each; a unit a word. After the last column are zeros.
#[cube(launch)]
fn encode_along<X: Float>(
    x: &[X],
    scales: &[f32],
    codes: &mut [u32],
    columns: u32,
    words: u32,
    #[comptime] form: CodeForm,
    #[define(X)] _storage: ElemType,
) {
    let place = ABSOLUTE_POS;
    if place >= codes.len() {
        terminate!();
    }
    let (columns, words) = (columns as usize, words as usize);
    let (row, first) = (place / words, place % words * IN_WORD);
    let mut word = 0u32;
    #[unroll]
    for i in 0..IN_WORD {
        if first + i < columns {
            word |= code(f32::cast_from(x[row * columns + first + i]), scales[0], form) << comptime!(8 * i as u32);
        }
    }
    codes[place] = word;
}

/// Codes of the columns of `x`, of `words` each; a unit [`WORDS`] of them, next to the units of
/// other columns. After the last row are zeros.
#[cube(launch)]
fn encode_across<X: Float>(
    x: &[X],
    scales: &[f32],
    codes: &mut [u32],
    columns: u32,
    words: u32,
    #[comptime] form: CodeForm,
    #[define(X)] _storage: ElemType,
) {
    let place = ABSOLUTE_POS;
    if place >= codes.len() / WORDS {
        terminate!();
    }
    let (columns, words) = (columns as usize, words as usize);
    let (column, first) = (place % columns, place / columns * WORDS);
    #[unroll]
    for j in 0..WORDS {
        let mut word = 0u32;
        #[unroll]
        for i in 0..IN_WORD {
            let at = ((first + j) * IN_WORD + i) * columns + column;
            if at < x.len() {
                word |= code(f32::cast_from(x[at]), scales[0], form) << comptime!(8 * i as u32);
            }
        }
        codes[column * words + first + j] = word;
    }
}

/// Memory for a matrix in 8 bits, whose rows run along the summed dimension and are padded with
/// zeros.
pub(super) struct Room {
    codes: Buffer,
    /// Tensor to cast, as a matrix of this shape, or its transpose.
    x: Buffer,
    shape: [usize; 2],
    is_across: bool,
    /// Layout of the codes.
    pub matrix: Matrix,
}

impl Room {
    /// Memory for the codes of `x`, a matrix of this shape.
    pub fn along(x: &Buffer, shape: [usize; 2], format: Fp8Format) -> Self {
        Self::new(x, shape, shape, false, format)
    }

    /// Memory for the codes of the transpose of `x`, a matrix of this shape.
    pub fn across(x: &Buffer, [rows, columns]: [usize; 2], format: Fp8Format) -> Self {
        Self::new(x, [rows, columns], [columns, rows], true, format)
    }

    fn new(x: &Buffer, shape: [usize; 2], [rows, sums]: [usize; 2], is_across: bool, format: Fp8Format) -> Self {
        let codes = x.uninitialised([rows, sums.next_multiple_of(CODES_MULTIPLE) / IN_WORD], DType::U32);
        let matrix = Matrix::contiguous([rows, codes.len() / rows * IN_WORD], format.element());
        Self { codes, x: x.clone(), shape, is_across, matrix }
    }

    /// The memory: four codes an element, see [`Element::dtype`].
    pub fn tensor(&self) -> Tensor<2> {
        let mut codes = self.codes.clone();
        codes.0.dtype = self.matrix.element.dtype();
        codes.tensor()
    }

    /// Memory for the inverse scale, by which codes are multiplied.
    pub fn inverse(&self) -> Tensor<1> {
        self.codes.uninitialised([1], DType::F32).tensor()
    }

    /// Makes the codes.
    pub fn fill(&self, scale: &OneScale) {
        let Self { codes, x, shape: [rows, columns], is_across, .. } = self;
        let client = &x.0.client;
        let (from, scales, to, form) = (x.arg(), scale.scales.arg(), codes.arg(), scale.format.form());
        if *is_across {
            let words = (codes.len() / columns) as u32;
            let (count, dim) = codes.grid(codes.len() / WORDS);
            encode_across::launch(client, count, dim, from, scales, to, *columns as u32, words, form, x.storage());
        } else {
            let words = (codes.len() / rows) as u32;
            let (count, dim) = codes.unit_per_element();
            encode_along::launch(client, count, dim, from, scales, to, *columns as u32, words, form, x.storage());
        }
    }
}

/// Cast of a tensor with one scale: see [`make_scales`].
#[derive(Clone)]
pub(super) struct OneScale {
    format: Fp8Format,
    scales: Buffer,
}

impl OneScale {
    /// With the scale that is given, `[1]`, or that of the largest magnitude. The tensor is read
    /// for that, or if it is to be `noted`.
    pub fn new(x: &Buffer, format: Fp8Format, given: Option<&Buffer>, noted: bool) -> Self {
        let (_, dim, units) = x.cube_per_row(1, usize::MAX);
        let client = &x.0.client;
        let parts = (noted || given.is_none()).then(|| {
            let parts = x.uninitialised([x.len().div_ceil(units).min(MOST_CUBES)], DType::U32);
            let count = CubeCount::new_1d(parts.len() as u32);
            magnitudes::launch(client, count, dim, x.arg(), parts.arg(), units, x.storage());
            parts
        });
        let scales = x.uninitialised([3], DType::F32);
        make_scales::launch(
            client,
            CubeCount::new_single(),
            dim,
            parts.as_ref().map(Buffer::arg).into(),
            scales.arg(),
            given.map(Buffer::arg).into(),
            format.largest().to_bits(),
            units,
        );
        Self { format, scales }
    }

    /// The largest magnitude, `[1]`; 0 if the tensor was not read for it.
    pub fn largest(&self) -> Tensor<1> {
        self.scales.clone().tensor::<1>().narrow(0, 2, 1)
    }

    /// Factor that dequantizes codes, `[1]`.
    pub fn inverse(&self) -> Tensor<1> {
        self.scales.clone().tensor::<1>().narrow(0, 1, 1)
    }
}
