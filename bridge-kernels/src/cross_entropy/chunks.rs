//! Size of the chunks of tokens whose logits exist at once.

/// Logits of one chunk on the CPU: 32 MiB of float32, if that holds enough tokens.
const LOGITS: usize = 1 << 23;
/// Fewest tokens of a chunk on the CPU: with fewer, the projection and its gradient are read and
/// written too often.
const FEWEST_TOKENS: usize = 256;
/// Bytes of the logits of one chunk on a GPU, if they hold enough tokens.
const BYTES_ON_GPU: usize = 1 << 28;
/// Enough tokens of a chunk on a GPU. Each chunk reads and writes the float32 gradient of the
/// projection, which costs an H100 as much time as the products of 270 tokens.
const ENOUGH_TOKENS_ON_GPU: usize = 4096;
/// Most bytes of the logits of [`ENOUGH_TOKENS_ON_GPU`] tokens; with more, a chunk has fewer
/// tokens.
const MOST_BYTES_ON_GPU: usize = 1 << 30;
/// Fewest tokens of a chunk on a GPU, for any size of their logits.
const FEWEST_TOKENS_ON_GPU: usize = 1024;

/// Tokens of one chunk on the CPU, of `n`, for a vocabulary of `v`. Chunks have one size: a few
/// tokens left over would cost nearly as much as a chunk.
pub fn chunk_rows(n: usize, v: usize) -> usize {
    even(n, (LOGITS / v.max(1)).max(FEWEST_TOKENS))
}

/// Tokens of one chunk on a GPU, whose logits have `element_bytes` each and take at most `largest`
/// bytes, which a kernel can be given.
pub fn chunk_rows_on_gpu(n: usize, v: usize, element_bytes: usize, largest: usize) -> usize {
    let row = (v * element_bytes).max(1);
    let enough = (MOST_BYTES_ON_GPU / row).clamp(FEWEST_TOKENS_ON_GPU, ENOUGH_TOKENS_ON_GPU);
    even(n, (BYTES_ON_GPU / row).max(enough).min(largest / row))
}

/// The size of as few chunks of `n` as have at most `most` each.
fn even(n: usize, most: usize) -> usize {
    let chunks = n.div_ceil(most.max(1)).max(1);
    n.div_ceil(chunks).max(1)
}

/// Bytes of logits that the fused operation has at once on the CPU for `n` tokens and `v`
/// vocabulary rows; the rest is inputs, outputs and gradients.
pub fn workspace_bytes(n: usize, v: usize) -> usize {
    chunk_rows(n, v) * v * size_of::<f32>()
}

/// Columns of logits in the memory of a GPU for a vocabulary of `v`: matrix units and vectors need
/// rows that begin at multiples of 16 bytes.
pub fn pitch(v: usize) -> usize {
    v.next_multiple_of(8)
}

/// [`workspace_bytes`] on a GPU, for elements of `element_bytes` each and hidden states of `c`:
/// with a copy of the projection, if the vocabulary is not a multiple of eight.
pub fn workspace_bytes_on_gpu(n: usize, [v, c]: [usize; 2], element_bytes: usize) -> usize {
    let pitch = pitch(v);
    let copy = if pitch == v { 0 } else { pitch * c };
    (chunk_rows_on_gpu(n, pitch, element_bytes, usize::MAX) * pitch + copy) * element_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_one_size_and_stay_in_their_limit() {
        assert_eq!(chunk_rows(1000, 50_304), 250);
        assert_eq!(chunk_rows(0, 7), 1);
        assert_eq!(chunk_rows_on_gpu(16_384, 50_304, 2, usize::MAX), 4096);
        assert_eq!(chunk_rows_on_gpu(16_384, 50_304, 2, 1 << 28), 2341);
        assert_eq!(chunk_rows_on_gpu(16_384, 8_000, 2, usize::MAX), 16_384);
        assert_eq!(chunk_rows_on_gpu(16_384, 256_000, 2, usize::MAX), 2048);
        assert_eq!(chunk_rows_on_gpu(16_384, 1_000_000, 2, usize::MAX), 1024);
        assert_eq!(chunk_rows_on_gpu(1000, 100, 4, 7 * 400 + 399), 7);
        assert_eq!(chunk_rows_on_gpu(10, 100, 4, 1), 1);
        assert_eq!(workspace_bytes_on_gpu(5, [3, 7], 2), 2 * (5 * 8 + 8 * 7));
        assert_eq!(workspace_bytes_on_gpu(5, [16, 7], 4), 4 * 5 * 16);
        assert_eq!(workspace_bytes(5, 3), 60);
    }
}
