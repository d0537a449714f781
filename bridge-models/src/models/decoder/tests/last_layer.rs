//! A layer in place of the output projection: outputs and gradients in float64, and refusals.

use std::sync::{Arc, Mutex};

use bridge_core::model::{
    Adapter, CustomLoss, CustomLossCall, LinearForLastLayer, ModelBuildError, ModelOutputs, ModelRegistry,
};
use bridge_kernels::Philox;

use super::*;

const LAYER: LinearForLastLayer = LinearForLastLayer { output_size: 3, bias: true, dropout: 0.0 };

fn adapter(layer: LinearForLastLayer) -> Result<Arc<dyn Adapter>, ModelBuildError> {
    let mut registry = ModelRegistry::default();
    registry.replace_last_layer(layer);
    let text = "[model]\nkind = \"gpt\"\nnum_layers = 1\nhidden_size = 8\nnum_attention_heads = 2\nseq_length = 8\nvocab_size = 16\n";
    let mut builtin = ModelRegistry::default();
    register_builtin(&mut builtin);
    let kinds = bridge_core::train::Registry::new(builtin).kinds();
    let rest = "[dataset]\nkind = \"mock\"\n[train]\ntrain_iters = 1\nglobal_batch_size = 1\nmicro_batch_size = 1\n[optimizer]\nlr = 0.1\n\
                [tokenizer]\ntokenizer_type = \"NullTokenizer\"\nvocab_size = 15\n";
    let (format, world) = (bridge_core::config::Format::Toml, bridge_core::config::World { size: 1 });
    let run = bridge_core::config::load_text(&format!("{text}{rest}"), format, &[], &kinds, &world).unwrap();
    registry.adapter(None, &run.model).map(|adapter| adapter.expect("a layer is an adapter"))
}

fn build_replaced(config: &DecoderConfig, layer: LinearForLastLayer) -> Result<Box<dyn ModelChunk>, ModelBuildError> {
    let context = BuildContext { adapter: Some(adapter(layer)?), ..context(config) };
    build_decoder(config, &context, &Stage::whole([config.num_layers]))
}

/// Half the sum of squares of all outputs; keeps the logits and hidden states that it was given.
#[derive(Debug, Default)]
struct Squares {
    seen: Mutex<Option<[Vec<f32>; 2]>>,
}

impl CustomLoss for Squares {
    fn loss_sum(&self, outputs: &ModelOutputs<'_>) -> Tensor<1> {
        let (values, hidden) = (outputs.logits(), outputs.hidden_states());
        *self.seen.lock().unwrap() =
            Some([floats(values.clone().without_autodiff()), floats(hidden.without_autodiff())]);
        values.powi_scalar(2).sum() * 0.5
    }
}

/// Loss, gradients, outputs and hidden states.
fn run(chunk: &dyn ModelChunk, mode: Mode) -> (f32, Values, [Vec<f32>; 2]) {
    let loss = Arc::new(Squares::default());
    let own = CustomLossCall::new(Arc::clone(&loss) as Arc<dyn CustomLoss>);
    let batch = Batch::new(&micro_batch(37), &device());
    let context = ForwardContext { custom_loss: Some(&own), ..ForwardContext::new(&batch, mode) };
    let sum = bridge_core::model::loss_sum(chunk, &context).unwrap();
    assert!(own.is_used());
    let value = sum.clone().into_scalar::<f32>();
    let mut gradients = sum.backward();
    let mut named = Values::new();
    chunk.take_gradients(&mut gradients, &mut |name, gradient| drop(named.insert(name.to_owned(), floats(gradient))));
    let seen = loss.seen.lock().unwrap().take().expect("the loss was computed");
    (value, named, seen)
}

#[test]
fn outputs_and_gradients_are_those_of_a_linear_layer() {
    for config in [llama(), gpt2(), everything()] {
        let chunk = build_replaced(&config, LAYER).unwrap();
        let parameters = values(chunk.as_ref());
        // No table of outputs; where the words are tied to it they stay.
        assert!(!parameters.contains_key("output_layer.weight"));
        let (weight_nc, bias_n) = (&parameters["last_layer.weight"], &parameters["last_layer.bias"]);
        let c = config.hidden_size;
        assert_eq!([weight_nc.len(), bias_n.len()], [3 * c, 3]);
        let bound = (c as f32).sqrt().recip();
        assert!(weight_nc.iter().chain(bias_n).all(|value| value.abs() <= bound));
        assert!(weight_nc.iter().any(|value| value.abs() > 0.8 * bound));
        let (loss, gradients, [found, hidden]) = run(chunk.as_ref(), Mode::Evaluate);
        let expected: Vec<f64> = (0..hidden.len() / c * 3)
            .map(|place| {
                let (token, output) = (place / 3, place % 3);
                let pairs = (0..c).map(|i| f64::from(hidden[token * c + i]) * f64::from(weight_nc[output * c + i]));
                pairs.sum::<f64>() + f64::from(bias_n[output])
            })
            .collect();
        let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<_>>();
        assert_close(&found, &narrow(&expected), 2e-6);
        let half_squares: f64 = expected.iter().map(|value| value * value / 2.0).sum();
        assert!((f64::from(loss) - half_squares).abs() <= 1e-5 * half_squares, "{loss}, expected {half_squares}");
        // The derivative of half a square is the value.
        let of_weight: Vec<f64> = (0..3 * c)
            .map(|place| {
                let (output, i) = (place / c, place % c);
                let tokens = 0..hidden.len() / c;
                tokens.map(|token| expected[token * 3 + output] * f64::from(hidden[token * c + i])).sum()
            })
            .collect();
        let of_bias = [0, 1, 2].map(|output| expected.iter().skip(output).step_by(3).sum::<f64>());
        assert_close(&gradients["last_layer.weight"], &narrow(&of_weight), 1e-5);
        assert_close(&gradients["last_layer.bias"], &narrow(&of_bias), 1e-5);
        // All of the model learns by it.
        assert_eq!(gradients.len(), parameters.len());
        let first = &gradients["embedding.word_embeddings.weight"];
        assert!(first.iter().any(|value| *value != 0.0));
        assert!(chunk.inference().logits(Tensor::zeros([1, 2], &Device::flex()), &mut chunk.new_state()).is_none());
    }
}

#[test]
fn its_dropout_is_of_training_alone() {
    let dropping = LinearForLastLayer { dropout: 0.5, ..LAYER };
    let (plain, dropped) = (build_replaced(&llama(), LAYER).unwrap(), build_replaced(&llama(), dropping).unwrap());
    let losses = |mode| [&plain, &dropped].map(|chunk| run(chunk.as_ref(), mode).0);
    let [expected, evaluated] = losses(Mode::Evaluate);
    assert_eq!(evaluated, expected);
    let [expected, trained] = losses(Mode::Train(Philox::new(3)));
    assert_ne!(trained, expected);
}

#[test]
fn layers_and_models_that_do_not_fit_are_refused() {
    let message = |config: &DecoderConfig, layer| build_replaced(config, layer).unwrap_err().to_string();
    let none = message(&llama(), LinearForLastLayer { output_size: 0, ..LAYER });
    assert!(none.contains("at least 1 output"), "{none}");
    let dropout = message(&llama(), LinearForLastLayer { dropout: 1.0, ..LAYER });
    assert!(dropout.contains("[0, 1)"), "{dropout}");
    let config = DecoderConfig { mtp_num_layers: 1, ..llama() };
    let predicting = message(&config, LAYER);
    assert!(predicting.starts_with("model.mtp_num_layers"), "{predicting}");
}
