//! Rotary position embedding: inverse frequencies, their scaling for longer contexts, and the
//! tables that layers rotate by.

use std::sync::{Arc, Mutex, PoisonError};

use bridge_kernels::rotary::{RotaryPairing, RotaryTable};
use burn::tensor::Device;

use crate::architecture::choices::{RopeScaling, YarnConfig};
use crate::architecture::config::{DecoderConfig, PositionEmbedding, RopeConfig};

/// Rotary tables of a model, which grow with the requested positions.
#[derive(Clone, Debug)]
pub(crate) struct Rotary {
    table: GrowingTable,
    /// The table of longer sequences, and the length of the longest sequence that is not one, in
    /// tokens.
    long: Option<(usize, GrowingTable)>,
    /// The table of windowed layers, where it is another one.
    windowed: Option<GrowingTable>,
}

/// Initial number of positions of a table; fewer if the model has fewer.
const FIRST_POSITIONS: usize = 1 << 14;

/// Rotary table that is extended when a sequence exceeds it. Each row depends on its position only,
/// so results do not depend on the table's length.
#[derive(Clone, Debug)]
struct GrowingTable {
    frequencies: Vec<f32>,
    factor: f32,
    pairing: RotaryPairing,
    /// Position limit of the model.
    most: usize,
    device: Device,
    table: Arc<Mutex<RotaryTable>>,
}

impl GrowingTable {
    fn new(frequencies: Vec<f32>, factor: f32, pairing: RotaryPairing, most: usize, device: &Device) -> Self {
        let first = RotaryTable::new(&frequencies, most.min(FIRST_POSITIONS), pairing, device).scaled(factor);
        let table = Arc::new(Mutex::new(first));
        Self { frequencies, factor, pairing, most, device: device.clone(), table }
    }

    /// The table, with at least `length` positions if the model has as many.
    fn of_length(&self, length: usize) -> RotaryTable {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = length.min(self.most);
        if table.length() < needed {
            let rows = needed.next_power_of_two().min(self.most);
            *table = RotaryTable::new(&self.frequencies, rows, self.pairing, &self.device).scaled(self.factor);
        }
        table.clone()
    }
}

/// The tables that the layers of a model rotate by.
#[derive(Clone, Debug)]
pub(crate) struct LayerTables {
    usual: RotaryTable,
    windowed: Option<RotaryTable>,
}

impl LayerTables {
    /// Rotary table of layers with the sliding window `window`.
    pub fn for_window(&self, window: Option<usize>) -> &RotaryTable {
        self.windowed.as_ref().filter(|_| window.is_some()).unwrap_or(&self.usual)
    }
}

impl Rotary {
    /// The tables of a decoder; `None` for models without rotary embedding.
    pub fn from_config(config: &DecoderConfig, device: &Device) -> Option<Self> {
        match &config.position_embedding {
            PositionEmbedding::Rope(rope) => {
                let heads = [config, &config.of_windowed()].map(DecoderConfig::rotary_head);
                Some(Self::new(rope, heads, config.max_position_embeddings, device))
            }
            PositionEmbedding::LearnedAbsolute | PositionEmbedding::Relative(_) | PositionEmbedding::None => None,
        }
    }

    /// Tables for heads of these numbers of elements, in full and in windowed layers, and
    /// positions `0..length`, of which those after the first [`FIRST_POSITIONS`] are made when a
    /// sequence has them.
    pub fn new(rope: &RopeConfig, heads: [usize; 2], length: usize, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        let pairing = if rope.interleaved { RotaryPairing::Interleaved } else { RotaryPairing::Halves };
        let of_layers = |rope: &RopeConfig, head_size, sequences, length| {
            let frequencies = inverse_frequencies(rope, head_size, sequences).into_iter();
            let turns = frequencies.map(|frequency| if rope.reversed { -frequency } else { frequency }).collect();
            GrowingTable::new(turns, rope.attention_factor() as f32, pairing, length, &device)
        };
        let table = |sequences, length| of_layers(rope, heads[0], sequences, length);
        let has_own = rope.windowed_base.is_some() || heads[1] != heads[0];
        let windowed = has_own.then(|| of_layers(&rope.of_windowed(), heads[1], Sequences::Short, length));
        match rope.short_length() {
            Some(short) if short < length => {
                let long = Some((short, table(Sequences::Long, length)));
                Self { table: table(Sequences::Short, short), long, windowed }
            }
            Some(_) | None => Self { table: table(Sequences::Short, length), long: None, windowed },
        }
    }

    /// The tables of sequences of `length` tokens, those before the first one of a batch counted
    /// too.
    pub fn tables(&self, length: usize) -> LayerTables {
        LayerTables { usual: self.table(length), windowed: self.windowed.as_ref().map(|table| table.of_length(length)) }
    }

    fn table(&self, length: usize) -> RotaryTable {
        match &self.long {
            Some((short, table)) if length > *short => table.of_length(length),
            Some(_) | None => self.table.of_length(length),
        }
    }

    /// True if tokens that were rotated when a sequence had `before` tokens are rotated otherwise
    /// when it has `now`.
    pub fn changes(&self, before: usize, now: usize) -> bool {
        self.long.as_ref().is_some_and(|(short, _)| before > 0 && before <= *short && now > *short)
    }

    /// True if the rotation of tokens depends on the sequence's length.
    pub fn depends_on_length(&self) -> bool {
        self.long.is_some()
    }
}

/// Sequences that frequencies are for, if scaling distinguishes them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sequences {
    /// Sequences of up to [`RopeConfig::short_length`] tokens.
    Short,
    /// Longer sequences.
    Long,
}

/// `1 / base^(2i / r)` for each of the `r / 2` pairs, scaled (Su et al., arXiv:2104.09864, section
/// 3.2.2), in radians a position.
///
/// Every step is rounded to float32, because the released models' frequencies are.
pub(crate) fn inverse_frequencies(rope: &RopeConfig, head_size: usize, sequences: Sequences) -> Vec<f32> {
    let rotated = rope.rotary_size(head_size);
    let base = rope.base_of(rotated);
    let powers = (0..rotated).step_by(2).map(|i| {
        let exponent = i as f32 / rotated as f32;
        base.powf(f64::from(exponent)) as f32
    });
    match &rope.scaling {
        None | Some(RopeScaling::Ntk { .. }) => powers.map(|power| 1.0 / power).collect(),
        Some(RopeScaling::Linear { factor }) => powers.map(|power| 1.0 / power / *factor as f32).collect(),
        Some(RopeScaling::Proportional { share }) => {
            let turning = (share * rotated as f64 / 2.0) as usize;
            powers.enumerate().map(|(pair, power)| if pair < turning { 1.0 / power } else { 0.0 }).collect()
        }
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: length,
        }) => {
            let band = Llama3Band { low: *low_freq_factor, high: *high_freq_factor, length: *length as f64 };
            powers.map(|power| band.scale(1.0 / power, *factor as f32)).collect()
        }
        Some(RopeScaling::Yarn(yarn)) => {
            let ramp = YarnRamp::new(yarn, rope.base, rotated);
            powers.enumerate().map(|(pair, power)| ramp.scale(pair, power, yarn.factor as f32)).collect()
        }
        Some(RopeScaling::LongRope { short_factor, long_factor, .. }) => {
            let factors = match sequences {
                Sequences::Short => short_factor,
                Sequences::Long => long_factor,
            };
            powers.zip(factors).map(|(power, factor)| 1.0 / (*factor as f32 * power)).collect()
        }
    }
}

/// The band of frequencies that Llama 3.1 interpolates.
struct Llama3Band {
    low: f64,
    high: f64,
    length: f64,
}

impl Llama3Band {
    fn scale(&self, frequency: f32, factor: f32) -> f32 {
        let wavelength = std::f32::consts::TAU / frequency;
        if wavelength >= (self.length / self.low) as f32 {
            return frequency / factor;
        }
        if wavelength < (self.length / self.high) as f32 {
            return frequency;
        }
        let share = (self.length as f32 / wavelength - self.low as f32) / (self.high - self.low) as f32;
        (1.0 - share) * frequency / factor + share * frequency
    }
}

/// The pairs between which YaRN goes over from kept frequencies to divided ones.
struct YarnRamp {
    low: f64,
    high: f64,
}

impl YarnRamp {
    /// The ramp over the pairs of `rotated` elements (Peng et al., arXiv:2309.00071, section 3.2).
    fn new(yarn: &YarnConfig, base: f64, rotated: usize) -> Self {
        let (size, length) = (rotated as f64, yarn.original_max_position_embeddings as f64);
        // The pair whose frequency makes this number of turns in the original context.
        let pair = |turns: f64| size * (length / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
        let (low, high) = (pair(yarn.beta_fast), pair(yarn.beta_slow));
        let (low, high) = if yarn.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(size - 1.0));
        Self { low, high: if low == high { high + 0.001 } else { high } }
    }

    fn scale(&self, pair: usize, power: f32, factor: f32) -> f32 {
        let share = ((pair as f32 - self.low as f32) / (self.high - self.low) as f32).clamp(0.0, 1.0);
        let kept = 1.0 - share;
        1.0 / (factor * power) * (1.0 - kept) + 1.0 / power * kept
    }
}

impl YarnConfig {
    /// Default of [`beta_fast`](Self::beta_fast).
    pub const BETA_FAST: f64 = 32.0;
    /// Default of [`beta_slow`](Self::beta_slow).
    pub const BETA_SLOW: f64 = 1.0;

    /// `0.1 m ln(factor) + 1`: how much scores' inputs grow with the context (arXiv:2309.00071,
    /// equation 22); 1 where it does not grow.
    pub fn growth(&self, m: f64) -> f64 {
        if self.factor <= 1.0 { 1.0 } else { 0.1 * m * self.factor.ln() + 1.0 }
    }
}

impl RopeConfig {
    /// Factor on cosines and sines, and so on the rotated part of queries and keys.
    pub fn attention_factor(&self) -> f64 {
        match &self.scaling {
            None
            | Some(
                RopeScaling::Linear { .. }
                | RopeScaling::Ntk { .. }
                | RopeScaling::Proportional { .. }
                | RopeScaling::Llama3 { .. },
            ) => 1.0,
            Some(RopeScaling::LongRope { attention_factor, .. }) => *attention_factor,
            Some(RopeScaling::Yarn(yarn)) => match (yarn.attention_factor, yarn.mscale, yarn.mscale_all_dim) {
                (Some(factor), ..) => factor,
                (None, Some(m), Some(all)) => yarn.growth(m) / yarn.growth(all),
                (None, ..) => yarn.growth(1.0),
            },
        }
    }

    /// The longest sequence that the frequencies of short ones are for, where scaling tells
    /// sequences apart, in tokens.
    pub(crate) fn short_length(&self) -> Option<usize> {
        match &self.scaling {
            Some(RopeScaling::LongRope { original_max_position_embeddings, .. }) => {
                Some(*original_max_position_embeddings)
            }
            None
            | Some(
                RopeScaling::Linear { .. }
                | RopeScaling::Ntk { .. }
                | RopeScaling::Proportional { .. }
                | RopeScaling::Llama3 { .. }
                | RopeScaling::Yarn(_),
            ) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> RopeConfig {
        RopeConfig::neutral()
    }

    #[test]
    fn a_windowed_layer_has_its_own_base_and_no_scaling() {
        let scaling = Some(RopeScaling::Linear { factor: 4.0 });
        let rope = RopeConfig { windowed_base: Some(300.0), scaling, ..plain() };
        let values = |table: &RotaryTable| -> Vec<f32> {
            let q_bthd = burn::tensor::Tensor::ones([1, 9, 1, 14], &Device::flex());
            let positions = bridge_kernels::rotary::Positions::From(0);
            bridge_kernels::apply_rotary(q_bthd, table, &positions).into_data().try_into_vec().unwrap()
        };
        let rotary = |rope: &RopeConfig| Rotary::new(rope, [14, 14], 9, &Device::flex());
        let both = rotary(&rope);
        let local = rotary(&RopeConfig { base: 300.0, ..plain() });
        let usual = rotary(&RopeConfig { windowed_base: None, ..rope });
        assert_eq!(values(both.tables(9).for_window(Some(3))), values(local.tables(9).for_window(None)));
        assert_eq!(values(both.tables(9).for_window(None)), values(usual.tables(9).for_window(Some(3))));
        assert_ne!(values(both.tables(9).for_window(None)), values(both.tables(9).for_window(Some(3))));
    }

    #[test]
    fn tables_grow_with_sequences_and_rows_stay() {
        let rotary = Rotary::new(&plain(), [4, 4], 1 << 40, &Device::flex());
        let rows = |rotary: &Rotary, length: usize, position: usize| -> Vec<f32> {
            let q_bthd = burn::tensor::Tensor::ones([1, 1, 1, 4], &Device::flex());
            let positions = bridge_kernels::rotary::Positions::From(position);
            bridge_kernels::apply_rotary(q_bthd, &rotary.table(length), &positions).into_data().try_into_vec().unwrap()
        };
        assert_eq!(rotary.table(7).length(), FIRST_POSITIONS);
        let before = rows(&rotary, 7, 5);
        assert_eq!(rotary.table(FIRST_POSITIONS + 1).length(), 2 * FIRST_POSITIONS);
        assert_eq!(rows(&rotary, 7, 5), before);
        // No more than the model has, and the same as a table of that length.
        let most = FIRST_POSITIONS + 3;
        let short = Rotary::new(&plain(), [4, 4], most, &Device::flex());
        assert_eq!(rows(&short, most, most - 1), rows(&rotary, most, most - 1));
        assert_eq!(short.table(most).length(), most);
    }

    #[test]
    fn frequencies_fall_from_one_by_a_constant_ratio() {
        let f = inverse_frequencies(&plain(), 14, Sequences::Short);
        assert_eq!(f.len(), 7);
        assert_eq!(f[0], 1.0);
        for pair in f.windows(2) {
            assert!((f64::from(pair[1] / pair[0]) - 10_000_f64.powf(-1.0 / 7.0)).abs() < 1e-6);
        }
    }

    #[test]
    fn percent_rotates_a_part() {
        assert_eq!(inverse_frequencies(&RopeConfig { percent: 0.25, ..plain() }, 40, Sequences::Short).len(), 5);
    }

    #[test]
    fn a_share_of_the_pairs_turns_by_the_frequencies_of_the_whole_head() {
        let scaled = RopeConfig { scaling: Some(RopeScaling::Proportional { share: 0.3 }), ..plain() };
        let (found, whole) =
            (inverse_frequencies(&scaled, 22, Sequences::Short), inverse_frequencies(&plain(), 22, Sequences::Short));
        assert_eq!(found, [&whole[..3], &[0.0; 8]].concat());
    }

    #[test]
    fn linear_scaling_divides() {
        let scaled = RopeConfig { scaling: Some(RopeScaling::Linear { factor: 4.0 }), ..plain() };
        for (a, b) in inverse_frequencies(&scaled, 22, Sequences::Short).iter().zip(inverse_frequencies(
            &plain(),
            22,
            Sequences::Short,
        )) {
            assert_eq!(*a, b / 4.0);
        }
    }

    #[test]
    fn a_grown_base_divides_the_lowest_frequency_and_keeps_the_highest() {
        let scaled = RopeConfig { scaling: Some(RopeScaling::Ntk { alpha: 8.0 }), ..plain() };
        let (found, plain) =
            (inverse_frequencies(&scaled, 22, Sequences::Short), inverse_frequencies(&plain(), 22, Sequences::Short));
        assert_eq!(found[0], plain[0]);
        assert!((found[10] * 8.0 / plain[10] - 1.0).abs() < 1e-5);
    }

    #[test]
    fn llama3_keeps_short_waves_divides_long_ones_and_is_monotonic_between() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let base = RopeConfig { base: 500_000.0, ..plain() };
        let plain = inverse_frequencies(&base, 128, Sequences::Short);
        let scaled = inverse_frequencies(&RopeConfig { scaling: Some(scaling), ..base }, 128, Sequences::Short);
        let mut between = 0;
        for (f, s) in plain.iter().zip(&scaled) {
            let wavelength = std::f32::consts::TAU / f;
            if wavelength < 2048.0 {
                assert_eq!(s, f);
            } else if wavelength > 8192.0 {
                assert_eq!(*s, f / 8.0);
            } else {
                between += 1;
                assert!(*s < *f && *s > f / 8.0);
            }
        }
        assert!(between > 3, "the band between is not empty: {between}");
        assert!(scaled.windows(2).all(|pair| pair[1] < pair[0]));
    }

    fn yarn(truncate: bool) -> YarnConfig {
        YarnConfig {
            factor: 4.0,
            original_max_position_embeddings: 32,
            beta_fast: 4.0,
            beta_slow: 1.0,
            mscale: None,
            mscale_all_dim: None,
            attention_factor: None,
            truncate,
        }
    }

    fn with_yarn(yarn: YarnConfig) -> RopeConfig {
        RopeConfig { scaling: Some(RopeScaling::Yarn(yarn)), ..plain() }
    }

    #[test]
    fn yarn_keeps_frequencies_with_many_turns_and_divides_those_with_few() {
        let size = 38_u8;
        for truncate in [true, false] {
            let scaled = inverse_frequencies(&with_yarn(yarn(truncate)), size.into(), Sequences::Short);
            // The pair of a number of turns within 32 tokens, solved for where the frequency is
            // turns * tau / 32.
            let pair = |turns: f64| {
                let frequency = turns * std::f64::consts::TAU / 32.0;
                -frequency.ln() / 10_000_f64.ln() * f64::from(size) / 2.0
            };
            let (first, last) = (pair(4.0), pair(1.0));
            let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
            assert!(last - first > 1.0, "there is a ramp");
            for (i, found) in (0..size / 2).zip(scaled) {
                let frequency = 10_000_f64.powf(-2.0 * f64::from(i) / f64::from(size));
                let divided = ((f64::from(i) - first) / (last - first)).clamp(0.0, 1.0);
                let expected = frequency * (1.0 - divided) + frequency / 4.0 * divided;
                assert!((f64::from(found) / expected - 1.0).abs() < 1e-6, "{i}: {found} and {expected}");
            }
        }
    }

    #[test]
    fn yarn_scales_by_the_logarithm_of_the_factor_or_a_ratio_of_two() {
        let of = |yarn| with_yarn(yarn).attention_factor();
        let usual = 0.1 * 4_f64.ln() + 1.0;
        assert_eq!(of(yarn(true)), usual);
        assert_eq!(of(YarnConfig { mscale_all_dim: Some(2.0), ..yarn(true) }), usual);
        let both = YarnConfig { mscale: Some(2.0), mscale_all_dim: Some(1.0), ..yarn(true) };
        assert_eq!(of(both), (0.2 * 4_f64.ln() + 1.0) / usual);
        assert_eq!(of(YarnConfig { attention_factor: Some(1.25), ..both }), 1.25);
        assert_eq!(of(YarnConfig { factor: 1.0, ..yarn(true) }), 1.0);
    }

    #[test]
    fn longrope_has_a_table_for_each_side_of_the_original_length() {
        let scaling = RopeScaling::LongRope {
            short_factor: vec![1.0, 2.0, 4.0],
            long_factor: vec![8.0, 1.0, 0.5],
            original_max_position_embeddings: 5,
            attention_factor: 1.5,
        };
        let rope = RopeConfig { scaling: Some(scaling), ..plain() };
        let plain = inverse_frequencies(&plain(), 6, Sequences::Short);
        let short = inverse_frequencies(&rope, 6, Sequences::Short);
        let long = inverse_frequencies(&rope, 6, Sequences::Long);
        assert_eq!(short, [plain[0], plain[1] / 2.0, plain[2] / 4.0]);
        assert_eq!(long, [plain[0] / 8.0, plain[1], plain[2] / 0.5]);
        assert_eq!(rope.attention_factor(), 1.5);
        let rotary = Rotary::new(&rope, [6, 6], 11, &Device::flex());
        let lengths = [5, 6, 11].map(|length| rotary.table(length).length());
        assert_eq!(lengths, [5, 11, 11]);
        assert!(rotary.changes(5, 6) && rotary.changes(1, 11));
        assert!(!rotary.changes(0, 6) && !rotary.changes(4, 5) && !rotary.changes(6, 7));
        // No sequence is longer than the model's positions.
        assert!(!Rotary::new(&rope, [6, 6], 5, &Device::flex()).depends_on_length());
    }
}
