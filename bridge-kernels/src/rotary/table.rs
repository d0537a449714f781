//! Cosines and sines of positions.

use burn::tensor::{Device, Tensor, TensorData};

/// Pairing of the head dimension for rotation.
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
    /// Tables for `length` positions from one inverse frequency (radians per position) for each
    /// pair of dimensions.
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

    /// The same angles with all cosines and sines times `factor`, which scales the rotated
    /// elements.
    #[must_use]
    pub fn scaled(self, factor: f32) -> Self {
        if factor == 1.0 {
            return self;
        }
        Self { cos: self.cos * factor, sin: self.sin * factor, pairing: self.pairing }
    }

    /// The negative angles.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { sin: -self.sin, ..self }
    }

    /// The same angles with another pairing.
    #[must_use]
    pub fn paired(self, pairing: RotaryPairing) -> Self {
        Self { pairing, ..self }
    }

    /// The tables, `[length, r / 2]` each.
    pub(crate) fn cos_sin(&self) -> (&Tensor<2>, &Tensor<2>) {
        (&self.cos, &self.sin)
    }

    /// Pairing of dimensions.
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

    /// Panics on head sizes or positions that do not fit. Values of explicit positions are checked
    /// at their use.
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

/// Position of each token of a batch.
#[derive(Clone, Debug)]
// A handful exist in a step: boxing the tensor would only cost its users a line.
#[allow(clippy::large_enum_variant)]
pub enum Positions {
    /// Consecutive ones from `offset`, the same in every row.
    From(usize),
    /// Explicit ones, `[b, t]`.
    Explicit(Tensor<2, burn::tensor::Int>),
}
