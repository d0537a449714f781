//! Marks for NVIDIA's profiler (`nsys`): ranges by NVTX, and the switch between which it records.
//! Both libraries are loaded at run time.

use std::ffi::{CString, c_char, c_int};

use libloading::{Library, Symbol};

use super::{call, load};
use crate::timers::Marks;

/// The libraries' names on Linux: ranges come with CUDA's toolkit, the switch with the driver.
const RANGES: &str = "libnvToolsExt.so.1";
const DRIVER: &str = "libcuda.so.1";

/// NVTX's ranges of the calling thread.
#[derive(Debug)]
pub struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    /// Kept for as long as its functions.
    _library: Library,
}

impl Nvtx {
    /// Loads the library.
    pub fn load() -> Result<Self, String> {
        Self::of_library(RANGES)
    }

    fn of_library(path: &str) -> Result<Self, String> {
        let library = load(path)?;
        // SAFETY: both functions have the signatures of NVTX's header.
        let found =
            unsafe { library.get(b"nvtxRangePushA").and_then(|push| Ok((*push, *library.get(b"nvtxRangePop")?))) };
        let (push, pop) = found.map_err(|error| format!("{path}: {error}"))?;
        Ok(Self { push, pop, _library: library })
    }
}

impl Marks for Nvtx {
    fn push(&self, name: &str) {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the text ends with zero, and the function copies it.
        unsafe { (self.push)(name.as_ptr()) };
    }

    fn pop(&self) {
        // SAFETY: it takes nothing, and is harmless where no range is open.
        unsafe { (self.pop)() };
    }
}

/// Start and stop signal for `nsys profile --capture-range=cudaProfilerApi`.
#[derive(Debug)]
pub struct ProfilerSwitch(Library);

impl ProfilerSwitch {
    /// Loads the driver's library.
    pub fn load() -> Result<Self, String> {
        load(DRIVER).map(Self)
    }

    /// Begins to record.
    pub fn start(&self) -> Result<(), String> {
        self.call("cuProfilerStart")
    }

    /// Records no more.
    pub fn stop(&self) -> Result<(), String> {
        self.call("cuProfilerStop")
    }

    fn call(&self, name: &str) -> Result<(), String> {
        // SAFETY: both functions take nothing and return a status.
        unsafe { call(&self.0, name, |function: Symbol<unsafe extern "C" fn() -> c_int>| function()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::stand_in;
    use super::*;
    use crate::timers::{Labels, TimerLevel, Timers};

    /// Libraries with NVIDIA's names, which record the calls.
    const STAND_IN: &str = r#"
        use std::ffi::{CStr, c_char};
        use std::sync::Mutex;
        static CALLS: Mutex<String> = Mutex::new(String::new());
        fn note(text: &str) -> i32 {
            let mut calls = CALLS.lock().unwrap();
            calls.push_str(text);
            calls.push('\n');
            0
        }
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn nvtxRangePushA(name: *const c_char) -> i32 {
            note(unsafe { CStr::from_ptr(name) }.to_str().unwrap())
        }
        #[unsafe(no_mangle)]
        pub extern "C" fn nvtxRangePop() -> i32 { note("pop") }
        #[unsafe(no_mangle)]
        pub extern "C" fn cuProfilerStart() -> i32 { note("start") }
        #[unsafe(no_mangle)]
        pub extern "C" fn cuProfilerStop() -> i32 { 4 }
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn told(out: *mut u8, room: usize) -> usize {
            let calls = CALLS.lock().unwrap();
            assert!(calls.len() <= room);
            unsafe { out.copy_from_nonoverlapping(calls.as_ptr(), calls.len()) };
            calls.len()
        }
    "#;

    fn told(path: &str) -> Vec<String> {
        let mut text = vec![0; 4096];
        let library = load(path).unwrap();
        // SAFETY: the stand-in's function has this signature.
        let length = unsafe {
            let told = library.get::<unsafe extern "C" fn(*mut u8, usize) -> usize>(b"told").unwrap();
            told(text.as_mut_ptr(), text.len())
        };
        String::from_utf8_lossy(&text[..length]).lines().map(str::to_owned).collect()
    }

    #[test]
    fn timers_are_ranges_while_they_are_marked() {
        let folder = tempfile::tempdir().unwrap();
        let path = stand_in(folder.path(), "nvtx", STAND_IN);
        let timers = Timers::new(None);
        drop(timers.start("before", TimerLevel::Phase));
        // Held until the end: an unreferenced library is unloaded, and loses its state.
        let ranges = Arc::new(Nvtx::of_library(&path).unwrap());
        timers.spans().mark_with(Some(Arc::clone(&ranges) as _));
        {
            let _step = timers.span("step", Labels::default());
            drop(timers.start("forward-compute", TimerLevel::MicroBatch));
            let _segment = timers.spans().mark(|| "mlp-backward of layer 1".to_owned());
            timers.spans().mark_next(|| "attention-backward of layer 1".to_owned());
        }
        timers.spans().mark_with(None);
        drop(timers.start("behind", TimerLevel::Phase));
        let expected = [
            "step",
            "forward-compute",
            "pop",
            "mlp-backward of layer 1",
            "pop",
            "attention-backward of layer 1",
            "pop",
            "pop",
        ];
        assert_eq!(told(&path), expected);
        drop(ranges);
    }

    #[test]
    fn the_switch_tells_what_the_driver_answers() {
        let folder = tempfile::tempdir().unwrap();
        let path = stand_in(folder.path(), "cuda", STAND_IN);
        let switch = ProfilerSwitch(load(&path).unwrap());
        assert_eq!(switch.start(), Ok(()));
        assert_eq!(switch.stop(), Err("cuProfilerStop answers 4".to_owned()));
        assert_eq!(told(&path), ["start"]);
        assert!(Nvtx::of_library("libnothing.so.7").unwrap_err().starts_with("libnothing.so.7 cannot be loaded"));
    }
}
