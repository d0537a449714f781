//! Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011).
//!
//! A value is a pure function of (key, position), so streams need no state to save, a recomputed
//! layer redraws the same dropout mask, and a shard of a parameter can be drawn without drawing the
//! rest.

/// Multipliers of the rounds.
const M0: u64 = 0xD251_1F53;
const M1: u64 = 0xCD9E_8D57;
/// Increments of the round keys.
const W0: u32 = 0x9E37_79B9;
const W1: u32 = 0xBB67_AE85;

/// One stream of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Philox {
    key: u64,
}

impl Philox {
    /// The stream of `key`.
    pub fn new(key: u64) -> Self {
        Self { key }
    }

    /// The two halves of the key, the lower first.
    #[cfg(feature = "cube")]
    pub(crate) fn words(self) -> [u32; 2] {
        [self.key as u32, (self.key >> 32) as u32]
    }

    /// A stream derived from this one and `tag`; different tags give unrelated streams.
    #[must_use]
    pub fn derive(self, tag: u64) -> Self {
        let block = Self { key: self.key }.block_at(tag, 0x5eed);
        Self { key: u64::from(block[0]) | u64::from(block[1]) << 32 }
    }

    /// A stream derived from this one and a name.
    #[must_use]
    pub fn derive_name(self, name: &str) -> Self {
        // FNV-1a: short, stable, and good enough to tell names apart; Philox does the mixing.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        self.derive(hash)
    }

    /// Four random words: those at positions `4 * index ..`.
    #[inline]
    pub fn block(self, index: u64) -> [u32; 4] {
        self.block_at(index, 0)
    }

    /// Random words at positions `4 * index ..`, the same as [`Self::block`] gives, drawn 16 blocks
    /// at a time. Panics if the number of words is not a multiple of 64.
    #[inline(always)]
    pub(crate) fn fill(self, index: u64, words: &mut [u32]) {
        const BLOCKS: usize = 16;
        let (groups, rest) = words.as_chunks_mut::<{ 4 * BLOCKS }>();
        assert!(rest.is_empty(), "words are drawn in multiples of {}", 4 * BLOCKS);
        for (group, words) in groups.iter_mut().enumerate() {
            let first = index + (group * BLOCKS) as u64;
            // One array for each of the four words of the counters, so that every line below works
            // on all blocks.
            let (mut c0, mut c1, mut c2, mut c3) = ([0_u32; BLOCKS], [0; BLOCKS], [0; BLOCKS], [0; BLOCKS]);
            for (i, (low, high)) in c0.iter_mut().zip(&mut c1).enumerate() {
                let counter = first + i as u64;
                (*low, *high) = (counter as u32, (counter >> 32) as u32);
            }
            let mut k = [self.key as u32, (self.key >> 32) as u32];
            for _ in 0..10 {
                for ((c0, c1), (c2, c3)) in c0.iter_mut().zip(&mut c1).zip(c2.iter_mut().zip(&mut c3)) {
                    let (p0, p1) = (M0 * u64::from(*c0), M1 * u64::from(*c2));
                    (*c0, *c1) = ((p1 >> 32) as u32 ^ *c1 ^ k[0], p1 as u32);
                    (*c2, *c3) = ((p0 >> 32) as u32 ^ *c3 ^ k[1], p0 as u32);
                }
                k = [k[0].wrapping_add(W0), k[1].wrapping_add(W1)];
            }
            for (words, ((c0, c1), (c2, c3))) in
                words.as_chunks_mut::<4>().0.iter_mut().zip(c0.iter().zip(&c1).zip(c2.iter().zip(&c3)))
            {
                *words = [*c0, *c1, *c2, *c3];
            }
        }
    }

    #[inline]
    fn block_at(self, index: u64, high: u64) -> [u32; 4] {
        let mut c = [index as u32, (index >> 32) as u32, high as u32, (high >> 32) as u32];
        let mut k = [self.key as u32, (self.key >> 32) as u32];
        for _ in 0..10 {
            let p0 = M0 * u64::from(c[0]);
            let p1 = M1 * u64::from(c[2]);
            c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
            k = [k[0].wrapping_add(W0), k[1].wrapping_add(W1)];
        }
        c
    }

    /// `count` independent draws from the normal distribution N(0, `std`^2), by the Box-Muller
    /// transform.
    pub fn normal(self, count: usize, std: f64) -> Vec<f32> {
        self.normal_range(0..count, std)
    }

    /// Draws elements `range` of [`Self::normal`] without computing the rest.
    pub fn normal_range(self, range: std::ops::Range<usize>, std: f64) -> Vec<f32> {
        // As many as are asked for and no room for more: they become a parameter's memory.
        let mut values = Vec::with_capacity(range.len());
        let mut skipped = range.start % 4;
        for index in range.start as u64 / 4..(range.end as u64).div_ceil(4) {
            let words = self.block(index);
            let pair = |pair: [u32; 2]| {
                // (0, 1] for the logarithm, [0, 1) for the angle.
                let u1 = (f64::from(pair[0]) + 1.0) / 4_294_967_296.0;
                let u2 = f64::from(pair[1]) / 4_294_967_296.0;
                let radius = std * (-2.0 * u1.ln()).sqrt();
                let (sin, cos) = (std::f64::consts::TAU * u2).sin_cos();
                [(radius * cos) as f32, (radius * sin) as f32]
            };
            let ([first, second], [third, fourth]) = (pair([words[0], words[1]]), pair([words[2], words[3]]));
            let wanted = range.len() - values.len();
            values.extend([first, second, third, fourth].into_iter().skip(skipped).take(wanted));
            skipped = 0;
        }
        values
    }

    /// Draws elements `range` of the uniform draws over `[0, 1)` without computing the rest.
    pub fn uniform_range(self, range: std::ops::Range<usize>) -> Vec<f64> {
        let blocks = range.start as u64 / 4..(range.end as u64).div_ceil(4);
        let words = blocks.flat_map(|index| self.block(index)).skip(range.start % 4).take(range.len());
        words.map(|word| f64::from(word) / 4_294_967_296.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_published_vectors() {
        // Known-answer tests of the Random123 distribution for philox4x32-10.
        assert_eq!(Philox::new(0).block(0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            Philox::new(u64::MAX).block_at(u64::MAX, u64::MAX),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn filling_gives_the_words_of_the_blocks() {
        let stream = Philox::new(0x1234_5678_9abc_def0);
        let first = u64::from(u32::MAX) - 7;
        let mut words = [0; 128];
        stream.fill(first, &mut words);
        let expected: Vec<u32> = (first..first + 32).flat_map(|i| stream.block(i)).collect();
        assert_eq!(words[..], expected[..]);
    }

    #[test]
    fn a_range_of_draws_is_that_range_of_all() {
        let all = Philox::new(7).normal(103, 0.3);
        for range in [0..0, 0..1, 2..7, 4..8, 5..103, 103..103] {
            assert_eq!(Philox::new(7).normal_range(range.clone(), 0.3), all[range]);
        }
    }

    #[test]
    fn uniform_draws_fill_their_range_evenly() {
        let all = Philox::new(7).uniform_range(0..100_001);
        assert!(all.iter().all(|v| (0.0..1.0).contains(v)));
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!((mean - 0.5).abs() < 3.0 * 0.29 / 316.0, "mean {mean}");
        for range in [0..0, 0..1, 2..7, 4..8, 5..103] {
            assert_eq!(Philox::new(7).uniform_range(range.clone()), all[range]);
        }
    }

    #[test]
    fn normal_has_the_moments_it_should() {
        let x = Philox::new(7).normal(100_001, 0.02);
        let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
        assert!(mean.abs() < 3.0 * 0.02 / 316.0, "mean {mean}");
        assert!((variance.sqrt() / 0.02 - 1.0).abs() < 0.01, "standard deviation {}", variance.sqrt());
        assert_eq!(x[..10], Philox::new(7).normal(10, 0.02)[..]);
        assert_ne!(x[..10], Philox::new(7).derive(1).normal(10, 0.02)[..]);
    }
}
