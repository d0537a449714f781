//! The Mersenne Twister and the two libraries' conventions on top of it: numpy's legacy
//! `RandomState` and PyTorch's CPU `randperm`. Datasets do not belong here.
//!
//! Source: Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform
//! pseudo-random number generator" (1998).

const STATE_WORDS: usize = 624;
const SHIFT: usize = 397;

/// A seed that numpy's `RandomState` does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("random_seed is {0}; it must be between 0 and 4294967295")]
pub struct SeedError(pub i64);

/// The bare generator: seeding by Knuth's recurrence, tempered 32-bit output.
#[derive(Clone)]
struct Mt19937 {
    state: [u32; STATE_WORDS],
    next: usize,
}

impl Mt19937 {
    fn new(seed: u32) -> Self {
        let mut state = [0u32; STATE_WORDS];
        let mut word = seed;
        for (i, slot) in state.iter_mut().enumerate() {
            *slot = word;
            word = 1_812_433_253u32.wrapping_mul(word ^ (word >> 30)).wrapping_add(i as u32 + 1);
        }
        Self { state, next: STATE_WORDS }
    }

    fn twist(&mut self) {
        for i in 0..STATE_WORDS {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % STATE_WORDS] & 0x7fff_ffff);
            let feedback = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + SHIFT) % STATE_WORDS] ^ (joined >> 1) ^ feedback;
        }
        self.next = 0;
    }

    #[inline]
    fn next_u32(&mut self) -> u32 {
        if self.next == STATE_WORDS {
            self.twist();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    #[inline]
    fn next_u64(&mut self) -> u64 {
        let high = u64::from(self.next_u32());
        high << 32 | u64::from(self.next_u32())
    }
}

/// numpy's legacy `RandomState`, draw for draw.
///
/// ```ignore
/// let mut rng = RandomState::new(1234)?;
/// let mut order: Vec<u32> = (0..10).collect();
/// rng.shuffle(&mut order);
/// assert_eq!(order, [7, 2, 9, 1, 0, 8, 4, 5, 6, 3]);
/// ```
#[derive(Clone)]
pub struct RandomState {
    generator: Mt19937,
}

impl RandomState {
    /// Seeds the stream as `numpy.random.RandomState(seed)` does.
    ///
    /// # Errors
    /// Seeds outside 0..=4294967295, which numpy refuses too.
    pub fn new(seed: i64) -> Result<Self, SeedError> {
        let seed = u32::try_from(seed).map_err(|_| SeedError(seed))?;
        Ok(Self { generator: Mt19937::new(seed) })
    }

    /// The next raw 32-bit word.
    pub fn next_u32(&mut self) -> u32 {
        self.generator.next_u32()
    }

    /// A float uniform in [0, 1) with 53 random bits (`random_sample()`).
    pub fn random_sample(&mut self) -> f64 {
        let high = f64::from(self.next_u32() >> 5);
        let low = f64::from(self.next_u32() >> 6);
        (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0
    }

    /// A uniform integer in 0..=`max`, drawn by masking and rejecting (`random_interval`).
    #[inline]
    pub fn interval(&mut self, max: u64) -> u64 {
        if max == 0 {
            return 0;
        }
        let mask = u64::MAX >> max.leading_zeros();
        loop {
            let word = if max <= u64::from(u32::MAX) {
                u64::from(self.generator.next_u32())
            } else {
                self.generator.next_u64()
            };
            if word & mask <= max {
                return word & mask;
            }
        }
    }

    /// A uniform integer in `low..high` (`randint(low, high)` with its default 64-bit type).
    ///
    /// # Panics
    /// If `low >= high`.
    pub fn randint(&mut self, low: i64, high: i64) -> i64 {
        assert!(low < high, "randint: low {low} must be below high {high}");
        // The distance fits u64 even when the i64 subtraction would overflow.
        let range = (high as u64).wrapping_sub(low as u64) - 1;
        low.wrapping_add(self.interval(range) as i64)
    }

    /// Shuffles in place as `shuffle(array)` does for a one-dimensional array.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for i in (1..values.len()).rev() {
            let j = self.interval(i as u64) as usize;
            values.swap(i, j);
        }
    }

    /// One Bernoulli draw, `binomial(1, probability)`, by numpy's legacy inversion.
    ///
    /// # Panics
    /// If `probability` is not within 0..=1.
    pub fn bernoulli(&mut self, probability: f64) -> bool {
        assert!((0.0..=1.0).contains(&probability), "binomial: p = {probability} is not in [0, 1]");
        // Even certain outcomes use a draw.
        if probability <= 0.5 { self.invert_one_trial(probability) } else { !self.invert_one_trial(1.0 - probability) }
    }

    /// Inversion for one trial: walks the probability mass of 0, then 1, and starts over when
    /// rounding leaves a rest.
    fn invert_one_trial(&mut self, probability: f64) -> bool {
        let failure = 1.0 - probability;
        let mass_of_zero = failure.ln().exp();
        loop {
            let mut uniform = self.random_sample();
            if uniform <= mass_of_zero {
                return false;
            }
            uniform -= mass_of_zero;
            if uniform <= probability * mass_of_zero / failure {
                return true;
            }
        }
    }
}

/// Above this length PyTorch draws 64 bits per step and builds the permutation inside out.
const TORCH_WIDE_THRESHOLD: usize = (u32::MAX / 20) as usize;

/// `torch.randperm(n)` on the CPU with a generator seeded by `seed` (of which PyTorch's engine
/// keeps the low 32 bits).
pub fn torch_randperm(n: usize, seed: u64) -> Vec<u64> {
    let mut generator = Mt19937::new(seed as u32);
    if n < TORCH_WIDE_THRESHOLD {
        let mut order: Vec<u64> = (0..n as u64).collect();
        for i in 0..n.saturating_sub(1) {
            let step = generator.next_u32() as usize % (n - i);
            order.swap(i, i + step);
        }
        return order;
    }
    let mut order = vec![0u64; n];
    for i in 0..n {
        let j = (generator.next_u64() % (i as u64 + 1)) as usize;
        order[i] = order[j];
        order[j] = i as u64;
    }
    order
}
