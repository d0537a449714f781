//! Products by cuBLASLt, on the streams of CubeCL.
//!
//! # Order on the device
//! A product is a task of the device's thread in CubeCL, like the launch of a kernel. That thread
//! runs tasks of all threads in the order of submission, so memory that was reserved earlier
//! exists, and work that was submitted earlier is on its stream. The task resolves the stream on
//! which the calling thread's kernels run, with all of the product's memory: CubeCL then makes the
//! stream wait, on the device, for other streams on which that memory was made, and keeps memory of
//! other streams from being used again until an event after the product has passed. The product
//! goes on that same stream. So the stream itself orders kernels before and after the product. The
//! host only waits once for each product description, for the choice of an algorithm.
//!
//! Scratch memory comes from CubeCL's pool of that stream for each product. Only later work on the
//! stream reuses it, so no two products share it at a time.
//!
//! While the stream records a graph ([`crate::graph`]) the product is recorded: the library puts
//! its kernels on the stream and nothing else, since its scratch memory is given to it. The memory
//! is touched like that of kernels, so that the graph keeps it. The plan exists by then, because a
//! recorded sequence has run before. All memory must be of that stream. This has not run on a
//! device yet.
//!
//! Failures are reported like those of kernels: memory that a product did not write carries the
//! error, and reading it reports the error.

mod launch;
mod library;
mod plan;

use std::any::TypeId;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::backend::Cube;
use burn::cubecl::client::Client;
use burn::cubecl::cuda::CudaRuntime;
use burn::cubecl::device::DeviceId;
use burn::cubecl::device_handle::DeviceHandle;
use burn::cubecl::server::{BufferBinding, Handle as Memory};
use burn::tensor::{DType, Tensor};
use cubecl_server::runtime::Runtime;
use cudarc::driver::CudaContext;

use self::launch::Launch;
use self::library::{Handle, Unavailable};
use self::plan::{Plan, WORKSPACE};
use super::on_device::{has_room, operand};
use super::{ColumnMajor, Epilogue, Matrix, Operand, Operands, Product, Results, Table};
use crate::cube::{Buffer, CubeTensor};

/// Server of CubeCL's CUDA runtime on the device's thread.
type Server = <CudaRuntime as Runtime>::Server;

/// A description and the alignment of its four matrices in bytes.
type Key = (ColumnMajor, [u32; 4]);

/// Most plans that are kept for a device. Runs whose micro-batches differ in length have ever new
/// ones.
const MOST_PLANS: usize = 4096;

/// Libraries of the devices of this process, by number; `None` if the library cannot be used. Like
/// CubeCL's servers, this belongs to the process.
static DEVICES: Mutex<BTreeMap<u16, Option<CublasLt>>> = Mutex::new(BTreeMap::new());

/// cuBLASLt on one CUDA device.
#[derive(Clone)]
pub struct CublasLt(Arc<Inner>);

struct Inner {
    handle: Handle,
    context: Arc<CudaContext>,
    device: DeviceHandle<Server>,
    /// `None` for products without an algorithm in the library.
    plans: Mutex<HashMap<Key, Option<Arc<Mutex<Plan>>>>>,
}

/// Locks a mutex. A panic never leaves the data behind these locks half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_cuda(client: &Client) -> bool {
    client.service_id().service == TypeId::of::<Server>()
}

impl CublasLt {
    /// The library for the device of `x`; `None` if that is not a CUDA device, or if the library
    /// cannot be used, which is reported once per process on standard error.
    pub fn from_tensor<const D: usize>(x: &Tensor<D>) -> Option<Self> {
        let tensor = x.clone().without_autodiff().try_into_primitive::<Cube>().ok()?;
        if !is_cuda(&tensor.client) {
            return None;
        }
        let device = tensor.client.service_id().device;
        let mut devices = lock(&DEVICES);
        if let Some(known) = devices.get(&device.index_id) {
            return known.clone();
        }
        let is_first = devices.values().all(Option::is_some);
        let opened = Self::open(device).map_err(|error| {
            if is_first {
                eprintln!("warning: no matrix products by cuBLASLt, those of Burn are used: {error}");
            }
        });
        devices.entry(device.index_id).or_insert(opened.ok()).clone()
    }

    fn open(device: DeviceId) -> Result<Self, Unavailable> {
        library::load()?;
        // The primary context, which is CubeCL's too.
        let context = CudaContext::new(usize::from(device.index_id))
            .map_err(|error| Unavailable::Refuses("the CUDA driver", error.to_string()))?;
        let (handle, device) = (Handle::new()?, DeviceHandle::new(device));
        Ok(Self(Arc::new(Inner { handle, context, device, plans: Mutex::new(HashMap::new()) })))
    }

    /// Memory of this device behind a tensor without a graph; the only reference to it, if `tensor`
    /// is.
    fn memory<const D: usize>(&self, tensor: Tensor<D>) -> Option<CubeTensor> {
        let tensor = tensor.try_into_primitive::<Cube>().ok()?;
        (tensor.client.service_id() == self.0.device.service_id()).then_some(tensor)
    }

    /// Plan of a product, created at the first request; `None` if the library has no algorithm.
    fn plan(&self, launch: &Launch, alignments: [u32; 4]) -> Option<Arc<Mutex<Plan>>> {
        let key = (launch.product, alignments);
        if let Some(known) = lock(&self.0.plans).get(&key) {
            return known.clone();
        }
        let made = self.0.device.submit_blocking(|server| launch.plan(&self.0, server, alignments));
        // Memory that carries an error and temporary failures are not cached as unsupported. Burn's
        // product will report the error of the memory.
        let made = made.ok()?.ok()?.map(|plan| Arc::new(Mutex::new(plan)));
        let mut plans = lock(&self.0.plans);
        if plans.len() >= MOST_PLANS {
            // Products in flight hold their own plan.
            plans.clear();
        }
        plans.entry(key).or_insert(made).clone()
    }
}

/// The operands of a product in this device's memory.
struct Held {
    a: CubeTensor,
    b: CubeTensor,
    /// The only reference, if the caller gave up its own.
    c: Option<CubeTensor>,
    bias: Option<Buffer>,
    /// Scales of the codes of `a` and `b`.
    scales: Option<[CubeTensor; 2]>,
}

impl CublasLt {
    /// Takes the added tensor out of `operands`. `None` if an operand is on another device or has
    /// another dtype; then `operands` are unchanged.
    ///
    /// # Panics
    /// If an operand is missing, or its memory does not match the product: there is no other bounds
    /// check.
    fn held<const D: usize>(&self, product: &Product, operands: &mut Operands<D>) -> Option<Held> {
        let matrix = |tensor: Tensor<D>, matrix: &Matrix| {
            let tensor = self.memory(tensor)?;
            let fits = tensor.dtype == matrix.element.dtype() && has_room(&tensor.handle, matrix);
            assert!(fits, "a product's matrix {matrix:?} is in memory of {} bytes", tensor.handle.size_in_used());
            Some(tensor)
        };
        let (a, b) = (matrix(operands.a.clone(), &product.a)?, matrix(operands.b.clone(), &product.b)?);
        let mut bias = None;
        if product.epilogue.reads_bias() {
            let tensor = operands.bias.clone().expect("the epilogue adds a bias");
            assert_eq!(tensor.dims(), [product.d.columns], "a bias has an element for each column");
            let is_same = tensor.dtype() == product.d.element.dtype();
            let buffer = Buffer::side_by_side(self.memory(tensor)?)?;
            bias = Some((is_same && alignment(&buffer.0.handle) == MOST_ALIGNED).then_some(buffer)?);
        }
        let mut scales = None;
        if product.a.element.is_code() {
            let both = operands.scales.clone().expect("codes have scales");
            let [of_a, of_b] = both.map(|scale| {
                assert_eq!((scale.dims(), scale.dtype()), ([1], DType::F32), "a factor of 8 bits has one scale");
                self.memory(scale)
            });
            scales = Some([of_a?, of_b?]);
        }
        let mut c = None;
        if let Some(layout) = &product.c {
            c = Some(matrix(operands.c.clone().expect("the product adds a matrix"), layout)?);
            operands.c = None;
        }
        Some(Held { a, b, c, bias, scales })
    }
}

/// Largest load of a kernel, in bytes.
const MOST_ALIGNED: u32 = 16;

/// Alignment of an allocation's address in bytes, at most [`MOST_ALIGNED`].
fn alignment(memory: &Memory) -> u32 {
    power_in(memory.offset_start.unwrap_or(0))
}

/// The largest power of two that divides a number of bytes, at most [`MOST_ALIGNED`].
fn power_in(bytes: u64) -> u32 {
    1 << bytes.trailing_zeros().min(MOST_ALIGNED.ilog2())
}

/// Bytes that the addresses of all matrices are multiples of.
fn alignment_of_all(memory: &Memory, matrix: &Matrix) -> u32 {
    alignment(memory).min(power_in((matrix.apart * matrix.element.bytes()) as u64))
}

/// A product that can be put on the device.
struct Ready {
    launch: Launch,
    plan: Arc<Mutex<Plan>>,
    d: CubeTensor,
    kept: Option<CubeTensor>,
    bias_gradient: Option<CubeTensor>,
}

impl CublasLt {
    /// A product with memory for its results; `None` as for [`Table::multiply`].
    fn ready<const D: usize>(&self, product: &Product, operands: &mut Operands<D>) -> Option<Ready> {
        let shape = product.shape_of_result(operands);
        let Held { a, b, c, bias, scales } = self.held(product, operands)?;
        let new =
            |matrix: Matrix, shape: &[usize]| Buffer(a.clone()).uninitialised(shape.to_vec(), matrix.element.dtype()).0;
        let workspace = a.client.empty(WORKSPACE).binding();
        let d = of_added(product, c.as_ref(), &shape, &workspace).unwrap_or_else(|| new(product.d, &shape));
        assert!(
            has_room(&d.handle, &product.d),
            "{:?} is written to memory of {} bytes",
            product.d,
            d.handle.size_in_used()
        );
        let kept = product.kept().map(|kept| new(kept, &[kept.rows, kept.leading]));
        let is_gradient = product.epilogue == Epilogue::BiasGradient;
        let bias_gradient = is_gradient.then(|| new(product.d, &[product.d.rows]));
        let added = (c.as_ref().unwrap_or(&d), &product.c.unwrap_or(product.d));
        let alignments = [(&b, &product.b), (&a, &product.a), added, (&d, &product.d)]
            .map(|(tensor, matrix)| alignment_of_all(&tensor.handle, matrix));
        let binding = |tensor: &CubeTensor| tensor.handle.clone().binding();
        let launch = Launch {
            product: product.in_columns(),
            scales: product.scales(),
            // The factors change places.
            a: binding(&b),
            b: binding(&a),
            c: c.as_ref().map(binding),
            bias: bias.as_ref().map(|bias| binding(&bias.0)),
            code_scales: scales.as_ref().map(|[of_a, of_b]| [binding(of_b), binding(of_a)]),
            d: binding(&d),
            kept: kept.as_ref().map(binding),
            bias_gradient: bias_gradient.as_ref().map(binding),
            workspace,
            alignments,
        };
        let Some(plan) = self.plan(&launch, alignments) else {
            operands.c = c.map(Tensor::from_primitive::<Cube>);
            return None;
        };
        Some(Ready { launch, plan, d, kept, bias_gradient })
    }
}

impl Table for CublasLt {
    fn operand<const D: usize>(&self, x: Tensor<D>) -> Option<Operand<D>> {
        self.memory(x.clone())?;
        operand(x)
    }

    fn has<const D: usize>(&self, product: &Product, operands: &Operands<D>) -> bool {
        self.ready(product, &mut operands.clone()).is_some()
    }

    fn multiply<const D: usize>(&self, product: &Product, operands: &mut Operands<D>) -> Option<Results<D>> {
        let Ready { launch, plan, d, kept, bias_gradient } = self.ready(product, operands)?;
        let inner = Arc::clone(&self.0);
        self.0.device.submit(move |server| launch.run(&inner, server, &plan));
        let columns = product.d.columns;
        Some(Results {
            d: Tensor::from_primitive::<Cube>(d),
            kept: kept.map(|kept| Tensor::from_primitive::<Cube>(kept).narrow(1, 0, columns)),
            bias_gradient: bias_gradient.map(Tensor::from_primitive::<Cube>),
        })
    }
}

/// The memory of the added tensor, if the result may overwrite it; a copy, if the result is a part
/// of it. `shape` is the result's shape.
///
/// Memory that another stream made is not written: work that comes later on that stream would not
/// wait for this one.
fn of_added(
    product: &Product,
    c: Option<&CubeTensor>,
    shape: &[usize],
    workspace: &BufferBinding,
) -> Option<CubeTensor> {
    let c = c.filter(|_| product.is_onto())?;
    if c.handle.can_mut() && c.handle.stream == workspace.stream {
        return Some(c.clone());
    }
    let Matrix { rows, columns, batches, .. } = product.d;
    let is_part = rows * columns * batches < shape.iter().product();
    is_part.then(|| c.copy())
}
