//! The operations in float64 with plain loops, and gradients by central differences. No
//! optimization, no Burn.

use bridge_kernels::{Activation, GatedUnit};

/// Gradient of `f` at `x` by central differences: good to about 1e-9 for functions of order one.
pub fn gradient(f: impl Fn(&[f64]) -> f64, x: &[f64]) -> Vec<f64> {
    let mut x = x.to_vec();
    (0..x.len())
        .map(|i| {
            let (value, h) = (x[i], 1e-5);
            x[i] = value + h;
            let above = f(&x);
            x[i] = value - h;
            let below = f(&x);
            x[i] = value;
            (above - below) / (2.0 * h)
        })
        .collect()
}

/// `sum a b`.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `x [n, i]`, `w [o, i]`, `bias [o]` -> `[n, o]`.
pub fn linear(x: &[f64], w: &[f64], bias: Option<&[f64]>, inputs: usize) -> Vec<f64> {
    let outputs = w.len() / inputs;
    let row = |x: &[f64]| {
        (0..outputs).map(|o| dot(x, &w[o * inputs..][..inputs]) + bias.map_or(0.0, |b| b[o])).collect::<Vec<_>>()
    };
    x.chunks(inputs).flat_map(row).collect()
}

/// Shapes and options of [`attention`].
#[derive(Clone)]
pub struct Attention {
    pub b: usize,
    pub t: usize,
    pub s: usize,
    pub h: usize,
    pub g: usize,
    pub d: usize,
    /// Head size of values.
    pub width: usize,
    pub scale: f64,
    pub window: Option<usize>,
    pub softcap: Option<f64>,
    /// Factor on each probability, `[b, h, t, s]`.
    pub factors: Option<Vec<f64>>,
    pub documents: Option<Vec<i64>>,
    /// Keys in place of all masks: a sequence, key head, query and key to true.
    pub chosen: Option<fn([usize; 4]) -> bool>,
    /// A score without a value for each query head, `[h]`.
    pub sinks: Option<Vec<f64>>,
}

/// `q [b, t, h, d]`, `k [b, s, g, d]`, `v [b, s, g, width]` -> `[b, t, h, width]`.
pub fn attention(q: &[f64], k: &[f64], v: &[f64], a: &Attention) -> Vec<f64> {
    let mut out = vec![0.0; a.b * a.t * a.h * a.width];
    for batch in 0..a.b {
        for head in 0..a.h {
            for i in 0..a.t {
                let group = head / (a.h / a.g);
                let query = (batch * a.t + i) * a.h + head;
                let key = |j: usize| (batch * a.s + j) * a.g + group;
                let position = a.s + i;
                let seen = |j: &usize| {
                    if let Some(chosen) = a.chosen {
                        return chosen([batch, group, i, *j]);
                    }
                    *j + a.t <= position
                        && a.window.is_none_or(|w| position - a.t - j <= w)
                        && a.documents.as_ref().is_none_or(|d| d[batch * a.t + j] == d[batch * a.t + i])
                };
                let keys: Vec<usize> = (0..a.s).filter(seen).collect();
                let score = |j: &usize| {
                    let score = a.scale * dot(&q[query * a.d..][..a.d], &k[key(*j) * a.d..][..a.d]);
                    a.softcap.map_or(score, |cap| cap * (score / cap).tanh())
                };
                let scores: Vec<f64> = keys.iter().map(score).collect();
                let sink = a.sinks.as_ref().map(|sinks| sinks[head]);
                let all = || scores.iter().copied().chain(sink);
                let top = all().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = all().map(|s| (s - top).exp()).sum();
                for (j, score) in keys.iter().zip(&scores) {
                    let factor = a.factors.as_ref().map_or(1.0, |f| f[((batch * a.h + head) * a.t + i) * a.s + j]);
                    let p = (score - top).exp() / sum * factor;
                    for e in 0..a.width {
                        out[query * a.width + e] += p * v[key(*j) * a.width + e];
                    }
                }
            }
        }
    }
    out
}

/// Sum of masked losses of `x [n, c]` projected by `w [v, c]`.
pub fn cross_entropy(
    x: &[f64],
    w: &[f64],
    targets: &[i64],
    mask: &[f64],
    columns: usize,
    softcap: Option<f64>,
    z_loss: Option<f64>,
) -> f64 {
    let logits = linear(x, w, None, columns);
    let vocabulary = w.len() / columns;
    let mut total = 0.0;
    for ((row, target), mask) in logits.chunks(vocabulary).zip(targets).zip(mask) {
        let row: Vec<f64> = row.iter().map(|l| softcap.map_or(*l, |cap| cap * (l / cap).tanh())).collect();
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_z = top + row.iter().map(|l| (l - top).exp()).sum::<f64>().ln();
        if *mask != 0.0 {
            total += mask * (log_z - row[*target as usize] + z_loss.unwrap_or(0.0) * log_z * log_z);
        }
    }
    total
}

/// RMSNorm of rows of `w.len()`.
pub fn rms_norm(x: &[f64], w: &[f64], epsilon: f64) -> Vec<f64> {
    let row = |x: &[f64]| {
        let r = 1.0 / (dot(x, x) / x.len() as f64 + epsilon).sqrt();
        x.iter().zip(w).map(|(x, w)| x * r * w).collect::<Vec<_>>()
    };
    x.chunks(w.len()).flat_map(row).collect()
}

/// Layer norm of rows of `w.len()`.
pub fn layer_norm(x: &[f64], w: &[f64], bias: Option<&[f64]>, epsilon: f64) -> Vec<f64> {
    let row = |x: &[f64]| {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / x.len() as f64;
        let r = 1.0 / (variance + epsilon).sqrt();
        let y = |(i, x): (usize, &f64)| (x - mean) * r * w[i] + bias.map_or(0.0, |b| b[i]);
        x.iter().enumerate().map(y).collect::<Vec<_>>()
    };
    x.chunks(w.len()).flat_map(row).collect()
}

/// Standard normal distribution function.
pub fn normal_cdf(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    if x.abs() > 3.0 {
        let z = x.abs();
        let tail = density / (1..=200).rev().fold(z, |f, k| z + f64::from(k) / f);
        return if x > 0.0 { 1.0 - tail } else { tail };
    }
    let (mut term, mut sum) = (x, x);
    for k in 1..200 {
        term *= x * x / f64::from(2 * k + 1);
        sum += term;
    }
    0.5 + sum * density
}

pub fn activation_of(x: f64, kind: Activation) -> f64 {
    match kind {
        Activation::Gelu => x * normal_cdf(x),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / (1.0 + (-2.0 * u).exp())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::SquaredRelu => x.max(0.0).powi(2),
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
    }
}

pub fn activation(x: &[f64], kind: Activation) -> Vec<f64> {
    x.iter().map(|x| activation_of(*x, kind)).collect()
}

/// `x [n, 2 f]`: rows of gate and then up.
pub fn glu(x: &[f64], f: usize, unit: impl Into<GatedUnit>) -> Vec<f64> {
    let GatedUnit { activation, clamp, gate_clamp, linear_offset } = unit.into();
    let [most, clamp] = [gate_clamp.or(clamp), clamp].map(|bound| bound.unwrap_or(f64::INFINITY));
    let of = |gate: f64, up: f64| activation_of(gate.min(most), activation) * (up.clamp(-clamp, clamp) + linear_offset);
    let row = |x: &[f64]| (0..f).map(|i| of(x[i], x[f + i])).collect::<Vec<_>>();
    x.chunks(2 * f).flat_map(row).collect()
}
