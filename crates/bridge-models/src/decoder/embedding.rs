//! Word embedding, learned positions and the dropout after them.

use bridge_kernels::rotary::Positions;
use bridge_kernels::{DropoutKey, dropout, embedding};
use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};

use super::config::{DecoderConfig, PositionEmbedding};
use super::init::{Deviations, Initializer};

/// Name of the word embedding's parameter, in the first stage and, where output and embedding are tied, in the last.
pub(super) const WORD_EMBEDDINGS: &str = "embedding.word_embeddings.weight";
const POSITION_EMBEDDINGS: &str = "embedding.position_embeddings.weight";

/// A table of rows.
#[derive(Module, Debug)]
pub(super) struct Table {
    weight: Param<Tensor<2>>,
}

impl Table {
    pub fn new(name: &str, shape: [usize; 2], std: f64, init: &Initializer) -> Self {
        Self { weight: init.normal(name, shape, std) }
    }

    /// The table, `[rows, columns]`.
    pub fn weight(&self) -> Tensor<2> {
        self.weight.val()
    }
}

/// From token ids to the residual stream.
#[derive(Module, Debug)]
pub(super) struct Embedding {
    word_embeddings: Table,
    position_embeddings: Option<Table>,
    dropout: f64,
}

impl Embedding {
    pub fn new(config: &DecoderConfig, init: &Initializer) -> Self {
        let std = Deviations::new(config).embedding;
        let c = config.hidden_size;
        let learned = config.position_embedding == PositionEmbedding::LearnedAbsolute;
        Self {
            word_embeddings: Table::new(WORD_EMBEDDINGS, [config.padded_vocab_size, c], std, init),
            position_embeddings: learned
                .then(|| Table::new(POSITION_EMBEDDINGS, [config.max_position_embeddings, c], std, init)),
            dropout: config.embedding_dropout,
        }
    }

    /// The word embedding, `[v, c]`.
    pub fn word_embeddings(&self) -> Tensor<2> {
        self.word_embeddings.weight()
    }

    /// `[b, t]` -> `[b, t, c]`.
    ///
    /// # Panics
    /// If a position lies beyond the table of learned positions.
    pub fn forward(&self, ids_bt: Tensor<2, Int>, positions: &Positions, key: Option<DropoutKey>) -> Tensor<3> {
        let [_, t] = ids_bt.dims();
        let mut x_btc = embedding(self.word_embeddings.weight(), ids_bt);
        if let Some(table) = &self.position_embeddings {
            let table_pc = table.weight();
            x_btc = x_btc
                + match positions {
                    Positions::From(offset) => {
                        let length = table_pc.dims()[0];
                        assert!(offset + t <= length, "position {} lies beyond the table of {length}", offset + t - 1);
                        table_pc.narrow(0, *offset, t).unsqueeze()
                    }
                    Positions::Explicit(positions_bt) => embedding(table_pc, positions_bt.clone()),
                };
        }
        match key {
            Some(key) => dropout(x_btc, self.dropout, key),
            None => x_btc,
        }
    }
}
