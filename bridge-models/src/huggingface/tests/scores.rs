//! Log-likelihoods of continuations in every family, against those that transformers' logits give.

use super::*;
use crate::score::{Continuation, ScoreError, Scorer};

/// Label without a token in an encoder-decoder.
const IGNORED: i64 = -100;

/// Elements of a golden tensor of 8-byte integers, with its shape.
fn ints(tensors: &[Raw], name: &str) -> (Vec<i64>, Vec<usize>) {
    let raw = tensors.iter().find(|raw| raw.name == name).unwrap();
    (raw.bytes.chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect(), raw.shape.clone())
}

/// Continuations of a golden model, each with its log-likelihood and whether it is greedy, by the
/// logits of its reference.
fn references(name: &str, config: &DecoderConfig) -> Vec<(Continuation, f64, bool)> {
    let tensors = raw_tensors(&golden(name).join("golden.safetensors"));
    let logits = tensors.iter().find(|raw| raw.name == "logits").unwrap();
    let v = *logits.shape.last().unwrap();
    let values: Vec<f64> =
        logits.bytes.chunks_exact(4).map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()))).collect();
    let (ids, shape) = ints(&tensors, "input_ids");
    let t = logits.shape[1];
    let rows = ids.chunks_exact(shape[1]).enumerate();
    let rows = rows.map(|(row, ids)| {
        let (continuation, first) = match config.encoder {
            Some(_) => {
                let (labels, shape) = ints(&tensors, "labels");
                let labels = labels[row * shape[1]..][..shape[1]].iter().copied();
                let tokens = labels.take_while(|id| *id != IGNORED).collect();
                (Continuation { context: ids.to_vec(), tokens }, 0)
            }
            None => {
                // Each row is cut elsewhere, so that rows of a batch have different lengths.
                let (cut, end) = (3 + 2 * row, ids.len() - row);
                (Continuation { context: ids[..cut].to_vec(), tokens: ids[cut..end].to_vec() }, cut - 1)
            }
        };
        let (mut sum, mut is_greedy) = (0.0, true);
        for (place, token) in continuation.tokens.iter().enumerate() {
            let logits_v = &values[(row * t + first + place) * v..][..v];
            let all: f64 = logits_v.iter().map(|logit| logit.exp()).sum();
            sum += logits_v[*token as usize] - all.ln();
            is_greedy &= logits_v.iter().all(|logit| *logit <= logits_v[*token as usize]);
        }
        (continuation, sum, is_greedy)
    });
    rows.collect()
}

#[test]
fn every_family_scores_as_the_logits_of_transformers_do() {
    for name in golden_models() {
        let model = HfModel::open(&golden(&name)).unwrap();
        let config = model.config();
        let chunk = model.build(&device()).unwrap();
        let references = references(&name, config);
        let continuations: Vec<Continuation> = references.iter().map(|(each, ..)| each.clone()).collect();
        let whole = Scorer::new(chunk.as_ref(), config, &device());
        // Five positions of one row at a time, or fewer.
        let few = Scorer::new(chunk.as_ref(), config, &device()).with_most_logits(5 * config.padded_vocab_size);
        let together = whole.score(&continuations).unwrap();
        let alone = continuations.chunks(1).flat_map(|each| whole.score(each).unwrap());
        let in_parts = continuations.chunks(1).flat_map(|each| few.score(each).unwrap());
        let all = together.iter().copied().zip(alone).zip(in_parts);
        for (((together, alone), in_parts), (_, expected, is_greedy)) in all.zip(&references) {
            for (how, score) in [("together", together), ("alone", alone), ("in parts", in_parts)] {
                let difference = (score.log_likelihood - expected).abs() / expected.abs();
                assert!(difference < 1e-6, "{name}, {how}: expected {expected}, found {score:?}");
                assert_eq!((score.is_greedy, score.unseen), (*is_greedy, 0), "{name}, {how}");
            }
        }
    }
}

#[test]
fn greedy_text_is_greedy_and_a_long_context_loses_its_begin() {
    let model = HfModel::open(&golden("llama")).unwrap();
    let (config, chunk) = (model.config(), model.build(&device()).unwrap());
    let scorer = Scorer::new(chunk.as_ref(), config, &device());
    let options = crate::generate::GenerateOptions::greedy(config, 6);
    let context = vec![5, 9, 2];
    let text =
        crate::generate(chunk.as_ref(), &device(), &context, &options, &mut |_| std::ops::ControlFlow::Continue(()));
    let written = Continuation { context: context.clone(), tokens: text.unwrap() };
    let other = Continuation { tokens: written.tokens.iter().map(|id| (id + 1) % 100).collect(), ..written.clone() };
    let scores = scorer.score(&[written, other]).unwrap();
    assert!(scores[0].is_greedy && !scores[1].is_greedy);
    assert!(scores[0].log_likelihood > scores[1].log_likelihood);

    let positions = config.longest_sequence();
    let long: Vec<i64> = (0..positions as i64 + 3).map(|i| i * 7 % 90).collect();
    let seen = Continuation { context: long[4..].to_vec(), tokens: vec![3, 4] };
    let long = Continuation { context: long, ..seen.clone() };
    let scores = scorer.score(&[long, seen]).unwrap();
    assert_eq!(scores.iter().map(|score| score.unseen).collect::<Vec<_>>(), [4, 0]);
    assert_eq!(scores[0].log_likelihood, scores[1].log_likelihood);
}

#[test]
fn what_has_no_score_is_an_error_with_its_number() {
    let model = HfModel::open(&golden("llama")).unwrap();
    let (config, chunk) = (model.config(), model.build(&device()).unwrap());
    let scorer = Scorer::new(chunk.as_ref(), config, &device());
    let good = Continuation { context: vec![1], tokens: vec![2] };
    let refused = |bad: Continuation| scorer.score(&[good.clone(), bad]).unwrap_err();
    let vocab_size = config.vocab_size;
    let token = vocab_size as i64;
    assert_eq!(
        refused(Continuation { context: vec![], ..good.clone() }),
        (1, ScoreError::Empty { context: 0, tokens: 1 })
    );
    let unknown = refused(Continuation { tokens: vec![0, token], ..good.clone() });
    assert_eq!(unknown, (1, ScoreError::TokenOutOfRange { token, vocab_size }));
    let max_positions = config.longest_sequence();
    let tokens = max_positions + 1;
    let long = refused(Continuation { tokens: vec![0; tokens], ..good.clone() });
    assert_eq!(long, (1, ScoreError::TooLong { tokens, max_positions }));
}
