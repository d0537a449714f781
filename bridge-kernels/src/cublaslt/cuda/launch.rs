//! Launch of one product, on the device's thread.

use std::sync::Mutex;

use burn::cubecl::server::{BufferBinding, ServerError};
use cubecl_server::driver::DriverError;
use cubecl_server::id::KernelId;
use cubecl_server::stream::{ExecuteScope, WriteScoped};
use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::sys::{cublasStatus_t, cudaStream_t};

use super::plan::{Addresses, Plan};
use super::{CublasLt, Inner, Server, lock};
use crate::cublaslt::ColumnMajor;

/// A product and its memory, with the factors as they are in columns.
pub(super) struct Launch {
    pub product: ColumnMajor,
    /// `alpha` and `beta`.
    pub scales: [f32; 2],
    pub a: BufferBinding,
    pub b: BufferBinding,
    pub c: Option<BufferBinding>,
    pub bias: Option<BufferBinding>,
    /// Scales of the codes of `a` and `b`.
    pub code_scales: Option<[BufferBinding; 2]>,
    pub d: BufferBinding,
    pub kept: Option<BufferBinding>,
    pub bias_gradient: Option<BufferBinding>,
    /// Reserved for this product by the calling thread, so its stream is the one on which that
    /// thread's kernels run.
    pub workspace: BufferBinding,
    /// Bytes that the addresses of `a`, `b`, `c` and `d` are multiples of.
    pub alignments: [u32; 4],
}

impl Launch {
    fn read(&self) -> impl Iterator<Item = &BufferBinding> {
        [&self.a, &self.b].into_iter().chain(&self.c).chain(&self.bias).chain(self.code_scales.iter().flatten())
    }

    fn written(&self) -> impl Iterator<Item = &BufferBinding> {
        [&self.d].into_iter().chain(&self.kept).chain(&self.bias_gradient)
    }

    /// Makes the context of the device current, and calls `then` with the product's addresses and
    /// its stream, which waits for every other stream that the memory comes from. Work that `then`
    /// puts on the stream runs after that wait, and before the event that releases the memory.
    fn resolved<R>(
        &self,
        inner: &Inner,
        server: &mut Server,
        then: impl FnOnce(&Addresses, cudaStream_t) -> Result<R, ServerError>,
    ) -> Result<R, ServerError> {
        inner.context.bind_to_thread().map_err(|error| DriverError::new("cuCtxSetCurrent", error.0 as u32))?;
        let all = || self.read().chain(self.written()).chain([&self.workspace]);
        let stream = self.workspace.stream;
        let is_recorded = server.capturing(stream).is_some_and(|capture| capture.is_recording());
        // The events by which streams wait for each other would be recorded on one and waited for
        // on another, which a graph of one is not.
        if is_recorded && all().any(|binding| binding.stream != stream) {
            return Err(ServerError::graph_state("a recorded product by cuBLASLt has memory of another stream"));
        }
        let mut streams = server.write_streams().resolve(stream, all())?;
        if is_recorded {
            // The graph keeps the pages of touched memory. The enclosing scope records the written
            // memory.
            for binding in all() {
                streams.current().capturing.touch(binding.stream, binding.memory.descriptor().location());
            }
        }
        let mut address = |binding: &BufferBinding| -> Result<u64, ServerError> {
            let BufferBinding { memory, offset_start, offset_end, stream, .. } = binding.clone();
            let pool = &mut streams.get(&stream).memory_management_gpu;
            Ok(pool.get_resource(memory, offset_start, offset_end)?.ptr)
        };
        let d = address(&self.d)?;
        let addresses = Addresses {
            a: address(&self.a)?,
            b: address(&self.b)?,
            c: self.c.as_ref().map_or(Ok(d), &mut address)?,
            d,
            bias: self.bias.as_ref().or(self.bias_gradient.as_ref()).map(&mut address).transpose()?,
            kept: self.kept.as_ref().map(&mut address).transpose()?,
            code_scales: match &self.code_scales {
                Some([of_a, of_b]) => Some([address(of_a)?, address(of_b)?]),
                None => None,
            },
            workspace: address(&self.workspace)?,
        };
        let found = [addresses.a, addresses.b, addresses.c, addresses.d];
        if found.iter().zip(self.alignments).any(|(address, bytes)| !address.is_multiple_of(u64::from(bytes))) {
            return Err(ServerError::graph_state("memory for cuBLASLt is not aligned as its offset says"));
        }
        let stream = streams.current().sys.cast();
        then(&addresses, stream)
        // Dropping `streams` notes an event after the product for memory of other streams.
    }

    /// Chooses an algorithm; `None` if the library has none for such products. Does not launch
    /// anything.
    ///
    /// # Errors
    /// If memory of the product carries an error or is missing, or if the library fails, which may
    /// be temporary.
    pub fn plan(&self, inner: &Inner, server: &mut Server, alignments: [u32; 4]) -> Result<Option<Plan>, ServerError> {
        self.resolved(inner, server, |addresses, _| {
            match Plan::new(inner.handle.0, &self.product, addresses, alignments) {
                Ok(plan) => Ok(Some(plan)),
                Err(CublasError(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(None),
                Err(error) => Err(DriverError::new("cublasLtMatmulAlgoGetHeuristic", error.0 as u32).into()),
            }
        })
    }

    /// Puts the product on its stream. An error goes to the memory that it then leaves unwritten.
    pub fn run(&self, inner: &Inner, server: &mut Server, plan: &Mutex<Plan>) {
        let (stream, kernel) = (self.workspace.stream, KernelId::new::<CublasLt>());
        let mut written = server.write_set();
        written.extend(self.written().cloned());
        let scope = ExecuteScope::launching(server, kernel, stream, self.read(), written);
        // The outcome is kept with the memory.
        let _ = scope.execute(|server| {
            self.resolved(inner, server, |addresses, stream| {
                // SAFETY: the bindings hold the memory, whose sizes and dtypes were compared with
                // the product's when it was described, and whose alignment was just compared. All
                // that uses it is ordered by this stream, or by events that it waits for.
                let ran = unsafe { lock(plan).run(inner.handle.0, self.scales, addresses, stream) };
                ran.map_err(|error| DriverError::new("cublasLtMatmul", error.0 as u32).into())
            })
        });
    }
}
