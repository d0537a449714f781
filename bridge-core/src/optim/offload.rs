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

/// Parameters whose gradients are in host memory already while another one is updated, or on their
/// way. More would hide nothing: updates take longer than transfers or the other way round, and one
/// parameter ahead keeps the faster of the two waiting; the second is there because sizes differ.
const AHEAD: usize = 2;

/// Placement of states in host memory (`optimizer.optimizer_cpu_offload`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffloadSettings {
    /// Share of the trained elements of a rank whose states are there, `0..=1`: see [`offloaded`].
    pub fraction: f64,
    /// When gradients come down.
    pub transfers: Transfers,
}

/// Timing of the transfers to host memory of an update's inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfers {
    /// Inputs are transferred when their update is due.
    #[default]
    InTurn,
    /// Inputs are transferred while earlier updates are computed
    /// (`optimizer.overlap_cpu_optimizer_d2h_h2d`).
    Ahead,
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
    reader: Option<Arc<Reader>>,
}

impl Offload {
    /// Chooses among the parameters of a rank: names in the optimizer's order, with the elements of
    /// each that the rank updates.
    pub fn new<'a>(settings: Option<OffloadSettings>, parameters: impl Iterator<Item = (&'a str, usize)>) -> Self {
        let Some(OffloadSettings { fraction, transfers }) = settings else {
            return Self::default();
        };
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
        let reads_ahead = transfers == Transfers::Ahead && !names.is_empty();
        let elements = OffloadedElements { moved, trained: sizes.iter().sum() };
        Self { names, elements, reader: reads_ahead.then(|| Arc::new(Reader::start())) }
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
    pub fn bring_down(&self, all: Vec<Wanted>) -> Arriving {
        match &self.reader {
            Some(reader) if !all.is_empty() => Arriving::ahead(Arc::clone(reader), all),
            _ => Arriving::in_turn(all),
        }
    }
}

/// Tensors of a parameter that an update reads, at their current place.
#[derive(Debug)]
pub(super) struct Wanted {
    pub name: String,
    /// Gradient, if the parameter has one.
    pub gradient: Option<Tensor<1>>,
    /// Value, if the update starts from it.
    pub value: Option<Tensor<1>>,
}

/// Inputs of an update in host memory.
#[derive(Debug)]
pub(super) struct Arrived {
    pub gradient: Option<Tensor<1>>,
    pub value: Option<Tensor<1>>,
}

impl Arrived {
    /// Value and gradient. The value that an update does not begin with, and only replaces, is
    /// memory of the size and dtype of `parameter`.
    pub fn beside(self, parameter: &Tensor<1>) -> (Tensor<1>, Option<Tensor<1>>) {
        let blank = || Tensor::empty(parameter.shape(), (&host(), parameter.dtype()));
        (self.value.unwrap_or_else(blank), self.gradient)
    }
}

impl Wanted {
    fn read(self) -> (String, Arrived) {
        let Self { name, gradient, value } = self;
        (name, Arrived { gradient: gradient.map(to_host), value: value.map(to_host) })
    }
}

/// Transfers to host memory.
#[derive(Debug)]
pub(super) enum Arriving {
    /// Tensors are read on demand.
    InTurn(BTreeMap<String, Wanted>),
    /// Another thread reads tensors ahead.
    Ahead {
        reader: Arc<Reader>,
        /// Number of tensors that have not arrived yet.
        missing: usize,
        /// Tensors that arrived before they were requested.
        early: BTreeMap<String, Arrived>,
    },
}

impl Arriving {
    fn in_turn(all: Vec<Wanted>) -> Self {
        Self::InTurn(all.into_iter().map(|wanted| (wanted.name.clone(), wanted)).collect())
    }

    fn ahead(reader: Arc<Reader>, all: Vec<Wanted>) -> Self {
        let missing = all.len();
        all.into_iter().for_each(|wanted| reader.ask(wanted));
        Self::Ahead { reader, missing, early: BTreeMap::new() }
    }

    /// Takes the tensors of a parameter; waits for them.
    ///
    /// # Panics
    /// If nothing of it was wanted, or the thread that reads ended.
    pub fn take(&mut self, name: &str) -> Arrived {
        match self {
            Self::InTurn(all) => all.remove(name).expect("it was wanted").read().1,
            Self::Ahead { reader, missing, early } => loop {
                if let Some(arrived) = early.remove(name) {
                    return arrived;
                }
                assert!(*missing > 0, "nothing of {name} was wanted");
                let (arrived_name, arrived) = reader.next().expect("the thread that reads gradients goes on");
                *missing -= 1;
                early.insert(arrived_name, arrived);
            },
        }
    }
}

impl Drop for Arriving {
    /// Drops tensors that were not taken, so that none are left for the next step.
    fn drop(&mut self) {
        if let Self::Ahead { reader, missing, .. } = self {
            (0..*missing).for_each(|_| drop(reader.next()));
        }
    }
}

/// A thread that brings tensors down, in order. It is one for the life of the optimizer: a backend
/// may give each thread a stream and pools of its own. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Reader {
    wanted: Sender<Wanted>,
    arrived: Mutex<Receiver<(String, Arrived)>>,
}

impl Reader {
    fn start() -> Self {
        let (wanted, jobs) = channel::<Wanted>();
        // One more is in the hands of the thread.
        let (results, arrived) = sync_channel(AHEAD - 1);
        let read = move || {
            for wanted in jobs {
                if results.send(wanted.read()).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new().name("gradients-down".into()).spawn(read).expect("a thread can be started");
        Self { wanted, arrived: Mutex::new(arrived) }
    }

    /// Requests a tensor. If the thread has ended, waiting for the result fails.
    fn ask(&self, wanted: Wanted) {
        drop(self.wanted.send(wanted));
    }

    /// Next tensors; `None` if the thread has ended.
    fn next(&self) -> Option<(String, Arrived)> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
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
        Stored::Codes { .. } => stored,
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
