//! The losses of a run as curves, for its own plot and for plots of several runs.

use serde_json::{Map, Value};

use super::chart::{Chart, Colour, Series};
use super::curves::{Curve, GrowingCurve, smooth};

const TRAIN: Colour = (31, 111, 190);
const TRAIN_RAW: Colour = (168, 200, 231);
const VALIDATION: Colour = (221, 107, 32);

/// Colours of runs in one picture; with more runs they begin again.
const RUNS: [Colour; 8] = [
    (31, 111, 190),
    (221, 107, 32),
    (44, 150, 75),
    (200, 45, 60),
    (125, 80, 170),
    (130, 85, 60),
    (205, 100, 175),
    (90, 95, 100),
];

/// Smallest number of points of a smoothed curve; curves with fewer points have a dot for each.
const MIN_SMOOTHED: usize = 10;

/// Losses over iterations. Losses that are not finite are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// Training losses.
    pub train: Curve,
    /// Losses of the validation split.
    pub validation: Curve,
}

/// Collects losses from the records of `metrics.jsonl`, as they are read: `loss` of the kinds
/// `train` and `valid`.
#[derive(Debug, Default)]
pub struct CollectedLosses {
    train: GrowingCurve,
    validation: GrowingCurve,
}

impl CollectedLosses {
    /// Adds the loss of a record that has one.
    pub fn add(&mut self, record: &Map<String, Value>) {
        let point = || Some((record.get("iteration")?.as_u64()? as f64, record.get("loss")?.as_f64()?));
        let Some(point) = point().filter(|(_, loss)| loss.is_finite()) else { return };
        match record.get("kind").and_then(Value::as_str) {
            Some("train") => self.train.push(point),
            Some("valid") => self.validation.push(point),
            _ => {}
        }
    }

    /// The curves.
    pub fn finish(self) -> Losses {
        Losses { train: self.train.into_points(), validation: self.validation.into_points() }
    }
}

impl Losses {
    /// The picture of one run.
    pub fn chart(&self, title: &str) -> Chart {
        let series = |name: &str, points: &Curve, colour, (line, dots)| Series {
            name: name.to_owned(),
            points: points.clone(),
            colour,
            line,
            dots,
        };
        let mut all = match self.train.len() >= MIN_SMOOTHED {
            true => vec![
                series("training", &self.train, TRAIN_RAW, (1, 0)),
                series("training, smoothed", &smooth(&self.train), TRAIN, (2, 0)),
            ],
            false => vec![series("training", &self.train, TRAIN, (2, 3))],
        };
        all.push(series("validation", &self.validation, VALIDATION, (2, 4)));
        of_iterations(title, all)
    }

    /// One picture of several runs: the smoothed losses of training as lines, those of validation
    /// as lines with dots.
    pub fn chart_of_runs(title: &str, runs: &[(String, Self)]) -> Chart {
        let of_run = |(place, (name, losses)): (usize, &(String, Self))| {
            let colour = RUNS[place % RUNS.len()];
            let is_smoothed = losses.train.len() >= MIN_SMOOTHED;
            let train = if is_smoothed { smooth(&losses.train) } else { losses.train.clone() };
            let dots = if is_smoothed { 0 } else { 3 };
            let validation = losses.validation.clone();
            [
                Series { name: name.clone(), points: train, colour, line: 2, dots },
                Series { name: format!("{name}, validation"), points: validation, colour, line: 1, dots: 4 },
            ]
        };
        of_iterations(title, runs.iter().enumerate().flat_map(of_run).collect())
    }
}

fn of_iterations(title: &str, series: Vec<Series>) -> Chart {
    Chart { title: title.to_owned(), x: "iteration", x_number: |x| format!("{x:.0}"), y: "loss", series }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn losses() -> Losses {
        let loss = |i: u32| (f64::from(i), 1.8 + 7.0 / (1.0 + f64::from(i) / 40.0));
        Losses { train: (1..=600).map(loss).collect(), validation: (1..=6).map(|i| loss(i * 100)).collect() }
    }

    #[test]
    fn curves_come_from_the_metrics_file() {
        let records = [
            json!({ "kind": "train", "iteration": 1, "loss": 5.5 }),
            json!({ "kind": "train", "iteration": 2, "loss": "NaN" }),
            json!({ "kind": "valid", "iteration": 2, "loss": 5.25 }),
            json!({ "kind": "test", "iteration": 2, "loss": 5.0 }),
        ];
        let mut found = CollectedLosses::default();
        records.iter().for_each(|record| found.add(record.as_object().unwrap()));
        let found = found.finish();
        assert_eq!((found.train, found.validation), (vec![(1.0, 5.5)], vec![(2.0, 5.25)]));
    }

    #[test]
    fn long_curves_are_smoothed_and_short_ones_dotted() {
        let names = |chart: &Chart| chart.series.iter().map(|series| series.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&losses().chart("t")), ["training", "training, smoothed", "validation"]);
        let short = Losses { train: vec![(1.0, 5.0)], ..Losses::default() }.chart("t");
        assert_eq!((names(&short), short.series[0].dots), (vec!["training".into(), "validation".into()], 3));
    }

    #[test]
    fn runs_in_one_picture_have_colours_of_their_own() {
        let runs: Vec<_> = (0..3).map(|run| (format!("run {run}"), losses())).collect();
        let chart = Losses::chart_of_runs("three", &runs);
        let colours: std::collections::BTreeSet<_> = chart.series.iter().map(|series| series.colour).collect();
        assert_eq!((chart.series.len(), colours.len()), (6, 3));
    }
}
