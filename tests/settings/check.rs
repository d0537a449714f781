//! Runs the rows of a section and returns the problems of each.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::facets::Facets;
use super::row::{FOLLOW, GLIMPSES, Row};
use super::run::Run;

/// Relative distance of numbers that count as nearly equal.
const NEARLY: f64 = 1e-4;

/// Runs rows; fails with everything that is wrong with any of them.
pub fn check(rows: &[Row]) {
    // Made here, they are found by their rows.
    let waiting: Vec<Run> = rows.iter().filter(|row| row.run.waits()).flat_map(Row::runs).collect();
    together(&waiting);
    let problems: Vec<String> = rows.iter().flat_map(problems_of).collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

fn problems_of(row: &Row) -> Vec<String> {
    let seen: Vec<_> = row.runs().iter().map(Run::observe).collect();
    let mut problems = Vec::new();
    let first = &seen[0];
    let mut moved = BTreeSet::new();
    for (place, other) in seen.iter().enumerate().skip(1) {
        let now = differences(first, other);
        for (earlier, value) in seen[..place].iter().zip(&row.values) {
            if row.lowers.is_empty() && differences(earlier, other).is_empty() {
                let (one, two) = (value, &row.values[place]);
                problems.push(format!("{one:?} and {two:?} show the same; {}", brief(other.get("stderr"))));
            }
        }
        for facet in row.nearly.iter().filter(|facet| !are_near(first.get(facet), other.get(facet))) {
            let (was, is) = (brief(first.get(facet)), brief(other.get(facet)));
            problems.push(format!("{facet} moves by more than rounding: {was} / {is}"));
        }
        moved.extend(now);
    }
    for name in &row.lowers {
        let (was, is) = (first.measure(name), seen[1].measure(name));
        if is > 0.9 * was {
            problems.push(format!("{name} is not lowered: {was} / {is}"));
        }
    }
    let named: BTreeSet<String> = row.moves.iter().map(|name| (*name).to_owned()).collect();
    let list = |names: Vec<&String>| names.into_iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let (missing, extra): (Vec<_>, Vec<_>) = (
        named.difference(&moved).collect(),
        moved
            .difference(&named)
            .filter(|name| !may_follow(&named, name) && !GLIMPSES.contains(&name.as_str()))
            .filter(|name| !row.nearly.contains(&name.as_str()))
            .collect(),
    );
    if !missing.is_empty() {
        problems.push(format!("does not move: {}", list(missing)));
    }
    if !extra.is_empty() {
        let shown = extra.iter().map(|name| format!("\n      {name}: {}", change(first, &seen[1..], name)));
        let shown: String = shown.collect();
        problems.push(format!("moves too: {}{shown}", list(extra)));
    }
    for (place, facet, text) in &row.holds {
        let found = seen[*place].get(facet);
        if !found.contains(text) {
            problems.push(format!("{:?}: {facet} holds no {text:?}: {}", row.values[*place], brief(found)));
        }
    }
    let title = |problem| format!("  {} {:?}\n    {problem}\n    in {:?}", row.key, row.values, row.run.overrides());
    problems.into_iter().map(title).collect()
}

/// Makes runs that wait more than they work, at the same time.
fn together(runs: &[Run]) {
    std::thread::scope(|scope| {
        for run in runs {
            scope.spawn(|| run.observe());
        }
    });
}

/// True if a facet may move because one of the named facets does.
fn may_follow(named: &BTreeSet<String>, facet: &str) -> bool {
    FOLLOW.iter().any(|(cause, effects)| named.contains(*cause) && (effects.contains(&facet) || effects.contains(&"*")))
}

/// Facets that differ.
fn differences(a: &Facets, b: &Facets) -> BTreeSet<String> {
    let names: BTreeSet<&str> = a.names().chain(b.names()).collect();
    names.into_iter().filter(|name| a.get(name) != b.get(name)).map(str::to_owned).collect()
}

/// True if two texts are equal except for small differences of their numbers.
fn are_near(a: &str, b: &str) -> bool {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.split_whitespace().collect(), b.split_whitespace().collect());
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| match (a.parse::<f64>(), b.parse::<f64>()) {
            (Ok(a), Ok(b)) => (a - b).abs() <= NEARLY * a.abs().max(b.abs()),
            _ => *a == b,
        })
}

/// The first lines that differ.
fn change(first: &Facets, others: &[Arc<Facets>], name: &str) -> String {
    let was = first.get(name);
    let Some(other) = others.iter().find(|other| other.get(name) != was) else { return String::new() };
    let is = other.get(name);
    let lines = |text: &str, without: &str| -> String {
        let without: BTreeSet<&str> = without.lines().collect();
        brief(&text.lines().filter(|line| !without.contains(line)).collect::<Vec<_>>().join(" ; "))
    };
    format!("{} / {}", lines(was, is), lines(is, was))
}

fn brief(text: &str) -> String {
    let mut brief: String = text.chars().take(160).collect();
    if brief.len() < text.len() {
        brief.push_str(" ...");
    }
    brief
}
