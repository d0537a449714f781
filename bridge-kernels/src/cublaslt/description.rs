//! Description of a matrix product: sizes, strides, dtypes and epilogue. Rows are contiguous, as in
//! tensors; a translation gives the columns that cuBLASLt expects. Plain data, without computation.

use burn::tensor::DType;

use crate::cpu::small::{self, decode};

/// Storage of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32 bits.
    F32,
    /// 16 bits, IEEE 754.
    F16,
    /// 16 bits, the upper half of float32.
    BF16,
    /// 8 bits, four of them exponent, of a factor with a scale (Micikevicius et al.,
    /// arXiv:2209.05433).
    E4M3,
    /// 8 bits, five of them exponent, likewise.
    E5M2,
}

impl Element {
    /// `None` for dtypes without products, and for 8-bit codes, which are not a float dtype of
    /// tensors.
    pub fn from_dtype(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    /// The dtype of a tensor with such elements. Four 8-bit codes are stored as the bits of one
    /// float32, whose value is never used, because float tensors have no smaller element.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 | Self::E4M3 | Self::E5M2 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
        }
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::E4M3 | Self::E5M2 => 1,
        }
    }

    /// True if it is a code of 8 bits.
    pub fn is_code(self) -> bool {
        self.bytes() == 1
    }

    /// Value of a code, without its scale.
    ///
    /// # Panics
    /// If the elements are not codes.
    pub fn value_of(self, code: u8) -> f32 {
        match self {
            Self::E4M3 => decode::<small::E4M3>(u32::from(code)),
            Self::E5M2 => decode::<small::E5M2>(u32::from(code)),
            Self::F32 | Self::F16 | Self::BF16 => panic!("{self:?} is no code"),
        }
    }
}

/// Dimension whose elements are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Row-major.
    Rows,
    /// Column-major.
    Columns,
}

impl Order {
    fn other(self) -> Self {
        match self {
            Self::Rows => Self::Columns,
            Self::Columns => Self::Rows,
        }
    }
}

/// A matrix in memory, which begins at its first element, or a batch of matrices alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Number of rows, at least one.
    pub rows: usize,
    /// Number of columns, at least one.
    pub columns: usize,
    /// Elements from the start of a row, or of a column by `order`, to the start of the next.
    pub leading: usize,
    /// Contiguous dimension.
    pub order: Order,
    /// Storage of the elements.
    pub element: Element,
    /// Number of matrices, at least one.
    pub batches: usize,
    /// Elements from the start of a matrix to the start of the next: 0 if all are the same memory,
    /// and if there is but one.
    pub apart: usize,
}

impl Matrix {
    /// A matrix whose rows follow each other without gaps.
    ///
    /// # Panics
    /// If it has no elements.
    pub fn contiguous([rows, columns]: [usize; 2], element: Element) -> Self {
        assert!(rows > 0 && columns > 0, "a matrix of a product has elements, got {rows} x {columns}");
        Self { rows, columns, leading: columns, order: Order::Rows, element, batches: 1, apart: 0 }
    }

    /// Batch of `batches` such matrices, each `apart` elements after the last.
    ///
    /// # Panics
    /// If `batches` is 0.
    pub fn batched(self, batches: usize, apart: usize) -> Self {
        assert!(batches > 0, "a batch of a product has matrices");
        Self { batches, apart: if batches == 1 { 0 } else { apart }, ..self }
    }

    /// The matrices of a tensor whose elements follow each other without gaps; the last two
    /// dimensions are rows and columns.
    ///
    /// # Panics
    /// If it has no elements, or fewer than two dimensions.
    pub fn from_shape(shape: &[usize], element: Element) -> Self {
        let (batches, sizes) = shape.split_last_chunk::<2>().expect("a matrix has two dimensions");
        Self::contiguous(*sizes, element).batched(batches.iter().product(), sizes[0] * sizes[1])
    }

    /// The matrices of a tensor with these strides. `None` if [`Self::strided`] is, or if no one
    /// stride leads from each matrix to the next.
    ///
    /// # Panics
    /// If there are fewer than two dimensions, or not a stride for each.
    pub fn from_strides(shape: &[usize], strides: &[usize], element: Element) -> Option<Self> {
        assert_eq!(shape.len(), strides.len(), "a dimension has a stride");
        let (sizes, strides) = (shape.split_last_chunk::<2>(), strides.split_last_chunk::<2>());
        let ((batches, sizes), (apart, strides)) = sizes.zip(strides).expect("a matrix has two dimensions");
        let matrix = Self::strided(*sizes, *strides, element)?;
        let count: usize = batches.iter().product();
        (count > 0).then_some(())?;
        let mut step = None;
        let mut inside = 1;
        // The stride of a dimension of one element has no meaning.
        for (size, stride) in batches.iter().zip(apart).rev().filter(|(size, _)| **size > 1) {
            let step = *step.get_or_insert(*stride);
            (*stride == step * inside).then_some(())?;
            inside *= size;
        }
        Some(matrix.batched(count, step.unwrap_or(0)))
    }

    /// The matrix of a tensor with these strides (elements from a row to the next, from a column to
    /// the next).
    ///
    /// `None` if it is empty, or if neither rows nor columns are runs of memory that do not
    /// overlap: broadcast tensors, every second column. Such a tensor is copied first.
    pub fn strided([rows, columns]: [usize; 2], strides: [usize; 2], element: Element) -> Option<Self> {
        if rows == 0 || columns == 0 {
            return None;
        }
        let [by_row, by_column] = strides;
        let leads = |side_by_side: usize, run: usize, runs: usize, stride: usize| {
            if run > 1 && side_by_side != 1 {
                return None;
            }
            match runs {
                // The stride of a dimension of one element has no meaning.
                1 => Some(run),
                _ => (stride >= run).then_some(stride),
            }
        };
        let plain = Self::contiguous([rows, columns], element);
        if let Some(leading) = leads(by_column, columns, rows, by_row) {
            return Some(Self { leading, ..plain });
        }
        let leading = leads(by_row, rows, columns, by_column)?;
        Some(Self { leading, order: Order::Columns, ..plain })
    }

    /// The transposed matrices in the same memory.
    pub fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, order: self.order.other(), ..self }
    }

    /// Elements from the first to the last, gaps included.
    pub fn span(&self) -> usize {
        (self.batches - 1) * self.apart + self.span_of_one()
    }

    /// As [`Self::span`], of a single matrix.
    fn span_of_one(&self) -> usize {
        let (runs, run) = match self.order {
            Order::Rows => (self.rows, self.columns),
            Order::Columns => (self.columns, self.rows),
        };
        (runs - 1) * self.leading + run
    }

    /// True if no two elements share memory. Rows and columns never overlap, but matrices may.
    fn is_apart(&self) -> bool {
        self.batches == 1 || self.apart >= self.span_of_one()
    }

    /// Rows, columns, and how many matrices.
    fn sizes(&self) -> [usize; 3] {
        [self.rows, self.columns, self.batches]
    }

    /// The memory as cuBLASLt reads it, and whether the transpose of this matrix is then read as it
    /// is.
    fn in_columns(self) -> (Layout, Operation) {
        let Self { rows, columns, leading, element, batches, apart, .. } = self;
        let layout = Layout { rows, columns, leading, element, batches, apart };
        match self.order {
            // Rows side by side are the columns of the transpose.
            Order::Rows => (Layout { rows: columns, columns: rows, ..layout }, Operation::AsItIs),
            Order::Columns => (layout, Operation::Transposed),
        }
    }
}

/// Precision of products and sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Elements as they are; sums in float32.
    Float32,
    /// float32 elements are rounded to TF32 (8 bits of exponent, 10 of fraction) before they are
    /// multiplied; sums in float32.
    Tf32,
}

/// Epilogue: computation on the result before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// No epilogue.
    Plain,
    /// A bias of one element for each column of the result is added.
    Bias,
    /// GELU by the tanh approximation (Hendrycks and Gimpel, arXiv:1606.08415), which is the one
    /// that cuBLASLt has.
    Gelu {
        /// True if a bias is added first.
        bias: bool,
        /// True if the value before GELU is written too, for backward.
        keeps: bool,
    },
    /// The result is unchanged, and the sum of each row of the first factor is written too. If that
    /// factor is the transpose of the outputs' gradient, these sums are the gradients of the bias.
    BiasGradient,
}

impl Epilogue {
    /// True if a bias is read.
    pub fn reads_bias(self) -> bool {
        matches!(self, Self::Bias | Self::Gelu { bias: true, .. })
    }

    /// True if the value before an activation is written.
    pub fn keeps(self) -> bool {
        matches!(self, Self::Gelu { keeps: true, .. })
    }
}

/// The columns of the epilogue's kept output must be a multiple of this for cuBLASLt.
const KEPT_MULTIPLE: usize = 8;
/// The number of codes along the sum must be a multiple of this for cuBLASLt.
pub const CODES_MULTIPLE: usize = 16;

/// `d = epilogue(alpha * a b + beta * c)`, in rows, for each product of a batch.
///
/// # Shapes
/// `a` `[m, k]`, `b` `[k, n]`, `c` and `d` `[m, n]`, a bias `[n]`, the kept output `[m, n]`, a
/// bias' gradient `[m]`. All have the same number of matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// The first factor.
    pub(crate) a: Matrix,
    /// The second factor.
    pub(crate) b: Matrix,
    /// Summand; `None` without one, and then `beta` is zero.
    pub(crate) c: Option<Matrix>,
    /// The result: rows and matrices without gaps, or written over the added matrix `c`.
    pub(crate) d: Matrix,
    /// Factor of the product.
    pub(crate) alpha: f32,
    /// Factor of the added matrix `c`.
    pub(crate) beta: f32,
    /// Epilogue of the sum.
    pub(crate) epilogue: Epilogue,
    /// Precision of the computation.
    pub(crate) compute: Compute,
}

impl Product {
    /// `d = a b`, with elements of `d` stored as `result` says. Factors of 16 bits may have a
    /// result of 32, factors of 8 bits have one of 16 or 32.
    ///
    /// `None` if the factors are stored differently, if the result is narrower than they are or of
    /// another 16 bits, or if TF32 is requested for factors that are not float32. Codes of 8 bits
    /// of either kind may be multiplied, but for two of E5M2, as one matrix each: rows of `a`, and
    /// columns of `b`, lie side by side, and [`CODES_MULTIPLE`] divides the terms of a sum.
    ///
    /// # Panics
    /// If the inner sizes or the numbers of matrices differ.
    pub fn new(a: Matrix, b: Matrix, result: Element, compute: Compute) -> Option<Self> {
        assert_eq!(a.columns, b.rows, "a product of {} x {} and {} x {}", a.rows, a.columns, b.rows, b.columns);
        assert_eq!(a.batches, b.batches, "a product of {} matrices and {}", a.batches, b.batches);
        let fits = match a.element.is_code() || b.element.is_code() {
            true => are_codes(&a, &b) && !result.is_code(),
            false => a.element == b.element && (result == a.element || result == Element::F32),
        };
        let computes = compute == Compute::Float32 || a.element == Element::F32;
        let d = Matrix::from_shape(&[a.batches, a.rows, b.columns], result);
        let (c, alpha, beta, epilogue) = (None, 1.0, 0.0, Epilogue::Plain);
        (fits && computes).then_some(Self { a, b, c, d, alpha, beta, epilogue, compute })
    }

    /// With `beta * c` added. `None` unless `c` is stored as the result is, in rows.
    ///
    /// # Panics
    /// If the sizes are not those of the result.
    pub fn plus(self, c: Matrix, beta: f32) -> Option<Self> {
        assert_eq!(c.sizes(), self.d.sizes(), "what is added has the sizes of the result");
        let fits = c.order == Order::Rows && c.element == self.d.element;
        fits.then_some(Self { c: Some(c), beta, ..self })
    }

    /// With the product added to `c`, in the memory of `c`, whose gaps stay as they are: `c` may be
    /// a part of the tensor. `None` as for [`Self::plus`], or if matrices of `c` overlap.
    ///
    /// # Panics
    /// If the sizes are not those of the result.
    pub fn onto(self, c: Matrix) -> Option<Self> {
        let sum = self.plus(c, 1.0)?;
        c.is_apart().then_some(Self { d: c, ..sum })
    }

    /// True if the result has the layout of the summand, so that it may have the summand's memory.
    pub fn is_onto(&self) -> bool {
        self.c == Some(self.d)
    }

    /// The result.
    pub fn result(&self) -> Matrix {
        self.d
    }

    /// The scalar factors of the product and of the added matrix.
    pub fn scales(&self) -> [f32; 2] {
        [self.alpha, self.beta]
    }

    /// With the product multiplied by `alpha`.
    pub fn times(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// With `epilogue` instead of the previous one.
    ///
    /// # Panics
    /// If there are several matrices: they have no epilogue.
    pub fn then(self, epilogue: Epilogue) -> Self {
        assert!(self.d.batches == 1 || epilogue == Epilogue::Plain, "a batch of products has no epilogue");
        Self { epilogue, ..self }
    }

    /// Matrix that the epilogue writes: rows as long as the result's, with padding after each
    /// where cuBLASLt needs it.
    pub fn kept(&self) -> Option<Matrix> {
        let leading = self.d.columns.next_multiple_of(KEPT_MULTIPLE);
        self.epilogue.keeps().then_some(Matrix { leading, ..self.d })
    }

    /// The same product for a library that knows columns only: `d^T = b^T a^T`, since a matrix in
    /// rows is its transpose in columns.
    pub fn in_columns(&self) -> ColumnMajor {
        let ((a, operation_a), (b, operation_b)) = (self.b.in_columns(), self.a.in_columns());
        let d = self.d.in_columns().0;
        ColumnMajor {
            m: self.d.columns,
            n: self.d.rows,
            k: self.a.columns,
            a,
            b,
            c: self.c.map_or(d, |c| c.in_columns().0),
            d,
            operations: [operation_a, operation_b],
            epilogue: self.epilogue,
            leading_of_kept: self.kept().map(|kept| kept.leading),
            compute: self.compute,
        }
    }
}

/// True if these are factors of 8 bits in the layout that cuBLASLt needs.
fn are_codes(a: &Matrix, b: &Matrix) -> bool {
    let is_one = |matrix: &Matrix| matrix.element.is_code() && matrix.batches == 1;
    let is_whole = |run: usize| run.is_multiple_of(CODES_MULTIPLE);
    let are_both_wide = [a.element, b.element] == [Element::E5M2; 2];
    let lie_along = a.order == Order::Rows
        && b.order == Order::Columns
        && [a.columns, a.leading, b.leading].map(is_whole) == [true; 3];
    is_one(a) && is_one(b) && !are_both_wide && lie_along
}

/// A matrix in columns: the element of row `r` and column `c` is `c * leading + r` elements after
/// the first. In a batch, matrix `i` is `i * apart` after the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Number of rows in memory, before any transposition.
    pub rows: usize,
    /// Number of columns in memory.
    pub columns: usize,
    /// Elements from the start of a column to the start of the next, at least `rows`.
    pub leading: usize,
    /// Storage of the elements.
    pub element: Element,
    /// Number of matrices; all layouts of a product have as many.
    pub batches: usize,
    /// Elements from the start of a matrix to the start of the next: 0 if all are the same memory.
    pub apart: usize,
}

/// Operation on a factor when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Read as its layout stores it.
    AsItIs,
    /// Transposed.
    Transposed,
}

/// A product in columns: `d [m, n] = epilogue(alpha * op(a) [m, k] op(b) [k, n] + beta * c [m,
/// n])`, but for the two factors.
///
/// A bias has an element for each row of `d`, a bias' gradient one for each column: the sum of that
/// column of `op(b)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ColumnMajor {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// First factor.
    pub a: Layout,
    /// Second factor.
    pub b: Layout,
    /// Layout of the summand; the result's layout without one.
    pub c: Layout,
    /// The result.
    pub d: Layout,
    /// Operations on the factors.
    pub operations: [Operation; 2],
    /// Epilogue of the sum.
    pub epilogue: Epilogue,
    /// Leading dimension of the epilogue's kept output, which has the size and dtype of the result.
    pub leading_of_kept: Option<usize>,
    /// Precision of the computation.
    pub compute: Compute,
}
