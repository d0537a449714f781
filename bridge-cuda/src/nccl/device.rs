//! Collectives on device memory: NCCL's own, without a copy through the host.

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};

use super::carrier::CarrierError;
use super::cuda::CudaFabric;
use super::handshake::{Message, shake_hands};
use super::raw::{GroupedCalls, Span};
use super::staged::Staged;
use bridge_dist::comm::device::Extent;
use bridge_dist::comm::transport::{GroupMember, OpKind, Signature, lock};
use bridge_dist::comm::{CommError, CommErrorKind, DType, Element, ReduceOp};

/// Device memory that an operation reads. Made by [`DeviceCollectives::read`] and its relatives.
#[derive(Debug)]
pub struct DeviceBuffer<'a> {
    span: Span,
    /// Tells the memory's owner, when dropped, that it was read.
    _used: Option<SyncOnDrop<'a>>,
}

/// Device memory that an operation writes. Made by [`DeviceCollectives::write`] and its relatives.
#[derive(Debug)]
pub struct DeviceBufferMut<'a> {
    span: Span,
    /// Tells the memory's owner, when dropped, that it was written.
    _used: Option<SyncOnDrop<'a>>,
    _unique: PhantomData<&'a mut [u8]>,
}

macro_rules! extent {
    ($($type:ident),*) => { $(
        impl $type<'_> {
            /// The element type.
            pub fn dtype(&self) -> DType {
                self.span.dtype
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                self.span.len
            }

            /// True if there are no elements.
            pub fn is_empty(&self) -> bool {
                self.span.len == 0
            }
        }

        impl From<&$type<'_>> for Extent {
            fn from(buffer: &$type<'_>) -> Self {
                Self { dtype: buffer.span.dtype, len: buffer.span.len }
            }
        }
    )* };
}
extent!(DeviceBuffer, DeviceBufferMut);

impl DeviceBuffer<'_> {
    /// Views device memory of another owner (a tensor library, say) as `len` elements.
    ///
    /// # Safety
    /// Until the buffer is dropped, `pointer` is the address of that many elements on the
    /// communicator's device, in its primary context; what wrote them is complete; and nothing
    /// writes them meanwhile.
    pub unsafe fn from_raw(pointer: CUdeviceptr, dtype: DType, len: usize) -> Self {
        Self { span: Span { pointer, dtype, len }, _used: None }
    }
}

impl DeviceBufferMut<'_> {
    /// Views device memory of another owner (a tensor library, say) as `len` elements to be
    /// written.
    ///
    /// # Safety
    /// Until the buffer is dropped, `pointer` is the address of that many elements on the
    /// communicator's device, in its primary context; what used them before is complete; and
    /// nothing else uses them meanwhile.
    pub unsafe fn from_raw(pointer: CUdeviceptr, dtype: DType, len: usize) -> Self {
        Self { span: Span { pointer, dtype, len }, _used: None, _unique: PhantomData }
    }
}

/// The collectives of an [`NcclCommunicator`](super::NcclCommunicator) on device memory.
///
/// # Contract
/// The contract of [`Communicator`](bridge_dist::comm::Communicator), with these differences:
/// - NCCL combines elements in an order that depends on the number of ranks, the length and the
///   nodes. Results are the same on all ranks, and usually from run to run on the same nodes, but
///   **not bit-identical to those of the other communicators**: float sums may differ in the last
///   bits, a sum of bf16 may be rounded at every step, an average may be a sum of scaled elements,
///   and NCCL decides whether a NaN survives `Max` and `Min`. Reduce host memory where this
///   matters.
/// - Messages have no tags: those between two ranks match in the order of their calls. A send may
///   wait for its receive.
/// - Operations share the order of the blocking collectives of host memory, and return when the
///   output is written.
/// - Ranks compare signatures, as for host memory: a mismatch is an error on every rank, not a
///   hang.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCollectives<'a> {
    staged: &'a Staged<CudaFabric>,
    stream: &'a Arc<CudaStream>,
}

impl<'a> DeviceCollectives<'a> {
    pub(super) fn new(staged: &'a Staged<CudaFabric>, stream: &'a Arc<CudaStream>) -> Self {
        Self { staged, stream }
    }

    /// The device's context, to allocate memory in.
    pub fn context(&self) -> &'a Arc<CudaContext> {
        self.stream.context()
    }

    /// Borrows a slice or view to read it in one operation, which waits for work on the slice's
    /// stream.
    ///
    /// # Errors
    /// If the memory is of another device, or the driver reports an error.
    pub fn read<'b, T: Element>(&'b self, memory: &'b impl DevicePtr<T>) -> Result<DeviceBuffer<'b>, CommError> {
        self.follow(memory.stream())?;
        let len = memory.len();
        let (pointer, used) = memory.device_ptr(self.stream);
        Ok(DeviceBuffer { span: Span { pointer, dtype: T::DTYPE, len }, _used: Some(used) })
    }

    /// Borrows a slice or view to write it in one operation, which waits for work on the slice's
    /// stream.
    ///
    /// # Errors
    /// If the memory is of another device, or the driver reports an error.
    pub fn write<'b, T: Element>(
        &'b self,
        memory: &'b mut impl DevicePtrMut<T>,
    ) -> Result<DeviceBufferMut<'b>, CommError> {
        self.follow(memory.stream())?;
        let len = memory.len();
        let (pointer, used) = memory.device_ptr_mut(self.stream);
        let span = Span { pointer, dtype: T::DTYPE, len };
        Ok(DeviceBufferMut { span, _used: Some(used), _unique: PhantomData })
    }

    /// Like [`read`](Self::read), for bytes that are elements of type `dtype`.
    ///
    /// # Errors
    /// As for `read`; also if the bytes are not a whole number of elements.
    pub fn read_bytes<'b>(
        &'b self,
        dtype: DType,
        memory: &'b impl DevicePtr<u8>,
    ) -> Result<DeviceBuffer<'b>, CommError> {
        let mut buffer = self.read(memory)?;
        buffer.span = self.cast(buffer.span, dtype)?;
        Ok(buffer)
    }

    /// Like [`write`](Self::write), for bytes that are elements of type `dtype`.
    ///
    /// # Errors
    /// As for `write`; also if the bytes are not a whole number of elements.
    pub fn write_bytes<'b>(
        &'b self,
        dtype: DType,
        memory: &'b mut impl DevicePtrMut<u8>,
    ) -> Result<DeviceBufferMut<'b>, CommError> {
        let mut buffer = self.write(memory)?;
        buffer.span = self.cast(buffer.span, dtype)?;
        Ok(buffer)
    }

    /// Replaces `data` by the reduction over all ranks.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; an average of integers is an invalid argument.
    pub fn all_reduce(&self, data: &mut DeviceBufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let signature = Signature::reducing(OpKind::AllReduce, data.dtype(), data.len(), op);
        self.staged.member.rank_context().check_reduce(&signature)?;
        let span = data.span;
        // SAFETY: the buffer is valid and borrowed until the call has completed, which `collective`
        // waits for.
        self.collective(&signature, |group, stream| unsafe { group.all_reduce(span, span, op, stream) })
    }

    /// Reduces over all ranks and leaves the `rank`-th of `size` equal parts in `output`.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; `input` must be `size` times as long as `output`.
    pub fn reduce_scatter(
        &self,
        input: &DeviceBuffer<'_>,
        output: &mut DeviceBufferMut<'_>,
        op: ReduceOp,
    ) -> Result<(), CommError> {
        let signature = self.staged.member.rank_context().reduce_scatter(input, &*output, op)?;
        let (from, to) = (input.span, output.span);
        // SAFETY: as above; the lengths were checked.
        self.collective(&signature, |group, stream| unsafe { group.reduce_scatter(from, to, op, stream) })
    }

    /// Concatenates the inputs of all ranks in rank order.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; `output` must be `size` times as long as `input`.
    pub fn all_gather(&self, input: &DeviceBuffer<'_>, output: &mut DeviceBufferMut<'_>) -> Result<(), CommError> {
        let signature = self.staged.member.rank_context().all_gather(input, &*output)?;
        let (from, to) = (input.span, output.span);
        // SAFETY: as above; the lengths were checked.
        self.collective(&signature, |group, stream| unsafe { group.all_gather(from, to, stream) })
    }

    /// Copies `root`'s data to all ranks.
    ///
    /// # Errors
    /// See [`CommErrorKind`].
    pub fn broadcast(&self, data: &mut DeviceBufferMut<'_>, root: usize) -> Result<(), CommError> {
        let signature = self.staged.member.rank_context().broadcast(&*data, root)?;
        let span = data.span;
        // SAFETY: as above.
        self.collective(&signature, |group, stream| unsafe { group.broadcast(span, root, stream) })
    }

    /// Sends the `j`-th of `size` equal parts of `input` to rank `j`; `output` holds the data from
    /// each rank, in rank order.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; both lengths are equal and divisible by `size`.
    pub fn all_to_all(&self, input: &DeviceBuffer<'_>, output: &mut DeviceBufferMut<'_>) -> Result<(), CommError> {
        let signature = self.staged.member.rank_context().all_to_all(input, &*output)?;
        let (input, output, size) = (input.span, output.span, self.staged.member.size());
        self.collective(&signature, |group, stream| {
            for peer in 0..size {
                let (send, receive) = (part_of(input, size, peer), part_of(output, size, peer));
                // SAFETY: as above; parts lie within the buffers, and every send has its receive.
                unsafe {
                    group.send(send, peer, stream)?;
                    group.recv(receive, peer, stream)?;
                }
            }
            Ok(())
        })
    }

    /// Sends a message to another rank.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; `to` is another rank.
    pub fn send(&self, data: &DeviceBuffer<'_>, to: usize) -> Result<(), CommError> {
        self.send_receive(&[(data, to)], &mut [])
    }

    /// Receives a message that fills `data` exactly.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; a message of another length or type is a mismatch on both ranks.
    pub fn recv(&self, data: &mut DeviceBufferMut<'_>, from: usize) -> Result<(), CommError> {
        self.send_receive(&[], &mut [(data, from)])
    }

    /// Sends and receives at the same time, as neighbours in a ring or pipeline do, so that no rank
    /// has to be first.
    ///
    /// # Errors
    /// As for [`send`](Self::send) and [`recv`](Self::recv).
    pub fn send_receive(
        &self,
        sends: &[(&DeviceBuffer<'_>, usize)],
        receives: &mut [(&mut DeviceBufferMut<'_>, usize)],
    ) -> Result<(), CommError> {
        let member = &self.staged.member;
        let sends = sends.iter().map(|(buffer, to)| (OpKind::Send, buffer.span, *to));
        let receives = receives.iter().map(|(buffer, from)| (OpKind::Recv, buffer.span, *from));
        let spans: Vec<(OpKind, Span, usize)> = sends.chain(receives).collect();
        let messages =
            spans.iter().map(|(kind, span, peer)| Message::new(member, *kind, (span.dtype, span.len), *peer));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let Some(first) = messages.first() else { return Ok(()) };
        let mut lane = lock(&self.staged.blocking);
        shake_hands(member, &self.staged.controls.background, &messages)?;
        if spans.iter().all(|(_, span, _)| span.len == 0) {
            return Ok(());
        }
        let moved = lane.carrier.wire.run(|group, stream| {
            for (kind, span, peer) in spans.iter().filter(|(_, span, _)| span.len > 0) {
                // SAFETY: the buffer is valid and borrowed until the call has completed, and the
                // peer has said that it takes part.
                unsafe {
                    match kind {
                        OpKind::Send => group.send(*span, *peer, stream)?,
                        _ => group.recv(*span, *peer, stream)?,
                    }
                }
            }
            Ok(())
        });
        moved.map_err(|error| match error {
            // Only the peers take part, so missing ranks cannot be found by a collective.
            CarrierError::Stalled(waited) => {
                lane.carrier.wire.abort();
                let missing = messages.iter().map(|message| (message.peer, message.signature.to_string()));
                member.fail(&first.signature, CommErrorKind::Timeout { waited, missing: missing.collect() })
            }
            failed @ CarrierError::Failed(_) => lane.failed(&first.signature, failed),
        })
    }

    /// Runs calls that all ranks make, once they have agreed; nothing if there are no elements.
    fn collective(
        &self,
        signature: &Signature,
        calls: impl FnOnce(&mut GroupedCalls, &CudaStream) -> Result<(), CarrierError>,
    ) -> Result<(), CommError> {
        let mut lane = lock(&self.staged.blocking);
        lane.agreement.agree(signature)?;
        if signature.len == Some(0) {
            return Ok(());
        }
        let moved = lane.carrier.wire.run(calls);
        moved.map_err(|error| lane.failed(signature, error))
    }

    /// Makes the communicator's stream wait for the current work on `other`.
    fn follow(&self, other: &Arc<CudaStream>) -> Result<(), CommError> {
        if other.context() != self.context() {
            return Err(self.refused(CommErrorKind::InvalidArgument {
                what: "device of the memory",
                expected: format!("device {}, in the communicator's context", self.context().ordinal()),
                found: format!("device {}, in another context", other.context().ordinal()),
            }));
        }
        self.stream.join(other).map_err(|error| {
            self.refused(CommErrorKind::Transport { library: "the CUDA driver", message: error.to_string() })
        })
    }

    fn cast(&self, bytes: Span, dtype: DType) -> Result<Span, CommError> {
        if bytes.len.is_multiple_of(dtype.size()) {
            return Ok(Span { dtype, len: bytes.len / dtype.size(), ..bytes });
        }
        Err(self.refused(CommErrorKind::InvalidArgument {
            what: "length in bytes",
            expected: format!("a multiple of the {} bytes of {dtype}", dtype.size()),
            found: bytes.len.to_string(),
        }))
    }

    /// An error before an operation starts.
    fn refused(&self, kind: CommErrorKind) -> CommError {
        let member = &self.staged.member;
        CommError {
            rank: member.rank,
            world_ranks: Arc::clone(&member.world_ranks),
            group: member.name.to_string(),
            operation: "a borrow of device memory".to_owned(),
            kind: Box::new(kind),
        }
    }
}

/// The `index`-th of `parts` equal parts.
fn part_of(span: Span, parts: usize, index: usize) -> Span {
    let len = span.len / parts;
    Span { pointer: span.pointer + (index * len * span.dtype.size()) as CUdeviceptr, len, ..span }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_one_after_another() {
        let span = Span { pointer: 1000, dtype: DType::Bf16, len: 15 };
        let parts: Vec<(u64, usize)> =
            (0..3).map(|index| part_of(span, 3, index)).map(|p| (p.pointer, p.len)).collect();
        assert_eq!(parts, [(1000, 5), (1010, 5), (1020, 5)]);
    }
}
