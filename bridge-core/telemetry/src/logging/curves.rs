//! Curves for drawing: smoothed, and thinned to the resolution of a picture. `chart` draws them.

/// Points in the order of their first coordinate.
pub type Curve = Vec<(f64, f64)>;

/// A moving fit of straight lines, applied twice so that it rolls off softly: a point becomes the
/// value there of the line through the points around it. Where there are as many on both sides that
/// is their mean. Towards the ends the window keeps its size and lies on one side, so that the
/// curve neither lags behind a falling loss nor follows the last point: it ends where the losses
/// end.
pub fn smooth(curve: &[(f64, f64)]) -> Curve {
    let half_width = (curve.len() / 60).clamp(2, 100);
    let pass = |curve: &[(f64, f64)]| -> Curve {
        // Sums of y and of place * y, before each point.
        let mut sums = vec![(0.0, 0.0)];
        sums.extend(curve.iter().enumerate().scan((0.0, 0.0), |sum, (place, (_, y))| {
            *sum = (sum.0 + y, sum.1 + place as f64 * y);
            Some(*sum)
        }));
        let size = (2 * half_width + 1).min(curve.len());
        let fitted = |(i, (x, _)): (usize, &(f64, f64))| {
            let start = i.saturating_sub(half_width).min(curve.len() - size);
            let (before, after) = (sums[start], sums[start + size]);
            let n = size as f64;
            let middle = start as f64 + (n - 1.0) / 2.0;
            let mean = (after.0 - before.0) / n;
            // The places of a window are as far apart as those of any other of its size: their
            // variance is known.
            let variance = (n * n - 1.0) / 12.0;
            let covariance = (after.1 - before.1) / n - middle * mean;
            let slope = if size > 1 { covariance / variance } else { 0.0 };
            (*x, mean + slope * (i as f64 - middle))
        };
        curve.iter().enumerate().map(fitted).collect()
    };
    pass(&pass(curve))
}

/// Points that a growing curve keeps at most.
const KEPT_POINTS: usize = 1 << 17;

/// A curve that grows point by point in bounded memory: beyond `KEPT_POINTS` points, the least and
/// the largest value of each stretch are kept, in their order.
#[derive(Clone, Debug, Default)]
pub struct GrowingCurve {
    points: Curve,
    /// Points of a stretch as they come, of which two are kept; 0 keeps all.
    stretch: usize,
    /// Points of the last stretch, which is not full.
    open: Curve,
}

impl GrowingCurve {
    /// Adds a point after all others.
    pub fn push(&mut self, point: (f64, f64)) {
        if self.stretch == 0 {
            self.points.push(point);
        } else {
            self.open.push(point);
            if self.open.len() == self.stretch {
                self.points.extend(ends(&self.open));
                self.open.clear();
            }
        }
        if self.points.len() >= KEPT_POINTS {
            self.points = self.points.chunks(4).flat_map(ends).collect();
            self.stretch = if self.stretch == 0 { 4 } else { 2 * self.stretch };
        }
    }

    /// The points kept.
    pub fn into_points(mut self) -> Curve {
        self.points.append(&mut self.open);
        self.points
    }
}

/// The points with the least and the largest value, in their order.
fn ends(points: &[(f64, f64)]) -> Curve {
    let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
    let ends = points.iter().min_by(by_value).into_iter().chain(points.iter().max_by(by_value));
    let mut ends: Curve = ends.copied().collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    ends
}

/// Points that a curve is drawn with at most: more than the picture has columns show nothing more.
const DRAWN_POINTS: usize = 2000;

/// A curve of at most about `DRAWN_POINTS` points: of each stretch the least and the largest value,
/// in their order.
pub fn thinned(curve: &[(f64, f64)]) -> Curve {
    let stretch = curve.len().div_ceil(DRAWN_POINTS / 2);
    if stretch <= 2 {
        return curve.to_vec();
    }
    curve.chunks(stretch).flat_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_averages_without_lag() {
        let line: Curve = (0..300).map(|i| (f64::from(i), 9.0 - 0.01 * f64::from(i))).collect();
        let noisy: Curve = line.iter().enumerate().map(|(i, (x, y))| (*x, y + [0.1, -0.1][i % 2])).collect();
        for (i, (smoothed, exact)) in smooth(&noisy).iter().zip(&line).enumerate() {
            let tolerance = if (10..290).contains(&i) { 0.01 } else { 0.06 };
            assert!((smoothed.1 - exact.1).abs() < tolerance, "{i}: {} {}", smoothed.1, exact.1);
        }
        assert_eq!(smooth(&[]), []);
        assert_eq!(smooth(&[(1.0, 5.0)]), [(1.0, 5.0)]);
    }

    #[test]
    fn the_smoothed_curve_does_not_follow_the_last_value() {
        for length in [10, 30, 300, 3000] {
            let mut curve: Curve = (0..length).map(|i| (f64::from(i), 3.0)).collect();
            let last = curve.len() - 1;
            curve[last].1 = 2.0;
            let smoothed = smooth(&curve);
            assert_eq!(smoothed.len(), curve.len(), "it ends where the losses end");
            let window = (2 * (curve.len() / 60).clamp(2, 100) + 1) as f64;
            // A fit of straight lines through n points takes about 4 / n of the last one, twice
            // applied no more.
            let taken = 3.0 - smoothed[last].1;
            assert!(taken > 0.0 && taken < 4.5 / window, "{length}: {taken}");
        }
    }

    /// Losses of training, with noise: the curve ends at the last step, at the height that the
    /// losses have there without their noise.
    #[test]
    fn the_smoothed_curve_ends_where_the_losses_end() {
        for (length, decay) in [(60_i32, 0.5), (600, 0.3), (6000, 0.3), (20_000, 0.1)] {
            let loss = |i: i32| 2.0 + 4.0 * (1.0 + f64::from(i)).powf(-decay);
            // Uniform noise of a linear congruential generator.
            let mut state = 12_345_u64;
            let mut noise = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
            };
            let curve: Curve = (0..length).map(|i| (f64::from(i + 1), loss(i) + 0.2 * noise())).collect();
            let (found, raw) = (smooth(&curve)[curve.len() - 1], curve[curve.len() - 1]);
            assert_eq!(found.0, raw.0);
            let exact = loss(length - 1);
            // The noise of one loss has a deviation of 0.058; the end of a line through n of them 2
            // / sqrt(n) of that.
            let window = (2 * (curve.len() / 60).clamp(2, 100) + 1) as f64;
            let bound = 3.0 * 0.058 * 2.0 / window.sqrt();
            assert!((found.1 - exact).abs() < bound, "{length}: {} and {exact}", found.1);
        }
    }

    #[test]
    fn growing_curves_keep_their_extremes_in_bounded_memory() {
        let grown = |length: usize| {
            let mut curve = GrowingCurve::default();
            (0..length).for_each(|i| curve.push((i as f64, (i % 1009) as f64)));
            curve.into_points()
        };
        let all: Curve = (0..50_000).map(|i| (f64::from(i), f64::from(i % 1009))).collect();
        assert_eq!(grown(50_000), all, "short curves are whole");
        let long = grown(3_000_001);
        assert!(long.len() <= KEPT_POINTS && long.is_sorted_by_key(|point| point.0), "{}", long.len());
        let (least, largest) = long.iter().fold((1e9_f64, 0.0_f64), |(a, b), p| (a.min(p.1), b.max(p.1)));
        assert_eq!((least, largest, long[long.len() - 1].0), (0.0, 1008.0, 3_000_000.0));
    }

    #[test]
    fn thinned_curves_keep_their_extremes() {
        let curve: Curve = (0..100_000).map(|i| (f64::from(i), f64::from(i % 1000))).collect();
        let ends = |curve: &[(f64, f64)]| curve.iter().fold((1e9_f64, 0.0_f64), |(a, b), p| (a.min(p.1), b.max(p.1)));
        let thin = thinned(&curve);
        assert_eq!(ends(&thin), ends(&curve));
        assert!(thin.len() <= DRAWN_POINTS && thin.is_sorted_by_key(|point| point.0), "{}", thin.len());
        assert_eq!(thinned(&curve[..100]), curve[..100]);
    }
}
