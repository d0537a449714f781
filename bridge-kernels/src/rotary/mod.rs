//! Rotary position embedding (Su et al., arXiv:2104.09864).

use burn::tensor::{Device, Tensor, TensorData};

use crate::norm::narrow;

/// How the head dimension is paired for rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryPairing {
    /// Element `i` with `i + r / 2` (GPT-NeoX, Llama in Hugging Face).
    Halves,
    /// Element `2i` with `2i + 1` (GPT-J).
    Interleaved,
}

/// Cosines and sines for positions `0..length`, shared by all layers.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    /// `[length, r / 2]`, float32.
    cos: Tensor<2>,
    /// `[length, r / 2]`, float32.
    sin: Tensor<2>,
    pairing: RotaryPairing,
}

impl RotaryTable {
    /// Tables for `length` positions from one inverse frequency (radians per position) for each pair of dimensions.
    ///
    /// Angles are formed in float32, position times frequency, as PyTorch's implementations do.
    pub fn new(inverse_frequencies: &[f32], length: usize, pairing: RotaryPairing, device: &Device) -> Self {
        let pairs = inverse_frequencies.len();
        let angles = (0..length).flat_map(|p| inverse_frequencies.iter().map(move |f| p as f32 * f));
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            angles.map(|angle| (f64::from(angle).cos() as f32, f64::from(angle).sin() as f32)).unzip();
        let table = |values| Tensor::from_data(TensorData::new(values, [length, pairs]), device);
        Self { cos: table(cos), sin: table(sin), pairing }
    }

    /// The tables, `[length, r / 2]` each.
    pub(crate) fn cos_sin(&self) -> (&Tensor<2>, &Tensor<2>) {
        (&self.cos, &self.sin)
    }

    /// How dimensions are paired.
    pub fn pairing(&self) -> RotaryPairing {
        self.pairing
    }

    /// Number of positions in the table.
    pub fn length(&self) -> usize {
        self.cos.dims()[0]
    }

    /// Number of head dimensions that are rotated.
    pub fn rotary_size(&self) -> usize {
        2 * self.cos.dims()[1]
    }

    /// Fails, by name, on heads or positions that do not fit. Values of explicit positions are looked at where they are used.
    pub(crate) fn check(&self, [b, t]: [usize; 2], head_size: usize, positions: &Positions) {
        let rotated = self.rotary_size();
        assert!(rotated <= head_size, "rotary: {rotated} rotated dimensions do not fit a head of {head_size}");
        match positions {
            Positions::From(offset) => {
                let (end, length) = (offset + t, self.length());
                assert!(end <= length, "rotary: positions up to {end} are beyond the table's {length}");
            }
            Positions::Explicit(ids_bt) => assert_eq!(ids_bt.dims(), [b, t], "rotary: one position a token is needed"),
        }
    }
}

/// Rotates the first [`RotaryTable::rotary_size`] elements of every head by its position; the rest passes through.
///
/// Row `i` of the sequence has position `offset + i`, or `positions_bt[i]` where those are given.
///
/// # Shapes
/// `x_bthd` `[b, t, h, d]` -> the same.
///
/// # Panics
/// If the head is smaller than the rotated part, or a position lies beyond the table. On GPUs explicit positions are not looked at:
/// results for those beyond the table are undefined.
pub fn apply_rotary(x_bthd: Tensor<4>, table: &RotaryTable, positions: &Positions) -> Tensor<4> {
    let [b, t, _, d] = x_bthd.dims();
    table.check([b, t], d, positions);
    #[cfg(feature = "cube")]
    if let Some(y) = crate::cube::apply_rotary(&x_bthd, table, positions) {
        return y;
    }
    crate::fast::apply_rotary(&x_bthd, table, positions).unwrap_or_else(|| reference(x_bthd, table, positions))
}

/// Which position each token of a batch has.
#[derive(Clone, Debug)]
// A handful exist in a step: boxing the tensor would only cost its users a line.
#[allow(clippy::large_enum_variant)]
pub enum Positions {
    /// Consecutive ones from `offset`, the same in every row.
    From(usize),
    /// Explicit ones, `[b, t]`.
    Explicit(Tensor<2, burn::tensor::Int>),
}

/// [`apply_rotary`] in plain Burn operations.
pub fn reference(x_bthd: Tensor<4>, table: &RotaryTable, positions: &Positions) -> Tensor<4> {
    let [b, t, h, d] = x_bthd.dims();
    let rotated = table.rotary_size();
    assert!(rotated <= d, "{rotated} rotated dimensions do not fit a head of {d}");
    let rows = |values: &Tensor<2>| -> Tensor<4> {
        let values = values.clone().to_device(&x_bthd.device());
        match positions {
            Positions::From(offset) => values.narrow(0, *offset, t).reshape([1, t, 1, rotated / 2]),
            Positions::Explicit(ids_bt) => {
                let ids = ids_bt.clone().reshape([b * t]);
                values.select(0, ids).reshape([b, t, 1, rotated / 2])
            }
        }
    };
    let (cos, sin) = (rows(&table.cos), rows(&table.sin));
    let (cos, sin) = (narrow(cos, x_bthd.dtype()), narrow(sin, x_bthd.dtype()));
    let part = x_bthd.clone().narrow(3, 0, rotated);
    let turned = match table.pairing {
        RotaryPairing::Halves => {
            let (x1, x2) = (part.clone().narrow(3, 0, rotated / 2), part.narrow(3, rotated / 2, rotated / 2));
            let y1 = x1.clone() * cos.clone() - x2.clone() * sin.clone();
            Tensor::cat(vec![y1, x2 * cos + x1 * sin], 3)
        }
        RotaryPairing::Interleaved => {
            let pairs: Tensor<5> = part.reshape([b, t, h, rotated / 2, 2]);
            let x1 = pairs.clone().narrow(4, 0, 1).reshape([b, t, h, rotated / 2]);
            let x2 = pairs.narrow(4, 1, 1).reshape([b, t, h, rotated / 2]);
            let y1 = x1.clone() * cos.clone() - x2.clone() * sin.clone();
            let y2 = x2 * cos + x1 * sin;
            Tensor::stack::<5>(vec![y1, y2], 4).reshape([b, t, h, rotated])
        }
    };
    if rotated == d {
        return turned;
    }
    Tensor::cat(vec![turned, x_bthd.narrow(3, rotated, d - rotated)], 3)
}
