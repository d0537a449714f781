//! Storage of 16 bits: arithmetic in float32, rounded once. Only the dtypes that the device has are
//! tried; they are printed.

use bridge_kernels::cross_entropy::CrossEntropyOptions;
use bridge_kernels::rotary::{Positions, RotaryPairing, RotaryTable};
use bridge_kernels::{
    Activation, AttentionOptions, GroupedLinear, ScanInputs, ScanOptions, activation, attention, causal_conv,
    cross_entropy, gated_norm, grouped, norm, rotary, ssd_scan,
};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::common::{assert_close, device, ints, read, tensor, values};
use crate::cublaslt::{Element, StandIn};

/// The 16-bit dtypes that the device has, each with half a unit in its last place, relative.
pub fn dtypes() -> Vec<(FloatDType, f32)> {
    let all = [(FloatDType::F16, 1.0 / 2048.0), (FloatDType::BF16, 1.0 / 256.0)];
    let (found, missing): (Vec<_>, Vec<_>) = all.into_iter().partition(|(dtype, _)| device().supports_dtype(*dtype));
    println!("16-bit dtypes of this device: {found:?}; not tried: {missing:?}");
    assert!(!found.is_empty(), "this device has no 16-bit dtype to try");
    found
}

/// Fails unless every element is within one rounding of the result with wide storage for the same
/// (rounded) inputs.
fn assert_rounded_once<const D: usize>(name: &str, narrow: Tensor<D>, wide: Tensor<D>, half_ulp: f32) {
    let dtype = narrow.dtype();
    for (i, (narrow, wide)) in read(narrow.cast(FloatDType::F32)).iter().zip(read(wide)).enumerate() {
        let bound = wide.abs() * half_ulp * 1.01 + 1e-6;
        assert!((narrow - wide).abs() <= bound, "{name}: element {i}: {narrow} is not {wide} rounded to {dtype:?}");
    }
}

/// Values rounded to `dtype`, in it and in float32.
fn both<const D: usize>(seed: u64, shape: [usize; D], dtype: FloatDType) -> [Tensor<D>; 2] {
    let narrow = tensor(&values(seed, shape.iter().product()), shape, &device()).cast(dtype);
    [narrow.clone(), narrow.cast(FloatDType::F32)]
}

/// Output and input gradient of `operation`, in both widths.
fn check<const D: usize, const E: usize>(name: &str, shape: [usize; D], operation: impl Fn(&Tensor<D>) -> Tensor<E>) {
    for (dtype, half_ulp) in dtypes() {
        let run = |x: Tensor<D>| {
            let x = x.autodiff().require_grad();
            let y = operation(&x);
            // A factor that 16 bits can hold.
            let gradients = (y.clone() * 0.5).sum().backward();
            (y.without_autodiff(), x.grad(&gradients).expect("it is tracked"))
        };
        let [narrow, wide] = both(1, shape, dtype).map(run);
        assert_rounded_once(&format!("{name}: output"), narrow.0, wide.0, half_ulp);
        assert_rounded_once(&format!("{name}: gradient"), narrow.1, wide.1, half_ulp);
    }
}

#[test]
fn operations_round_once() {
    for kind in [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::SquaredRelu] {
        check(&format!("{kind:?}"), [601], |x| activation::cube::activation(x, kind).expect("it applies"));
        check(&format!("gated {kind:?}"), [3, 5, 14], |x| activation::cube::glu(x, kind).expect("it applies"));
    }
    let table = RotaryTable::new(&[1.0, 0.1, 0.013], 17, RotaryPairing::Halves, &device());
    check("rotary", [2, 5, 3, 7], |x| rotary::cube::apply_rotary(x, &table, &Positions::From(3)).expect("it applies"));
    // A weight may be wider than the input, and keeps its own dtype.
    let weight = tensor(&values(2, 13), [13], &device());
    let bias = tensor(&values(3, 13), [13], &device());
    check("rms_norm", [7, 13], |x| norm::cube::rms_norm(x, &weight, 1e-5).expect("it applies"));
    check("layer_norm", [7, 13], |x| norm::cube::layer_norm(x, &weight, Some(&bias), 1e-5).expect("it applies"));
}

/// Values that 16 bits can hold, in the dtype of `like`.
fn exact<const D: usize, const E: usize>(seed: u64, shape: [usize; D], like: &Tensor<E>) -> Tensor<D> {
    let eighths: Vec<f32> = values(seed, shape.iter().product()).iter().map(|v| (v * 8.0).round() / 8.0).collect();
    tensor(&eighths, shape, &device()).cast(FloatDType::from(like.dtype()))
}

#[test]
fn operations_on_sequences_round_once() {
    let (weight, bias) = (tensor(&values(2, 5 * 4), [5, 4], &device()), tensor(&values(3, 5), [5], &device()));
    check("causal_conv", [2, 9, 5], |x| {
        causal_conv::cube::causal_conv(x, &weight, Some(&bias), None).expect("it applies")
    });
    check("gated_rms_norm", [2, 7, 5], |x| {
        gated_norm::cube::gated_rms_norm(x, &exact(4, [2, 7, 5], x), &bias, 1, 1e-5).expect("it applies")
    });
    // Two heads of three channels, a group, states of four.
    let options =
        ScanOptions { head_size: 3, groups: 1, state_size: 4, chunk_size: 5, time_steps: [0.0, f32::INFINITY] };
    check("ssd_scan", [1, 13, 14], |x| {
        let vector = |seed| tensor(&values(seed, 2), [2], &device());
        let inputs = ScanInputs {
            xbc_btf: x.clone(),
            dt_bth: exact(5, [1, 13, 2], x),
            a_log_h: vector(6),
            dt_bias_h: vector(7),
            d_h: vector(8),
            document_ids: None,
        };
        ssd_scan::cube::ssd_scan(&inputs, &options).expect("it applies")
    });
}

#[test]
fn attention_rounds_its_output_once() {
    let run = |x: Tensor<4>| {
        let x = x.autodiff().require_grad();
        let (k, v) = (exact(2, [1, 19, 1, 5], &x), exact(3, [1, 19, 1, 7], &x));
        let out = attention::cube::attention(&x, &k, &v, &AttentionOptions::causal(5)).expect("it applies");
        let gradients = (out.clone() * 0.5).sum().backward();
        (out.without_autodiff(), x.grad(&gradients).expect("it is tracked"))
    };
    for (dtype, half_ulp) in dtypes() {
        let [narrow, wide] = both(1, [1, 19, 2, 5], dtype).map(run);
        assert_rounded_once("attention: output", narrow.0, wide.0, half_ulp);
        // Means of gradients come from the rounded output.
        let (found, expected) = (read(narrow.1.cast(FloatDType::F32)), read(wide.1));
        assert_close("attention: gradient of queries", &found, &expected, 4.0 * f64::from(half_ulp));
    }
}

/// A table writes scores, and gradients of probabilities, in float32, so that probabilities,
/// gradients of scores and results alone are rounded.
#[test]
fn attention_by_a_table_does_not_round_scores() {
    let (b, t, h, d) = (1, 140, 4, 16);
    let options = AttentionOptions { scale: 1.0, ..AttentionOptions::causal(d) };
    for (dtype, half_ulp) in dtypes() {
        let table = StandIn::default();
        let run = |x: Tensor<4>, form: &dyn Fn([&Tensor<4>; 3]) -> Option<Tensor<4>>| {
            let x = x.autodiff().require_grad();
            let [k, v] = [2, 3].map(|seed| exact(seed, [b, t, 2, d], &x).autodiff().require_grad());
            let out = form([&x, &k, &v]).expect("it applies");
            let gradients = (out.clone() * 0.5).sum().backward();
            let gradient = |x: Tensor<4>| read(x.grad(&gradients).expect("it is tracked").cast(FloatDType::F32));
            [read(out.cast(FloatDType::F32)), gradient(x), gradient(k), gradient(v)]
        };
        let [narrow, wide] = both(1, [b, t, h, d], dtype);
        let expected = run(wide, &|[q, k, v]| attention::cube::attention(q, k, v, &options));
        for bytes in [1, 1 << 24] {
            let found = run(narrow.clone(), &|heads| {
                attention::cube_products::attention_by_table(&table, heads, &options, bytes)
            });
            let names = ["output", "gradient of queries", "gradient of keys", "gradient of values"];
            for (name, (found, expected)) in names.iter().zip(found.iter().zip(&expected)) {
                assert_close(&format!("{dtype:?}: {name}"), found, expected, 1.5 * f64::from(half_ulp));
            }
            // Scores of a part, and the gradients of its probabilities.
            let wide = table.ran().into_iter().filter(|product| product.d.element == Element::F32);
            assert!(wide.filter(|product| product.k == d).count() >= 3);
        }
    }
}

#[test]
fn attention_by_products_rounds_scores_too() {
    let (b, t, h, d) = (1, 300, 4, 16);
    let options = AttentionOptions::causal(d);
    for (dtype, half_ulp) in dtypes() {
        let run = |x: Tensor<4>, by_products: bool| {
            let x = x.autodiff().require_grad();
            let (k, v) = (exact(2, [b, t, 2, d], &x), exact(3, [b, t, 2, d], &x));
            let out = match by_products {
                true => attention::cube_products::attention(&x, &k, &v, &options).expect("it applies"),
                false => attention::cube::attention(&x, &k, &v, &options).expect("it applies"),
            };
            let on_units = attention::matrix_units::attention(&x, &k, &v, &options, None);
            if by_products && x.dtype() != DType::F32 && on_units.is_none() {
                let public = attention::attention(x.clone(), k, v, &options);
                assert_eq!(read(public.cast(FloatDType::F32)), read(out.clone().cast(FloatDType::F32)));
            }
            let gradients = (out.clone() * 0.5).sum().backward();
            let gradient = x.grad(&gradients).expect("it is tracked");
            [read(out.cast(FloatDType::F32)), read(gradient.cast(FloatDType::F32))]
        };
        let [narrow, wide] = both(1, [b, t, h, d], dtype);
        let (found, expected) = (run(narrow, true), run(wide, false));
        for (name, (found, expected)) in ["output", "gradient of queries"].iter().zip(found.iter().zip(&expected)) {
            assert_close(&format!("{dtype:?}: {name}"), found, expected, 6.0 * f64::from(half_ulp));
        }
    }
}

/// Probabilities and gradients of scores are rounded before products; sums are not. Tests emulated
/// units on all devices, and a device's own units.
#[test]
fn matrix_units_round_factors() {
    for (t, d, columns) in [(130, 16, Some(64)), (75, 32, Some(32)), (130, 64, None), (75, 96, None), (200, 128, None)]
    {
        let options = AttentionOptions::causal(d);
        for (dtype, half_ulp) in dtypes() {
            let run = |all: [Tensor<4>; 3], is_reference: bool| {
                let [q, k, v] = all.map(|x| x.autodiff().require_grad());
                let out = match is_reference {
                    false => attention::matrix_units::attention(&q, &k, &v, &options, columns)?,
                    true => attention::cube::attention(&q, &k, &v, &options).expect("it applies"),
                };
                let gradients = (out.clone() * 0.5).sum().backward();
                let of_inputs = [q, k, v].map(|x| x.grad(&gradients).expect("it is tracked"));
                Some([vec![out.without_autodiff()], of_inputs.into()].concat())
            };
            let inputs = [(1, 4), (2, 2), (3, 2)].map(|(seed, heads)| both(seed, [1, t, heads, d], dtype));
            let Some(found) = run(inputs.each_ref().map(|[narrow, _]| narrow.clone()), false) else {
                assert!(columns.is_none(), "emulated units apply everywhere");
                println!("no matrix units for {dtype:?}");
                continue;
            };
            let expected = run(inputs.map(|[_, wide]| wide), true).expect("it applies");
            for (i, (found, expected)) in found.into_iter().zip(expected).enumerate() {
                let name = format!("{dtype:?}, heads of {d}: {}", ["output", "queries", "keys", "values"][i]);
                let found = read(found.cast(FloatDType::F32));
                assert_close(&name, &found, &read(expected), 3.0 * f64::from(half_ulp));
            }
        }
    }
}

/// If all values are equal, scores have no gradient, with any rounding of the gradients of
/// probabilities.
#[test]
fn what_all_keys_have_in_common_has_no_gradient() {
    let (t, h, d) = (260, 2, 16);
    for (dtype, _) in dtypes() {
        let [q, k] = [1, 2].map(|seed| tensor::<4>(&values(seed, t * h * d), [1, t, h, d], &device()).cast(dtype));
        let row: Vec<f32> = values(3, d).iter().map(|x| x + 1.0).collect();
        let v = tensor::<4>(&row.repeat(t * h), [1, t, h, d], &device()).cast(dtype);
        let q = q.autodiff().require_grad();
        let [k, v] = [k, v].map(Tensor::autodiff);
        let options = AttentionOptions::causal(d);
        let by_table =
            attention::cube_products::attention_by_table(&StandIn::default(), [&q, &k, &v], &options, 1 << 24);
        for out in [attention::cube_products::attention(&q, &k, &v, &options), by_table] {
            let gradients = (out.expect("it applies") * 1.003).sum().backward();
            let gradient = read(q.grad(&gradients).expect("it is tracked").cast(FloatDType::F32));
            let largest = gradient.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            assert!(largest < 1e-4, "{dtype:?}: {largest}");
        }
    }
}

#[test]
fn experts_take_products_of_16_bits() {
    for (dtype, half_ulp) in dtypes() {
        let run = |x: Tensor<2>| {
            let weight = |seed| exact(seed, [5, 7], &x);
            let bias = |seed| exact(seed, [5], &x);
            let layer = GroupedLinear { weights_oi: vec![weight(2), weight(3)], biases_o: vec![bias(4), bias(5)] };
            read(grouped::cube::grouped_linear(&x, &[2, 3], &layer).expect("it applies").cast(FloatDType::F32))
        };
        let [narrow, wide] = both(1, [5, 7], dtype).map(run);
        assert_close("grouped_linear", &narrow, &wide, 2.0 * f64::from(half_ulp));
    }
}

#[test]
fn cross_entropy_in_bfloat16_sums_in_float32() {
    let (n, c, v) = (7, 5, 11);
    for (dtype, _) in dtypes() {
        let loss = |[x, weight]: [Tensor<2>; 2]| {
            let targets = ints(&[0, 3, 10, 1, 2, 9, 5], [n], &device());
            let mask = tensor(&[1.0; 7], [n], &device());
            cross_entropy::cube::linear_cross_entropy(
                &x,
                &weight,
                &targets,
                &mask,
                &CrossEntropyOptions::default(),
                None,
            )
        };
        let ([x, wide_x], [weight, wide_weight]) = (both(1, [n, c], dtype), both(2, [v, c], dtype));
        match loss([x, weight]) {
            Some(narrow) => {
                assert_eq!(narrow.dtype(), DType::F32, "the loss is not rounded to 16 bits");
                let wide = read(loss([wide_x, wide_weight]).expect("it applies to float32"))[0];
                // Logits are rounded, as those of the product alone are; seven of them make up the
                // loss.
                assert!((read(narrow)[0] - wide).abs() <= 7.0 * 4.0 / 256.0);
            }
            None => assert_eq!(dtype, FloatDType::F16, "float16 is left to the reference"),
        }
    }
}
