//! How many tensors one launch takes: each launch costs the host some ten microseconds, whatever it does.

use crate::cube::Buffer;

/// Most tensors of a launch. Kernels are written out for each of them, and each number of them is a kernel.
const MOST_TENSORS: usize = 16;

/// Elements that make a launch worth its cost: with so many it does not wait for more tensors, whose memory would be held meanwhile.
const MANY_ELEMENTS: usize = 1 << 25;

/// Tensors that wait to be in one launch.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    members: Vec<T>,
    elements: usize,
    room: usize,
}

impl<T> Waiting<T> {
    /// Room for tensors of which each brings `per_tensor` buffers, like this one; `shared` ones are in each launch.
    pub fn for_launch(like: &Buffer, per_tensor: usize, shared: usize) -> Self {
        // One more has sizes and constants.
        let bindings = like.0.client.properties().hardware.max_bindings as usize;
        let room = (bindings.saturating_sub(shared + 1) / per_tensor).clamp(1, MOST_TENSORS);
        Self { members: Vec::with_capacity(room), elements: 0, room }
    }

    /// Adds a tensor of so many elements; what is to be launched now, if that is enough.
    pub fn add(&mut self, member: T, elements: usize) -> Option<Vec<T>> {
        self.members.push(member);
        self.elements += elements;
        (self.members.len() == self.room || self.elements >= MANY_ELEMENTS).then(|| self.take())
    }

    /// What waits. The room stays.
    pub fn take(&mut self) -> Vec<T> {
        self.elements = 0;
        std::mem::take(&mut self.members)
    }
}
