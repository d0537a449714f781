//! Check that cuBLASLt can be called. The bindings load the library at the first call and panic if
//! it, or a function in it, is missing.

use std::fmt;

use cudarc::cublaslt::{result, sys};

/// Every function of the library that is called here.
const FUNCTIONS: [&str; 14] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetVersion",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutSetAttribute",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmul",
];

/// The oldest version, as the library codes it: 12.0. Earlier ones have the functions too, but code
/// their version in another way.
const NEEDED: usize = 120_000;

/// Reason for which cuBLASLt is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    Missing,
    MissingFunction(&'static str),
    TooOld(usize),
    Refuses(&'static str, String),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str(
                "libcublasLt.so cannot be loaded; install NVIDIA's cuBLAS (libcublas), and name its folder in LD_LIBRARY_PATH if the \
                 loader does not know it",
            ),
            Self::MissingFunction(function) => write!(f, "libcublasLt.so has no function {function}"),
            Self::TooOld(version) => write!(f, "libcublasLt.so is of version {version}, older than {NEEDED}"),
            Self::Refuses(function, status) => write!(f, "{function} says {status}"),
        }
    }
}

/// Loads the library for the lifetime of the process, and checks that all functions exist.
pub(super) fn load() -> Result<(), Unavailable> {
    // SAFETY: loading runs the library's initialisers, which it is made for.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::Missing);
    }
    // SAFETY: the library exists, so this does not panic; and it stays loaded from now on.
    let library = unsafe { sys::culib() };
    for function in FUNCTIONS {
        // SAFETY: the symbol is only looked up. Its type does not matter, because it is not called.
        if unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) }.is_err() {
            return Err(Unavailable::MissingFunction(function));
        }
    }
    // SAFETY: the function is there, and takes nothing.
    let version = unsafe { sys::cublasLtGetVersion() };
    if version < NEEDED { Err(Unavailable::TooOld(version)) } else { Ok(()) }
}

/// The library's state for one device.
pub(super) struct Handle(pub sys::cublasLtHandle_t);

// SAFETY: a handle is not bound to a thread, and the library may be called with one from several at
// once.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// A handle for the device whose context is current.
    pub fn new() -> Result<Self, Unavailable> {
        let refuses = |error: result::CublasError| Unavailable::Refuses("cublasLtCreate", error.to_string());
        result::create_handle().map(Self).map_err(refuses)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle was created, and nobody else has it. That it cannot be destroyed
        // changes nothing here.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looking for the library does not panic on any machine, and its errors have a message.
    #[test]
    fn looking_for_the_library_never_panics() {
        match load() {
            Ok(()) => assert_eq!(load(), Ok(())),
            Err(error) => assert!(error.to_string().starts_with("libcublasLt.so"), "{error}"),
        }
    }
}
