//! The residual stream in float32 between layers of 16 bits.

use bridge_core::config::{BlockOrder, NormPlacement};
use bridge_core::model::HIDDEN_STATES;
use bridge_kernels::Philox;
use burn::tensor::DType;

use super::*;

/// Deep and with small terms from the blocks, so that the rounding of the stream shows.
fn deep(config: DecoderConfig) -> DecoderConfig {
    DecoderConfig { num_layers: 12, init_method_std: 0.05, no_rope_layers: LayerPattern::None, ..config }
}

fn wide(config: &DecoderConfig) -> DecoderConfig {
    DecoderConfig { fp32_residual: true, ..config.clone() }
}

fn built(config: &DecoderConfig, params_dtype: FloatDType, stage: &Stage) -> Box<dyn ModelChunk> {
    let context = BuildContext { params_dtype, ..context(config) };
    build_decoder(config, &context, stage).unwrap()
}

fn whole(config: &DecoderConfig, params_dtype: FloatDType) -> Box<dyn ModelChunk> {
    built(config, params_dtype, &Stage::whole([config.num_layers]))
}

/// The stream before the last segment, and the loss with all gradients, widened.
fn results(chunk: &dyn ModelChunk, mode: Mode) -> (Tensor<3>, f32, BTreeMap<String, Tensor<1>>) {
    let batch = Batch::new(&micro_batch(37), &device());
    let context = ForwardContext::new(&batch, mode);
    let last = chunk.segments().len() - 1;
    let SegmentOutput::Boundary(stream) = run_segments(chunk, 0..last, Boundary::default(), &context).unwrap() else {
        panic!("the loss comes last");
    };
    let stream = stream.get(HIDDEN_STATES).unwrap().clone().without_autodiff();
    let loss = loss_sum(&[chunk], &batch, mode);
    let mut gradients = loss.clone().backward();
    let mut named = BTreeMap::new();
    chunk.take_gradients(&mut gradients, &mut |name, gradient| {
        named.insert(name.to_owned(), gradient.cast(FloatDType::F32));
    });
    (stream, loss.into_scalar::<f32>(), named)
}

fn distance<const D: usize>(found: &Tensor<D>, expected: &Tensor<D>) -> f64 {
    let square = |x: Tensor<D>| f64::from(x.powi_scalar(2).sum().into_scalar::<f32>());
    let found = found.clone().cast(FloatDType::F32);
    (square(found - expected.clone()) / square(expected.clone())).sqrt()
}

/// Models with every way of joining blocks to the stream, and every sort of block.
fn models() -> Vec<(&'static str, DecoderConfig)> {
    let with = |residual| DecoderConfig { residual, ..llama() };
    let parallel = ResidualConfig {
        norms: NormPlacement::Sandwich,
        blocks: BlockOrder::Parallel,
        branch_multiplier: 0.7,
        stream_multiplier: 1.2,
        adds_to_norm: false,
    };
    let further = DecoderConfig { mtp_num_layers: 1, ..llama() };
    let usual = ResidualConfig::default();
    vec![
        ("llama", llama()),
        ("gpt2", gpt2()),
        ("side by side", with(parallel)),
        ("norms of outputs", with(ResidualConfig { norms: NormPlacement::Output, ..usual })),
        ("post-norm", with(ResidualConfig { norms: NormPlacement::Sum, ..usual })),
        ("added to norms", with(ResidualConfig { adds_to_norm: true, ..usual })),
        ("further tokens", further),
        ("experts", super::moe::mixture(5, 2)),
        ("several streams", streams()[0].clone()),
        ("state space", super::hybrid::hybrid()),
        ("linear attention", super::linear_attention::gated_delta_net()),
    ]
}

#[test]
fn the_stream_is_float32_and_all_else_is_not() {
    for (name, config) in models() {
        for dtype in [FloatDType::BF16, FloatDType::F16] {
            let (chunk, narrow) = (whole(&wide(&config), dtype), whole(&config, dtype));
            let mode = Mode::Train(Philox::new(3));
            let (stream, loss, gradients) = results(chunk.as_ref(), mode);
            let (narrow_stream, narrow_loss, _) = results(narrow.as_ref(), mode);
            assert_eq!(stream.dtype(), DType::F32, "{name}");
            assert_eq!(narrow_stream.dtype(), DType::from(dtype), "{name}");
            assert!((loss / narrow_loss - 1.0).abs() < 0.05, "{name}: {loss} and {narrow_loss}");
            // The stream does not hold a rounded copy.
            let rounded = stream.clone().cast(dtype).cast(FloatDType::F32);
            assert!(distance(&rounded, &stream) > 1e-5, "{name}, {dtype:?}: every element fits 16 bits");
            assert_eq!(gradients.len(), chunk.parameters().iter().filter(|p| p.trainable).count(), "{name}");
            chunk.visit_parameters(&mut |parameter, value| {
                assert_eq!(value.dtype(), DType::from(dtype), "{name}: {parameter}");
            });
        }
    }
}

#[test]
fn with_parameters_of_32_bits_nothing_changes() {
    for (name, config) in models() {
        let mode = Mode::Train(Philox::new(3));
        let (stream, loss, gradients) = results(whole(&wide(&config), FloatDType::F32).as_ref(), mode);
        let (expected, expected_loss, expected_gradients) = results(whole(&config, FloatDType::F32).as_ref(), mode);
        assert_eq!(floats(stream), floats(expected), "{name}");
        assert_eq!(loss.to_bits(), expected_loss.to_bits(), "{name}");
        for (parameter, gradient) in gradients {
            assert_eq!(floats(gradient), floats(expected_gradients[&parameter].clone()), "{name}: {parameter}");
        }
    }
}

/// Against the same model in float32 with the rounded weights: the remaining errors come from
/// blocks, not from many additions.
#[test]
fn a_float32_stream_is_nearer_to_float32() {
    for (name, config) in [("llama", deep(llama())), ("gpt2", deep(gpt2()))] {
        let narrow = whole(&config, FloatDType::BF16);
        let rounded = values_of(narrow.as_ref());
        let mut exact = whole(&config, FloatDType::F32);
        set_values(exact.as_mut(), &rounded);
        let mode = Mode::Evaluate;
        let (expected, expected_loss, expected_gradients) = results(exact.as_ref(), mode);
        let (narrow_stream, _, narrow_gradients) = results(narrow.as_ref(), mode);
        let (stream, loss, gradients) = results(whole(&wide(&config), FloatDType::BF16).as_ref(), mode);
        let errors = [&narrow_stream, &stream].map(|stream| distance(stream, &expected));
        assert!(errors[1] < 0.5 * errors[0], "{name}: {errors:?}");
        assert!((loss / expected_loss - 1.0).abs() < 2e-3, "{name}: {loss}, expected {expected_loss}");
        let mean = |found: &BTreeMap<String, Tensor<1>>| {
            let errors = found.iter().map(|(name, gradient)| distance(gradient, &expected_gradients[name]));
            errors.sum::<f64>() / found.len() as f64
        };
        let errors = [&narrow_gradients, &gradients].map(mean);
        assert!(errors[1] < errors[0] && errors[1] < 0.05, "{name}: gradients {errors:?}");
    }
}

fn values_of(chunk: &dyn ModelChunk) -> Values {
    let mut named = Values::new();
    chunk.visit_parameters(&mut |name, value| {
        named.insert(name.to_owned(), floats(value.cast(FloatDType::F32)));
    });
    named
}

#[test]
fn stages_send_it_as_it_is() {
    for (name, config) in [("llama", wide(&llama())), ("gpt2", wide(&gpt2()))] {
        let part =
            |layers, start, end| built(&config, FloatDType::BF16, &Stage::from(StackPart { layers, start, end }));
        let (first, last) = (part(0..2, true, false), part(2..3, false, true));
        let batch = Batch::new(&micro_batch(37), &device());
        let mode = Mode::Train(Philox::new(8));
        let declared = last.boundary(0, &batch);
        assert_eq!(declared[0].dtype, FloatDType::F32);
        let one = whole(&config, FloatDType::BF16);
        assert_eq!(
            loss_sum(&[first.as_ref(), last.as_ref()], &batch, mode).into_scalar::<f32>().to_bits(),
            loss_sum(&[one.as_ref()], &batch, mode).into_scalar::<f32>().to_bits(),
            "{name}"
        );
    }
}

/// Logits of tokens one by one, with the layers' caches, are those of all at once.
#[test]
fn generation_has_it_too() {
    for (name, config) in [("llama", wide(&llama())), ("state space", wide(&super::hybrid::hybrid()))] {
        let chunk = whole(&config, FloatDType::BF16);
        let model = chunk.inference();
        let of = |parts: &[&[i64]]| {
            let mut state = model.new_state();
            let mut last = Vec::new();
            for ids in parts {
                let ids = Tensor::<2, Int>::from_data(TensorData::new(ids.to_vec(), [1, ids.len()]), &Device::flex());
                let logits = model.logits(ids, &mut state).unwrap();
                let [_, t, v] = logits.dims();
                last = floats(logits.narrow(1, t - 1, 1).reshape([v]).cast(FloatDType::F32));
            }
            last
        };
        let ids = tokens(6, 37);
        let (all, parts) = (of(&[&ids]), of(&[&ids[..3], &ids[3..5], &ids[5..]]));
        let largest = all.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert!(all.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 0.03 * largest), "{name}: {all:?} and {parts:?}");
    }
}
