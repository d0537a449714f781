//! Bases of symmetric matrices for preconditioners: eigenvectors, and the orthogonal factor of a
//! QR decomposition. Both run on the host in float64 and float32, whatever device has the matrix:
//! neither Burn nor CubeCL has them.

use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm, multiplied};

/// Rows whose rotations are made together.
const LANES: usize = 16;
/// Reflections that are applied together, by products of matrices.
const PANEL: usize = 32;
/// Rows that a thread takes at least.
const ROWS: usize = 64;
/// Iterations for an eigenvalue, of which two or three are usual.
const MOST_ITERATIONS: usize = 60;

/// Eigenvectors of a symmetric matrix, as columns, by descending eigenvalue.
///
/// # Shapes
/// `[n, n]` float32 -> `[n, n]` float32.
pub fn eigenvectors(matrix: Tensor<2>) -> Tensor<2> {
    on_host(matrix, eigenvectors_of)
}

/// The orthogonal factor of the QR decomposition of a matrix, by Householder reflections with the
/// signs of LAPACK.
///
/// # Shapes
/// `[n, n]` float32 -> `[n, n]` float32.
pub fn orthogonal_factor(matrix: Tensor<2>) -> Tensor<2> {
    on_host(matrix, orthogonal_factor_of)
}

fn on_host(matrix: Tensor<2>, function: fn(&[f32], usize) -> Vec<f32>) -> Tensor<2> {
    let (device, [n, columns]) = (matrix.device(), matrix.dims());
    assert_eq!(n, columns, "the matrix is square");
    let values: Vec<f32> = matrix.into_data().try_into_vec().expect("the matrix is float32");
    Tensor::from_data(TensorData::new(function(&values, n), [n, n]), &device)
}

/// `x - factor v (v^T x)` for the elements of `x` from `first` on.
struct Reflection {
    vector: Vec<f64>,
    factor: f64,
}

/// Symmetric tridiagonal matrix: its diagonal, and the elements beside it.
struct Tridiagonal {
    diagonal: Vec<f64>,
    beside: Vec<f64>,
}

/// Cosine and sine of a rotation of columns `first` and `first + 1`.
struct Rotation {
    first: usize,
    cos: f64,
    sin: f64,
}

fn eigenvectors_of(matrix: &[f32], n: usize) -> Vec<f32> {
    let (mut tridiagonal, reflections) = tridiagonal(matrix.iter().map(|x| f64::from(*x)).collect(), n);
    // Row by row of the product of reflections and rotations, `LANES` rows at a time: columns are
    // outside, so that a rotation mixes two adjacent groups of lanes.
    let block = |first_row: usize| {
        let mut block = vec![[0.0; LANES]; n];
        (0..LANES.min(n - first_row)).for_each(|lane| block[first_row + lane][lane] = 1.0);
        for (index, Reflection { vector, factor }) in reflections.iter().enumerate() {
            let columns = &mut block[index + 1..];
            let mut dots = [0.0; LANES];
            for (column, v) in columns.iter().zip(vector) {
                dots.iter_mut().zip(column).for_each(|(dot, x)| *dot += v * x);
            }
            for (column, v) in columns.iter_mut().zip(vector) {
                column.iter_mut().zip(dots).for_each(|(x, dot)| *x -= factor * v * dot);
            }
        }
        block
    };
    let mut blocks: Vec<Vec<[f64; LANES]>> = (0..n.div_ceil(LANES)).into_par_iter().map(|i| block(i * LANES)).collect();
    tridiagonal.diagonalize(|rotations| {
        blocks.par_iter_mut().for_each(|block| {
            for Rotation { first, cos, sin } in rotations {
                let [left, right] = [block[*first], block[first + 1]];
                block[*first] = std::array::from_fn(|lane| cos * left[lane] - sin * right[lane]);
                block[first + 1] = std::array::from_fn(|lane| sin * left[lane] + cos * right[lane]);
            }
        });
    });
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| tridiagonal.diagonal[*b].total_cmp(&tridiagonal.diagonal[*a]));
    let element = |row: usize, column: usize| blocks[row / LANES][order[column]][row % LANES] as f32;
    (0..n * n).map(|i| element(i / n, i % n)).collect()
}

/// The tridiagonal matrix that a symmetric one becomes by reflections, and these. The reflection of
/// an index mixes the rows and columns after it.
fn tridiagonal(mut a: Vec<f64>, n: usize) -> (Tridiagonal, Vec<Reflection>) {
    let (mut beside, mut reflections) = (Vec::with_capacity(n), Vec::with_capacity(n));
    for k in 0..n.saturating_sub(2) {
        let mut vector = a[k * n + k + 1..(k + 1) * n].to_vec();
        let norm = dot(&vector, &vector).sqrt();
        if norm == 0.0 {
            beside.push(0.0);
            reflections.push(Reflection { vector, factor: 0.0 });
            continue;
        }
        let reflected = -norm.copysign(vector[0]);
        beside.push(reflected);
        vector[0] -= reflected;
        let factor = 2.0 / dot(&vector, &vector);
        let rest = &mut a[(k + 1) * n..];
        let product = rest.par_chunks_exact(n).with_min_len(ROWS).map(|row| factor * dot(&row[k + 1..], &vector));
        let product: Vec<f64> = product.collect();
        let half = 0.5 * factor * dot(&product, &vector);
        let other: Vec<f64> = product.iter().zip(&vector).map(|(p, v)| p - half * v).collect();
        rest.par_chunks_exact_mut(n).with_min_len(ROWS).enumerate().for_each(|(i, row)| {
            let (v, w) = (vector[i], other[i]);
            row[k + 1..].iter_mut().zip(vector.iter().zip(&other)).for_each(|(x, (b, c))| *x -= v * c + w * b);
        });
        reflections.push(Reflection { vector, factor });
    }
    if n > 1 {
        beside.push(a[(n - 2) * n + n - 1]);
    }
    beside.push(0.0);
    (Tridiagonal { diagonal: (0..n).map(|i| a[i * n + i]).collect(), beside }, reflections)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Tridiagonal {
    /// Makes the matrix diagonal by implicit QL iterations (Golub and Van Loan, 8.3), whose
    /// rotations of columns `apply` is given.
    fn diagonalize(&mut self, mut apply: impl FnMut(&[Rotation])) {
        let Self { diagonal: d, beside: e } = self;
        let n = d.len();
        let largest = d.iter().chain(e.iter()).fold(0.0, |most: f64, x| most.max(x.abs()));
        let mut rotations = Vec::new();
        for l in 0..n {
            for _ in 0..MOST_ITERATIONS {
                let is_small = |m: &usize| e[*m].abs() <= f64::EPSILON * (d[*m].abs() + d[m + 1].abs() + largest);
                let m = (l..n - 1).find(is_small).unwrap_or(n - 1);
                if m == l {
                    break;
                }
                let mut g = (d[l + 1] - d[l]) / (2.0 * e[l]);
                g = d[m] - d[l] + e[l] / (g + g.hypot(1.0).copysign(g));
                let (mut sin, mut cos, mut p) = (1.0, 1.0, 0.0);
                let mut is_split = false;
                for first in (l..m).rev() {
                    let (f, b) = (sin * e[first], cos * e[first]);
                    let r = f.hypot(g);
                    e[first + 1] = r;
                    if r == 0.0 {
                        d[first + 1] -= p;
                        e[m] = 0.0;
                        is_split = true;
                        break;
                    }
                    (sin, cos) = (f / r, g / r);
                    g = d[first + 1] - p;
                    let r = (d[first] - g) * sin + 2.0 * cos * b;
                    p = sin * r;
                    d[first + 1] = g + p;
                    g = cos * r - b;
                    rotations.push(Rotation { first, cos, sin });
                }
                if !is_split {
                    d[l] -= p;
                    (e[l], e[m]) = (g, 0.0);
                }
            }
            // Enough for all threads, and few enough that they take little memory.
            if rotations.len() > 16 * n {
                apply(&rotations);
                rotations.clear();
            }
        }
        apply(&rotations);
    }
}

/// Reflections of adjacent columns as one product: `I - V T V^T`.
struct Panel {
    first: usize,
    /// Rows are the columns of `V`, each zero before its diagonal, `[count, n]`.
    vectors: Vec<f32>,
    /// `T`, `[count, count]`.
    factor: Vec<f32>,
}

fn orthogonal_factor_of(matrix: &[f32], n: usize) -> Vec<f32> {
    let transposed = |x: &[f32]| -> Vec<f32> { (0..n * n).map(|i| x[i % n * n + i / n]).collect() };
    let mut columns = transposed(matrix);
    let panels = (0..n).step_by(PANEL).map(|first| {
        let (panel, rest) = columns[first * n..].split_at_mut(PANEL.min(n - first) * n);
        let panel = Panel::reflect(panel, first, n);
        panel.apply(rest, n, false);
        panel
    });
    let panels: Vec<Panel> = panels.collect();
    let mut columns: Vec<f32> = (0..n * n).map(|i| f32::from(u8::from(i / n == i % n))).collect();
    for panel in panels.iter().rev() {
        panel.apply(&mut columns[panel.first * n..], n, true);
    }
    transposed(&columns)
}

impl Panel {
    /// Makes the columns upper triangular, each by a reflection of its elements from the diagonal
    /// on.
    fn reflect(columns: &mut [f32], first: usize, n: usize) -> Self {
        let count = columns.len() / n;
        let (mut vectors, mut factor) = (vec![0.0; count * n], vec![0.0; count * count]);
        for j in 0..count {
            let (own, later) = columns[j * n..].split_at_mut(n);
            let (before, vector) = vectors.split_at_mut(j * n);
            let from = first + j;
            let (x, vector) = (&own[from..], &mut vector[from..n]);
            let norm = wide_dot(x, x).sqrt();
            if norm == 0.0 {
                continue;
            }
            let reflected = -norm.copysign(f64::from(x[0]));
            let scale = 1.0 / (f64::from(x[0]) - reflected);
            vector.iter_mut().zip(x).for_each(|(v, x)| *v = (f64::from(*x) * scale) as f32);
            vector[0] = 1.0;
            let tau = (reflected - f64::from(x[0])) / reflected;
            for column in later.chunks_exact_mut(n) {
                let by = (tau * wide_dot(&column[from..], vector)) as f32;
                column[from..].iter_mut().zip(vector.iter()).for_each(|(x, v)| *x -= by * v);
            }
            let dots: Vec<f64> = before.chunks_exact(n).map(|other| wide_dot(&other[from..], vector)).collect();
            for i in 0..j {
                let row = &factor[i * count..][..j];
                let sum: f64 = row.iter().zip(&dots).map(|(t, dot)| f64::from(*t) * dot).sum();
                factor[i * count + j] = (-tau * sum) as f32;
            }
            factor[j * count + j] = tau as f32;
        }
        Self { first, vectors, factor }
    }

    /// Reflects each row; in the opposite order, if `is_reversed`.
    fn apply(&self, rows: &mut [f32], n: usize, is_reversed: bool) {
        let (m, count) = (rows.len() / n, self.vectors.len() / n);
        if m == 0 {
            return;
        }
        let vectors = Matrix::new(&self.vectors, count, n);
        let factor = Matrix::new(&self.factor, count, count);
        let factor = if is_reversed { factor.t() } else { factor };
        let dots: Vec<f32> = multiplied(1.0, Matrix::new(rows, m, n), vectors.t(), Threads::All);
        let weights: Vec<f32> = multiplied(1.0, Matrix::new(&dots, m, count), factor, Threads::All);
        gemm(MatrixMut::new(rows, m, n), Output::Add, -1.0, Matrix::new(&weights, m, count), vectors, Threads::All);
    }
}

fn wide_dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Philox;

    const SIZES: [usize; 6] = [1, 2, 7, 31, 67, 101];

    fn normal(seed: usize, len: usize) -> Vec<f32> {
        Philox::new(seed as u64).normal_range(0..len, 1.0)
    }

    /// `a^T b` of square matrices.
    fn product(a: &[f32], b: &[f32], n: usize) -> Vec<f64> {
        let element = |i: usize, j: usize| (0..n).map(|k| f64::from(a[k * n + i]) * f64::from(b[k * n + j])).sum();
        (0..n * n).map(|i| element(i / n, i % n)).collect()
    }

    fn assert_orthogonal(q: &[f32], n: usize, what: &str) {
        for (i, x) in product(q, q, n).into_iter().enumerate() {
            assert!((x - f64::from(u8::from(i / n == i % n))).abs() < 3e-6, "{what}: {x} at {i}");
        }
    }

    /// `A q = q lambda`, of matrices of full rank, of low rank, of zeros, and of a tiny magnitude.
    #[test]
    fn eigenvectors_make_matrices_diagonal() {
        for n in SIZES {
            for (rank, scale) in [(n, 1.0), (n.div_ceil(3), 1.0), (0, 1.0), (n, 1e-12)] {
                let what = format!("{n}, rank {rank}, scale {scale}");
                let x = normal(n, rank * n);
                let element = |i: usize, j: usize| (0..rank).map(|k| x[k * n + i] * x[k * n + j] * scale).sum::<f32>();
                let a: Vec<f32> = (0..n * n).map(|i| element(i / n, i % n)).collect();
                let q = eigenvectors_of(&a, n);
                assert_orthogonal(&q, n, &what);
                let columns: Vec<f32> = product(&a, &q, n).into_iter().map(|x| x as f32).collect();
                let diagonal = product(&q, &columns, n);
                let norm = a.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                for (i, x) in diagonal.iter().enumerate() {
                    assert!(i / n == i % n || x.abs() <= 2e-6 * norm, "{what}: {x} of {norm} at {i}");
                }
                let values: Vec<f64> = (0..n).map(|i| diagonal[i * n + i]).collect();
                assert!(values.windows(2).all(|pair| pair[0] >= pair[1] - 1e-6 * norm), "{what}: {values:?}");
            }
        }
    }

    /// `q^T A` is upper triangular, and its diagonal has the opposite sign of what was reflected.
    #[test]
    fn orthogonal_factors_make_matrices_triangular() {
        for n in SIZES {
            for scale in [1.0, 1e-15, 0.0] {
                let mut a: Vec<f32> = normal(n, n * n).into_iter().map(|x| x * scale).collect();
                if n > 2 {
                    // The last column repeats the first.
                    (0..n).for_each(|i| a[i * n + n - 1] = a[i * n]);
                }
                let (what, q) = (format!("{n}, scale {scale}"), orthogonal_factor_of(&a, n));
                assert_orthogonal(&q, n, &what);
                let norm = a.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                let r = product(&q, &a, n);
                for (i, x) in r.iter().enumerate() {
                    assert!(i / n <= i % n || x.abs() <= 3e-6 * norm, "{what}: {x} of {norm} at {i}");
                }
                assert!(r[0] * f64::from(a[0]) <= 0.0, "{what}: {} and {}", r[0], a[0]);
            }
        }
    }
}
