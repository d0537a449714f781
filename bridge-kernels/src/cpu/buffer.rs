//! Output buffers and the sharing of one buffer between tasks. The unsafe corner of the crate.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use bytemuck::Pod;

/// A buffer of `len` elements that `fill` writes in full.
///
/// Fresh memory is not zeroed first: that is a pass over memory which a training step would make
/// for every activation.
pub fn filled<E: Pod>(len: usize, fill: impl FnOnce(&mut [E])) -> Vec<E> {
    let [values] = all_filled([len], |[values]| fill(values));
    values
}

/// Several buffers that `fill` writes in full, see [`filled`].
pub fn all_filled<E: Pod, const N: usize>(lens: [usize; N], fill: impl FnOnce([&mut [E]; N])) -> [Vec<E>; N] {
    let mut buffers = lens.map(arbitrary);
    fill(buffers.each_mut().map(Vec::as_mut_slice));
    buffers
}

/// A buffer of `len` arbitrary values.
pub fn arbitrary<E: Pod>(len: usize) -> Vec<E> {
    let mut values: Vec<E> = Vec::with_capacity(len);
    freeze(values.spare_capacity_mut());
    // SAFETY: the capacity is at least `len`, and `freeze` has initialised it with valid values.
    unsafe { values.set_len(len) };
    values
}

/// Initialises memory with the bits that it has. The empty assembly block takes a pointer to the
/// memory and is opaque: the compiler has to assume that it stores to all of it. So the memory is
/// not uninitialised afterwards, and no pass over it is made. Any bits are valid.
#[cfg(not(miri))]
fn freeze<E: Pod>(memory: &mut [MaybeUninit<E>]) {
    // SAFETY: the block has no instruction, so it changes no register, flag or memory.
    unsafe { std::arch::asm!("/* {0} */", in(reg) memory.as_mut_ptr(), options(nostack, preserves_flags)) };
}

/// Initialises memory with zeros: the interpreter knows no assembly.
#[cfg(miri)]
fn freeze<E: Pod>(memory: &mut [MaybeUninit<E>]) {
    memory.fill(MaybeUninit::new(E::zeroed()));
}

/// A slice that several tasks write at once, each its own elements.
///
/// Needed where a task's elements are strided (one head of `[b, t, h, d]`), which `chunks_mut`
/// cannot express.
#[derive(Clone, Copy)]
pub struct Shared<'a, E = f32> {
    start: *mut E,
    len: usize,
    slice: PhantomData<&'a mut [E]>,
}

// SAFETY: it is a `&mut [E]` in parts; whoever takes a part promises that no other task has it.
unsafe impl<E: Send> Send for Shared<'_, E> {}
// SAFETY: as above.
unsafe impl<E: Send> Sync for Shared<'_, E> {}

impl<'a, E> Shared<'a, E> {
    /// Takes the whole slice for as long as the parts live.
    pub fn new(slice: &'a mut [E]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements `start .. start + len`.
    ///
    /// # Safety
    /// No other part that is alive at the same time may overlap this one.
    pub unsafe fn part(self, start: usize, len: usize) -> &'a mut [E] {
        assert!(start + len <= self.len, "part {start}+{len} of a slice of {}", self.len);
        // SAFETY: in bounds by the assertion, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// Pointer to element `start`, of which the caller uses a strided block ending before `end`.
    pub fn block(self, start: usize, end: usize) -> *mut E {
        assert!(start <= end && end <= self.len, "block {start}..{end} of a slice of {}", self.len);
        self.start.wrapping_add(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_what_was_filled_in() {
        let [a, b]: [Vec<f32>; 2] = all_filled([3, 0], |[a, b]| {
            assert_eq!((a.len(), b.len()), (3, 0));
            a.copy_from_slice(&[1.0, 2.0, 3.0]);
        });
        assert_eq!((a, b), (vec![1.0, 2.0, 3.0], Vec::new()));
        // Unwritten elements have an arbitrary but stable value.
        let values: Vec<f32> = filled(1000, |_| {});
        assert_eq!(
            values.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
            values.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        );
    }
}
