//! Source of tensors: has them by name and returns any run of their elements as float32. No
//! parameter or layout belongs here.

use std::fmt::Debug;
use std::path::Path;

use super::error::HfError;

/// Tensors by name, read piece by piece.
pub trait TensorSource: Debug + Send + Sync {
    /// The folder or file that they are in.
    fn path(&self) -> &Path;

    /// Names and shapes of all tensors, sorted by name.
    fn tensors(&self) -> Box<dyn Iterator<Item = (&str, &[usize])> + '_>;

    /// The shape of a tensor, if there is one of this name.
    fn shape(&self, name: &str) -> Option<&[usize]>;

    /// Storage dtype of a tensor's elements; `None` if there is no tensor of this name.
    fn storage(&self, name: &str) -> Option<String>;

    /// Reads the elements of a tensor from number `start` on, row-major, until `target` is full.
    ///
    /// # Errors
    /// If there is no such tensor, its elements are not floats of a supported dtype, or one of them
    /// is NaN or infinite in float32.
    ///
    /// # Panics
    /// If the tensor has fewer elements.
    fn read_into(&self, name: &str, start: usize, target: &mut [f32]) -> Result<(), HfError>;
}
