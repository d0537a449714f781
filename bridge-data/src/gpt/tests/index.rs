//! Index arrays: the reference's vectors, and properties.

use proptest::prelude::*;

use super::*;

const LENGTHS: [u32; 10] = [5, 7, 3, 9, 4, 6, 8, 2, 10, 6];

fn request(num_samples: Option<u64>, partial: PartialSample) -> IndexRequest<'static> {
    IndexRequest {
        path: "test",
        split: Split::Valid,
        lengths: &LENGTHS,
        first_sequence: 0,
        sequence_length: 8,
        extra: 1,
        num_samples,
        partial,
        seed: 1234,
    }
}

struct Arrays {
    document: Vec<i32>,
    sample: Vec<(usize, usize)>,
    shuffle: Vec<usize>,
}

fn arrays(request: &IndexRequest<'_>) -> Arrays {
    let indices = request.build(request.plan().expect("enough tokens")).expect("buildable");
    Arrays {
        document: indices.document.as_slice().to_vec(),
        sample: (0..indices.sample.len()).map(|i| indices.sample.pair(i)).collect(),
        shuffle: (0..indices.shuffle.len()).map(|i| indices.shuffle.at(i)).collect(),
    }
}

#[test]
fn vector_with_a_separate_last_epoch() {
    let arrays = arrays(&request(Some(16), PartialSample::Drop));
    assert_eq!(arrays.document[..20], [3, 3, 2, 6, 4, 5, 4, 0, 8, 8, 7, 1, 0, 9, 7, 1, 9, 2, 6, 5]);
    assert_eq!(arrays.document[20..], [8, 1, 7, 6, 9, 5, 4, 3, 0, 2]);
    let sample = [
        (0, 0),
        (0, 8),
        (1, 7),
        (3, 3),
        (4, 3),
        (6, 1),
        (8, 0),
        (8, 8),
        (9, 6),
        (11, 2),
        (12, 3),
        (14, 0),
        (15, 6),
        (17, 1),
        (18, 6),
        (20, 0),
        (20, 8),
        (21, 6),
        (23, 5),
        (24, 5),
        (26, 1),
        (27, 5),
        (28, 4),
    ];
    assert_eq!(arrays.sample, sample);
    let shuffle = [10, 5, 13, 6, 1, 4, 8, 2, 3, 12, 9, 0, 11, 7, 15, 14, 19, 21, 16, 18, 17, 20];
    assert_eq!(arrays.shuffle, shuffle);
}

#[test]
fn vector_with_epochs_shuffled_together() {
    let arrays = arrays(&request(Some(21), PartialSample::Drop));
    let document = [7, 0, 4, 1, 8, 8, 3, 3, 4, 3, 2, 4, 0, 2, 7, 6, 8, 5, 6, 5, 1, 9, 7, 9, 0, 2, 1, 6, 9, 5];
    assert_eq!(arrays.document, document);
    let shuffle = [9, 21, 6, 13, 16, 5, 8, 0, 4, 20, 14, 15, 7, 3, 18, 10, 17, 11, 1, 12, 19, 2];
    assert_eq!(arrays.shuffle, shuffle);
    assert_eq!(arrays.sample[20..], [(27, 0), (28, 0), (29, 2)]);
}

#[test]
fn vectors_of_one_epoch() {
    let dropped = arrays(&request(None, PartialSample::Drop));
    assert_eq!(dropped.document, [7, 2, 9, 1, 0, 8, 4, 5, 6, 3]);
    assert_eq!(dropped.sample, [(0, 0), (2, 3), (3, 5), (5, 1), (5, 9), (7, 3), (8, 5), (9, 5)]);
    assert_eq!(dropped.shuffle, [6, 4, 0, 5, 3, 2, 1]);
    let kept = arrays(&request(None, PartialSample::Keep));
    assert_eq!(kept.sample[7..], [(9, 5), (9, 8)]);
    assert_eq!(kept.shuffle, [7, 5, 6, 0, 4, 3, 2, 1]);
}

#[test]
fn a_partial_sample_ends_before_empty_documents() {
    let request = IndexRequest { lengths: &[4, 4, 0, 0], ..request(None, PartialSample::Keep) };
    for seed in 0..20 {
        let arrays = arrays(&IndexRequest { sequence_length: 3, seed, ..request });
        let (position, offset) = arrays.sample[arrays.sample.len() - 1];
        assert_eq!((request.lengths[arrays.document[position] as usize], offset), (4, 3));
    }
}

proptest! {
    /// In the order of the sample index, samples cover the token stream without a gap, overlapping
    /// by one token.
    #[test]
    fn samples_cover_the_token_stream(
        lengths in prop::collection::vec(0u32..40, 1..60),
        sequence_length in 1usize..50,
        num_samples in 0u64..80,
        extra in 0usize..2,
        keep in any::<bool>(),
    ) {
        let request = IndexRequest {
            path: "test",
            split: Split::Valid,
            lengths: &lengths,
            first_sequence: 100,
            sequence_length,
            extra,
            num_samples: (num_samples > 0).then_some(num_samples),
            partial: if keep { PartialSample::Keep } else { PartialSample::Drop },
            seed: 5,
        };
        let total: u64 = request.tokens_per_epoch();
        prop_assume!(total >= (sequence_length + extra) as u64);
        let plan = request.plan().expect("enough tokens");
        prop_assert!(plan.samples as u64 >= num_samples);
        let indices = request.build(plan).expect("buildable");
        let document = indices.document.as_slice();
        // Each sequence comes once an epoch.
        let mut counts = vec![0; lengths.len()];
        document.iter().for_each(|&id| counts[id as usize - 100] += 1);
        prop_assert!(counts.iter().all(|&count| count == plan.epochs));
        // Position of each boundary in the stream.
        let starts: Vec<usize> = document
            .iter()
            .scan(0, |at, &id| { let start = *at; *at += lengths[id as usize - 100] as usize; Some(start) })
            .collect();
        let at = |i: usize| { let (position, offset) = indices.sample.pair(i); starts[position] + offset };
        for i in 0..plan.samples {
            let last_partial = keep && i + 1 == plan.samples;
            let step = at(i + 1) - at(i);
            if last_partial {
                prop_assert!(step <= sequence_length);
                prop_assert_eq!(at(i + 1) + extra, plan.epochs * total as usize);
            } else {
                prop_assert_eq!(step, sequence_length);
            }
        }
        // The shuffle is a permutation.
        let mut order: Vec<usize> = (0..plan.samples).map(|i| indices.shuffle.at(i)).collect();
        order.sort_unstable();
        prop_assert!(order.into_iter().eq(0..plan.samples));
    }
}
