//! Tensors that pass between segments: a short list of named tensors, which a chunk declares and
//! its segments take and return.

use std::fmt;
use std::ops::Range;

use burn::tensor::{DType, FloatDType, Tensor};

use super::{Batch, ForwardContext, ModelChunk, SegmentOutput};

/// The name of the residual stream, for models that have one.
pub const HIDDEN_STATES: &str = "hidden_states";

/// A tensor of a boundary as a chunk declares it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundaryTensor {
    /// Name, unique in the boundary.
    pub name: &'static str,
    /// Shape on this rank, usually `[b, t, c]`: `t` is the rank's part of the sequence under
    /// sequence and context parallelism.
    pub shape: [usize; 3],
    /// Dtype inside the model.
    pub dtype: FloatDType,
}

impl BoundaryTensor {
    /// The residual stream.
    pub fn hidden_states(shape: [usize; 3], dtype: FloatDType) -> Self {
        Self { name: HIDDEN_STATES, shape, dtype }
    }
}

/// The tensors between two segments, or gradients of them.
#[derive(Clone, Debug, Default)]
pub struct Boundary(Vec<Entry>);

#[derive(Clone, Debug)]
struct Entry {
    name: &'static str,
    tensor: Tensor<3>,
    /// True if a segment made the tensor since the graph was cut; otherwise it is an input of the
    /// region that is passed on.
    made: bool,
}

impl Boundary {
    /// Boundary of the single tensor `name`.
    pub fn single(name: &'static str, tensor: Tensor<3>) -> Self {
        Self::default().with(name, tensor)
    }

    /// The residual stream alone, which a segment made.
    pub fn hidden_states(x_btc: Tensor<3>) -> Self {
        Self::single(HIDDEN_STATES, x_btc)
    }

    /// These tensors and one more, which a segment made.
    ///
    /// # Panics
    /// If there is a tensor of that name: a segment takes a tensor before it replaces it.
    #[must_use]
    pub fn with(mut self, name: &'static str, tensor: Tensor<3>) -> Self {
        assert!(self.get(name).is_none(), "the boundary {self} has a tensor `{name}` already");
        self.0.push(Entry { name, tensor, made: true });
        self
    }

    /// The tensor called `name`, if it is there. It stays, and is passed on.
    pub fn get(&self, name: &str) -> Option<&Tensor<3>> {
        self.0.iter().find(|entry| entry.name == name).map(|entry| &entry.tensor)
    }

    /// Takes the tensor called `name` out.
    ///
    /// # Panics
    /// If it is missing. The executor has compared the names with the declared ones.
    pub fn take(&mut self, name: &str) -> Tensor<3> {
        self.remove(name).unwrap_or_else(|| panic!("a segment wants `{name}` from the boundary {self}"))
    }

    /// Takes the residual stream out.
    ///
    /// # Panics
    /// As [`Self::take`].
    pub fn take_hidden_states(&mut self) -> Tensor<3> {
        self.take(HIDDEN_STATES)
    }

    /// Names and tensors, in the declared order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Tensor<3>)> {
        self.0.iter().map(|entry| (entry.name, &entry.tensor))
    }

    /// The tensors, in the declared order.
    pub(crate) fn into_tensors(self) -> impl Iterator<Item = Tensor<3>> {
        self.0.into_iter().map(|entry| entry.tensor)
    }

    /// True if there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies `f` to the tensors at the beginning of a region, where no segment of the region has
    /// made a tensor yet.
    #[must_use]
    pub(crate) fn map(self, mut f: impl FnMut(Tensor<3>) -> Tensor<3>) -> Self {
        let entries = self.0.into_iter();
        Self(entries.map(|entry| Entry { tensor: f(entry.tensor), made: false, ..entry }).collect())
    }

    /// Applies `f` to the tensors that segments have made since the region began; the other tensors
    /// are unchanged.
    #[must_use]
    pub(crate) fn map_made(self, mut f: impl FnMut(&'static str, Tensor<3>) -> Tensor<3>) -> Self {
        let changed =
            |entry: Entry| if entry.made { Entry { tensor: f(entry.name, entry.tensor), ..entry } } else { entry };
        Self(self.0.into_iter().map(changed).collect())
    }

    /// The tensors that segments made since the region began.
    pub(crate) fn made(&self) -> impl Iterator<Item = (&'static str, &Tensor<3>)> {
        self.0.iter().filter(|entry| entry.made).map(|entry| (entry.name, &entry.tensor))
    }

    /// [`Self::take`] for a tensor that may be missing, such as the gradient of an unused tensor.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Tensor<3>> {
        let index = self.0.iter().position(|entry| entry.name == name)?;
        Some(self.0.remove(index).tensor)
    }

    /// The tensors in the order of `declared`; the unchanged boundary as the error if names, shapes
    /// or dtypes differ.
    pub(crate) fn arranged(mut self, declared: &[BoundaryTensor]) -> Result<Self, Self> {
        let fits = |declared: &BoundaryTensor, entry: &Entry| {
            (declared.name, declared.shape, DType::from(declared.dtype))
                == (entry.name, entry.tensor.dims(), entry.tensor.dtype())
        };
        let place =
            |entry: &Entry| declared.iter().position(|declared| declared.name == entry.name).unwrap_or(declared.len());
        self.0.sort_by_key(place);
        let all_fit = declared.iter().zip(&self.0).all(|(declared, entry)| fits(declared, entry));
        if declared.len() == self.0.len() && all_fit { Ok(self) } else { Err(self) }
    }
}

impl fmt::Display for Boundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&listed(self.iter().map(|(name, tensor)| (name, tensor.dims(), tensor.dtype()))))
    }
}

fn listed(tensors: impl Iterator<Item = (&'static str, [usize; 3], DType)>) -> String {
    let list: Vec<String> = tensors.map(|(name, shape, dtype)| format!("`{name}` {shape:?} {dtype:?}")).collect();
    if list.is_empty() { "no tensor".to_owned() } else { list.join(", ") }
}

/// A boundary whose tensors are not those that the model declares.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("before segment {segment} of a model chunk: expected {expected} as the model declares, found {found}")]
pub struct BoundaryError {
    /// The segment that would read it; the number of segments at the end of a chunk.
    pub segment: usize,
    /// Declared tensors.
    pub expected: String,
    /// Found tensors.
    pub found: String,
}

/// The boundary before segment `index`, in the declared order, if it matches `chunk`'s declaration.
pub(crate) fn checked(
    chunk: &dyn ModelChunk,
    index: usize,
    boundary: Boundary,
    batch: &Batch,
) -> Result<Boundary, BoundaryError> {
    let declared = chunk.boundary(index, batch);
    boundary.arranged(&declared).map_err(|found| {
        let expected = listed(declared.iter().map(|tensor| (tensor.name, tensor.shape, tensor.dtype.into())));
        BoundaryError { segment: index, expected, found: found.to_string() }
    })
}

/// Runs consecutive segments of `chunk`; `input` is the boundary before the first.
///
/// # Errors
/// If a segment gets or returns other tensors than the chunk declares.
///
/// # Panics
/// If a segment before the last one returns a loss, or `segments` is out of range or empty.
pub fn run_segments(
    chunk: &dyn ModelChunk,
    segments: Range<usize>,
    input: Boundary,
    context: &ForwardContext,
) -> Result<SegmentOutput, BoundaryError> {
    let last = segments.end - 1;
    let mut input = checked(chunk, segments.start, input, context.batch)?;
    for index in segments {
        let boundary = match chunk.forward_segment(index, input, context) {
            SegmentOutput::Boundary(boundary) => checked(chunk, index + 1, boundary, context.batch)?,
            loss @ SegmentOutput::LossSum(_) if index == last => return Ok(loss),
            SegmentOutput::LossSum(_) => panic!("segment {index} returns a loss and is not the last"),
        };
        input = boundary;
    }
    Ok(SegmentOutput::Boundary(input))
}

/// The sum of the masked loss of a whole model that has all its parameters, `[1]` float32.
///
/// # Errors
/// If a segment gets or returns other tensors than the chunk declares.
///
/// # Panics
/// If `chunk` does not end with the loss.
pub fn loss_sum(chunk: &dyn ModelChunk, context: &ForwardContext) -> Result<Tensor<1>, BoundaryError> {
    let output = run_segments(chunk, 0..chunk.segments().len(), Boundary::default(), context)?;
    Ok(output.loss_sum().expect("the last segment of a model returns the loss"))
}
