//! Key of a dropout mask.

use crate::random::Philox;

/// Names one dropout mask: seed, step, micro-batch, layer and place are all folded into it.
///
/// The same key draws the same mask, on any device and any number of threads; that is what makes
/// resuming and recomputing exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropoutKey(pub Philox);
