//! Logits processors of `generation_config.json` that depend on the text so far. They run before
//! `choose` draws a token.

use std::collections::BTreeSet;

/// Constraints on the tokens of a text. The default constrains nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenRules {
    /// Divides the positive logits of tokens that are in the text already, and multiplies their
    /// negative ones (arXiv:1909.05858, section 4.1): above 1 they become less likely; 1 changes
    /// nothing.
    pub repetition_penalty: f64,
    /// The same for the tokens of the prompt, the other way round: above 1 they become more likely
    /// (`encoder_repetition_penalty` in transformers).
    pub encoder_repetition_penalty: f64,
    /// Length of runs of tokens that must not repeat in the text; 0 allows all.
    pub no_repeat_ngram_size: usize,
    /// Length of runs of the prompt's tokens that must not occur in the generated text; 0 allows
    /// all.
    pub encoder_no_repeat_ngram_size: usize,
    /// Runs of tokens that are never generated.
    pub bad_words: Vec<Vec<i64>>,
    /// Smallest number of new tokens before an end token.
    pub min_new_tokens: usize,
    /// Tokens that are never generated.
    pub suppressed: Vec<i64>,
    /// Tokens that are never generated first.
    pub suppressed_first: Vec<i64>,
    /// The token after a text of one token.
    pub forced_bos: Option<i64>,
    /// Tokens of which the last one that fits is one.
    pub forced_eos: Vec<i64>,
}

impl Default for TokenRules {
    fn default() -> Self {
        Self {
            repetition_penalty: 1.0,
            encoder_repetition_penalty: 1.0,
            no_repeat_ngram_size: 0,
            encoder_no_repeat_ngram_size: 0,
            bad_words: Vec::new(),
            min_new_tokens: 0,
            suppressed: Vec::new(),
            suppressed_first: Vec::new(),
            forced_bos: None,
            forced_eos: Vec::new(),
        }
    }
}

/// A text that is being generated.
pub(super) struct Text<'a> {
    /// Input of the model.
    pub prompt: &'a [i64],
    /// Tokens before the next one: prompt and new tokens, or the tokens of an encoder-decoder's
    /// decoder.
    pub before: &'a [i64],
    /// Number of new tokens among them.
    pub new: usize,
    /// Tokens that end it.
    pub ends: &'a [i64],
    /// New tokens at most.
    pub most: usize,
}

impl TokenRules {
    /// Changes the logits of the next token.
    pub(super) fn apply(&self, logits_v: &mut [f32], text: &Text) {
        scale(logits_v, text.prompt, 1.0 / self.encoder_repetition_penalty);
        scale(logits_v, text.before, self.repetition_penalty);
        let mut banned: Vec<i64> = Vec::new();
        banned.extend(ends_of_ngrams(self.no_repeat_ngram_size, text.before, text.before));
        banned.extend(ends_of_ngrams(self.encoder_no_repeat_ngram_size, text.prompt, text.before));
        // Ends of text are never banned: without them generation would not stop.
        let is_end = |word: &[i64]| matches!(word, [token] if text.ends.contains(token));
        let words = self.bad_words.iter().filter(|word| !is_end(word));
        banned.extend(words.filter_map(|word| {
            let (last, before) = word.split_last()?;
            text.before.ends_with(before).then_some(*last)
        }));
        if text.new < self.min_new_tokens {
            banned.extend(text.ends);
        }
        banned.extend(&self.suppressed);
        if text.new == 0 {
            banned.extend(&self.suppressed_first);
        }
        for token in banned {
            if let Some(logit) = place(logits_v, token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if let Some(token) = self.forced_bos.filter(|_| text.before.len() == 1) {
            only(logits_v, &[token]);
        }
        if !self.forced_eos.is_empty() && text.new + 1 == text.most {
            only(logits_v, &self.forced_eos);
        }
    }
}

fn place(logits_v: &mut [f32], token: i64) -> Option<&mut f32> {
    usize::try_from(token).ok().and_then(|token| logits_v.get_mut(token))
}

/// Makes tokens less likely, each once.
fn scale(logits_v: &mut [f32], tokens: &[i64], penalty: f64) {
    if penalty == 1.0 {
        return;
    }
    for token in tokens.iter().copied().collect::<BTreeSet<i64>>() {
        if let Some(logit) = place(logits_v, token) {
            let value = f64::from(*logit);
            *logit = (if value < 0.0 { value * penalty } else { value / penalty }) as f32;
        }
    }
}

/// Tokens that would end a run of `size` tokens after `before` that is in `text` too.
fn ends_of_ngrams<'a>(size: usize, text: &'a [i64], before: &'a [i64]) -> impl Iterator<Item = i64> + 'a {
    let begin = (size > 0 && before.len() + 1 >= size).then(|| &before[before.len() + 1 - size..]);
    let runs = begin.into_iter().flat_map(move |begin| text.windows(size).filter(move |run| run.starts_with(begin)));
    runs.map(|run| run[run.len() - 1])
}

/// Leaves these tokens alone.
fn only(logits_v: &mut [f32], tokens: &[i64]) {
    let is_kept = |id: usize| i64::try_from(id).is_ok_and(|id| tokens.contains(&id));
    if (0..logits_v.len()).any(is_kept) {
        for (id, logit) in logits_v.iter_mut().enumerate() {
            *logit = if is_kept(id) { 0.0 } else { f32::NEG_INFINITY };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of eight equal ones that remain.
    fn left(rules: &TokenRules, before: &[i64], new: usize) -> Vec<usize> {
        let mut logits = [1.0; 8];
        let text = Text { prompt: &before[..before.len() - new], before, new, ends: &[7], most: 4 };
        rules.apply(&mut logits, &text);
        (0..8).filter(|id| logits[*id].is_finite()).collect()
    }

    #[test]
    fn penalties_change_each_token_once() {
        let mut logits = [2.0, -2.0, 3.0];
        scale(&mut logits, &[0, 0, 1, 7], 2.0);
        assert_eq!(logits, [1.0, -4.0, 3.0]);
        let rules = TokenRules { encoder_repetition_penalty: 2.0, repetition_penalty: 4.0, ..TokenRules::default() };
        let mut logits = [2.0, -2.0, 3.0];
        rules.apply(&mut logits, &Text { prompt: &[0], before: &[0, 1], new: 1, ends: &[], most: 9 });
        assert_eq!(logits, [1.0, -8.0, 3.0]);
    }

    #[test]
    fn runs_do_not_come_twice() {
        let neutral = TokenRules::default();
        let rules = |size| TokenRules { no_repeat_ngram_size: size, ..neutral.clone() };
        assert_eq!(left(&rules(2), &[1, 2, 1, 3, 1], 2), [0, 1, 4, 5, 6, 7]);
        assert_eq!(left(&rules(3), &[1, 2, 3, 1, 2], 2), [0, 1, 2, 4, 5, 6, 7]);
        assert_eq!(left(&rules(1), &[0, 1], 1), [2, 3, 4, 5, 6, 7]);
        assert_eq!(left(&rules(9), &[0, 1], 1), [0, 1, 2, 3, 4, 5, 6, 7]);
        let rules = TokenRules { encoder_no_repeat_ngram_size: 2, ..neutral };
        assert_eq!(left(&rules, &[1, 2, 3, 4, 1], 2), [0, 1, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn some_tokens_may_not_or_must_come() {
        let neutral = TokenRules::default();
        let words = vec![vec![3], vec![1, 2], vec![7], vec![2, 2, 5]];
        assert_eq!(left(&TokenRules { bad_words: words, ..neutral.clone() }, &[0, 1], 1), [0, 1, 4, 5, 6, 7]);
        let rules = TokenRules { min_new_tokens: 2, suppressed: vec![0], suppressed_first: vec![5], ..neutral.clone() };
        assert_eq!(left(&rules, &[1], 0), [1, 2, 3, 4, 6]);
        assert_eq!(left(&rules, &[1, 1], 1), [1, 2, 3, 4, 5, 6]);
        assert_eq!(left(&rules, &[1, 1, 1], 2), [1, 2, 3, 4, 5, 6, 7]);
        let rules = TokenRules { forced_bos: Some(4), forced_eos: vec![6, 7, 99], ..neutral };
        assert_eq!((left(&rules, &[1], 0), left(&rules, &[1, 1, 1, 1], 3)), (vec![4], vec![6, 7]));
        assert_eq!(left(&rules, &[1, 1, 1], 2).len(), 8);
    }
}
