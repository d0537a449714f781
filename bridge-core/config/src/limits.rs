//! Allowed ranges of numbers. Rules between settings are in `rule` and `finalize`.

use std::fmt;

use super::node::{Data, Node};

/// An interval, each end open, closed or absent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// The lower end.
    pub min: Option<Bound>,
    /// The upper end.
    pub max: Option<Bound>,
}

/// One end of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// The value itself is allowed.
    Inclusive(f64),
    /// The value itself is not allowed.
    Exclusive(f64),
}

impl Limits {
    /// No range except that of the type and of TOML.
    pub const NONE: Self = Self { min: None, max: None };
    /// 1 or more.
    pub const POSITIVE: Self = Self::at_least(1.0);
    /// 0 or more.
    pub const NON_NEGATIVE: Self = Self::at_least(0.0);
    /// More than 0.
    pub const ABOVE_ZERO: Self = Self { min: Some(Bound::Exclusive(0.0)), max: None };
    /// 0 to 1, both included.
    pub const FRACTION: Self = Self::between(0.0, 1.0);
    /// 0 to 1, 1 left out: dropout rates and moment decays.
    pub const BELOW_ONE: Self = Self { min: Some(Bound::Inclusive(0.0)), max: Some(Bound::Exclusive(1.0)) };
    /// More than 0, at most 1.
    pub const SHARE: Self = Self { min: Some(Bound::Exclusive(0.0)), max: Some(Bound::Inclusive(1.0)) };
    /// The size of one tensor dimension: 1 to 2^31 - 1.
    pub const SIZE: Self = Self::between(1.0, 2_147_483_647.0);
    /// A size whose default 0 means "not given", which a separate rule reports.
    pub const SIZE_OR_ZERO: Self = Self::between(0.0, 2_147_483_647.0);
    /// A loss scale: at most 2^127, so that twice as much is still a float32.
    pub const LOSS_SCALE: Self = Self::above_zero_to(1.701_411_834_604_692_3e38);
    /// The seed of a random generator: below 2^32.
    pub const SEED: Self = Self::between(0.0, 4_294_967_295.0);

    /// `min` or more.
    pub const fn at_least(min: f64) -> Self {
        Self { min: Some(Bound::Inclusive(min)), max: None }
    }

    /// `min` to `max`, both included.
    pub const fn between(min: f64, max: f64) -> Self {
        Self { min: Some(Bound::Inclusive(min)), max: Some(Bound::Inclusive(max)) }
    }

    /// More than 0 and at most `max`.
    pub const fn above_zero_to(max: f64) -> Self {
        Self { min: Some(Bound::Exclusive(0.0)), max: Some(Bound::Inclusive(max)) }
    }

    /// True if the interval has an end.
    pub fn is_bounded(&self) -> bool {
        self.min.is_some() || self.max.is_some()
    }

    /// True if a number lies inside.
    pub fn contains(&self, value: f64) -> bool {
        let above = match self.min {
            None => true,
            Some(Bound::Inclusive(min)) => value >= min,
            Some(Bound::Exclusive(min)) => value > min,
        };
        let below = match self.max {
            None => true,
            Some(Bound::Inclusive(max)) => value <= max,
            Some(Bound::Exclusive(max)) => value < max,
        };
        above && below
    }

    /// The first number in `node` (itself, or an item of its lists) outside the interval, with the
    /// expected range.
    ///
    /// Besides, a float must keep its meaning when rounded to 32 bits, in which training computes,
    /// and an integer must fit the 64 bits of TOML.
    pub fn violation<'n>(&self, node: &'n Node) -> Option<(&'n Node, String)> {
        match &node.data {
            Data::Int(value) if i64::try_from(*value).is_err() => Some((node, "an integer that fits 64 bits".into())),
            Data::Int(value) => (!self.contains(*value as f64)).then(|| (node, self.to_string())),
            Data::Float(value) if !value.is_finite() => Some((node, "a finite number".into())),
            Data::Float(value) if !self.contains(*value) => Some((node, self.to_string())),
            Data::Float(value) => self.rounding_violation(*value).map(|expected| (node, expected)),
            Data::List(items) => items.iter().find_map(|item| self.violation(item)),
            _ => None,
        }
    }

    /// Expected value for a number inside the interval that changes its meaning as a 32-bit float:
    /// it becomes infinity, zero or subnormal, or reaches an excluded bound.
    fn rounding_violation(&self, value: f64) -> Option<String> {
        const SMALLEST: f32 = f32::MIN_POSITIVE;
        if value.abs() > f64::from(f32::MAX) {
            return Some(format!("a number that fits a 32-bit float, at most {:e}", f32::MAX));
        }
        if value != 0.0 && value.abs() < f64::from(SMALLEST) {
            let zero = if self.contains(0.0) { "0, or " } else { "" };
            return Some(format!("{zero}a number that fits a 32-bit float, at least {SMALLEST:e}"));
        }
        let rounded = value as f32;
        let reached = |bound: Option<Bound>, beside: fn(f32) -> f32| match bound {
            Some(Bound::Exclusive(bound)) if f64::from(rounded) == bound => Some(beside(rounded)),
            _ => None,
        };
        let above = reached(self.min, f32::next_up).map(|next| format!("at least {next}"));
        let below = reached(self.max, f32::next_down).map(|next| format!("at most {next}"));
        above.or(below).map(|nearest| format!("{self}, as a 32-bit float too: {nearest}"))
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let min = self.min.map(|min| match min {
            Bound::Inclusive(min) => format!("at least {min}"),
            Bound::Exclusive(min) => format!("more than {min}"),
        });
        let max = self.max.map(|max| match max {
            Bound::Inclusive(max) => format!("at most {max}"),
            Bound::Exclusive(max) => format!("less than {max}"),
        });
        let ends: Vec<_> = min.into_iter().chain(max).collect();
        write!(f, "a number of {}", ends.join(" and "))
    }
}
