//! A segment of a chunk: its role and its layer.

/// Role of a segment, for recompute and for placing segments on pipeline stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentRole {
    /// Token (and position) embedding.
    Embedding,
    /// Norm, attention and residual of a layer.
    Attention,
    /// Norm, dense feed-forward and residual of a layer.
    Mlp,
    /// Norm, experts and residual of a layer.
    Moe,
    /// A whole layer, where a model does not split it.
    Layer,
    /// End of a stack that another stack follows, such as the norm of an encoder's output.
    StackEnd,
    /// Final norm, output projection and loss.
    Head,
}

/// One segment of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Role of the segment.
    pub role: SegmentRole,
    /// Global layer number, for layers and their parts.
    pub layer: Option<usize>,
}
