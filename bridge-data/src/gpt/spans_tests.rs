//! Samples of span corruption: inputs of encoder and decoder, amount of masking, and samples that
//! do not fit.

use super::*;
use crate::extra::ExtraValues;
use crate::tokenizer::NullTokenizer;

const END: i64 = 999;
const PAD: i64 = 0;

fn params(masked_lm_prob: f64, mean_span_length: f64, target_length: usize) -> SpanParams {
    let sentinels = (0..40).map(|number| 900 + number).collect();
    let tokens = SpanTokens { sentinels, start: PAD, end: END, pad: PAD };
    SpanParams { masked_lm_prob, short_seq_prob: 0.0, mean_span_length, target_length, tokens }
}

/// The encoder's tokens and the number of those that count.
fn source(sample: &Sample) -> (Vec<i64>, usize) {
    let (ExtraValues::Ints(tokens), ExtraValues::Floats(mask)) =
        (&sample.extras[ENCODER_TOKENS].values, &sample.extras[ENCODER_MASK].values)
    else {
        panic!("ids are integers, the mask is of floats");
    };
    let count = mask.iter().filter(|weight| **weight == 1.0).count();
    assert!(mask[..count].iter().all(|weight| *weight == 1.0) && mask[count..].iter().all(|weight| *weight == 0.0));
    assert!(tokens[count..].iter().all(|token| *token == PAD));
    (tokens[..count].to_vec(), count)
}

/// The original tokens, put together from the inputs of encoder and decoder.
fn restored(sample: &Sample, params: &SpanParams) -> Vec<i64> {
    let is_sentinel = |token: &i64| params.tokens.sentinels.contains(token);
    let (tokens, _) = source(sample);
    let count = sample.loss_mask.iter().filter(|weight| **weight == 1.0).count();
    let target = &sample.labels[..count];
    assert_eq!(target.last(), Some(&END));
    let mut spans = target[..count - 1].split(is_sentinel).skip(1);
    let mut used = Vec::new();
    let whole = tokens.iter().flat_map(|token| {
        if is_sentinel(token) {
            used.push(*token);
            spans.next().expect("a span for each sentinel").to_vec()
        } else {
            vec![*token]
        }
    });
    let whole = whole.collect();
    assert_eq!(used, params.tokens.sentinels[..used.len()], "sentinels in their order");
    assert_eq!(target.iter().filter(|token| is_sentinel(token)).copied().collect::<Vec<_>>(), used);
    whole
}

#[test]
fn encoder_and_decoder_together_have_the_tokens() {
    let text: Vec<i64> = (1..=97).collect();
    for (seed, (probability, mean, target)) in
        [(0.15, 3.0, 32), (0.5, 2.0, 128), (0.3, 1.0, 20), (0.9, 5.0, 128), (0.01, 3.0, 3), (0.15, 3.0, 4)]
            .into_iter()
            .enumerate()
    {
        let params = params(probability, mean, target);
        params.check(text.len()).unwrap();
        let mut rng = RandomState::new(seed as i64).unwrap();
        let sample = params.sample(&text, 101, &mut rng);
        assert_eq!(restored(&sample, &params), text);
        assert_eq!([sample.tokens.len(), sample.labels.len(), sample.loss_mask.len()], [target; 3]);
        assert_eq!(sample.extras[ENCODER_TOKENS].shape, [101]);
        // The decoder's input is its target, one later.
        assert_eq!(sample.tokens[0], PAD);
        let count = sample.loss_mask.iter().filter(|weight| **weight == 1.0).count();
        assert_eq!(sample.tokens[1..count], sample.labels[..count - 1]);
        assert!(sample.labels[count..].iter().all(|token| *token == PAD));
    }
}

#[test]
fn the_share_and_the_length_of_spans_are_those_asked_for() {
    let text: Vec<i64> = (1..=200).collect();
    let params = params(0.15, 3.0, 64);
    let spans = |seed| params.spans(text.len(), &mut RandomState::new(seed).unwrap());
    for seed in 0..50 {
        let spans = spans(seed);
        assert_eq!(spans.iter().map(|[_, masked]| masked).sum::<usize>(), 30);
        assert_eq!(spans.len(), 10);
        assert!(spans.iter().all(|[kept, masked]| *kept > 0 && *masked > 0));
    }
    assert_ne!(spans(1), spans(2));
    assert_eq!(spans(1), spans(1));
}

#[test]
fn short_samples_are_as_many_as_asked_for() {
    let text: Vec<i64> = (1..=100).collect();
    let share = |probability: f64| {
        let params = SpanParams { short_seq_prob: probability, ..params(0.15, 3.0, 64) };
        let short = (0..400).filter(|seed| {
            let sample = params.sample(&text, 100, &mut RandomState::new(*seed).unwrap());
            restored(&sample, &params).len() < text.len()
        });
        short.count() as f64 / 400.0
    };
    assert_eq!(share(0.0), 0.0);
    assert!((share(0.3) - 0.3).abs() < 0.07);
    assert!(share(1.0) > 0.9);
}

#[test]
fn samples_of_few_tokens_have_spans_as_far_as_there_are_tokens() {
    let params = params(0.15, 3.0, 8);
    for length in 0..6 {
        let text: Vec<i64> = (1..=length).collect();
        let sample = params.sample(&text, 6, &mut RandomState::new(1).unwrap());
        assert_eq!(restored(&sample, &params), text);
    }
}

#[test]
fn sentinels_come_from_the_top_or_are_missed() {
    let tokenizer = NullTokenizer::new(20);
    let end = tokenizer.eod().unwrap();
    let tokens = SpanTokens::from_tokenizer(&tokenizer, Some(4), 0).unwrap();
    assert_eq!(tokens.sentinels.len(), 4);
    assert!(tokens.sentinels.windows(2).all(|pair| pair[0] > pair[1]) && !tokens.sentinels.contains(&end));
    for count in [None, Some(100)] {
        let error = SpanTokens::from_tokenizer(&tokenizer, count, 0).unwrap_err().to_string();
        assert!(error.contains("dataset.num_sentinels"), "{error}");
    }
}

#[test]
fn what_cannot_be_masked_is_refused() {
    for (changed, key) in [
        (params(0.0, 3.0, 64), "masked_lm_prob"),
        (params(1.0, 3.0, 64), "masked_lm_prob"),
        (params(f64::NAN, 3.0, 64), "masked_lm_prob"),
        (params(0.15, 0.5, 64), "mean_span_length"),
        (params(0.15, 3.0, 2), "seq_length_dec"),
        (SpanParams { short_seq_prob: 1.5, ..params(0.15, 3.0, 64) }, "short_seq_prob"),
    ] {
        let error = changed.check(64).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}
