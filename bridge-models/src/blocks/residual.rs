//! The residual stream around a block: what the block's output is added to.

use bridge_kernels::DropoutKey;
use burn::tensor::Tensor;

use super::regions::Regions;

/// The stream that a block's output will be added to, and the dropout of that output.
#[derive(Debug)]
pub(crate) struct Residual<'a> {
    /// `[b, this rank's tokens, c]`.
    pub stream_btc: Tensor<3>,
    pub dropout: f64,
    pub key: Option<DropoutKey>,
    pub regions: &'a Regions,
}

impl Residual<'_> {
    /// Whether the output of a block is added as it is.
    pub fn adds_unchanged(&self) -> bool {
        self.dropout == 0.0 || self.key.is_none()
    }

    /// Adds a block's output, `[b, this rank's tokens, c]`.
    pub fn add(self, y_btc: Tensor<3>) -> Tensor<3> {
        self.stream_btc + self.regions.dropout(y_btc, self.dropout, self.key)
    }
}
