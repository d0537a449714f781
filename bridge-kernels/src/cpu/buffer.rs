//! Output buffers and the sharing of one buffer between tasks. The unsafe corner of the crate.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

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
    let mut buffers = lens.map(arbitrary);
    fill(buffers.each_mut().map(Vec::as_mut_slice));
    buffers
}

/// A buffer of `len` floats of arbitrary values.
fn arbitrary(len: usize) -> Vec<f32> {
    let mut values: Vec<f32> = Vec::with_capacity(len);
    freeze(values.spare_capacity_mut());
    // SAFETY: the capacity is at least `len`, and `freeze` has initialised it with valid floats.
    unsafe { values.set_len(len) };
    values
}

/// Initialises memory with the bits that it has. The empty assembly block takes a pointer to the
/// memory and is opaque: the compiler has to assume that it stores to all of it. So the memory is
/// not uninitialised afterwards, and no pass over it is made. Any bits are a valid `f32`.
#[cfg(not(miri))]
fn freeze(memory: &mut [MaybeUninit<f32>]) {
    // SAFETY: the block has no instruction, so it changes no register, flag or memory.
    unsafe { std::arch::asm!("/* {0} */", in(reg) memory.as_mut_ptr(), options(nostack, preserves_flags)) };
}

/// Initialises memory with zeros: the interpreter knows no assembly.
#[cfg(miri)]
fn freeze(memory: &mut [MaybeUninit<f32>]) {
    memory.fill(MaybeUninit::new(0.0));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_what_was_filled_in() {
        let [a, b] = all_filled([3, 0], |[a, b]| {
            assert_eq!((a.len(), b.len()), (3, 0));
            a.copy_from_slice(&[1.0, 2.0, 3.0]);
        });
        assert_eq!((a, b), (vec![1.0, 2.0, 3.0], Vec::new()));
        // Unwritten elements have an arbitrary but stable value.
        let values = filled(1000, |_| {});
        assert_eq!(
            values.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
            values.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        );
    }
}
