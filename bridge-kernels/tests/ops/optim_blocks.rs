//! AdamW with moments in 8 and 4 bits by blocks: against torchao, and the fused form against its
//! parts.

use bridge_kernels::optim::{
    AdamW, AdamWState, BlockCode, Format, LowPrecisionAdamW, LowPrecisionFormats, MasterFormat, Stored, UpdateStep,
    adamw, adamw_low_precision, adamw_low_precision_reference,
};
use burn::tensor::{Device, FloatDType};

use crate::common::{assert_same_on_any_threads, read, values};
use crate::optim::{flat, rule, step};

const EIGHT: [BlockCode; 2] = [BlockCode::Signed8, BlockCode::Unsigned8];
const FOUR: [BlockCode; 2] = [BlockCode::Signed4, BlockCode::Unsigned4];

fn formats(codes: [BlockCode; 2]) -> LowPrecisionFormats {
    LowPrecisionFormats { master: MasterFormat::Float32, moments: codes.map(Format::Blocks) }
}

fn start(parameter: &[f32], codes: [BlockCode; 2]) -> LowPrecisionAdamW {
    let zeros = |code| Stored::zeros(parameter.len(), Format::Blocks(code), &Device::flex());
    LowPrecisionAdamW { parameter: flat(parameter), master: None, moments: codes.map(zeros) }
}

/// Parameters after steps of `torchao.optim` 0.18 with blocks of 256 (`single_param_adam`), each
/// 97th of 4096.
#[test]
fn steps_agree_with_torchao() {
    let file = include_str!("../fixtures/blocks.txt");
    let rule = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, decoupled: true };
    for (codes, name) in [(EIGHT, "adamw_8bit"), (FOUR, "adamw_4bit")] {
        let parameter: Vec<f32> = (0..4096).map(|i| (i * 31 % 997 - 498) as f32 / 4096.0).collect();
        let mut state = start(&parameter, codes);
        for number in 1..=8_i32 {
            let gradient = |i: i32| ((i * 17 + number * number * 29) % 1013 - 506) as f32 / 1024.0;
            let gradient: Vec<f32> = (0..4096).map(|i| gradient(i) * 2_f32.powi(-(i / 64 % 7))).collect();
            let step = UpdateStep {
                learning_rate: 0.01,
                weight_decay: 0.1,
                eps_mult: 1.0,
                number: number as u64,
                gradient_scale: 1.0,
                shape: &[],
            };
            state = adamw_low_precision(state, flat(&gradient), &rule, &step, &formats(codes), [1.0; 3]);
            let prefix = format!("{name}.step_{number} ");
            let Some(line) = file.lines().find_map(|line| line.strip_prefix(&prefix)) else { continue };
            let expected: Vec<f32> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
            let found: Vec<f32> = read(state.parameter.clone()).into_iter().step_by(97).collect();
            assert_eq!(found.len(), expected.len());
            let mut far = 0;
            for (found, expected) in found.iter().zip(&expected) {
                // A moment midway between two codes may be rounded to the other one.
                let error = (found - expected).abs();
                assert!(error < 0.02 * 0.01 * number as f32, "{name}, step {number}: {found}, expected {expected}");
                far += usize::from(error > 1e-5 * expected.abs().max(0.01));
            }
            assert!(far <= 1, "{name}, step {number}: {far} of {} are far", found.len());
        }
    }
}

/// The fused form widens, updates and rounds as its parts do, to the bit.
#[test]
fn the_fused_form_is_its_parts() {
    for (n, codes) in [(1, EIGHT), (829, FOUR), (70_003, EIGHT), (33_013, FOUR)] {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let mut fused = start(&values(1, n), codes);
            fused.parameter = fused.parameter.cast(dtype);
            let mut reference = fused.clone();
            let moments = fused.moments.each_ref().map(|moment| moment.widen(&Device::flex()));
            let [exp_avg, exp_avg_sq] = moments;
            let parameter = fused.parameter.clone().cast(FloatDType::F32);
            let mut parts = AdamWState { parameter, exp_avg, exp_avg_sq };
            for number in 1..=3 {
                let (gradient, step) = (flat(&values(10 + number, n)), step(number));
                let formats = formats(codes);
                fused = adamw_low_precision(fused, gradient.clone(), &rule(true), &step, &formats, [1.0; 3]);
                let by_reference =
                    adamw_low_precision_reference(reference, gradient.clone(), &rule(true), &step, &formats, [1.0; 3]);
                reference = by_reference;
                parts = adamw(parts, gradient, &rule(true), &step);
                let rounded = |x, code| Stored::narrow(x, Format::Blocks(code), 1.0).widen(&Device::flex());
                parts.exp_avg = rounded(parts.exp_avg, codes[0]);
                parts.exp_avg_sq = rounded(parts.exp_avg_sq, codes[1]);
                assert_eq!(read(fused.parameter.clone()), read(parts.parameter.clone().cast(dtype)), "{n} {dtype:?}");
                for (moment, expected) in fused.moments.iter().zip([&parts.exp_avg, &parts.exp_avg_sq]) {
                    assert_eq!(read(moment.widen(&Device::flex())), read(expected.clone()), "{n} {dtype:?}");
                }
                let near = read(reference.parameter.clone()).into_iter().zip(read(fused.parameter.clone()));
                let far = near.filter(|(a, b)| (a - b).abs() > 1e-2 * b.abs().max(0.1)).count();
                assert!(far * 1000 <= n, "{n} {dtype:?}: {far} parameters are far from the reference");
            }
            let blocks = n.div_ceil(256) as u64 * 4;
            let bytes = codes.map(|code| code.bytes(n) as u64 + blocks);
            assert_eq!(fused.moments.each_ref().map(Stored::bytes), bytes);
        }
    }
}

#[test]
fn moments_take_two_bytes_or_one() {
    let bytes = |codes: [BlockCode; 2]| codes.map(|code| Format::Blocks(code).bytes()).iter().sum::<f64>();
    assert_eq!((bytes(EIGHT), bytes(FOUR)), (2.0 + 8.0 / 256.0, 1.0 + 8.0 / 256.0));
}

#[test]
fn the_same_on_any_number_of_threads() {
    assert_same_on_any_threads("blocks", || {
        let mut state = start(&values(1, 100_003), EIGHT);
        for number in 1..=2 {
            let gradient = flat(&values(number, 100_003));
            state = adamw_low_precision(state, gradient, &rule(true), &step(number), &formats(EIGHT), [1.0; 3]);
        }
        let moments = state.moments.each_ref().map(|moment| read(moment.widen(&Device::flex())));
        [vec![read(state.parameter)], moments.to_vec()].concat()
    });
}
