//! Activations in host memory between forward and backward.
//!
//! A pullback holds each tensor that its operation keeps for backward as a [`Kept`]. In the scope
//! of an [`Offloader`], threads of the offloader download that tensor to the host and release its
//! device memory; the pullback uploads it again. No bit changes on the way. Parameters are never
//! moved: operations pass on only activations.
//!
//! - A tensor that several operations of one scope keep, in any shape, is moved once. The scope
//!   holds all tensors until it closes: equal memory then means equal values, because shared memory
//!   is not written in place. So a scope should be as long as a segment of a model, and a tensor
//!   that is kept in two scopes is moved twice.
//! - Downloads are queued, up to a limit, beyond which callers wait. A tensor whose backward comes
//!   before its download is complete never leaves the device. A tensor whose pullback is dropped is
//!   not downloaded.
//! - The first pullback that needs a tensor of a scope starts the upload of the previous scope's
//!   tensors in the background.
//! - Tensors of the CPU are not moved ([`Devices::Accelerators`]), except in tests.
//!
//! Tensors that Burn's own operations keep in a graph are not moved.

mod counters;
mod device;
mod entry;
mod readers;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use burn::backend::DispatchTensor;
use burn::tensor::{Shape, Tensor};

use self::counters::Counters;
pub use self::counters::Moved;
use self::device::{Identity, bytes_of, elements_of, is_accelerator, read, reshaped, shape_of, side_by_side};
use self::entry::{Entry, OffloadScope};
use self::readers::Readers;

/// A module of a model whose activations can be selected for offload, by Megatron's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Module {
    /// The norm in front of attention: its input.
    AttnNorm,
    /// The projection of queries, keys and values: its input.
    QkvLinear,
    /// Attention itself: queries, keys, values, the output.
    CoreAttn,
    /// The projection after attention: its input.
    AttnProj,
    /// The norm in front of the feed-forward block: its input.
    MlpNorm,
    /// The first layer of the experts: its input.
    ExpertFc1,
    /// Unit between the layers of the experts: its input.
    MoeAct,
}

impl Module {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::AttnNorm, Self::QkvLinear, Self::CoreAttn, Self::AttnProj, Self::MlpNorm, Self::ExpertFc1, Self::MoeAct];

    /// Name in recipes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AttnNorm => "attn_norm",
            Self::QkvLinear => "qkv_linear",
            Self::CoreAttn => "core_attn",
            Self::AttnProj => "attn_proj",
            Self::MlpNorm => "mlp_norm",
            Self::ExpertFc1 => "expert_fc1",
            Self::MoeAct => "moe_act",
        }
    }

    /// The module of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|module| module.name() == name)
    }
}

/// Selection of the kept tensors of a scope that are moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moves {
    /// No tensor; tensors are only counted.
    Nothing,
    /// Tensors with this many elements or more.
    FromElements(usize),
    /// Tensors that are kept in one of these modules ([`in_module`]).
    Modules(Vec<Module>),
}

/// Devices from which tensors are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Devices with memory of their own.
    #[default]
    Accelerators,
    /// From the host's memory to the host's memory too: for tests.
    All,
}

/// Moves tensors that operations keep for backward in its scopes to the host, on its own threads.
/// Clones are the same.
#[derive(Clone)]
pub struct Offloader(Arc<Inner>);

struct Inner {
    moves: Moves,
    devices: Devices,
    counters: Arc<Counters>,
    /// Started when there is something to read.
    readers: OnceLock<Readers>,
    /// The scope that was opened last.
    last: Mutex<Weak<OffloadScope>>,
}

impl fmt::Debug for Offloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offloader").field("moves", &self.0.moves).field("devices", &self.0.devices).finish()
    }
}

impl Offloader {
    /// An offloader that moves `moves` from `devices`.
    pub fn new(moves: Moves, devices: Devices) -> Self {
        Self(Arc::new(Inner {
            moves,
            devices,
            counters: Arc::default(),
            readers: OnceLock::new(),
            last: Mutex::default(),
        }))
    }

    /// Runs `work`, and moves the tensors that its operations keep for backward on this thread.
    /// Scopes do not nest: an inner one takes the place of the outer one while it is open.
    pub fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = Arc::new(OffloadScope::after(std::mem::take(&mut last)));
        *last = Arc::downgrade(&opened);
        drop(last);
        let scope = Scope { offloader: self.clone(), opened, part: Part::default(), held: Vec::new() };
        let _restore = RestoreScope(OPEN.with(|open| open.replace(Some(scope))));
        work()
    }

    /// Tensors moved so far.
    pub fn moved(&self) -> Moved {
        self.0.counters.moved()
    }

    /// Waits until all that was queued has been downloaded or uploaded.
    pub fn settle(&self) {
        if let Some(readers) = self.0.readers.get() {
            readers.settle();
        }
    }

    fn readers(&self) -> &Readers {
        self.0.readers.get_or_init(Readers::start)
    }
}

thread_local! {
    static OPEN: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// The scope that is open on a thread.
struct Scope {
    offloader: Offloader,
    opened: Arc<OffloadScope>,
    part: Part,
    held: Vec<Held>,
}

/// A tensor that an operation of the scope keeps, and where it goes; `None` if it stays.
struct Held {
    identity: Identity,
    entry: Option<Weak<Entry>>,
    /// Prevents reuse and in-place writes of the memory, so that its identity implies its values.
    _tensor: DispatchTensor,
}

/// Reopens the previous scope when dropped.
struct RestoreScope(Option<Scope>);

impl Drop for RestoreScope {
    fn drop(&mut self) {
        OPEN.with(|open| open.replace(self.0.take()));
    }
}

/// Module of a model that is running.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    now: Option<Module>,
    /// Module of the activation, for an operation that has a linear layer and an activation.
    unit: Option<Module>,
}

/// Restores the previous part when dropped.
struct RestorePart(Option<Part>);

impl Drop for RestorePart {
    fn drop(&mut self) {
        if let Some(part) = self.0 {
            enter(part);
        }
    }
}

/// The part that ran before; `None` if no scope is open.
fn enter(part: Part) -> Option<Part> {
    OPEN.with_borrow_mut(|open| open.as_mut().map(|scope| std::mem::replace(&mut scope.part, part)))
}

/// Runs `work` as a part of `module`; `None` for modules without a name.
pub fn in_module<T>(module: impl Into<Option<Module>>, work: impl FnOnce() -> T) -> T {
    let _restore = RestorePart(enter(Part { now: module.into(), unit: None }));
    work()
}

/// Runs a linear layer of module `linear` that may be one operation with the non-linearity after
/// it, of module `unit`.
pub fn in_modules<T>([linear, unit]: [Module; 2], work: impl FnOnce() -> T) -> T {
    let _restore = RestorePart(enter(Part { now: Some(linear), unit: Some(unit) }));
    work()
}

/// Runs the non-linearity after such a layer.
pub fn in_unit<T>(work: impl FnOnce() -> T) -> T {
    let unit = OPEN.with_borrow(|open| open.as_ref().and_then(|scope| scope.part.unit));
    match unit {
        Some(unit) => in_module(unit, work),
        None => work(),
    }
}

/// Runs `work` as if no scope were open, because the tensors that it keeps are dropped at once.
pub(crate) fn closed<T>(work: impl FnOnce() -> T) -> T {
    let _restore = RestoreScope(OPEN.take());
    work()
}

impl Scope {
    /// Entry of a tensor that is moved; `None` if it stays.
    fn keep(&mut self, tensor: &DispatchTensor) -> Option<Arc<Entry>> {
        let inner = &self.offloader.0;
        let applies = inner.devices == Devices::All || is_accelerator(tensor);
        let moves = applies
            && match &inner.moves {
                Moves::Nothing => false,
                Moves::FromElements(least) => elements_of(tensor) >= *least,
                Moves::Modules(modules) => self.part.now.is_some_and(|module| modules.contains(&module)),
            };
        let identity = Identity::from_tensor(tensor);
        let mut is_here = false;
        for same in self.held.iter().filter(|held| identity.is_that_of(&held.identity)) {
            match &same.entry {
                Some(entry) => {
                    if let Some(entry) = entry.upgrade() {
                        return Some(entry);
                    }
                }
                None => is_here = true,
            }
        }
        if is_here && !moves {
            return None;
        }
        let moved = if moves { side_by_side(tensor) } else { None };
        let entry = moved.map(|tensor| Entry::new(tensor, Arc::clone(&self.opened), Arc::clone(&inner.counters)));
        match &entry {
            Some(entry) => {
                let entry = Arc::downgrade(entry);
                self.offloader.readers().run(move || Entry::read(&entry, read));
            }
            None => {
                inner.counters.stays(bytes_of(tensor));
            }
        }
        let held = Held { identity, entry: entry.as_ref().map(Arc::downgrade), _tensor: tensor.clone() };
        self.held.push(held);
        entry
    }
}

/// A float tensor that an operation keeps for its backward: on its device, or in the scope of an
/// [`Offloader`] perhaps on the host.
pub struct Kept {
    shape: Shape,
    place: KeptTensor,
}

#[allow(
    clippy::large_enum_variant,
    reason = "where nothing is moved a tensor is kept as it is, without a box of its own"
)]
enum KeptTensor {
    OnDevice(DispatchTensor),
    Offloaded(Arc<Entry>, Offloader),
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            KeptTensor::OnDevice(_) => "here",
            KeptTensor::Offloaded(..) => "moved",
        };
        f.debug_struct("Kept").field("shape", &self.shape).field("place", &place).finish()
    }
}

impl Kept {
    /// Keeps a tensor, of any rank and without a graph. It must be an activation: parameters stay
    /// where they are.
    pub fn new(tensor: DispatchTensor) -> Self {
        let shape = shape_of(&tensor);
        let kept = OPEN.with_borrow_mut(|open| {
            let scope = open.as_mut()?;
            scope.keep(&tensor).map(|entry| (entry, scope.offloader.clone()))
        });
        let place = match kept {
            Some((entry, offloader)) => KeptTensor::Offloaded(entry, offloader),
            None => KeptTensor::OnDevice(tensor),
        };
        Self { shape, place }
    }

    /// [`Self::new`], of a tensor in a graph or not.
    pub fn from_tensor<const D: usize>(tensor: &Tensor<D>) -> Self {
        Self::new(tensor.clone().without_autodiff().into_dispatch())
    }

    /// The tensor, on its device again.
    ///
    /// # Panics
    /// If it could not be read, with the device's error.
    pub fn into_dispatch(self) -> DispatchTensor {
        match self.place {
            KeptTensor::OnDevice(tensor) => tensor,
            KeptTensor::Offloaded(entry, offloader) => {
                if let Some(previous) = entry.scope().previous_once() {
                    offloader.readers().try_run(move || previous.upload());
                }
                reshaped(entry.upload(), self.shape)
            }
        }
    }

    /// [`Self::into_dispatch`] as a tensor.
    ///
    /// # Panics
    /// If it could not be read, or `D` is not its rank.
    pub fn into_tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_dispatch(self.into_dispatch())
    }
}
