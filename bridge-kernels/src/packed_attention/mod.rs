//! Attention on the projection that holds queries, keys and values together, rotary embedding
//! included.
//!
//! Read where they are, the three need no copies, and their gradients are written where the
//! projection's backward wants them.

#[cfg(feature = "cube")]
pub mod cube;
mod flex;
mod packed;

use burn::tensor::Tensor;

pub use packed::PackedHeads;

use crate::attention::{AttentionOptions, attention};
use crate::flex::by_element;
use crate::rotary::{Positions, RotaryTable, apply_rotary};

/// Causal attention of a sequence to itself: [`PackedHeads::unpack`], [`apply_rotary`] on queries
/// and keys, [`attention`].
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
    options.check([b, t, t], [packed.groups * packed.queries_per_group, packed.groups]);
    assert!(options.choice.is_none(), "packed attention: keys are chosen after the projection is split");
    if let Some((table, positions)) = rotary {
        table.check([b, t], packed.head_size, positions);
    }
    #[cfg(feature = "cube")]
    if let Some([q_bthd, k_btgd, v_btgd]) = cube::unpack(&qkv_btf, packed, rotary) {
        return attention(q_bthd, k_btgd, v_btgd, options);
    }
    by_element!(qkv_btf, E => flex::packed_attention::<E>(&qkv_btf, packed, rotary, options))
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
