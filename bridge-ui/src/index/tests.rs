//! Metrics files that grow, end in the middle of a line, are cut or replaced; curves beside a plain
//! reference.

use std::io::Write;

use bridge_telemetry::logging::runs::RunState;
use proptest::prelude::*;

use super::*;

fn line(iteration: usize, loss: f64) -> String {
    let loss = if loss.is_nan() { "\"NaN\"".to_owned() } else { loss.to_string() };
    format!(
        "{{\"kind\":\"train\",\"iteration\":{iteration},\"loss\":{loss},\"seconds\":0.5,\"tokens_per_second\":8}}\n"
    )
}

fn losses(follower: &Follower) -> Vec<(u32, f64)> {
    follower.table().series("train", "loss").map(|series| series.points().collect()).unwrap_or_default()
}

#[test]
fn a_file_is_read_as_it_grows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let mut follower = Follower::new(&path);
    assert!(follower.read_on(1 << 20).is_err(), "it is not there");
    let mut file = File::create(&path).unwrap();
    let text: String = (1..=500).map(|i| line(i, i as f64)).collect();
    // Chunks end anywhere: no line is lost or read twice.
    for part in text.as_bytes().chunks(977) {
        file.write_all(part).unwrap();
        while follower.read_on(100).unwrap().has_more {}
    }
    let expected: Vec<(u32, f64)> = (1..=500).map(|i| (i, f64::from(i))).collect();
    assert_eq!(losses(&follower), expected);
    let again = follower.read_on(1 << 20).unwrap();
    assert!(!again.is_changed && !again.has_more && again.read == again.size, "{again:?}");
}

#[test]
fn another_file_of_that_name_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let write = |range: std::ops::Range<usize>, loss: f64| {
        std::fs::write(&path, range.map(|i| line(i, loss)).collect::<String>()).unwrap();
    };
    let mut follower = Follower::new(&path);
    write(1..10, 1.0);
    follower.read_on(1 << 20).unwrap();
    // Cut in place; then written anew in place, and longer than before.
    for (count, loss) in [(5, 1.0), (20, 2.0)] {
        write(1..count, loss);
        let progress = follower.read_on(1 << 20).unwrap();
        assert!(progress.is_new && progress.is_changed, "{count}");
        assert_eq!(losses(&follower), (1..count as u32).map(|i| (i, loss)).collect::<Vec<_>>());
    }
    // Replaced, with the same content.
    let next = folder.path().join("next");
    std::fs::copy(&path, &next).unwrap();
    std::fs::rename(&next, &path).unwrap();
    assert!(follower.read_on(1 << 20).unwrap().is_new);
    assert_eq!(losses(&follower).len(), 19);
}

#[test]
fn damaged_lines_are_counted_and_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    std::fs::write(&path, format!("{}nothing\n{{\n\n{}{{\"ki", line(1, 3.0), line(2, f64::NAN))).unwrap();
    let mut follower = Follower::new(&path);
    let progress = follower.read_on(1 << 20).unwrap();
    assert_eq!((follower.damaged(), losses(&follower).len(), progress.has_more), (2, 2, false));
    let curve = buckets(follower.table(), "train", "loss", Axis::Step, (0.0, 9.0), 10).unwrap();
    assert_eq!((curve.x, curve.not_finite), (vec![1.0], 0), "the range ends with the last finite value");
}

#[test]
fn samples_of_large_files_have_both_ends_and_no_torn_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let text: String = (1..=40_000).map(|i| line(i, i as f64)).collect();
    assert!(text.len() as u64 > PLACES * PIECE as u64);
    std::fs::write(&path, text + "{\"kind").unwrap();
    let table = sample(&path).unwrap();
    let points: Vec<(u32, f64)> = table.series("train", "loss").unwrap().points().collect();
    assert!(points.iter().all(|(i, loss)| f64::from(*i) == *loss) && points.is_sorted_by_key(|point| point.0));
    assert_eq!((points[0].0, points.last().unwrap().0, table.damaged()), (1, 40_000, 0));
    assert!(points.len() > PLACES as usize && points.len() < 600, "{}", points.len());
}

#[test]
fn heads_say_what_last_lines_say() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (1..=2000).map(|i| line(i, i as f64)).collect();
    std::fs::write(
        folder.path().join("metrics.jsonl"),
        text + "{\"kind\":\"valid\",\"iteration\":2000,\"loss\":1}\n{\"k",
    )
    .unwrap();
    let found = head(folder.path());
    assert_eq!((found.iterations, found.last_loss, found.seconds), (2000, Some(2000.into()), Some(0.5)));
    assert_eq!((found.state, found.problem), (RunState::Unknown, None));
    std::fs::write(folder.path().join("run.json"), "{").unwrap();
    assert!(head(folder.path()).problem.is_some_and(|problem| problem.contains("run.json")));
}

#[test]
fn places_in_time_and_tokens_are_sums_over_steps() {
    let mut table = Table::default();
    let text: String = (1..=4).map(|i| line(i, 1.0)).collect();
    table.add(format!("{text}{{\"kind\":\"valid\",\"iteration\":3,\"loss\":7}}\n").as_bytes());
    let places = |kind: &str, axis| buckets(&table, kind, "loss", axis, (f64::MIN, f64::MAX), 100).unwrap().x;
    assert_eq!(places("train", Axis::Time), [0.5, 1.0, 1.5, 2.0]);
    assert_eq!(places("train", Axis::Tokens), [4.0, 8.0, 12.0, 16.0]);
    assert_eq!(places("valid", Axis::Tokens), [12.0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn curves_equal_a_plain_reference(
        values in prop::collection::vec((1_usize..5, prop_oneof![9 => -1e3..1e3_f64, 1 => Just(f64::NAN)]), 1..300),
        (from, length) in (0.0..400.0_f64, 0.0..900.0_f64),
        count in 1_usize..60,
    ) {
        let (mut table, mut iteration, mut all) = (Table::default(), 0, Vec::new());
        for (gap, value) in values {
            iteration += gap;
            // As columns keep them.
            let value = f64::from(value as f32);
            table.add(line(iteration, value).as_bytes());
            all.push((iteration as f64, value));
        }
        let finite: Vec<(f64, f64)> = all.iter().copied().filter(|(_, value)| value.is_finite()).collect();
        let found = buckets(&table, "train", "loss", Axis::Step, (from, from + length), count);
        prop_assert_eq!(found.is_none(), finite.is_empty());
        let Some(found) = found else { return Ok(()) };
        let (low, high) = (from.max(finite[0].0), (from + length).min(finite[finite.len() - 1].0));
        let inside: Vec<(f64, f64)> = finite.into_iter().filter(|(x, _)| *x >= low && *x <= high).collect();
        // Every point in the stretch that it belongs to, by its definition.
        let width = (high - low) / count as f64;
        let stretch = |x: f64| if width > 0.0 { (((x - low) / width).floor() as usize).min(count - 1) } else { 0 };
        let groups: Vec<Vec<(f64, f64)>> = (0..count)
            .map(|of| inside.iter().copied().filter(|(x, _)| stretch(*x) == of).collect::<Vec<_>>())
            .filter(|group| !group.is_empty())
            .collect();
        prop_assert_eq!(found.x.len(), groups.len());
        for (i, group) in groups.iter().enumerate() {
            let mean = |of: fn(&(f64, f64)) -> f64| group.iter().map(of).sum::<f64>() / group.len() as f64;
            prop_assert_eq!(found.min[i], group.iter().map(|point| point.1).fold(f64::MAX, f64::min));
            prop_assert_eq!(found.max[i], group.iter().map(|point| point.1).fold(f64::MIN, f64::max));
            prop_assert!((found.mean[i] - mean(|point| point.1)).abs() < 1e-9);
            prop_assert!((found.x[i] - mean(|point| point.0)).abs() < 1e-9);
        }
        let dropped = all.iter().filter(|(x, value)| !value.is_finite() && *x >= low && *x <= high).count();
        prop_assert_eq!(found.not_finite, dropped);
    }
}
