//! Check of the files that a command may overwrite: no source of its own, and no file that it did
//! not make, unless `--force` is given.

use std::path::{Component, Path, PathBuf};

use bridge_data::pack::Overwrite;
use clap::Args;

use crate::failure::Failure;

/// Option of commands that write to a given place.
#[derive(Clone, Copy, Debug, Args)]
pub struct Force {
    /// Write into the source, and over files that this command did not make.
    #[arg(long)]
    force: bool,
}

impl Force {
    /// Permission to overwrite, for packing and training.
    pub fn overwrite(self) -> Overwrite {
        if self.force { Overwrite::Any } else { Overwrite::Own }
    }

    /// Refuses to write into the folder `source`, at any depth.
    pub fn outside(self, source: &Path, output: &Path) -> Result<(), Failure> {
        let is_inside = resolved(output).starts_with(resolved(source));
        self.unless(is_inside, || format!("{} lies in the source, {}", output.display(), source.display()))
    }

    /// Refuses to write over `foreign`, the first file that is another's.
    pub fn over(self, foreign: Option<PathBuf>) -> Result<(), Failure> {
        let name = foreign.as_ref().map(|path| path.display().to_string());
        self.unless(foreign.is_some(), || format!("{} was not made by this command", name.unwrap_or_default()))
    }

    fn unless(self, is_wrong: bool, why: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.force || !is_wrong {
            return Ok(());
        }
        Err(Failure::input(format!("{}: name another place, or give --force to write there", why())))
    }
}

/// Path without links, for the part that exists, and without `..`.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut whole = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            other => whole.push(other),
        }
        whole = whole.canonicalize().unwrap_or(whole);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_recognized_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        std::fs::create_dir(&source).unwrap();
        std::os::unix::fs::symlink(&source, folder.path().join("link")).unwrap();
        let may = |force, output: &str| Force { force }.outside(&source, &folder.path().join(output)).is_ok();
        for inside in ["source", "source/new/deep", "link", "link/new", "other/../source/new"] {
            assert!(!may(false, inside) && may(true, inside), "{inside}");
        }
        for outside in ["other", "source-2", "source/../other"] {
            assert!(may(false, outside), "{outside}");
        }
    }
}
