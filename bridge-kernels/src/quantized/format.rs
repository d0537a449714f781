//! Storage of quantized weights: codes of 8 or 4 bits, and a scale for each block.

use std::f64::consts::{PI, SQRT_2};
use std::sync::LazyLock;

use half::f16;

/// Meaning of a code, relative to the largest magnitude of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeFormat {
    /// 8 bits: whole numbers from -127 to 127, as shares of 127.
    Int8,
    /// 4 bits: quantiles of a normal distribution, zero among them (Dettmers et al.,
    /// arXiv:2305.14314, section 3).
    Nf4,
    /// 4 bits: 16 values evenly apart from the least to the largest of the block, which has both.
    Int4,
}

/// Quantization of a matrix: each row separately, in blocks of adjacent inputs with a float16 scale
/// each ([`CodeFormat::Int4`]: and a minimum). The last block of a row may be shorter.
///
/// A block of values that are all below 2^-14 has scales of fewer digits, which costs each value at
/// most 2^-24. A matrix with a block whose scale is beyond float16 has all of them in float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantization {
    /// Meaning of the codes.
    pub format: CodeFormat,
    /// Inputs that share a scale; an even number.
    pub block_size: usize,
}

impl Quantization {
    /// Blocks of a row of `cols` elements.
    pub(super) fn blocks(self, cols: usize) -> usize {
        cols.div_ceil(self.block_size)
    }

    /// Bytes of the codes of a row of `cols` elements.
    pub(super) fn code_bytes(self, cols: usize) -> usize {
        match self.format {
            CodeFormat::Int8 => cols,
            CodeFormat::Nf4 | CodeFormat::Int4 => cols.div_ceil(2),
        }
    }

    /// Numbers that a block has beside its codes.
    pub(super) fn scales(self) -> usize {
        match self.format {
            CodeFormat::Int8 | CodeFormat::Nf4 => 1,
            CodeFormat::Int4 => 2,
        }
    }

    /// Bytes of a matrix `[rows, cols]`, codes and scales.
    pub fn bytes(self, [rows, cols]: [usize; 2]) -> u64 {
        (rows * (self.code_bytes(cols) + size_of::<f16>() * self.scales() * self.blocks(cols))) as u64
    }
}

/// The 16 values of [`CodeFormat::Nf4`], in ascending order from -1 to 1.
///
/// Eight quantiles above zero and seven below are evenly apart in probability, and zero stands
/// between them. The outermost probability is the mean of those that 16 and 15 values with half a
/// step beside them would have; all are divided by the largest.
pub static NF4: LazyLock<[f32; 16]> = LazyLock::new(|| {
    let outermost = 1.0 - 0.25 * (1.0 / 15.0 + 1.0 / 16.0);
    let side = |count: usize| {
        let quantile = move |index: usize| normal_quantile(0.5 + (outermost - 0.5) * index as f64 / count as f64);
        (1..=count).map(quantile)
    };
    let largest = normal_quantile(outermost);
    let below = side(7).rev().map(|quantile| -quantile);
    let values: Vec<f64> = below.chain([0.0]).chain(side(8)).collect();
    std::array::from_fn(|code| (values[code] / largest) as f32)
});

/// Boundaries between the values of [`NF4`]: a value above exactly `n` of them has the code `n`.
pub(super) static NF4_BORDERS: LazyLock<[f32; 15]> =
    LazyLock::new(|| std::array::from_fn(|code| f32::midpoint(NF4[code], NF4[code + 1])));

/// The values of the two codes of a byte, that in the low bits first.
pub(super) static NF4_PAIRS: LazyLock<[[f32; 2]; 256]> =
    LazyLock::new(|| std::array::from_fn(|byte| [NF4[byte & 15], NF4[byte >> 4]]));

/// The number below which a standard normal draw stays with this probability, for probabilities in
/// `0.5 .. 0.99`.
fn normal_quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (0.0, 3.0);
    // Each step halves the interval; float64 has 53 bits.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if normal_distribution(middle) < probability { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// The probability that a standard normal draw stays below `x`, by the series of the error function
/// at `x / sqrt(2)`.
fn normal_distribution(x: f64) -> f64 {
    let z = x / SQRT_2;
    let (mut term, mut sum) = (z, z);
    for n in 1..100 {
        term *= -z * z / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    0.5 + sum / PI.sqrt()
}
