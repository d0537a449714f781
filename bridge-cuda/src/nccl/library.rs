//! Checks whether the CUDA driver and NCCL can be loaded, before anything calls them: the bindings
//! load libraries at the first call and panic if one is missing.

use cudarc::driver::CudaContext;
use cudarc::{driver, nccl};

use super::error::NcclInitError;

/// The oldest version whose communicators can be polled and aborted while they are created.
const NEEDED: &str = "2.14";
const NEEDED_CODE: i32 = 21_400;

const DRIVER: (&str, &str) = (
    "the CUDA driver (libcuda)",
    "install the NVIDIA driver, and in a container pass the GPU through (docker run --gpus all)",
);
const NCCL: (&str, &str) = (
    "the NCCL library (libnccl.so)",
    "install libnccl2 and libnccl-dev (Debian, Ubuntu) or libnccl-devel (Fedora, RHEL) from NVIDIA's repository, and if it is elsewhere \
     name its folder in LD_LIBRARY_PATH; where only libnccl.so.2 is installed, a link libnccl.so to it will do",
);

/// Every function of NCCL that is called here.
const FUNCTIONS: [&str; 17] = [
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclCommInitRankConfig",
    "ncclCommGetAsyncError",
    "ncclCommFinalize",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclGroupStart",
    "ncclGroupEnd",
    "ncclAllReduce",
    "ncclReduceScatter",
    "ncclAllGather",
    "ncclBroadcast",
    "ncclSend",
    "ncclRecv",
];

/// Number of CUDA devices that this process sees.
///
/// # Errors
/// If the CUDA driver is missing or reports an error (it does when there is no device at all).
pub fn device_count() -> Result<usize, NcclInitError> {
    // SAFETY: loading runs the library's initialisers; the driver's library is made to be loaded
    // and unloaded at any time.
    require(unsafe { driver::sys::is_culib_present() }, DRIVER.0, DRIVER.1)?;
    let count = CudaContext::device_count().map_err(|error| driver_error(&error))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Checks that NCCL can be called.
pub(super) fn check_nccl() -> Result<(), NcclInitError> {
    // SAFETY: as for the driver.
    require(unsafe { nccl::sys::is_culib_present() }, NCCL.0, NCCL.1)?;
    // SAFETY: the library exists, so this does not panic; and it stays loaded from now on.
    let library = unsafe { nccl::sys::culib() };
    for function in FUNCTIONS {
        // SAFETY: the symbol is only looked up. Its type does not matter, because it is not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) };
        if found.is_err() {
            return Err(NcclInitError::MissingFunction { function, needed: NEEDED });
        }
    }
    let code = nccl::result::get_nccl_version().map_err(|error| NcclInitError::Library {
        library: "NCCL",
        message: format!("its version cannot be read ({:?})", error.0),
    })?;
    check_version(code)
}

fn require(present: bool, library: &'static str, advice: &'static str) -> Result<(), NcclInitError> {
    if present { Ok(()) } else { Err(NcclInitError::MissingLibrary { library, advice }) }
}

fn check_version(code: i32) -> Result<(), NcclInitError> {
    if code >= NEEDED_CODE {
        return Ok(());
    }
    Err(NcclInitError::TooOld { found: version_name(code), needed: NEEDED })
}

/// Versions are coded as `major * 10000 + minor * 100 + patch`, before 2.9 as `major * 1000 + minor
/// * 100 + patch`.
fn version_name(code: i32) -> String {
    let major = if code >= 10_000 { code / 10_000 } else { code / 1000 };
    let rest = if code >= 10_000 { code % 10_000 } else { code % 1000 };
    format!("{major}.{}.{}", rest / 100, rest % 100)
}

pub(super) fn driver_error(error: &driver::DriverError) -> NcclInitError {
    NcclInitError::Library { library: "the CUDA driver", message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_what_to_install() {
        assert!(require(true, NCCL.0, NCCL.1).is_ok());
        let error = require(false, NCCL.0, NCCL.1).unwrap_err().to_string();
        assert!(error.starts_with("the NCCL library (libnccl.so) cannot be loaded; install libnccl2"), "{error}");
        let error = require(false, DRIVER.0, DRIVER.1).unwrap_err().to_string();
        assert!(error.contains("install the NVIDIA driver"), "{error}");
    }

    #[test]
    fn old_versions_are_refused_by_name() {
        assert!(check_version(21_400).is_ok());
        assert!(check_version(23_003).is_ok());
        let error = check_version(21_304).unwrap_err().to_string();
        assert_eq!(error, "NCCL 2.13.4 is installed; install NCCL 2.14 or newer");
        assert_eq!(version_name(2708), "2.7.8");
    }

    /// The checks do not panic on any machine.
    #[test]
    fn probing_never_panics() {
        match device_count() {
            Ok(count) => assert!(count > 0),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        let _ = check_nccl();
    }
}
