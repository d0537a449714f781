//! Attention.

use std::sync::Arc;

use bridge_kernels::attention::{
    AttentionOptions, MaxLogit, MaxLogitProbe, attention, cube, cube_products, matrix_units, reference,
};
use bridge_kernels::dropout::DropoutKey;
use bridge_kernels::{PackedHeads, Philox, packed_attention};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, device, ints, read, tensor, values};
use crate::cublaslt::{ColumnMajor, Element, StandIn};
use crate::operands::attention::{Shapes, inputs, width};

/// Everything that may vary, from shapes and the names of options.
fn options([b, t, _, _, _, d]: Shapes, with: &str, device: &Device) -> AttentionOptions {
    let documents: Vec<i64> = (0..b * t).map(|i| (i % t / 4 + i / t) as i64).collect();
    let has = |name| with.contains(name);
    AttentionOptions {
        window: has("window").then_some(3),
        softcap: has("softcap").then_some(1.5),
        dropout: has("dropout").then_some((0.3, DropoutKey(Philox::new(77)))),
        document_ids: has("documents").then(|| ints(&documents, [b, t], device)),
        ..AttentionOptions::causal(d)
    }
}

/// Queries, keys and values, and the options with the input after these, if there is one.
fn arguments(shapes: Shapes, with: &str, x: &[Tensor<1>], device: &Device) -> ([Tensor<4>; 3], AttentionOptions) {
    let ([b, t, s, h, g, d], width) = (shapes, width(shapes, with));
    let [q, k, v] = [0, 1, 2].map(|i| x[i].clone());
    let options = AttentionOptions { sinks_h: x.get(3).cloned(), ..options(shapes, with, device) };
    ([q.reshape([b, t, h, d]), k.reshape([b, s, g, d]), v.reshape([b, s, g, width])], options)
}

fn check(shapes: Shapes, with: &str) {
    check_form(shapes, with, &|[q, k, v], options| cube::attention(q, k, v, options).expect("it applies"));
}

/// Checks the form by products, with few queries at once and with all.
fn check_products(shapes: Shapes, with: &str) {
    for bytes in [1, 1 << 20] {
        check_form(shapes, with, &|[q, k, v], options| {
            cube_products::attention_in_parts(q, k, v, options, bytes).expect("it applies")
        });
    }
}

/// The kernels for matrix units, with these emulated in 32 bits, so that any difference is an
/// error.
fn check_units(shapes: Shapes, with: &str) {
    check_form(shapes, with, &|[q, k, v], options| {
        matrix_units::attention(q, k, v, options, Some(32)).expect("it applies")
    });
}

/// As [`check_products`] by a table of products, of which there are two forward and five backward
/// for each part.
fn check_table(shapes: Shapes, with: &str, table: &StandIn) {
    for bytes in [1, 1 << 20] {
        check_form(shapes, with, &|heads, options| {
            cube_products::attention_by_table(table, heads, options, bytes).expect("it applies")
        });
    }
}

fn check_form(shapes: Shapes, with: &str, form: &dyn Fn([&Tensor<4>; 3], &AttentionOptions) -> Tensor<4>) {
    let ([b, t, _, h, ..], width) = (shapes, width(shapes, with));
    Case {
        name: &format!("attention {shapes:?} with {with}"),
        inputs: inputs(shapes, with),
        fused: &|x, device| {
            let ([q, k, v], options) = arguments(shapes, with, x, device);
            form([&q, &k, &v], &options).reshape([b * t * h * width])
        },
        reference: &|x, device| {
            let ([q, k, v], options) = arguments(shapes, with, x, device);
            reference(q, k, v, &options).reshape([b * t * h * width])
        },
    }
    .check();
}

#[test]
fn outputs_and_gradients() {
    check([2, 7, 7, 3, 1, 5], "");
    check([1, 11, 13, 4, 2, 3], "window");
    check([1, 11, 13, 2, 2, 3], "softcap");
    check([2, 11, 11, 2, 2, 3], "documents");
    check([1, 11, 11, 4, 2, 3], "window softcap dropout documents");
    check([2, 5, 5, 2, 1, 3], "dropout");
    check([2, 2, 17, 2, 1, 3], "");
    check([2, 7, 7, 6, 2, 5], "sinks");
    check([2, 2, 17, 2, 1, 3], "sinks");
    check([1, 11, 11, 4, 2, 3], "sinks window softcap dropout documents");
}

#[test]
fn heads_of_values_may_be_of_another_size() {
    check([2, 7, 7, 3, 1, 5], "narrow values");
    check([2, 5, 7, 3, 3, 3], "wide values");
    check([1, 11, 11, 4, 2, 5], "narrow values sinks window softcap documents");
    check([1, 11, 11, 4, 4, 3], "wide values sinks window softcap documents");
}

/// Several tiles of each size, and heads wider than a unit has columns for at the largest.
#[test]
fn sequences_of_several_tiles() {
    check([1, 21, 27, 2, 1, 19], "sinks");
    check([1, 29, 29, 2, 2, 7], "window documents");
    check([2, 71, 71, 4, 2, 17], "");
    check([1, 67, 139, 3, 1, 5], "sinks window dropout");
    check([1, 67, 67, 1, 1, 33], "softcap documents wide values");
    check([1, 37, 37, 1, 1, 259], "");
}

#[test]
fn products_with_one_kernel_between() {
    check_products([2, 7, 7, 3, 1, 5], "");
    check_products([2, 71, 71, 4, 2, 17], "");
    check_products([1, 130, 139, 2, 2, 3], "window");
    check_products([1, 67, 139, 3, 1, 5], "sinks window dropout");
    check_products([2, 67, 67, 2, 1, 33], "softcap documents wide values");
    check_products([1, 11, 11, 4, 2, 3], "sinks window softcap dropout documents");
    check_products([2, 2, 17, 2, 1, 3], "narrow values");
}

/// Few queries and many, in one tile and in several; every option. In 32 bits tiles of larger heads
/// would need more shared memory than some devices have.
#[test]
fn matrix_units() {
    check_units([2, 7, 7, 3, 1, 16], "");
    check_units([1, 67, 80, 4, 2, 16], "sinks window dropout");
    check_units([1, 70, 70, 2, 1, 16], "sinks softcap documents");
}

/// Heads that this form does not take, and devices without matrix units.
#[test]
fn matrix_units_that_do_not_apply() {
    let x = |d: usize| tensor::<4>(&values(1, 5 * d), [1, 5, 1, d], &device());
    let applies = |q: Tensor<4>, v: Tensor<4>, emulated: Option<usize>| {
        matrix_units::attention(&q, &q, &v, &AttentionOptions::causal(16), emulated).is_some()
    };
    assert!(applies(x(16), x(16), Some(32)));
    assert!(!applies(x(16), x(16), None), "no matrix unit multiplies float32");
    for d in [8, 24, 144] {
        assert!(!applies(x(d), x(d), Some(32)), "heads of {d}");
    }
    assert!(!applies(x(16), x(32), Some(32)), "values of another size");
}

#[test]
fn products_of_a_table() {
    let table = StandIn::default();
    check_table([2, 7, 7, 3, 1, 5], "", &table);
    check_table([2, 71, 71, 4, 2, 7], "", &table);
    check_table([1, 130, 139, 2, 2, 3], "window", &table);
    check_table([1, 67, 139, 3, 1, 5], "sinks window dropout", &table);
    check_table([2, 67, 67, 2, 1, 9], "softcap documents wide values", &table);
    check_table([1, 11, 11, 4, 2, 3], "sinks window softcap dropout documents", &table);
    check_table([2, 2, 17, 2, 1, 3], "narrow values", &table);
    let ran = table.ran();
    assert!(ran.iter().any(|product| product.a.batches > 1), "heads are batches");
    // Sums of keys are put together where they lie: matrices of more rows than the product has.
    assert!(ran.iter().any(|product| product.c.apart > product.c.leading * product.n));
}

/// Products that a table refuses run on Burn: scores, products with a summand, products that are
/// not float32, all products.
#[test]
fn products_that_a_table_refuses() {
    for refused in [
        (|product| product.c.apart == product.n * product.m) as fn(&ColumnMajor) -> bool,
        |product| product.c.apart > product.n * product.m,
        |product| product.k == 7,
        |_| true,
    ] {
        check_table([2, 71, 71, 4, 2, 7], "sinks", &StandIn::without(refused));
    }
}

#[test]
fn a_part_has_seven_products() {
    let (b, t, h, g, d) = (2, 70, 4, 2, 3);
    let of = |seed, heads| tensor::<4>(&values(seed, b * t * heads * d), [b, t, heads, d], &device());
    let q = of(1, h).autodiff().require_grad();
    let [k, v] = [2, 3].map(|seed| of(seed, g).autodiff().require_grad());
    let table = StandIn::default();
    let options = AttentionOptions::causal(d);
    let out = cube_products::attention_by_table(&table, [&q, &k, &v], &options, 1).expect("it applies");
    // One sequence and 64 queries at a time.
    let count = |name: &str, expected: usize| {
        let ran = table.ran();
        assert_eq!(ran.len(), expected, "{name}");
        assert!(ran.iter().all(|product| product.d.element == Element::F32 && product.d.batches == g), "{name}");
    };
    count("forward", 4 * 2);
    assert!(q.grad(&out.sum().backward()).is_some());
    count("backward", 4 * 5);
}

#[test]
fn large_scores() {
    let shapes = [1, 19, 19, 1, 1, 4];
    let (inputs, options) = (inputs(shapes, ""), options(shapes, "", &device()));
    let of = |device: &Device| [0, 1, 2].map(|i| tensor(&inputs[i], [1, 19, 1, 4], device));
    let sharp = AttentionOptions { scale: 300.0, ..options };
    let ([q, k, v], [q2, k2, v2]) = (of(&device()), of(&Device::flex()));
    let out = cube::attention(&q, &k, &v, &sharp).expect("it applies");
    assert_close("large scores", &read(out), &read(reference(q2, k2, v2, &sharp)), 1e-4);
}

#[test]
fn the_max_logit_is_recorded() {
    for (shapes, with, first_query) in
        [([2, 7, 7, 3, 1, 5], "", 0), ([1, 67, 79, 2, 2, 3], "window sinks", 5), ([1, 11, 11, 2, 1, 3], "documents", 7)]
    {
        let noted = |operation: &dyn Fn(&[Tensor<4>; 3], &AttentionOptions), device: &Device| {
            let largest = Arc::new(MaxLogit::default());
            let x: Vec<Tensor<1>> = inputs(shapes, with).iter().map(|x| tensor(x, [x.len()], device)).collect();
            let (qkv, options) = arguments(shapes, with, &x, device);
            let probe = Some(MaxLogitProbe { max_logit: Arc::clone(&largest), first_query });
            operation(&qkv, &AttentionOptions { probe, ..options });
            largest.value().expect("scores were noted")
        };
        let found =
            noted(&|[q, k, v], options| drop(cube::attention(q, k, v, options).expect("it applies")), &device());
        let by_products = noted(
            &|[q, k, v], options| drop(cube_products::attention(q, k, v, options).expect("it applies")),
            &device(),
        );
        assert!((found - by_products).abs() <= 2e-6 * found.abs().max(1.0), "{with}: {found}, {by_products}");
        let expected =
            noted(&|[q, k, v], options| drop(reference(q.clone(), k.clone(), v.clone(), options)), &Device::flex());
        assert!((found - expected).abs() <= 2e-6 * expected.abs().max(1.0), "{with}: {found}, {expected}");
    }
}

#[test]
fn views_and_the_public_functions() {
    let packed = PackedHeads { groups: 2, queries_per_group: 3, head_size: 5 };
    let qkv = tensor(&values(1, 2 * 7 * packed.width()), [2, 7, packed.width()], &device());
    let options = AttentionOptions::causal(5);
    let [q, k, v] = packed.unpack(qkv.clone());
    let out = cube::attention(&q, &k, &v, &options).expect("it applies");
    assert_close("packed", &read(out.clone()), &read(reference(q.clone(), k.clone(), v.clone(), &options)), 2e-6);
    assert_eq!(read(packed_attention(qkv, packed, None, &options)), read(out.clone()));
    assert_eq!(read(attention(q.clone(), k.clone(), v.clone(), &options)), read(out));
    let transposed = k.clone().permute([0, 3, 2, 1]).reshape([2, 5, 14]).reshape([2, 5, 2, 7]).permute([0, 3, 2, 1]);
    let expected = read(reference(q.clone(), transposed.clone(), v.clone(), &options));
    assert_close("permuted", &read(attention(q.clone(), transposed, v.clone(), &options)), &expected, 2e-6);
    let single = |x: &Tensor<4>| x.clone().narrow(1, 6, 1);
    assert!(cube::attention(&single(&q), &k, &v, &options).is_none(), "a single query is left to the reference");
    let last = read(single(&attention(q.clone(), k.clone(), v.clone(), &options)));
    assert_close("one query", &read(attention(single(&q), k, v, &options)), &last, 2e-6);
}
