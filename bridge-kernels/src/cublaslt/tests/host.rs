//! Host implementation that replaces cuBLASLt in tests, here and on devices. It reads only the
//! translated description: factors in columns, leading dimensions, batches, operations, epilogue.
//! Sums are float64; each element is rounded once, when it is stored.

use half::{bf16, f16};

use crate::cublaslt::{ColumnMajor, Compute, Element, Epilogue, Layout, Operation};

/// Memory from a matrix' first element on, each element widened.
pub(crate) struct Memory(pub Vec<f32>);

impl Memory {
    /// Unwritten memory: NaN shows reads before writes.
    pub fn unwritten(elements: usize) -> Self {
        Self(vec![f32::NAN; elements])
    }

    fn at(&self, layout: Layout, [batch, row, column]: [usize; 3]) -> f64 {
        f64::from(self.0[element_index(layout, [batch, row, column])])
    }

    fn set(&mut self, place: usize, value: f64, element: Element) {
        assert!(self.0[place].is_nan(), "element {place} is written twice");
        self.0[place] = stored(value, element);
    }
}

/// Index of an element.
fn element_index(layout: Layout, [batch, row, column]: [usize; 3]) -> usize {
    let is_inside = row < layout.rows && column < layout.columns && batch < layout.batches;
    assert!(is_inside, "element {:?} is outside {layout:?}", [batch, row, column]);
    batch * layout.apart + column * layout.leading + row
}

/// Value after a round trip through the element's storage.
pub(crate) fn stored(value: f64, element: Element) -> f32 {
    match element {
        Element::F32 => value as f32,
        Element::F16 => f16::from_f64(value).to_f32(),
        Element::BF16 => bf16::from_f64(value).to_f32(),
        Element::E4M3 | Element::E5M2 => panic!("no result has 8 bits"),
    }
}

/// A factor as the product reads it: TF32 has the upper 10 bits of the fraction.
fn factor(value: f64, compute: Compute) -> f64 {
    match compute {
        Compute::Float32 => value,
        Compute::Tf32 => {
            let bits = (value as f32).to_bits();
            f64::from(f32::from_bits((bits + 0x0fff + ((bits >> 13) & 1)) & !0x1fff))
        }
    }
}

/// GELU by the tanh approximation.
pub(crate) fn gelu(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + u.tanh())
}

/// Inputs: factors, summand, bias.
pub(crate) struct Read<'a> {
    pub a: &'a Memory,
    pub b: &'a Memory,
    pub c: Option<&'a Memory>,
    pub bias: Option<&'a Memory>,
    /// Scales of the codes of `a` and `b`; 1 for other elements.
    pub scales: [f32; 2],
}

/// Outputs. `extra` is the epilogue's matrix, or a bias' gradient.
pub(crate) struct Written {
    pub d: Memory,
    pub extra: Option<Memory>,
}

/// Computes a product in columns.
pub(crate) fn run(product: &ColumnMajor, [alpha, beta]: [f32; 2], read: &Read) -> Written {
    let ColumnMajor { m, n, k, operations, epilogue, compute, .. } = *product;
    check(product);
    let element = |memory: &Memory, layout, operation, [batch, row, column]: [usize; 3]| match operation {
        Operation::AsItIs => memory.at(layout, [batch, row, column]),
        Operation::Transposed => memory.at(layout, [batch, column, row]),
    };
    let first = |batch, row, column| element(read.a, product.a, operations[0], [batch, row, column]);
    let second = |batch, row, column| element(read.b, product.b, operations[1], [batch, row, column]);
    let scale = read.scales.iter().fold(f64::from(alpha), |product, scale| product * f64::from(*scale));
    let stored_as = product.d.element;
    let mut d = Memory::unwritten(element_index(product.d, [product.d.batches - 1, m - 1, n - 1]) + 1);
    let mut extra = match (epilogue, product.leading_of_kept) {
        (Epilogue::BiasGradient, _) => Some(Memory::unwritten(n)),
        (_, Some(leading)) => Some(Memory::unwritten(leading * n)),
        _ => None,
    };
    let columns = (0..product.d.batches).flat_map(|batch| (0..n).map(move |column| (batch, column)));
    for (batch, column) in columns {
        for row in 0..m {
            let term = |i| factor(first(batch, row, i), compute) * factor(second(batch, i, column), compute);
            let mut value = scale * (0..k).map(term).sum::<f64>();
            if beta != 0.0 {
                value += f64::from(beta) * read.c.expect("a sum has an addend").at(product.c, [batch, row, column]);
            }
            if epilogue.reads_bias() {
                value += f64::from(read.bias.expect("the epilogue reads a bias").0[row]);
            }
            if let Epilogue::Gelu { keeps, .. } = epilogue {
                if keeps {
                    let place = column * product.leading_of_kept.expect("there is room for it") + row;
                    extra.as_mut().expect("there is memory for it").set(place, value, stored_as);
                }
                value = gelu(value);
            }
            d.set(element_index(product.d, [batch, row, column]), value, stored_as);
        }
        if epilogue == Epilogue::BiasGradient {
            let sum = (0..k).map(|i| second(batch, i, column)).sum();
            extra.as_mut().expect("there is memory for it").set(column, sum, stored_as);
        }
    }
    Written { d, extra }
}

/// Copies a product's result into its place in memory that has other elements too.
pub(crate) fn put(written: &Memory, layout: Layout, whole: &mut Memory) {
    for batch in 0..layout.batches {
        for column in 0..layout.columns {
            let run =
                element_index(layout, [batch, 0, column])..=element_index(layout, [batch, layout.rows - 1, column]);
            whole.0[run.clone()].copy_from_slice(&written.0[run]);
        }
    }
}

/// Checks cuBLASLt's requirements on layouts.
fn check(product: &ColumnMajor) {
    let ColumnMajor { m, n, k, operations, .. } = *product;
    for layout in [product.a, product.b, product.c, product.d] {
        assert!(layout.leading >= layout.rows, "columns overlap: {layout:?}");
        assert_eq!(layout.batches, product.d.batches, "{product:?}");
        assert!(layout.batches > 1 || layout.apart == 0, "a single matrix has none behind it: {layout:?}");
    }
    assert!(product.d.batches == 1 || product.epilogue == Epilogue::Plain, "{product:?}");
    if product.a.element.is_code() || product.b.element.is_code() {
        let is_whole = |size: usize| size.is_multiple_of(16);
        assert!([k, product.a.leading, product.b.leading].map(is_whole) == [true; 3], "{product:?}");
        assert_eq!(operations, [Operation::Transposed, Operation::AsItIs], "codes have one layout: {product:?}");
        assert!(product.a.element.is_code() && product.b.element.is_code() && !product.d.element.is_code());
        assert_ne!([product.a.element, product.b.element], [Element::E5M2; 2], "{product:?}");
    }
    let read = |layout: Layout, operation| match operation {
        Operation::AsItIs => [layout.rows, layout.columns],
        Operation::Transposed => [layout.columns, layout.rows],
    };
    assert_eq!(read(product.a, operations[0]), [m, k], "{product:?}");
    assert_eq!(read(product.b, operations[1]), [k, n], "{product:?}");
    for layout in [product.c, product.d] {
        assert_eq!([layout.rows, layout.columns], [m, n], "{product:?}");
    }
    if let Some(leading) = product.leading_of_kept {
        assert!(leading >= m && leading % 8 == 0, "kept with a leading dimension of {leading} for {m} rows");
    }
}
