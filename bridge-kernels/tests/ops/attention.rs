//! Causal attention.

use bridge_kernels::Philox;
use std::sync::Arc;

use bridge_kernels::attention::{AttentionOptions, KeyChoice, MaxLogit, MaxLogitProbe, attention, reference};
use bridge_kernels::dropout::{DropoutKey, dropped};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, assert_same_on_any_threads, ints, read, run_all, tensor, values, wide};
use crate::operands::attention::{Shapes, inputs, width};
use crate::plain;

const RATE: f64 = 0.3;

fn key() -> DropoutKey {
    DropoutKey(Philox::new(77))
}

/// Keys of each query, the same for all heads.
fn chosen([batch, _, query, key]: [usize; 4]) -> bool {
    key == query % 5 || (7 * query + 3 * key + 5 * batch) % 4 == 1
}

/// Keys of each query of a key head.
fn chosen_by_group([batch, group, query, key]: [usize; 4]) -> bool {
    chosen([batch, group, query, key + group])
}

fn chosen_keys(with: &str) -> Option<fn([usize; 4]) -> bool> {
    let names = [("by group", chosen_by_group as fn([usize; 4]) -> bool), ("chosen", chosen)];
    names.into_iter().find(|(name, _)| with.contains(name)).map(|(_, keys)| keys)
}

/// Everything that may vary, from shapes and the names of options.
fn options([b, t, s, _, g, d]: Shapes, with: &str) -> (AttentionOptions, Vec<i64>) {
    let documents: Vec<i64> = (0..b * t).map(|i| (i % t / 4 + i / t) as i64).collect();
    let has = |name| with.contains(name);
    let choice = chosen_keys(with).map(|is_chosen| {
        KeyChoice::from_rows([b, if has("by group") { g } else { 1 }, t, s], |[batch, group, query], marks| {
            marks.iter_mut().enumerate().for_each(|(key, mark)| *mark = is_chosen([batch, group, query, key]));
        })
    });
    let options = AttentionOptions {
        window: has("window").then_some(3),
        softcap: has("softcap").then_some(1.5),
        dropout: has("dropout").then_some((RATE, key())),
        document_ids: has("documents").then(|| ints(&documents, [b, t])),
        choice,
        ..AttentionOptions::causal(d)
    };
    (options, documents)
}

fn plain_options(shapes: Shapes, with: &str) -> plain::Attention {
    let (o, documents) = options(shapes, with);
    let [b, t, s, h, g, d] = shapes;
    let factor = |dropped: bool| if dropped { 0.0 } else { 1.0 / (1.0 - RATE) };
    let factors = o.dropout.map(|(rate, key)| dropped(b * h * t * s, rate, key).into_iter().map(factor).collect());
    let documents = o.document_ids.is_some().then_some(documents);
    plain::Attention {
        b,
        t,
        s,
        h,
        g,
        d,
        width: width(shapes, with),
        scale: o.scale,
        window: o.window,
        softcap: o.softcap,
        factors,
        documents,
        chosen: chosen_keys(with),
        sinks: None,
    }
}

fn shaped([b, t, s, h, g, d]: Shapes, with: &str, x: &[Tensor<1>]) -> [Tensor<4>; 3] {
    let width = width([b, t, s, h, g, d], with);
    [x[0].clone().reshape([b, t, h, d]), x[1].clone().reshape([b, s, g, d]), x[2].clone().reshape([b, s, g, width])]
}

/// The options with the input after queries, keys and values, if there is one.
fn with_sinks(options: &AttentionOptions, x: &[Tensor<1>]) -> AttentionOptions {
    AttentionOptions { sinks_h: x.get(3).cloned(), ..options.clone() }
}

fn check(shapes: Shapes, with: &str) {
    let ([b, t, _, h, ..], width) = (shapes, width(shapes, with));
    let (options, _) = options(shapes, with);
    let spec = plain_options(shapes, with);
    Case {
        name: &format!("attention {shapes:?} with {with}"),
        inputs: inputs(shapes, with),
        fast: &|x| {
            let [q, k, v] = shaped(shapes, with, x);
            attention(q, k, v, &with_sinks(&options, x)).reshape([b * t * h * width])
        },
        reference: &|x| {
            let [q, k, v] = shaped(shapes, with, x);
            reference(q, k, v, &with_sinks(&options, x)).reshape([b * t * h * width])
        },
        plain: &|x| {
            let spec = plain::Attention { sinks: x.get(3).cloned(), ..spec.clone() };
            plain::attention(&x[0], &x[1], &x[2], &spec)
        },
    }
    .check();
}

#[test]
fn outputs_and_gradients() {
    check([2, 7, 7, 3, 1, 5], "");
    check([1, 11, 13, 4, 2, 3], "window");
    check([1, 11, 13, 2, 2, 3], "softcap");
    check([2, 5, 5, 2, 1, 3], "dropout");
    check([2, 11, 11, 2, 2, 3], "documents");
    check([1, 11, 11, 4, 2, 3], "window softcap dropout documents");
    check([2, 1, 17, 2, 1, 3], "");
    check([2, 7, 7, 6, 2, 5], "sinks");
    check([2, 1, 17, 2, 1, 3], "sinks");
    check([1, 11, 11, 4, 2, 3], "sinks window softcap dropout documents");
    check([1, 2, 9, 1, 1, 16], "dropout");
}

#[test]
fn queries_attend_to_the_keys_that_they_choose() {
    check([2, 7, 7, 3, 1, 5], "chosen");
    check([1, 11, 13, 4, 2, 3], "chosen by group");
    check([2, 9, 5, 4, 2, 3], "chosen by group sinks softcap dropout");
    check([1, 11, 71, 4, 2, 5], "chosen narrow values dropout");
}

#[test]
fn heads_of_values_may_be_of_another_size() {
    check([2, 7, 7, 3, 1, 5], "narrow values");
    check([2, 5, 7, 3, 3, 3], "wide values");
    check([1, 11, 11, 4, 2, 5], "narrow values sinks window softcap dropout documents");
    check([1, 11, 11, 4, 4, 3], "wide values sinks window softcap dropout documents");
}

#[test]
fn sequences_of_several_blocks_match_the_reference() {
    for (shapes, with) in [
        ([2, 131, 139, 6, 3, 17], "window"),
        ([1, 150, 150, 2, 1, 64], "dropout documents"),
        ([1, 67, 67, 1, 1, 256], "softcap"),
        ([2, 131, 131, 4, 2, 17], "sinks window"),
        ([2, 131, 139, 6, 3, 17], "narrow values window"),
        ([2, 131, 139, 6, 3, 17], "chosen by group"),
    ] {
        let (options, _) = options(shapes, with);
        let run = |operation: fn(Tensor<4>, Tensor<4>, Tensor<4>, &AttentionOptions) -> Tensor<4>| {
            run_all(&inputs(shapes, with), |x| {
                let [q, k, v] = shaped(shapes, with, x);
                let out = operation(q, k, v, &with_sinks(&options, x));
                let count = out.shape().num_elements();
                out.reshape([count])
            })
        };
        let (fast, slow) = (run(attention), run(reference));
        let x: Vec<Vec<f64>> = inputs(shapes, with).iter().map(|x| wide(x)).collect();
        let spec = plain::Attention { sinks: x.get(3).cloned(), ..plain_options(shapes, with) };
        let expected = plain::attention(&x[0], &x[1], &x[2], &spec);
        assert_close(&format!("{with}: output"), &fast[0], &expected, 2e-6);
        for (i, name) in ["q", "k", "v", "sinks"].into_iter().enumerate().take(x.len()) {
            assert_close(&format!("{with}: gradient of {name}"), &fast[i + 1], &wide(&slow[i + 1]), 2e-5);
        }
    }
}

#[test]
fn slices_of_one_projection_are_read_where_they_are() {
    let device = Device::flex();
    let (b, t, h, g, d) = (2, 7, 4, 2, 3);
    let fused = tensor(&values(1, b * t * (h + 2 * g) * d), [b, t, h + 2 * g, d], &device);
    let parts = [(0, h), (h, g), (h + g, g)].map(|(start, heads)| fused.clone().narrow(2, start, heads));
    let copies = parts.clone().map(|x| tensor(&read(x.clone()), x.dims(), &device));
    let options = AttentionOptions::causal(d);
    let [q, k, v] = parts;
    let [q2, k2, v2] = copies;
    assert_eq!(read(attention(q, k, v, &options)), read(attention(q2.clone(), k2.clone(), v2.clone(), &options)));
    // Heads before the sequence, as some models keep them.
    let q3 = tensor(&read(q2.clone().swap_dims(1, 2)), [b, h, t, d], &device).swap_dims(1, 2);
    let transposed_last = tensor(&read(k2.clone().swap_dims(1, 3)), [b, d, g, t], &device).swap_dims(1, 3);
    assert_eq!(read(attention(q3, transposed_last, v2.clone(), &options)), read(attention(q2, k2, v2, &options)));
}

#[test]
fn a_cache_gives_what_the_whole_sequence_gave() {
    let device = Device::flex();
    let (b, s, h, d) = (1, 19, 2, 8);
    let [q, k, v] = [1, 2, 3].map(|seed| tensor(&values(seed, b * s * h * d), [b, s, h, d], &device));
    let options = AttentionOptions::causal(d);
    let whole = attention(q.clone(), k.clone(), v.clone(), &options).narrow(1, s - 1, 1);
    let last = attention(q.narrow(1, s - 1, 1), k, v, &options);
    assert_close("last token", &read(last), &wide(&read(whole)), 1e-6);
}

#[test]
fn the_same_on_any_number_of_threads() {
    let shapes = [2, 131, 131, 4, 2, 32];
    let (options, _) = options(shapes, "dropout");
    assert_same_on_any_threads("attention", || {
        run_all(&inputs(shapes, ""), |x| {
            let [q, k, v] = shaped(shapes, "dropout", x);
            attention(q, k, v, &options).reshape([2 * 131 * 4 * 32])
        })
    });
}

#[test]
#[should_panic(expected = "attention: 3 query heads do not divide into 2 key/value groups")]
fn heads_that_do_not_divide_are_named() {
    let x = |heads: usize| tensor(&vec![0.0; heads], [1, 1, heads, 1], &Device::flex());
    attention(x(3), x(2), x(2), &AttentionOptions::causal(1));
}

#[test]
#[should_panic(expected = "attention: 2 queries need at least as many keys, got 1")]
fn too_few_keys_are_named() {
    let x = |rows: usize| tensor(&vec![0.0; rows], [1, rows, 1, 1], &Device::flex());
    attention(x(2), x(1), x(1), &AttentionOptions::causal(1));
}

/// The largest score by its definition, in float64, of the queries from `first_query` on.
fn largest_score(shapes @ [b, t, s, h, g, d]: Shapes, with: &str, first_query: usize) -> f64 {
    let (options, documents) = options(shapes, with);
    let x: Vec<Vec<f64>> = inputs(shapes, with).iter().map(|x| wide(x)).collect();
    let mut largest = f64::NEG_INFINITY;
    for (batch, query, head) in (0..b).flat_map(|b| (first_query..t).flat_map(move |q| (0..h).map(move |h| (b, q, h))))
    {
        let position = s - t + query;
        for key in 0..=position {
            let is_far = options.window.is_some_and(|window| position - key > window);
            let is_other = options.document_ids.is_some() && documents[batch * t + query] != documents[batch * t + key];
            if is_far || is_other {
                continue;
            }
            let q = &x[0][((batch * t + query) * h + head) * d..][..d];
            let k = &x[1][((batch * s + key) * g + head / (h / g)) * d..][..d];
            let score = q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * options.scale;
            largest = largest.max(options.softcap.map_or(score, |cap| cap * (score / cap).tanh()));
        }
    }
    largest
}

#[test]
fn the_max_logit_is_the_one_of_visible_keys() {
    for (shapes, with, first_query) in [
        ([2, 7, 7, 3, 1, 5], "", 0),
        ([1, 11, 13, 4, 2, 3], "window", 0),
        ([1, 11, 13, 2, 2, 3], "softcap", 5),
        ([2, 11, 11, 2, 2, 3], "documents", 7),
        ([1, 11, 11, 4, 2, 3], "sinks window softcap dropout documents", 2),
        ([2, 131, 139, 6, 3, 17], "window", 97),
        ([1, 150, 150, 2, 1, 7], "dropout documents", 0),
        ([2, 1, 17, 2, 1, 3], "sinks", 0),
    ] {
        let expected = largest_score(shapes, with, first_query);
        let without = |operation: Operation| output(shapes, with, operation, None);
        for operation in [attention as Operation, reference] {
            let largest = Arc::new(MaxLogit::default());
            let probe = MaxLogitProbe { max_logit: Arc::clone(&largest), first_query };
            assert_eq!(output(shapes, with, operation, Some(probe)), without(operation), "{with}: bits of the output");
            let found = f64::from(largest.value().unwrap());
            assert!(
                (found - expected).abs() < 2e-6 * expected.abs().max(1.0),
                "{shapes:?} {with}: {found}, {expected}"
            );
        }
    }
}

type Operation = fn(Tensor<4>, Tensor<4>, Tensor<4>, &AttentionOptions) -> Tensor<4>;

/// Output and gradients of an operation that notes its scores at `probe`.
fn output(shapes: Shapes, with: &str, operation: Operation, probe: Option<MaxLogitProbe>) -> Vec<Vec<f32>> {
    let (options, _) = options(shapes, with);
    let options = AttentionOptions { probe, ..options };
    run_all(&inputs(shapes, with), |x| {
        let [q, k, v] = shaped(shapes, with, x);
        let out = operation(q, k, v, &with_sinks(&options, x));
        let count = out.shape().num_elements();
        out.reshape([count])
    })
}
