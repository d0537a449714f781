//! Embedding look-up on GPUs: a unit an element, forward and backward. The tokens with one id are a
//! list, so that backward adds up their gradients in the order of the tokens, without atomics; the
//! rows of other ids are zero. Burn's own backward takes all tokens one after the other, in a unit
//! a column.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Int as IntKind, Tensor};

use crate::cube::Buffer;
use crate::vjp;

/// `y[i] = table[ids[i]]`.
#[cube(launch)]
fn look_up<X: Float, I: Int>(
    table: &[X],
    ids: &[I],
    y: &mut [X],
    columns: u32,
    #[define(X, I)] _storage: [ElemType; 2],
) {
    let place = ABSOLUTE_POS;
    if place >= y.len() {
        terminate!();
    }
    let (token, column) = (place / columns as usize, place % columns as usize);
    let id = i32::cast_from(ids[token]);
    let rows = table.len() / columns as usize;
    if id >= 0 && (id as usize) < rows {
        y[place] = table[id as usize * columns as usize + column];
    } else {
        // An id outside the table cannot be reported from here: its row overflows, and the loss
        // with it, which the loop does report.
        let first = f32::cast_from(table[column]);
        y[place] = X::cast_from((first * first + 1e30f32) * 1e30f32);
    }
}

/// Links each token to the next one with the same id (to the number of tokens without one), and
/// writes 1 for tokens that have one before them, over zeros.
#[cube(launch)]
fn link<I: Int>(ids: &[I], next: &mut [u32], has_before: &mut [f32], #[define(I)] _storage: ElemType) {
    let token = ABSOLUTE_POS;
    if token >= ids.len() {
        terminate!();
    }
    let id = ids[token];
    let mut found = ids.len();
    let mut other = token + 1;
    while other < found {
        if ids[other] == id {
            found = other;
        }
        other += 1;
    }
    next[token] = found as u32;
    if found < ids.len() {
        has_before[found] = 1.0f32;
    }
}

/// `gradient[ids[i]] = sum of dy[j]` over the tokens `j` of the same id, for the first `i` of each.
#[cube(launch)]
fn add_rows<X: Float, I: Int>(
    dy: &[X],
    ids: &[I],
    next: &[u32],
    has_before: &[f32],
    gradient: &mut [X],
    columns: u32,
    #[define(X, I)] _storage: [ElemType; 2],
) {
    let place = ABSOLUTE_POS;
    if place >= dy.len() {
        terminate!();
    }
    let columns = columns as usize;
    let (token, column) = (place / columns, place % columns);
    let id = i32::cast_from(ids[token]);
    let is_row = id >= 0 && (id as usize) < gradient.len() / columns;
    if is_row && has_before[token] == 0.0f32 {
        let tokens = next.len();
        let mut sum = 0.0f32;
        let mut at = token;
        while at < tokens {
            sum += f32::cast_from(dy[at * columns + column]);
            at = next[at] as usize;
        }
        gradient[id as usize * columns + column] = X::cast_from(sum);
    }
}

/// See [`crate::embedding`].
pub(crate) fn embedding(weight_vc: &Tensor<2>, ids_bt: &Tensor<2, IntKind>) -> Option<Tensor<3>> {
    let ([v, c], [b, t]) = (weight_vc.dims(), ids_bt.dims());
    let (table, ids) = (Buffer::from_tensor(weight_vc)?, Buffer::from_integers(ids_bt)?);
    let columns = u32::try_from(c).ok()?;
    // Kernels index with 32 bits.
    u32::try_from(b * t * c).ok()?;
    let y = table.uninitialised([b, t, c], table.0.dtype);
    let (count, dim) = y.unit_per_element();
    let storage = [table.storage(), ids.storage()];
    look_up::launch(&y.0.client, count, dim, table.arg(), ids.arg(), y.arg(), columns, storage);
    Some(vjp::attach_some(y.tensor(), vec![weight_vc.clone().into_dispatch()], move |dy: Tensor<3>| {
        vec![backward(&dy, &ids, [v, c]).gradient()]
    }))
}

/// The gradient of the table.
fn backward(dy_btc: &Tensor<3>, ids: &Buffer, [v, c]: [usize; 2]) -> Buffer {
    let dy = Buffer::from_gradient(dy_btc.clone());
    let device = dy_btc.device().without_autodiff();
    let has_before = Tensor::<1>::zeros([ids.len()], (&device, DType::F32));
    let has_before = Buffer::from_tensor(&has_before).expect("there are tokens");
    let next = dy.uninitialised([ids.len()], DType::U32);
    let client = &dy.0.client;
    let (count, dim) = next.unit_per_element();
    link::launch(client, count, dim, ids.arg(), next.arg(), has_before.arg(), ids.storage());
    let gradient = Tensor::<2>::zeros([v, c], (&device, dy_btc.dtype()));
    let gradient = Buffer::from_tensor(&gradient).expect("the table has elements");
    let (count, dim) = dy.unit_per_element();
    let storage = [dy.storage(), ids.storage()];
    add_rows::launch(
        client,
        count,
        dim,
        dy.arg(),
        ids.arg(),
        next.arg(),
        has_before.arg(),
        gradient.arg(),
        c as u32,
        storage,
    );
    gradient
}
