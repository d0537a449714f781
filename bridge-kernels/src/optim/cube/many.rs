//! Number of tensors in one launch. A launch costs the host about ten microseconds for any amount
//! of work.

use crate::cube::Buffer;

/// Most tensors of a launch. Kernels are written out for each of them, and each number of them is a
/// kernel.
const MOST_TENSORS: usize = 16;

/// Elements that make a launch worth its cost: a launch of this size does not wait for more
/// tensors, whose memory would stay in use.
const MANY_ELEMENTS: usize = 1 << 25;

/// Most tensors of a launch of which each brings `per_tensor` buffers, like this one; `shared` ones
/// are in each launch.
pub(super) fn room(like: &Buffer, per_tensor: usize, shared: usize) -> usize {
    // One more has sizes and constants.
    let bindings = like.0.client.properties().hardware.max_bindings as usize;
    (bindings.saturating_sub(shared + 1) / per_tensor).clamp(1, MOST_TENSORS)
}

/// Tensors that wait for a launch, grouped by the properties that all tensors of a launch share.
pub(super) struct Queues<K, T>(Vec<Queue<K, T>>);

struct Queue<K, T> {
    kind: K,
    members: Vec<T>,
    elements: usize,
}

impl<K, T> Default for Queues<K, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: PartialEq, T> Queues<K, T> {
    /// Adds a tensor of `elements` elements. Returns the launch that is due, if it is large enough
    /// or there is [`room`] for no more.
    pub fn add(&mut self, kind: K, member: T, elements: usize, room: usize) -> Option<(&K, Vec<T>)> {
        let place = self.0.iter().position(|queue| queue.kind == kind).unwrap_or_else(|| {
            self.0.push(Queue { kind, members: Vec::with_capacity(room), elements: 0 });
            self.0.len() - 1
        });
        let Queue { kind, members, elements: waiting } = &mut self.0[place];
        members.push(member);
        *waiting += elements;
        (members.len() == room || *waiting >= MANY_ELEMENTS).then(|| {
            *waiting = 0;
            (&*kind, std::mem::take(members))
        })
    }

    /// All that waits.
    pub fn take(&mut self) -> impl Iterator<Item = (K, Vec<T>)> + use<K, T> {
        std::mem::take(&mut self.0).into_iter().map(|queue| (queue.kind, queue.members))
    }
}
