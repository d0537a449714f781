//! Attention on Flex: of separate queries, keys and values, and of one projection that holds all three.

use burn::tensor::Tensor;

use super::rotary::Turn;
use super::{Values, attach_one, gradient, integers, tensor};
use crate::attention::AttentionOptions;
use crate::cpu::attention::{Attended, Attention, Saved, Targets, backward, forward};
use crate::cpu::buffer::{Shared, all_filled, filled};
use crate::cpu::dropout::Mask;
use crate::cpu::heads::{HeadStrides, Heads, HeadsMut};
use crate::cpu::rotary::Direction;
use crate::packed_attention::PackedHeads;
use crate::rotary::{Positions, RotaryTable};
use crate::vjp;

/// Shapes and options, without the documents.
fn problem([b, t, s]: [usize; 3], [h, g, d]: [usize; 3], options: &AttentionOptions) -> Attention<'static> {
    let dropout = options.dropout.filter(|(rate, _)| *rate != 0.0).map(|(rate, key)| Mask::new(rate, key));
    let (scale, softcap, window) = (options.scale as f32, options.softcap.map(|cap| cap as f32), options.window);
    Attention { b, t, s, h, g, d, scale, window, softcap, dropout, documents: None }
}

/// See [`crate::attention()`].
pub(crate) fn attention(
    q_bthd: &Tensor<4>,
    k_bsgd: &Tensor<4>,
    v_bsgd: &Tensor<4>,
    options: &AttentionOptions,
) -> Option<Tensor<4>> {
    let ([b, t, h, d], [_, s, g, _]) = (q_bthd.dims(), k_bsgd.dims());
    let (q, k, v) = (head_values(q_bthd)?, head_values(k_bsgd)?, head_values(v_bsgd)?);
    if b * t * h * d == 0 {
        return None;
    }
    let documents = match &options.document_ids {
        Some(ids_bt) => Some(integers(ids_bt)?),
        None => None,
    };
    let problem = problem([b, t, s], [h, g, d], options);
    let Attended { out, log_sum_exp } =
        forward(heads(&q), heads(&k), heads(&v), Attention { documents: documents.as_deref(), ..problem });
    let out = tensor(out, [b, t, h, d]);
    let saved_out = Values::of(&out)?;
    let inputs = vec![q_bthd.clone().into_dispatch(), k_bsgd.clone().into_dispatch(), v_bsgd.clone().into_dispatch()];
    Some(vjp::attach_some(out, inputs, move |d_out: Tensor<4>| {
        let d_out = Values::of_gradient(d_out);
        let (q, k, v) = (heads(&q), heads(&k), heads(&v));
        let saved = Saved { q, k, v, out: heads(&saved_out), log_sum_exp: &log_sum_exp, d_out: heads(&d_out) };
        let [dq, dk, dv] = all_filled([b * t * h * d, b * s * g * d, b * s * g * d], |[dq, dk, dv]| {
            let target = |x, s, heads| HeadsMut {
                data: Shared::new(x),
                offset: 0,
                strides: HeadStrides::contiguous(s, heads, d),
            };
            let targets = Targets { q: target(dq, t, h), k: target(dk, s, g), v: target(dv, s, g) };
            backward(saved, Attention { documents: documents.as_deref(), ..problem }, targets);
        });
        vec![gradient(dq, [b, t, h, d]), gradient(dk, [b, s, g, d]), gradient(dv, [b, s, g, d])]
    }))
}

/// See [`crate::packed_attention()`].
pub(crate) fn packed_attention(
    qkv_btf: &Tensor<3>,
    packed: PackedHeads,
    rotary: Option<(&RotaryTable, &Positions)>,
    options: &AttentionOptions,
) -> Option<Tensor<4>> {
    let [b, t, f] = qkv_btf.dims();
    let PackedHeads { groups: g, queries_per_group: r, head_size: d } = packed;
    let mut qkv = Values::contiguous_of(qkv_btf)?;
    if b * t * f == 0 {
        return None;
    }
    let documents = match &options.document_ids {
        Some(ids_bt) => Some(integers(ids_bt)?),
        None => None,
    };
    let turn = match rotary {
        Some(rotary) => Some(Turn::new(rotary, [b, t], [g * (r + 2), r + 2, r + 1], d)?),
        None => None,
    };
    if let Some(turn) = &turn {
        qkv = Values::from_vec(turn.copy(qkv.slice(), Direction::Forward), [b, t, f]);
    }
    let problem = problem([b, t, t], [g * r, g, d], options);
    let places = PackedPlaces::new(t, packed);
    let [q, k, v] = places.heads(&qkv);
    let Attended { out, log_sum_exp } = forward(q, k, v, Attention { documents: documents.as_deref(), ..problem });
    let out = tensor(out, [b, t, g * r, d]);
    let saved_out = Values::of(&out)?;
    Some(attach_one(out, qkv_btf.clone(), move |d_out| {
        let [q, k, v] = places.heads(&qkv);
        let saved = Saved { q, k, v, out: heads(&saved_out), log_sum_exp: &log_sum_exp, d_out: heads(&d_out) };
        let mut dqkv = filled(b * t * f, |dqkv| {
            let targets = places.targets(Shared::new(dqkv));
            backward(saved, Attention { documents: documents.as_deref(), ..problem }, targets);
        });
        if let Some(turn) = turn {
            turn.in_place(&mut dqkv, Direction::Backward);
        }
        gradient(dqkv, [b, t, f])
    }))
}

/// Where a projection has its queries, keys and values: first element and strides of each.
#[derive(Clone, Copy)]
struct PackedPlaces([(usize, HeadStrides); 3]);

impl PackedPlaces {
    fn new(t: usize, packed: PackedHeads) -> Self {
        let PackedHeads { queries_per_group: r, head_size: d, .. } = packed;
        let keys = HeadStrides::even([t * packed.width(), packed.width(), (r + 2) * d]);
        Self([(0, HeadStrides { head: d, per_group: r, ..keys }), (r * d, keys), ((r + 1) * d, keys)])
    }

    fn heads(self, qkv: &Values) -> [Heads<'_>; 3] {
        let qkv = qkv.slice();
        self.0.map(|(offset, strides)| Heads { data: &qkv[offset..], strides })
    }

    fn targets(self, data: Shared<'_>) -> Targets<'_> {
        let [q, k, v] = self.0.map(|(offset, strides)| HeadsMut { data, offset, strides });
        Targets { q, k, v }
    }
}

/// A tensor whose heads are contiguous rows; slices of a wider projection are used as they are.
fn head_values(x: &Tensor<4>) -> Option<Values> {
    let values = Values::of(x)?;
    let direct = values.strided().is_some_and(|(_, strides)| strides[3] == 1 || x.dims()[3] == 1);
    Some(if direct { values } else { values.contiguous() })
}

fn heads(values: &Values) -> Heads<'_> {
    let (data, strides) = values.strided().expect("flipped views were copied");
    Heads { data, strides: HeadStrides::even([strides[0], strides[1], strides[2]]) }
}
