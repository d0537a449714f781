//! Attention on the projection that holds queries, keys and values together, rotary embedding included.
//!
//! Read where they are, the three need no copies, and their gradients are written where the projection's backward wants them.

use burn::tensor::Tensor;

use crate::attention::{AttentionOptions, attention};
use crate::rotary::{Positions, RotaryTable, apply_rotary};

/// How one projection holds the heads: for each key/value group its queries, then its key, then its value (as Megatron-LM does).
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
        let [b, t, f] = qkv_btf.dims();
        let Self { groups: g, queries_per_group: r, head_size: d } = self;
        assert_eq!(f, self.width(), "packed heads: the projection is not as wide as {self:?}");
        let qkv_btgrd: Tensor<5> = qkv_btf.reshape([b, t, g, r + 2, d]);
        [(0, r), (r, 1), (r + 1, 1)]
            .map(|(start, heads)| qkv_btgrd.clone().narrow(3, start, heads).reshape([b, t, g * heads, d]))
    }
}

/// Causal attention of a sequence to itself: [`PackedHeads::unpack`], [`apply_rotary`] on queries and keys, [`attention`].
///
/// # Shapes
/// `qkv_btf` `[b, t, packed.width()]` -> `[b, t, h, d]`.
///
/// # Panics
/// If the shapes do not fit each other, or a position lies beyond the rotary table.
pub fn packed_attention(
    qkv_btf: Tensor<3>,
    packed: PackedHeads,
    rotary: Option<(&RotaryTable, &Positions)>,
    options: &AttentionOptions,
) -> Tensor<4> {
    let [b, t, f] = qkv_btf.dims();
    assert_eq!(f, packed.width(), "packed attention: the projection is not as wide as {packed:?}");
    options.check([b, t, t]);
    if let Some((table, positions)) = rotary {
        table.check([b, t], packed.head_size, positions);
    }
    crate::fast::packed_attention(&qkv_btf, packed, rotary, options)
        .unwrap_or_else(|| reference(qkv_btf, packed, rotary, options))
}

/// [`packed_attention`] by way of separate tensors.
pub fn reference(
    qkv_btf: Tensor<3>,
    packed: PackedHeads,
    rotary: Option<(&RotaryTable, &Positions)>,
    options: &AttentionOptions,
) -> Tensor<4> {
    let [mut q_bthd, mut k_btgd, v_btgd] = packed.unpack(qkv_btf);
    if let Some((table, positions)) = rotary {
        q_bthd = apply_rotary(q_bthd, table, positions);
        k_btgd = apply_rotary(k_btgd, table, positions);
    }
    attention(q_bthd, k_btgd, v_btgd, options)
}
