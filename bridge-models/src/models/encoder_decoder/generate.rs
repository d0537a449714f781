//! Generation: the encoder once, then the decoder token by token, with KV caches of its own tokens
//! and of the encoder's output.

use bridge_core::model::{GenerationState, LayerState};
use bridge_kernels::rotary::Positions;
use burn::tensor::{Int, Tensor};

use super::layer::{LayerInput, Source};
use super::model::{EncoderDecoder, hidden_future};
use crate::blocks::biased_attention::Scores;
use crate::blocks::head::logits;
use crate::blocks::key_values::KeyValues;

/// Generation state of a layer of the decoder.
struct DecoderState {
    own: KeyValues,
    /// Keys and values of the encoder's output, `[b, s, h, d]` each, once it has been read.
    source: Option<[Tensor<4>; 2]>,
}

impl EncoderDecoder {
    pub(super) fn nothing_seen(&self) -> GenerationState {
        let state = || DecoderState { own: KeyValues::new(None), source: None };
        GenerationState::new(self.decoder.iter().map(|_| Box::new(state()) as LayerState).collect())
    }

    /// Runs the encoder on `[b, s]`, all of it tokens, and keeps the parts of its output that the
    /// decoder's layers read.
    pub(super) fn encode(&self, source_bs: Tensor<2, Int>, state: &mut GenerationState) -> Option<()> {
        let (start, middle) = (self.start.as_ref()?, self.middle.as_ref()?);
        let regions = self.regions.with_whole_sequences();
        let input = LayerInput { regions: &regions, weight_gradients: None, key: &|_| None, max_logit: None };
        let [_, s] = source_bs.dims();
        let scores = Scores { bias_hts: Some(start.bias.forward(s, s)), hidden: None };
        let mut x_bsc = start.embedding.forward(source_bs, &Positions::From(0), &regions, None);
        for layer in &self.encoder {
            x_bsc = layer.attention(x_bsc, scores.clone(), None, None, input);
            x_bsc = layer.feed_forward(x_bsc, input);
        }
        let encoder_bsc = middle.final_layernorm.forward(x_bsc);
        for (local, layer) in self.decoder.iter().enumerate() {
            let remembered: &mut DecoderState = state.layer(local);
            remembered.source = Some(layer.keys_and_values(encoder_bsc.clone(), input));
        }
        Some(())
    }

    /// Next-token logits, `[b, t]` -> `[b, t, v]`; `None` before the encoder has run.
    pub(super) fn decode(&self, tokens_bt: Tensor<2, Int>, state: &mut GenerationState) -> Option<Tensor<3>> {
        let (start, middle) = (self.start.as_ref()?, self.middle.as_ref()?);
        let regions = self.regions.with_whole_sequences();
        let input = LayerInput { regions: &regions, weight_gradients: None, key: &|_| None, max_logit: None };
        let [_, t] = tokens_bt.dims();
        let seen = state.length + t;
        let mut x_btc = start.embedding.forward(tokens_bt, &Positions::From(0), &regions, None);
        // One token sees all before it.
        let hidden = (t > 1).then(|| hidden_future(t, seen, &x_btc.device()));
        let scores = Scores { bias_hts: Some(middle.bias.forward(t, seen)), hidden };
        for (local, layer) in self.decoder.iter().enumerate() {
            let remembered: &mut DecoderState = state.layer(local);
            let source = Source { keys_and_values: remembered.source.clone()?, scores: Scores::default() };
            x_btc = layer.attention(x_btc, scores.clone(), Some(&mut remembered.own), Some(source), input);
            x_btc = layer.feed_forward(x_btc, input);
        }
        state.length = seen;
        let (x_btc, projection) = self.output(x_btc, None)?;
        Some(logits(x_btc, projection, &regions))
    }
}
