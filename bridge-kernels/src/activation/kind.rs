//! Which activations there are.

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
