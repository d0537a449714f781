//! Generation in every family: with and without the layers' caches, one text alone and several in
//! step.

use std::ops::ControlFlow;

use super::*;
use crate::generate::{GenerateOptions, GenerateRequest, StateCache, TokenRules, generate_batch};

/// Tokens that are generated: more than the windows and the convolutions of the golden models
/// reach.
const NEW: usize = 24;

/// Prompts of several lengths, two of the same, for a vocabulary.
fn prompts(vocab_size: usize) -> Vec<Vec<i64>> {
    let tokens = vocab_size as i64 - 10;
    [3, 11, 5, 11]
        .iter()
        .enumerate()
        .map(|(seed, length)| (0..*length).map(|i| (i * i + 7 * i + seed as i64 * 31 + 2) % tokens).collect())
        .collect()
}

#[test]
fn every_family_writes_the_same_with_and_without_state_alone_and_in_step() {
    for name in golden_models() {
        let model = HfModel::open(&golden(&name)).unwrap();
        let chunk = model.build(&device()).unwrap();
        let run = |prompts: &[Vec<i64>], options: &GenerateOptions| {
            let requests: Vec<_> = prompts.iter().map(|prompt| GenerateRequest { prompt, options }).collect();
            generate_batch(chunk.as_ref(), &device(), &requests, &mut |_, _| ControlFlow::Continue(())).unwrap()
        };
        let options = GenerateOptions::greedy(model.config(), NEW);
        let without = GenerateOptions { cache: StateCache::Off, ..options.clone() };
        let prompts = prompts(model.config().vocab_size);
        let together = run(&prompts, &options);
        assert!(together.iter().all(|text| text.len() == NEW), "{name}");
        assert_eq!(run(&prompts, &without), together, "{name}, without state");
        for (prompt, text) in prompts.chunks(1).zip(&together) {
            assert_eq!(run(prompt, &options), std::slice::from_ref(text), "{name}, {prompt:?} alone");
            assert_eq!(run(prompt, &without), std::slice::from_ref(text), "{name}, {prompt:?} alone without state");
        }
    }
}

#[test]
fn each_text_of_a_batch_ends_where_it_ends_alone() {
    let model = HfModel::open(&golden("qwen2")).unwrap();
    let chunk = model.build(&device()).unwrap();
    let prompts = prompts(model.config().vocab_size);
    let whole = GenerateOptions::greedy(model.config(), NEW);
    let alone = |prompt: &[i64], options: &GenerateOptions| {
        crate::generate(chunk.as_ref(), &device(), prompt, options, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    // Each text has its own length, its own end and its own rules.
    let options: Vec<GenerateOptions> = (0..prompts.len())
        .map(|number| {
            let text = alone(&prompts[number], &whole);
            let rules = TokenRules { repetition_penalty: 1.0 + number as f64, ..TokenRules::default() };
            GenerateOptions { max_new_tokens: 4 * number, stop_tokens: vec![text[5]], rules, ..whole.clone() }
        })
        .collect();
    let requests: Vec<_> =
        prompts.iter().zip(&options).map(|(prompt, options)| GenerateRequest { prompt, options }).collect();
    let mut seen = vec![Vec::new(); prompts.len()];
    let texts = generate_batch(chunk.as_ref(), &device(), &requests, &mut |number, token| {
        seen[number].push(token);
        if number == 3 && seen[3].len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let texts = texts.unwrap();
    assert_eq!(seen, texts);
    for (number, text) in texts.iter().enumerate() {
        let expected = alone(&prompts[number], &options[number]);
        assert_eq!(text, if number == 3 { &expected[..2] } else { &expected[..] }, "text {number}");
    }
    let empty = [GenerateRequest { prompt: &[1], options: &whole }, GenerateRequest { prompt: &[], options: &whole }];
    let refused = generate_batch(chunk.as_ref(), &device(), &empty, &mut |_, _| ControlFlow::Continue(()));
    assert_eq!(refused.unwrap_err().0, 1);
}
