//! Orthogonalization of matrices by Newton-Schulz iterations (Jordan et al. 2024,
//! <https://kellerjordan.github.io/posts/muon/>): `x` becomes `a x + b (x x^T) x + c (x x^T)^2 x`
//! with other numbers at each step, which brings every singular value near 1.
//!
//! Shape legend: `m` rows, `n` columns, `k` the smaller of both, `z` matrices of one shape.

use burn::tensor::{DType, FloatDType, Tensor};
use rayon::prelude::*;

use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm, multiplied};
use crate::flex::{Values, tensor};

/// Smallest norm that a matrix is divided by, as upstream has it.
const LEAST_NORM: f64 = 1e-15;

/// Numbers `[a, b, c]` of the polynomial of one step.
pub type Polynomial = [f64; 3];

/// Orthogonalizes each matrix. With `in_bf16`, devices other than the CPU compute in bfloat16.
///
/// # Shapes
/// `[m, n]` float32 -> `[m, n]` float32.
pub fn newton_schulz(matrices: Vec<Tensor<2>>, steps: &[Polynomial], in_bf16: bool) -> Vec<Tensor<2>> {
    let on_cpu: Option<Vec<Values>> = matrices.iter().map(Values::contiguous_of).collect();
    let Some(on_cpu) = on_cpu else { return reference(matrices, steps, in_bf16) };
    let shapes: Vec<[usize; 2]> = matrices.iter().map(Tensor::dims).collect();
    drop(matrices);
    let results = on_cpu.into_par_iter().zip(&shapes).with_max_len(1);
    let results: Vec<Vec<f32>> =
        results.map(|(values, shape)| orthogonalized(values.into_vec(), *shape, steps)).collect();
    results.into_iter().zip(shapes).map(|(values, shape)| tensor(values, shape)).collect()
}

/// One matrix, row-major. The products read it row by row or column by column, so that a tall one
/// is not transposed.
fn orthogonalized(mut x: Vec<f32>, [m, n]: [usize; 2], steps: &[Polynomial]) -> Vec<f32> {
    let norm = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt().max(LEAST_NORM);
    x.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    let (is_wide, k) = (m <= n, m.min(n));
    for [a, b, c] in steps {
        let view = Matrix::new(&x, m, n);
        let gram: Vec<f32> = match is_wide {
            true => multiplied(1.0, view, view.t(), Threads::All),
            false => multiplied(1.0, view.t(), view, Threads::All),
        };
        let square = Matrix::new(&gram, k, k);
        let mut polynomial: Vec<f32> = gram.iter().map(|x| *b as f32 * x).collect();
        if *c != 0.0 {
            gemm(MatrixMut::new(&mut polynomial, k, k), Output::Add, *c as f32, square, square, Threads::All);
        }
        polynomial.iter_mut().step_by(k + 1).for_each(|x| *x += *a as f32);
        let factor = Matrix::new(&polynomial, k, k);
        x = match is_wide {
            true => multiplied(1.0, factor, view, Threads::All),
            false => multiplied(1.0, view, factor, Threads::All),
        };
    }
    x
}

/// [`newton_schulz`] in plain Burn operations; matrices of one shape share products.
pub fn reference(matrices: Vec<Tensor<2>>, steps: &[Polynomial], in_bf16: bool) -> Vec<Tensor<2>> {
    let shapes: Vec<[usize; 2]> = matrices.iter().map(Tensor::dims).collect();
    let mut waiting: Vec<Option<Tensor<2>>> = matrices.into_iter().map(Some).collect();
    let mut results: Vec<Option<Tensor<2>>> = vec![None; shapes.len()];
    for index in 0..shapes.len() {
        let alike: Vec<usize> =
            (index..shapes.len()).filter(|i| shapes[*i] == shapes[index] && waiting[*i].is_some()).collect();
        let stacked: Vec<Tensor<2>> = alike.iter().filter_map(|i| waiting[*i].take()).collect();
        if !stacked.is_empty() {
            let made = iterated(Tensor::stack(stacked, 0), steps, in_bf16);
            for (place, i) in alike.into_iter().enumerate() {
                results[i] = Some(made.clone().slice_dim(0, place..place + 1).squeeze_dim(0));
            }
        }
    }
    results.into_iter().map(|result| result.expect("each matrix is of one shape")).collect()
}

fn iterated(x_zmn: Tensor<3>, steps: &[Polynomial], in_bf16: bool) -> Tensor<3> {
    let [z, m, n] = x_zmn.dims();
    let is_tall = m > n;
    let x_zkn = if is_tall { x_zmn.swap_dims(1, 2) } else { x_zmn };
    let norm: Tensor<3> = x_zkn.clone().powi_scalar(2).reshape([z as i32, -1]).sum_dim(1).sqrt().reshape([z, 1, 1]);
    let mut x_zkn = x_zkn / norm.clamp_min(LEAST_NORM);
    if in_bf16 && Values::from_tensor(&x_zkn).is_none() {
        x_zkn = x_zkn.cast(FloatDType::BF16);
    }
    for [a, b, c] in steps {
        let gram_zkk = x_zkn.clone().matmul(x_zkn.clone().swap_dims(1, 2));
        let polynomial = match *c == 0.0 {
            true => gram_zkk * *b,
            false => gram_zkk.clone() * *b + gram_zkk.clone().matmul(gram_zkk) * *c,
        };
        x_zkn = x_zkn.clone() * *a + polynomial.matmul(x_zkn);
    }
    let x_zkn = if x_zkn.dtype() == DType::F32 { x_zkn } else { x_zkn.cast(FloatDType::F32) };
    if is_tall { x_zkn.swap_dims(1, 2) } else { x_zkn }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;
    use crate::random::Philox;

    /// Steps that converge to singular values of 1.
    const CONVERGING: [Polynomial; 12] = [[2.0, -1.5, 0.5]; 12];

    #[test]
    fn singular_values_become_one_and_agree_with_the_reference() {
        let shapes = [[7, 13], [13, 7], [11, 11], [1, 5], [7, 13]];
        let matrix = |(seed, shape): (usize, &[usize; 2])| {
            let values = Philox::new(seed as u64).normal_range(0..shape[0] * shape[1], 3.0);
            Tensor::<2>::from_data(TensorData::new(values, *shape), &Device::flex())
        };
        let matrices: Vec<Tensor<2>> = shapes.iter().enumerate().map(matrix).collect();
        for steps in [&CONVERGING[..], &[[3.0, -3.0, 0.0], [2.5, -1.5, 0.0]]] {
            let fast = newton_schulz(matrices.clone(), steps, false);
            let plain = reference(matrices.clone(), steps, false);
            for ((fast, plain), shape) in fast.iter().zip(&plain).zip(&shapes) {
                let numbers = |x: &Tensor<2>| x.to_data().iter::<f64>().collect::<Vec<_>>();
                assert_eq!(fast.dims(), *shape);
                let differences = numbers(fast).into_iter().zip(numbers(plain)).map(|(a, b)| (a - b).abs());
                assert!(differences.fold(0.0, f64::max) < 2e-5, "{shape:?}");
                let wide = if shape[0] <= shape[1] { fast.clone() } else { fast.clone().transpose() };
                let gram = numbers(&wide.clone().matmul(wide.transpose()));
                let k = shape[0].min(shape[1]);
                let is_identity = |i: usize| gram[i] - f64::from(u8::from(i.is_multiple_of(k + 1)));
                let far = (0..k * k).map(|i| is_identity(i).abs()).fold(0.0, f64::max);
                assert_eq!(far < 1e-4, steps.len() == 12, "{shape:?}: {far}");
            }
        }
    }
}
