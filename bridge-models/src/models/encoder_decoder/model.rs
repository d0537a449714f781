//! An encoder and a decoder, each optional or partial so that a pipeline stage is the same type as
//! the whole.
//!
//! The layers of a stack pass on an input that all of them read: the bias of relative positions,
//! which the segment before the stack makes. The encoder's carry the embedded input of the decoder,
//! so that the word embedding is on the first stage alone; the decoder's carry the encoder's
//! output. Shape legend: `s` tokens of the encoder's sequences, `t` of the decoder's.

use bridge_core::model::{
    Batch, Boundary, BoundaryTensor, BuildContext, ChunkScope, Component, Declarations, ForwardContext,
    GenerationState, HIDDEN_STATES, ParameterRole, Scope, SegmentOutput, SegmentRole, Segments, Stage,
};
use bridge_data::{ENCODER_MASK, ENCODER_TOKENS, SequencePart};
use bridge_kernels::DropoutKey;
use bridge_kernels::rotary::Positions;
use burn::module::Module;
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor};

use super::layer::{Layer, LayerInput, PARTS, Source, Stack};
use crate::architecture::config::{DecoderConfig, EncoderConfig, PositionEmbedding};
use crate::blocks::biased_attention::{Direction, RelativeBias, Scores};
use crate::blocks::embedding::{Embedding, Table, WORD_EMBEDDINGS};
use crate::blocks::head::{HeadOutputs, LastOutputs, Projection, Targets, loss_sum};
use crate::blocks::init::InitialValues;
use crate::blocks::norm::Norm;
use crate::blocks::regions::Regions;

/// The encoder's output on its way through the decoder.
const ENCODER: &str = "encoder";
/// The decoder's embedded input on its way through the encoder.
const DECODER_INPUT: &str = "decoder_input";
/// The bias of relative positions of the stack.
const POSITION_BIAS: &str = "position_bias";

/// Dropout sites outside layers. They count as sites of layer 0, and differ from its own.
mod dropout_site {
    pub const ENCODER_EMBEDDING: u64 = 16;
    pub const DECODER_EMBEDDING: u64 = 17;
    pub const ENCODER_OUTPUT: u64 = 18;
    pub const DECODER_OUTPUT: u64 = 19;
}

/// An encoder and a decoder, or one pipeline stage of them, and of that the slice that one rank
/// holds.
#[derive(Module, Debug)]
pub struct EncoderDecoder {
    pub(super) start: Option<Start>,
    pub(super) encoder: Vec<Layer>,
    pub(super) middle: Option<Middle>,
    pub(super) decoder: Vec<Layer>,
    pub(super) final_layernorm: Option<Norm>,
    /// The output table, unless it is the word embedding held by this very stage.
    output_layer: Option<Table>,
    #[module(skip)]
    pub(super) settings: Settings,
    #[module(skip)]
    pub(super) regions: Regions,
}

/// Modules before the encoder.
#[derive(Module, Debug)]
pub(super) struct Start {
    pub embedding: Embedding,
    pub bias: RelativeBias,
}

/// Modules between encoder and decoder.
#[derive(Module, Debug)]
pub(super) struct Middle {
    pub final_layernorm: Norm,
    pub bias: RelativeBias,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    encoder: EncoderConfig,
    /// First layer of the stage in each stack.
    first_layers: [usize; 2],
    hidden_size: usize,
    /// Heads of this rank.
    num_heads: usize,
    /// Dtype of the residual stream.
    dtype: FloatDType,
    dropout: f64,
    logit_softcap: Option<f64>,
    /// Rows of the whole vocabulary.
    vocab_size: usize,
}

/// Part of the model that a segment is.
#[derive(Clone, Copy)]
enum Part {
    Start,
    /// The layer of the stage and the part of it.
    Encoder(usize, usize),
    Middle,
    Decoder(usize, usize),
    Head,
}

/// Declarations of a stage of the model on the rank of `scope`. No tensors are made.
pub(crate) fn declare(config: &DecoderConfig, scope: ChunkScope, stage: &Stage) -> Declarations {
    Parts::new(config, stage, &scope);
    scope.finish()
}

/// Modules that own parameters.
struct Parts {
    start: Option<Start>,
    encoder: Vec<Layer>,
    middle: Option<Middle>,
    decoder: Vec<Layer>,
    final_layernorm: Option<Norm>,
    output_layer: Option<Table>,
}

impl Parts {
    /// Declares and makes the parts of `stage`, segment by segment.
    fn new(config: &DecoderConfig, stage: &Stage, scope: &ChunkScope) -> Self {
        let encoder = config.encoder.as_ref().expect("a model of this kind has an encoder");
        let PositionEmbedding::Relative(relative) = config.position_embedding else {
            panic!("positions of a model with an encoder are relative: it is validated before");
        };
        let [first, second] = stage.stacks.as_slice() else {
            panic!("a model with an encoder is built from a stage of two stacks");
        };
        let norm = |scope: &Scope| Norm::new(config.norm, config.hidden_size, scope, "final_layernorm");
        let layers = |stack, before: usize, layers: &std::ops::Range<usize>| {
            layers.clone().map(|index| Layer::new(config, stack, index, before + index, scope)).collect()
        };
        let start = first.start.then(|| {
            let segment = scope.segment(SegmentRole::Embedding, None);
            Start {
                embedding: Embedding::new(config, &segment.child("embedding")),
                bias: RelativeBias::new(config, relative, Direction::Both, &segment.child("encoder")),
            }
        });
        let encoder_layers = layers(Stack::Encoder, 0, &first.layers);
        let middle = first.end.then(|| {
            let segment = scope.segment(SegmentRole::StackEnd, None);
            Middle {
                final_layernorm: norm(&segment.child("encoder")),
                bias: RelativeBias::new(config, relative, Direction::Causal, &segment.child("decoder")),
            }
        });
        let decoder_layers = layers(Stack::Decoder, encoder.num_layers, &second.layers);
        let head = second.end.then(|| scope.segment(SegmentRole::Head, None));
        let final_layernorm = head.as_ref().map(|head| norm(&head.child("decoder")));
        let output_layer = head.and_then(|head| match (config.share_embeddings_and_output_weights, &start) {
            (true, Some(_)) => {
                head.uses(WORD_EMBEDDINGS);
                None
            }
            (true, None) => Some(Embedding::words_at(config, &head.component(Component::Embedding).child("embedding"))),
            (false, _) => {
                let shape = [config.padded_vocab_size, config.hidden_size];
                let initial = InitialValues::new(config).output_table;
                Some(Table::of_vocabulary(shape, initial, ParameterRole::Output, &head.child("output_layer")))
            }
        });
        Self { start, encoder: encoder_layers, middle, decoder: decoder_layers, final_layernorm, output_layer }
    }
}

impl EncoderDecoder {
    /// Builds `stage` of the model `config` describes, and declares its parameters in `scope`.
    ///
    /// # Panics
    /// If the configuration has no encoder, or the stage is not one of two stacks.
    pub fn new(config: &DecoderConfig, context: &BuildContext, stage: &Stage, scope: &ChunkScope) -> Self {
        let Parts { start, encoder, middle, decoder, final_layernorm, output_layer } = Parts::new(config, stage, scope);
        let regions = Regions::new(&context.parallel);
        Self {
            start,
            encoder,
            middle,
            decoder,
            final_layernorm,
            output_layer,
            settings: Settings {
                encoder: config.encoder.expect("a model of this kind has an encoder"),
                first_layers: [stage.stacks[0].layers.start, stage.stacks[1].layers.start],
                hidden_size: config.hidden_size,
                num_heads: config.num_attention_heads / regions.tensor().size(),
                dtype: context.params_dtype,
                dropout: config.hidden_dropout,
                logit_softcap: config.logit_softcap,
                vocab_size: config.padded_vocab_size,
            },
            regions,
        }
    }

    fn parts(&self) -> Vec<Part> {
        let of_layer =
            |part: fn(usize, usize) -> Part| move |layer| (0..PARTS.len()).map(move |index| part(layer, index));
        let mut parts = Vec::new();
        parts.extend(self.start.is_some().then_some(Part::Start));
        parts.extend((0..self.encoder.len()).flat_map(of_layer(Part::Encoder)));
        parts.extend(self.middle.is_some().then_some(Part::Middle));
        parts.extend((0..self.decoder.len()).flat_map(of_layer(Part::Decoder)));
        parts.extend(self.final_layernorm.is_some().then_some(Part::Head));
        parts
    }

    fn start(&self, context: &ForwardContext) -> Boundary {
        let start = self.start.as_ref().expect("a stage with this segment has its parameters");
        let batch = context.batch;
        assert_eq!(batch.part, SequencePart::Whole, "a model with an encoder has whole sequences");
        let source = encoder_tokens(batch);
        let [_, s] = source.dims();
        let embed = |tokens, site| {
            start.embedding.forward(tokens, &Positions::From(0), &self.regions, context.dropout_key(0, site))
        };
        Boundary::hidden_states(embed(source, dropout_site::ENCODER_EMBEDDING))
            .with(DECODER_INPUT, embed(batch.tokens.clone(), dropout_site::DECODER_EMBEDDING))
            .with(POSITION_BIAS, start.bias.forward(s, s))
    }

    fn middle(&self, mut input: Boundary, context: &ForwardContext) -> Boundary {
        let middle = self.middle.as_ref().expect("a stage with this segment has its parameters");
        let [_, t] = context.batch.tokens.dims();
        let encoder = middle.final_layernorm.forward(input.take_hidden_states());
        let encoder = self.dropout(encoder, context.dropout_key(0, dropout_site::ENCODER_OUTPUT));
        input.take(POSITION_BIAS);
        let decoder_input = input.take(DECODER_INPUT);
        input.with(HIDDEN_STATES, decoder_input).with(ENCODER, encoder).with(POSITION_BIAS, middle.bias.forward(t, t))
    }

    fn layer(
        &self,
        stack: Stack,
        local: usize,
        part: usize,
        mut input: Boundary,
        context: &ForwardContext,
    ) -> Boundary {
        let Settings { encoder, first_layers, .. } = self.settings;
        let (layer, number) = match stack {
            Stack::Encoder => (&self.encoder[local], first_layers[0] + local),
            Stack::Decoder => (&self.decoder[local], encoder.num_layers + first_layers[1] + local),
        };
        let key = |site| context.dropout_key(number, site);
        let max_logit = context.auxiliary.metrics.and_then(|metrics| metrics.attention_scores_of(number));
        let layer_input = LayerInput {
            regions: &self.regions,
            weight_gradients: context.weight_gradients,
            key: &key,
            max_logit: max_logit.as_deref(),
        };
        let x_btc = input.take_hidden_states();
        if PARTS[part] == SegmentRole::Mlp {
            return input.with(HIDDEN_STATES, layer.feed_forward(x_btc, layer_input));
        }
        let bias_hts = input.get(POSITION_BIAS).cloned();
        let padding = hidden_padding(context.batch);
        let (hidden, source) = match stack {
            Stack::Encoder => (padding, None),
            Stack::Decoder => {
                let encoder = input.get(ENCODER).expect("the encoder's output passes by").clone();
                let keys_and_values = layer.keys_and_values(encoder, layer_input);
                let scores = Scores { bias_hts: None, hidden: Some(padding) };
                let [_, t] = context.batch.tokens.dims();
                (hidden_future(t, t, &x_btc.device()), Some(Source { keys_and_values, scores }))
            }
        };
        let scores = Scores { bias_hts, hidden: Some(hidden) };
        let x_btc = layer.attention(x_btc, scores, None, source, layer_input);
        input.with(HIDDEN_STATES, x_btc)
    }

    fn head(&self, x_btc: Tensor<3>, context: &ForwardContext) -> Tensor<1> {
        let (x_btc, projection) =
            self.output(x_btc, context.dropout_key(0, dropout_site::DECODER_OUTPUT)).expect("the stage has the head");
        if let Some(own) = context.custom_loss {
            let parts = HeadOutputs { x_btc, last: LastOutputs::Vocabulary(projection), regions: &self.regions };
            return own.loss_sum(context.batch, context.mode, &parts);
        }
        let targets = Targets { labels_bt: context.batch.labels.clone(), mask_bt: context.batch.loss_mask.clone() };
        loss_sum(x_btc, projection, targets, &self.regions, None)
    }

    /// Input of the output projection, and the projection, on stages that have the head.
    pub(super) fn output(&self, x_btc: Tensor<3>, key: Option<DropoutKey>) -> Option<(Tensor<3>, Projection)> {
        let norm = self.final_layernorm.as_ref()?;
        let weight_vc = match (&self.output_layer, &self.start) {
            (Some(table), _) => table.weight(),
            (None, Some(start)) => start.embedding.word_embeddings().weight(),
            (None, None) => return None,
        };
        let Settings { encoder, hidden_size, vocab_size, logit_softcap: softcap, .. } = self.settings;
        let x_btc = self.dropout(norm.forward(x_btc), key);
        let multiplier = if encoder.scale_outputs { (hidden_size as f64).powf(-0.5) } else { 1.0 };
        Some((x_btc, Projection { weight_vc, bias_v: None, vocab_size, multiplier, softcap }))
    }

    fn dropout(&self, x_btc: Tensor<3>, key: Option<DropoutKey>) -> Tensor<3> {
        self.regions.dropout(x_btc, self.settings.dropout, key)
    }
}

/// The encoder's tokens, `[b, s]`.
fn encoder_tokens(batch: &Batch) -> Tensor<2, Int> {
    let tokens = batch.extras.get(ENCODER_TOKENS).and_then(|extra| extra.ints());
    tokens.expect("the configuration has checked that the dataset brings the encoder's tokens, [b, s]")
}

/// True where the encoder has padding, `[b, 1, 1, s]`.
fn hidden_padding(batch: &Batch) -> Tensor<4, Bool> {
    let mask = batch.extras.get(ENCODER_MASK).and_then(|extra| extra.floats::<2>());
    let mask = mask.expect("the configuration has checked that the dataset brings the encoder's mask, [b, s]");
    let [b, s] = mask.dims();
    mask.equal_elem(0.0).reshape([b, 1, 1, s])
}

/// True where one of the `t` last of `s` positions must not see a key, `[1, 1, t, s]`.
pub(super) fn hidden_future(t: usize, s: usize, device: &Device) -> Tensor<4, Bool> {
    let device = device.clone().without_autodiff();
    let query = Tensor::<1, Int>::arange((s - t) as i64..s as i64, &device).reshape([t, 1]).expand([t, s]);
    let key = Tensor::<1, Int>::arange(0..s as i64, &device).reshape([1, s]).expand([t, s]);
    let hidden: Tensor<2, Bool> = key.greater(query);
    hidden.reshape([1, 1, t, s])
}

impl Segments for EncoderDecoder {
    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor> {
        let ([b, t], [_, s]) = (batch.tokens.dims(), encoder_tokens(batch).dims());
        let Settings { encoder, first_layers, hidden_size: c, num_heads, dtype, .. } = self.settings;
        let stream = |name, length| BoundaryTensor { name, shape: [b, self.regions.own_rows(length).len(), c], dtype };
        let bias = |length| BoundaryTensor { name: POSITION_BIAS, shape: [num_heads, length, length], dtype };
        let in_encoder = || vec![stream(HIDDEN_STATES, s), stream(DECODER_INPUT, t), bias(s)];
        let in_decoder = || vec![stream(HIDDEN_STATES, t), stream(ENCODER, s), bias(t)];
        let parts = self.parts();
        // Tensors that a segment reads; after the last segment, tensors that it has made.
        match (parts.get(index), parts.last()) {
            (Some(Part::Start), _) | (None, Some(Part::Head)) => Vec::new(),
            (Some(Part::Encoder(..) | Part::Middle), _) | (None, Some(Part::Start | Part::Encoder(..))) => in_encoder(),
            (Some(Part::Decoder(..) | Part::Head), _) | (None, Some(Part::Middle | Part::Decoder(..))) => in_decoder(),
            (None, None) if first_layers[0] < encoder.num_layers => in_encoder(),
            (None, None) => in_decoder(),
        }
    }

    fn forward_segment(&self, index: usize, mut input: Boundary, context: &ForwardContext) -> SegmentOutput {
        SegmentOutput::Boundary(match self.parts()[index] {
            Part::Start => self.start(context),
            Part::Encoder(local, part) => self.layer(Stack::Encoder, local, part, input, context),
            Part::Middle => self.middle(input, context),
            Part::Decoder(local, part) => self.layer(Stack::Decoder, local, part, input, context),
            Part::Head => return SegmentOutput::LossSum(self.head(input.take_hidden_states(), context)),
        })
    }

    fn read_source(&self, source_bs: Tensor<2, Int>, state: &mut GenerationState) -> Option<()> {
        self.encode(source_bs, state)
    }

    fn logits(&self, tokens_bt: Tensor<2, Int>, state: &mut GenerationState) -> Option<Tensor<3>> {
        self.decode(tokens_bt, state)
    }

    fn new_state(&self) -> GenerationState {
        self.nothing_seen()
    }
}
