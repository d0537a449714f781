//! Output buffers and the sharing of one buffer between tasks. The unsafe corner of the crate.

use std::marker::PhantomData;

/// A buffer of `len` floats that `fill` writes in full.
///
/// Fresh memory is not zeroed first: that is a pass over memory which a training step would make
/// for every activation.
pub fn filled(len: usize, fill: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let [values] = all_filled([len], |[values]| fill(values));
    values
}

/// Several buffers that `fill` writes in full, see [`filled`].
pub fn all_filled<const N: usize>(lens: [usize; N], fill: impl FnOnce([&mut [f32]; N])) -> [Vec<f32>; N] {
    let mut buffers = lens.map(|len| {
        let mut values = Vec::with_capacity(len);
        // SAFETY: the capacity is `len`, any bit pattern is a valid f32, and f32 needs no drop.
        // Every caller in this crate writes each element before anything reads it.
        #[allow(clippy::uninit_vec)]
        unsafe {
            values.set_len(len);
        }
        values
    });
    fill(buffers.each_mut().map(Vec::as_mut_slice));
    buffers
}

/// A slice that several tasks write at once, each its own elements.
///
/// Needed where a task's elements are strided (one head of `[b, t, h, d]`), which `chunks_mut`
/// cannot express.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    start: *mut f32,
    len: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a `&mut [f32]` in parts; whoever takes a part promises that no other task has it.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// Takes the whole slice for as long as the parts live.
    pub fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements `start .. start + len`.
    ///
    /// # Safety
    /// No other part that is alive at the same time may overlap this one.
    pub unsafe fn part(self, start: usize, len: usize) -> &'a mut [f32] {
        assert!(start + len <= self.len, "part {start}+{len} of a slice of {}", self.len);
        // SAFETY: in bounds by the assertion, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// Pointer to element `start`, of which the caller uses a strided block ending before `end`.
    pub fn block(self, start: usize, end: usize) -> *mut f32 {
        assert!(start <= end && end <= self.len, "block {start}..{end} of a slice of {}", self.len);
        self.start.wrapping_add(start)
    }
}
