//! The runs of a folder, and a reader that follows their files. The last lines of a run and a
//! sample of its figures are available at once; the rest is read in the background, starting with
//! runs that clients are viewing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use bridge_telemetry::logging::runs::log_folders;

use crate::index::{Follower, Head, Table, head, sample};

/// Interval between two checks of the files.
const INTERVAL: Duration = Duration::from_millis(500);
/// Number of checks after which changes are checked that do not show in file sizes: locks, new
/// folders.
const SELDOM: u64 = 6;
/// Bytes that are read at a time; a request waits no longer.
const SLICE: usize = 4 << 20;
/// Figures of a run that a client has requested within this time are not evicted.
const IN_USE: Duration = Duration::from_secs(20);
/// Threads that read.
const READERS: usize = 4;

/// Progress of reading a run's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// A sample is available; the file is being read.
    Sample,
    /// All figures are available.
    Whole,
    /// Only a sample was read, because there is no memory for more.
    NoRoom,
}

/// State of a run.
pub struct Known {
    pub head: Head,
    follower: Follower,
    sample: Option<Table>,
    pub reading: Reading,
    /// Bytes read, and of the file.
    pub read: (u64, u64),
    /// Sizes and times of the files when they were last read.
    stamp: Stamp,
    /// Counts changes of the figures.
    pub version: u64,
    /// Problem with reading the figures.
    pub problem: Option<String>,
}

type Stamp = [Option<(u64, SystemTime)>; 2];

impl Known {
    /// The figures, or a sample of them.
    pub fn table(&self) -> &Table {
        match (&self.sample, self.reading) {
            (Some(sample), Reading::Sample | Reading::NoRoom) => sample,
            _ => self.follower.table(),
        }
    }

    /// Number of lines read so far that are not records.
    pub fn damaged(&self) -> usize {
        self.follower.damaged()
    }
}

/// A run.
pub struct Entry {
    /// Number of the run in requests.
    pub id: u32,
    pub folder: PathBuf,
    known: RwLock<Known>,
    /// Time of the last request for its figures, in milliseconds since the library was opened.
    asked: AtomicU64,
}

impl Entry {
    fn new(id: u32, folder: PathBuf) -> Self {
        let known = Known {
            head: head(&folder),
            follower: Follower::new(folder.join("metrics.jsonl")),
            sample: None,
            reading: Reading::Sample,
            read: (0, 0),
            stamp: stamp(&folder),
            version: 0,
            problem: None,
        };
        Self { id, folder, known: RwLock::new(known), asked: AtomicU64::new(0) }
    }

    pub fn read<T>(&self, look: impl FnOnce(&Known) -> T) -> T {
        look(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.known.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a sample if there are no figures yet.
    pub fn prepare(&self) {
        if self.read(|known| known.reading == Reading::Whole || known.sample.is_some()) {
            return;
        }
        let path = self.folder.join("metrics.jsonl");
        let found = sample(&path);
        self.write(|known| match found {
            Ok(table) => known.sample = Some(table),
            Err(error) => known.problem = Some(format!("{}: {error}", path.display())),
        });
    }
}

/// The runs of a folder.
pub struct Library {
    pub(crate) root: PathBuf,
    /// Bytes for figures.
    limit: usize,
    opened: Instant,
    runs: Mutex<Runs>,
}

#[derive(Default)]
struct Runs {
    by_folder: BTreeMap<PathBuf, Arc<Entry>>,
    next: u32,
    problems: Vec<String>,
}

impl Library {
    /// Finds the runs in `root`, and reads only their heads.
    pub fn open(root: PathBuf, limit: usize) -> Self {
        let library = Self { root, limit, opened: Instant::now(), runs: Mutex::default() };
        library.look_for_runs();
        library
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of runs, and the problems.
    pub fn found(&self) -> (usize, Vec<String>) {
        let runs = self.lock();
        (runs.by_folder.len(), runs.problems.clone())
    }

    /// All runs, in the order of their folders.
    pub(crate) fn entries(&self) -> Vec<Arc<Entry>> {
        self.lock().by_folder.values().cloned().collect()
    }

    /// The run with the ID `id`, if its folder is inside the root.
    pub(crate) fn entry(&self, id: &str) -> Option<Arc<Entry>> {
        let id: u32 = id.parse().ok()?;
        self.entries().into_iter().find(|entry| entry.id == id && self.leads_out(&entry.folder).is_none())
    }

    /// Records that a client is viewing a run's figures.
    pub(crate) fn touch(&self, entry: &Entry) {
        entry.asked.store(self.now(), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX) + 1
    }

    /// A link in a run's folder that leads out of the folder of runs: files behind it are not the
    /// page's to show.
    fn leads_out(&self, folder: &Path) -> Option<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
        let is_out = |path: &PathBuf| path.canonicalize().is_ok_and(|target| !target.starts_with(&self.root));
        links.map(|entry| entry.path()).find(is_out)
    }

    fn look_for_runs(&self) {
        let mut found = log_folders(&self.root);
        found.folders.retain(|folder| {
            let link = self.leads_out(folder);
            let problem = |link: &PathBuf| format!("{}: a link out of {}", link.display(), self.root.display());
            found.problems.extend(link.as_ref().map(problem));
            link.is_none()
        });
        let new: Vec<PathBuf> = {
            let runs = self.lock();
            found.folders.iter().filter(|folder| !runs.by_folder.contains_key(*folder)).cloned().collect()
        };
        let first = self.lock().next;
        let entries: Mutex<Vec<Arc<Entry>>> = Mutex::default();
        in_parallel(&new, |place, folder| {
            let entry = Arc::new(Entry::new(first + place as u32 + 1, folder.clone()));
            entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        });
        let mut runs = self.lock();
        runs.next = first + new.len() as u32;
        runs.by_folder.retain(|folder, _| found.folders.contains(folder));
        let entries = entries.into_inner().unwrap_or_else(PoisonError::into_inner);
        runs.by_folder.extend(entries.into_iter().map(|entry| (entry.folder.clone(), entry)));
        runs.problems = found.problems;
    }

    /// Follows the files for ever.
    pub(crate) fn follow(&self) {
        for look in 1_u64.. {
            let is_seldom = look.is_multiple_of(SELDOM);
            if is_seldom {
                self.look_for_runs();
            }
            let mut entries = self.entries();
            entries.sort_by_key(|entry| std::cmp::Reverse(entry.asked.load(Ordering::Relaxed)));
            in_parallel(&entries, |_, entry| self.update(entry, is_seldom));
            std::thread::sleep(INTERVAL);
        }
    }

    /// Reads the new lines of a run.
    fn update(&self, entry: &Entry, is_seldom: bool) {
        let now = stamp(&entry.folder);
        let is_changed = entry.read(|known| known.stamp != now);
        if is_changed || is_seldom {
            let head = head(&entry.folder);
            entry.write(|known| (known.head, known.stamp) = (head, now));
        }
        let is_behind = entry.read(|known| known.reading != Reading::Whole);
        if !is_behind && !is_changed {
            return;
        }
        if is_behind {
            // An upper estimate of the memory for the file's figures: with too low an estimate the
            // file would be read and evicted repeatedly.
            let need = usize::try_from(now[0].map_or(0, |(size, _)| size / 3)).unwrap_or(usize::MAX);
            if !self.has_room(entry, need) {
                return entry.write(|known| known.reading = Reading::NoRoom);
            }
            entry.prepare();
        }
        while let Some(has_more) = entry.write(read_slice) {
            if !self.has_room(entry, 0) {
                return entry.write(|known| {
                    known.follower.forget();
                    (known.reading, known.version) = (Reading::NoRoom, known.version + 1);
                });
            }
            if !has_more {
                break;
            }
        }
    }

    /// True if there is memory for `need` more bytes of a run; runs without viewers are dropped
    /// first.
    fn has_room(&self, entry: &Entry, need: usize) -> bool {
        let mut others = self.entries();
        others.retain(|other| other.id != entry.id);
        let bytes = |entry: &Entry| entry.read(|known| known.follower.table().bytes());
        let mut sum = need + bytes(entry) + others.iter().map(|other| bytes(other)).sum::<usize>();
        if sum < self.limit {
            return true;
        }
        others.sort_by_key(|other| other.asked.load(Ordering::Relaxed));
        let (now, asked) = (self.now(), entry.asked.load(Ordering::Relaxed));
        let in_use = u64::try_from(IN_USE.as_millis()).unwrap_or(u64::MAX);
        for other in others {
            let last = other.asked.load(Ordering::Relaxed);
            if sum < self.limit || last + in_use > now || last >= asked {
                break;
            }
            sum -= bytes(&other);
            other.write(|known| {
                known.follower.forget();
                known.reading = Reading::NoRoom;
            });
        }
        sum < self.limit
    }
}

/// Reads on in a run's file; whether there is more, or nothing if it cannot be read.
fn read_slice(known: &mut Known) -> Option<bool> {
    match known.follower.read_on(SLICE) {
        Ok(progress) => {
            known.read = (progress.read, progress.size);
            known.problem = None;
            if progress.is_new {
                known.sample = None;
                known.reading = Reading::Sample;
            }
            let is_whole = !progress.has_more;
            if is_whole && known.reading != Reading::Whole {
                (known.reading, known.sample) = (Reading::Whole, None);
                known.version += 1;
            } else if progress.is_changed && known.reading == Reading::Whole {
                known.version += 1;
            }
            Some(progress.has_more)
        }
        Err(error) => {
            known.problem = Some(error.to_string());
            None
        }
    }
}

fn stamp(folder: &Path) -> Stamp {
    ["metrics.jsonl", "run.json"].map(|name| {
        let metadata = std::fs::metadata(folder.join(name)).ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    })
}

/// Does `work` for each item on a few threads, with its place.
fn in_parallel<T: Sync>(items: &[T], work: impl Fn(usize, &T) + Sync) {
    let next = AtomicUsize::new(0);
    let worker = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else { return };
            work(place, item);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..READERS.min(cores).min(items.len()) {
            scope.spawn(worker);
        }
        worker();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_links_out_of_the_folder_are_left_out() {
        let (inner, outer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = inner.path().canonicalize().unwrap();
        std::fs::write(outer.path().join("secret"), "{}\n").unwrap();
        let run = |name: &str| {
            std::fs::create_dir(root.join(name)).unwrap();
            root.join(name)
        };
        std::fs::write(run("good").join("metrics.jsonl"), "{}\n").unwrap();
        std::os::unix::fs::symlink(root.join("good/metrics.jsonl"), run("near").join("metrics.jsonl")).unwrap();
        std::os::unix::fs::symlink(outer.path().join("secret"), run("bad").join("metrics.jsonl")).unwrap();
        let worse = run("worse");
        std::fs::write(worse.join("metrics.jsonl"), "{}\n").unwrap();
        std::os::unix::fs::symlink(outer.path().join("secret"), worse.join("train.log")).unwrap();
        let library = Library::open(root.clone(), 1 << 30);
        let folders: Vec<PathBuf> = library.entries().iter().map(|entry| entry.folder.clone()).collect();
        assert_eq!(folders, [root.join("good"), root.join("near")]);
        let (_, problems) = library.found();
        assert!(
            problems.len() == 2 && problems.iter().all(|problem| problem.contains("a link out of")),
            "{problems:?}"
        );
        // A link that appears later.
        let id = library.entries()[0].id.to_string();
        assert!(library.entry(&id).is_some());
        std::os::unix::fs::symlink(outer.path().join("secret"), root.join("good/run.json")).unwrap();
        assert!(library.entry(&id).is_none());
    }
}
