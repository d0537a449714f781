//! Attention on Flex.

use burn::tensor::Tensor;

use super::{Values, gradient, integers, tensor};
use crate::attention::AttentionOptions;
use crate::cpu::attention::{Attended, Attention, Heads, Saved, backward, forward};
use crate::cpu::dropout::Mask;
use crate::vjp;

/// See [`crate::attention()`].
pub(crate) fn attention(
    q_bthd: &Tensor<4>,
    k_bsgd: &Tensor<4>,
    v_bsgd: &Tensor<4>,
    options: &AttentionOptions,
) -> Option<Tensor<4>> {
    let ([b, t, h, d], [_, s, g, _]) = (q_bthd.dims(), k_bsgd.dims());
    let (q, k, v) = (head_values(q_bthd)?, head_values(k_bsgd)?, head_values(v_bsgd)?);
    let documents = match &options.document_ids {
        Some(ids_bt) => Some(integers(ids_bt)?),
        None => None,
    };
    let dropout = options.dropout.filter(|(rate, _)| *rate != 0.0).map(|(rate, key)| Mask::new(rate, key));
    let (scale, softcap, window) = (options.scale as f32, options.softcap.map(|cap| cap as f32), options.window);
    let problem = Attention { b, t, s, h, g, d, scale, window, softcap, dropout, documents: None };
    if b * t * h * d == 0 {
        return None;
    }
    let Attended { out, log_sum_exp } =
        forward(heads(&q), heads(&k), heads(&v), Attention { documents: documents.as_deref(), ..problem });
    let out = tensor(out, [b, t, h, d]);
    let saved_out = Values::of(&out)?;
    let inputs = vec![q_bthd.clone().into_dispatch(), k_bsgd.clone().into_dispatch(), v_bsgd.clone().into_dispatch()];
    Some(vjp::attach_some(out, inputs, move |d_out: Tensor<4>| {
        let d_out = Values::of_gradient(d_out);
        let saved = Saved {
            q: heads(&q),
            k: heads(&k),
            v: heads(&v),
            out: heads(&saved_out),
            log_sum_exp: &log_sum_exp,
            d_out: heads(&d_out),
        };
        let gradients = backward(saved, Attention { documents: documents.as_deref(), ..problem });
        vec![
            gradient(gradients.q, [b, t, h, d]),
            gradient(gradients.k, [b, s, g, d]),
            gradient(gradients.v, [b, s, g, d]),
        ]
    }))
}

/// A tensor whose heads are contiguous rows; slices of a wider projection are used as they are.
fn head_values(x: &Tensor<4>) -> Option<Values> {
    let values = Values::of(x)?;
    let direct = values.strided().is_some_and(|(_, strides)| strides[3] == 1 || x.dims()[3] == 1);
    Some(if direct { values } else { values.contiguous() })
}

fn heads(values: &Values) -> Heads<'_> {
    let (data, strides) = values.strided().expect("flipped views were copied");
    Heads { data, strides: [strides[0], strides[1], strides[2]] }
}
