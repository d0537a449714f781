//! Path of the `bridge` binary under test, and the check that it is newer than its sources.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Command that builds the binary for suites.
const BUILD: &str = "cargo build --release --workspace --bins";

/// The binary under test: `BRIDGE_UNDER_TEST` (to see which tests an older release fails), else
/// `bridge` of the target folder that the test itself was built in.
///
/// # Panics
/// If the binary is missing, or older than one of its sources.
#[must_use]
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match std::env::var_os("BRIDGE_UNDER_TEST") {
        Some(path) => path.into(),
        None => built().unwrap_or_else(|problem| panic!("{problem}; build it with `{BUILD}`")),
    })
}

/// `target/PROFILE/bridge`, two folders above `target/PROFILE/deps/TEST`.
fn built() -> Result<PathBuf, String> {
    let test = std::env::current_exe().map_err(|error| format!("this test does not know where it is: {error}"))?;
    let folder = test.ancestors().nth(2).ok_or("this test is not in a target folder")?;
    let program = folder.join("bridge").with_extension(std::env::consts::EXE_EXTENSION);
    check(&program, &made_from(folder)?)?;
    Ok(program)
}

/// Sources of the binary in `folder`: those in `bridge.d`, which `cargo build` writes, else the
/// workspace's libraries. `cargo test`, which builds the binary for the tests of its package,
/// writes no such list.
fn made_from(folder: &Path) -> Result<Vec<PathBuf>, String> {
    if let Ok(list) = std::fs::read_to_string(folder.join("bridge.d")) {
        // `TARGET: SOURCE ...`, where spaces in names are written as `\ `.
        let (_, sources) = list.split_once(": ").ok_or("bridge.d lists no sources")?;
        let sources = sources.trim().replace("\\ ", "\0");
        let sources = sources.split(' ').map(|name| PathBuf::from(name.replace('\0', " ")));
        // A commit changes no source; it only makes the version that the program names an older
        // one.
        return Ok(sources.filter(|path| !path.components().any(|part| part.as_os_str() == ".git")).collect());
    }
    let files = std::fs::read_dir(folder.join("deps")).map_err(|error| format!("{}: {error}", folder.display()))?;
    let is_ours = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libbridge_") && name.ends_with(".rlib") && !name.starts_with("libbridge_tests")
    };
    Ok(files.flatten().map(|entry| entry.path()).filter(is_ours).collect())
}

/// Fails unless `program` exists and none of `sources` is newer. A missing source does not count,
/// because the file that referred to it has changed, too.
fn check(program: &Path, sources: &[PathBuf]) -> Result<(), String> {
    let modified = |path: &Path| path.metadata().and_then(|file| file.modified());
    let built: SystemTime = modified(program).map_err(|error| format!("{}: {error}", program.display()))?;
    match sources.iter().find(|source| modified(source).is_ok_and(|changed| changed > built)) {
        Some(source) => Err(format!("{} is older than {}", program.display(), source.display())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    /// Folder with files of these ages in seconds.
    fn folder(files: &[(&str, u64)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deps")).unwrap();
        for (name, age) in files {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(*age)).unwrap();
        }
        folder
    }

    fn verdict(folder: &Path) -> Result<(), String> {
        check(&folder.join("bridge"), &made_from(folder).unwrap())
    }

    #[test]
    fn a_binary_is_as_new_as_its_sources() {
        let folder = folder(&[("bridge", 10), ("old source.rs", 20), ("new.rs", 5)]);
        let path = |name: &str| folder.path().join(name).display().to_string().replace(' ', "\\ ");
        let lists = |sources: &[&str]| {
            let sources: Vec<String> = sources.iter().map(|name| path(name)).collect();
            std::fs::write(folder.path().join("bridge.d"), format!("bridge: {}\n", sources.join(" "))).unwrap();
        };
        lists(&["old source.rs", "gone.rs"]);
        assert_eq!(verdict(folder.path()), Ok(()));
        lists(&["old source.rs", "new.rs"]);
        assert!(verdict(folder.path()).unwrap_err().contains("older than"));
    }

    #[test]
    fn without_a_list_it_is_as_new_as_the_libraries() {
        let old = folder(&[("bridge", 10), ("deps/libbridge_core-1.rlib", 20), ("deps/libbridge_tests-1.rlib", 5)]);
        assert_eq!(verdict(old.path()), Ok(()));
        let stale = folder(&[("bridge", 10), ("deps/libbridge_core-1.rlib", 20), ("deps/libbridge_core-2.rlib", 5)]);
        assert!(verdict(stale.path()).unwrap_err().contains("libbridge_core-2"));
        let none = folder(&[]);
        assert!(verdict(none.path()).unwrap_err().contains("bridge"), "no binary");
    }
}
