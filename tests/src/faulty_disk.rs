//! A disk that is slow or full while a control file exists: a small library in front of the C
//! library, since no real disk can be made so without being root.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Whether the file is a part of a save. */
static int is_save(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, "/saved/") || strstr(path, "/local/");
}

static void wait_for(int file) {
    char text[32] = {0};
    FILE *slow = access("slow", F_OK) == 0 && is_save(file) ? fopen("slow", "r") : 0;
    if (!slow) return;
    if (fread(text, 1, sizeof text - 1, slow) > 0) usleep(1000 * atoi(text));
    fclose(slow);
}

static int is_full(int file) {
    if (access("full", F_OK) != 0 || !is_save(file)) return 0;
    errno = ENOSPC;
    return 1;
}

int fsync(int file) {
    wait_for(file);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}

int fdatasync(int file) {
    wait_for(file);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file);
}

ssize_t write(int file, const void *bytes, size_t count) {
    if (is_full(file)) return -1;
    return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(file, bytes, count);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    if (is_full(file)) return -1;
    return ((ssize_t (*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev"))(file, parts, count);
}
"#;

/// The library, built into `folder`, for `LD_PRELOAD` of a run. While the run's working folder has
/// a file `slow`, each sync of a file below a folder `saved` or `local` takes the number of
/// milliseconds in that file longer. While it has a file `full`, writes to these folders fail.
///
/// # Panics
/// There is no C compiler, which Rust needs too.
#[must_use]
pub fn faulty_disk(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("faulty_disk.c"), folder.join("libfaulty_disk.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
    assert!(built.expect("there is a C compiler").success());
    library
}
