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
/// Rows, inputs, outputs and the block size: odd numbers of inputs, last blocks in part, several tiles, blocks longer than a row.
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
                    CodeFormat::Int8 => (-127..=127).map(|code| f64::from(code) / 127.0 * largest).collect(),
                    CodeFormat::Nf4 => NF4.iter().map(|share| f64::from(*share) * largest).collect(),
                    CodeFormat::Int4 => (0..16).map(|code| low + f64::from(code) / 15.0 * (high - low)).collect(),
                }
            };
            let found = quantized(format, shape).values();
            for (row, found) in weights.chunks(inputs).zip(found.chunks(inputs)) {
                for (block, found) in row.chunks(block_size).zip(found.chunks(block_size)) {
                    let of_code = of_block(&wide(block));
                    for (w, found) in wide(block).into_iter().zip(wide(found)) {
                        let errors = of_code.iter().map(|value| (value - w).abs());
                        let least = errors.fold(f64::INFINITY, f64::min);
                        assert!((found - w).abs() <= least + 1e-5, "{format:?}: {w} became {found}");
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
        assert!((found[6] - 0.5).abs() < 1e-6 && (found[7] + 0.25).abs() < 0.06, "{format:?}: {found:?}");
        let empty = QuantizedMatrix::new(&[], [0, 4], quantization);
        assert!(empty.values().is_empty() && empty.bytes() == 0);
    }
}

#[test]
fn what_was_quantised_is_quantised_without_a_loss() {
    for shape in SHAPES {
        let once = quantized(CodeFormat::Nf4, shape);
        assert_eq!(QuantizedMatrix::new(&once.values(), once.shape(), once.quantization()), once);
    }
}

#[test]
fn values_that_are_evenly_apart_are_what_they_were() {
    // As files of 4 bits have them: a least value and steps, for each block.
    let block = |least: f32, step: f32| (0..32_u8).map(move |at| least + step * f32::from(at * 7 % 16));
    let weights: Vec<f32> =
        [(-0.3, 0.05), (1.25, 0.5), (0.0, 0.0), (-2.0, 0.125)].into_iter().flat_map(|(l, s)| block(l, s)).collect();
    let quantization = Quantization { format: CodeFormat::Int4, block_size: 32 };
    let found = QuantizedMatrix::new(&weights, [2, 64], quantization).values();
    assert!(found.iter().zip(&weights).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1.0)), "{found:?}");
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
    assert_eq!(size(CodeFormat::Nf4, 64), 32 + 4);
    assert_eq!(size(CodeFormat::Nf4, 65), 33 + 8);
    assert_eq!(size(CodeFormat::Int8, 420), 420 + 7 * 4);
    assert_eq!(size(CodeFormat::Int4, 70), 35 + 2 * 8);
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
    // The last has so many rows that gradients are made in parts.
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
                    let options = (options.softcap, options.z_loss);
                    vec![plain::cross_entropy(&x[0], &weight, (&targets, &wide(&mask)), c, options)]
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
