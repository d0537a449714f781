//! Attention on Flex, of a projection that holds queries, keys and values.

use burn::tensor::{DType, Tensor};

use super::packed::PackedHeads;
use crate::attention::AttentionOptions;
use crate::attention::cpu::{Attended, Attention, forward};
use crate::attention::cpu_backward::{Saved, Targets, backward, sink_gradients};
use crate::attention::flex::{heads, problem};
use crate::attention::heads::{HeadStrides, Heads, HeadsMut};
use crate::cpu::buffer::{Shared, filled};
use crate::cpu::element::Element;
use crate::flex::{KeptValues, Typed, Values, gradient, optional_integers, rounded_gradient, tensor};
use crate::rotary::cpu::Direction;
use crate::rotary::flex::BatchRotation;
use crate::rotary::{Positions, RotaryTable};
use crate::vjp::attach_some;

pub(crate) fn packed_attention<E: Element>(
    qkv_btf: &Tensor<3>,
    packed: PackedHeads,
    rotary: Option<(&RotaryTable, &Positions)>,
    options: &AttentionOptions,
) -> Option<Tensor<4>> {
    let [b, t, f] = qkv_btf.dims();
    let PackedHeads { groups: g, queries_per_group: r, head_size: d } = packed;
    let mut qkv = Typed::<E>::contiguous_of(qkv_btf)?;
    if b * t * f == 0 {
        return None;
    }
    let documents = optional_integers(options.document_ids.as_ref())?;
    let sinks = Values::optional_widened_of(options.sinks_h.as_ref())?;
    let sinks_dtype = options.sinks_h.as_ref().map_or(DType::F32, Tensor::dtype);
    let rotation = match rotary {
        Some((table, positions)) => Some(BatchRotation::new(table, positions, [b, t], [g * (r + 2), r + 2, r + 1], d)?),
        None => None,
    };
    if let Some(rotation) = &rotation {
        qkv = Typed::from_vec(rotation.copy(qkv.slice(), Direction::Forward), [b, t, f]);
    }
    let problem = problem([b, t, t], [g * r, g, d, d], options);
    let places = PackedPlaces::new(t, packed);
    let [q, k, v] = places.heads(&qkv);
    let varying = Attention {
        documents: documents.as_deref(),
        sinks: sinks.as_ref().map(Values::slice),
        probe: options.probe.as_ref(),
        ..problem
    };
    let Attended { out, log_sum_exp } = forward(q, k, v, varying);
    let out = tensor(out, [b, t, g * r, d]);
    let saved_out = Typed::from_tensor(&out)?;
    let inputs = [Some(qkv_btf.clone().into_dispatch()), options.sinks_h.clone().map(Tensor::into_dispatch)];
    let kept = [qkv, saved_out].map(Typed::kept);
    Some(attach_some(out, inputs.into_iter().flatten().collect(), move |d_out: Tensor<4>| {
        let [qkv, saved_out] = kept.map(KeptValues::values);
        let d_out = Typed::<E>::from_gradient(d_out);
        let sinks = sinks.as_ref().map(Values::slice);
        let attention = Attention { documents: documents.as_deref(), sinks, ..problem };
        let [q, k, v] = places.heads(&qkv);
        let saved = Saved { q, k, v, out: heads(&saved_out), log_sum_exp: &log_sum_exp, d_out: heads(&d_out) };
        let mut dqkv = filled(b * t * f, |dqkv| {
            let targets = places.targets(Shared::new(dqkv));
            backward(saved, attention, targets);
        });
        if let Some(rotation) = rotation {
            rotation.in_place(&mut dqkv, Direction::Backward);
        }
        let d_sinks = sinks.map(|_| rounded_gradient(sink_gradients(saved, attention), [g * r], sinks_dtype));
        [Some(gradient(dqkv, [b, t, f])), d_sinks].into_iter().flatten().collect()
    }))
}

/// Places of queries, keys and values in a projection: first element and strides of each.
#[derive(Clone, Copy)]
struct PackedPlaces([(usize, HeadStrides); 3]);

impl PackedPlaces {
    fn new(t: usize, packed: PackedHeads) -> Self {
        let PackedHeads { queries_per_group: r, head_size: d, .. } = packed;
        let keys = HeadStrides::even([t * packed.width(), packed.width(), (r + 2) * d]);
        Self([(0, HeadStrides { head: d, per_group: r, ..keys }), (r * d, keys), ((r + 1) * d, keys)])
    }

    fn heads<E: Element>(self, qkv: &Typed<E>) -> [Heads<'_, E>; 3] {
        let qkv = qkv.slice();
        self.0.map(|(offset, strides)| Heads { data: &qkv[offset..], strides })
    }

    fn targets<E: Element>(self, data: Shared<'_, E>) -> Targets<'_, E> {
        let [q, k, v] = self.0.map(|(offset, strides)| HeadsMut { data, offset, strides });
        Targets { q, k, v }
    }
}
