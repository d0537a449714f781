//! Offloads tensors that segments keep for backward to the host.

use bridge_kernels::offload::{Devices, Module, Moved, Moves, Offloader};

use crate::config::RunConfig;
use crate::model::Segment;
use crate::plan;
use crate::plan::offload::{LEAST_ELEMENTS, Offload};

/// Offload of the tensors of some segments. Clones share their threads and counts.
#[derive(Clone, Debug)]
pub struct SegmentOffload {
    what: Offload,
    offloader: Offloader,
}

impl SegmentOffload {
    /// Moves `what` from `devices`; `None` if that is nothing.
    pub fn new(what: Offload, devices: Devices) -> Option<Self> {
        let moves = match &what {
            Offload::Nothing => return None,
            Offload::Layers(_) => Moves::FromElements(LEAST_ELEMENTS),
            Offload::Modules(names) => {
                let module = |name: &String| Module::named(name).expect("`finalize` refuses other names");
                Moves::Modules(names.iter().map(module).collect())
            }
        };
        Some(Self::with((what, moves), devices))
    }

    /// Moves other tensors of the segments than [`Self::new`]: to measure, and to test with small
    /// ones.
    pub fn with((what, moves): (Offload, Moves), devices: Devices) -> Self {
        Self { what, offloader: Offloader::new(moves, devices) }
    }

    /// Offload of a run.
    pub(in crate::train) fn from_run(config: &RunConfig) -> Option<Self> {
        Self::new(plan::settings::activation_offload(config), Devices::Accelerators)
    }

    /// Tensors moved so far.
    pub fn moved(&self) -> Moved {
        self.offloader.moved()
    }

    /// Waits until all tensors queued so far are on the host.
    pub fn settle(&self) {
        self.offloader.settle();
    }

    /// Runs a segment forward, with a graph.
    pub(in crate::train) fn run<T>(this: Option<&Self>, segment: &Segment, work: impl FnOnce() -> T) -> T {
        match this.filter(|offload| offload.what.includes(segment)) {
            Some(offload) => offload.offloader.scope(work),
            None => work(),
        }
    }
}

/// Why nothing moves, where a recipe asks for it on a CPU.
pub(in crate::train) fn nothing_moves(config: &RunConfig) -> Option<String> {
    let model = &config.model;
    if !config.computes_on_cpu() {
        return None;
    }
    let (setting, what) = match (model.cpu_offloading, model.fine_grained_activation_offloading) {
        (true, _) => {
            let layers = model.cpu_offloading_num_layers;
            let which =
                if layers == 1 { "the first layer keeps".into() } else { format!("the first {layers} layers keep") };
            ("model.cpu_offloading", which)
        }
        (false, true) => {
            ("model.fine_grained_activation_offloading", format!("{} keep", model.offload_modules.join(", ")))
        }
        (false, false) => return None,
    };
    Some(format!("{setting}: what {what} is in host memory anyway with device = \"{}\"", config.device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OFFLOAD_MODULES;

    #[test]
    fn each_name_of_a_recipe_is_a_module() {
        assert_eq!(Module::ALL.map(Module::name), OFFLOAD_MODULES);
        let all = Offload::Modules(OFFLOAD_MODULES.map(str::to_owned).into());
        assert!(SegmentOffload::new(all, Devices::Accelerators).is_some());
        assert!(SegmentOffload::new(Offload::Nothing, Devices::All).is_none());
    }
}
