//! A segment of a chunk: its role and its layer.

/// What a segment is, for recompute and for placing segments on pipeline stages.
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
    /// What ends a stack behind which another one comes, such as the norm of an encoder's output.
    StackEnd,
    /// Final norm, output projection and loss.
    Head,
}

/// One segment of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub role: SegmentRole,
    /// Global layer number, for layers and their parts.
    pub layer: Option<usize>,
}
