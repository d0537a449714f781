//! Parameters that a graph reads, and the check that their memory is unchanged.

use std::collections::{BTreeMap, BTreeSet};

use bridge_kernels::graph::{GraphError, MemoryAddress, copy_of, is_made_here, write_into};
use burn::tensor::Tensor;

use crate::model::{ModelChunk, Replacement};

/// The parameters of a chunk that are trained, as they were recorded.
pub(super) struct StaticParameters {
    places: BTreeMap<String, MemoryAddress>,
    /// Parameters whose updates come in other memory, and are copied here. No other handle to the
    /// remaining parameters exists, so that they can be updated in place.
    held: BTreeMap<String, Tensor<1>>,
}

/// Result of a comparison of the addresses of parameters with those that the graph uses.
pub(super) enum ParameterAddresses {
    /// All parameters are at the addresses that the graph uses.
    Unchanged,
    /// These are elsewhere, and their places are lost.
    Moved(Vec<String>),
}

impl StaticParameters {
    /// Parameters of `chunk`, of which `moving` are updated elsewhere. Parameters that another
    /// thread allocated are copied by this one.
    pub fn from_chunk(chunk: &mut dyn ModelChunk, moving: &BTreeSet<String>) -> Result<Self, GraphError> {
        allocate_on_this_thread(chunk);
        let trained = chunk.parameters().iter().filter(|parameter| parameter.trainable);
        let trained: BTreeSet<String> = trained.map(|parameter| parameter.name.clone()).collect();
        let (mut places, mut held) = (BTreeMap::new(), BTreeMap::new());
        let mut placeless = None;
        chunk.visit_wanted(&|name| trained.contains(name), &mut |name, value| {
            match MemoryAddress::from_tensor(&value) {
                Some(place) => places.insert(name.to_owned(), place),
                None => {
                    placeless = Some(name.to_owned());
                    return;
                }
            };
            if moving.contains(name) {
                held.insert(name.to_owned(), value);
            }
        });
        match placeless {
            None => Ok(Self { places, held }),
            Some(name) => Err(GraphError::Device(format!("the parameter {name} has no memory of its own"))),
        }
    }

    /// Copies parameters that were updated in other memory to their place, and has the chunk read
    /// them there.
    pub fn restore(&self, chunk: &mut dyn ModelChunk) -> ParameterAddresses {
        let (mut back, mut lost) = (BTreeMap::new(), Vec::new());
        chunk.visit_wanted(&|name| self.places.contains_key(name), &mut |name, value| {
            if MemoryAddress::from_tensor(&value).as_ref() == self.places.get(name) {
                return;
            }
            match self.held.get_key_value(name) {
                Some((name, held)) => {
                    write_into(held, &value);
                    back.insert(name.as_str(), Replacement::Value(held.clone()));
                }
                None => lost.push(name.to_owned()),
            }
        });
        if !back.is_empty() {
            chunk.replace_parameters(back);
        }
        if lost.is_empty() { ParameterAddresses::Unchanged } else { ParameterAddresses::Moved(lost) }
    }
}

/// Gives each parameter memory with its elements side by side that this thread took: that which it
/// has, or a copy. CUDA puts blanks between the rows of a parameter that was uploaded, whose flat
/// form is then new memory each time; and those of a checkpoint may be another thread's.
fn allocate_on_this_thread(chunk: &mut dyn ModelChunk) {
    let mut values = BTreeMap::new();
    chunk.visit_parameters(&mut |name, value| {
        let value = if is_made_here(&value) { value } else { copy_of(&value) };
        values.insert(name.to_owned(), value);
    });
    let values = values.iter().map(|(name, value)| (name.as_str(), value.clone().into())).collect();
    chunk.replace_parameters(values);
}
