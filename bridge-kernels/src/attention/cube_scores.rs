//! Code that the attention kernels share: sizes, masks and scores.

use burn::cubecl;
use burn::cubecl::prelude::*;

use crate::cube::tile::{Rows, SIDE};
use crate::dropout::cube::{Mask, factor};

/// Score of masked keys, below every other score.
pub(super) const MASKED: f32 = -1e30;

/// Sizes that may change from call to call without a new kernel.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub batches: u32,
    /// Queries of a sequence.
    pub queries: u32,
    /// Keys of a sequence.
    pub keys: u32,
    /// Query heads.
    pub heads: u32,
    /// Key/value heads.
    pub groups: u32,
    pub head_size: u32,
    /// Head size of values.
    pub width: u32,
    /// Keys to the left of a query that are visible to it.
    pub window: u32,
    /// Factor on the scores.
    pub scale: f32,
    /// Soft cap on the scores.
    pub softcap: f32,
}

/// Compile-time constants of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Rows of a tile that a unit has.
    pub r: usize,
    /// Columns of queries and keys that a unit has in each row.
    pub columns: usize,
    /// Columns of values that a unit has in each row.
    pub value_columns: usize,
    /// True if there is a soft cap.
    pub capped: bool,
    /// True if the max logit is recorded.
    pub probed: bool,
    /// True if there is dropout.
    pub dropped: bool,
}

/// A head of `x [b, length, heads, size]` from a token on.
#[cube]
pub(super) fn head_at(batch: usize, token: usize, head: usize, length: usize, heads: usize, size: usize) -> Rows {
    let start = ((batch * length + token) * heads + head) * size;
    Rows { start, stride: heads * size, step: 1usize.runtime(), count: length - token }
}

/// Keys and values of a head's group, and its queries: see [`head_at`].
#[cube]
pub(super) fn queries_at(batch: usize, token: usize, head: usize, size: usize, sizes: &Sizes) -> Rows {
    head_at(batch, token, head, sizes.queries as usize, sizes.heads as usize, size)
}

/// See [`queries_at`].
#[cube]
pub(super) fn keys_at(batch: usize, token: usize, group: usize, size: usize, sizes: &Sizes) -> Rows {
    head_at(batch, token, group, sizes.keys as usize, sizes.groups as usize, size)
}

/// A block of queries of a head, and the keys that are visible to any of them, documents aside.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Block {
    pub batch: usize,
    pub head: usize,
    pub group: usize,
    /// The first query.
    pub first: usize,
    /// Index of the query in `[b, h, t]`.
    pub line: usize,
    /// The first key.
    pub begin: usize,
    /// End of the range of keys, exclusive.
    pub end: usize,
}

/// The block of this cube, of `rows` queries. For surplus cubes its batch is beyond the last.
#[cube]
pub(super) fn block_of_queries(rows: usize, sizes: &Sizes) -> Block {
    let (queries, keys, heads) = (sizes.queries as usize, sizes.keys as usize, sizes.heads as usize);
    let blocks = queries.div_ceil(rows);
    let (first, rest) = (CUBE_POS % blocks * rows, CUBE_POS / blocks);
    let (head, batch) = (rest % heads, rest / heads);
    let position = keys - queries + first;
    let mut begin = 0usize;
    if position > sizes.window as usize {
        begin = position - sizes.window as usize;
    }
    Block {
        batch,
        head,
        group: head / (heads / sizes.groups as usize),
        first,
        line: (batch * heads + head) * queries + first,
        begin,
        end: keys - queries + min(first + rows, queries),
    }
}

/// Queries from one on, up to another.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Span {
    pub begin: usize,
    pub end: usize,
}

/// The queries to which any of `rows` keys from `first` on is visible, documents aside.
#[cube]
pub(super) fn visible_queries(first: usize, rows: usize, sizes: &Sizes) -> Span {
    let (queries, keys) = (sizes.queries as usize, sizes.keys as usize);
    let before = keys - queries;
    let mut begin = 0usize;
    if first > before {
        begin = first - before;
    }
    let mut end = queries;
    if keys > sizes.window as usize {
        let beyond = min(first + rows, keys) + sizes.window as usize;
        end = 0usize.runtime();
        if beyond > before {
            end = min(beyond - before, queries);
        }
    }
    Span { begin, end }
}

/// True if a query of a sequence attends to a key. With documents there are as many keys as
/// queries.
#[cube]
pub(super) fn is_visible<P: Int>(
    documents: ComptimeOption<&[P]>,
    batch: usize,
    query: usize,
    key: usize,
    sizes: &Sizes,
) -> bool {
    let (queries, keys) = (sizes.queries as usize, sizes.keys as usize);
    let position = keys - queries + query;
    let mut visible = query < queries && key <= position;
    if visible {
        visible = position - key <= sizes.window as usize;
    }
    #[comptime]
    match documents {
        ComptimeOption::Some(documents) => {
            if visible {
                visible = documents[batch * queries + query] == documents[batch * queries + key];
            }
        }
        ComptimeOption::None => {}
    }
    visible
}

/// Scaled and capped.
#[cube]
pub(super) fn score(product: f32, sizes: &Sizes, #[comptime] capped: bool) -> f32 {
    let mut score = product * sizes.scale;
    if comptime!(capped) {
        // tanh u = 1 - 2 / (exp(2 u) + 1) holds at both ends; the tanh of some drivers does not.
        score = sizes.softcap * (1.0f32 - 2.0f32 / ((2.0f32 * score / sizes.softcap).exp() + 1.0f32));
    }
    score
}

/// Probability of a query and a key, and the gradient of their score.
#[derive(CubeType, Clone, Copy)]
pub(super) struct ScoreGradient {
    /// After dropout.
    pub probability: f32,
    /// Gradient of the score, times the scale.
    pub gradient: f32,
}

/// Gradient of the score of an unmasked key, for the query at `line` of `[b, h, t]`. `delta` is the
/// sum of the products of the query's output and its gradient (FlashAttention-2, arXiv:2307.08691,
/// section 3.1.2, `D`). The gradient is multiplied by `scale`.
#[cube]
pub(super) fn score_gradient(
    product: f32,
    slope: f32,
    log_sum_exp: f32,
    delta: f32,
    scale: f32,
    line: usize,
    key: usize,
    sizes: &Sizes,
    mask: &Mask,
    #[comptime] capped: bool,
    #[comptime] dropped: bool,
) -> ScoreGradient {
    let value = score(product, sizes, capped);
    let whole = (value - log_sum_exp).exp();
    let mut probability = whole;
    let mut gradient = slope;
    if comptime!(dropped) {
        let factor = factor(mask, line as u32, key as u32, sizes.keys);
        gradient *= factor;
        probability *= factor;
    }
    gradient = whole * (gradient - delta) * scale;
    if comptime!(capped) {
        let ratio = value / sizes.softcap;
        gradient *= 1.0f32 - ratio * ratio;
    }
    ScoreGradient { probability, gradient }
}

/// [`score_gradient`] for the tile that begins at a query and a key, with zeros at masked keys. Its
/// rows are keys if `by_key`. `statistics`, `[2, b, h, t]`, are log-sum-exps and deltas, of which
/// the head's queries begin at `line`.
#[cube]
pub(super) fn score_gradients<P: Int>(
    scores: &mut Array<f32>,
    gradients: &mut Array<f32>,
    documents: ComptimeOption<&[P]>,
    statistics: &[f32],
    batch: usize,
    line: usize,
    query: usize,
    key: usize,
    sizes: &Sizes,
    mask: &Mask,
    #[comptime] form: Form,
    #[comptime] by_key: bool,
) {
    let r = comptime!(form.r);
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    #[unroll]
    for i in 0..r {
        #[unroll]
        for j in 0..r {
            let (row, column) = (y + i * SIDE, x + j * SIDE);
            let mut own = row;
            let mut other = column;
            if comptime!(by_key) {
                own = column;
                other = row;
            }
            let mut probability = 0.0f32;
            let mut gradient = 0.0f32;
            if is_visible::<P>(documents, batch, query + own, key + other, sizes) {
                let at = line + query + own;
                let found = score_gradient(
                    scores[i * r + j],
                    gradients[i * r + j],
                    statistics[at],
                    statistics[statistics.len() / 2 + at],
                    1.0f32,
                    at,
                    key + other,
                    sizes,
                    mask,
                    form.capped,
                    form.dropped,
                );
                probability = found.probability;
                gradient = found.gradient;
            }
            scores[i * r + j] = probability;
            gradients[i * r + j] = gradient;
        }
    }
}
