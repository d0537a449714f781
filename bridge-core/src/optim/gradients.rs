//! Gradients summed over the micro-batches of a step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bridge_dist::comm::{CommError, Group, ReduceOp};
use bridge_kernels::cast;
use bridge_kernels::optim::{GradientSums, accumulate, reads_16_bits};
use bridge_regions::exchange::TensorExchange;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::flat::{detached_part, part};
use super::packing::Packing;

/// dtype in which gradients are summed over micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccumulationDType {
    /// float32, for any dtype of the parameters. A single gradient keeps the dtype of the backward
    /// pass until a second one is added where updates read it. Its value in float32 is the same, so
    /// no result depends on this.
    Float32,
    /// The dtype the backward pass produced.
    AsComputed,
}

/// Elements of one gradient that ranks add up.
#[derive(Debug)]
pub(super) struct SharedElements<'a> {
    /// The parameter.
    pub name: &'a str,
    /// Number of elements of the gradient that this rank has.
    pub held: usize,
    /// Range of these elements that is summed.
    pub elements: Range<usize>,
}

/// Parameters whose gradients ranks add up in one operation.
#[derive(Debug)]
pub(super) struct SharedParameters<'a> {
    /// Elements of each parameter.
    pub parameters: Vec<SharedElements<'a>>,
    /// Elements that are communicated: at least those of the parameters, padded so that every rank
    /// of the world sends as many.
    pub num_elements: usize,
}

/// The gradient of each parameter, by name, flat.
#[derive(Debug)]
pub struct GradientBuffer {
    accumulation: AccumulationDType,
    /// Predicate of 16-bit gradients that keep their dtype if they are not sums.
    keeps: fn(&Tensor<1>) -> bool,
    gradients: BTreeMap<String, Tensor<1>>,
    /// Sums that wait for others, and of which parameters they are.
    sums: GradientSums,
    waiting: BTreeSet<String>,
    /// Gradients that ranks have added up already, on their way to take the place of `gradients`.
    reduced: BTreeMap<String, Tensor<1>>,
}

impl GradientBuffer {
    /// An empty buffer.
    pub fn new(accumulation: AccumulationDType) -> Self {
        Self {
            accumulation,
            keeps: reads_16_bits,
            gradients: BTreeMap::new(),
            sums: GradientSums::default(),
            waiting: BTreeSet::new(),
            reduced: BTreeMap::new(),
        }
    }

    /// The dtype of sums.
    pub(crate) fn accumulation(&self) -> AccumulationDType {
        self.accumulation
    }

    /// Forgets all gradients.
    pub fn clear(&mut self) {
        self.flush();
        self.gradients.clear();
        self.reduced.clear();
    }

    /// Adds a micro-batch's gradient of the parameter `name`. Sums are there when the buffer is
    /// [flushed](Self::flush).
    pub fn add(&mut self, name: &str, gradient: Tensor<1>) {
        if self.waiting.contains(name) {
            self.flush();
        }
        let sum = match (self.gradients.remove(name), self.accumulation) {
            (Some(sum), AccumulationDType::Float32) => {
                self.waiting.insert(name.to_owned());
                self.sums.add(sum, gradient)
            }
            (Some(sum), AccumulationDType::AsComputed) => accumulate(sum, gradient),
            (None, _) if (self.keeps)(&gradient) => gradient,
            (None, _) => self.as_sum(gradient),
        };
        self.gradients.insert(name.to_owned(), sum);
    }

    /// Launches deferred additions. Sums must not be read before; functions that take gradients out
    /// flush the buffer themselves.
    pub fn flush(&mut self) {
        self.sums.launch();
        self.waiting.clear();
    }

    /// Casts a gradient to the dtype of sums, so that computations with it are rounded to this
    /// dtype.
    pub(super) fn as_sum(&self, gradient: Tensor<1>) -> Tensor<1> {
        match self.accumulation {
            AccumulationDType::Float32 => to_float32(gradient),
            AccumulationDType::AsComputed => gradient,
        }
    }

    /// Takes the gradient of one parameter, in the dtype it has.
    pub(super) fn take_unchanged(&mut self, name: &str) -> Option<Tensor<1>> {
        if self.waiting.contains(name) {
            self.flush();
        }
        self.gradients.remove(name)
    }

    /// Takes `scale` times the gradient of one parameter.
    pub(super) fn take_scaled(&mut self, name: &str, scale: f64) -> Option<Tensor<1>> {
        let gradient = self.take_unchanged(name)?;
        Some(if scale == 1.0 { gradient } else { self.as_sum(gradient) * scale })
    }

    /// Adds a gradient that ranks have added up.
    pub(super) fn add_reduced(&mut self, name: &str, gradient: Tensor<1>) {
        let sum = match self.reduced.remove(name) {
            Some(sum) => accumulate(sum, gradient),
            None => gradient,
        };
        self.reduced.insert(name.to_owned(), sum);
    }

    /// Takes a gradient that ranks have added up.
    pub(super) fn take_reduced(&mut self, name: &str) -> Option<Tensor<1>> {
        self.reduced.remove(name)
    }

    /// Lets reduced gradients take the place of this rank's own.
    pub(super) fn adopt_reduced(&mut self) {
        self.gradients.append(&mut self.reduced);
    }

    /// Replaces the gradient of one parameter.
    pub(crate) fn set(&mut self, name: &str, gradient: Tensor<1>) {
        self.gradients.insert(name.to_owned(), gradient);
    }

    /// All gradients in name order, of a flushed buffer.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Tensor<1>)> {
        debug_assert!(self.waiting.is_empty(), "the buffer is flushed");
        self.gradients.iter().map(|(name, gradient)| (name.as_str(), gradient))
    }

    /// Adds the gradients of some parameters up over a group, in one operation. All ranks name the
    /// same parameters; one without gradient counts as zero.
    pub(super) fn all_reduce(
        &mut self,
        SharedParameters { parameters, num_elements }: &SharedParameters<'_>,
        group: &Group,
        device: &Device,
    ) -> Result<(), CommError> {
        if group.size() == 1 || parameters.is_empty() {
            return Ok(());
        }
        self.flush();
        if let Some(way) = TensorExchange::for_device(group, device) {
            let packing = Packing { device, dtype: DType::F32 };
            let pieces = parameters.iter().map(|SharedElements { name, elements, .. }| {
                let gradient = self.gradients.get(*name).cloned().filter(|_| !elements.is_empty());
                (gradient.map(|gradient| to_float32(part(gradient, elements))), elements.len())
            });
            let sums = way.all_reduce(packing.concatenated(pieces, *num_elements), ReduceOp::Sum)?;
            let mut start = 0;
            for shared in parameters {
                let own = start..start + shared.elements.len();
                start = own.end;
                self.replace_shared(shared, device, detached_part(sums.clone(), &own));
            }
            return Ok(());
        }
        let mut values: Vec<f32> = Vec::new();
        for SharedElements { name, elements, .. } in parameters {
            let end = values.len() + elements.len();
            if let Some(gradient) = self.gradients.get(*name).cloned().filter(|_| !elements.is_empty()) {
                values.extend(to_float32(part(gradient, elements)).into_data().iter::<f32>());
            }
            values.resize(end, 0.0);
        }
        values.resize(*num_elements, 0.0);
        group.all_reduce((&mut values).into(), ReduceOp::Sum)?;
        let mut rest = values.as_slice();
        for shared in parameters {
            let (own, others) = rest.split_at(shared.elements.len());
            rest = others;
            let sum = Tensor::<1>::from_data(TensorData::new(own.to_vec(), [own.len()]), (device, DType::F32));
            self.replace_shared(shared, device, sum);
        }
        Ok(())
    }

    /// Puts the sum of some elements in the place of this rank's.
    fn replace_shared(
        &mut self,
        SharedElements { name, held, elements }: &SharedElements<'_>,
        device: &Device,
        sum: Tensor<1>,
    ) {
        let dtype = match self.accumulation {
            AccumulationDType::Float32 => DType::F32,
            AccumulationDType::AsComputed => self.gradients.get(*name).map_or(DType::F32, Tensor::dtype),
        };
        let sum = if dtype == DType::F32 { sum } else { sum.cast(FloatDType::from(dtype)) };
        let gradient = if *elements == (0..*held) {
            sum
        } else if elements.is_empty() {
            return;
        } else {
            let before = self.gradients.remove(*name);
            let before = before.map(|before| self.as_sum(before));
            let before = before.unwrap_or_else(|| Tensor::zeros([*held], (device, dtype)));
            before.slice_assign([elements.clone()], sum)
        };
        self.set(name, gradient);
    }

    /// The gradient of one parameter, of a flushed buffer.
    pub(crate) fn get(&self, name: &str) -> Option<&Tensor<1>> {
        debug_assert!(!self.waiting.contains(name), "the buffer is flushed");
        self.gradients.get(name)
    }
}

/// The tensor in float32.
pub(super) fn to_float32(x: Tensor<1>) -> Tensor<1> {
    cast(x, FloatDType::F32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer that keeps gradients of 16 bits, and one that does not.
    fn buffers(accumulation: AccumulationDType) -> [GradientBuffer; 2] {
        let keeping: [fn(&Tensor<1>) -> bool; 2] = [|gradient| gradient.dtype().size() == 2, |_| false];
        keeping.map(|keeps| GradientBuffer { keeps, ..GradientBuffer::new(accumulation) })
    }

    fn gradient(seed: usize, dtype: FloatDType) -> Tensor<1> {
        let values: Vec<f32> = (0..37).map(|i| ((i * 13 + seed * 7) % 29) as f32 * 0.37 - 4.1).collect();
        Tensor::<1>::from_floats(values.as_slice(), &Device::flex()).cast(dtype)
    }

    fn bits(x: Tensor<1>) -> Vec<u32> {
        assert_eq!(x.dtype(), DType::F32);
        x.into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    #[test]
    fn what_is_no_sum_keeps_its_16_bits_and_sums_are_those_of_float32() {
        for dtype in [FloatDType::BF16, FloatDType::F16] {
            let [mut kept, mut widened] = buffers(AccumulationDType::Float32);
            for number in 1..=4 {
                for buffer in [&mut kept, &mut widened] {
                    buffer.add("a", gradient(number, dtype));
                    buffer.add("b", gradient(number + 10, FloatDType::F32));
                }
                kept.flush();
                widened.flush();
                let is_alone = number == 1;
                assert_eq!(kept.get("a").map(Tensor::dtype), Some(if is_alone { dtype.into() } else { DType::F32 }));
                assert_eq!(widened.get("a").map(Tensor::dtype), Some(DType::F32));
                for name in ["a", "b"] {
                    let found = kept.as_sum(kept.get(name).unwrap().clone());
                    assert_eq!(bits(found), bits(widened.get(name).unwrap().clone()), "{name} after {number}");
                }
            }
        }
    }

    #[test]
    fn a_scaled_gradient_is_rounded_as_a_sum() {
        let [mut kept, mut widened] = buffers(AccumulationDType::Float32);
        for scale in [1.0, 1.0 / 3.0] {
            kept.add("a", gradient(3, FloatDType::BF16));
            widened.add("a", gradient(3, FloatDType::BF16));
            let [found, expected] = [&mut kept, &mut widened].map(|buffer| buffer.take_scaled("a", scale).unwrap());
            assert_eq!(found.dtype() == DType::BF16, scale == 1.0);
            assert_eq!(bits(to_float32(found)), bits(expected));
            assert!(kept.take_scaled("a", scale).is_none());
        }
        // Sums in 16 bits are scaled in them.
        let [mut narrow, _] = buffers(AccumulationDType::AsComputed);
        narrow.add("a", gradient(3, FloatDType::BF16));
        assert_eq!(narrow.take_scaled("a", 0.5).unwrap().dtype(), DType::BF16);
    }

    /// Sums over ranks replace a gradient, or elements of one, in float32.
    #[test]
    fn what_ranks_share_is_put_back_in_float32() {
        let shared = |elements: Range<usize>| SharedElements { name: "a", held: 37, elements };
        let sum = |count: usize| Tensor::<1>::full([count], 1.0 / 3.0, (&Device::flex(), DType::F32));
        for elements in [0..37, 5..9] {
            let replaced = buffers(AccumulationDType::Float32).map(|mut buffer| {
                buffer.add("a", gradient(2, FloatDType::BF16));
                buffer.replace_shared(&shared(elements.clone()), &Device::flex(), sum(elements.len()));
                bits(buffer.get("a").unwrap().clone())
            });
            assert_eq!(replaced[0], replaced[1]);
            assert_eq!(replaced[0][elements.start], (1.0_f32 / 3.0).to_bits());
        }
    }
}
