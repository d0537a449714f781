//! The figures of docs/parallelism.md, drawn from real meshes and action lists. The test fails when
//! a committed figure differs from the one that the code draws now; `UPDATE_FIGURES=1 cargo test -p
//! bridge-dist --test figures` writes them.

use std::fs;
use std::path::Path;

mod groups;
mod schedules;
mod svg;

/// Figures stay small enough to be read as text.
const LARGEST: usize = 60_000;

fn figures() -> Vec<(&'static str, String)> {
    [schedules::figures(), groups::figures()].concat()
}

#[test]
fn committed_figures_are_what_the_code_draws() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/figures");
    let is_update = std::env::var_os("UPDATE_FIGURES").is_some();
    let mut stale = Vec::new();
    for (name, svg) in figures() {
        assert!(svg.len() < LARGEST, "{name} has {} bytes", svg.len());
        let path = folder.join(name);
        if is_update {
            fs::create_dir_all(&folder).and_then(|()| fs::write(&path, &svg)).unwrap_or_else(|e| panic!("{name}: {e}"));
        } else if fs::read_to_string(&path).ok().as_ref() != Some(&svg) {
            stale.push(name);
        }
    }
    assert!(stale.is_empty(), "stale: {stale:?}; write them with UPDATE_FIGURES=1");
    let mut found: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    let mut drawn: Vec<&str> = figures().into_iter().map(|(name, _)| name).collect();
    drawn.sort_unstable();
    assert_eq!(found, drawn, "the folder has figures that nothing draws");
}
