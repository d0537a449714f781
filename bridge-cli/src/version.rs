//! Text of `--version`: the release and its commit; in full also features and the machine's vector
//! extension.

use std::sync::LazyLock;

/// The release and its commit, in one line.
pub const SHORT: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BRIDGE_COMMIT"), ")");

/// All of it.
pub static LONG: LazyLock<String> = LazyLock::new(|| {
    let features = match env!("BRIDGE_FEATURES") {
        "" => "none besides the default",
        features => features,
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{SHORT}\nfeatures: {features}\nCPU: {}, {threads} threads, {}", std::env::consts::ARCH, vector_extension())
});

/// The widest extension that the kernels use here (`bridge_kernels`' dispatch asks the same).
fn vector_extension() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let fma = has!("avx2") && has!("fma");
        match fma && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
            true => "AVX-512",
            false if fma => "AVX2 with FMA",
            false => "SSE2",
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    if cfg!(target_arch = "aarch64") { "NEON" } else { "no vector extension" }
}
