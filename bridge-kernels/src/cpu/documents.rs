//! Sequences of several documents, for operations that must not reach from one into another.

/// For each token the number of the first token of its document, counted in its sequence of `t`
/// tokens; a document is a run of equal `ids`. Without ids each of `n` tokens is of the one
/// document of its sequence.
pub fn starts(ids: Option<&[i64]>, t: usize, n: usize) -> Vec<usize> {
    let Some(ids) = ids else {
        return vec![0; n];
    };
    let mut starts = vec![0; n];
    for token in 0..n {
        let place = token % t;
        let goes_on = place > 0 && ids[token] == ids[token - 1];
        starts[token] = if goes_on { starts[token - 1] } else { place };
    }
    starts
}
