//! Orthogonalized momentum, as the rules of Muon's family share it: decay, momentum, the parts of
//! fused projections, coefficients and scales, as NVIDIA's Emerging-Optimizers has them.

use std::ops::Range;

use bridge_kernels::optim::{Polynomial, newton_schulz};
use burn::tensor::Tensor;

use super::rule::{Values, WholeParameter};
use crate::config::{MatmulPrecision, MuonCoefficients, MuonScaleMode, OptimizerConfig};

/// Elements of the matrices that are orthogonalized together, unless one has more. It bounds the
/// memory of a step.
const TOGETHER: usize = 1 << 22;

/// Settings that the rules of Muon's family share.
#[derive(Clone, Debug)]
pub(super) struct Orthogonal {
    momentum: f64,
    nesterov: bool,
    decoupled: bool,
    steps: Vec<Polynomial>,
    in_bf16: bool,
    splits_fused: bool,
    scale_mode: MuonScaleMode,
    extra_scale: f64,
}

/// A matrix before and after orthogonalization, `[m, n]`.
pub(super) struct Direction {
    /// Momentum, with Nesterov's look ahead if that is on.
    pub momentum: Tensor<2>,
    /// Near its orthogonal factor.
    pub orthogonal: Tensor<2>,
    /// Gradient, scaled, with decay that is not decoupled.
    pub gradient: Tensor<2>,
}

impl Orthogonal {
    pub fn new(settings: &OptimizerConfig) -> Self {
        Self {
            momentum: settings.muon_momentum,
            nesterov: settings.muon_nesterov,
            decoupled: settings.decoupled_weight_decay,
            steps: polynomials(settings.muon_coefficient_type, settings.muon_num_ns_steps),
            in_bf16: settings.muon_fp32_matmul_prec == MatmulPrecision::Medium,
            splits_fused: settings.muon_split_qkv,
            scale_mode: settings.muon_scale_mode,
            extra_scale: settings.muon_extra_scale_factor,
        }
    }

    /// Updates matrices whose first state is the momentum. `finish` makes the update of a matrix,
    /// which is subtracted times the learning rate, and its other states.
    pub fn update(
        &self,
        parameters: Vec<WholeParameter<'_>>,
        scales_parts: bool,
        finish: impl Fn(Direction, Vec<Tensor<1>>, f64) -> (Tensor<2>, Vec<Tensor<1>>),
    ) -> Vec<Values> {
        let (mut updated, mut batch, mut elements) = (Vec::with_capacity(parameters.len()), Vec::new(), 0);
        let mut parameters = parameters.into_iter().peekable();
        while let Some(parameter) = parameters.next() {
            elements += parameter.gradient.dims()[0];
            batch.push(parameter);
            if parameters.peek().is_none_or(|next| elements + next.gradient.dims()[0] > TOGETHER) {
                updated.extend(self.update_together(std::mem::take(&mut batch), scales_parts, &finish));
                elements = 0;
            }
        }
        updated
    }

    fn update_together(
        &self,
        parameters: Vec<WholeParameter<'_>>,
        scales_parts: bool,
        finish: impl Fn(Direction, Vec<Tensor<1>>, f64) -> (Tensor<2>, Vec<Tensor<1>>),
    ) -> Vec<Values> {
        let (mut prepared, mut matrices) = (Vec::new(), Vec::new());
        for WholeParameter { values, gradient, step, parts } in parameters {
            let shape: [usize; 2] = step.shape.try_into().expect("rules of matrices get matrices");
            let Values { mut parameter, mut states } = values;
            let mut gradient = gradient * step.gradient_scale;
            if self.decoupled {
                parameter = parameter * (1.0 - step.learning_rate * step.weight_decay);
            } else {
                gradient = gradient + parameter.clone() * step.weight_decay;
            }
            let momentum = states.remove(0) * self.momentum + gradient.clone() * (1.0 - self.momentum);
            let ahead = match self.nesterov {
                true => gradient.clone() * (1.0 - self.momentum) + momentum.clone() * self.momentum,
                false => momentum.clone(),
            };
            let (ahead, gradient) = (ahead.reshape(shape), gradient.reshape(shape));
            let parts = if self.splits_fused { parts } else { &[] };
            match parts.is_empty() {
                true => matrices.push(ahead.clone()),
                false => matrices.extend(parts.iter().map(|rows| rows_of(&ahead, rows))),
            }
            states.insert(0, momentum);
            prepared.push((Values { parameter, states }, ahead, gradient, step, parts));
        }
        let mut orthogonal = newton_schulz(matrices, &self.steps, self.in_bf16).into_iter();
        let updated = prepared.into_iter().map(|(values, momentum, gradient, step, parts)| {
            let scaled = orthogonal.by_ref().take(parts.len().max(1)).map(|part| match scales_parts {
                true => part.clone() * self.scale(part.dims()),
                false => part,
            });
            let (orthogonal, shape) = (joined(scaled.collect(), parts), momentum.dims());
            let scale = if scales_parts { 1.0 } else { self.scale(shape) };
            let Values { parameter, mut states } = values;
            let others = states.split_off(1);
            let (update, others) = finish(Direction { momentum, orthogonal, gradient }, others, step.eps_mult);
            states.extend(others);
            let parameter = parameter - update.reshape([shape[0] * shape[1]]) * (step.learning_rate * scale);
            Values { parameter, states }
        });
        updated.collect()
    }

    /// Factor of the update of a matrix.
    fn scale(&self, [rows, columns]: [usize; 2]) -> f64 {
        let ratio = rows as f64 / columns as f64;
        let by_shape = match self.scale_mode {
            MuonScaleMode::ShapeScaling => ratio.max(1.0).sqrt(),
            MuonScaleMode::Spectral => (rows.max(columns) as f64).sqrt(),
            MuonScaleMode::UnitRmsNorm => ratio.sqrt(),
        };
        by_shape * self.extra_scale
    }
}

/// Rows of a matrix, together.
fn rows_of(matrix: &Tensor<2>, rows: &[Range<usize>]) -> Tensor<2> {
    Tensor::cat(rows.iter().map(|rows| matrix.clone().slice_dim(0, rows.clone())).collect(), 0)
}

/// The matrix whose parts [`rows_of`] took out.
fn joined(mut matrices: Vec<Tensor<2>>, parts: &[Vec<Range<usize>>]) -> Tensor<2> {
    if parts.is_empty() {
        return matrices.remove(0);
    }
    let mut pieces = Vec::new();
    for (matrix, rows) in matrices.iter().zip(parts) {
        let mut next = 0;
        for rows in rows {
            let from = next;
            next += rows.len();
            pieces.push((rows.start, matrix.clone().slice_dim(0, from..next)));
        }
    }
    pieces.sort_by_key(|(start, _)| *start);
    Tensor::cat(pieces.into_iter().map(|(_, piece)| piece).collect(), 0)
}

/// Polynomials of the steps of an iteration. After the last of a set, some repeat it and others
/// begin again.
fn polynomials(kind: MuonCoefficients, steps: usize) -> Vec<Polynomial> {
    use MuonCoefficients as Kind;
    const SIMPLE: Polynomial = [3.4445, -4.7750, 2.0315];
    let of_kind: &[Polynomial] = match kind {
        Kind::Simple => &[SIMPLE],
        Kind::Quintic => &[
            [4.0848, -6.8946, 2.9270],
            [3.9505, -6.3029, 2.6377],
            [3.7418, -5.5913, 2.3037],
            [2.8769, -3.1427, 1.2046],
            [2.8366, -3.0525, 1.2012],
        ],
        Kind::PolarExpress => &[
            [8.2051, -22.9019, 16.4607],
            [4.0664, -2.8612, 0.5184],
            [3.9096, -2.8234, 0.5250],
            [3.2856, -2.4153, 0.4853],
            [2.2779, -1.6198, 0.3985],
            [1.8726, -1.2307, 0.3585],
            [1.8564, -1.2132, 0.3568],
            [1.8750, -1.2500, 0.3750],
        ],
        Kind::Cans => &[
            [8.4703, -25.1081, 18.6293],
            [4.1828, -3.1087, 0.5806],
            [3.9619, -2.9541, 0.5630],
            [3.2866, -2.4647, 0.5074],
            [2.2737, -1.6447, 0.4162],
        ],
        Kind::Aol => &[
            [4.0098, -7.0585, 2.4635],
            [3.4585, -5.5479, 2.5959],
            [2.7573, -3.2939, 1.4254],
            [2.7215, -3.0494, 1.3169],
        ],
        Kind::DeepseekV4 => {
            const STEEP: usize = 8;
            let flat = [2.0, -1.5, 0.5];
            return (0..steps).map(|step| if step < STEEP { SIMPLE } else { flat }).collect();
        }
        Kind::Cubic5 => &[
            [3.365_657_6, -3.342_099_2, 0.0],
            [2.574_435_2, -1.495_737_6, 0.0],
            [2.536_896_2, -1.431_257_0, 0.0],
            [2.441_890_6, -1.276_404_0, 0.0],
            [2.223_047_2, -0.963_065_0, 0.0],
        ],
    };
    let repeats_last = matches!(kind, Kind::PolarExpress | Kind::Cans);
    let last = of_kind.len() - 1;
    let place = |step: usize| if repeats_last { step.min(last) } else { step % of_kind.len() };
    (0..steps).map(|step| of_kind[place(step)]).collect()
}
