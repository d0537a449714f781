//! Keys that each query attends to, chosen one by one.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Bool, Device, FloatDType, Tensor, TensorData};
use rayon::prelude::*;

/// Bits of a word, and keys of a number.
const BITS: usize = u64::BITS as usize;
const BYTE: usize = u8::BITS as usize;

/// Keys that each query attends to, a bit a key: in place of earlier keys, windows and documents.
///
/// The shape is `[b, n, t, s]`, where `n` runs of query heads choose for themselves.
#[derive(Clone)]
pub struct KeyChoice {
    shape: [usize; 4],
    /// `s` bits a row, in whole words.
    words: Arc<Vec<u64>>,
    /// From the first to the last chosen key of each row.
    ranges: Arc<Vec<Range<usize>>>,
}

impl KeyChoice {
    /// The keys that `mark` marks in the row of a sequence, a run of heads and a query; none is
    /// marked before.
    pub fn from_rows(shape: [usize; 4], mark: impl Fn([usize; 3], &mut [bool]) + Sync) -> Self {
        let [b, n, t, s] = shape;
        let stride = s.div_ceil(BITS);
        let mut words = vec![0; b * n * t * stride];
        let ranges = words.par_chunks_mut(stride.max(1)).enumerate().map_init(
            || vec![false; s],
            |marks, (row, words)| {
                marks.fill(false);
                mark([row / (n * t), row / t % n, row % t], marks);
                for (word, marks) in words.iter_mut().zip(marks.chunks(BITS)) {
                    *word = marks.iter().rev().fold(0, |word, marked| word << 1 | u64::from(*marked));
                }
                let first = marks.iter().position(|marked| *marked).unwrap_or(0);
                first..marks.iter().rposition(|marked| *marked).map_or(first, |last| last + 1)
            },
        );
        let ranges = Arc::new(ranges.collect());
        Self { shape, words: Arc::new(words), ranges }
    }

    /// The choices of queries one after the other.
    ///
    /// # Panics
    /// If there are no parts, or they differ in more than the number of queries.
    pub fn cat(parts: &[Self]) -> Self {
        let [b, n, _, s] = parts[0].shape;
        assert!(parts.iter().all(|part| [part.shape[0], part.shape[1], part.shape[3]] == [b, n, s]));
        let t = parts.iter().map(|part| part.shape[2]).sum();
        let rows = |head: usize| parts.iter().map(move |part| (part, head * part.shape[2]..(head + 1) * part.shape[2]));
        let words = (0..b * n).flat_map(rows).flat_map(|(part, rows)| rows.flat_map(|row| part.words_of(row)));
        let ranges = (0..b * n).flat_map(rows).flat_map(|(part, rows)| part.ranges[rows].iter().cloned());
        Self { shape: [b, n, t, s], words: Arc::new(words.copied().collect()), ranges: Arc::new(ranges.collect()) }
    }

    /// Numbers below 256, `[b, t, f]`, which any float type has exactly: eight keys each.
    pub fn to_numbers(&self, device: &Device, dtype: FloatDType) -> Tensor<3> {
        let [b, n, t, s] = self.shape;
        let width = Self::numbers(s);
        let rows = (0..b * t).flat_map(|row| (0..n).map(move |head| (row / t * n + head) * t + row % t));
        let bytes = rows.flat_map(|row| self.words_of(row).iter().flat_map(|word| word.to_le_bytes()).take(width));
        let numbers: Vec<f32> = bytes.map(f32::from).collect();
        Tensor::<3>::from_data(TensorData::new(numbers, [b, t, n * width]), device).cast(dtype)
    }

    /// The choice of `s` keys with [these numbers](Self::to_numbers).
    pub fn from_numbers(numbers_btf: Tensor<3>, s: usize) -> Self {
        let ([b, t, f], width) = (numbers_btf.dims(), Self::numbers(s));
        let numbers: Vec<f32> = numbers_btf.into_data().iter::<f32>().collect();
        let n = f / width;
        Self::from_rows([b, n, t, s], |[batch, head, query], marks| {
            let row = &numbers[((batch * t + query) * n + head) * width..][..width];
            let is_marked = |key: usize| row[key / BYTE] as u8 >> (key % BYTE) & 1 == 1;
            marks.iter_mut().enumerate().for_each(|(key, mark)| *mark = is_marked(key));
        })
    }

    /// Numbers of a query that has `s` keys.
    pub fn numbers(s: usize) -> usize {
        s.div_ceil(BYTE)
    }

    /// `[b, n, t, s]`.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// True where a key is not chosen by these queries, `[b, n, queries, s]`.
    pub fn hidden(&self, queries: Range<usize>, device: &Device) -> Tensor<4, Bool> {
        let [b, n, t, s] = self.shape;
        let row = |row| self.words_of(row).iter().flat_map(|word| (0..BITS).map(move |bit| word >> bit & 1 == 0));
        let rows = (0..b * n).flat_map(|head| queries.clone().map(move |query| head * t + query));
        let hidden: Vec<bool> = rows.flat_map(|index| row(index).take(s)).collect();
        let shape = [b, n, queries.len(), s];
        Tensor::from_data(TensorData::new(hidden, shape), &device.clone().without_autodiff())
    }

    fn words_of(&self, row: usize) -> &[u64] {
        let stride = self.shape[3].div_ceil(BITS);
        &self.words[row * stride..][..stride]
    }

    /// Row of one of `h` query heads.
    fn row(&self, h: usize, [batch, head, query]: [usize; 3]) -> usize {
        let [_, n, t, _] = self.shape;
        (batch * n + head * n / h) * t + query
    }

    /// From the first to the last key of a query of one of `h` heads.
    pub(super) fn range(&self, h: usize, place: [usize; 3]) -> Range<usize> {
        self.ranges[self.row(h, place)].clone()
    }

    /// Puts `-inf` in place of the scores of keys from `first` on that are not chosen.
    #[inline(always)]
    pub(super) fn mask(&self, h: usize, place: [usize; 3], first: usize, scores: &mut [f32]) {
        let words = self.words_of(self.row(h, place));
        for (key, score) in (first..).zip(scores) {
            let is_chosen = words[key / BITS] >> (key % BITS) & 1 == 1;
            *score = if is_chosen { *score } else { f32::NEG_INFINITY };
        }
    }
}

impl fmt::Debug for KeyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyChoice").field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// Marks the `count` keys with the largest scores, of equal ones the first, or all if there are no
/// more.
pub fn mark_best(scores: &[f32], count: usize, marks: &mut [bool]) {
    if scores.len() <= count {
        return marks[..scores.len()].fill(true);
    }
    let Some(last) = count.checked_sub(1) else { return };
    let mut sorted = scores.to_vec();
    let (above, threshold, _) = sorted.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
    let mut equal = count - above.iter().filter(|score| **score > *threshold).count();
    for (mark, score) in marks.iter_mut().zip(scores) {
        let is_equal = score == threshold && equal > 0;
        equal -= usize::from(is_equal);
        *mark = is_equal || score > threshold;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_keys_are_marked_and_of_equal_ones_the_first() {
        let best = |scores: &[f32], count| -> Vec<usize> {
            let mut marks = vec![false; scores.len()];
            mark_best(scores, count, &mut marks);
            (0..scores.len()).filter(|key| marks[*key]).collect()
        };
        assert_eq!(best(&[0.5, -1.0, 3.0, 0.5, 0.5], 3), [0, 2, 3]);
        assert_eq!(best(&[0.0, -0.0, 0.0], 1), [0]);
        assert_eq!(best(&[-2.0, -1.0], 7), [0, 1]);
        assert_eq!(best(&[-2.0, -1.0], 0), [0_usize; 0]);
        assert_eq!(best(&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY], 2), [0, 1]);
    }

    #[test]
    fn choices_are_put_one_after_the_other() {
        let shape = |t| [2, 3, t, 131];
        let is_chosen = |[batch, head, query]: [usize; 3], key: usize| (batch + 2 * head + 5 * query + key) % 7 == 3;
        let choice = |t, first: usize| {
            KeyChoice::from_rows(shape(t), |[batch, head, query], marks| {
                let place = [batch, head, first + query];
                marks.iter_mut().enumerate().for_each(|(key, mark)| *mark = is_chosen(place, key));
            })
        };
        let whole = choice(9, 0);
        let parts = KeyChoice::cat(&[choice(4, 0), choice(5, 4)]);
        assert_eq!((&whole.words, &whole.ranges), (&parts.words, &parts.ranges));
        let numbers = whole.to_numbers(&Device::flex(), FloatDType::BF16);
        assert_eq!(numbers.dims(), [2, 9, 3 * 17]);
        let read = KeyChoice::from_numbers(numbers, 131);
        assert_eq!((whole.shape, &whole.words, &whole.ranges), (read.shape, &read.words, &read.ranges));
        let hidden = whole.hidden(0..9, &Device::flex()).into_data().try_into_vec::<bool>().unwrap();
        for (index, hidden) in hidden.into_iter().enumerate() {
            let (row, key) = (index / 131, index % 131);
            let place = [row / 27, row / 9 % 3, row % 9];
            assert_eq!(hidden, !is_chosen(place, key), "{place:?} {key}");
            assert!(hidden || whole.range(6, [place[0], 2 * place[1] + 1, place[2]]).contains(&key));
        }
    }
}
