//! NVIDIA's libraries, loaded when a recipe asks for what they do: the management library (energy,
//! memory), and marks for its profiler. Errors are what people read about a missing library or
//! device, or the answer of a function.

mod nvml;
mod nvtx;

use std::ffi::c_int;

use libloading::{Library, Symbol};

pub use nvml::Gpu;
pub use nvtx::{Nvtx, ProfilerSwitch};

fn load(path: &str) -> Result<Library, String> {
    // SAFETY: a library of NVIDIA's; loading it runs only what sets it up.
    unsafe { Library::new(path) }.map_err(|error| format!("{path} cannot be loaded: {error}"))
}

/// Calls a function of a library, whose status 0 is success.
///
/// # Safety
/// The function is of the type `F`.
unsafe fn call<F>(library: &Library, name: &str, work: impl FnOnce(Symbol<F>) -> c_int) -> Result<(), String> {
    // SAFETY: the caller says the type.
    let function = unsafe { library.get::<F>(name.as_bytes()) }.map_err(|error| format!("{name}: {error}"))?;
    match work(function) {
        0 => Ok(()),
        status => Err(format!("{name} answers {status}")),
    }
}

#[cfg(test)]
mod tests {
    /// Makes a stand-in for a library of NVIDIA's from Rust source; its path.
    pub(super) fn stand_in(folder: &std::path::Path, name: &str, text: &str) -> String {
        let (source, library) = (folder.join(format!("{name}.rs")), folder.join(format!("lib{name}.so")));
        std::fs::write(&source, text).unwrap();
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let mut compiler = std::process::Command::new(rustc);
        compiler.args(["--edition", "2024", "--crate-type", "cdylib", "-o"]).arg(&library).arg(&source);
        let output = compiler.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        library.display().to_string()
    }
}
