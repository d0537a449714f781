//! Micro-batches in the sampler's order, prefetched by worker threads. The choice of samples
//! belongs to the sampler.
//!
//! Shapes: `b` samples of a micro-batch, `t` sequence length; all vectors are row-major `[b, t]`.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::DataError;
use super::dataset::{Dataset, FetchOrder, Filling, Sample};
use super::extra::{self, Extra, ExtraCut, ExtraValues, Extras, PADDING, chunks_of};
use super::sampler::SampleIndices;
use crate::untrusted_io::panic_message;

/// The part of its samples that a micro-batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SequencePart {
    /// Whole samples.
    #[default]
    Whole,
    /// The part of one of several context-parallel ranks: see [`MicroBatch::context_part`].
    Context {
        /// The rank.
        rank: usize,
        /// The number of ranks, at least 2.
        ranks: usize,
    },
}

impl SequencePart {
    /// The part of context-parallel rank `rank` of `ranks`.
    pub fn of_rank(rank: usize, ranks: usize) -> Self {
        if ranks == 1 { Self::Whole } else { Self::Context { rank, ranks } }
    }
}

/// Samples of one micro-batch on one rank.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MicroBatch {
    /// Input token ids, `[b, t]`.
    pub tokens: Vec<i64>,
    /// Token to predict at each position, `[b, t]`.
    pub labels: Vec<i64>,
    /// Weight of each position in the loss, `[b, t]`: any number, 0 where it does not count.
    pub loss_mask: Vec<f32>,
    /// Position of each token, `[b, t]`.
    pub position_ids: Vec<i64>,
    /// Number of each token's document within its sample, `[b, t]`, if attention stays within
    /// documents.
    pub document_ids: Option<Vec<i32>>,
    /// Further tensors of the dataset, by name; the first dimension counts samples.
    pub extras: Extras,
    /// Samples.
    pub batch_size: usize,
    /// Tokens of a sample in this micro-batch.
    pub seq_length: usize,
    /// The part of the samples that these tokens are.
    pub part: SequencePart,
}

impl MicroBatch {
    /// Stacks samples, filled up to one length where their dataset has different ones
    /// ([`Dataset::filling`]).
    ///
    /// # Errors
    /// As [`stack`](Self::stack).
    pub fn filled(mut samples: Vec<Sample>, filling: Option<Filling>) -> Result<Self, DataError> {
        if let Some(filling) = filling {
            filling.fill(&mut samples);
        }
        Self::stack(samples)
    }

    /// Stacks samples.
    ///
    /// # Errors
    /// Samples of different lengths, only some of them with document numbers, or with other extra
    /// tensors than the first.
    pub fn stack(samples: impl IntoIterator<Item = Sample>) -> Result<Self, DataError> {
        let mut batch = Self::default();
        let mut padding = Vec::new();
        for mut sample in samples {
            // Samples without padding may leave its mask out.
            let mut own_padding = sample.take_padding();
            if !own_padding.is_empty() || !padding.is_empty() {
                own_padding.resize(sample.tokens.len(), 0);
                padding.resize(batch.tokens.len(), 0);
                padding.append(&mut own_padding);
            }
            if batch.batch_size == 0 {
                batch.seq_length = sample.tokens.len();
                batch.document_ids = sample.document_ids.is_some().then(Vec::new);
            }
            let lengths = [sample.tokens.len(), sample.labels.len(), sample.loss_mask.len(), sample.position_ids.len()];
            let documents = sample.document_ids.as_ref().map(Vec::len);
            let expected = batch.document_ids.as_ref().map(|_| batch.seq_length);
            if lengths != [batch.seq_length; 4] || documents != expected {
                return Err(DataError::Parameter(format!(
                    "samples of a micro-batch differ in shape: expected {} tokens and document numbers {expected:?}, found \
                     {lengths:?} and {documents:?}",
                    batch.seq_length
                )));
            }
            extra::push(&mut batch.extras, sample.extras, batch.batch_size, batch.seq_length)?;
            batch.tokens.extend(sample.tokens);
            batch.labels.extend(sample.labels);
            batch.loss_mask.extend(sample.loss_mask);
            batch.position_ids.extend(sample.position_ids);
            if let (Some(all), Some(ids)) = (&mut batch.document_ids, sample.document_ids) {
                all.extend(ids);
            }
            batch.batch_size += 1;
        }
        if !padding.is_empty() {
            let mask = Extra {
                values: ExtraValues::Ints(padding),
                shape: vec![batch.batch_size, batch.seq_length],
                cut: ExtraCut::Sequence,
            };
            batch.extras.insert(PADDING.to_owned(), mask);
        }
        Ok(batch)
    }

    /// The mask of padding, `[b, t]`: 1 for tokens that fill samples up. `None` if no token does.
    pub fn padding(&self) -> Option<&[i64]> {
        match &self.extras.get(PADDING)?.values {
            ExtraValues::Ints(padding) => Some(padding),
            ExtraValues::Floats(_) => None,
        }
    }
}

impl MicroBatch {
    /// The part of each sample for context-parallel rank `rank` of `ranks`: chunks `rank` and `2 *
    /// ranks - 1 - rank` of `2 * ranks` equal ones, which balances causal attention over the ranks.
    /// Positions and document numbers remain those of the whole sample.
    ///
    /// # Shapes
    /// `[b, t]` -> `[b, t / ranks]`.
    ///
    /// # Panics
    /// If this is a part already, or the sequence is not divisible by `2 * ranks`.
    #[must_use]
    pub fn context_part(&self, rank: usize, ranks: usize) -> Self {
        let length = self.seq_length;
        assert_eq!(self.part, SequencePart::Whole, "a part is not divided again");
        assert_eq!(length % (2 * ranks), 0, "{length} tokens are not divisible into {} chunks", 2 * ranks);
        let chunk = length / (2 * ranks);
        let (first, second) = (rank * chunk, (2 * ranks - 1 - rank) * chunk);
        Self {
            tokens: chunks_of(&self.tokens, length, chunk, [first, second]),
            labels: chunks_of(&self.labels, length, chunk, [first, second]),
            loss_mask: chunks_of(&self.loss_mask, length, chunk, [first, second]),
            position_ids: chunks_of(&self.position_ids, length, chunk, [first, second]),
            document_ids: self.document_ids.as_ref().map(|ids| chunks_of(ids, length, chunk, [first, second])),
            extras: self
                .extras
                .iter()
                .map(|(name, extra)| (name.clone(), extra.part(length, chunk, [first, second])))
                .collect(),
            batch_size: self.batch_size,
            seq_length: 2 * chunk,
            part: SequencePart::of_rank(rank, ranks),
        }
    }
}

/// Prefetching of a [`DataLoader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderParams {
    /// Threads that fetch; 0 fetches on demand.
    pub num_workers: usize,
    /// Micro-batches that each thread may be ahead.
    pub prefetch_factor: usize,
}

impl Default for LoaderParams {
    fn default() -> Self {
        Self { num_workers: 2, prefetch_factor: 2 }
    }
}

/// Micro-batches from an external loader.
pub type MicroBatches = Box<dyn Iterator<Item = Result<MicroBatch, DataError>> + Send>;
type Order = Box<dyn Iterator<Item = SampleIndices> + Send>;

/// Yields micro-batches in the sampler's order for any number of workers. Ends after an error.
/// Dropping it waits until each worker has finished its current sample.
///
/// ```ignore
/// let loader = DataLoader::new(dataset, sampler, LoaderParams::default());
/// for batch in loader {
///     train_step(batch?);
/// }
/// ```
pub struct DataLoader {
    mode: Mode,
}

enum Mode {
    Ended,
    External(MicroBatches),
    Synchronous { dataset: Arc<dyn Dataset>, order: Order },
    Threads(Workers),
}

impl DataLoader {
    /// A loader over `dataset`. Datasets whose samples depend on the order of fetching get one
    /// worker.
    pub fn new(
        dataset: Arc<dyn Dataset>,
        order: impl Iterator<Item = SampleIndices> + Send + 'static,
        params: LoaderParams,
    ) -> Self {
        let order: Order = Box::new(order);
        let workers = match dataset.fetch_order() {
            FetchOrder::Any => params.num_workers,
            FetchOrder::Matters => params.num_workers.min(1),
        };
        let mode = if workers == 0 {
            Mode::Synchronous { dataset, order }
        } else {
            Mode::Threads(Workers::start(dataset, order, workers, params.prefetch_factor.max(1)))
        };
        Self { mode }
    }

    /// A loader that the dataset provides (`dataloader_type = "external"`).
    pub fn external(batches: impl Iterator<Item = Result<MicroBatch, DataError>> + Send + 'static) -> Self {
        Self { mode: Mode::External(Box::new(batches)) }
    }
}

impl Iterator for DataLoader {
    type Item = Result<MicroBatch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = match &mut self.mode {
            Mode::Ended => None,
            Mode::External(batches) => batches.next(),
            Mode::Synchronous { dataset, order } => {
                order.next().and_then(|indices| fetch(dataset.as_ref(), &indices, &AtomicBool::new(false)))
            }
            Mode::Threads(workers) => workers.next(),
        };
        if !matches!(item, Some(Ok(_))) {
            self.mode = Mode::Ended;
        }
        item
    }
}

/// Fetches one micro-batch; `None` if told to stop. A panic in the dataset becomes an error.
fn fetch(dataset: &dyn Dataset, indices: &[Option<usize>], stop: &AtomicBool) -> Option<Result<MicroBatch, DataError>> {
    let work = || {
        let mut samples = Vec::with_capacity(indices.len());
        for index in indices {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            samples.push(match index {
                Some(index) => dataset.get(*index)?,
                None => dataset.padding()?,
            });
        }
        MicroBatch::filled(samples, dataset.filling()).map(Some)
    };
    let result = std::panic::catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(DataError::WorkerPanicked(panic_message(panic.as_ref()))));
    result.transpose()
}

/// Work and results that the threads share. Batches are numbered in the sampler's order.
struct Shared {
    state: Mutex<State>,
    /// Signalled when a result arrives.
    arrived: Condvar,
    /// Signalled when there is room for another result.
    room: Condvar,
    stop: AtomicBool,
}

struct State {
    order: Order,
    /// Number of the next batch to fetch.
    next: usize,
    /// Number of the batch that the consumer waits for.
    wanted: usize,
    /// Number of batches, once the sampler has ended.
    end: Option<usize>,
    ready: BTreeMap<usize, Result<MicroBatch, DataError>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Only the sampler runs under the lock; if it panicked, `end` tells the consumer to stop.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    fn start(dataset: Arc<dyn Dataset>, order: Order, count: usize, prefetch_factor: usize) -> Self {
        let state = State { order, next: 0, wanted: 0, end: None, ready: BTreeMap::new() };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            room: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let window = count * prefetch_factor;
        let spawn = |index: usize| {
            let (shared, dataset) = (Arc::clone(&shared), Arc::clone(&dataset));
            let thread = std::thread::Builder::new().name(format!("loader-{index}"));
            thread.spawn(move || work(&shared, dataset.as_ref(), window))
        };
        // Fewer threads than asked for do the same work; without any, the first batch is an error.
        let threads: Vec<JoinHandle<()>> = (0..count).map_while(|index| spawn(index).ok()).collect();
        Self { shared, threads }
    }

    fn next(&mut self) -> Option<Result<MicroBatch, DataError>> {
        if self.threads.is_empty() {
            return Some(Err(DataError::WorkerPanicked("the system gives no further thread".to_owned())));
        }
        let mut state = self.shared.lock();
        loop {
            let wanted = state.wanted;
            if let Some(batch) = state.ready.remove(&wanted) {
                state.wanted += 1;
                self.shared.room.notify_all();
                return Some(batch);
            }
            if state.end.is_some_and(|end| wanted >= end) {
                return None;
            }
            state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Taking the lock ensures that no worker is between its check and its wait.
        drop(self.shared.lock());
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            // Workers catch panics, so there is nothing to report for one that died.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, dataset: &dyn Dataset, window: usize) {
    loop {
        let mut state = shared.lock();
        while !shared.stop.load(Ordering::Relaxed) && state.end.is_none() && state.next >= state.wanted + window {
            state = shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if shared.stop.load(Ordering::Relaxed) || state.end.is_some() {
            return;
        }
        let number = state.next;
        let order = &mut state.order;
        let drawn = std::panic::catch_unwind(AssertUnwindSafe(|| order.next()));
        let Ok(Some(indices)) = drawn else {
            state.end = Some(number + usize::from(drawn.is_err()));
            if drawn.is_err() {
                state.ready.insert(number, Err(DataError::WorkerPanicked("the sampler panicked".into())));
            }
            shared.arrived.notify_all();
            shared.room.notify_all();
            return;
        };
        state.next += 1;
        drop(state);
        let Some(batch) = fetch(dataset, &indices, &shared.stop) else { return };
        let mut state = shared.lock();
        if batch.is_err() {
            // Batches after an error are not read.
            state.end = Some(state.end.map_or(number + 1, |end| end.min(number + 1)));
        }
        state.ready.insert(number, batch);
        shared.arrived.notify_all();
        drop(state);
    }
}

#[cfg(test)]
mod tests;
