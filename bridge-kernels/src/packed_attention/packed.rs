//! Layout of queries, keys and values in one projection.

use burn::tensor::Tensor;

/// Layout of the heads in one projection: for each key/value group its queries, then its key, then
/// its value (as in Megatron-LM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedHeads {
    /// Key/value heads, `g`.
    pub groups: usize,
    /// Query heads for each key, `h / g`.
    pub queries_per_group: usize,
    /// Elements of a head, `d`.
    pub head_size: usize,
}

impl PackedHeads {
    /// Elements of a token: `g * (h / g + 2) * d`.
    pub fn width(self) -> usize {
        self.groups * (self.queries_per_group + 2) * self.head_size
    }

    /// Queries `[b, t, h, d]`, keys and values `[b, t, g, d]` of a projection `[b, t, width]`.
    ///
    /// # Panics
    /// If the projection has another width.
    pub fn unpack(self, qkv_btf: Tensor<3>) -> [Tensor<4>; 3] {
        self.unpack_with_values(qkv_btf, self.head_size)
    }

    /// [`Self::unpack`] of a projection whose values have heads of `w` elements, `[b, t, g, w]`.
    ///
    /// # Panics
    /// If the projection has another width.
    pub fn unpack_with_values(self, qkv_btf: Tensor<3>, w: usize) -> [Tensor<4>; 3] {
        let [b, t, f] = qkv_btf.dims();
        let Self { groups: g, queries_per_group: r, head_size: d } = self;
        let of_group = (r + 1) * d + w;
        assert_eq!(f, g * of_group, "packed heads: the projection is not as wide as {self:?} with values of {w}");
        let qkv_btgf: Tensor<4> = qkv_btf.reshape([b, t, g, of_group]);
        [(0, r, d), (r * d, 1, d), ((r + 1) * d, 1, w)].map(|(start, heads, size)| {
            qkv_btgf.clone().narrow(3, start, heads * size).reshape([b, t, g * heads, size])
        })
    }

    /// Elements of a token of a projection in which each group also has a gate a query head.
    pub fn width_with_gates(self) -> usize {
        self.width() + self.groups * self.queries_per_group * self.head_size
    }

    /// Queries and gates `[b, t, h, d]`, keys and values `[b, t, g, d]` of a projection in which
    /// the gates of a group are between its queries and its key (as in Megatron-LM).
    ///
    /// # Panics
    /// If the projection is not as wide as [`Self::width_with_gates`].
    pub fn unpack_with_gates(self, qkv_btf: Tensor<3>) -> [Tensor<4>; 4] {
        let [b, t, f] = qkv_btf.dims();
        let Self { groups: g, queries_per_group: r, head_size: d } = self;
        assert_eq!(f, self.width_with_gates(), "packed heads: the projection with gates is not as wide as {self:?}");
        let qkv_btgrd: Tensor<5> = qkv_btf.reshape([b, t, g, 2 * r + 2, d]);
        [(0, r), (r, r), (2 * r, 1), (2 * r + 1, 1)]
            .map(|(start, heads)| qkv_btgrd.clone().narrow(3, start, heads).reshape([b, t, g * heads, d]))
    }
}
