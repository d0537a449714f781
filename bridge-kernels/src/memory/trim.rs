//! Memory that a program holds and does not need: what was freed, and code that has run.

/// Gives memory back to the system that a phase leaves behind, of loading and setting up above all. Worth its milliseconds once. Elsewhere than on Linux with the GNU C
/// library it does nothing.
///
/// Two kinds: what was freed (the allocator of the C library keeps what small blocks had, page by page between others, for small blocks to come),
/// and the program's code (what runs again is mapped again from the system's cache of the file; what only set up is not).
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    {
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
        let is_read = |path: &str| std::fs::read_to_string(path).ok();
        let (Some(maps), Some(status)) = (is_read("/proc/self/maps"), is_read("/proc/self/status")) else { return };
        let Some(program) = std::fs::read_link("/proc/self/exe").ok().and_then(|path| path.to_str().map(str::to_owned))
        else {
            return;
        };
        // A debugger writes its breakpoints into the code.
        if !status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() == "0")) {
            return;
        }
        for range in maps.lines().filter_map(|line| of_program(line, &program)) {
            // SAFETY: the range is a mapping of this process that is not writable and has the bytes of its file: a page that is released has the same
            // bytes when it is next read or run. Constants with addresses, which the loader has changed, are in mappings that are not executable.
            unsafe {
                libc::madvise(range.start as *mut _, range.len(), libc::MADV_DONTNEED);
            }
        }
    }

    /// The addresses of a line of `/proc/self/maps`, if they have code of the program.
    fn of_program(line: &str, program: &str) -> Option<Range<usize>> {
        // Addresses, permissions, offset, device, inode, path.
        let mut fields = line.splitn(6, ' ');
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
        fn only_code_of_the_program_is_released() {
            let of = |line| of_program(line, "/bin/a program");
            assert_eq!(of("1000-3000 r-xp 00001000 fe:00 77                 /bin/a program"), Some(0x1000..0x3000));
            assert_eq!(of("1000-3000 r--p 00001000 fe:00 77                 /bin/a program"), None);
            assert_eq!(of("1000-3000 rwxp 00001000 fe:00 77                 /bin/a program"), None);
            assert_eq!(of("1000-3000 r-xp 00001000 fe:00 77                 /lib/libc.so.6"), None);
            assert_eq!(of("1000-3000 r-xp 00000000 00:00 0"), None);
            assert_eq!(of(""), None);
        }

        #[test]
        fn code_runs_on_after_its_pages_are_released() {
            let resident = || {
                let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
                let program = std::fs::read_link("/proc/self/exe").unwrap();
                let mut lines = maps.lines();
                lines.find(|line| of_program(line, program.to_str().unwrap()).is_some()).expect("code of this program");
                let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
                rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
            };
            let before = resident();
            for _ in 0..3 {
                give_back();
            }
            let after = resident();
            assert!(after < before, "{after} KiB of {before} are resident");
            let sum: u64 = (0..1000).sum();
            assert_eq!(sum, 499_500);
        }
    }
}
