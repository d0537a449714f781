//! Damaged and hostile inputs, drawn from a seed: a mutated file or option, a command that reads
//! it, and a judge. The judge refuses panics, aborts, endless runs, reads or writes outside of the
//! folder, and accepted files with a wrong checksum. A refusal must have exit code 2 and name the
//! file or key.
//!
//! The suite runs a few. After changing code that reads a file, run more: `BRIDGE_HOSTILE_RUNS=3000
//! cargo test --release --workspace --test hostile`; `BRIDGE_HOSTILE_SEED` repeats those of a seed,
//! and a failure names the seed of its case.

mod classes;
mod fixture;
mod folders;
mod judge;
mod mutate;
mod tensors;
mod weights;

use fixture::Fixture;
use judge::{Verdict, judge};
use mutate::Draw;

/// Cases of one run of the suite.
const RUNS: u64 = 40;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn mutated_inputs_are_refused_or_harmless() {
    let (first, runs) = (number("BRIDGE_HOSTILE_SEED").unwrap_or(1), number("BRIDGE_HOSTILE_RUNS").unwrap_or(RUNS));
    let fixture = Fixture::shared();
    let (mut bad, mut accepted) = (Vec::new(), 0);
    for seed in first..first.saturating_add(runs) {
        let folder = tempfile::tempdir().unwrap();
        let case = mutate::case(fixture, &mut Draw::new(seed), folder.path());
        match judge(&case, folder.path()) {
            Verdict::Refused => {}
            Verdict::Accepted => accepted += 1,
            Verdict::Bad(reason) => {
                let text = format!("seed {seed}: {}: {reason}", case.what);
                eprintln!("{text}");
                bad.push(text);
            }
        }
    }
    eprintln!("{runs} cases from seed {first}: {} bad, {accepted} accepted, the others refused", bad.len());
    assert!(bad.is_empty(), "{} of {runs}:\n{}", bad.len(), bad.join("\n"));
}
