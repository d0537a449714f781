//! AdamW in one pass over parameters, gradients and moments, of several tensors a launch.

use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

use super::many::{Queues, room};
use super::reads;
use crate::cube::Buffer;
use crate::optim::steps::{AdamW, AdamWConstants, AdamWState, UpdateStep};

/// [`AdamWConstants`] as a kernel sees them.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Constants {
    gradient_scale: f32,
    keep: f32,
    l2: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    root_correction2: f32,
    epsilon: f32,
    step_size: f32,
}

/// One update of each parameter, in place, and the new parameter rounded to another storage where
/// there is memory for that: a unit a vector, tensor after tensor.
#[cube(launch)]
fn update<G: Float, R: Float, N: Size>(
    parameters: &mut Sequence<Box<[Vector<f32, N>]>>,
    exp_avgs: &mut Sequence<Box<[Vector<f32, N>]>>,
    exp_avg_sqs: &mut Sequence<Box<[Vector<f32, N>]>>,
    gradients: &Sequence<Box<[Vector<G, N>]>>,
    rounded: &mut Sequence<Box<[Vector<R, N>]>>,
    constants: Constants,
    #[define(G, R)] _storage: [ElemType; 2],
) {
    let unit = ABSOLUTE_POS;
    let mut begin = 0usize;
    #[unroll]
    for tensor in 0..parameters.len() {
        let end = begin + parameters[tensor].len();
        if unit >= begin && unit < end {
            let i = unit - begin;
            let (mut p, mut m, mut v) = (parameters[tensor][i], exp_avgs[tensor][i], exp_avg_sqs[tensor][i]);
            let g = Vector::<f32, N>::cast_from(gradients[tensor][i]);
            let lanes = p.vector_size();
            #[unroll]
            for lane in 0..lanes {
                let before = p.extract(lane);
                let g = g.extract(lane) * constants.gradient_scale + before * constants.l2;
                let first = m.extract(lane) * constants.beta1 + g * constants.one_minus_beta1;
                let second = v.extract(lane) * constants.beta2 + g * g * constants.one_minus_beta2;
                let denominator = second.sqrt() / constants.root_correction2 + constants.epsilon;
                m.insert(lane, first);
                v.insert(lane, second);
                p.insert(lane, before * constants.keep - first / denominator * constants.step_size);
            }
            exp_avgs.index_mut(tensor)[i] = m;
            exp_avg_sqs.index_mut(tensor)[i] = v;
            parameters.index_mut(tensor)[i] = p;
            let count = comptime!(rounded.len());
            if comptime!(count > 0) {
                rounded.index_mut(tensor)[i] = Vector::cast_from(p);
            }
        }
        begin = end;
    }
}

/// True if all tensors are outside any graph and on a CubeCL device, in float32 except for the
/// gradient: the condition of [`Updates::add`].
pub fn applies_to(state: &AdamWState, gradient: &Tensor<1>) -> bool {
    let AdamWState { parameter, exp_avg, exp_avg_sq } = state;
    [parameter, exp_avg, exp_avg_sq].into_iter().all(super::is_plain_f32) && reads(gradient)
}

/// An update that was not launched yet.
struct Update {
    parameter: Buffer,
    exp_avg: Buffer,
    exp_avg_sq: Buffer,
    gradient: Buffer,
    rounded: Option<Buffer>,
}

/// Properties that the updates of one launch share.
#[derive(PartialEq)]
struct Kind {
    step: AdamWConstants,
    device: cubecl::Device,
    lanes: usize,
    storage: [ElemType; 2],
    is_rounded: bool,
}

impl Update {
    fn kind(&self, step: AdamWConstants) -> Kind {
        Kind {
            step,
            device: self.parameter.0.device.clone(),
            lanes: self.parameter.lanes(self.parameter.len()),
            storage: [self.gradient.storage(), self.rounded.as_ref().unwrap_or(&self.parameter).storage()],
            is_rounded: self.rounded.is_some(),
        }
    }

    /// State after the launch.
    fn result(&self) -> (AdamWState, Option<Tensor<1>>) {
        let of = |buffer: &Buffer| buffer.clone().tensor();
        let state =
            AdamWState { parameter: of(&self.parameter), exp_avg: of(&self.exp_avg), exp_avg_sq: of(&self.exp_avg_sq) };
        (state, self.rounded.as_ref().map(of))
    }
}

/// Updates that are batched by kind, so that a launch has several tensors. Dropping this launches
/// the remaining updates.
#[derive(Default)]
pub struct Updates {
    waiting: Queues<Kind, Update>,
}

impl Updates {
    /// Adds an update and returns its output tensors, which must not be read before
    /// [`launch`](Self::launch). `previous` gives the dtype of the rounded parameter, and its
    /// memory if that is exclusive. Only for tensors that it [`applies_to`].
    pub fn add(
        &mut self,
        state: AdamWState,
        gradient: &Tensor<1>,
        rule: &AdamW,
        step: &UpdateStep<'_>,
        previous: Option<Tensor<1>>,
    ) -> (AdamWState, Option<Tensor<1>>) {
        let AdamWState { parameter, exp_avg, exp_avg_sq } = state;
        let gradient = Buffer::from_tensor(gradient).expect("the caller asked whether it applies");
        let owned = |x: Tensor<1>| Buffer::owned(x).expect("the caller asked whether it applies");
        let [parameter, exp_avg, exp_avg_sq] = [parameter, exp_avg, exp_avg_sq].map(owned);
        let rounded = previous.map(|previous| parameter.in_place_of(previous));
        let update = Update { parameter, exp_avg, exp_avg_sq, gradient, rounded };
        let (kind, result, elements) =
            (update.kind(AdamWConstants::new(rule, step)), update.result(), update.parameter.len());
        let room = room(&update.parameter, if kind.is_rounded { 5 } else { 4 }, 0);
        if let Some((kind, updates)) = self.waiting.add(kind, update, elements, room) {
            launch(kind, &updates);
        }
        result
    }

    /// Launches the pending updates.
    pub fn launch(&mut self) {
        for (kind, updates) in self.waiting.take() {
            launch(&kind, &updates);
        }
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        self.launch();
    }
}

fn launch(kind: &Kind, updates: &[Update]) {
    let Some(Update { parameter: first, .. }) = updates.first() else { return };
    let units = updates.iter().map(|update| update.parameter.len() / kind.lanes).sum();
    let (count, dim) = first.grid(units);
    let parameters = updates.iter().map(|update| update.parameter.arg()).collect();
    let exp_avgs = updates.iter().map(|update| update.exp_avg.arg()).collect();
    let exp_avg_sqs = updates.iter().map(|update| update.exp_avg_sq.arg()).collect();
    let gradients = updates.iter().map(|update| update.gradient.arg()).collect();
    let rounded = updates.iter().filter_map(|update| Some(update.rounded.as_ref()?.arg())).collect();
    update::launch(
        &first.0.client,
        count,
        dim,
        kind.lanes,
        parameters,
        exp_avgs,
        exp_avg_sqs,
        gradients,
        rounded,
        constants(kind.step),
        kind.storage,
    );
}

fn constants(c: AdamWConstants) -> ConstantsLaunch {
    ConstantsLaunch::new(
        c.gradient_scale,
        c.keep,
        c.l2,
        c.beta1,
        c.one_minus_beta1,
        c.beta2,
        c.one_minus_beta2,
        c.root_correction2,
        c.epsilon,
        c.step_size,
    )
}
