//! Curves of as many points as can be drawn: stretches of a figure with their least, largest and
//! mean value, so that no spike is lost.

use serde::Serialize;

use super::table::Table;

/// Horizontal axis of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Iterations.
    Step,
    /// Seconds spent in steps.
    Time,
    /// Tokens trained on.
    Tokens,
}

impl Axis {
    /// The axis of that name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "step" => Some(Self::Step),
            "time" => Some(Self::Time),
            "tokens" => Some(Self::Tokens),
            _ => None,
        }
    }

    /// Places of iterations on the axis, in their order; empty if the iteration number is the
    /// place.
    fn places(self, table: &Table) -> Vec<(u32, f64)> {
        let seconds = table.series("train", "seconds");
        let rate = table.series("train", "tokens_per_second");
        let (Some(seconds), false) = (seconds, self == Self::Step) else { return Vec::new() };
        let mut sum = 0.0;
        let mut rates = rate.iter().flat_map(|rate| rate.points()).peekable();
        let mut places = Vec::with_capacity(seconds.len());
        for (iteration, seconds) in seconds.points() {
            while rates.next_if(|(of, _)| *of < iteration).is_some() {}
            let rate = rates.peek().filter(|(of, _)| *of == iteration).map_or(0.0, |(_, rate)| *rate);
            let amount = if self == Self::Time { seconds } else { seconds * rate };
            sum += if amount.is_finite() { amount } else { 0.0 };
            places.push((iteration, sum));
        }
        places
    }
}

/// A curve: a row for each stretch that has values.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Buckets {
    /// Mean place.
    pub x: Vec<f64>,
    /// Least value.
    pub min: Vec<f64>,
    /// Largest value.
    pub max: Vec<f64>,
    /// Mean value.
    pub mean: Vec<f64>,
    /// Values of the range that are not finite, and are left out.
    pub not_finite: usize,
    /// First and last position of the figure's finite values, also outside of the range.
    pub ends: Option<(f64, f64)>,
}

/// The curve of a figure between two places of an axis, in at most `count` stretches of the same
/// width. `None` if there is no such figure.
pub fn buckets(table: &Table, kind: &str, name: &str, axis: Axis, range: (f64, f64), count: usize) -> Option<Buckets> {
    let series = table.series(kind, name)?;
    let places = axis.places(table);
    let mut next = 0;
    let mut place = |iteration: u32| {
        if axis == Axis::Step {
            return f64::from(iteration);
        }
        while next < places.len() && places[next].0 <= iteration {
            next += 1;
        }
        if next == 0 { 0.0 } else { places[next - 1].1 }
    };
    let points: Vec<(f64, f64)> = series.points().map(|(iteration, value)| (place(iteration), value)).collect();
    let mut found = Buckets::default();
    let mut finite = points.iter().filter(|(_, value)| value.is_finite()).map(|(x, _)| *x);
    let first = finite.next()?;
    let last = finite.next_back().unwrap_or(first);
    found.ends = Some((first, last));
    let (from, to) = (range.0.max(first), range.1.min(last));
    let width = (to - from) / count.max(1) as f64;
    let mut current: Option<(usize, [f64; 5])> = None;
    for (x, value) in points.into_iter().filter(|(x, _)| (from..=to).contains(x)) {
        if !value.is_finite() {
            found.not_finite += 1;
            continue;
        }
        let stretch = if width > 0.0 { (((x - from) / width) as usize).min(count.max(1) - 1) } else { 0 };
        match &mut current {
            Some((of, [n, sum_x, min, max, sum])) if *of == stretch => {
                (*n, *sum_x, *sum) = (*n + 1.0, *sum_x + x, *sum + value);
                (*min, *max) = (min.min(value), max.max(value));
            }
            _ => {
                found.push(current.take());
                current = Some((stretch, [1.0, x, value, value, value]));
            }
        }
    }
    found.push(current);
    Some(found)
}

impl Buckets {
    fn push(&mut self, stretch: Option<(usize, [f64; 5])>) {
        if let Some((_, [n, sum_x, min, max, sum])) = stretch {
            self.x.push(sum_x / n);
            self.min.push(min);
            self.max.push(max);
            // A sum of very large values may overflow; then the midpoint is used.
            self.mean.push(if sum.is_finite() { sum / n } else { min / 2.0 + max / 2.0 });
        }
    }
}
