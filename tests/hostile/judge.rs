//! Runs a case under limits and judges how it ended.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bridge_tests::program;

use crate::mutate::Case;

/// Address space of a run, in KiB.
const MEMORY: u64 = 8 << 20;
/// Time limit of a case.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that a run may say.
const MOST_SAID: u64 = 64 << 20;

/// End of a case.
pub enum Verdict {
    /// The program exits with code 2 and names the damaged file.
    Refused,
    /// The program exits with code 0, where the case allows that.
    Accepted,
    /// Any other end, with its description.
    Bad(String),
}

/// Runs `bridge` with these arguments in `folder`, under limits; `None` if it did not end.
pub fn limited(folder: &Path, arguments: &[String]) -> Option<Output> {
    let mut child = Command::new("bash")
        .args(["-c", &format!("ulimit -v {MEMORY}; exec \"$0\" \"$@\"")])
        .arg(program())
        .args(arguments)
        .env("RAYON_NUM_THREADS", "2")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let drain = |mut pipe: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // The output of a killed process is kept. One that writes without end meets a closed
            // pipe.
            let _ = pipe.by_ref().take(MOST_SAID).read_to_end(&mut bytes);
            bytes
        })
    };
    let stdout = drain(Box::new(child.stdout.take().unwrap()));
    let stderr = drain(Box::new(child.stderr.take().unwrap()));
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Some(Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() })
}

/// All files below some folders, with size and time of the last change.
fn listing(folders: &[PathBuf]) -> BTreeMap<PathBuf, (u64, Option<std::time::SystemTime>)> {
    let mut found = BTreeMap::new();
    let mut open = folders.to_vec();
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let metadata = entry.path().symlink_metadata().unwrap();
            if metadata.is_dir() {
                open.push(entry.path());
            } else {
                found.insert(entry.path(), (metadata.len(), metadata.modified().ok()));
            }
        }
    }
    found
}

/// Runs a case.
pub fn judge(case: &Case, folder: &Path) -> Verdict {
    let before = listing(&case.kept);
    let Some(output) = limited(folder, &case.arguments) else {
        return Verdict::Bad(format!("{:?} did not end", case.arguments));
    };
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let bad = |reason: &str| Verdict::Bad(format!("{:?} {reason} ({}): {said}", case.arguments, output.status));
    if said.contains("panicked at") || said.contains("overflowed its stack") {
        return bad("panicked");
    }
    if before != listing(&case.kept) {
        return bad("wrote where it only reads");
    }
    match output.status.code() {
        Some(0) if case.is_certified => bad("accepted what its checksum refutes"),
        Some(0) => Verdict::Accepted,
        // The comparison with a reference was made, and says that they differ.
        Some(1) if said.contains("FAILED") => Verdict::Accepted,
        Some(2) if case.names.iter().any(|name| said.contains(name.as_str())) => Verdict::Refused,
        Some(2) => bad("names neither file nor key"),
        _ => bad("ended otherwise"),
    }
}
