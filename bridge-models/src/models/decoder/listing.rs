//! The linear layers of a model, listed without making it.

use std::sync::{Arc, Mutex, PoisonError};

use bridge_core::model::{Adapter, Declaration, LinearAdaptation, LinearLayer, Scope, Stage, Workload};

use super::model::outline;
use crate::architecture::config::DecoderConfig;

/// A linear layer of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedLayer {
    /// The layer.
    pub layer: LinearLayer,
    /// True if it is inside one of several experts.
    pub is_of_expert: bool,
}

/// An adapter that changes nothing and writes down which layers there are.
#[derive(Debug, Default)]
struct Listing(Mutex<Vec<ListedLayer>>);

impl Adapter for Listing {
    fn trains(&self, _: &Declaration) -> bool {
        true
    }

    fn adapt(&self, layer: &LinearLayer, scope: &Scope) -> Option<LinearAdaptation> {
        let listed = ListedLayer { layer: layer.clone(), is_of_expert: scope.is_of_expert() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(listed);
        None
    }
}

impl DecoderConfig {
    /// Passes all linear layers of the whole model to `adapter`, without building the model.
    pub(crate) fn ask(&self, adapter: Arc<dyn Adapter>) {
        let work = Workload::sequence(1, self.padded_vocab_size);
        outline(self, &work, &Stage::whole(self.stacks()), Some(adapter));
    }

    /// The linear layers of the whole model, in the order of their declaration, without building
    /// the model.
    pub(crate) fn linear_layers(&self) -> Vec<ListedLayer> {
        let listing = Arc::new(Listing::default());
        self.ask(Arc::<Listing>::clone(&listing));
        std::mem::take(&mut *listing.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
