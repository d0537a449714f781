//! The micro-batch that a graph reads, at fixed places.

use bridge_data::SequencePart;
use bridge_kernels::graph::{copy_of, copy_of_ints, write_into, write_ints_into};
use bridge_kernels::rotary::Positions;

use crate::model::Batch;

/// Properties of a micro-batch that decide which kernels run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BatchSignature {
    /// `[b, t]`.
    shape: [usize; 2],
    /// Position from which all rows count, if positions are not a tensor.
    counts_from: Option<usize>,
    has_documents: bool,
    part: SequencePart,
}

impl BatchSignature {
    /// Signature of a micro-batch; `None` if it has extra tensors.
    pub fn from_batch(batch: &Batch) -> Option<Self> {
        let counts_from = match &batch.positions {
            Positions::From(first) => Some(*first),
            Positions::Explicit(_) => None,
        };
        let (has_documents, part) = (batch.document_ids.is_some(), batch.part);
        batch.extras.is_empty().then(|| Self { shape: batch.tokens.dims(), counts_from, has_documents, part })
    }
}

/// Tensors that a graph reads a micro-batch from.
pub(super) struct StaticBatch(Batch);

impl StaticBatch {
    /// A copy of `batch`, in memory of its own.
    pub fn copy_of(batch: &Batch) -> Self {
        Self(Batch {
            tokens: copy_of_ints(&batch.tokens),
            labels: copy_of_ints(&batch.labels),
            loss_mask: copy_of(&batch.loss_mask),
            positions: match &batch.positions {
                Positions::From(first) => Positions::From(*first),
                Positions::Explicit(positions_bt) => Positions::Explicit(copy_of_ints(positions_bt)),
            },
            document_ids: batch.document_ids.as_ref().map(copy_of_ints),
            ..batch.clone()
        })
    }

    /// Micro-batch in this memory. Its number of tokens is the number of the batch that was
    /// passed to [`Self::copy_of`].
    pub fn batch(&self) -> &Batch {
        &self.0
    }

    /// Copies another micro-batch of the same signature to this memory.
    pub fn copy_from(&self, batch: &Batch) {
        let held = &self.0;
        write_ints_into(&held.tokens, &batch.tokens);
        write_ints_into(&held.labels, &batch.labels);
        write_into(&held.loss_mask, &batch.loss_mask);
        if let (Positions::Explicit(held), Positions::Explicit(positions_bt)) = (&held.positions, &batch.positions) {
            write_ints_into(held, positions_bt);
        }
        if let (Some(held), Some(ids)) = (&held.document_ids, &batch.document_ids) {
            write_ints_into(held, ids);
        }
    }
}
