//! KV cache: keys and values of a generation, and others by token, all or those inside the window.

use burn::tensor::{Int, Tensor};

/// The dimension of the sequence in `[b, t, g, d]`.
const SEQUENCE: usize = 1;

/// Keys and values of the tokens that later ones may attend to.
#[derive(Debug)]
pub(crate) struct KeyValues {
    /// Tokens that a query sees to its left: no more are kept. `None` keeps all.
    window: Option<usize>,
    /// True if the window is the chunk of `window + 1` tokens that has the query.
    has_chunks: bool,
    /// Tokens appended so far.
    seen: usize,
    /// `[b, s, g, d]` each; empty before the first token.
    kept: Vec<Tensor<4>>,
}

impl KeyValues {
    /// Empty cache of a layer with this window.
    pub fn new(window: Option<usize>) -> Self {
        Self { window, has_chunks: false, seen: 0, kept: Vec::new() }
    }

    /// The cache of a layer whose window is the chunk of a query, if `has_chunks`.
    pub fn in_chunks(self, has_chunks: bool) -> Self {
        Self { has_chunks, ..self }
    }

    /// Appends keys and values of new tokens and returns those that the new tokens may attend to,
    /// the newest last.
    ///
    /// # Shapes
    /// `[b, t, g, d]` each -> `[b, s, g, d]` each, where `s` counts the tokens kept and the new
    /// ones.
    pub fn append<const N: usize>(&mut self, new: [Tensor<4>; N]) -> [Tensor<4>; N] {
        self.seen += new[0].dims()[SEQUENCE];
        let of_chunk = |window: usize| if self.has_chunks { self.seen % (window + 1) } else { window };
        let window = self.window.map(of_chunk);
        let mut kept = std::mem::take(&mut self.kept).into_iter();
        let all = new.map(|new| match kept.next() {
            Some(kept) => Tensor::cat(vec![kept, new], SEQUENCE),
            None => new,
        });
        self.kept = match window {
            Some(0) => Vec::new(),
            Some(window) => all.iter().cloned().map(|x| last(x, window)).collect(),
            None => all.to_vec(),
        };
        all
    }
}

/// The last `count` tokens, or all if there are no more.
fn last(x_bsgd: Tensor<4>, count: usize) -> Tensor<4> {
    let s = x_bsgd.dims()[SEQUENCE];
    if s <= count {
        return x_bsgd;
    }
    // A selection is a copy; a slice would be a view that keeps all tokens in memory.
    let places = Tensor::<1, Int>::arange((s - count) as i64..s as i64, &x_bsgd.device());
    x_bsgd.select(SEQUENCE, places)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// Tokens `range`: the keys of token `i` are `i`, its values `-i`.
    fn tokens(range: std::ops::Range<usize>) -> [Tensor<4>; 2] {
        let keys: Vec<f32> = range.clone().map(|i| i as f32).collect();
        let keys = Tensor::<1>::from_floats(keys.as_slice(), &Device::flex()).reshape([1, range.len(), 1, 1]);
        [keys.clone(), -keys]
    }

    fn values([k, v]: [Tensor<4>; 2]) -> Vec<f32> {
        let k: Vec<f32> = k.into_data().try_into_vec().unwrap();
        let v: Vec<f32> = v.into_data().try_into_vec().unwrap();
        assert!(k.iter().zip(&v).all(|(k, v)| *k == -v), "keys and values of the same tokens");
        k
    }

    #[test]
    fn a_window_keeps_itself_and_no_more() {
        for (window, parts) in
            [(3, vec![1, 1, 1, 1, 7, 2, 1]), (5, vec![13, 1, 3]), (1, vec![4, 1, 1]), (0, vec![2, 1])]
        {
            let mut state = KeyValues::new(Some(window));
            let mut seen = 0;
            for part in parts {
                let first = seen.min(window);
                let expected: Vec<f32> = (seen - first..seen + part).map(|i| i as f32).collect();
                assert_eq!(values(state.append(tokens(seen..seen + part))), expected, "window {window}");
                seen += part;
                let kept = state.kept.first().map_or(0, |k| k.dims()[SEQUENCE]);
                assert_eq!(kept, seen.min(window), "window {window}, {seen} tokens seen");
            }
        }
    }

    #[test]
    fn the_chunk_of_the_next_token_is_kept() {
        let mut state = KeyValues::new(Some(3)).in_chunks(true);
        for (first, seen, part) in [(0, 0, 3), (0, 3, 1), (4, 4, 6), (8, 10, 1), (8, 11, 7), (16, 18, 1)] {
            let expected: Vec<f32> = (first..seen + part).map(|i| i as f32).collect();
            assert_eq!(values(state.append(tokens(seen..seen + part))), expected, "{seen} tokens seen");
        }
    }

    #[test]
    fn without_a_window_all_is_kept() {
        let mut state = KeyValues::new(None);
        state.append(tokens(0..4));
        assert_eq!(values(state.append(tokens(4..6))), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
