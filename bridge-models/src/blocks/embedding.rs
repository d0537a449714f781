//! Word embedding, learned positions and the dropout after them.

use std::ops::Range;

use bridge_core::model::{
    GradientScope, Initial, LinearParameter, ParameterRole, QuantizedValues, Scope, SegmentCost, Shard,
    TensorPartition, Workload,
};
use bridge_kernels::rotary::Positions;
use bridge_kernels::{DropoutKey, LinearWeight, embedding};
use burn::module::{Module, Param};
use burn::tensor::{FloatDType, Int, Tensor, TensorData};

use super::altup::StreamProjections;
use super::init::InitialValues;
use super::norm::{Norm, statistics};
use super::per_layer::PerLayerEmbedding;
use super::regions::{Regions, leave_exchanges};
use super::residual::scaled;
use crate::architecture::config::{DecoderConfig, PositionEmbedding};

/// Name of the word embedding's parameter.
pub(crate) const WORD_EMBEDDINGS: &str = "embedding.word_embeddings.weight";

/// The rows of a vocabulary of `size` that rank `rank` of `ranks` tensor-parallel ones holds.
pub(crate) fn vocabulary_rows(size: usize, rank: usize, ranks: usize) -> Range<usize> {
    Shard::balanced(0, size, rank, ranks).parts[0].clone()
}

/// A table of rows, or this rank's slice of them.
#[derive(Module, Debug)]
pub(crate) struct Table {
    weight: Param<Tensor<2>>,
    /// The values of a table that is held quantised.
    #[module(skip)]
    quantized: Option<QuantizedValues>,
}

impl Table {
    /// The table of the vocabulary at `scope`, of `shape` over all ranks.
    pub fn of_vocabulary(shape: [usize; 2], initial: Initial, role: ParameterRole, scope: &Scope) -> Self {
        let LinearParameter { param, quantized, .. } = scope.table("weight", shape, initial, role);
        Self { weight: param, quantized }
    }

    fn of_positions(shape: [usize; 2], initial: Initial, scope: &Scope) -> Self {
        let cut = TensorPartition::Replicated(GradientScope::ResidualStream);
        let weight = scope.parameter("weight", shape, cut, initial, ParameterRole::Embedding);
        Self { weight, quantized: None }
    }

    /// The table, `[rows, columns]`.
    pub fn weight(&self) -> LinearWeight {
        match &self.quantized {
            Some(quantized) => quantized.weight(),
            None => self.weight.val().into(),
        }
    }

    /// Rows of the table, `[b, t]` -> `[b, t, columns]`.
    fn rows(&self, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        let rows_btc = embedding(self.weight(), ids_bt);
        // Rows of a quantised table are made outside of any graph.
        let is_in_graph = self.quantized.is_some() && self.weight.val().device().is_autodiff();
        if is_in_graph { rows_btc.autodiff() } else { rows_btc }
    }
}

/// From token ids to the residual stream.
#[derive(Module, Debug)]
pub(crate) struct Embedding {
    word_embeddings: Table,
    position_embeddings: Option<Table>,
    /// Norm of the sum of both.
    layernorm: Option<Norm>,
    per_layer: Option<PerLayerEmbedding>,
    /// Projections to further residual streams.
    altup: Option<StreamProjections>,
    /// Rows of the whole vocabulary.
    vocab_size: usize,
    /// Factor on the words' rows.
    multiplier: f64,
    dropout: f64,
    /// True if the stream is in float32 with any dtype of the tables.
    is_wide: bool,
    /// Number of residual streams, which begin as copies.
    streams: usize,
}

impl Embedding {
    /// The embedding at `scope`.
    pub fn new(config: &DecoderConfig, scope: &Scope) -> Self {
        let learned = config.position_embedding == PositionEmbedding::LearnedAbsolute;
        let positions = || {
            let shape = [config.max_position_embeddings, config.hidden_size];
            Table::of_positions(shape, InitialValues::new(config).embedding, &scope.child("position_embeddings"))
        };
        Self {
            word_embeddings: Self::words_at(config, scope),
            position_embeddings: learned.then(positions),
            layernorm: config.embedding_norm.then(|| Norm::new(config.norm, config.hidden_size, scope, "layernorm")),
            per_layer: config.per_layer.map(|per_layer| PerLayerEmbedding::new(config, per_layer, scope)),
            altup: StreamProjections::new(config, scope, "altup_projections"),
            vocab_size: config.padded_vocab_size,
            multiplier: config.embedding_multiplier,
            dropout: config.embedding_dropout,
            is_wide: config.fp32_residual,
            streams: config.streams.map_or(1, |streams| streams.count),
        }
    }

    /// Cost of the segment, which keeps the ids, and the input of a norm.
    pub fn cost(config: &DecoderConfig, work: &Workload) -> SegmentCost {
        let c = config.hidden_size as u64;
        let (rows, stream) = (work.tokens_between_blocks(), work.tokens_between_blocks() * c * work.stream_bytes);
        let embedding = SegmentCost {
            kept: work.tokens() * 8 + if config.embedding_norm { stream } else { 0 },
            backward: stream,
            exchanges: leave_exchanges(c * work.collective_bytes, work),
            ..SegmentCost::default()
        };
        let embedding = if config.embedding_norm { embedding.and(statistics(config.norm, rows)) } else { embedding };
        let embedding = embedding.and(StreamProjections::cost(config, work));
        match config.per_layer {
            Some(per_layer) => embedding.and(PerLayerEmbedding::cost(config, per_layer, work)),
            None => embedding,
        }
    }

    /// The word embedding of the embedding at `scope`: the embedding's own, or the copy of a tied
    /// head on another stage.
    pub fn words_at(config: &DecoderConfig, scope: &Scope) -> Table {
        let shape = [config.padded_vocab_size, config.hidden_size];
        let initial = InitialValues::new(config).embedding;
        Table::of_vocabulary(shape, initial, ParameterRole::Embedding, &scope.child("word_embeddings"))
    }

    /// The word embedding.
    pub fn word_embeddings(&self) -> &Table {
        &self.word_embeddings
    }

    /// The vectors of all layers, `[b, this rank's tokens, layers * p]`, of tokens `[b, t]` whose
    /// residual stream is `x_btc`, for models that have them.
    pub fn per_layer_inputs(&self, ids_bt: Tensor<2, Int>, x_btc: &Tensor<3>, regions: &Regions) -> Option<Tensor<3>> {
        self.per_layer.as_ref().map(|per_layer| per_layer.forward(ids_bt, x_btc.clone(), regions))
    }

    /// `[b, t]` -> the residual stream, `[b, t, c]`, or several side by side.
    ///
    /// # Panics
    /// If an id is not in the vocabulary, or a position lies beyond the table of learned positions.
    pub fn forward(
        &self,
        ids_bt: Tensor<2, Int>,
        positions: &Positions,
        regions: &Regions,
        key: Option<DropoutKey>,
    ) -> Tensor<3> {
        let [_, t] = ids_bt.dims();
        let mut x_btc = scaled(rows_of_words(&self.word_embeddings, self.vocab_size, ids_bt, regions), self.multiplier);
        if let Some(table) = &self.position_embeddings {
            x_btc = x_btc + rows_of_positions(table.weight.val(), positions, regions.own_rows(t));
        }
        let x_btc = if self.is_wide { x_btc.cast(FloatDType::F32) } else { x_btc };
        let x_btc = match &self.layernorm {
            Some(norm) => norm.forward(x_btc),
            None => x_btc,
        };
        let x_btc = regions.dropout(x_btc, self.dropout, key);
        match &self.altup {
            Some(altup) => altup.spread(x_btc),
            None if self.streams == 1 => x_btc,
            None => x_btc.repeat_dim(2, self.streams),
        }
    }
}

/// Rows of the word embedding, `[b, t]` -> `[b, t, c]` of the residual stream. `table` is this
/// rank's shard of `size` rows. Each tensor-parallel rank looks up the ids in its shard and uses
/// zeros for all other ids; the sum over ranks is complete.
pub(crate) fn rows_of_words(table: &Table, size: usize, ids_bt: Tensor<2, Int>, regions: &Regions) -> Tensor<3> {
    let group = regions.tensor();
    if group.size() == 1 {
        return table.rows(ids_bt);
    }
    let [b, t] = ids_bt.dims();
    let rows = vocabulary_rows(size, group.rank(), group.size());
    let local = |(place, id): (usize, i64)| {
        let id = usize::try_from(id).ok().filter(|id| *id < size);
        let id = id.unwrap_or_else(|| panic!("the token at place {place} is not in 0..{size}, the vocabulary"));
        rows.contains(&id).then(|| id - rows.start)
    };
    let device = ids_bt.device().without_autodiff();
    let local: Vec<Option<usize>> = ids_bt.into_data().iter::<i64>().enumerate().map(local).collect();
    let row_ids: Vec<i64> = local.iter().map(|row| row.unwrap_or(0) as i64).collect();
    let held: Vec<f32> = local.iter().map(|row| if row.is_some() { 1.0 } else { 0.0 }).collect();
    let dtype = FloatDType::from(table.weight.val().dtype());
    let held_bt1 = Tensor::<3>::from_data(TensorData::new(held, [b, t, 1]), (&device, dtype.into()));
    let row_ids_bt = Tensor::<2, Int>::from_data(TensorData::new(row_ids, [b, t]), &device);
    regions.leave(table.rows(row_ids_bt) * held_bt1)
}

/// Rows of the table `[p, c]` of learned positions for the tokens `own` of the sequence: `[b or 1,
/// own tokens, c]`.
fn rows_of_positions(table_pc: Tensor<2>, positions: &Positions, own: Range<usize>) -> Tensor<3> {
    match positions {
        Positions::From(offset) => {
            let (length, end) = (table_pc.dims()[0], offset + own.end);
            assert!(end <= length, "position {} lies beyond the table of {length}", end - 1);
            table_pc.narrow(0, offset + own.start, own.len()).unsqueeze()
        }
        Positions::Explicit(positions_bt) => embedding(table_pc, positions_bt.clone().narrow(1, own.start, own.len())),
    }
}
