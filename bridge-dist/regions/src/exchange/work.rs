//! Work of a rank in an operation, between the transfers of its line.

use burn::tensor::{DType as TensorDType, FloatDType, Tensor};

use super::memory::{TensorMemory, arrived, copied, mark};
use super::{joined, part_of};
use bridge_dist::comm::device::{DeviceLine, DevicePart};
use bridge_dist::comm::{CommError, ReduceOp, slice_of};

/// Up to this many bytes every rank adds up everything: a second exchange would cost more than the
/// arithmetic.
const SMALL_BYTES: usize = 32 << 10;

/// A rank's end of a line, for tensors.
pub(super) struct Line<'a>(pub &'a mut dyn DeviceLine);

/// Ownership of the memory of parts for other ranks.
#[derive(Clone, Copy, PartialEq)]
enum Parts {
    /// Memory of the caller.
    Given,
    /// New memory, which this rank only reads from now on.
    Made,
}

impl Line<'_> {
    /// Parts for other ranks. Work that makes them is launched before the mark.
    fn for_others(&self, parts: Vec<Tensor<1>>, whose: Parts) -> Vec<DevicePart> {
        if !self.0.shares_memory() {
            return parts.into_iter().map(|part| TensorMemory::part(part, None)).collect();
        }
        let parts: Vec<_> = match whose {
            Parts::Given => parts.into_iter().map(copied).collect(),
            Parts::Made => parts,
        };
        let mark = mark(&parts[0].device());
        parts.into_iter().map(|part| TensorMemory::part(part, Some(mark.clone()))).collect()
    }

    /// The parts of all ranks.
    fn gathered(&mut self, x: Tensor<1>, whose: Parts) -> Result<Vec<DevicePart>, CommError> {
        let part = self.for_others(vec![x], whose).remove(0);
        self.0.all_gather(part)
    }

    pub fn all_gather(
        &mut self,
        x: Tensor<1>,
        put_together: impl FnOnce(Vec<Tensor<1>>) -> Tensor<1>,
    ) -> Result<Tensor<1>, CommError> {
        let parts = self.gathered(x, Parts::Given)?;
        // `parts` hold the memory until all that reads it has been launched.
        Ok(put_together(parts.iter().map(arrived).collect()))
    }

    pub fn broadcast(&mut self, x: Tensor<1>, root: usize) -> Result<Tensor<1>, CommError> {
        let part = self.for_others(vec![x], Parts::Given).remove(0);
        let part = self.0.broadcast(part, root)?;
        Ok(copied(arrived(&part)))
    }

    pub fn all_to_all(&mut self, parts: Vec<Tensor<1>>, receive: &[usize]) -> Result<Tensor<1>, CommError> {
        let parts = self.for_others(parts, Parts::Given);
        let parts = self.0.exchange(parts, receive)?;
        Ok(joined(parts.iter().map(arrived).collect()))
    }

    pub fn reduce_scatter(&mut self, parts: Vec<Tensor<1>>, op: ReduceOp) -> Result<Tensor<1>, CommError> {
        let receive = vec![parts[0].dims()[0]; parts.len()];
        let parts = self.for_others(parts, Parts::Given);
        let parts = self.0.exchange(parts, &receive)?;
        Ok(reduced(&parts, op))
    }

    pub fn all_reduce(&mut self, x: Tensor<1>, op: ReduceOp) -> Result<Tensor<1>, CommError> {
        let (len, size, rank) = (x.dims()[0], self.0.size(), self.0.rank());
        if len * x.dtype().size() <= SMALL_BYTES {
            let parts = self.gathered(x, Parts::Given)?;
            return Ok(reduced(&parts, op));
        }
        let slices: Vec<_> = (0..size).map(|rank| slice_of(len, size, rank)).collect();
        let parts = slices.iter().map(|range| part_of(&x, range)).collect();
        let parts = self.for_others(parts, Parts::Given);
        let parts = self.0.exchange(parts, &vec![slices[rank].len(); size])?;
        let own = reduced(&parts, op);
        drop(parts);
        let all = if len.is_multiple_of(size) {
            self.gathered(own, Parts::Made)?
        } else {
            let own = self.for_others(vec![own; size], Parts::Made);
            self.0.exchange(own, &slices.iter().map(ExactSizeIterator::len).collect::<Vec<_>>())?
        };
        Ok(joined(all.iter().map(arrived).collect()))
    }
}

/// The sum or average of equally long parts, in rank order, in new memory. `parts` keep their
/// memory from being written in place.
fn reduced(parts: &[DevicePart], op: ReduceOp) -> Tensor<1> {
    let dtype = TensorMemory::behind(&parts[0]).tensor().dtype();
    let is_narrow = matches!(dtype, TensorDType::BF16 | TensorDType::F16);
    let widened = |part: &DevicePart| {
        let x = arrived(part);
        if is_narrow { x.cast(FloatDType::F32) } else { x }
    };
    if parts[0].len == 0 {
        return arrived(&parts[0]);
    }
    let sum = parts.iter().map(widened).reduce(|sum, x| sum + x).expect("a group has ranks");
    let sum = match op {
        ReduceOp::Avg => sum / parts.len() as f64,
        // Calls with other reductions have been refused.
        _ => sum,
    };
    if is_narrow { sum.cast(FloatDType::from(dtype)) } else { sum }
}
