//! Optimizer states in host memory, of parameters that are on a device with memory of its own:
//! selection of parameters, and transfers of the inputs of their updates. The updates themselves
//! are those of `slot`, on tensors of the host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bridge_kernels::optim::Stored;
use burn::tensor::{DType, Device, Element, Tensor, TensorData};
use half::{bf16, f16};

/// Parameters whose inputs are prefetched to host memory while another one is updated. More would
/// hide nothing: updates take longer than transfers or the other way round, and one parameter ahead
/// keeps the faster of the two waiting; the second is there because sizes differ.
const PREFETCHED: usize = 2;

/// Placement of states in host memory (`optimizer.optimizer_cpu_offload`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffloadSettings {
    /// Share of the trained elements of a rank whose states are there, `0..=1`: see [`offloaded`].
    pub fraction: f64,
    /// Timing of the transfers of gradients.
    pub transfers: TransferTiming,
}

/// Timing of the transfers to host memory of an update's inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferTiming {
    /// Inputs are transferred when their update is due.
    #[default]
    OnDemand,
    /// Inputs are transferred while earlier updates are computed
    /// (`optimizer.overlap_cpu_optimizer_d2h_h2d`).
    Prefetched,
}

/// True for each parameter of these sizes, in the optimizer's order, whose states are in host
/// memory: from the first on, while fewer than `fraction` of all elements are there. A parameter,
/// or the range of it that a rank owns, is moved as a whole, so the fraction is exceeded by less
/// than the last one.
pub fn offloaded(sizes: &[usize], fraction: f64) -> Vec<bool> {
    let wanted = fraction * sizes.iter().sum::<usize>() as f64;
    let mut moved = 0;
    let choose = |size: &usize| {
        let is_moved = (moved as f64) < wanted;
        moved += if is_moved { *size } else { 0 };
        is_moved
    };
    sizes.iter().map(choose).collect()
}

/// Trained elements of a rank whose states are in host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadedElements {
    /// In host memory.
    pub moved: usize,
    /// All of them.
    pub trained: usize,
}

/// State that an optimizer keeps in host memory.
#[derive(Debug, Default)]
pub(super) struct Offload {
    names: BTreeSet<String>,
    elements: OffloadedElements,
    prefetcher: Option<Arc<Prefetcher>>,
}

impl Offload {
    /// Chooses among the parameters of a rank: names in the optimizer's order, with the elements of
    /// each that the rank updates.
    pub fn new<'a>(settings: Option<OffloadSettings>, parameters: impl Iterator<Item = (&'a str, usize)>) -> Self {
        let Some(OffloadSettings { fraction, transfers }) = settings else { return Self::default() };
        let (all, sizes): (Vec<&str>, Vec<usize>) = parameters.unzip();
        let chosen = offloaded(&sizes, fraction);
        let mut moved = 0;
        let names: BTreeSet<String> = all
            .into_iter()
            .zip(sizes.iter().zip(chosen))
            .filter(|(_, (_, is_moved))| *is_moved)
            .map(|(name, (size, _))| {
                moved += size;
                name.to_owned()
            })
            .collect();
        let prefetches = transfers == TransferTiming::Prefetched && !names.is_empty();
        let elements = OffloadedElements { moved, trained: sizes.iter().sum() };
        Self { names, elements, prefetcher: prefetches.then(|| Arc::new(Prefetcher::start())) }
    }

    /// True if no state is in host memory.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// True if the states of a parameter are in host memory.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Number of elements in host memory.
    pub fn elements(&self) -> OffloadedElements {
        self.elements
    }

    /// Starts the transfers of the inputs of updates to host memory, in the order of the updates.
    pub fn start_transfers(&self, all: Vec<UpdateInputs>) -> HostTransfers {
        match &self.prefetcher {
            Some(prefetcher) if !all.is_empty() => HostTransfers::prefetched(Arc::clone(prefetcher), all),
            _ => HostTransfers::on_demand(all),
        }
    }
}

/// Tensors of a parameter that an update reads, before or after their transfer to host memory.
#[derive(Debug)]
pub(super) struct UpdateInputs {
    pub name: String,
    /// Gradient, if the parameter has one.
    pub gradient: Option<Tensor<1>>,
    /// Value, if the update starts from it.
    pub value: Option<Tensor<1>>,
}

impl UpdateInputs {
    /// Value and gradient. The value that an update does not begin with, and only replaces, is
    /// memory of the size and dtype of `parameter`.
    pub fn into_value_and_gradient(self, parameter: &Tensor<1>) -> (Tensor<1>, Option<Tensor<1>>) {
        let blank = || Tensor::empty(parameter.shape(), (&host(), parameter.dtype()));
        (self.value.unwrap_or_else(blank), self.gradient)
    }

    fn into_host(self) -> Self {
        let Self { name, gradient, value } = self;
        Self { name, gradient: gradient.map(to_host), value: value.map(to_host) }
    }
}

/// Transfers of the inputs of updates to host memory.
#[derive(Debug)]
pub(super) enum HostTransfers {
    /// Tensors are transferred when they are taken.
    OnDemand(BTreeMap<String, UpdateInputs>),
    /// Another thread transfers tensors before they are taken.
    Prefetched {
        prefetcher: Arc<Prefetcher>,
        /// Number of parameters whose inputs have not arrived yet.
        pending: usize,
        /// Inputs that arrived before they were taken.
        early: BTreeMap<String, UpdateInputs>,
    },
}

impl HostTransfers {
    fn on_demand(all: Vec<UpdateInputs>) -> Self {
        Self::OnDemand(all.into_iter().map(|inputs| (inputs.name.clone(), inputs)).collect())
    }

    fn prefetched(prefetcher: Arc<Prefetcher>, all: Vec<UpdateInputs>) -> Self {
        let pending = all.len();
        all.into_iter().for_each(|inputs| prefetcher.request(inputs));
        Self::Prefetched { prefetcher, pending, early: BTreeMap::new() }
    }

    /// Takes the tensors of a parameter; waits for them. Panics if nothing of it was requested, or
    /// the thread that prefetches ended.
    pub fn take(&mut self, name: &str) -> UpdateInputs {
        match self {
            Self::OnDemand(all) => all.remove(name).expect("it was requested").into_host(),
            Self::Prefetched { prefetcher, pending, early } => loop {
                if let Some(inputs) = early.remove(name) {
                    return inputs;
                }
                assert!(*pending > 0, "nothing of {name} was requested");
                let inputs = prefetcher.next().expect("the thread that reads gradients goes on");
                *pending -= 1;
                early.insert(inputs.name.clone(), inputs);
            },
        }
    }
}

impl Drop for HostTransfers {
    /// Drops tensors that were not taken, so that none are left for the next step.
    fn drop(&mut self) {
        if let Self::Prefetched { prefetcher, pending, .. } = self {
            (0..*pending).for_each(|_| drop(prefetcher.next()));
        }
    }
}

/// Thread that transfers tensors to host memory, in order. It is one for the life of the optimizer:
/// a backend may give each thread a stream and pools of its own. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Prefetcher {
    requests: Sender<UpdateInputs>,
    results: Mutex<Receiver<UpdateInputs>>,
}

impl Prefetcher {
    fn start() -> Self {
        let (requests, jobs) = channel::<UpdateInputs>();
        // One more is in the hands of the thread.
        let (sender, results) = sync_channel(PREFETCHED - 1);
        let read = move || {
            for inputs in jobs {
                if sender.send(inputs.into_host()).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new().name("gradients-down".into()).spawn(read).expect("a thread can be started");
        Self { requests, results: Mutex::new(results) }
    }

    /// Requests a transfer. If the thread has ended, waiting for the result fails.
    fn request(&self, inputs: UpdateInputs) {
        drop(self.requests.send(inputs));
    }

    /// Next transferred inputs; `None` if the thread has ended.
    fn next(&self) -> Option<UpdateInputs> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }
}

/// The device whose memory is the host's.
pub(super) fn host() -> Device {
    Device::flex()
}

/// A tensor in host memory. One that comes from a device owns its elements: bytes that the device
/// hands out keep its memory as long as they live.
pub(super) fn to_host(tensor: Tensor<1>) -> Tensor<1> {
    fn owned<E: Element>(data: TensorData) -> TensorData {
        let values: Vec<E> = data.try_into_vec().expect("the dtype was looked at");
        let len = values.len();
        TensorData::new(values, [len])
    }
    if tensor.device() == host() {
        return tensor;
    }
    let (dtype, data) = (tensor.dtype(), tensor.into_data());
    let data = match dtype {
        DType::F64 => owned::<f64>(data),
        DType::F32 => owned::<f32>(data),
        DType::BF16 => owned::<bf16>(data),
        DType::F16 => owned::<f16>(data),
        other => unreachable!("no parameter, gradient or state is {other:?}"),
    };
    Tensor::from_data(data, (&host(), dtype))
}

/// A state in host memory.
pub(super) fn stored_in_host(stored: Stored) -> Stored {
    match stored {
        Stored::Plain(values) => Stored::Plain(to_host(values)),
        Stored::Scaled { values, scale } => Stored::Scaled { values: to_host(values), scale },
        Stored::Codes { .. } | Stored::Blocks(_) => stored,
    }
}

/// A tensor of the host on the device of a parameter.
pub(super) fn to_device(tensor: Tensor<1>, device: &Device) -> Tensor<1> {
    if *device == host() {
        return tensor;
    }
    let dtype = tensor.dtype();
    Tensor::from_data(tensor.into_data(), (device, dtype))
}
