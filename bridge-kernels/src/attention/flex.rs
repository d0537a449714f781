//! Attention on Flex, of separate queries, keys and values.

use burn::tensor::{DType, Tensor};

use super::cpu::{Attended, Attention, forward};
use super::cpu_backward::{Saved, Targets, backward, sink_gradients};
use super::heads::{HeadStrides, Heads, HeadsMut};
use super::options::AttentionOptions;
use crate::cpu::buffer::{Shared, all_filled};
use crate::cpu::element::Element;
use crate::dropout::cpu::Mask;
use crate::flex::{KeptValues, Typed, Values, gradient, optional_integers, rounded_gradient, tensor, tracked};
use crate::vjp;

/// Shapes and options, without the documents and the sinks.
pub(crate) fn problem(
    [b, t, s]: [usize; 3],
    [h, g, d, width]: [usize; 4],
    options: &AttentionOptions,
) -> Attention<'static> {
    let dropout = options.dropout.filter(|(rate, _)| *rate != 0.0).map(|(rate, key)| Mask::new(rate, key));
    let (scale, softcap, window) = (options.scale as f32, options.softcap.map(|cap| cap as f32), options.window);
    let (documents, choice, sinks, probe) = (None, None, None, None);
    Attention { b, t, s, h, g, d, width, scale, window, softcap, dropout, documents, choice, sinks, probe }
}

pub(crate) fn attention<E: Element>(
    q_bthd: &Tensor<4>,
    k_bsgd: &Tensor<4>,
    v_bsgd: &Tensor<4>,
    options: &AttentionOptions,
) -> Option<Tensor<4>> {
    let ([b, t, h, d], [_, s, g, width]) = (q_bthd.dims(), v_bsgd.dims());
    let (q, k, v) = (head_values::<E>(q_bthd)?, head_values::<E>(k_bsgd)?, head_values::<E>(v_bsgd)?);
    if b * t * h * d * width == 0 {
        return None;
    }
    let documents = optional_integers(options.document_ids.as_ref())?;
    let sinks = Values::optional_widened_of(options.sinks_h.as_ref())?;
    let sinks_dtype = options.sinks_h.as_ref().map_or(DType::F32, Tensor::dtype);
    let problem = problem([b, t, s], [h, g, d, width], options);
    let varying = Attention {
        documents: documents.as_deref(),
        choice: options.choice.as_ref(),
        sinks: sinks.as_ref().map(Values::slice),
        probe: options.probe.as_ref(),
        ..problem
    };
    let Attended { out, log_sum_exp } = forward(heads(&q), heads(&k), heads(&v), varying);
    let out = tensor(out, [b, t, h, width]);
    let saved_out = Typed::from_tensor(&out)?;
    let mut inputs = tracked![q_bthd, k_bsgd, v_bsgd];
    inputs.extend(options.sinks_h.clone().map(Tensor::into_dispatch));
    let kept = [q, k, v, saved_out].map(Typed::kept);
    let choice = options.choice.clone();
    Some(vjp::attach_some(out, inputs, move |d_out: Tensor<4>| {
        let [q, k, v, saved_out] = kept.map(KeptValues::values);
        let d_out = Typed::<E>::from_gradient(d_out);
        let (q, k, v) = (heads(&q), heads(&k), heads(&v));
        let sinks = sinks.as_ref().map(Values::slice);
        let attention = Attention { documents: documents.as_deref(), choice: choice.as_ref(), sinks, ..problem };
        let saved = Saved { q, k, v, out: heads(&saved_out), log_sum_exp: &log_sum_exp, d_out: heads(&d_out) };
        let [dq, dk, dv] = all_filled([b * t * h * d, b * s * g * d, b * s * g * width], |[dq, dk, dv]| {
            let target = |x, s, heads, d| HeadsMut {
                data: Shared::new(x),
                offset: 0,
                strides: HeadStrides::contiguous(s, heads, d),
            };
            let targets = Targets { q: target(dq, t, h, d), k: target(dk, s, g, d), v: target(dv, s, g, width) };
            backward(saved, attention, targets);
        });
        let mut gradients =
            vec![gradient(dq, [b, t, h, d]), gradient(dk, [b, s, g, d]), gradient(dv, [b, s, g, width])];
        gradients.extend(sinks.map(|_| rounded_gradient(sink_gradients(saved, attention), [h], sinks_dtype)));
        gradients
    }))
}

/// A tensor whose heads are contiguous rows; slices of a wider projection are used as they are.
fn head_values<E: Element>(x: &Tensor<4>) -> Option<Typed<E>> {
    let values = Typed::from_tensor(x)?;
    let direct = values.strided().is_some_and(|(_, strides)| strides[3] == 1 || x.dims()[3] == 1);
    Some(if direct { values } else { values.contiguous() })
}

pub(crate) fn heads<E: Element>(values: &Typed<E>) -> Heads<'_, E> {
    let (data, strides) = values.strided().expect("flipped views were copied");
    Heads { data, strides: HeadStrides::even([strides[0], strides[1], strides[2]]) }
}
