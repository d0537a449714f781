//! The scan on GPUs.
//!
//! Inside a chunk it is a product of matrices like attention without its softmax, in tiles that are
//! formed where they are used; only the states between chunks are kept. All chunks are worked on at
//! once but for one pass over these states. Products are in float32 on a GPU's ordinary units, not
//! on its matrix units.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, FloatDType, Tensor};

use super::cube_steps::{
    CubePosition, Form, PLANES, Sizes, SizesLaunch, cube_position, decayed, fill_steps, line, pass_states, row_weights,
    state_start, states_io_at, sum_chunks, values_at,
};
use super::shape::{ScanInputs, ScanOptions};
use crate::cube::Buffer;
use crate::cube::tile::{
    Rows, SIDE, add_combinations, add_products, add_row_products, columns_of_unit, element, share, stage_len, tile_len,
    zeros,
};
use crate::precision::widen;
use crate::vjp;

/// Contribution of earlier tokens of the chunk and of the state before it to a block of tokens: the
/// output without the term of `d`.
#[cube]
pub(super) fn scanned<X: Float>(
    xbc: &[X],
    steps: &[f32],
    states: &[f32],
    at: &CubePosition,
    sizes: &Sizes,
    stage: &mut Shared<[f32]>,
    #[comptime] form: Form,
) -> Array<f32> {
    let (r, columns) = (comptime!(form.r), comptime!(form.columns));
    let rows = comptime!(form.r * SIDE);
    let (n, p, head) = (sizes.state as usize, sizes.head_size as usize, at.part);
    let group = head / (sizes.heads as usize / sizes.groups as usize);
    let line = line(at.batch, head, sizes);
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let first = at.begin + at.block * rows;
    let outputs = states_io_at(at.batch, first, group, at.end, sizes, true);
    let mut tile = Shared::<[f32]>::new_slice(comptime!(tile_len(form.r)));
    let mut sums = zeros(comptime!(form.r * form.columns));
    let mut token = at.begin;
    while token < min(first + rows, at.end) {
        let inputs = states_io_at(at.batch, token, group, at.end, sizes, false);
        let mut weights = zeros(comptime!(form.r * form.r));
        add_products::<X, X>(&mut weights, xbc, &outputs, xbc, &inputs, n, stage, r);
        #[unroll]
        for i in 0..r {
            #[unroll]
            for j in 0..r {
                let (later, earlier) = (first + y + i * SIDE, token + x + j * SIDE);
                weights[i * r + j] = decayed(weights[i * r + j], steps, &line, later, earlier, at.end, true);
            }
        }
        share(&mut tile, &weights, r);
        let values = values_at(at.batch, token, head, at.end, sizes);
        add_combinations::<X>(&mut sums, &mut tile, xbc, &values, p, r, columns);
        token += rows;
    }
    let decays = row_weights(steps, &line, first, at.end, true, r);
    let start = state_start(at.batch, head, at.chunk, sizes);
    let state = Rows { start, stride: p, step: 1usize.runtime(), count: n };
    add_row_products::<X, f32>(&mut sums, &decays, xbc, &outputs, states, &state, p, &mut tile, r, columns);
    sums
}

/// The output; a cube a block of tokens of a head of a chunk. `vectors` are `a_log`, `dt_bias` and
/// `d`.
#[cube(launch)]
fn forward<X: Float>(
    xbc: &[X],
    vectors: &[f32],
    steps: &[f32],
    states: &[f32],
    out: &mut [X],
    sizes: Sizes,
    #[comptime] form: Form,
    #[define(X)] _storage: ElemType,
) {
    let (r, columns) = (comptime!(form.r), comptime!(form.columns));
    let rows = comptime!(form.r * SIDE);
    let heads = sizes.heads as usize;
    let at = cube_position(heads, (sizes.chunk as usize).div_ceil(rows), &sizes);
    let first = at.begin + at.block * rows;
    if at.batch >= sizes.batches as usize || first >= at.end {
        terminate!();
    }
    let (y, x) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let mut stage = Shared::<[f32]>::new_slice(comptime!(stage_len(form.r)));
    let sums = scanned::<X>(xbc, steps, states, &at, &sizes, &mut stage, form);
    let values = values_at(at.batch, first, at.part, at.end, &sizes);
    let p = sizes.head_size as usize;
    let d = vectors[2 * heads + at.part];
    #[unroll]
    for i in 0..r {
        #[unroll]
        for j in 0..columns {
            let (row, column) = (y + i * SIDE, x + j * SIDE);
            if row < values.count && column < p {
                let value = element::<X>(xbc, &values, row, column, p);
                let token = at.batch * sizes.tokens as usize + first + row;
                out[(token * heads + at.part) * p + column] = X::cast_from(sums[i * columns + j] + d * value);
            }
        }
    }
}

/// A scan's inputs in the memory of a device, and its time steps.
pub(super) struct Scan {
    pub xbc: Buffer,
    /// Float32, before bias and softplus.
    pub dt: Buffer,
    /// `a_log`, `dt_bias` and `d`, float32 `[3, h]`.
    pub vectors: Buffer,
    /// See [`PLANES`].
    pub steps: Buffer,
    pub shape: Shape,
}

/// Sizes of a scan, and the range of its time steps.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub b: usize,
    pub t: usize,
    pub h: usize,
    pub p: usize,
    pub g: usize,
    pub n: usize,
    pub chunk: usize,
    pub time_steps: [f32; 2],
}

impl Shape {
    pub fn launch(&self) -> SizesLaunch {
        let Self { b, t, h, p, g, n, chunk, .. } = *self;
        let [b, t, h, p, g, n, chunk] = [b, t, h, p, g, n, chunk].map(|size| size as u32);
        SizesLaunch::new(b, t, h, p, g, n, chunk)
    }

    pub fn chunks(&self) -> usize {
        self.t.div_ceil(self.chunk)
    }
}

impl Scan {
    fn new(inputs: &ScanInputs, options: &ScanOptions) -> Option<Self> {
        let ([b, t, _], [_, _, h]) = (inputs.xbc_btf.dims(), inputs.dt_bth.dims());
        let ScanOptions { head_size: p, groups: g, state_size: n, chunk_size, time_steps } = *options;
        (p * n > 0).then_some(())?;
        let xbc = Buffer::from_tensor(&inputs.xbc_btf)?;
        let dt = Buffer::from_tensor(&widen(inputs.dt_bth.clone().without_autodiff()))?;
        let vectors = [&inputs.a_log_h, &inputs.dt_bias_h, &inputs.d_h];
        let vectors = vectors.map(|vector| widen(vector.clone().without_autodiff()));
        let vectors = Buffer::from_tensor(&Tensor::cat(vectors.to_vec(), 0))?;
        let documents = match &inputs.document_ids {
            Some(ids_bt) => Some(Buffer::from_integers(ids_bt)?),
            None => None,
        };
        let shape = Shape { b, t, h, p, g, n, chunk: chunk_size.min(t), time_steps };
        let steps = xbc.uninitialised([PLANES, b, h, t], DType::F32);
        let (count, dim) = xbc.grid(b * shape.chunks() * h);
        fill_steps::launch(
            &xbc.0.client,
            count,
            dim,
            dt.arg(),
            vectors.arg(),
            documents.as_ref().map(Buffer::arg).into(),
            steps.arg(),
            shape.launch(),
            time_steps[0],
            time_steps[1],
            documents.as_ref().map_or_else(i32::elem_type_native, Buffer::storage),
        );
        Some(Self { xbc, dt, vectors, steps, shape })
    }

    /// Tiles for `rows` rows and results of `width` columns.
    pub fn form(&self, rows: usize, width: usize) -> Option<Form> {
        let columns = columns_of_unit(width);
        Some(Form { r: self.xbc.tile_rows(rows, columns)?, columns })
    }

    /// Contribution of each chunk, `[b, h, chunks, n, p]`: see [`sum_chunks`].
    pub fn sum_chunks(&self, values: &Buffer, outputs: bool) -> Option<Buffer> {
        let Shape { b, h, n, p, .. } = self.shape;
        let form = self.form(n, p)?;
        let states = self.xbc.uninitialised([b, h, self.shape.chunks(), n, p], DType::F32);
        let (count, dim) = self.xbc.cube_per_tile(b * h * self.shape.chunks() * n.div_ceil(form.r * SIDE));
        sum_chunks::launch(
            &self.xbc.0.client,
            count,
            dim,
            self.xbc.arg(),
            values.arg(),
            self.steps.arg(),
            states.arg(),
            self.shape.launch(),
            outputs,
            form,
            self.xbc.storage(),
        );
        Some(states)
    }

    /// See [`pass_states`]: in place, and the state that is left, `[b, h, n, p]`.
    pub fn pass_states(&self, states: &Buffer, initial: Option<&Buffer>, reversed: bool) -> Buffer {
        let Shape { b, h, n, p, .. } = self.shape;
        let last = self.xbc.uninitialised([b, h, n, p], DType::F32);
        let (count, dim) = last.unit_per_element();
        pass_states::launch(
            &self.xbc.0.client,
            count,
            dim,
            self.steps.arg(),
            initial.map(Buffer::arg).into(),
            states.arg(),
            last.arg(),
            self.shape.launch(),
            reversed,
        );
        last
    }

    /// Output, the states before the chunks, and the state after the last.
    fn forward(&self, initial: Option<&Buffer>) -> Option<[Buffer; 3]> {
        let Shape { b, t, h, p, chunk, .. } = self.shape;
        let form = self.form(chunk, p)?;
        let states = self.sum_chunks(&self.xbc, false)?;
        let last = self.pass_states(&states, initial, false);
        let y = self.xbc.uninitialised([b, t, h * p], self.xbc.0.dtype);
        let (count, dim) = y.cube_per_tile(b * h * self.shape.chunks() * chunk.div_ceil(form.r * SIDE));
        forward::launch(
            &self.xbc.0.client,
            count,
            dim,
            self.xbc.arg(),
            self.vectors.arg(),
            self.steps.arg(),
            states.arg(),
            y.arg(),
            self.shape.launch(),
            form,
            self.xbc.storage(),
        );
        Some([y, states, last])
    }
}

/// See [`crate::ssd_scan()`].
pub fn ssd_scan(inputs: &ScanInputs, options: &ScanOptions) -> Option<Tensor<3>> {
    let scan = Scan::new(inputs, options)?;
    let [y, states, _] = scan.forward(None)?;
    let dtypes = [&inputs.a_log_h, &inputs.dt_bias_h, &inputs.d_h].map(|vector| FloatDType::from(vector.dtype()));
    let of_dt = FloatDType::from(inputs.dt_bth.dtype());
    let tracked = vec![
        inputs.xbc_btf.clone().into_dispatch(),
        inputs.dt_bth.clone().into_dispatch(),
        inputs.a_log_h.clone().into_dispatch(),
        inputs.dt_bias_h.clone().into_dispatch(),
        inputs.d_h.clone().into_dispatch(),
    ];
    let Scan { xbc, dt, vectors, steps, shape } = scan;
    let [xbc, dt, steps, states] = [xbc, dt, steps, states].map(Buffer::kept);
    Some(vjp::attach_some(y.tensor(), tracked, move |dy: Tensor<3>| {
        let scan = Scan { xbc: xbc.buffer(), dt: dt.buffer(), vectors, steps: steps.buffer(), shape };
        let states = states.buffer();
        let gradients =
            scan.backward(&states, &Buffer::from_gradient(dy)).expect("the forward had tiles of these sizes");
        let h = scan.shape.h;
        let vector = |i: usize| {
            let row: Tensor<1> = gradients.vectors.clone().narrow(0, i, 1).reshape([h]);
            Some(row.cast(dtypes[i]).into_dispatch())
        };
        let dt = Some(gradients.dt.tensor::<3>().cast(of_dt).into_dispatch());
        vec![gradients.xbc.gradient(), dt, vector(0), vector(1), vector(2)]
    }))
}

/// See [`crate::ssd_scan_from()`].
pub fn ssd_scan_from(
    inputs: &ScanInputs,
    state_bhnp: Option<&Tensor<4>>,
    options: &ScanOptions,
) -> Option<(Tensor<3>, Tensor<4>)> {
    let scan = Scan::new(inputs, options)?;
    let initial = match state_bhnp {
        Some(state) => Some(Buffer::from_f32(state)?),
        None => None,
    };
    let [y, _, last] = scan.forward(initial.as_ref())?;
    Some((y.tensor(), last.tensor()))
}
