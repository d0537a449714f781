//! Memory that a program holds without using it: freed blocks, and code that has run.

/// Returns unused memory to the system after a phase such as set-up or the first step. Takes
/// milliseconds, and returns at once if another thread is doing it. Has no effect except on Linux
/// with the GNU C library.
///
/// Two kinds of memory are returned: freed memory, of which the C library's allocator keeps pages
/// for later small blocks, and pages of the program's code. Code that runs again is mapped again
/// from the page cache or read again; set-up code is not.
pub fn release_unused_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    {
        static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        // Ranks that are threads come here together.
        let Ok(_one) = ONE.try_lock() else { return };
        // SAFETY: it takes the allocator's own locks, and releases pages in which no block is.
        unsafe {
            libc::malloc_trim(0);
        }
        code::give_back();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
mod code {
    use std::ops::Range;

    /// Releases the pages of the program's code.
    pub fn give_back() {
        let Some((program, mappings)) = mappings() else { return };
        for range in untouched(&mappings, &program) {
            // SAFETY: the range is a mapping of this process of which no page differs from the file
            // (`untouched`) and that cannot be written: a page that is released has the same bytes
            // when it is next read or run.
            unsafe {
                libc::madvise(range.start as *mut _, range.len(), libc::MADV_DONTNEED);
            }
        }
    }

    /// The program's path, and the text of `/proc/self/smaps` (proc(5)).
    fn mappings() -> Option<(String, String)> {
        let program = std::fs::read_link("/proc/self/exe").ok()?.into_os_string().into_string().ok()?;
        Some((program, std::fs::read_to_string("/proc/self/smaps").ok()?))
    }

    /// The addresses of the program's code, of mappings in which nothing was written: by a loader
    /// or a debugger, say.
    fn untouched(mappings: &str, program: &str) -> impl Iterator<Item = Range<usize>> {
        let mut code = None;
        mappings.lines().filter_map(move |line| {
            code = code_of(line, program).or_else(|| code.take());
            // Each mapping has this figure once, below its heading.
            let kib = line.strip_prefix("Anonymous:")?;
            code.take().filter(|_| kib.trim() == "0 kB")
        })
    }

    /// The addresses in a line, if it is the heading of a mapping that has code of the program.
    fn code_of(heading: &str, program: &str) -> Option<Range<usize>> {
        // Addresses, permissions, offset, device, inode, path.
        let mut fields = heading.splitn(6, ' ');
        let (addresses, permissions) = (fields.next()?, fields.next()?);
        let is_code = permissions == "r-xp" && fields.nth(3)?.trim_start() == program;
        let (start, end) = addresses.split_once('-')?;
        let address = |text: &str| usize::from_str_radix(text, 16).ok();
        is_code.then_some(address(start)?..address(end)?)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn only_code_of_the_program_that_is_as_in_its_file_is_released() {
            let of = |heading: &str, anonymous: &str| {
                let mappings =
                    format!("{heading}\nSize: 8 kB\nRss: 4 kB\nAnonymous:        {anonymous} kB\nVmFlags: rd ex\n");
                untouched(&mappings, "/bin/a program").collect::<Vec<_>>()
            };
            let code = "1000-3000 r-xp 00001000 fe:00 77                 /bin/a program";
            let whole = 0x1000..0x3000;
            assert_eq!(of(code, "0"), std::slice::from_ref(&whole));
            assert_eq!(of(&format!("{code}\nAnonymous: 0 kB\n2000-3000 r--p 0 fe:00 77 /bin/a program"), "0"), [whole]);
            assert!(of(code, "4").is_empty(), "a page was written");
            for other in [
                "1000-3000 r--p 00001000 fe:00 77                 /bin/a program",
                "1000-3000 rwxp 00001000 fe:00 77                 /bin/a program",
                "1000-3000 r-xp 00001000 fe:00 77                 /lib/libc.so.6",
                "1000-3000 r-xp 00000000 00:00 0",
                "",
            ] {
                assert!(of(other, "0").is_empty(), "{other}");
            }
        }

        #[test]
        fn code_runs_on_after_its_pages_are_released() {
            let resident = || {
                let (program, mappings) = mappings().expect("Linux says");
                let mut lines = mappings.lines();
                lines.find(|line| code_of(line, &program).is_some()).expect("code of this program");
                let rss = lines.find_map(|line| line.strip_prefix("Rss:")).expect("a size");
                rss.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
            };
            // Tests in other threads bring code back meanwhile, though not each time as much.
            let shrinks = || {
                let before = resident();
                give_back();
                resident() < before
            };
            assert!((0..50).any(|_| shrinks()));
        }
    }
}
