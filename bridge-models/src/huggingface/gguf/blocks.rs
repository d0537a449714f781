//! GGUF's storage of elements: floats, and blocks of integers with scales, as in ggml. The names of
//! the fields are ggml's: `d` is a block's factor, `m` or `dmin` the offset. Files and names do not
//! belong here.

use half::{bf16, f16};

/// A type of stored elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    F64,
    Bf16,
}

/// Number in files, name, elements of a block, bytes of a block.
const TYPES: [(BlockType, u32, &str, usize, usize); 14] = [
    (BlockType::F32, 0, "F32", 1, 4),
    (BlockType::F16, 1, "F16", 1, 2),
    (BlockType::Q4_0, 2, "Q4_0", 32, 18),
    (BlockType::Q4_1, 3, "Q4_1", 32, 20),
    (BlockType::Q5_0, 6, "Q5_0", 32, 22),
    (BlockType::Q5_1, 7, "Q5_1", 32, 24),
    (BlockType::Q8_0, 8, "Q8_0", 32, 34),
    (BlockType::Q2K, 10, "Q2_K", 256, 84),
    (BlockType::Q3K, 11, "Q3_K", 256, 110),
    (BlockType::Q4K, 12, "Q4_K", 256, 144),
    (BlockType::Q5K, 13, "Q5_K", 256, 176),
    (BlockType::Q6K, 14, "Q6_K", 256, 210),
    (BlockType::F64, 28, "F64", 1, 8),
    (BlockType::Bf16, 30, "BF16", 1, 2),
];

impl BlockType {
    /// The type with this number in files.
    pub fn from_number(number: u32) -> Option<Self> {
        TYPES.iter().find(|row| row.1 == number).map(|row| row.0)
    }

    fn row(self) -> &'static (Self, u32, &'static str, usize, usize) {
        TYPES.iter().find(|row| row.0 == self).expect("the table has every type")
    }

    /// Number in files.
    pub fn number(self) -> u32 {
        self.row().1
    }

    /// Name of the type.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Elements of a block.
    pub fn elements(self) -> usize {
        self.row().3
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.row().4
    }

    /// The names of all types.
    pub fn names() -> String {
        TYPES.map(|row| row.2).join(", ")
    }

    /// The elements of whole blocks. Panics if bytes and places are not those of the same number of
    /// blocks.
    pub fn decode(self, bytes: &[u8], target: &mut [f32]) {
        assert_eq!(bytes.len() / self.bytes(), target.len() / self.elements(), "blocks");
        let blocks = bytes.chunks_exact(self.bytes()).zip(target.chunks_exact_mut(self.elements()));
        match self {
            Self::F32 => blocks.for_each(|(b, y)| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            Self::F16 => blocks.for_each(|(b, y)| y[0] = half_at(b, 0)),
            Self::Bf16 => blocks.for_each(|(b, y)| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            Self::F64 => blocks
                .for_each(|(b, y)| y[0] = f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32),
            Self::Q4_0 => blocks.for_each(|(b, y)| nibbles(&b[2..], y, |q, _| half_at(b, 0) * (f32::from(q) - 8.0))),
            Self::Q4_1 => {
                blocks.for_each(|(b, y)| nibbles(&b[4..], y, |q, _| half_at(b, 0) * f32::from(q) + half_at(b, 2)));
            }
            Self::Q5_0 => blocks.for_each(|(b, y)| {
                nibbles(&b[6..], y, |q, i| half_at(b, 0) * (f32::from(q | bit(&b[2..6], i) << 4) - 16.0));
            }),
            Self::Q5_1 => blocks.for_each(|(b, y)| {
                nibbles(&b[8..], y, |q, i| half_at(b, 0) * f32::from(q | bit(&b[4..8], i) << 4) + half_at(b, 2));
            }),
            Self::Q8_0 => blocks.for_each(|(b, y)| {
                let d = half_at(b, 0);
                y.iter_mut().zip(&b[2..]).for_each(|(y, q)| *y = f32::from(*q as i8) * d);
            }),
            Self::Q2K => blocks.for_each(|(b, y)| q2_k(b, y)),
            Self::Q3K => blocks.for_each(|(b, y)| q3_k(b, y)),
            Self::Q4K => blocks.for_each(|(b, y)| q4_k(b, y)),
            Self::Q5K => blocks.for_each(|(b, y)| q5_k(b, y)),
            Self::Q6K => blocks.for_each(|(b, y)| q6_k(b, y)),
        }
    }
}

/// The 16-bit float at a byte.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Bit number `index` of bytes, the lowest first.
fn bit(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 8] >> (index % 8) & 1
}

/// Fills 32 places from 16 bytes: first the lower halves, then the upper ones. `value` gets the
/// half and its place.
fn nibbles(bytes: &[u8], target: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    for (index, byte) in bytes.iter().enumerate() {
        target[index] = value(byte & 0xf, index);
        target[index + 16] = value(byte >> 4, index + 16);
    }
}

/// Two bits of element `index` of 256: each 32 bytes have the pairs of 128 elements, those of 32 in
/// a row from the same bits.
fn pair(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 128 * 32 + index % 32] >> (index % 128 / 32 * 2) & 3
}

/// 16 groups of 16 elements of two bits, with scale and minimum in four bits each.
fn q2_k(block: &[u8], target: &mut [f32]) {
    let (scales, quants, d, dmin) = (&block[..16], &block[16..80], half_at(block, 80), half_at(block, 82));
    for (index, value) in target.iter_mut().enumerate() {
        let scale = scales[index / 16];
        *value = d * f32::from(scale & 0xf) * f32::from(pair(quants, index)) - dmin * f32::from(scale >> 4);
    }
}

/// 16 groups of 16 elements of three bits, whose highest stands elsewhere, with signed scales of
/// six bits.
fn q3_k(block: &[u8], target: &mut [f32]) {
    let (high, quants, packed, d) = (&block[..32], &block[32..96], &block[96..108], half_at(block, 108));
    let scale = |group: usize| {
        let low = packed[group % 8] >> (group / 8 * 4) & 0xf;
        let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        f32::from((low | high << 4) as i8 - 32)
    };
    for (index, value) in target.iter_mut().enumerate() {
        // The bit is set where nothing is taken away.
        let is_lower = high[index % 32] >> (index / 32) & 1 == 0;
        let quant = pair(quants, index) as i8 - if is_lower { 4 } else { 0 };
        *value = d * scale(index / 16) * f32::from(quant);
    }
}

/// Scale and minimum of group `group` of eight, of six bits each, from twelve bytes.
fn scale_and_min(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, min) = match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        _ => {
            let both = packed[group + 4];
            ((both & 0xf) | (packed[group - 4] >> 6) << 4, (both >> 4) | (packed[group] >> 6) << 4)
        }
    };
    (f32::from(scale), f32::from(min))
}

/// Four bits of element `index` of 256: each 32 bytes have 64 elements, the lower halves first.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 64 * 32 + index % 32] >> (index % 64 / 32 * 4) & 0xf
}

/// Eight groups of 32 elements of four bits, with scale and minimum.
fn q4_k(block: &[u8], target: &mut [f32]) {
    let (d, dmin, packed, quants) = (half_at(block, 0), half_at(block, 2), &block[4..16], &block[16..]);
    for (index, value) in target.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(packed, index / 32);
        *value = d * scale * f32::from(nibble(quants, index)) - dmin * min;
    }
}

/// As [`q4_k`], with a fifth bit.
fn q5_k(block: &[u8], target: &mut [f32]) {
    let (d, dmin, packed) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
    let (high, quants) = (&block[16..48], &block[48..]);
    for (index, value) in target.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(packed, index / 32);
        let quant = nibble(quants, index) | (high[index % 32] >> (index / 32) & 1) << 4;
        *value = d * scale * f32::from(quant) - dmin * min;
    }
}

/// 16 groups of 16 elements of six bits, with signed scales of eight bits.
fn q6_k(block: &[u8], target: &mut [f32]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    for (index, value) in target.iter_mut().enumerate() {
        // Each 64 bytes have the lower halves of 128 elements.
        let byte = low[index / 128 * 64 + index % 64];
        let quant = (byte >> (index % 128 / 64 * 4) & 0xf) | pair(high, index) << 4;
        *value = d * f32::from(scales[index / 16] as i8) * (f32::from(quant) - 32.0);
    }
}

/// Blocks of 32 elements in 8 bits with a factor each: as ggml makes them.
pub(crate) fn to_q8_0(values: &[f32]) -> Vec<u8> {
    let block = |block: &[f32]| {
        let d = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs())) / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let quants = block.iter().map(|value| (value * inverse).round() as i8 as u8);
        f16::from_f32(d).to_le_bytes().into_iter().chain(quants).collect::<Vec<u8>>()
    };
    values.chunks(32).flat_map(block).collect()
}
