//! NVIDIA's libraries, loaded when a recipe asks for what they do: the management library (energy,
//! memory), and marks for its profiler.

mod nvml;
mod nvtx;

pub use nvml::Gpu;
pub use nvtx::{Nvtx, ProfilerSwitch};

/// Makes a stand-in for a library of NVIDIA's from Rust source; its path.
#[cfg(test)]
fn stand_in(folder: &std::path::Path, name: &str, text: &str) -> String {
    let (source, library) = (folder.join(format!("{name}.rs")), folder.join(format!("lib{name}.so")));
    std::fs::write(&source, text).unwrap();
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let mut compiler = std::process::Command::new(rustc);
    compiler.args(["--edition", "2024", "--crate-type", "cdylib", "-o"]).arg(&library).arg(&source);
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library.display().to_string()
}
