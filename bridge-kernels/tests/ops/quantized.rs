//! Quantised weights, and linear layers on them.

use std::sync::Arc;

use bridge_kernels::cross_entropy::{CrossEntropyOptions, linear_cross_entropy, reference as loss_reference};
use bridge_kernels::embedding;
use bridge_kernels::low_rank::{LowRank, LowRankSum, linear_low_rank, low_rank_row_squares, reference as low_rank};
use bridge_kernels::quantized::{
    CodeFormat, LinearWeight, NF4, Quantization, QuantizedMatrix, linear_weighted, reference,
};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, assert_same_on_any_threads, ints, read, run_all, tensor, values, wide};
use crate::plain;

const FORMATS: [CodeFormat; 3] = [CodeFormat::Int8, CodeFormat::Nf4, CodeFormat::Int4];
/// Rows, inputs, outputs and the block size: odd numbers of inputs, last blocks in part, several
/// tiles, blocks longer than a row.
const SHAPES: [[usize; 4]; 4] = [[5, 37, 13, 16], [3, 259, 131, 64], [7, 128, 29, 64], [2, 11, 3, 64]];

fn quantized(format: CodeFormat, [_, inputs, outputs, block_size]: [usize; 4]) -> QuantizedMatrix {
    let weights = values(7, inputs * outputs);
    QuantizedMatrix::new(&weights, [outputs, inputs], Quantization { format, block_size })
}

#[test]
fn the_values_of_nf4_are_those_of_its_authors() {
    let published = [
        -1.0,
        -0.696_192_8,
        -0.525_073_05,
        -0.394_917_5,
        -0.284_441_38,
        -0.184_773_43,
        -0.091_050_04,
        0.0,
        0.079_580_3,
        0.160_930_2,
        0.246_112_3,
        0.337_915_24,
        0.440_709_83,
        0.562_617,
        0.722_956_84,
        1.0,
    ];
    for (found, expected) in NF4.iter().zip(published) {
        assert!((f64::from(*found) - expected).abs() < 1e-6, "{found}, expected {expected}");
    }
}

/// The float16 next to a number of their range: 11 digits, and none below 2^-24.
fn half(x: f64) -> f64 {
    let digits = 2_f64.powi((x.abs().log2().floor().max(-14.0) - 10.0) as i32);
    (x / digits).round_ties_even() * digits
}

/// The largest float16 that is not above a number.
fn half_below(x: f64) -> f64 {
    let digits = 2_f64.powi((x.abs().log2().floor().max(-14.0) - 10.0) as i32);
    (x / digits).floor() * digits
}

#[test]
fn codes_stand_for_the_nearest_values() {
    for shape in SHAPES {
        let [_, inputs, outputs, block_size] = shape;
        let weights = values(7, inputs * outputs);
        for format in FORMATS {
            let of_block = |block: &[f64]| -> Vec<f64> {
                let largest = block.iter().fold(0.0, |largest: f64, w| largest.max(w.abs()));
                let [low, high] = [f64::min, f64::max].map(|of| block.iter().copied().reduce(of).unwrap());
                match format {
                    CodeFormat::Int8 => {
                        (-127..=127).map(|code| f64::from(code) * half(f64::from(largest as f32 / 127.0))).collect()
                    }
                    CodeFormat::Nf4 => NF4.iter().map(|share| f64::from(*share) * half(largest)).collect(),
                    CodeFormat::Int4 => {
                        let low = half_below(low);
                        let scale = half(f64::from((high as f32 - low as f32) / 15.0));
                        (0..16).map(|code| low + f64::from(code) * scale).collect()
                    }
                }
            };
            let found = quantized(format, shape).values();
            for (row, found) in weights.chunks(inputs).zip(found.chunks(inputs)) {
                for (block, found) in row.chunks(block_size).zip(found.chunks(block_size)) {
                    let of_code = of_block(&wide(block));
                    for (w, found) in wide(block).into_iter().zip(wide(found)) {
                        let errors = of_code.iter().map(|value| (value - w).abs());
                        let least = errors.fold(f64::INFINITY, f64::min);
                        assert!((found - w).abs() <= least + 1e-6, "{format:?}: {w} became {found}");
                    }
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_what_is_not_finite_is_seen() {
    for format in FORMATS {
        let quantization = Quantization { format, block_size: 2 };
        let weights = [0.0, -0.0, f32::NAN, 1.0, 3.0, f32::INFINITY, 0.5, -0.25];
        let found = QuantizedMatrix::new(&weights, [2, 4], quantization).values();
        assert_eq!(found[..2], [0.0, 0.0], "{format:?}");
        assert!(found[2..4].iter().all(|w| w.is_nan()) && !found[5].is_finite(), "{format:?}: {found:?}");
        assert!((found[6] - 0.5).abs() < 2e-4 && (found[7] + 0.25).abs() < 0.06, "{format:?}: {found:?}");
        let empty = QuantizedMatrix::new(&[], [0, 4], quantization);
        assert!(empty.values().is_empty() && empty.bytes() == 0);
    }
}

#[test]
fn what_was_quantised_is_quantised_without_a_loss() {
    for shape in SHAPES {
        for format in [CodeFormat::Int8, CodeFormat::Nf4] {
            let once = quantized(format, shape);
            assert_eq!(QuantizedMatrix::new(&once.values(), once.shape(), once.quantization()), once, "{format:?}");
        }
    }
}

#[test]
fn values_of_files_with_float16_scales_are_what_they_were() {
    // As Q4_1 and Q8_0 have them: a least value and a step for each block, which uses the first
    // code and the last; some have few digits.
    let of_block = |block: usize| {
        let draws = values(block as u64, 2);
        let size = 10_f64.powi([-3, -1, 0, 2, -5][block % 5]);
        [f64::from(draws[0]).abs() * 0.3 * size, f64::from(draws[1]) * size].map(|x| half(x) as f32)
    };
    let codes = |at: usize, count: usize| ((at * 7 + at / 16) % count) as f32;
    let (mut int4, mut int8) = (Vec::new(), Vec::new());
    for block in 0..60 {
        let [step, least] = of_block(block);
        int4.extend((0..32).map(|at| codes(at, 16) * step + least));
        int8.extend((0..32).map(|at| if at == 5 { -127.0 * step } else { (codes(at, 255) - 127.0) * step }));
    }
    for (format, weights) in [(CodeFormat::Int4, int4), (CodeFormat::Int8, int8)] {
        let found = QuantizedMatrix::new(&weights, [20, 96], Quantization { format, block_size: 32 });
        assert_eq!(found.values(), weights, "{format:?}");
        assert_eq!(found.bytes(), found.quantization().bytes([20, 96]));
    }
}

#[test]
fn scales_beyond_float16_are_right_and_change_no_other_block() {
    let (shape @ [rows, cols], block_size) = ([3, 37], 16);
    for format in FORMATS {
        let quantization = Quantization { format, block_size };
        let plain = values(3, rows * cols);
        let mut weights = plain.clone();
        // The second block of the second row.
        let large = cols + block_size..cols + 2 * block_size;
        weights[large.clone()].iter_mut().for_each(|w| *w *= 3e7);
        let (found, expected) =
            (QuantizedMatrix::new(&weights, shape, quantization), QuantizedMatrix::new(&plain, shape, quantization));
        assert!(found.bytes() > expected.bytes(), "{format:?}");
        for (at, (found, expected)) in found.values().iter().zip(expected.values()).enumerate() {
            match large.contains(&at) {
                true => assert!(
                    (found - 3e7 * expected).abs() <= 3e7 * 0.25,
                    "{format:?}: {found}, expected {expected} * 3e7"
                ),
                false => assert_eq!(*found, expected, "{format:?}"),
            }
        }
    }
}

#[test]
fn small_values_lose_no_more_than_float16_has_no_digits_for() {
    for (size, step) in [(1e-5, 0.0), (1e-7, 0.0), (1e-20, 0.0), (2.0, 1e-4)] {
        for format in FORMATS {
            // The last are near to each other and far from zero.
            let weights: Vec<f32> =
                values(4, 7 * 33).iter().map(|w| if step > 0.0 { size + step * w } else { size * w }).collect();
            let found = QuantizedMatrix::new(&weights, [7, 33], Quantization { format, block_size: 16 }).values();
            for (block, found) in
                weights.chunks(33).flat_map(|row| row.chunks(16)).zip(found.chunks(33).flat_map(|row| row.chunks(16)))
            {
                let [low, high] = [f32::min, f32::max].map(|of| block.iter().copied().reduce(of).unwrap());
                let largest = low.abs().max(high.abs());
                // Half of the largest distance between codes, and digits that a scale or a least
                // value does not have.
                let allowed = match format {
                    CodeFormat::Int8 => largest / 254.0 * 1.08,
                    CodeFormat::Nf4 => largest * 0.153,
                    CodeFormat::Int4 => (high - low + largest / 512.0) / 30.0 * 1.01,
                };
                for (w, found) in block.iter().zip(found) {
                    assert!((w - found).abs() <= allowed + 6e-8, "{format:?}: {w} became {found}, of {low} to {high}");
                }
            }
        }
    }
}

#[test]
fn rows_and_blocks_of_columns_are_quantised_by_themselves() {
    let [inputs, outputs, block_size] = [96, 7, 16];
    let weights = values(5, inputs * outputs);
    for format in FORMATS {
        let quantization = Quantization { format, block_size };
        let whole = QuantizedMatrix::new(&weights, [outputs, inputs], quantization).values();
        let rows = QuantizedMatrix::new(&weights[2 * inputs..5 * inputs], [3, inputs], quantization);
        assert_eq!(rows.values(), whole[2 * inputs..5 * inputs]);
        let part =
            |values: &[f32]| -> Vec<f32> { values.chunks(inputs).flat_map(|row| &row[32..80]).copied().collect() };
        let columns = QuantizedMatrix::new(&part(&weights), [outputs, 48], quantization);
        assert_eq!(columns.values(), part(&whole));
    }
}

#[test]
fn sizes_are_those_of_codes_and_scales() {
    let size = |format, shape| {
        QuantizedMatrix::new(&[0.5; 6 * 70][..shape], [1, shape], Quantization { format, block_size: 64 }).bytes()
    };
    assert_eq!(size(CodeFormat::Nf4, 64), 32 + 2);
    assert_eq!(size(CodeFormat::Nf4, 65), 33 + 4);
    assert_eq!(size(CodeFormat::Int8, 420), 420 + 7 * 2);
    assert_eq!(size(CodeFormat::Int4, 70), 35 + 2 * 4);
}

#[test]
fn products_and_gradients_agree_with_float64() {
    for shape in SHAPES {
        let [n, inputs, outputs, _] = shape;
        for format in FORMATS {
            let matrix = Arc::new(quantized(format, shape));
            let weight = LinearWeight::Quantized(Arc::clone(&matrix));
            type Product = fn(Tensor<2>, &LinearWeight, Option<Tensor<1>>, Option<Tensor<2>>) -> Tensor<2>;
            let run = |t: &[Tensor<1>], product: Product| {
                let y_no = product(
                    t[0].clone().reshape([n, inputs]),
                    &weight,
                    Some(t[1].clone()),
                    Some(t[2].clone().reshape([n, outputs])),
                );
                y_no.reshape([n * outputs])
            };
            Case {
                name: &format!("{format:?} {shape:?}"),
                inputs: vec![values(1, n * inputs), values(2, outputs), values(3, n * outputs)],
                fast: &|t| run(t, linear_weighted),
                reference: &|t| run(t, reference),
                plain: &|v| {
                    let y = plain::linear(&v[0], &wide(&matrix.values()), Some(&v[1]), inputs);
                    y.iter().zip(&v[2]).map(|(y, residual)| y + residual).collect()
                },
            }
            .check();
        }
    }
}

/// A branch of some outputs of a layer, from flat tensors.
fn sum_of(t: &[Tensor<1>], [inputs, outputs]: [usize; 2], factors_o: Option<Tensor<1>>) -> LowRankSum {
    let (rank, half) = (3, outputs / 2);
    let branch = LowRank {
        a_ri: t[1].clone().reshape([rank, inputs]),
        b_pr: t[2].clone().reshape([half, rank]),
        scale: 0.7,
        outputs: std::iter::once(1..1 + half).collect(),
    };
    LowRankSum { branches: vec![branch], factors_o }
}

#[test]
fn branches_and_factors_stand_beside_a_quantised_weight() {
    for shape in SHAPES {
        let [n, inputs, outputs, _] = shape;
        let matrix = Arc::new(quantized(CodeFormat::Nf4, shape));
        let half = outputs / 2;
        let given = vec![
            values(1, n * inputs),
            values(2, 3 * inputs),
            values(3, half * 3),
            values(4, outputs),
            values(5, outputs),
            values(6, n * outputs),
        ];
        let run = |t: &[Tensor<1>], is_fused: bool| {
            let x_ni = t[0].clone().reshape([n, inputs]);
            let residual = Some(t[5].clone().reshape([n, outputs]));
            let (bias, sum) = (Some(t[4].clone()), sum_of(t, [inputs, outputs], Some(t[3].clone())));
            let weight = LinearWeight::Quantized(Arc::clone(&matrix));
            let y_no = match is_fused {
                true => linear_low_rank(x_ni, weight, bias, sum, residual),
                false => low_rank(x_ni, weight, bias, sum, residual),
            };
            y_no.reshape([n * outputs])
        };
        Case {
            name: &format!("branches {shape:?}"),
            inputs: given.clone(),
            fast: &|t| run(t, true),
            reference: &|t| run(t, false),
            plain: &|v| {
                let mut z = plain::linear(&v[0], &wide(&matrix.values()), None, inputs);
                let u = plain::linear(&v[0], &v[1], None, inputs);
                let added = plain::linear(&u, &v[2], None, 3);
                for (row, added) in z.chunks_mut(outputs).zip(added.chunks(half)) {
                    row[1..].iter_mut().zip(added).for_each(|(z, added)| *z += 0.7 * added);
                }
                z.iter().enumerate().map(|(at, z)| v[5][at] + v[3][at % outputs] * z + v[4][at % outputs]).collect()
            },
        }
        .check();
        let t: Vec<Tensor<1>> = given.iter().map(|v| tensor(v, [v.len()], &Device::flex())).collect();
        let branches = sum_of(&t, [inputs, outputs], None).branches;
        let whole = tensor(&matrix.values(), [outputs, inputs], &Device::flex());
        let found = low_rank_row_squares(LinearWeight::Quantized(Arc::clone(&matrix)), &branches);
        assert_close("squares", &read(found), &wide(&read(low_rank_row_squares(whole, &branches))), 1e-6);
    }
}

#[test]
fn a_quantised_projection_gives_the_losses_of_its_values() {
    // The last shape has enough rows that gradients are computed in parts.
    for shape in [[7, 37, 13, 16], [11, 6, 131, 4], [3, 5, 9_001, 2]] {
        let [n, c, v, _] = shape;
        let (targets, mask): (Vec<i64>, Vec<f32>) =
            ((0..n).map(|i| (i * 7919 % v) as i64).collect(), (0..n).map(|i| [1.0, 0.0, 0.5][i % 3]).collect());
        for format in FORMATS {
            let matrix = Arc::new(quantized(format, shape));
            let options = CrossEntropyOptions { softcap: None, z_loss: Some(0.03) };
            let given = || (ints(&targets, [n]), tensor(&mask, [n], &Device::flex()));
            Case {
                name: &format!("loss {format:?} {shape:?}"),
                inputs: vec![values(1, n * c)],
                fast: &|t| {
                    let (targets, mask) = given();
                    let weight = LinearWeight::Quantized(Arc::clone(&matrix));
                    linear_cross_entropy(t[0].clone().reshape([n, c]), weight, targets, mask, &options)
                },
                reference: &|t| {
                    let (targets, mask) = given();
                    let weight_vc = tensor(&matrix.values(), [v, c], &t[0].device());
                    loss_reference(t[0].clone().reshape([n, c]), weight_vc, targets, mask, &options)
                },
                plain: &|x| {
                    let weight = wide(&matrix.values());
                    vec![plain::cross_entropy(
                        &x[0],
                        &weight,
                        &targets,
                        &wide(&mask),
                        c,
                        options.softcap,
                        options.z_loss,
                    )]
                },
            }
            .check();
        }
    }
}

#[test]
fn rows_of_a_quantised_table_are_those_of_its_values() {
    let shape @ [_, c, v, _] = [0, 37, 13, 16];
    for format in FORMATS {
        let matrix = Arc::new(quantized(format, shape));
        let ids = [12, 0, 5, 5, 7, 1];
        let found = embedding(LinearWeight::Quantized(Arc::clone(&matrix)), ints(&ids, [2, 3]));
        assert_eq!(found.dims(), [2, 3, c]);
        let all = matrix.values();
        let expected: Vec<f32> = ids.iter().flat_map(|id| &all[*id as usize * c..][..c]).copied().collect();
        assert_eq!(read(found), expected, "{format:?}, {v} rows");
    }
}

#[test]
#[should_panic(expected = "token id 13 at position 1 is not in 0..13, the vocabulary")]
fn a_token_outside_a_quantised_table_is_named() {
    let matrix = quantized(CodeFormat::Int8, [0, 37, 13, 16]);
    embedding(LinearWeight::Quantized(Arc::new(matrix)), ints(&[0, 13], [1, 2]));
}

#[test]
fn the_same_bits_on_any_number_of_threads() {
    let [n, inputs, outputs] = [67, 331, 389];
    for format in FORMATS {
        let matrix = quantized(format, [n, inputs, outputs, 32]);
        let weight = LinearWeight::Quantized(Arc::new(matrix));
        let given = [values(1, n * inputs), values(2, outputs)];
        assert_same_on_any_threads("quantised", || {
            run_all(&given, |t| {
                let y_no = linear_weighted(t[0].clone().reshape([n, inputs]), &weight, Some(t[1].clone()), None);
                y_no.reshape([n * outputs])
            })
        });
    }
}
