//! One product as cuBLASLt has it: descriptor, layouts, and the algorithm that its heuristics
//! choose.

use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use crate::cublaslt::{ColumnMajor, Compute, Element, Epilogue, Layout, Operation};

/// Bytes of scratch memory that an algorithm may use, as NVIDIA recommends for Hopper.
pub(super) const WORKSPACE: usize = 32 << 20;

/// Device addresses of a product's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub a: u64,
    pub b: u64,
    /// Address of the summand; that of the result without one.
    pub c: u64,
    pub d: u64,
    /// The bias, or its gradient.
    pub bias: Option<u64>,
    /// Address of the epilogue's matrix.
    pub kept: Option<u64>,
    /// The scales of `a` and `b`, if these are codes.
    pub code_scales: Option<[u64; 2]>,
    /// [`WORKSPACE`] bytes.
    pub workspace: u64,
}

/// A descriptor of a product.
struct Descriptor(sys::cublasLtMatmulDesc_t);

impl Descriptor {
    fn set<T>(&mut self, attribute: sys::cublasLtMatmulDescAttributes_t, value: T) -> Result<(), CublasError> {
        let bytes = (&raw const value).cast::<c_void>();
        // SAFETY: the descriptor lives, nobody else has it, and the bytes are copied before the
        // call returns.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, bytes, size_of::<T>()) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it was created, and nobody else has it.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// Matrices in columns.
struct MatrixLayout(sys::cublasLtMatrixLayout_t);

impl MatrixLayout {
    fn new(layout: Layout) -> Result<Self, CublasError> {
        use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
        let Layout { rows, columns, leading, element, batches, apart } = layout;
        let too_large = |_| CublasError(sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE);
        let (leading, apart) = (i64::try_from(leading).map_err(too_large)?, i64::try_from(apart).map_err(too_large)?);
        let raw = result::create_matrix_layout(data_type(element), rows as u64, columns as u64, leading)?;
        let mut made = Self(raw);
        if batches > 1 {
            let batches = i32::try_from(batches).map_err(too_large)?;
            made.set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batches)?;
            made.set(Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, apart)?;
        }
        Ok(made)
    }

    fn set<T>(&mut self, attribute: sys::cublasLtMatrixLayoutAttribute_t, value: T) -> Result<(), CublasError> {
        let bytes = (&raw const value).cast::<c_void>();
        // SAFETY: as for a descriptor.
        unsafe { result::set_matrix_layout_attribute(self.0, attribute, bytes, size_of::<T>()) }
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: it was created, and nobody else has it.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// Constraints on an algorithm.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn set<T>(&mut self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: T) -> Result<(), CublasError> {
        let bytes = (&raw const value).cast::<c_void>();
        // SAFETY: as for a descriptor.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, bytes, size_of::<T>()) }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was created, and nobody else has it.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

fn data_type(element: Element) -> sys::cudaDataType_t {
    match element {
        Element::F32 => sys::cudaDataType_t::CUDA_R_32F,
        Element::F16 => sys::cudaDataType_t::CUDA_R_16F,
        Element::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        Element::E4M3 => sys::cudaDataType_t::CUDA_R_8F_E4M3,
        Element::E5M2 => sys::cudaDataType_t::CUDA_R_8F_E5M2,
    }
}

fn compute_type(compute: Compute) -> sys::cublasComputeType_t {
    match compute {
        Compute::Float32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        Compute::Tf32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
    }
}

fn epilogue(epilogue: Epilogue) -> sys::cublasLtEpilogue_t {
    use sys::cublasLtEpilogue_t as Lt;
    match epilogue {
        Epilogue::Plain => Lt::CUBLASLT_EPILOGUE_DEFAULT,
        Epilogue::Bias => Lt::CUBLASLT_EPILOGUE_BIAS,
        Epilogue::Gelu { bias: false, keeps: false } => Lt::CUBLASLT_EPILOGUE_GELU,
        Epilogue::Gelu { bias: true, keeps: false } => Lt::CUBLASLT_EPILOGUE_GELU_BIAS,
        Epilogue::Gelu { bias: false, keeps: true } => Lt::CUBLASLT_EPILOGUE_GELU_AUX,
        Epilogue::Gelu { bias: true, keeps: true } => Lt::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        // The first factor in rows is the second in columns.
        Epilogue::BiasGradient => Lt::CUBLASLT_EPILOGUE_BGRADB,
    }
}

/// The library's `cublasOperation_t`, which the bindings to this part of it lack.
fn operation(operation: Operation) -> i32 {
    match operation {
        Operation::AsItIs => 0,
        Operation::Transposed => 1,
    }
}

/// A product that can be run.
pub(super) struct Plan {
    descriptor: Descriptor,
    /// Layouts of `a`, `b`, `c` and `d`.
    layouts: [MatrixLayout; 4],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

// SAFETY: descriptors and layouts are plain memory of the library, bound to no thread.
unsafe impl Send for Plan {}

impl Plan {
    /// Queries the heuristics of the library once. `alignments` are the alignments of `a`, `b`, `c`
    /// and `d` in bytes.
    ///
    /// # Errors
    /// If the library has no algorithm for the product (`CUBLAS_STATUS_NOT_SUPPORTED`), or fails.
    pub fn new(
        handle: sys::cublasLtHandle_t,
        product: &ColumnMajor,
        addresses: &Addresses,
        alignments: [u32; 4],
    ) -> Result<Self, CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        use sys::cublasLtMatmulPreferenceAttributes_t as Preferred;
        let raw = result::create_matmul_desc(compute_type(product.compute), sys::cudaDataType_t::CUDA_R_32F)?;
        let mut descriptor = Descriptor(raw);
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, operation(product.operations[0]))?;
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, operation(product.operations[1]))?;
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(product.epilogue))?;
        if let Some(leading) = product.leading_of_kept {
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, leading as i64)?;
        }
        let of = MatrixLayout::new;
        let layouts = [of(product.a)?, of(product.b)?, of(product.c)?, of(product.d)?];
        let mut preference = Preference(result::create_matmul_pref()?);
        preference.set(Preferred::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE as u64)?;
        // Parts of a long sum may be added in the workspace, but as float32: not in the result's 16
        // bits.
        let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(Preferred::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, scheme)?;
        let attributes = [
            Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        for (attribute, bytes) in attributes.into_iter().zip(alignments) {
            preference.set(attribute, bytes)?;
        }
        set_addresses(&mut descriptor, addresses)?;
        let [a, b, c, d] = layouts.each_ref().map(|layout| layout.0);
        // SAFETY: all objects live until the call returns, and it reads no memory of the device.
        let found = unsafe { result::get_matmul_algo_heuristic(handle, descriptor.0, a, b, c, d, preference.0) }?;
        Ok(Self { descriptor, layouts, algorithm: found.algo })
    }

    /// Puts the product on a stream, in the current context.
    ///
    /// # Errors
    /// If the library refuses; then nothing is on the stream.
    ///
    /// # Safety
    /// At the addresses there is, or will be when the stream comes to it, memory of the sizes that
    /// the plan was made for, in the dtypes, and aligned, as it was made for; nothing else on the
    /// device writes it, or reads what the product writes, meanwhile.
    pub unsafe fn run(
        &mut self,
        handle: sys::cublasLtHandle_t,
        scales: [f32; 2],
        addresses: &Addresses,
        stream: sys::cudaStream_t,
    ) -> Result<(), CublasError> {
        set_addresses(&mut self.descriptor, addresses)?;
        let [alpha, beta] = scales.each_ref().map(|scale| (&raw const *scale).cast::<c_void>());
        let [a, b, c, d] = self.layouts.each_ref().map(|layout| layout.0);
        let Addresses { a: at_a, b: at_b, c: at_c, d: at_d, workspace, .. } = *addresses;
        let [at_a, at_b, at_c, at_d, workspace] = [at_a, at_b, at_c, at_d, workspace].map(|at| at as *mut c_void);
        let (descriptor, algorithm) = (self.descriptor.0, &raw const self.algorithm);
        // SAFETY: the objects are those that the algorithm was chosen for. Scales are read before
        // the call returns. The rest is the caller's.
        unsafe {
            result::matmul(
                handle, descriptor, alpha, beta, at_a, a, at_b, b, at_c, c, at_d, d, algorithm, workspace, WORKSPACE,
                stream,
            )
        }
    }
}

/// The descriptor has those addresses that are not arguments of a call.
fn set_addresses(descriptor: &mut Descriptor, addresses: &Addresses) -> Result<(), CublasError> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    if let Some(bias) = addresses.bias {
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
    }
    if let Some(kept) = addresses.kept {
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, kept)?;
    }
    if let Some([of_a, of_b]) = addresses.code_scales {
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_a)?;
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_b)?;
    }
    Ok(())
}
