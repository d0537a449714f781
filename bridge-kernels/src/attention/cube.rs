//! Attention on GPUs (FlashAttention, arXiv:2205.14135 and 2307.08691): the softmax of a block of
//! queries is corrected as blocks of keys come, so that no score matrix exists; the backward forms
//! scores again from the log-sum-exp of each query.
//!
//! Products are in float32 on a GPU's ordinary units, not on its matrix units: memory is saved in
//! any dtype, time only where the score matrix dominates it.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, FloatDType, Tensor};

use super::cube_scores::{Form, MASKED, Sizes, SizesLaunch, block_of_queries, is_visible, keys_at, queries_at, score};
use super::options::AttentionOptions;
use crate::cube::Buffer;
use crate::cube::kept::KeptBuffer;
use crate::cube::tile::{
    SIDE, add_combinations, add_products, columns_of_unit, row_maxima, row_sums, share, stage_len, tile_len, zeros,
};
use crate::dropout::DropoutKey;
use crate::dropout::cube::{Mask, factor, mask};
use crate::precision::widen;
use crate::vjp;

/// Running softmax of a unit's rows (FlashAttention, arXiv:2205.14135): `r` numbers each.
#[derive(CubeType)]
struct OnlineSoftmax {
    /// Running maximum of scores and sink, which is subtracted before the exponential.
    row_max: Array<f32>,
    /// Running sum of the exponentials.
    row_sum: Array<f32>,
    /// Running maximum of the scores alone.
    max_logit: Array<f32>,
}

/// State before the first key: empty, or the head's sink alone.
#[cube]
fn init_online_softmax(sinks: ComptimeOption<&[f32]>, head: usize, #[comptime] r: usize) -> OnlineSoftmax {
    let mut softmax = OnlineSoftmax { row_max: zeros(r), row_sum: zeros(r), max_logit: zeros(r) };
    #[unroll]
    for i in 0..r {
        softmax.row_max[i] = MASKED;
        softmax.max_logit[i] = MASKED;
        #[comptime]
        match sinks {
            ComptimeOption::Some(sinks) => {
                softmax.row_max[i] = sinks[head];
                softmax.row_sum[i] = 1.0f32;
            }
            ComptimeOption::None => {}
        }
    }
    softmax
}

/// Adds a block of keys: turns scores into exponentials, and rescales `sums` of rows of values to
/// the new maximum.
#[cube]
fn online_softmax_step(
    softmax: &mut OnlineSoftmax,
    scores: &mut Array<f32>,
    sums: &mut Array<f32>,
    stage: &mut Shared<[f32]>,
    #[comptime] form: Form,
) {
    let (r, columns) = (comptime!(form.r), comptime!(form.value_columns));
    let mut maxima = zeros(r);
    #[unroll]
    for i in 0..r {
        maxima[i] = MASKED;
        #[unroll]
        for j in 0..r {
            maxima[i] = max(maxima[i], scores[i * r + j]);
        }
    }
    row_maxima(&mut maxima, stage, r);
    let mut added = zeros(r);
    let mut rescale = zeros(r);
    #[unroll]
    for i in 0..r {
        if comptime!(form.probed) {
            softmax.max_logit[i] = max(softmax.max_logit[i], maxima[i]);
        }
        let new_max = max(softmax.row_max[i], maxima[i]);
        rescale[i] = (softmax.row_max[i] - new_max).exp();
        softmax.row_max[i] = new_max;
        #[unroll]
        for j in 0..r {
            let score = scores[i * r + j];
            let mut exponential = 0.0f32;
            // NaN differs from `MASKED`, so that it is passed on.
            if score != MASKED {
                exponential = (score - new_max).exp();
            }
            scores[i * r + j] = exponential;
            added[i] += exponential;
        }
    }
    row_sums(&mut added, stage, r);
    #[unroll]
    for i in 0..r {
        softmax.row_sum[i] = softmax.row_sum[i] * rescale[i] + added[i];
        #[unroll]
        for j in 0..columns {
            sums[i * columns + j] *= rescale[i];
        }
    }
}

/// Output and statistics: for each query the log-sum-exp of its scores and, if it is recorded,
/// their maximum, `[2, b, h, t]`. One cube computes a block of queries of a head.
#[cube(launch)]
fn forward<X: Float, P: Int>(
    q: &[X],
    k: &[X],
    v: &[X],
    sinks: ComptimeOption<&[f32]>,
    documents: ComptimeOption<&[P]>,
    out: &mut [X],
    statistics: &mut [f32],
    sizes: Sizes,
    mask: Mask,
    #[comptime] form: Form,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let (r, columns) = (comptime!(form.r), comptime!(form.value_columns));
    let rows = comptime!(form.r * SIDE);
    let (d, width) = (sizes.head_size as usize, sizes.width as usize);
    let at = block_of_queries(rows, &sizes);
    if at.batch >= sizes.batches as usize {
        terminate!();
    }
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let mut stage = Shared::<[f32]>::new_slice(comptime!(stage_len(form.r)));
    let mut tile = Shared::<[f32]>::new_slice(comptime!(tile_len(form.r)));
    let own = queries_at(at.batch, at.first, at.head, d, &sizes);
    let mut softmax = init_online_softmax(sinks, at.head, r);
    let mut sums = zeros(comptime!(form.r * form.value_columns));
    let mut key = at.begin;
    while key < at.end {
        let mut scores = zeros(comptime!(form.r * form.r));
        let others = keys_at(at.batch, key, at.group, d, &sizes);
        add_products::<X, X>(&mut scores, q, &own, k, &others, d, &mut stage, r);
        #[unroll]
        for i in 0..r {
            #[unroll]
            for j in 0..r {
                let mut value = f32::new(MASKED);
                if is_visible::<P>(documents, at.batch, at.first + y + i * SIDE, key + x + j * SIDE, &sizes) {
                    value = score(scores[i * r + j], &sizes, form.capped);
                }
                scores[i * r + j] = value;
            }
        }
        online_softmax_step(&mut softmax, &mut scores, &mut sums, &mut stage, form);
        if comptime!(form.dropped) {
            #[unroll]
            for i in 0..r {
                #[unroll]
                for j in 0..r {
                    let (row, column) = (at.line + y + i * SIDE, key + x + j * SIDE);
                    scores[i * r + j] *= factor(&mask, row as u32, column as u32, sizes.keys);
                }
            }
        }
        share(&mut tile, &scores, r);
        let values = keys_at(at.batch, key, at.group, width, &sizes);
        add_combinations::<X>(&mut sums, &mut tile, v, &values, width, r, columns);
        key += rows;
    }
    let target = queries_at(at.batch, at.first, at.head, width, &sizes);
    #[unroll]
    for i in 0..r {
        let row = y + i * SIDE;
        if row < target.count {
            if x == 0 {
                statistics[at.line + row] = softmax.row_max[i] + softmax.row_sum[i].ln();
                if comptime!(form.probed) {
                    statistics[statistics.len() / 2 + at.line + row] = softmax.max_logit[i];
                }
            }
            #[unroll]
            for j in 0..columns {
                let column = x + j * SIDE;
                if column < width {
                    let value = sums[i * columns + j] / softmax.row_sum[i];
                    out[target.start + row * target.stride + column] = X::cast_from(value);
                }
            }
        }
    }
}

/// Sizes and options.
#[derive(Clone, Copy)]
pub(super) struct Problem {
    pub b: usize,
    pub t: usize,
    pub s: usize,
    pub h: usize,
    pub g: usize,
    pub d: usize,
    pub width: usize,
    pub window: Option<usize>,
    scale: f64,
    pub softcap: Option<f64>,
    has_probe: bool,
    pub dropout: Option<(f64, DropoutKey)>,
}

impl Problem {
    pub fn sizes(&self) -> SizesLaunch {
        let Self { b, t, s, h, g, d, width, .. } = *self;
        let [b, t, s, h, g, d, width] = [b, t, s, h, g, d, width].map(|size| size as u32);
        let window = self.window.and_then(|window| u32::try_from(window).ok()).unwrap_or(u32::MAX);
        SizesLaunch::new(b, t, s, h, g, d, width, window, self.scale as f32, self.softcap.unwrap_or(1.0) as f32)
    }

    /// Tiles for `rows` rows and results with these columns a unit.
    pub fn form(&self, x: &Buffer, rows: usize, columns: impl Fn(usize, usize) -> usize) -> Option<Form> {
        let [of_key, of_value] = [self.d, self.width].map(columns_of_unit);
        let r = x.tile_rows(rows, columns(of_key, of_value))?;
        let (capped, probed, dropped) = (self.softcap.is_some(), self.has_probe, self.dropout.is_some());
        Some(Form { r, columns: of_key, value_columns: of_value, capped, probed, dropped })
    }
}

/// Inputs and results of the forward that backward needs.
pub(super) struct Saved {
    pub problem: Problem,
    pub q: Buffer,
    pub k: Buffer,
    pub v: Buffer,
    pub out: Buffer,
    pub documents: Option<Buffer>,
    /// Log-sum-exps, and max logits in the forward or deltas in the backward, `[2, b, h, t]`.
    pub statistics: Buffer,
}

impl Saved {
    /// Storage types of heads and documents.
    pub fn storage(&self) -> [ElemType; 2] {
        [self.q.storage(), self.documents.as_ref().map_or_else(i32::elem_type_native, Buffer::storage)]
    }

    /// Fills in output and statistics.
    fn forward(&self, sinks: Option<&Buffer>) -> Option<()> {
        let Self { problem, q, k, v, out, documents, statistics } = self;
        let form = problem.form(q, problem.t, |_, of_value| of_value)?;
        let (count, dim) = q.cube_per_tile(problem.b * problem.h * problem.t.div_ceil(form.r * SIDE));
        forward::launch(
            &q.0.client,
            count,
            dim,
            q.arg(),
            k.arg(),
            v.arg(),
            sinks.map(Buffer::arg).into(),
            documents.as_ref().map(Buffer::arg).into(),
            out.arg(),
            statistics.arg(),
            problem.sizes(),
            mask(problem.dropout),
            form,
            self.storage(),
        );
        Some(())
    }
}

/// Inputs of an operation, and memory for its results; the output is allocated later.
pub(super) struct Operands {
    pub saved: Saved,
    /// In float32.
    pub sinks: Option<Buffer>,
}

impl Operands {
    /// `None` where the forms on GPUs do not apply, see [`attention`].
    pub fn from_tensors([q_bthd, k_bsgd, v_bsgd]: [&Tensor<4>; 3], options: &AttentionOptions) -> Option<Self> {
        let ([b, t, h, d], [_, s, g, width], dtype) = (q_bthd.dims(), v_bsgd.dims(), q_bthd.dtype());
        (t > 1 && k_bsgd.dtype() == dtype && v_bsgd.dtype() == dtype).then_some(())?;
        let (q, k, v) = (Buffer::from_tensor(q_bthd)?, Buffer::from_tensor(k_bsgd)?, Buffer::from_tensor(v_bsgd)?);
        let documents = match &options.document_ids {
            Some(ids_bt) => Some(Buffer::from_integers(ids_bt)?),
            None => None,
        };
        let sinks = match &options.sinks_h {
            Some(sinks_h) => Some(Buffer::from_tensor(&widen(sinks_h.clone().without_autodiff()))?),
            None => None,
        };
        let AttentionOptions { window, scale, softcap, .. } = *options;
        let dropout = options.dropout.filter(|(rate, _)| *rate != 0.0);
        let problem =
            Problem { b, t, s, h, g, d, width, window, scale, softcap, has_probe: options.probe.is_some(), dropout };
        let statistics = q.uninitialised([2, b, h, t], DType::F32);
        let saved = Saved { problem, out: q.clone(), q, k, v, documents, statistics };
        Some(Self { saved, sinks })
    }
}

/// See [`crate::attention()`]. Queries, keys and values are of one dtype, or it does not apply. Nor
/// does it to a single query: the reference has but one row of scores a head then, while here a
/// cube a head would have to go through all keys.
pub fn attention(
    q_bthd: &Tensor<4>,
    k_bsgd: &Tensor<4>,
    v_bsgd: &Tensor<4>,
    options: &AttentionOptions,
) -> Option<Tensor<4>> {
    let Operands { mut saved, sinks } = Operands::from_tensors([q_bthd, k_bsgd, v_bsgd], options)?;
    let Problem { b, t, h, width, .. } = saved.problem;
    saved.out = saved.q.uninitialised([b, t, h, width], saved.q.0.dtype);
    saved.forward(sinks.as_ref())?;
    Some(with_backward(saved, sinks, [q_bthd, k_bsgd, v_bsgd], options, |saved, d_out| {
        saved.gradients(d_out).expect("the forward had tiles of these sizes")
    }))
}

/// The output as an operation on queries, keys, values and sinks, with the gradients of the first
/// three. Records the max logit, if there is a probe.
pub(super) fn with_backward(
    saved: Saved,
    sinks: Option<Buffer>,
    [q_bthd, k_bsgd, v_bsgd]: [&Tensor<4>; 3],
    options: &AttentionOptions,
    gradients: impl FnOnce(&Saved, &Buffer) -> [Tensor<4>; 3] + Send + 'static,
) -> Tensor<4> {
    if let Some(probe) = &options.probe {
        let statistics: Tensor<4> = saved.statistics.clone().tensor();
        let queries = saved.problem.t - probe.first_query;
        probe.max_logit.record_max(statistics.narrow(0, 1, 1).narrow(3, probe.first_query, queries));
    }
    let mut inputs =
        vec![q_bthd.clone().into_dispatch(), k_bsgd.clone().into_dispatch(), v_bsgd.clone().into_dispatch()];
    inputs.extend(options.sinks_h.clone().map(Tensor::into_dispatch));
    let sinks_h =
        sinks.map(Buffer::tensor::<1>).zip(options.sinks_h.as_ref().map(|sinks_h| FloatDType::from(sinks_h.dtype())));
    let Saved { problem, q, k, v, out, documents, statistics } = saved;
    let output = out.clone().tensor();
    let kept = [q, k, v, out].map(Buffer::kept);
    vjp::attach_some(output, inputs, move |d_out: Tensor<4>| {
        let [q, k, v, out] = kept.map(KeptBuffer::buffer);
        let saved = Saved { problem, q, k, v, out, documents, statistics };
        let of_operands = gradients(&saved, &Buffer::from_gradient(d_out));
        let of_sinks = sinks_h.map(|(sinks_h, dtype)| saved.sink_gradients(sinks_h).cast(dtype).into_dispatch());
        of_operands.into_iter().map(|x| Some(x.into_dispatch())).chain(of_sinks.map(Some)).collect()
    })
}
