//! Tells the program its commit and features: from git, or from `commit.txt` where git has made an
//! archive of the sources.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-env=BRIDGE_COMMIT={}", commit());
    let mut features: Vec<String> = std::env::vars()
        .filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-")))
        .filter(|name| name != "default")
        .collect();
    features.sort();
    println!("cargo::rustc-env=BRIDGE_FEATURES={}", features.join(", "));
}

fn commit() -> String {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=commit.txt");
    let archived = std::fs::read_to_string("commit.txt").unwrap_or_default();
    let archived = archived.trim();
    if !archived.is_empty() && !archived.contains('$') {
        return archived.to_owned();
    }
    // The commit of the repository of this package, not of one around an unpacked archive.
    let is_own = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| is_own) else {
        return "unknown commit".into();
    };
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    commit
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
