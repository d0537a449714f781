//! The decoder: embedding, layers, head, each optional or partial so that a pipeline stage is the
//! same type as the whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use bridge_core::model::{
    Adapter, Auxiliary, Batch, Boundary, BoundaryTensor, BuildContext, ChunkScope, Component, Declaration,
    Declarations, ForwardContext, GenerationState, HIDDEN_STATES, Initial, LastLayer, LayerState, Outline,
    ParameterRole, RankPlace, Scope, Segment, SegmentCost, SegmentOutput, SegmentRole, Segments, Stage, TOKEN_ACCURACY,
    TensorPartition, Workload,
};
use bridge_data::SequencePart;
use bridge_kernels::TokenAccuracy;
use bridge_kernels::rotary::Positions;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{FloatDType, Int, Tensor};

use super::decoder_layer::DecoderLayer;
use super::mtp::{self, MultiTokenPrediction};
use super::passing::{CHOSEN_KEYS, PER_LAYER_INPUTS, Passing, Place, with_passing};
use super::shared_block::SharedBlock;
use super::transformer_layer::LayerInput;
use crate::architecture::config::DecoderConfig;
use crate::architecture::derived::WORDS;
use crate::blocks::altup::StreamProjections;
use crate::blocks::attention::{AttentionInput, SharedKeyValues};
use crate::blocks::embedding::{Embedding, Table, WORD_EMBEDDINGS, rows_of_words};
use crate::blocks::head::{
    HeadOutputs, LastOutputs, Projection, Targets, cost as head_cost, cost_replaced, logits, loss_sum,
};
use crate::blocks::hyper_connection::{self, HyperConnection, StreamUse};
use crate::blocks::init::InitialValues;
use crate::blocks::moe::MoeInput;
use crate::blocks::norm::{Norm, statistics};
use crate::blocks::regions::Regions;
use crate::blocks::residual::scaled;
use crate::blocks::rope::Rotary;
use crate::models::encoder_decoder;

/// Numbers of the dropout sites in a layer. A layer and a site identify a dropout mask.
mod dropout_site {
    pub const EMBEDDING: u64 = 0;
    pub const ATTENTION_PROBABILITIES: u64 = 1;
    pub const ATTENTION_OUTPUT: u64 = 2;
    pub const MLP_OUTPUT: u64 = 3;
    pub const ROUTER: u64 = 4;
    pub const LAST_LAYER: u64 = 5;
}

/// A decoder, or one pipeline stage of it, and of that the slice that one rank holds.
#[derive(Module, Debug)]
pub struct Decoder {
    embedding: Option<Embedding>,
    decoder: Block,
    /// The output table, unless it is the word embedding held by this very stage.
    output_layer: Option<Table>,
    output_bias: Option<OutputBias>,
    /// Replacement of the output projection, instead of an output table.
    last_layer: Option<LastLayer>,
    /// Layers of multi-token prediction, on a stage with the head.
    prediction: Option<MultiTokenPrediction>,
    #[module(skip)]
    rotary: Option<Rotary>,
    /// Names of the tensors beside the residual stream before each layer, and behind the last one.
    #[module(skip)]
    carried: Vec<Vec<&'static str>>,
    #[module(skip)]
    settings: Settings,
    /// Tensors that pass layers beside the residual stream.
    #[module(skip)]
    passing: Vec<Passing>,
    #[module(skip)]
    regions: Regions,
}

/// Bias of the output projection, whose table may be the word embedding.
#[derive(Module, Debug)]
struct OutputBias {
    bias: Param<Tensor<1>>,
}

impl OutputBias {
    fn new(config: &DecoderConfig, head: &Scope) -> Self {
        let (shape, cut) = ([config.padded_vocab_size], TensorPartition::VocabularyRows);
        let scope = head.child("output_layer");
        Self { bias: scope.parameter("bias", shape, cut, Initial::Zeros, ParameterRole::Bias) }
    }
}

#[derive(Module, Debug)]
struct Block {
    layers: Vec<DecoderLayer>,
    /// Weights with which the head reads several streams.
    final_connection: Option<HyperConnection>,
    /// Projections of further streams, of which the head reads the mean.
    altup_unembed: Option<StreamProjections>,
    final_layernorm: Option<Norm>,
}

impl Block {
    /// The stream that the head reads, before its norm: `[b, t, n * c]` -> `[b, t, c]`.
    fn read_streams(&self, x_btf: Tensor<3>) -> Tensor<3> {
        match (&self.final_connection, &self.altup_unembed) {
            (Some(connection), _) => connection.read(x_btf).0,
            (None, Some(altup)) => altup.mean(x_btf),
            (None, None) => x_btf,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    first_layer: usize,
    stream_size: usize,
    /// Dtype of the residual stream.
    dtype: FloatDType,
    /// Dtype of the parameters.
    params_dtype: FloatDType,
    logit_multiplier: f64,
    logit_softcap: Option<f64>,
    /// Rows of the whole vocabulary.
    vocab_size: usize,
    /// Layers of the whole model.
    num_layers: usize,
    embedding_multiplier: f64,
    embedding_dropout: f64,
}

/// Tokens of a generation so far, kept if rotary embeddings depend on the length of the sequence:
/// layers may then have to process them again.
#[derive(Debug, Default)]
struct TokenHistory(Option<Tensor<2, Int>>);

/// Modules that own parameters. Their names, which are Megatron's, come from the scopes that they
/// are declared in.
struct Modules {
    embedding: Option<Embedding>,
    decoder: Block,
    output_layer: Option<Table>,
    output_bias: Option<OutputBias>,
    last_layer: Option<LastLayer>,
    prediction: Option<MultiTokenPrediction>,
}

impl Modules {
    /// Declares and makes the modules of `stage`, segment by segment.
    ///
    /// If embedding and output are tied and the stage has only the head, it gets its own copy of
    /// the word embedding, with the same name and the same initial values as the first stage's.
    fn new(config: &DecoderConfig, stage: &Stage, scope: &ChunkScope) -> Self {
        let embedding = || Embedding::new(config, &scope.segment(SegmentRole::Embedding, None).child("embedding"));
        let part = stage.only_stack();
        let embedding = part.start.then(embedding);
        let layers = part.layers.clone().map(|index| DecoderLayer::new(config, index, scope)).collect();
        let head = part.end.then(|| scope.segment(SegmentRole::Head, None));
        let norm = |head: &Scope| Norm::new(config.norm, config.hidden_size, &head.child("decoder"), "final_layernorm");
        let connection = |head: &Scope| {
            HyperConnection::new(config, StreamUse::Read, &head.child("decoder").child("final_hyper_connection"))
        };
        let final_connection = head.as_ref().and_then(connection);
        let altup_unembed = head
            .as_ref()
            .and_then(|head| StreamProjections::new(config, &head.child("decoder"), "altup_unembed_projections"));
        let final_layernorm = head.as_ref().map(norm);
        let last_layer = head.as_ref().and_then(|head| LastLayer::declare(head, config.hidden_size));
        let with_projection = head.as_ref().filter(|_| last_layer.is_none());
        let output_layer =
            with_projection.and_then(|head| match (config.share_embeddings_and_output_weights, &embedding) {
                (true, Some(_)) => {
                    head.uses(WORD_EMBEDDINGS);
                    None
                }
                (true, None) => {
                    Some(Embedding::words_at(config, &head.component(Component::Embedding).child("embedding")))
                }
                (false, _) => {
                    let shape = [config.padded_vocab_size, config.hidden_size];
                    let initial = InitialValues::new(config).output_table;
                    Some(Table::of_vocabulary(shape, initial, ParameterRole::Output, &head.child("output_layer")))
                }
            });
        let with_bias = with_projection.filter(|_| config.output_bias);
        let output_bias = with_bias.map(|head| OutputBias::new(config, head));
        let has_words = embedding.is_some() || config.share_embeddings_and_output_weights;
        let words = if has_words { mtp::WordEmbedding::OnStage } else { mtp::WordEmbedding::Elsewhere };
        let prediction = head.and_then(|head| MultiTokenPrediction::new(config, &words, &head));
        Self {
            embedding,
            decoder: Block { layers, final_connection, altup_unembed, final_layernorm },
            output_layer,
            output_bias,
            last_layer,
            prediction,
        }
    }
}

/// Declarations of a stage of the model `config` on the rank of `scope`. No tensors are made.
fn declare(config: &DecoderConfig, scope: ChunkScope, stage: &Stage) -> Declarations {
    Modules::new(config, stage, &scope);
    scope.finish()
}

/// Declarations and cost of a stage of the model `config` on the rank of `work`. No tensors are
/// made.
pub(super) fn outline(
    config: &DecoderConfig,
    work: &Workload,
    stage: &Stage,
    adapter: Option<Arc<dyn Adapter>>,
) -> Outline {
    if config.encoder.is_some() {
        return encoder_decoder::outline(config, work, stage, adapter);
    }
    let declarations = declare(config, ChunkScope::outline(work.place, adapter.clone()), stage);
    let in_layer = |number| work.in_layer(adapter.as_deref(), number);
    // Layers of multi-token prediction are part of the head.
    let predicting = in_layer(Some(config.num_layers));
    let outputs = declarations.parameters().iter().find(|info| info.of_last_layer).map(|info| info.shape[0]);
    let of = |segment: &Segment| cost(config, *segment, outputs, [&in_layer(segment.layer), &predicting]);
    let costs = declarations.segments().iter().map(of).collect();
    Outline { declarations, costs: Some(costs) }.adapted(work)
}

/// Cost of a segment. `outputs` replaces the vocabulary as the number of outputs of the head;
/// `predicting` is the workload of layers of multi-token prediction.
fn cost(
    config: &DecoderConfig,
    segment: Segment,
    outputs: Option<usize>,
    [work, predicting]: [&Workload; 2],
) -> SegmentCost {
    match segment.role {
        SegmentRole::Embedding => Embedding::cost(config, work),
        part @ (SegmentRole::Attention | SegmentRole::Mlp | SegmentRole::Moe | SegmentRole::Layer) => {
            let layer = segment.layer.expect("parts of layers have a number");
            let block = DecoderLayer::cost(config, layer, part, work);
            let is_second = matches!(part, SegmentRole::Mlp | SegmentRole::Moe);
            with_passing(block, config, (layer, usize::from(is_second)), work)
        }
        SegmentRole::StackEnd => panic!("a decoder is one stack"),
        SegmentRole::Head => {
            let input = work.tokens_between_blocks() * config.stream_size() as u64;
            let norm = statistics(config.norm, work.tokens_between_blocks());
            let norm = norm
                .and(hyper_connection::cost(config, StreamUse::Read, work))
                .and(StreamProjections::cost(config, work));
            let last = match outputs {
                Some(outputs) => cost_replaced(outputs, config.hidden_size, work),
                None => head_cost(config, work),
            };
            let head = norm.and(last).and(MultiTokenPrediction::cost(config, predicting));
            SegmentCost { input, ..head }
        }
    }
}

impl DecoderConfig {
    /// Number of parameters of the whole model.
    pub fn num_parameters(&self) -> usize {
        self.declarations().parameters().iter().map(Declaration::num_elements).sum()
    }

    /// The whole model's parameters, in the order of its chunk, without building the model.
    pub fn declarations(&self) -> Declarations {
        let (scope, stage) = (ChunkScope::outline(RankPlace::SINGLE, None), Stage::whole(self.stacks()));
        match self.encoder {
            Some(_) => encoder_decoder::declare(self, scope, &stage),
            None => declare(self, scope, &stage),
        }
    }
}

impl Decoder {
    /// Builds `stage` of the model `config` describes, and declares its parameters in `scope`.
    pub fn new(config: &DecoderConfig, context: &BuildContext, stage: &Stage, scope: &ChunkScope) -> Self {
        let Modules { embedding, decoder, output_layer, output_bias, last_layer, prediction } =
            Modules::new(config, stage, scope);
        let layers = &stage.only_stack().layers;
        Self {
            embedding,
            decoder,
            output_layer,
            output_bias,
            last_layer,
            prediction,
            rotary: Rotary::from_config(config, &context.device),
            carried: (layers.start..=layers.end).map(|layer| config.carried_into(layer)).collect(),
            settings: Settings {
                first_layer: layers.start,
                stream_size: config.stream_size(),
                dtype: if config.fp32_residual { FloatDType::F32 } else { context.params_dtype },
                params_dtype: context.params_dtype,
                logit_multiplier: config.factor_on_logits(),
                logit_softcap: config.logit_softcap,
                vocab_size: config.padded_vocab_size,
                num_layers: config.num_layers,
                embedding_multiplier: config.embedding_multiplier,
                embedding_dropout: config.embedding_dropout,
            },
            passing: Passing::of(config, &context.parallel.place()),
            regions: Regions::new(&context.parallel),
        }
    }

    /// Runs a part of a layer with tensors that pass by: `forward` maps the residual stream.
    fn layer(
        &self,
        (layer, part): Place,
        mut boundary: Boundary,
        input: LayerInput,
        forward: impl FnOnce(Tensor<3>, LayerInput, &mut Boundary) -> Tensor<3>,
    ) -> Boundary {
        let x_btc = boundary.take_hidden_states();
        let vectors = |all_btv: &Tensor<3>| {
            let size = all_btv.dims()[2] / self.settings.num_layers;
            all_btv.clone().narrow(2, layer * size, size)
        };
        let per_layer = boundary.get(PER_LAYER_INPUTS).map(vectors);
        let all_of_attention = || self.passing.iter().filter(|_| part == 0);
        let of_attention = || all_of_attention().filter(|passing| passing.name != CHOSEN_KEYS);
        let used = of_attention().filter_map(|passing| passing.used_by(layer, boundary.get(passing.name)?));
        let (used, mut left) = (used.collect::<Vec<_>>(), None);
        let names: Vec<_> = of_attention().filter(|passing| passing.is_made_by(layer)).map(|made| made.name).collect();
        let shared = match <[Tensor<4>; 2]>::try_from(used) {
            Ok(used) => SharedKeyValues::Used(used),
            Err(_) if names.is_empty() => SharedKeyValues::None,
            Err(_) => SharedKeyValues::Left(&mut left),
        };
        let of_choices = || all_of_attention().filter(|passing| passing.name == CHOSEN_KEYS);
        let chooses = of_choices().any(|passing| passing.is_made_by(layer));
        let used = of_choices().find(|passing| passing.serves(layer));
        let mut choice = used.and_then(|passing| boundary.get(passing.name).cloned());
        let is_shared = chooses || choice.is_some();
        let attention = AttentionInput { shared, choice: is_shared.then_some(&mut choice), ..input.attention };
        let x_btc = forward(x_btc, LayerInput { attention, per_layer, ..input }, &mut boundary);
        let made = names.into_iter().zip(left.into_iter().flatten());
        let mut boundary = made.fold(boundary.with(HIDDEN_STATES, x_btc), |boundary, (name, x_btgd)| {
            boundary.with(name, x_btgd.flatten(2, 3))
        });
        if let Some(numbers_btf) = choice.filter(|_| chooses) {
            boundary = boundary.with(CHOSEN_KEYS, numbers_btf);
        }
        let next = if part + 1 < self.part_count() { (layer, part + 1) } else { (layer + 1, 0) };
        let stays = |name| self.passing.iter().any(|passing| passing.name == name && passing.is_before(next));
        for name in self.passing.iter().map(|passing| passing.name).filter(|name| !stays(*name)) {
            if boundary.get(name).is_some() {
                boundary.take(name);
            }
        }
        boundary
    }

    /// Inputs of layer number `layer` (global) besides the residual stream.
    fn layer_input<'a>(&'a self, layer: usize, context: &'a ForwardContext) -> LayerInput<'a> {
        let ranks = self.regions.context();
        assert_eq!(
            context.batch.part,
            SequencePart::of_rank(ranks.rank(), ranks.size()),
            "a batch has this context-parallel rank's part of the sequence"
        );
        let [_, t] = context.batch.tokens.dims();
        let length = t * ranks.size();
        LayerInput {
            attention: AttentionInput {
                regions: &self.regions,
                rotary: self.rotary.as_ref().map(|rotary| rotary.tables(length)),
                positions: &context.batch.positions,
                document_ids: context.batch.document_ids.clone(),
                dropout_key: context.dropout_key(layer, dropout_site::ATTENTION_PROBABILITIES),
                shared: SharedKeyValues::None,
                choice: None,
                state: None,
                compressed: None,
                recurrent: None,
                weight_gradients: context.weight_gradients,
                max_logit: context.auxiliary.metrics.and_then(|metrics| metrics.attention_scores_of(layer)),
                layer,
                auxiliary: context.auxiliary,
            },
            attention_key: context.dropout_key(layer, dropout_site::ATTENTION_OUTPUT),
            mlp: MoeInput {
                regions: &self.regions,
                layer,
                auxiliary: context.auxiliary,
                key: context.dropout_key(layer, dropout_site::ROUTER),
                padding: context.batch.padding.as_deref(),
                tokens: Some(&context.batch.tokens),
                weight_gradients: context.weight_gradients,
            },
            mlp_key: context.dropout_key(layer, dropout_site::MLP_OUTPUT),
            shared: self.shared_block(layer),
            per_layer: None,
        }
    }

    /// The shared block that layer number `layer` (global) uses. The layer that holds it is on this
    /// stage.
    fn shared_block(&self, layer: usize) -> Option<&SharedBlock> {
        let of_layer = |layer: usize| self.decoder.layers.get(layer - self.settings.first_layer)?.shared();
        of_layer(of_layer(layer)?.holder())?.block()
    }

    /// The tensors beside the stream that the embedding makes of the tokens.
    fn beside_first_layer(&self, x_btc: &Tensor<3>, ids_bt: Tensor<2, Int>, regions: &Regions) -> Boundary {
        let words = self.carried[0].contains(&WORDS).then(|| x_btc.clone());
        let vectors = self.embedding.as_ref().and_then(|words| words.per_layer_inputs(ids_bt, x_btc, regions));
        let made = [(WORDS, words), (PER_LAYER_INPUTS, vectors)].into_iter();
        let made = made.filter_map(|(name, tensor)| Some((name, tensor?)));
        made.fold(Boundary::default(), |boundary, (name, tensor)| boundary.with(name, tensor))
    }

    /// The layer (counted in this stage) and the part of it that is segment `in_layers` after the
    /// embedding. All layers have as many parts.
    fn part(&self, in_layers: usize) -> (usize, usize) {
        let parts = self.part_count();
        (in_layers / parts, in_layers % parts)
    }

    /// Parts of each layer.
    fn part_count(&self) -> usize {
        self.decoder.layers.first().map_or(1, |layer| layer.parts().len())
    }

    fn num_segments(&self) -> usize {
        let in_layers: usize = self.decoder.layers.iter().map(|layer| layer.parts().len()).sum();
        in_layers + usize::from(self.embedding.is_some()) + usize::from(self.decoder.final_layernorm.is_some())
    }

    /// The program's loss of the outputs of the layer that it has in place of the projection.
    fn replaced_head(&self, layer: &LastLayer, x_btc: Tensor<3>, context: &ForwardContext) -> Tensor<1> {
        let norm = self.decoder.final_layernorm.as_ref().expect("the head segment exists on stages with a head only");
        let x_btc = self.decoder.read_streams(x_btc);
        let own =
            context.custom_loss.expect("a model without an output projection is run with a loss of the program's");
        let last = LastOutputs::Replaced(layer, context.dropout_key(0, dropout_site::LAST_LAYER));
        let parts = HeadOutputs { x_btc: norm.forward(x_btc), last, regions: &self.regions };
        own.loss_sum(context.batch, context.mode, &parts)
    }

    fn head(&self, x_btc: Tensor<3>, context: &ForwardContext) -> Tensor<1> {
        if let Some(layer) = &self.last_layer {
            return self.replaced_head(layer, x_btc, context);
        }
        let (norm, projection) = self.head_parts().expect("the head segment exists on stages with a head only");
        let targets = Targets { labels_bt: context.batch.labels.clone(), mask_bt: context.batch.loss_mask.clone() };
        let x_btc = norm.forward_into_layers(self.decoder.read_streams(x_btc));
        let accuracy = TokenAccuracy::default();
        let mtp = self.prediction.as_ref().map(|prediction| (prediction, x_btc.clone()));
        let loss = match context.custom_loss {
            Some(own) => {
                let parts = HeadOutputs { x_btc, last: LastOutputs::Vocabulary(projection), regions: &self.regions };
                own.loss_sum(context.batch, context.mode, &parts)
            }
            None => loss_sum(x_btc, projection, targets, &self.regions, context.auxiliary.metrics.map(|_| &accuracy)),
        };
        if let (Some(metrics), Some((right, counted))) = (context.auxiliary.metrics, accuracy.counts()) {
            metrics.record(TOKEN_ACCURACY, 0, vec![right as f64, counted as f64]);
        }
        let Some((prediction, x_btc)) = mtp else { return loss };
        let mtp_context = mtp::MtpContext {
            regions: &self.regions,
            batch: context.batch,
            metrics: context.auxiliary.metrics,
            words: &|table, ids_bt, depth| self.mtp_embedding(table, ids_bt, depth, context),
            input: &|depth| self.mtp_layer_input(depth, context),
            loss: &|x_btc, targets| {
                let (_, projection) = self.head_parts().expect("this is the head");
                loss_sum(x_btc, projection, targets, &self.regions, None)
            },
        };
        prediction.with_losses(loss, x_btc, &mtp_context)
    }

    /// Embedding of the later tokens that multi-token prediction reads: from `table`, or from this
    /// stage's own word embedding.
    fn mtp_embedding(
        &self,
        table: Option<&Table>,
        ids_bt: Tensor<2, Int>,
        depth: usize,
        context: &ForwardContext,
    ) -> Tensor<3> {
        let own = || match (&self.embedding, &self.output_layer) {
            (Some(embedding), _) => embedding.word_embeddings(),
            (None, Some(table)) => table,
            (None, None) => unreachable!("a stage that has no word embedding gives a copy"),
        };
        let Settings { vocab_size, num_layers, embedding_multiplier, embedding_dropout, .. } = self.settings;
        let x_btc = rows_of_words(table.unwrap_or_else(own), vocab_size, ids_bt, &self.regions);
        let key = context.dropout_key(num_layers + depth, dropout_site::EMBEDDING);
        self.regions.dropout(scaled(x_btc, embedding_multiplier), embedding_dropout, key)
    }

    /// Inputs of a layer of multi-token prediction besides the residual stream. Its number follows
    /// the last layer's. As in the head, weight gradients are not deferred.
    fn mtp_layer_input<'a>(&'a self, depth: usize, context: &'a ForwardContext) -> LayerInput<'a> {
        let mut input = self.layer_input(self.settings.num_layers + depth, context);
        (input.attention.weight_gradients, input.mlp.weight_gradients) = (None, None);
        input
    }

    /// Tokens that layers must process now: the new ones, or all tokens of the generation if rotary
    /// embeddings of earlier positions change with the new length. The KV caches are cleared then.
    fn tokens_to_reprocess(&self, tokens_bt: Tensor<2, Int>, state: &mut GenerationState) -> Tensor<2, Int> {
        let Some(rotary) = self.rotary.as_ref().filter(|rotary| rotary.depends_on_length()) else { return tokens_bt };
        let [_, new] = tokens_bt.dims();
        let TokenHistory(history) = state.layer(self.decoder.layers.len());
        let all_bt = match history.take() {
            Some(earlier_bt) => Tensor::cat(vec![earlier_bt, tokens_bt.clone()], 1),
            None => tokens_bt.clone(),
        };
        *history = Some(all_bt.clone());
        if !rotary.changes(state.length, state.length + new) {
            return tokens_bt;
        }
        *state = self.new_state();
        *state.layer(self.decoder.layers.len()) = TokenHistory(Some(all_bt.clone()));
        all_bt
    }

    /// Final norm and output projection, on stages that have these.
    fn head_parts(&self) -> Option<(&Norm, Projection)> {
        let norm = self.decoder.final_layernorm.as_ref()?;
        let weight_vc = match (&self.output_layer, &self.embedding) {
            (Some(table), _) => table.weight(),
            (None, Some(embedding)) if self.last_layer.is_none() => embedding.word_embeddings().weight(),
            (None, _) => return None,
        };
        let Settings { vocab_size, logit_multiplier: multiplier, logit_softcap: softcap, .. } = self.settings;
        let bias_v = self.output_bias.as_ref().map(|output| output.bias.val());
        Some((norm, Projection { weight_vc, bias_v, vocab_size, multiplier, softcap }))
    }
}

impl Segments for Decoder {
    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor> {
        let begins = index == 0 && self.embedding.is_some();
        let ends = index == self.num_segments() && self.decoder.final_layernorm.is_some();
        if begins || ends {
            return Vec::new();
        }
        let [b, t] = batch.tokens.dims();
        let Settings { first_layer, stream_size, dtype, params_dtype, .. } = self.settings;
        let own = self.regions.own_rows(t).len();
        let (local, part) = self.part(index - usize::from(self.embedding.is_some()));
        let stream = BoundaryTensor::hidden_states([b, own, stream_size], dtype);
        let carried = self.carried[local].iter().map(|name| BoundaryTensor { name, ..stream });
        let passes = self.passing.iter().filter(|passing| passing.is_before((first_layer + local, part)));
        let passes = passes.map(|passing| BoundaryTensor {
            name: passing.name,
            shape: [b, passing.tokens(own, t), passing.width(t * self.regions.context().size())],
            dtype: params_dtype,
        });
        std::iter::once(stream).chain(carried).chain(passes).collect()
    }

    fn forward_segment(&self, index: usize, mut input: Boundary, context: &ForwardContext) -> SegmentOutput {
        let before_layers = usize::from(self.embedding.is_some());
        if index < before_layers {
            let embedding = self.embedding.as_ref().expect("there is a segment before the layers");
            let key = context.dropout_key(0, dropout_site::EMBEDDING);
            let batch = context.batch;
            let x_btc = embedding.forward(batch.tokens.clone(), &batch.positions, &self.regions, key);
            let beside = self.beside_first_layer(&x_btc, batch.tokens.clone(), &self.regions);
            return SegmentOutput::Boundary(beside.with(HIDDEN_STATES, x_btc));
        }
        let (local, part) = self.part(index - before_layers);
        if let Some(block) = self.decoder.layers.get(local) {
            let layer = self.settings.first_layer + local;
            let of_layer = self.layer_input(layer, context);
            let output = self.layer((layer, part), input, of_layer, |x_btc, input, beside| {
                block.forward(block.parts()[part], x_btc, input, beside)
            });
            return SegmentOutput::Boundary(output);
        }
        assert!(
            part == 0 && local == self.decoder.layers.len() && self.decoder.final_layernorm.is_some(),
            "segment {index} is out of range: the chunk has {}",
            self.num_segments()
        );
        SegmentOutput::LossSum(self.head(input.take_hidden_states(), context))
    }

    fn map_segments<M: ModuleMapper>(mut self, segments: &BTreeSet<usize>, mapper: &mut M) -> Self {
        let before_layers = usize::from(self.embedding.is_some());
        let has = |index: usize| segments.contains(&index);
        if has(0) {
            self.embedding = Module::map(self.embedding, mapper);
        }
        let end = self.num_segments();
        if segments.iter().any(|index| index + 1 == end) {
            self.decoder.final_connection = Module::map(self.decoder.final_connection, mapper);
            self.decoder.altup_unembed = Module::map(self.decoder.altup_unembed, mapper);
            self.decoder.final_layernorm = Module::map(self.decoder.final_layernorm, mapper);
            self.output_layer = Module::map(self.output_layer, mapper);
            self.output_bias = Module::map(self.output_bias, mapper);
            self.last_layer = Module::map(self.last_layer, mapper);
            self.prediction = Module::map(self.prediction, mapper);
        }
        let parts = self.part_count();
        let layers = self.decoder.layers.into_iter().enumerate().map(|(local, layer)| {
            let first = before_layers + local * parts;
            if (first..first + parts).any(has) { layer.map(mapper) } else { layer }
        });
        self.decoder.layers = layers.collect();
        self
    }

    fn logits(&self, tokens_bt: Tensor<2, Int>, state: &mut GenerationState) -> Option<Tensor<3>> {
        let embedding = self.embedding.as_ref()?;
        let (norm, projection) = self.head_parts()?;
        let regions = self.regions.with_whole_sequences();
        let [_, new] = tokens_bt.dims();
        let tokens_bt = self.tokens_to_reprocess(tokens_bt, state);
        let [_, t] = tokens_bt.dims();
        let positions = Positions::From(state.length);
        let length = state.length + t;
        let x_btc = embedding.forward(tokens_bt.clone(), &positions, &regions, None);
        let beside = self.beside_first_layer(&x_btc, tokens_bt.clone(), &regions);
        let mut boundary = beside.with(HIDDEN_STATES, x_btc);
        for (local, layer) in self.decoder.layers.iter().enumerate() {
            for (part, role) in layer.parts().iter().enumerate() {
                let input = LayerInput {
                    attention: AttentionInput {
                        regions: &regions,
                        rotary: self.rotary.as_ref().map(|rotary| rotary.tables(length)),
                        positions: &positions,
                        document_ids: None,
                        dropout_key: None,
                        shared: SharedKeyValues::None,
                        choice: None,
                        state: None,
                        compressed: None,
                        recurrent: None,
                        weight_gradients: None,
                        max_logit: None,
                        layer: self.settings.first_layer + local,
                        auxiliary: Auxiliary::default(),
                    },
                    attention_key: None,
                    mlp: MoeInput {
                        regions: &regions,
                        layer: self.settings.first_layer + local,
                        auxiliary: Auxiliary::default(),
                        key: None,
                        padding: None,
                        tokens: Some(&tokens_bt),
                        weight_gradients: None,
                    },
                    mlp_key: None,
                    shared: self.shared_block(self.settings.first_layer + local),
                    per_layer: None,
                };
                let place = (self.settings.first_layer + local, part);
                boundary = self.layer(place, boundary, input, |x_btc, input, beside| {
                    layer.generate(*role, x_btc, input, beside, &mut *state, local)
                });
            }
        }
        let x_btc = boundary.take_hidden_states();
        state.length = length;
        let x_btc = self.decoder.read_streams(x_btc.narrow(1, t - new, new));
        Some(logits(norm.forward_into_layers(x_btc), projection, &regions))
    }

    fn new_state(&self) -> GenerationState {
        let layers = self.decoder.layers.iter().map(DecoderLayer::new_state);
        // The token history of `tokens_to_reprocess` follows the states of the layers.
        GenerationState::new(layers.chain([Box::new(TokenHistory::default()) as LayerState]).collect())
    }
}
