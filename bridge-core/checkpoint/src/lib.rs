//! Checkpoints on disk: writing, finding, verifying and reading them. No backend tensors, config
//! types or model names belong here; callers pass host memory and plain numbers.
//!
//! # Files
//!
//! ```text
//! <root>/
//!   iter_0000100/                        one complete checkpoint, published by a single rename
//!     metadata.json                      tensor index; sizes and checksums of all files, its own too
//!     model-rank00000.safetensors        shards, one or more per group and rank
//!     optimizer-rank00000.safetensors
//!     run_config.toml                    the resolved configuration of the run
//!     train_state.json                   counters and the state of scheduler, RNG, loss scaler ...
//!     ...                                tokenizer files and other small files, all checksummed
//!   latest_checkpointed_iteration.txt    decimal step of the checkpoint to resume from
//!   best_checkpointed_iteration.txt      step of the lowest validation loss; it is never deleted
//!   checkpoint_journal.json              state of the last save, such as interrupted
//!   run_identity.txt                     names the run to its temporary saves, which lie elsewhere
//!   .tmp-iter_0000200/                   a save in progress, or the remains of a killed one; never read
//!   .old-iter_0000100/                   the checkpoint being replaced, where folders cannot be swapped
//!   .trash-iter_0000050/                 a deletion in progress; never read
//! ```
//!
//! # Invariants
//!
//! 1. A folder named `iter_*` is complete from the moment it has that name: every byte was synced
//!    under another name first.
//! 2. At every moment of a save the previously newest checkpoint can be found, even if the same
//!    iteration is saved again.
//! 3. Every byte of every file of a checkpoint, `metadata.json` included, is covered by a checksum.
//! 4. [`CheckpointStore::resolve`] returns [`Resolution::NothingFound`] only if no save was ever
//!    published. Damage is an error, or with [`LoadRequest::fallback`] an entry of the
//!    [`LoadReport`].
//!
//! # Many ranks
//!
//! Every rank writes its part of each tensor as rectangular slices ([`LocalShard`]), through a
//! [`ShardedWriter`] that fails on all ranks or on none. [`Checkpoint::load_local`] reads a rank's
//! part in any other layout, and only its bytes. While the first rank searches for the checkpoint
//! to load, all ranks verify their share of its files ([`verify_with_all_ranks`]).
//!
//! A checkpoint can also be written in pieces ([`LocalCheckpointWriter`]), a rank's in a folder of
//! its own machine, and put together again ([`assemble`]).
//!
//! # Writing and reading
//!
//! ```ignore
//! let writer = CheckpointWriter::open("runs/tiny/checkpoints", SaveOptions::default())?;
//! writer.save(&Snapshot { run: RunFiles { train_state, run_config, files, ..RunFiles::default() }, groups })?;
//!
//! match CheckpointStore::open("runs/tiny/checkpoints")?.resolve(&LoadRequest::default())? {
//!     Resolution::Found(found) => found.checkpoint.load_tensor("model.embedding.weight")?,
//!     Resolution::NothingFound { .. } => start_from_scratch(),
//! };
//! ```

mod assembly;
mod async_saver;
mod checksum;
mod copied;
mod error;
mod exchange;
mod fsio;
mod journal;
mod local;
mod manager;
mod metadata;
mod names;
mod pieces;
mod progress;
mod reader;
mod resolve;
mod retention;
mod shard;
mod sharded;
mod slices;
mod snapshot;
mod store;
mod tensor;
mod together;
mod train_state;
mod verify;
mod writer;

#[cfg(test)]
mod tests;

pub use assembly::{Assembled, Assembly, assemble};
pub use async_saver::AsyncSaver;
pub use checksum::Checksum;
pub use error::{CheckpointError, Damage, DamagedCheckpoint, RootFault, SkippedCheckpoint};
pub use local::{LocalShard, Piece, Shard};
pub use manager::{CheckpointManager, ManagerError, NamedManager};
pub use metadata::{FORMAT_VERSION, FileRecord, Metadata, SliceRecord, TensorRecord};
pub use names::{
    BEST_FILE, IDENTITY_FILE, JOURNAL_FILE, LATEST_FILE, METADATA_FILE, RUN_CONFIG_FILE, TOKENIZER_FILE,
    TRAIN_STATE_FILE, iteration_folder_name, parse_iteration,
};
pub use pieces::{LocalCheckpointWriter, Replication};
pub use progress::{ProgressFn, SaveProgress};
pub use reader::{Checkpoint, EVALUATED_WEIGHTS};
pub use resolve::{LoadReport, LoadRequest, Notice, Resolution, Resolved};
pub use retention::RetentionPolicy;
pub use shard::{WrittenShard, WrittenTensor};
pub use sharded::ShardedWriter;
pub use slices::{Run, TensorSlice};
pub use snapshot::{CARRIED_GROUP, Content, RunFiles, ShardTensor, Snapshot, TensorGroup, TensorStream};
pub use store::{CheckpointStore, CheckpointSummary, Pointers, named};
pub use tensor::{DType, Element, HostTensor};
pub use together::{Verifier, verify_with_all_ranks};
pub use train_state::TrainState;
pub use verify::Verification;
pub use writer::{CheckpointWriter, SaveOptions, SaveReport, Staging};

#[cfg(target_endian = "big")]
compile_error!("checkpoint shards hold little-endian numbers and are written without conversion");

bridge_data::readable_errors!(CheckpointError);
