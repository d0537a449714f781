//! Readings of NVIDIA's management library (NVML) for a GPU: energy since the driver was loaded,
//! and memory in use by all processes. The library comes with the driver and is loaded at the first
//! request, so that builds without CUDA can use it too.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::{Library, Symbol};

use super::{call, load};

/// The library's name on Linux.
const LIBRARY: &str = "libnvidia-ml.so.1";

type Device = *mut c_void;

/// The memory of a device, in the library's layout (`nvmlMemory_t`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// A GPU, and the library that knows it.
#[derive(Debug)]
pub struct Gpu {
    library: Library,
    device: Device,
}

// SAFETY: the library may be called from any thread (NVML's manual, "Thread safety"), and the
// handle is a number to us.
unsafe impl Send for Gpu {}

impl Gpu {
    /// The GPU that CUDA calls `index` in this process.
    pub fn open(index: usize) -> Result<Self, String> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        Self::of_library(LIBRARY, &Name::from_index(index, visible.as_deref())?)
    }

    fn of_library(path: &str, name: &Name) -> Result<Self, String> {
        let mut gpu = Self { library: load(path)?, device: std::ptr::null_mut() };
        let mut device: Device = std::ptr::null_mut();
        // SAFETY: the functions have the signatures of NVML's header. The second writes one handle,
        // and texts end with zero.
        unsafe {
            call(&gpu.library, "nvmlInit_v2", |init: Symbol<unsafe extern "C" fn() -> c_int>| init())?;
            match name {
                Name::Index(index) => {
                    type Find = unsafe extern "C" fn(c_uint, *mut Device) -> c_int;
                    let find = |find: Symbol<Find>| find(*index, &raw mut device);
                    call(&gpu.library, "nvmlDeviceGetHandleByIndex_v2", find)?;
                }
                Name::Uuid(uuid) => {
                    type Find = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
                    let find = |find: Symbol<Find>| find(uuid.as_ptr(), &raw mut device);
                    call(&gpu.library, "nvmlDeviceGetHandleByUUID", find)?;
                }
            }
        }
        gpu.device = device;
        Ok(gpu)
    }

    /// Reads what the function `name` writes.
    ///
    /// # Safety
    /// The function takes a device, and a place for one `T`.
    unsafe fn read<T: Default>(&self, name: &str) -> Result<T, String> {
        let mut value = T::default();
        // SAFETY: the caller says that the function has this signature.
        unsafe {
            call(&self.library, name, |read: Symbol<unsafe extern "C" fn(Device, *mut T) -> c_int>| {
                read(self.device, &raw mut value)
            })?;
        }
        Ok(value)
    }

    /// Millijoules since the driver was loaded.
    pub fn millijoules(&self) -> Result<u64, String> {
        // SAFETY: the function has this signature.
        unsafe { self.read::<c_ulonglong>("nvmlDeviceGetTotalEnergyConsumption") }
    }

    /// Bytes in use, by all processes.
    pub fn used_bytes(&self) -> Result<u64, String> {
        // SAFETY: the function has this signature, and the structure this layout.
        unsafe { self.read::<Memory>("nvmlDeviceGetMemoryInfo") }.map(|memory| memory.used)
    }
}

/// Name of a device for the library, which ignores `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Index(c_uint),
    Uuid(CString),
}

impl Name {
    /// The device that CUDA calls `index` where these are visible.
    fn from_index(index: usize, visible: Option<&str>) -> Result<Self, String> {
        let named = match visible {
            None => index.to_string(),
            Some(list) => {
                let name = list.split(',').nth(index).map(str::trim).filter(|name| !name.is_empty());
                name.ok_or_else(|| format!("CUDA_VISIBLE_DEVICES = {list:?} has no device {index}"))?.to_owned()
            }
        };
        match named.parse() {
            Ok(number) => Ok(Self::Index(number)),
            Err(_) => CString::new(named).map(Self::Uuid).map_err(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::stand_in;
    use super::*;

    /// A library with NVML's names: two devices, of which the second counts no energy.
    const STAND_IN: &str = r#"
        use std::ffi::{CStr, c_char};
        use std::sync::atomic::{AtomicU64, Ordering};
        static READS: AtomicU64 = AtomicU64::new(0);
        #[unsafe(no_mangle)]
        pub extern "C" fn nvmlInit_v2() -> i32 { 0 }
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, out: *mut usize) -> i32 {
            if index > 1 { return 2; }
            unsafe { *out = index as usize + 1 };
            0
        }
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut usize) -> i32 {
            if unsafe { CStr::from_ptr(uuid) }.to_bytes() != b"GPU-7" { return 6; }
            unsafe { *out = 1 };
            0
        }
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(device: usize, out: *mut u64) -> i32 {
            if device == 2 { return 3; }
            unsafe { *out = 5_000_000_000 + 2500 * READS.fetch_add(1, Ordering::Relaxed) };
            0
        }
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: usize, out: *mut [u64; 3]) -> i32 {
            unsafe { *out = [80 << 30, 0, (device as u64) << 30] };
            0
        }
    "#;

    #[test]
    fn a_gpu_is_asked_by_its_number_or_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = stand_in(folder.path(), "nvml", STAND_IN);
        let first = Gpu::of_library(&path, &Name::Index(0)).unwrap();
        let before = first.millijoules().unwrap();
        assert_eq!((first.millijoules().unwrap() - before, first.used_bytes()), (2500, Ok(1 << 30)));
        let second = Gpu::of_library(&path, &Name::Index(1)).unwrap();
        assert_eq!(second.millijoules().unwrap_err(), "nvmlDeviceGetTotalEnergyConsumption answers 3");
        assert_eq!(second.used_bytes(), Ok(2 << 30));
        assert!(
            Gpu::of_library(&path, &Name::Index(2)).unwrap_err().contains("nvmlDeviceGetHandleByIndex_v2 answers 2")
        );
        assert!(Gpu::of_library(&path, &Name::Uuid(c"GPU-7".into())).is_ok());
        assert!(Gpu::of_library(&path, &Name::Uuid(c"GPU-8".into())).is_err());
        let error = Gpu::of_library("libnothing.so.7", &Name::Index(0)).unwrap_err();
        assert!(error.starts_with("libnothing.so.7 cannot be loaded"), "{error}");
    }

    #[test]
    fn visible_devices_are_numbered_anew() {
        let of = |index, visible| Name::from_index(index, visible);
        assert_eq!(of(3, None), Ok(Name::Index(3)));
        assert_eq!(of(1, Some("5, 2")), Ok(Name::Index(2)));
        assert_eq!(of(0, Some("GPU-7")), Ok(Name::Uuid(c"GPU-7".into())));
        assert!(of(1, Some("5")).is_err() && of(0, Some("")).is_err());
    }
}
