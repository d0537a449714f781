//! Which scores exist at once where attention is made of matrix products.

/// Bytes of the scores that exist at once, where that is enough for [`FEWEST_QUERIES`].
pub(super) const BYTES: usize = 1 << 27;
/// Fewest queries of a sequence that are taken together. Numbers of queries, and the first keys, are multiples of it: products read vectors.
pub(super) const FEWEST_QUERIES: usize = 64;
/// Fewest keys, and bytes of an element, for which products are taken.
const FEWEST_KEYS: usize = 256;
const ELEMENT_BYTES: usize = 2;

/// Whether products are the faster form on a GPU: in 16 bits, but for short sequences.
pub(super) fn are_for(keys: usize, element_bytes: usize) -> bool {
    element_bytes == ELEMENT_BYTES && keys >= FEWEST_KEYS
}

/// Bytes of scores, and of their gradients, that exist at once on a GPU for `[b, h, t, s]` sequences, heads, queries and keys, of elements of
/// `element_bytes`: none in the form without a score matrix.
pub fn workspace_bytes_on_gpu([b, h, t, s]: [usize; 4], element_bytes: usize) -> usize {
    if !are_for(s, element_bytes) {
        return 0;
    }
    let parts = parts([b, h, t, s], None, BYTES / element_bytes).into_iter();
    2 * parts.map(|part| part.batches * h * part.queries * part.keys).max().unwrap_or(0) * element_bytes
}

/// Queries of some sequences, and the keys that any of them sees but for documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub batch: usize,
    pub batches: usize,
    pub query: usize,
    pub queries: usize,
    pub key: usize,
    pub keys: usize,
}

/// The parts, in the order of sequences and then queries: `most` scores each, if that is enough for [`FEWEST_QUERIES`].
pub(super) fn parts([b, h, t, s]: [usize; 4], window: Option<usize>, most: usize) -> Vec<Part> {
    let fewest = t.min(FEWEST_QUERIES);
    let batches = (most / (h * fewest * s).max(1)).clamp(1, b);
    let queries = most / (batches * h * s).max(1) / FEWEST_QUERIES * FEWEST_QUERIES;
    let queries = queries.clamp(fewest, t);
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
        let keys: Vec<_> = windowed.iter().map(|part| (part.key, part.keys)).collect();
        assert_eq!(keys, [(0, 64), (0, 128), (0, 192), (64, 192)]);
        assert_eq!(parts([2, 1, 5, 5], None, 1).len(), 2, "one sequence at a time");
        assert_eq!(workspace_bytes_on_gpu([1, 3, 5, 256], 2), 2 * 3 * 5 * 256 * 2);
        assert_eq!((workspace_bytes_on_gpu([1, 3, 5, 255], 2), workspace_bytes_on_gpu([1, 3, 5, 256], 4)), (0, 0));
    }
}
