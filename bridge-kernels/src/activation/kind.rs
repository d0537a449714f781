//! Activations, and the parts of a gated unit.

/// Non-linearity of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Exact GELU, `x * Phi(x)` with the error function (Hendrycks and Gimpel, arXiv:1606.08415).
    Gelu,
    /// GELU by the tanh approximation of the same paper (GPT-2's `gelu_new`).
    GeluTanh,
    /// SiLU (swish), `x * sigmoid(x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2` (Primer, arXiv:2109.08668).
    SquaredRelu,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
}

/// Combination of the two halves of a gated unit's input: `activation(min(gate, gate_clamp)) *
/// (clamp(linear, -clamp, clamp) + linear_offset)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedUnit {
    /// Non-linearity of the gate.
    pub activation: Activation,
    /// Bound of the gate from above, and of the linear half on both sides; without it neither has
    /// one.
    pub clamp: Option<f64>,
    /// Bound of the gate where it is not `clamp`.
    pub gate_clamp: Option<f64>,
    /// Added to the linear half.
    pub linear_offset: f64,
}

impl GatedUnit {
    /// True if there is no clamp and no offset.
    pub(super) fn is_plain(&self) -> bool {
        self.clamp.is_none() && self.gate_clamp.is_none() && self.linear_offset == 0.0
    }

    /// Bounds of the gate and of the linear half, infinite without one, and offset.
    pub(super) fn limits(&self) -> ([f32; 2], f32) {
        let bounds = [self.gate_clamp.or(self.clamp), self.clamp];
        (bounds.map(|bound| bound.map_or(f32::INFINITY, |bound| bound as f32)), self.linear_offset as f32)
    }
}

/// The gated unit that has no more than its non-linearity.
impl From<Activation> for GatedUnit {
    fn from(activation: Activation) -> Self {
        Self { activation, clamp: None, gate_clamp: None, linear_offset: 0.0 }
    }
}

/// Unit after the first product of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForwardUnit {
    /// A non-linearity.
    Plain(Activation),
    /// The product's first half is the gate of the second.
    Gated(GatedUnit),
}
