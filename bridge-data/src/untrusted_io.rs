//! Access to files that this process did not just write. Only regular files of a sane size are
//! read: a pipe would wait for ever, a device has no end. Written files are created anew, never
//! through a link. The meaning of content belongs to the callers.

use std::any::Any;
use std::cell::Cell;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, UncheckedAdvice};
use rustix::fs::OFlags;

/// Most bytes of a file of settings: a recipe, a `config.json`, a template, a pointer.
pub const SETTINGS_BYTES: u64 = 64 << 20;
/// Most bytes of a file that lists things: a tokenizer, the index of sharded weights.
pub const TABLE_BYTES: u64 = 256 << 20;
/// Most bytes of a file that grows with a run or a checkpoint and is read whole: metrics, events,
/// metadata.
pub const RECORDS_BYTES: u64 = 1 << 30;

/// Opens a regular file for reading, and returns it with its size. Links are followed.
///
/// # Errors
/// Errors of the system; a folder, pipe, socket or device, by its name; a pointer of Git LFS in
/// place of a file.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    regular(&std::fs::metadata(path)?)?;
    // The file may have been replaced since. A pipe without a writer must not block the caller.
    let file = OpenOptions::new().read(true).custom_flags(flags(OFlags::NONBLOCK)).open(path)?;
    let metadata = file.metadata()?;
    regular(&metadata)?;
    let mut head = [0; POINTER.len()];
    if metadata.len() <= POINTER_BYTES && file.read_exact_at(&mut head, 0).is_ok() && head == *POINTER {
        let text = "it is a Git LFS pointer, which stands for a file that was not downloaded: run `git lfs pull`";
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    Ok((file, metadata.len()))
}

/// First bytes of a pointer of Git LFS (git-lfs, docs/spec.md).
const POINTER: &[u8; 40] = b"version https://git-lfs.github.com/spec/";
/// A pointer is smaller.
const POINTER_BYTES: u64 = 1024;

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open`]; a file that is larger.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let (file, size) = open(path)?;
    let too_large = || {
        let text = format!("it has more than {limit} bytes, which is more than a file of its sort needs");
        io::Error::new(ErrorKind::FileTooLarge, text)
    };
    if size > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(size).map_err(|_| too_large())?)?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large()) } else { Ok(bytes) }
}

/// As [`read`], for text.
///
/// # Errors
/// As [`read`]; bytes that are not UTF-8, with the place of the first.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read(path, limit)?).map_err(|error| {
        let text = format!("it is not text: byte {} is not UTF-8", error.utf8_error().valid_up_to());
        io::Error::new(ErrorKind::InvalidData, text)
    })
}

/// Maps a regular file into memory, read-only.
///
/// # Errors
/// As [`open`]; a system that cannot map it.
pub fn map(path: &Path) -> io::Result<Mmap> {
    let (file, _) = open(path)?;
    // SAFETY: the map is only read. The files that Bridge maps are replaced by renaming a new file
    // over the old name, never written in place, so that the mapped pages keep their content. If
    // another program truncates the file, reads fault, as with every memory-mapped format.
    unsafe { Mmap::map(&file) }
}

/// Releases the pages of a mapped file from this process's memory. Later accesses read them again,
/// from the page cache.
pub fn hand_back(map: &Mmap) {
    // SAFETY: the map is read-only and private, so no page has a content of its own: one that is
    // dropped is read from the file again.
    let advised = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
    // A system that ignores the advice keeps the pages, which is not an error.
    drop(advised);
}

/// The file `name` of `folder`, where another file chose the name: it must be that of a file right
/// there.
///
/// # Errors
/// A path, `..`, or another text that is not the plain name of a file.
pub fn named(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0']);
    if plain {
        return Ok(folder.join(name));
    }
    let shown: String = name.chars().take(80).collect();
    let text = format!("it names the file {shown:?}: expected the plain name of a file in the same folder");
    Err(io::Error::new(ErrorKind::InvalidInput, text))
}

/// Creates a file anew for writing. A file or link of this name is removed; the target of a link is
/// left unchanged.
///
/// # Errors
/// Errors of the system; a folder, pipe or device of this name.
pub fn create(path: &Path) -> io::Result<File> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => {
            if !found.is_symlink() {
                regular(&found)?;
            }
            std::fs::remove_file(path)?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Gives `path` this content in one step: written to a new file beside it, which is renamed.
///
/// # Errors
/// Errors of the system; a folder, pipe or device of this name.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with(path, |file| file.write_all(content))
}

/// As [`replace`], with content that `write` writes in parts.
///
/// # Errors
/// As [`replace`], and those of `write`.
pub fn replace_with(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if let Ok(found) = std::fs::symlink_metadata(path)
        && !found.is_symlink()
    {
        regular(&found)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".tmp-{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = create(&temporary).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    });
    written.inspect_err(|_| {
        // The error above is the one that is reported.
        let _ = std::fs::remove_file(&temporary);
    })
}

/// Opens a file to add to it, and creates it if it is missing. A link is refused, unless it leads
/// to a device, which keeps nothing.
///
/// # Errors
/// Errors of the system; a link, folder or pipe of this name.
pub fn append(path: &Path) -> io::Result<File> {
    if is_link(path) && std::fs::metadata(path).is_ok_and(|target| target.file_type().is_char_device()) {
        return OpenOptions::new().append(true).open(path);
    }
    open_own(path, OpenOptions::new().append(true).create(true))
}

/// Opens a file whose lock counts, not its content, and creates it if it is missing. A link is
/// refused.
///
/// # Errors
/// Errors of the system; a link, folder, pipe or device of this name.
pub fn lockable(path: &Path) -> io::Result<File> {
    open_own(path, OpenOptions::new().read(true).write(true).create(true).truncate(false))
}

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a library's code on untrusted input. Should it panic, that is an error with its message.
///
/// # Errors
/// The panic's message.
pub fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = CONTAINED.replace(true);
    let done = std::panic::catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(before);
    done.map_err(|panic| panic_message(panic.as_ref()))
}

/// Message of a panic, from its payload.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it panicked without a message".to_owned())
}

/// True if this thread is inside [`contained`], whose caller reports a panic: a panic hook prints
/// nothing.
#[must_use]
pub fn is_contained() -> bool {
    CONTAINED.get()
}

fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    if is_link(path) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is a symbolic link: nothing is written through links"));
    }
    let file = options.custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK)).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// True if a file was refused for its type or content, or for the target of a link in its place:
/// the input is at fault, not the machine.
#[must_use]
pub fn is_refused(error: &io::Error) -> bool {
    use ErrorKind::{FileTooLarge, InvalidData, InvalidInput, IsADirectory, NotADirectory};
    use rustix::io::Errno;
    // `NXIO`: a pipe without a reader cannot be opened for writing.
    let is_no_file = [Errno::LOOP, Errno::NXIO].map(|errno| Some(errno.raw_os_error())).contains(&error.raw_os_error());
    is_no_file || [FileTooLarge, InvalidData, InvalidInput, IsADirectory, NotADirectory].contains(&error.kind())
}

fn is_link(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

/// The flags as the standard library takes them.
fn flags(flags: OFlags) -> i32 {
    flags.bits() as i32
}

/// Refuses files that are not regular, and names their kind.
fn regular(metadata: &Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    let refuse =
        |error: ErrorKind, what: &str| Err(io::Error::new(error, format!("it is {what}, expected a regular file")));
    if kind.is_file() {
        Ok(())
    } else if kind.is_dir() {
        refuse(ErrorKind::IsADirectory, "a folder")
    } else if kind.is_fifo() {
        refuse(ErrorKind::InvalidInput, "a named pipe")
    } else if kind.is_socket() {
        refuse(ErrorKind::InvalidInput, "a socket")
    } else {
        refuse(ErrorKind::InvalidInput, "a device")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// A folder with one entry of each kind that is not a regular file.
    fn oddities() -> (tempfile::TempDir, Vec<(PathBuf, &'static str)>) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        symlink("loop", at("loop")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        let kept = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        drop(kept);
        let found = [
            ("folder", "a folder"),
            ("pipe", "a named pipe"),
            ("zero", "a device"),
            ("loop", "symbolic links"),
            ("dangling", "No such file"),
            ("socket", "a socket"),
        ];
        let found = found.map(|(name, words)| (at(name), words)).to_vec();
        (folder, found)
    }

    #[test]
    fn only_regular_files_are_read_and_others_are_named() {
        let (_folder, oddities) = oddities();
        for (path, words) in &oddities {
            for error in [read(path, 10).unwrap_err(), map(path).unwrap_err(), open(path).unwrap_err()] {
                assert!(error.to_string().contains(words), "{}: {error}", path.display());
            }
        }
    }

    #[test]
    fn what_is_no_file_is_the_inputs_fault_where_something_is_added() {
        let (_folder, oddities) = oddities();
        for (path, words) in oddities.iter().filter(|(_, words)| *words != "a device") {
            for error in [append(path).unwrap_err(), lockable(path).unwrap_err()] {
                assert!(is_refused(&error), "{words}: {error}");
            }
        }
    }

    #[test]
    fn files_above_their_limit_are_refused_before_they_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&path, TABLE_BYTES).unwrap_err().kind(), ErrorKind::FileTooLarge);
        fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert!(read(&path, 3).is_err());
        // The system reports a size of zero for these files.
        assert!(read(Path::new("/proc/self/status"), 3).is_err());
        fs::write(&path, b"ab\xff").unwrap();
        assert!(read_text(&path, 9).unwrap_err().to_string().contains("byte 2 is not UTF-8"));
    }

    #[test]
    fn names_from_files_stay_in_their_folder() {
        let folder = Path::new("folder");
        assert_eq!(
            named(folder, "model-00001-of-00002.safetensors").unwrap(),
            folder.join("model-00001-of-00002.safetensors")
        );
        for name in ["", ".", "..", "../x", "/etc/passwd", "a/b", "a/../b", "a\\b", "a\0b", "./a"] {
            assert!(named(folder, name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_panic_of_a_library_is_an_error() {
        assert_eq!(contained(|| 3), Ok(3));
        assert!(!is_contained() && contained(is_contained).unwrap());
        let empty: &[u8] = &[];
        assert!(contained(|| empty[2]).unwrap_err().contains("out of bounds"));
        assert!(!is_contained());
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, link) = (folder.path().join("victim"), folder.path().join("link"));
        fs::write(&victim, "kept").unwrap();
        let linked = || {
            let _ = fs::remove_file(&link);
            symlink(&victim, &link).unwrap();
        };
        linked();
        assert!(append(&link).unwrap_err().to_string().contains("symbolic link"));
        assert!(lockable(&link).unwrap_err().to_string().contains("symbolic link"));
        create(&link).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(&link).unwrap(), b"new");
        linked();
        replace(&link, b"newer").unwrap();
        assert!(!is_link(&link) && fs::read(&link).unwrap() == b"newer");
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
        append(&link).unwrap().write_all(b"!").unwrap();
        assert_eq!(fs::read(&link).unwrap(), b"newer!");
    }

    #[test]
    fn what_is_no_file_is_neither_replaced_nor_waited_for() {
        let (folder, _) = oddities();
        for name in ["folder", "pipe"] {
            let path = folder.path().join(name);
            assert!(create(&path).is_err() && replace(&path, b"x").is_err(), "{name}");
            assert!(append(&path).is_err() && lockable(&path).is_err(), "{name}");
            assert!(path.exists());
        }
    }
}
