//! Size of the scores that exist at once if attention is computed by matrix products.

/// Bytes of float32 scores that exist at once, if they hold [`FEWEST_QUERIES`].
pub(super) const BYTES: usize = 1 << 27;
/// Bytes of a score that parts are made for: a table of products writes float32.
pub(super) const SCORE_BYTES: usize = size_of::<f32>();
/// Fewest queries of a sequence that are taken together. Numbers of queries, and the first keys,
/// are multiples of it: products read vectors.
pub(super) const FEWEST_QUERIES: usize = 64;
/// Fewest keys, and bytes of an element, for which products are taken.
const FEWEST_KEYS: usize = 256;
const ELEMENT_BYTES: usize = 2;
/// Largest head for which a unit of the form on matrix units has registers, and the number of which
/// head sizes are multiples there.
pub(super) const LARGEST_HEAD: usize = 128;
pub(super) const HEAD_MULTIPLE: usize = 16;

/// True if matrix units have room for heads of `d` for keys and `width` for values.
pub(super) fn fits_matrix_units(d: usize, width: usize) -> bool {
    d == width && d.is_multiple_of(HEAD_MULTIPLE) && d <= LARGEST_HEAD
}

/// True if matrix products are the faster form on a GPU: in 16 bits, except for short sequences.
pub(super) fn prefers_matrix_products(keys: usize, element_bytes: usize) -> bool {
    element_bytes == ELEMENT_BYTES && keys >= FEWEST_KEYS
}

/// Bytes that attention works in on a GPU, for `[b, h, t, s]` sequences, heads, queries and keys,
/// of elements of `element_bytes`: scores and gradients of probabilities in float32, probabilities
/// and gradients of scores as elements are, and the float32 sums of gradients of `[g, d, w]`
/// key/value heads and their columns. Without a table of products the first two are smaller. None
/// in the forms without a score matrix: which one runs depends on whether the device has
/// `matrix_units`.
pub fn workspace_bytes_on_gpu(
    [b, h, t, s]: [usize; 4],
    [g, d, width]: [usize; 3],
    window: Option<usize>,
    element_bytes: usize,
    matrix_units: bool,
) -> usize {
    let on_units = matrix_units && element_bytes == ELEMENT_BYTES && t > 1 && fits_matrix_units(d, width);
    if on_units || !prefers_matrix_products(s, element_bytes) || [b, h, t].contains(&0) || s < t {
        return 0;
    }
    let parts = parts([b, h, t, s], window, BYTES / SCORE_BYTES).into_iter();
    let bytes = |part: Part| {
        2 * part.batches * h * part.queries * part.keys * (SCORE_BYTES + element_bytes)
            + part.batches * g * s * (d + width) * size_of::<f32>()
    };
    parts.map(bytes).max().unwrap_or(0)
}

/// Queries of some sequences, and the keys that are visible to any of them, documents aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub batch: usize,
    pub batches: usize,
    pub query: usize,
    pub queries: usize,
    pub key: usize,
    pub keys: usize,
}

/// The parts, in the order of sequences and then queries: `most` scores each, if that is enough for
/// [`FEWEST_QUERIES`]. No size is 0.
pub(super) fn parts([b, h, t, s]: [usize; 4], window: Option<usize>, most: usize) -> Vec<Part> {
    let fewest = t.min(FEWEST_QUERIES);
    // The first key is rounded down.
    let keys_of = |queries: usize| window.map_or(s, |window| s.min(window + queries + FEWEST_QUERIES));
    let batches = (most / (h * fewest * keys_of(fewest))).clamp(1, b);
    let fits = |queries: &usize| batches * h * queries * keys_of(*queries) <= most;
    let more = (FEWEST_QUERIES..t).step_by(FEWEST_QUERIES).chain([t]).take_while(fits);
    let queries = more.last().unwrap_or(fewest);
    let mut parts = Vec::new();
    for batch in (0..b).step_by(batches) {
        for query in (0..t).step_by(queries) {
            let own = queries.min(t - query);
            let (first, end) = (s - t + query, s - t + query + own);
            let key = window.map_or(0, |window| first.saturating_sub(window) / FEWEST_QUERIES * FEWEST_QUERIES);
            let batches = batches.min(b - batch);
            parts.push(Part { batch, batches, query, queries: own, key, keys: end - key });
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_what_is_seen_and_stay_in_their_limit() {
        let all = parts([3, 2, 200, 230], None, 2 * 2 * 128 * 230);
        let queries: Vec<_> = all.iter().map(|part| (part.batch, part.batches, part.query, part.queries)).collect();
        // As many sequences as fit with 64 queries each.
        assert_eq!(queries[..4], [(0, 3, 0, 64), (0, 3, 64, 64), (0, 3, 128, 64), (0, 3, 192, 8)]);
        assert!(all.iter().all(|part| part.key == 0 && part.keys == 30 + part.query + part.queries));
        let windowed = parts([1, 1, 256, 256], Some(100), 64 * 256);
        assert_eq!(parts([1, 1, 1 << 14, 1 << 14], Some(100), 512 * (100 + 512 + 64)).len(), 32, "windows let more in");
        let keys: Vec<_> = windowed.iter().map(|part| (part.key, part.keys)).collect();
        assert_eq!(keys, [(0, 64), (0, 128), (0, 192), (64, 192)]);
        assert_eq!(parts([2, 1, 5, 5], None, 1).len(), 2, "one sequence at a time");
        let bytes = |shape, element| workspace_bytes_on_gpu(shape, [2, 3, 4], None, element, true);
        let by_products = |columns: usize| 2 * 3 * 5 * 256 * (4 + 2) + 2 * 256 * columns * 4;
        assert_eq!(bytes([1, 3, 5, 256], 2), by_products(7));
        assert_eq!([bytes([1, 3, 5, 255], 2), bytes([1, 3, 5, 256], 4), bytes([1, 3, 0, 256], 2)], [0; 3]);
        let heads = |d, width, units| workspace_bytes_on_gpu([1, 3, 5, 256], [2, d, width], None, 2, units);
        assert_eq!([heads(16, 16, true), heads(128, 128, true)], [0; 2]);
        assert_eq!(
            [heads(128, 128, false), heads(144, 144, true), heads(16, 32, true)],
            [256, 288, 48].map(by_products)
        );
    }
}
