//! The decoder: embedding, layers, head, each optional or partial so that a pipeline stage is the same type as the whole.

use bridge_core::model::{
    Auxiliary, Batch, Boundary, BoundaryTensor, BuildContext, ForwardContext, GenerationState, LayerState,
    ParameterRole, Placement, Segment, SegmentOutput, SegmentRole, Segments, Stage,
};
use bridge_data::SequencePart;
use bridge_kernels::RotaryTable;
use bridge_kernels::rotary::Positions;
use burn::module::Module;
use burn::tensor::{FloatDType, Int, Tensor};

use super::config::DecoderConfig;
use super::layer::{Layer, LayerInput};
use crate::blocks::attention::AttentionInput;
use crate::blocks::embedding::{Embedding, Table, WORD_EMBEDDINGS};
use crate::blocks::head::{Projection, Targets, logits, loss_sum};
use crate::blocks::init::{Deviations, Initializer};
use crate::blocks::moe::MoeInput;
use crate::blocks::norm::Norm;
use crate::blocks::placement::Layout;
use crate::blocks::regions::Regions;
use crate::blocks::rope::rotary_table;

const OUTPUT_LAYER: &str = "output_layer.weight";

/// Which dropout mask of a layer: the second half of a mask's name.
mod place {
    pub const EMBEDDING: u64 = 0;
    pub const ATTENTION_PROBABILITIES: u64 = 1;
    pub const ATTENTION_OUTPUT: u64 = 2;
    pub const MLP_OUTPUT: u64 = 3;
}

/// A decoder, or one pipeline stage of it, and of that the slice that one rank holds.
///
/// Field paths are Megatron's parameter names, but for the layer numbers: those are local here and made global by
/// [`Segments::parameter_name`], and the experts of a layer, which are called `mlp` as a plain block is.
#[derive(Module, Debug)]
pub struct Decoder {
    embedding: Option<Embedding>,
    decoder: Block,
    /// The output table, unless it is the word embedding held by this very stage.
    output_layer: Option<Table>,
    #[module(skip)]
    rotary: Option<RotaryTable>,
    #[module(skip)]
    settings: Settings,
    #[module(skip)]
    regions: Regions,
    #[module(skip)]
    layout: Layout,
}

#[derive(Module, Debug)]
struct Block {
    layers: Vec<Layer>,
    final_layernorm: Option<Norm>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    first_layer: usize,
    hidden_size: usize,
    /// Of the residual stream.
    dtype: FloatDType,
    tied: bool,
    logit_softcap: Option<f64>,
    /// Rows of the whole vocabulary.
    vocab_size: usize,
}

impl Decoder {
    /// Builds `stage` of the model `config` describes.
    ///
    /// Where embedding and output are tied and the stage has only the head, it gets its own copy of the word embedding, with
    /// the same name and the same initial values as the first stage's.
    pub fn new(config: &DecoderConfig, context: &BuildContext, stage: &Stage) -> Self {
        let part = stage.only_stack();
        let init = Initializer::new(context, config);
        let std = Deviations::new(config);
        let tied = config.share_embeddings_and_output_weights;
        let table = [config.padded_vocab_size, config.hidden_size];
        let output_layer = match (part.end, tied, part.start) {
            (false, _, _) | (true, true, true) => None,
            (true, true, false) => Some(Table::new(WORD_EMBEDDINGS, table, std.embedding, &init)),
            (true, false, _) => Some(Table::new(OUTPUT_LAYER, table, std.weight, &init)),
        };
        Self {
            embedding: part.start.then(|| Embedding::new(config, &init)),
            decoder: Block {
                layers: part.layers.clone().map(|index| Layer::new(config, index, &init)).collect(),
                final_layernorm: part.end.then(|| Norm::new(config.norm, config.hidden_size, &init)),
            },
            output_layer,
            rotary: rotary_table(config, &context.device),
            settings: Settings {
                first_layer: part.layers.start,
                hidden_size: config.hidden_size,
                dtype: context.params_dtype,
                tied,
                logit_softcap: config.logit_softcap,
                vocab_size: config.padded_vocab_size,
            },
            regions: Regions::new(&context.parallel),
            layout: Layout::new(config, &context.parallel),
        }
    }

    fn layer(&self, local: usize, part: usize, x_btc: Tensor<3>, context: &ForwardContext) -> Tensor<3> {
        let layer = self.settings.first_layer + local;
        let ranks = self.regions.context();
        assert_eq!(
            context.batch.part,
            SequencePart::of_rank(ranks.rank(), ranks.size()),
            "a batch has this context-parallel rank's part of the sequence"
        );
        let input = LayerInput {
            attention: AttentionInput {
                regions: &self.regions,
                rotary: self.rotary.as_ref(),
                positions: &context.batch.positions,
                document_ids: context.batch.document_ids.clone(),
                dropout_key: context.dropout_key(layer, place::ATTENTION_PROBABILITIES),
                state: None,
                weight_gradients: context.weight_gradients,
            },
            attention_key: context.dropout_key(layer, place::ATTENTION_OUTPUT),
            mlp: MoeInput {
                regions: &self.regions,
                layer,
                auxiliary: context.auxiliary,
                weight_gradients: context.weight_gradients,
            },
            mlp_key: context.dropout_key(layer, place::MLP_OUTPUT),
        };
        let block = &self.decoder.layers[local];
        block.forward(block.parts()[part], x_btc, input)
    }

    /// The layer (counted in this stage) and the part of it that is segment `in_layers` behind the embedding. All layers have as many parts.
    fn part(&self, in_layers: usize) -> (usize, usize) {
        let parts = self.decoder.layers.first().map_or(1, |layer| layer.parts().len());
        (in_layers / parts, in_layers % parts)
    }

    fn head(&self, x_btc: Tensor<3>, context: &ForwardContext) -> Tensor<1> {
        let (norm, projection) = self.head_parts().expect("the head segment exists on stages with a head only");
        let targets = Targets { labels_bt: context.batch.labels.clone(), mask_bt: context.batch.loss_mask.clone() };
        loss_sum(norm.forward(x_btc), projection, targets, &self.regions)
    }

    /// Final norm and output projection, on stages that have the head.
    fn head_parts(&self) -> Option<(&Norm, Projection)> {
        let norm = self.decoder.final_layernorm.as_ref()?;
        let weight_vc = match (&self.output_layer, &self.embedding) {
            (Some(table), _) => table.weight(),
            (None, Some(embedding)) => embedding.word_embeddings(),
            (None, None) => return None,
        };
        let Settings { vocab_size, logit_softcap: softcap, .. } = self.settings;
        Some((norm, Projection { weight_vc, vocab_size, softcap }))
    }
}

impl Segments for Decoder {
    fn segments(&self) -> Vec<Segment> {
        let layers = self.decoder.layers.iter().enumerate().flat_map(|(local, block)| {
            let layer = Some(self.settings.first_layer + local);
            block.parts().iter().map(move |role| Segment { role: *role, layer })
        });
        let embedding = self.embedding.iter().map(|_| Segment { role: SegmentRole::Embedding, layer: None });
        let head = self.decoder.final_layernorm.iter().map(|_| Segment { role: SegmentRole::Head, layer: None });
        embedding.chain(layers).chain(head).collect()
    }

    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor> {
        let begins = index == 0 && self.embedding.is_some();
        let ends = index == self.segments().len() && self.decoder.final_layernorm.is_some();
        if begins || ends {
            return Vec::new();
        }
        let [b, t] = batch.tokens.dims();
        let shape = [b, self.regions.own_rows(t).len(), self.settings.hidden_size];
        vec![BoundaryTensor::hidden_states(shape, self.settings.dtype)]
    }

    fn forward_segment(&self, index: usize, mut input: Boundary, context: &ForwardContext) -> SegmentOutput {
        let before_layers = usize::from(self.embedding.is_some());
        if index < before_layers {
            let embedding = self.embedding.as_ref().expect("there is a segment before the layers");
            let key = context.dropout_key(0, place::EMBEDDING);
            let batch = context.batch;
            let x_btc = embedding.forward(batch.tokens.clone(), &batch.positions, &self.regions, key);
            return SegmentOutput::Boundary(Boundary::hidden_states(x_btc));
        }
        let x_btc = input.take_hidden_states();
        let (local, part) = self.part(index - before_layers);
        if local < self.decoder.layers.len() {
            return SegmentOutput::Boundary(Boundary::hidden_states(self.layer(local, part, x_btc, context)));
        }
        assert!(
            part == 0 && local == self.decoder.layers.len() && self.decoder.final_layernorm.is_some(),
            "segment {index} is out of range: the chunk has {}",
            self.segments().len()
        );
        SegmentOutput::LossSum(self.head(x_btc, context))
    }

    fn logits(&self, tokens_bt: Tensor<2, Int>, state: &mut GenerationState) -> Option<Tensor<3>> {
        let embedding = self.embedding.as_ref()?;
        let (norm, projection) = self.head_parts()?;
        let regions = self.regions.with_whole_sequences();
        let [_, t] = tokens_bt.dims();
        let positions = Positions::From(state.length);
        let mut x_btc = embedding.forward(tokens_bt, &positions, &regions, None);
        for (local, layer) in self.decoder.layers.iter().enumerate() {
            for role in layer.parts() {
                let input = LayerInput {
                    attention: AttentionInput {
                        regions: &regions,
                        rotary: self.rotary.as_ref(),
                        positions: &positions,
                        document_ids: None,
                        dropout_key: None,
                        state: Some(state.layer(local)),
                        weight_gradients: None,
                    },
                    attention_key: None,
                    mlp: MoeInput {
                        regions: &regions,
                        layer: self.settings.first_layer + local,
                        auxiliary: Auxiliary::default(),
                        weight_gradients: None,
                    },
                    mlp_key: None,
                };
                x_btc = layer.forward(*role, x_btc, input);
            }
        }
        state.length += t;
        Some(logits(norm.forward(x_btc), projection, &regions))
    }

    fn new_state(&self) -> GenerationState {
        GenerationState::new(
            self.decoder.layers.iter().map(|layer| Box::new(layer.new_state()) as LayerState).collect(),
        )
    }

    fn uses_parameter(&self, index: usize, name: &str) -> bool {
        let before_layers = usize::from(self.embedding.is_some());
        if index < before_layers {
            return name.starts_with("embedding.");
        }
        let (local, part) = self.part(index - before_layers);
        if let Some(block) = self.decoder.layers.get(local) {
            let layer = format!("decoder.layers.{}.", self.settings.first_layer + local);
            let of_attention = ["self_attention.", "input_layernorm.", "post_self_attention_layernorm."];
            return name.strip_prefix(&layer).is_some_and(|rest| match block.parts()[part] {
                SegmentRole::Attention => of_attention.iter().any(|prefix| rest.starts_with(prefix)),
                SegmentRole::Mlp | SegmentRole::Moe => !of_attention.iter().any(|prefix| rest.starts_with(prefix)),
                SegmentRole::Layer => true,
                SegmentRole::Embedding | SegmentRole::Head => false,
            });
        }
        let is_output_table = name == OUTPUT_LAYER || (self.settings.tied && name == WORD_EMBEDDINGS);
        is_output_table || name.starts_with("decoder.final_layernorm.")
    }

    fn parameter_role(&self, name: &str) -> ParameterRole {
        if name.starts_with("embedding.") || name == OUTPUT_LAYER {
            ParameterRole::EmbeddingOrOutput
        } else {
            ParameterRole::Hidden
        }
    }

    fn parameter_placement(&self, name: &str) -> Placement {
        self.layout.placement(name)
    }

    fn parameter_name(&self, path: &str) -> String {
        if path == OUTPUT_LAYER && self.settings.tied {
            return WORD_EMBEDDINGS.to_owned();
        }
        match path.strip_prefix("decoder.layers.").and_then(|rest| rest.split_once('.')) {
            Some((local, rest)) => {
                let local: usize = local.parse().expect("children of a Vec are numbered");
                format!("decoder.layers.{}.{}", self.settings.first_layer + local, self.layout.name_in_layer(rest))
            }
            None => path.to_owned(),
        }
    }
}
