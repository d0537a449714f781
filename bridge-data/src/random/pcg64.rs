//! numpy's `default_rng`: PCG64 seeded through `SeedSequence`, with bounded integers only. Legacy
//! streams are in `mt19937`.
//!
//! Source: O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for
//! Random Number Generation" (2014); bounded integers after Lemire, "Fast Random Integer Generation
//! in an Interval" (2019).

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
const POOL_WORDS: usize = 4;

/// numpy's `SeedSequence(seed)` for a seed of at most 64 bits.
struct SeedSequence {
    pool: [u32; POOL_WORDS],
}

impl SeedSequence {
    fn new(seed: u64) -> Self {
        let mut constant = 0x43b0_d7e5u32;
        let mut hash = |word: u32| {
            let mut word = word ^ constant;
            constant = constant.wrapping_mul(0x931e_8875);
            word = word.wrapping_mul(constant);
            word ^ (word >> 16)
        };
        let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];
        let mut pool = entropy.map(&mut hash);
        for source in 0..POOL_WORDS {
            for target in (0..POOL_WORDS).filter(|&target| target != source) {
                let mixed = 0xca01_f9ddu32
                    .wrapping_mul(pool[target])
                    .wrapping_sub(0x4973_f715u32.wrapping_mul(hash(pool[source])));
                pool[target] = mixed ^ (mixed >> 16);
            }
        }
        Self { pool }
    }

    /// Four 64-bit words, low half first.
    fn generate(&self) -> [u64; 4] {
        let mut constant = 0x8b51_f9ddu32;
        let mut words = (0..8).map(|i| {
            let mut word = self.pool[i % POOL_WORDS] ^ constant;
            constant = constant.wrapping_mul(0x58f3_8ded);
            word = word.wrapping_mul(constant);
            u64::from(word ^ (word >> 16))
        });
        let mut next = || words.next().unwrap_or_default();
        [(); 4].map(|()| {
            let low = next();
            low | next() << 32
        })
    }
}

/// `numpy.random.default_rng(seed)`.
#[derive(Debug, Clone)]
pub struct Pcg64 {
    state: u128,
    increment: u128,
    /// The unused high half of the last 64-bit output.
    spare: Option<u32>,
}

impl Pcg64 {
    /// Seeds the stream as `default_rng(seed)` does.
    pub fn new(seed: u64) -> Self {
        let [state_high, state_low, stream_high, stream_low] = SeedSequence::new(seed).generate();
        let start = u128::from(state_high) << 64 | u128::from(state_low);
        let stream = u128::from(stream_high) << 64 | u128::from(stream_low);
        let mut rng = Self { state: 0, increment: stream << 1 | 1, spare: None };
        rng.step();
        rng.state = rng.state.wrapping_add(start);
        rng.step();
        rng
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(word) = self.spare.take() {
            return word;
        }
        let word = self.next_u64();
        self.spare = Some((word >> 32) as u32);
        word as u32
    }

    /// A uniform integer in `low..high`, as `integers(low, high)` draws it for ranges below 2^32 -
    /// 1.
    ///
    /// # Panics
    /// If `low >= high`.
    pub fn integer(&mut self, low: u32, high: u32) -> u32 {
        assert!(low < high, "integers: low {low} must be below high {high}");
        let range = high - low;
        if range == 1 {
            return low;
        }
        let mut product = u64::from(self.next_u32()) * u64::from(range);
        if (product as u32) < range {
            let threshold = range.wrapping_neg() % range;
            while (product as u32) < threshold {
                product = u64::from(self.next_u32()) * u64::from(range);
            }
        }
        low + (product >> 32) as u32
    }
}
