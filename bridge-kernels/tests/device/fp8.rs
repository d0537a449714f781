//! Products of 8-bit operands: the form of plain operations, which devices take, casts to the same
//! values as the one on the CPU, and so do the kernels before the products of a table.

use std::ops::Range;
use std::sync::Arc;

use bridge_kernels::fp8::{fp8_linear_by_table, reference};
use bridge_kernels::{CodePlaces, Fp8Format, Fp8Pass, Fp8Rule, Fp8Scaling, OperandMaxima, WeightCast, fp8_linear};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::common::{Case, assert_close, device, read, tensor, values};
use crate::cublaslt::{ColumnMajor, StandIn};
use crate::half::dtypes;

/// Rules with one scale for each operand.
const RULES: [Fp8Rule; 4] = [
    Fp8Rule { gradient: Fp8Format::E5M2, scaling: Fp8Scaling::Current, weight_gradient: true },
    Fp8Rule { gradient: Fp8Format::E4M3, scaling: Fp8Scaling::Current, weight_gradient: false },
    Fp8Rule { gradient: Fp8Format::E5M2, scaling: Fp8Scaling::Delayed, weight_gradient: true },
    Fp8Rule { gradient: Fp8Format::E4M3, scaling: Fp8Scaling::Delayed, weight_gradient: true },
];

/// A pass whose scales, of input, weight and gradient, are on a device.
fn pass(rule: Fp8Rule, device: &Device) -> Fp8Pass {
    let scales = || Tensor::from_data([96.0_f32, 90.0, 3000.0], &device.clone().without_autodiff());
    Fp8Pass { rule, scales: (rule.scaling == Fp8Scaling::Delayed).then(scales), maxima: None }
}

#[test]
fn outputs_and_gradients() {
    for (scaling, gradient, weight_gradient) in [
        (Fp8Scaling::Current, Fp8Format::E5M2, true),
        (Fp8Scaling::Delayed, Fp8Format::E4M3, false),
        (Fp8Scaling::Microscaling, Fp8Format::E4M3, true),
        (Fp8Scaling::Blockwise, Fp8Format::E5M2, true),
    ] {
        let rule = Fp8Rule { gradient, scaling, weight_gradient };
        for [n, i, o] in [[1, 3, 2], [37, 130, 65]] {
            let shaped = |x: &[Tensor<1>]| -> (Tensor<2>, Tensor<2>, Option<Tensor<1>>) {
                (x[0].clone().reshape([n, i]), x[1].clone().reshape([o, i]), Some(x[2].clone()))
            };
            Case {
                name: &format!("{scaling:?} of {n} x {i} x {o}"),
                inputs: vec![values(1, n * i), values(2, o * i), values(3, o)],
                fused: &|x, device| {
                    let (x, weight, bias) = shaped(x);
                    fp8_linear(x, weight, bias, &pass(rule, device)).reshape([n * o])
                },
                reference: &|x, device| {
                    let (x, weight, bias) = shaped(x);
                    reference(x, weight, bias, &pass(rule, device)).reshape([n * o])
                },
            }
            .check();
        }
    }
}

/// Sizes that are not multiples of the code alignment, one row, and several cubes that compute the
/// largest magnitude.
fn check_table(table: &StandIn, has_bias: bool, [n, i, o]: [usize; 3], rule: Fp8Rule) {
    let shaped = |x: &[Tensor<1>]| -> (Tensor<3>, Tensor<2>, Option<Tensor<1>>) {
        (x[0].clone().reshape([1, n, i]), x[1].clone().reshape([o, i]), x.get(2).cloned())
    };
    let mut inputs = vec![values(1, n * i), values(2, o * i)];
    inputs.extend(has_bias.then(|| values(3, o)));
    Case {
        name: &format!("{rule:?} of {n} x {i} x {o} by a table"),
        inputs,
        fused: &|x, device| {
            let ((x, weight, bias), pass) = (shaped(x), pass(rule, device));
            fp8_linear_by_table(table, &x, &weight, bias.as_ref(), &pass).expect("it applies").reshape([n * o])
        },
        reference: &|x, device| {
            let (x, weight, bias) = shaped(x);
            reference(x, weight, bias, &pass(rule, device)).reshape([n * o])
        },
    }
    .check();
}

#[test]
fn products_of_a_table() {
    for (place, rule) in RULES.into_iter().enumerate() {
        let table = StandIn::default();
        for sizes in [[1, 3, 2], [37, 130, 65], [48, 16, 32]] {
            check_table(&table, place % 2 == 0, sizes, rule);
        }
        let of_codes = |product: &&ColumnMajor| product.a.element.is_code();
        let ran = table.ran();
        assert_eq!(ran.iter().all(|product| of_codes(&product)), rule.weight_gradient, "{rule:?}");
        assert!(ran.iter().any(|product| product.k.is_multiple_of(16)));
    }
}

/// Refused products of backward; without a product for the output there is no layer.
#[test]
fn products_that_a_table_refuses() {
    let (n, i, o) = (37, 130, 65);
    for rule in [RULES[0], RULES[1], RULES[3]] {
        check_table(&StandIn::without(|product| product.k != 144), true, [n, i, o], rule);
    }
    let (x, weight) = (tensor(&values(1, n * i), [n, i], &device()), tensor(&values(2, o * i), [o, i], &device()));
    let layer = |table: &StandIn, rule| fp8_linear_by_table(table, &x, &weight, None, &pass(rule, &device()));
    assert!(layer(&StandIn::without(|_| true), RULES[0]).is_none());
    // Without the product nothing is cast or recorded.
    let maxima = Arc::new(OperandMaxima::default());
    let watched = Fp8Pass { maxima: Some(Arc::clone(&maxima)), ..pass(RULES[2], &device()) };
    let with = |table: &StandIn| fp8_linear_by_table(table, &x, &weight, None, &watched);
    assert!(with(&StandIn::without(|_| true)).is_none());
    assert_eq!(OperandMaxima::take_all([maxima.as_ref()]), [[0.0; 3]]);
    // Nor does it change an output who notes magnitudes.
    let plain = layer(&StandIn::default(), RULES[2]).map(read);
    assert_eq!(with(&StandIn::default()).map(read), plain);
    let blocks = Fp8Rule { scaling: Fp8Scaling::Blockwise, ..RULES[0] };
    assert!(layer(&StandIn::default(), blocks).is_none(), "blocks have scales of their own");
}

/// Sums, and the bias, are float32: outputs and gradients of 16 bits are rounded once.
#[test]
fn sixteen_bits_are_rounded_once() {
    let (n, i, o) = (21, 35, 13);
    let of = |seed, shape: [usize; 2]| tensor::<2>(&values(seed, shape[0] * shape[1]), shape, &device());
    for (dtype, half_ulp) in dtypes() {
        for rule in RULES {
            let run = |is_narrow: bool| {
                let device = if is_narrow { device() } else { Device::flex() };
                let leaf = |x: Tensor<2>| {
                    let (shape, x) = (x.dims(), x.cast(dtype));
                    let x = if is_narrow { x } else { tensor(&read(x.cast(FloatDType::F32)), shape, &device) };
                    x.autodiff().require_grad()
                };
                let (x, weight) = (leaf(of(1, [n, i])), leaf(of(2, [o, i])));
                let bias = leaf(of(3, [1, o]));
                let flat: Tensor<1> = bias.clone().reshape([o]);
                let y = match is_narrow {
                    true => fp8_linear_by_table(&StandIn::default(), &x, &weight, Some(&flat), &pass(rule, &device)),
                    false => Some(reference(x.clone(), weight.clone(), Some(flat), &pass(rule, &device))),
                };
                let y = y.expect("it applies");
                let gradients = (y.clone() * 0.5).sum().backward();
                let wide = |x: Tensor<2>| read(x.cast(FloatDType::F32));
                let gradient = |x: &Tensor<2>| wide(x.grad(&gradients).expect("it is tracked"));
                [wide(y.without_autodiff()), gradient(&x), gradient(&weight), gradient(&bias)]
            };
            let (found, expected) = (run(true), run(false));
            for (name, (found, expected)) in ["y", "dx", "dw", "db"].iter().zip(found.iter().zip(&expected)) {
                assert_close(&format!("{rule:?}, {dtype:?}: {name}"), found, expected, f64::from(half_ulp));
            }
        }
    }
}

/// The largest magnitudes are those of the reference, and a value that is not finite affects the
/// output of its row alone.
#[test]
fn magnitudes_are_noted_and_overflows_seen() {
    let (n, i, o) = (700, 600, 5);
    let mut of_x = values(1, n * i);
    of_x[n * i - 2] = -9.5;
    let weight = tensor::<2>(&values(2, o * i), [o, i], &device());
    let run = |of_x: &[f32], pass: &Fp8Pass| {
        let x = tensor::<2>(of_x, [n, i], &device());
        read(fp8_linear_by_table(&StandIn::default(), &x, &weight, None, pass).expect("it applies"))
    };
    let maxima = Arc::new(OperandMaxima::default());
    run(&of_x, &Fp8Pass { maxima: Some(Arc::clone(&maxima)), ..pass(RULES[2], &device()) });
    let largest = values(2, o * i).iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    assert_eq!(OperandMaxima::take_all([maxima.as_ref()]), [[9.5, largest, 0.0]]);
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        of_x[i] = value;
        for rule in [RULES[0], RULES[2]] {
            let watched = Fp8Pass { maxima: Some(Arc::clone(&maxima)), ..pass(rule, &device()) };
            let y = run(&of_x, &watched);
            assert!(y[o..2 * o].iter().all(|y| y.is_nan()), "{rule:?}: {value}");
            assert!(y[..o].iter().chain(&y[2 * o..]).all(|y| y.is_finite()), "{rule:?}: {value}");
            assert_eq!(OperandMaxima::take_all([maxima.as_ref()])[0][0], f32::INFINITY);
        }
    }
}

/// Layers whose sizes 8-bit matrix units take, on a device that has them; these sum with fewer bits
/// than float32.
#[cfg(feature = "cuda")]
#[test]
fn layers_on_matrix_units() {
    let (n, i, o) = (64, 256, 96);
    let inputs = [values(1, n * i), values(2, o * i), values(3, o)];
    for rule in RULES {
        let run = |device: &Device| {
            let leaf =
                |place: usize| tensor::<1>(&inputs[place], [inputs[place].len()], device).autodiff().require_grad();
            let (x, weight, bias) = (leaf(0), leaf(1), leaf(2));
            let y = fp8_linear(
                x.clone().reshape([n, i]),
                weight.clone().reshape([o, i]),
                Some(bias.clone()),
                &pass(rule, device),
            );
            let gradients = (y.clone() * 0.5).sum().backward();
            let gradient = |x: &Tensor<1>| read(x.grad(&gradients).expect("it is tracked"));
            [read(y.without_autodiff()), gradient(&x), gradient(&weight), gradient(&bias)]
        };
        for (found, expected) in run(&device()).iter().zip(run(&Device::flex())) {
            assert_close(&format!("{rule:?}"), found, &expected, 1e-3);
        }
    }
}

#[test]
fn magnitudes_are_those_of_the_values_on_the_device() {
    let rule = Fp8Rule { gradient: Fp8Format::E5M2, scaling: Fp8Scaling::Delayed, weight_gradient: true };
    let [n, i, o] = [37, 130, 65];
    let noted = |device: Device| {
        let maxima = Arc::new(OperandMaxima::default());
        let pass = Fp8Pass { maxima: Some(Arc::clone(&maxima)), ..pass(rule, &device) };
        let device = device.autodiff();
        let x = tensor(&values(1, n * i), [n, i], &device).require_grad();
        let weight = tensor(&values(2, o * i), [o, i], &device).require_grad();
        let dy = tensor(&values(4, n * o), [n, o], &device);
        (fp8_linear(x, weight, None, &pass) * dy).sum().backward();
        OperandMaxima::take_all([maxima.as_ref()])
    };
    assert_eq!(noted(device()), noted(Device::flex()));
}

/// Bytes and values are those of the host, for parts of ranks that begin and end within words, with
/// weights of which a rank has nothing.
#[test]
fn codes_of_several_weights_are_those_of_the_host() {
    let (sizes, length) = ([[5, 300, 0, 1031], [6, 299, 1, 1029], [5, 301, 0, 1030]], 1339);
    let mut parts: Vec<Vec<f32>> = (0..3).map(|seed| values(seed, length)).collect();
    parts[1][6..12].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::MIN, f32::MAX, -1e-42, -0.0]);
    let casts = [
        WeightCast::from_amax(WeightCast::largest_magnitude(
            &[&parts[0][..5], &parts[1][..6], &parts[2][..5]].concat(),
        )),
        WeightCast::with_scale(131.7),
        WeightCast::with_scale(90.0),
        WeightCast::with_scale(0.37),
    ];
    let ends = |rank: usize| -> Vec<usize> { (1..=4).map(|weights| sizes[rank][..weights].iter().sum()).collect() };
    let places = |ranks: Range<usize>| CodePlaces { ends: ranks.map(ends).collect(), length };
    let (mut codes, mut expected) = (Vec::new(), Vec::new());
    for (rank, part) in parts.iter().enumerate() {
        let mut rest = &part[..];
        let (mut bytes, mut decoded) = (Vec::new(), Vec::new());
        for (cast, size) in casts.iter().zip(sizes[rank]) {
            let (own, behind) = rest.split_at(size);
            bytes.extend(cast.encode(own));
            decoded.extend(cast.decode(&cast.encode(own)));
            rest = behind;
        }
        // The padding after the last weight is cast, but not compared.
        let known = bytes.len();
        expected.push(decoded);
        for (dtype, _) in dtypes().into_iter().chain([(FloatDType::F32, 0.0)]) {
            let x = tensor::<1>(part, [length], &device()).cast(dtype);
            let rounded = read(x.clone().cast(FloatDType::F32));
            let words = places(rank..rank + 1).encode(&x, &casts).expect("values are on the device");
            assert_eq!(words.dims(), [length.div_ceil(4)]);
            let found = words.clone().into_data();
            if dtype == FloatDType::F32 {
                assert_eq!(found.as_bytes()[..known], bytes, "rank {rank}");
                codes.push(words);
            } else {
                let own = casts[3].encode(&rounded[known - sizes[rank][3]..known]);
                assert_eq!(found.as_bytes()[known - own.len()..known], own, "rank {rank}, {dtype:?}");
            }
            let largest = WeightCast::largest_on_device(&x).map(read);
            assert_eq!(largest, Some(vec![WeightCast::largest_magnitude(&rounded)]));
        }
    }
    let codes = Tensor::cat(codes, 0);
    for (dtype, _) in dtypes().into_iter().chain([(FloatDType::F32, 0.0)]) {
        let found = places(0..3).decode(&codes, &casts, dtype.into()).expect("codes are on the device");
        assert_eq!((found.dims(), found.dtype()), ([3 * length], dtype.into()));
        let found = read(found.cast(FloatDType::F32));
        for (rank, expected) in expected.iter().enumerate() {
            let rounded = read(tensor::<1>(expected, [expected.len()], &device()).cast(dtype).cast(FloatDType::F32));
            for (place, (found, expected)) in found[rank * length..].iter().zip(&rounded).enumerate() {
                let is_same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(is_same, "rank {rank}, {place}, {dtype:?}: {found}, not {expected}");
            }
        }
    }
    let host = tensor::<1>(&parts[0], [length], &Device::flex());
    assert!(places(0..1).encode(&host, &casts).is_none() && WeightCast::largest_on_device(&host).is_none());
}
