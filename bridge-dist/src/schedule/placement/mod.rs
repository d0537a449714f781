//! Placement of layers on pipeline stages, as a pure function of the settings. Layers are only
//! numbers here.

use std::ops::Range;

mod layout;

pub use layout::{LayoutItem, PipelineLayout};

/// Placement of a model's layers on a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementSpec {
    /// Transformer layers of the model.
    pub num_layers: usize,
    /// Ranks of the pipeline.
    pub pipeline_model_parallel_size: usize,
    /// Chunks per rank. `None` means 1, or the number that the layout has.
    pub virtual_pipeline_model_parallel_size: Option<usize>,
    /// Multi-token-prediction layers of the model. Only a layout moves them away from the last
    /// stage.
    pub mtp_num_layers: usize,
    /// Rule that splits the layers.
    pub split: Split,
}

/// The way of splitting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every stage gets the same number of layers.
    Even {
        /// Accounting of the embedding on the first stage.
        embedding: Accounting,
        /// Accounting of the output layer and loss on the last stage.
        loss: Accounting,
    },
    /// Given numbers on the first or last rank or both; the rest is divided equally among the other
    /// ranks.
    Uneven {
        /// `num_layers_in_first_pipeline_stage`.
        first: Option<usize>,
        /// `num_layers_in_last_pipeline_stage`.
        last: Option<usize>,
    },
    /// An explicit layout.
    Layout(PipelineLayout),
}

impl Default for Split {
    /// Even, only transformer layers count.
    fn default() -> Self {
        Self::Even { embedding: Accounting::Free, loss: Accounting::Free }
    }
}

/// Accounting of a segment that is not a layer: it counts as one or not
/// (`account_for_embedding_in_pipeline_split`, `account_for_loss_in_pipeline_split`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accounting {
    /// The item is added to its stage.
    #[default]
    Free,
    /// The item replaces one layer of its stage.
    AsLayer,
}

impl Accounting {
    const fn layers(self) -> usize {
        match self {
            Self::Free => 0,
            Self::AsLayer => 1,
        }
    }
}

/// Content of one chunk of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageContent {
    /// The token (and position) embedding.
    pub embedding: bool,
    /// Transformer layers, by their number in the whole model.
    pub layers: Range<usize>,
    /// Multi-token-prediction layers.
    pub num_mtp_layers: usize,
    /// The final norm, output layer and loss.
    pub loss: bool,
}

/// The placement of a whole model: `chunks[rank][chunk]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Content of each chunk of each rank.
    pub chunks: Vec<Vec<StageContent>>,
}

/// A split that is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// A number is 0.
    #[error("{what} is 0, and must be at least 1")]
    Zero {
        /// Name of the number.
        what: &'static str,
    },
    /// A value does not divide another.
    #[error("{what} ({value}) must be divisible by {by} ({divisor})")]
    NotDivisible {
        /// Name of the dividend.
        what: String,
        /// Value of the dividend.
        value: usize,
        /// Name of the divisor.
        by: &'static str,
        /// Value of the divisor.
        divisor: usize,
    },
    /// More layers on the first and last stage than the model has, or ranks without layers.
    #[error("{given} layers on {given_stages} of {stages} stages leave {left} for the other {left_stages} stages")]
    Remainder {
        /// Layers on the first and last stage.
        given: usize,
        /// Number of these stages that were given.
        given_stages: usize,
        /// All stages.
        stages: usize,
        /// Layers left; negative if too many were given.
        left: i64,
        /// Stages left.
        left_stages: i64,
    },
    /// The layout cannot be parsed.
    #[error("pipeline layout `{text}`, character {position}: {problem}")]
    Syntax {
        /// The layout.
        text: String,
        /// Position in the layout, counted from 1.
        position: usize,
        /// Description of the problem.
        problem: String,
    },
    /// The layout does not fit the model or the pipeline.
    #[error("pipeline layout: {problem}: expected {expected}, found {found}")]
    Layout {
        /// The part that does not match.
        problem: String,
        /// The required value.
        expected: String,
        /// The value found.
        found: String,
    },
}

impl PlacementSpec {
    /// Places the layers.
    ///
    /// Chunk `c` of rank `r` is stage `c * P + r` of the chain, and layers follow the chain.
    ///
    /// # Errors
    /// If the numbers do not divide or do not match.
    pub fn place(&self) -> Result<Placement, PlacementError> {
        let numbers = [
            ("num_layers", self.num_layers),
            ("pipeline_model_parallel_size", self.pipeline_model_parallel_size),
            ("virtual_pipeline_model_parallel_size", self.virtual_pipeline_model_parallel_size.unwrap_or(1)),
        ];
        if let Some((what, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
            return Err(PlacementError::Zero { what });
        }
        match &self.split {
            Split::Layout(layout) => layout.place(self),
            Split::Even { embedding, loss } => {
                let stages = self.pipeline_model_parallel_size;
                let slots = self.num_layers + embedding.layers() + loss.layers();
                let what = match slots - self.num_layers {
                    0 => "num_layers".to_owned(),
                    extra => format!("num_layers plus {extra} for embedding and loss"),
                };
                let per_stage = divide(what, slots, "pipeline_model_parallel_size", stages)?;
                self.chain(&vec![per_stage; stages], *embedding, *loss)
            }
            Split::Uneven { first, last } => {
                let counts = self.uneven_counts(*first, *last)?;
                self.chain(&counts, Accounting::Free, Accounting::Free)
            }
        }
    }

    fn uneven_counts(&self, first: Option<usize>, last: Option<usize>) -> Result<Vec<usize>, PlacementError> {
        let stages = self.pipeline_model_parallel_size;
        let named = [("num_layers_in_first_pipeline_stage", first), ("num_layers_in_last_pipeline_stage", last)];
        if let Some((what, _)) = named.into_iter().find(|(_, count)| *count == Some(0)) {
            return Err(PlacementError::Zero { what });
        }
        let given: usize = [first, last].into_iter().flatten().sum();
        let given_stages = [first, last].into_iter().flatten().count();
        let left = self.num_layers as i64 - given as i64;
        let left_stages = stages as i64 - given_stages as i64;
        if left < 0 || left_stages < 0 || (left == 0) != (left_stages == 0) {
            return Err(PlacementError::Remainder { given, given_stages, stages, left, left_stages });
        }
        let middle = match left_stages as usize {
            0 => 0,
            count => divide(
                "the number of layers on the middle stages".to_owned(),
                left as usize,
                "the number of middle stages",
                count,
            )?,
        };
        let mut counts = vec![middle; stages];
        if let Some(first) = first {
            counts[0] = first;
        }
        if let Some(last) = last {
            counts[stages - 1] = last;
        }
        Ok(counts)
    }

    /// Walks the chain of virtual stages, giving each its part of its rank's slots. Embedding and
    /// loss use a slot if they count as layers.
    fn chain(
        &self,
        slots_per_rank: &[usize],
        embedding: Accounting,
        loss: Accounting,
    ) -> Result<Placement, PlacementError> {
        let chunks = self.virtual_pipeline_model_parallel_size.unwrap_or(1);
        let mut per_chunk = Vec::with_capacity(slots_per_rank.len());
        for (rank, &slots) in slots_per_rank.iter().enumerate() {
            let what = format!("the number of layers on stage {rank}");
            per_chunk.push(divide(what, slots, "virtual_pipeline_model_parallel_size", chunks)?);
        }
        let stages = slots_per_rank.len();
        let mut placed: Vec<Vec<StageContent>> = vec![Vec::with_capacity(chunks); stages];
        let mut next = 0;
        for chunk in 0..chunks {
            for (rank, &slots) in per_chunk.iter().enumerate() {
                let is_first = chunk == 0 && rank == 0;
                let is_last = chunk + 1 == chunks && rank + 1 == stages;
                let taken = usize::from(is_first) * embedding.layers() + usize::from(is_last) * loss.layers();
                let layers = slots.checked_sub(taken).ok_or_else(|| PlacementError::Layout {
                    problem: format!("rank {rank}, chunk {chunk} holds embedding and loss"),
                    expected: format!("at least {taken} places"),
                    found: slots.to_string(),
                })?;
                placed[rank].push(StageContent {
                    embedding: is_first,
                    layers: next..next + layers,
                    num_mtp_layers: if is_last { self.mtp_num_layers } else { 0 },
                    loss: is_last,
                });
                next += layers;
            }
        }
        Ok(Placement { chunks: placed })
    }
}

fn divide(what: String, value: usize, by: &'static str, divisor: usize) -> Result<usize, PlacementError> {
    if value.is_multiple_of(divisor) {
        return Ok(value / divisor);
    }
    Err(PlacementError::NotDivisible { what, value, by, divisor })
}
