//! Operands of the scan of Mamba-2.

use bridge_kernels::{ScanInputs, ScanOptions};
use burn::tensor::Tensor;

use crate::common::values;

/// Sequences, tokens, heads, channels of a head, groups, numbers of a state.
pub type Sizes = [usize; 6];

pub fn scan_inputs(v: &[Tensor<1>], [b, t, h, p, g, n]: Sizes) -> ScanInputs {
    ScanInputs {
        xbc_btf: v[0].clone().reshape([b, t, h * p + 2 * g * n]),
        dt_bth: v[1].clone().reshape([b, t, h]),
        a_log_h: v[2].clone(),
        dt_bias_h: v[3].clone(),
        d_h: v[4].clone(),
        document_ids: None,
    }
}

pub fn scan_values([b, t, h, p, g, n]: Sizes) -> Vec<Vec<f32>> {
    let bias = values(4, h).iter().map(|v| v * 0.5 - 1.0).collect();
    vec![values(1, b * t * (h * p + 2 * g * n)), values(2, b * t * h), values(3, h), bias, values(5, h)]
}

pub fn scan_options([_, _, _, p, g, n]: Sizes, chunk_size: usize, time_steps: [f32; 2]) -> ScanOptions {
    ScanOptions { head_size: p, groups: g, state_size: n, chunk_size, time_steps }
}
