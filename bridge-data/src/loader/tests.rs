//! Order, errors, resumption and shutdown of loaders with any number of workers.

use std::time::{Duration, Instant};

use super::*;
use crate::{DataError, Extra};

/// Sample i is [i, i, ..]; fetching takes a time that depends on i, so that workers overtake each
/// other.
struct Numbers {
    len: usize,
    broken: Option<usize>,
    delay: Duration,
}

impl Numbers {
    #[allow(clippy::new_ret_no_self, reason = "a loader takes the trait object")]
    fn new(len: usize) -> Arc<dyn Dataset> {
        Arc::new(Self { len, broken: None, delay: Duration::ZERO })
    }
}

impl Dataset for Numbers {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        std::thread::sleep(self.delay + Duration::from_micros((index * 7919 % 13) as u64 * 20));
        match self.broken {
            Some(broken) if broken == index && index.is_multiple_of(2) => panic!("sample {index} is cursed"),
            Some(broken) if broken == index => Err(DataError::OutOfRange { what: "sample".into(), index, len: 0 }),
            _ => Ok(Sample {
                tokens: vec![index as i64; 3],
                labels: vec![index as i64 + 1; 3],
                loss_mask: vec![1.0; 3],
                position_ids: vec![0, 1, 2],
                document_ids: None,
                extras: Default::default(),
            }),
        }
    }
}

fn order(len: usize) -> impl Iterator<Item = SampleIndices> + Send + 'static {
    (0..len / 2).map(|i| vec![Some(2 * i), Some(2 * i + 1)])
}

fn workers(num_workers: usize) -> LoaderParams {
    LoaderParams { num_workers, prefetch_factor: 2 }
}

#[test]
fn any_number_of_workers_gives_the_same_batches() {
    let expected: Vec<MicroBatch> =
        DataLoader::new(Numbers::new(200), order(200), workers(0)).collect::<Result<_, _>>().expect("no errors");
    assert_eq!(expected.len(), 100);
    assert_eq!(expected[3].tokens, [6, 6, 6, 7, 7, 7]);
    assert_eq!((expected[3].batch_size, expected[3].seq_length), (2, 3));
    for count in [1, 2, 5] {
        let batches: Vec<MicroBatch> = DataLoader::new(Numbers::new(200), order(200), workers(count))
            .collect::<Result<_, _>>()
            .expect("no errors");
        assert_eq!(batches, expected, "{count} workers");
    }
}

#[test]
fn padding_counts_nothing() {
    let indices = std::iter::once(vec![Some(4), None]);
    let batch = DataLoader::new(Numbers::new(9), indices, workers(1)).next().expect("one").expect("fetched");
    assert_eq!(batch.tokens, [4, 4, 4, 0, 0, 0]);
    assert_eq!(batch.loss_mask, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn errors_and_panics_arrive_in_place_and_end_the_loader() {
    for (broken, text) in [(31, "sample"), (30, "cursed")] {
        for count in [0, 1, 3] {
            let dataset = Arc::new(Numbers { len: 100, broken: Some(broken), delay: Duration::ZERO });
            let mut loader = DataLoader::new(dataset, order(100), workers(count));
            for i in 0..15 {
                let batch = loader.next().expect("a batch").expect("before the broken one");
                assert_eq!(batch.tokens[0], 2 * i);
            }
            let error = loader.next().expect("an item").expect_err("broken").to_string();
            assert!(error.contains(text), "{error}");
            assert!(loader.next().is_none());
        }
    }
}

#[test]
fn dropping_a_loader_is_quick() {
    let dataset = Arc::new(Numbers { len: 10_000, broken: None, delay: Duration::from_millis(20) });
    // One batch takes 200 seconds.
    let big = std::iter::repeat_with(|| (0..10_000).map(Some).collect::<Vec<_>>());
    let loader = DataLoader::new(dataset, big, workers(3));
    std::thread::sleep(Duration::from_millis(30));
    let started = Instant::now();
    drop(loader);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

#[test]
fn workers_stay_within_their_window() {
    let drawn = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = Arc::clone(&drawn);
    let endless = std::iter::repeat_with(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        vec![Some(0)]
    });
    let settles_at = |expected: usize| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while drawn.load(Ordering::Relaxed) < expected && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(drawn.load(Ordering::Relaxed), expected);
    };
    let mut loader = DataLoader::new(Numbers::new(1), endless, workers(2));
    settles_at(4);
    loader.next().expect("endless").expect("fetched");
    settles_at(5);
}

#[test]
fn external_batches_pass_through() {
    let batches = [Ok(MicroBatch { batch_size: 7, ..MicroBatch::default() }), Err(DataError::Interrupted)];
    let mut loader = DataLoader::external(batches.into_iter());
    assert_eq!(loader.next().expect("first").expect("fine").batch_size, 7);
    assert!(loader.next().expect("second").is_err());
    assert!(loader.next().is_none());
}

#[test]
fn what_fills_samples_up_is_marked_as_padding() {
    let sample = |t: usize| Sample {
        tokens: vec![1; t],
        labels: vec![1; t],
        loss_mask: vec![1.0; t],
        position_ids: (0..t as i64).collect(),
        ..Sample::default()
    };
    let filling = Some(crate::dataset::Filling { token: 0, multiple: 4, longest: 8 });
    let batch = MicroBatch::filled(vec![sample(4), sample(2)], filling).expect("stacked");
    assert_eq!(batch.padding(), Some([0, 0, 0, 0, 0, 0, 1, 1].as_slice()));
    let part = MicroBatch::filled(vec![sample(6)], filling).expect("stacked").context_part(1, 2);
    assert_eq!(part.padding(), Some([0, 0, 0, 0].as_slice()), "its last chunks are on the other rank");
    let whole = MicroBatch::filled(vec![sample(4), sample(4)], filling).expect("stacked");
    assert_eq!((whole.padding(), whole.extras.len()), (None, 0), "there is nothing to mark");
}

#[test]
fn samples_of_different_shapes_are_refused() {
    let sample = |t: usize| Sample {
        tokens: vec![0; t],
        labels: vec![0; t],
        loss_mask: vec![0.0; t],
        position_ids: vec![0; t],
        document_ids: None,
        extras: Default::default(),
    };
    assert!(MicroBatch::stack([sample(3), sample(4)]).is_err());
    let numbered = Sample { document_ids: Some(vec![0; 3]), ..sample(3) };
    assert!(MicroBatch::stack([numbered, sample(3)]).is_err());
    let with = |extra: Extra| Sample { extras: Extras::from([("x".to_owned(), extra)]), ..sample(3) };
    let ints = || Extra::ints(vec![1, 2], &[2]);
    for (first, second, expected) in [
        (with(ints()), sample(3), "different extra tensors: expected `x`, found "),
        (with(ints()), with(Extra::ints(vec![1], &[1])), "`x`: expected shape [2]"),
        (with(ints()), with(Extra::floats(vec![1.0, 2.0], &[2])), "the type of the first sample"),
        (with(Extra::ints(vec![1], &[2])), sample(3), "does not fit its elements"),
        (with(ints().along_sequence()), sample(3), "of a sample of 3 tokens"),
    ] {
        let error = MicroBatch::stack([first, second]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let stacked = MicroBatch::stack([with(ints()), with(Extra::ints(vec![3, 4], &[2]))]).unwrap();
    assert_eq!(stacked.extras["x"], Extra::ints(vec![1, 2, 3, 4], &[2, 2]));
}

#[test]
fn context_parts_tile_the_samples() {
    let row = |b: i64| (0..12).map(move |t| 100 * b + t);
    let whole = MicroBatch {
        tokens: (0..2).flat_map(row).collect(),
        labels: (0..2).flat_map(row).map(|t| t + 1).collect(),
        loss_mask: (0..24).map(|i| i as f32).collect(),
        position_ids: (0..2).flat_map(|_| 0..12).collect(),
        document_ids: Some((0..24).collect()),
        extras: Extras::from([
            ("image".to_owned(), Extra::floats(vec![0.5; 2 * 3], &[2, 3])),
            ("pair".to_owned(), Extra::ints((0..48).collect(), &[2, 12, 2]).along_sequence()),
        ]),
        batch_size: 2,
        seq_length: 12,
        part: SequencePart::Whole,
    };
    let parts: Vec<_> = (0..3).map(|rank| whole.context_part(rank, 3)).collect();
    assert_eq!(parts[0].tokens, [0, 1, 10, 11, 100, 101, 110, 111]);
    assert_eq!(parts[1].position_ids, [2, 3, 8, 9, 2, 3, 8, 9]);
    assert_eq!(parts[2].labels, [5, 6, 7, 8, 105, 106, 107, 108]);
    assert!(parts.iter().all(|part| part.extras["image"] == whole.extras["image"]));
    let pairs: Vec<i64> =
        [0, 1, 10, 11, 12, 13, 22, 23].into_iter().flat_map(|token| [2 * token, 2 * token + 1]).collect();
    assert_eq!(parts[0].extras["pair"], Extra::ints(pairs, &[2, 4, 2]).along_sequence());
    assert!(parts.iter().all(|part| part.seq_length == 4 && part.batch_size == 2));
    let mut masks: Vec<f32> = parts.iter().flat_map(|part| part.loss_mask.clone()).collect();
    masks.sort_by(f32::total_cmp);
    assert_eq!(masks, whole.loss_mask);
    assert_eq!(parts[2].part, SequencePart::Context { rank: 2, ranks: 3 });
    assert_eq!(whole.context_part(0, 1), whole);
}
