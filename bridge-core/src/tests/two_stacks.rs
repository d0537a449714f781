//! An encoder and a decoder for tests of boundaries with several tensors, of different shapes and
//! dtypes.
//!
//! Between decoder layers pass `encoder`, which every layer reads and passes on, and two streams:
//! `hidden_states`, which every layer changes, and `second`, which layers of even number change and
//! odd layers pass on. Both streams reach the loss.

use std::ops::Range;

use bridge_data::{Extra, MicroBatch};
use bridge_dist::schedule::placement::StageContent;
use bridge_kernels::{embedding, linear_cross_entropy, rms_norm};
use burn::module::{Module, Param};
use burn::tensor::activation::softmax;
use burn::tensor::{FloatDType, Tensor};

use super::toy::{HIDDEN, ToyLayer, VOCAB, linear_of, micro_batch, parameter, scope};
use crate::model::{
    Batch, Boundary, BoundaryTensor, ChunkScope, ForwardContext, HIDDEN_STATES, ModelChunk, ModuleChunk, ParameterRole,
    Scope, SegmentOutput, SegmentRole, Segments, StackPart, Stage,
};

/// Layers of encoder and decoder.
pub const STACKS: [usize; 2] = [3, 4];
const ENCODER: &str = "encoder";
const SECOND: &str = "second";
/// Width of the second stream.
const WIDTH: usize = 5;
/// The encoder's output crosses boundaries in another dtype than the streams.
const ENCODER_DTYPE: FloatDType = FloatDType::F64;

#[derive(Module, Debug)]
struct DecoderLayer {
    block: ToyLayer,
    cross: Param<Tensor<2>>,
    /// Projection from the first stream to the second, in the layers that update the second.
    mix: Option<Param<Tensor<2>>>,
}

/// Start of the decoder: a table for each stream.
#[derive(Module, Debug)]
struct DecoderStart {
    table: Param<Tensor<2>>,
    second_table: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Head {
    output: Param<Tensor<2>>,
    second_output: Param<Tensor<2>>,
}

/// The model, or a stage of it.
#[derive(Module, Debug)]
pub struct TwoStacks {
    encoder_table: Option<Param<Tensor<2>>>,
    encoder: Vec<ToyLayer>,
    encoder_norm: Option<Param<Tensor<1>>>,
    start: Option<DecoderStart>,
    decoder: Vec<DecoderLayer>,
    head: Option<Head>,
    #[module(skip)]
    parts: [StackPart; 2],
}

/// The stage with these layers, numbered through both stacks; the embedding is with the first
/// layer, the loss with the last.
pub fn two_stacks(layers: Range<usize>) -> Box<dyn ModelChunk> {
    let total: usize = STACKS.iter().sum();
    let (embedding, loss) = (layers.start == 0, layers.end == total);
    let stage = Stage::from_content(&STACKS, &StageContent { embedding, layers, num_mtp_layers: 0, loss });
    let parts: [StackPart; 2] = stage.stacks.try_into().expect("one part for each stack");
    let scope = scope(FloatDType::F32);
    let model = TwoStacks::new(parts, &scope);
    Box::new(ModuleChunk::new(model, scope.finish()).expect("the model declares what it has"))
}

impl TwoStacks {
    fn new(parts: [StackPart; 2], scope: &ChunkScope) -> Self {
        let [encoder, decoder] = parts.clone();
        let embedding = || scope.segment(SegmentRole::Embedding, None);
        let layer = |number| scope.segment(SegmentRole::Layer, Some(number));
        let table = |scope: &Scope, name, width| parameter(scope, name, [VOCAB, width], ParameterRole::Embedding);
        Self {
            encoder_table: encoder.start.then(|| table(&embedding(), "encoder_table", HIDDEN)),
            encoder: encoder.layers.clone().map(|i| ToyLayer::new(&layer(i).child(&format!("encoder.{i}")))).collect(),
            encoder_norm: encoder.end.then(|| {
                let scope = scope.segment(SegmentRole::StackEnd, None);
                parameter(&scope, "encoder_norm", [HIDDEN], ParameterRole::Norm)
            }),
            start: decoder.start.then(|| {
                let scope = embedding();
                DecoderStart {
                    table: table(&scope, "table", HIDDEN),
                    second_table: table(&scope, "second_table", WIDTH),
                }
            }),
            decoder: decoder
                .layers
                .map(|i| DecoderLayer::new(i, &layer(STACKS[0] + i).child(&format!("decoder.{i}"))))
                .collect(),
            head: decoder.end.then(|| {
                let scope = scope.segment(SegmentRole::Head, None);
                Head { output: table(&scope, "output", HIDDEN), second_output: table(&scope, "second_output", WIDTH) }
            }),
            parts,
        }
    }
}

impl DecoderLayer {
    fn new(i: usize, scope: &Scope) -> Self {
        let matrix = |name: &str, shape: [usize; 2]| parameter(scope, name, shape, ParameterRole::Weight);
        Self {
            block: ToyLayer::new(scope),
            cross: matrix("cross", [HIDDEN, HIDDEN]),
            mix: i.is_multiple_of(2).then(|| matrix("mix", [WIDTH, HIDDEN])),
        }
    }
}

/// Sequences for the decoder, and for the encoder as the extra tensor `source`, of another length.
pub fn source_and_target(b: usize, t: usize, seed: u64) -> MicroBatch {
    let s = t + 3;
    let source = Extra::ints(micro_batch(b, s, seed + 1000).tokens, &[b, s]);
    MicroBatch { extras: [("source".to_owned(), source)].into(), ..micro_batch(b, t, seed) }
}

/// Part of the model that a segment is.
#[derive(Clone, Copy)]
enum Part {
    EncoderStart,
    /// The number of the layer, counted in the chunk.
    Encoder(usize),
    EncoderEnd,
    DecoderStart,
    Decoder(usize),
    Head,
}

impl TwoStacks {
    fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        parts.extend(self.encoder_table.is_some().then_some(Part::EncoderStart));
        parts.extend((0..self.encoder.len()).map(Part::Encoder));
        parts.extend(self.encoder_norm.is_some().then_some(Part::EncoderEnd));
        parts.extend(self.start.is_some().then_some(Part::DecoderStart));
        parts.extend((0..self.decoder.len()).map(Part::Decoder));
        parts.extend(self.head.is_some().then_some(Part::Head));
        parts
    }

    /// The number of a layer of this chunk in its stack.
    fn number(&self, stack: usize, local: usize) -> usize {
        self.parts[stack].layers.start + local
    }

    fn decoder_layer(&self, local: usize, mut input: Boundary, context: &ForwardContext) -> Boundary {
        let (layer, number) = (&self.decoder[local], self.number(1, local));
        let name = format!("decoder.{number}");
        let x = input.take_hidden_states();
        let encoder = input.get(ENCODER).expect("the encoder's output passes by").clone().cast(FloatDType::F32);
        let weights = softmax(x.clone().matmul(encoder.clone().swap_dims(1, 2)), 2);
        let read = linear_of(weights.matmul(encoder), &layer.cross, None, &format!("{name}.cross"), context);
        let x = layer.block.forward(x + read, &name, context.dropout_key(STACKS[0] + number, 0), context);
        let output = match &layer.mix {
            Some(mix) => {
                let mixed = linear_of(x.clone(), mix, None, &format!("{name}.mix"), context);
                let second = input.take(SECOND);
                input.with(SECOND, second + mixed)
            }
            None => input,
        };
        output.with(HIDDEN_STATES, x)
    }
}

impl Segments for TwoStacks {
    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor> {
        let [b, t] = batch.tokens.dims();
        let s = batch.extras["source"].shape()[1];
        let stream = |name, shape| BoundaryTensor { name, shape, dtype: FloatDType::F32 };
        let in_encoder = vec![stream(HIDDEN_STATES, [b, s, HIDDEN])];
        let in_decoder = vec![
            BoundaryTensor { name: ENCODER, shape: [b, s, HIDDEN], dtype: ENCODER_DTYPE },
            stream(HIDDEN_STATES, [b, t, HIDDEN]),
            stream(SECOND, [b, t, WIDTH]),
        ];
        let parts = self.parts();
        // Tensors that a segment reads; after the last segment, tensors that it has made. A stage
        // without segments is between two layers of the decoder.
        match (parts.get(index), parts.last()) {
            (Some(Part::EncoderStart), _) | (None, Some(Part::Head)) => Vec::new(),
            (Some(Part::Encoder(_) | Part::EncoderEnd | Part::DecoderStart), _) => in_encoder,
            (Some(Part::Decoder(_) | Part::Head), _) => in_decoder,
            (None, Some(Part::EncoderStart | Part::Encoder(_) | Part::EncoderEnd)) => in_encoder,
            (None, Some(Part::DecoderStart | Part::Decoder(_)) | None) => in_decoder,
        }
    }

    fn forward_segment(&self, index: usize, mut input: Boundary, context: &ForwardContext) -> SegmentOutput {
        let batch = context.batch;
        SegmentOutput::Boundary(match self.parts()[index] {
            Part::EncoderStart => {
                let table = self.encoder_table.as_ref().expect("a stage with this segment has the table");
                let source = batch.extras["source"].ints().expect("integers, `[b, s]`");
                Boundary::hidden_states(embedding(table.val(), source))
            }
            Part::Encoder(local) => {
                let number = self.number(0, local);
                let key = context.dropout_key(number, 0);
                let x = input.take_hidden_states();
                Boundary::hidden_states(self.encoder[local].forward(x, &format!("encoder.{number}"), key, context))
            }
            Part::EncoderEnd => {
                let norm = self.encoder_norm.as_ref().expect("a stage with this segment has the norm");
                Boundary::hidden_states(rms_norm(input.take_hidden_states(), norm.val(), 1e-5))
            }
            Part::DecoderStart => {
                let start = self.start.as_ref().expect("a stage with this segment has its parameters");
                let encoder = input.take_hidden_states().cast(ENCODER_DTYPE);
                // Not in the declared order.
                Boundary::hidden_states(embedding(start.table.val(), batch.tokens.clone()))
                    .with(SECOND, embedding(start.second_table.val(), batch.tokens.clone()))
                    .with(ENCODER, encoder)
            }
            Part::Decoder(local) => self.decoder_layer(local, input, context),
            Part::Head => {
                let head = self.head.as_ref().expect("a stage with this segment has its parameters");
                let loss = |x: Tensor<3>, table: &Param<Tensor<2>>| {
                    let (labels, mask) = (batch.labels.clone().flatten(0, 1), batch.loss_mask.clone().flatten(0, 1));
                    linear_cross_entropy(x.flatten::<2>(0, 1), table.val(), labels, mask, &Default::default())
                };
                let first = loss(input.take_hidden_states(), &head.output);
                return SegmentOutput::LossSum(first + loss(input.take(SECOND), &head.second_output));
            }
        })
    }
}
