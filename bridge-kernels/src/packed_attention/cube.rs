//! Queries, keys and values of a projection on GPUs: one kernel splits the projection and
//! rotates queries and keys, and one merges the gradients and rotates these back.

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;

use super::packed::PackedHeads;
use crate::cube::Buffer;
use crate::rotary::cube::{Angles, pair_rotation, partner, rotated};
use crate::rotary::{Positions, RotaryTable};
use crate::vjp;

/// Sizes that may change from call to call without a new kernel. Head sizes are counted in vectors,
/// as are all offsets in this file.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    tokens: u32,
    groups: u32,
    queries_per_group: u32,
    head_size: u32,
    /// Rotated pairs of a head; the remaining elements are copied.
    pairs: u32,
}

/// Elements from one sequence, token and head to the next.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Strides {
    sequence: u32,
    token: u32,
    head: u32,
}

/// Position of a vector in a projection.
#[derive(CubeType, Clone, Copy)]
struct VectorPosition {
    sequence: usize,
    /// Index of the token in its sequence.
    token: usize,
    group: usize,
    /// Index of the head in its group: queries, then the key, then the value.
    slot: usize,
    /// Index of the column in its head.
    column: usize,
}

#[cube]
fn vector_position(element: usize, sizes: &Sizes) -> VectorPosition {
    let (d, slots) = (sizes.head_size as usize, sizes.queries_per_group as usize + 2);
    let (tokens, groups) = (sizes.tokens as usize, sizes.groups as usize);
    let (column, head) = (element % d, element / d);
    let (slot, rest) = (head % slots, head / slots);
    let (group, token) = (rest % groups, rest / groups);
    VectorPosition { sequence: token / tokens, token: token % tokens, group, slot, column }
}

/// Start of a head.
#[cube]
fn start(at: &VectorPosition, head: usize, strides: &Strides) -> usize {
    at.sequence * strides.sequence as usize + at.token * strides.token as usize + head * strides.head as usize
}

/// The position of a token.
#[cube]
fn position<P: Int>(positions: &[P], at: &VectorPosition, sizes: &Sizes) -> usize {
    let token = at.sequence * sizes.tokens as usize + at.token;
    u32::cast_from(positions[token % positions.len()]) as usize
}

/// Splits `packed` into queries, keys and values, and rotates queries and keys. A unit a vector.
#[cube(launch)]
fn split_qkv<X: Float, P: Int, N: Size>(
    packed: &[Vector<X, N>],
    q: &mut [Vector<X, N>],
    k: &mut [Vector<X, N>],
    v: &mut [Vector<X, N>],
    cos: &[Vector<f32, N>],
    sin: &[Vector<f32, N>],
    positions: &[P],
    sizes: Sizes,
    of_queries: Strides,
    of_keys: Strides,
    #[comptime] interleaved: bool,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let element = ABSOLUTE_POS;
    if element >= packed.len() {
        terminate!();
    }
    let at = vector_position(element, &sizes);
    let r = sizes.queries_per_group as usize;
    let mut value = packed[element];
    if at.slot <= r && at.column < 2 * sizes.pairs as usize {
        let position = position::<P>(positions, &at, &sizes);
        let rotation = pair_rotation::<N>(cos, sin, position, at.column, sizes.pairs as usize, 1.0f32, interleaved);
        value = rotated::<X, N>(value, packed[partner::<N>(element, &rotation)], &rotation);
    }
    if at.slot < r {
        q[start(&at, at.group * r + at.slot, &of_queries) + at.column] = value;
    } else if at.slot == r {
        k[start(&at, at.group, &of_keys) + at.column] = value;
    } else {
        v[start(&at, at.group, &of_keys) + at.column] = value;
    }
}

/// Merges the gradients of queries, keys and values, and rotates them back. A unit a vector of
/// `packed`.
#[cube(launch)]
fn merge_qkv_gradients<X: Float, P: Int, N: Size>(
    packed: &mut [Vector<X, N>],
    q: &[Vector<X, N>],
    k: &[Vector<X, N>],
    v: &[Vector<X, N>],
    cos: &[Vector<f32, N>],
    sin: &[Vector<f32, N>],
    positions: &[P],
    sizes: Sizes,
    of_queries: Strides,
    of_keys: Strides,
    of_values: Strides,
    #[comptime] interleaved: bool,
    #[define(X, P)] _storage: [ElemType; 2],
) {
    let element = ABSOLUTE_POS;
    if element >= packed.len() {
        terminate!();
    }
    let at = vector_position(element, &sizes);
    let r = sizes.queries_per_group as usize;
    if at.slot > r {
        packed[element] = v[start(&at, at.group, &of_values) + at.column];
        terminate!();
    }
    let mut source = start(&at, at.group, &of_keys) + at.column;
    if at.slot < r {
        source = start(&at, at.group * r + at.slot, &of_queries) + at.column;
    }
    let mut value = head_value::<X, N>(q, k, source, at.slot < r);
    if at.column < 2 * sizes.pairs as usize {
        let position = position::<P>(positions, &at, &sizes);
        let rotation = pair_rotation::<N>(cos, sin, position, at.column, sizes.pairs as usize, -1.0f32, interleaved);
        let other = head_value::<X, N>(q, k, partner::<N>(source, &rotation), at.slot < r);
        value = rotated::<X, N>(value, other, &rotation);
    }
    packed[element] = value;
}

#[cube]
fn head_value<X: Float, N: Size>(q: &[Vector<X, N>], k: &[Vector<X, N>], place: usize, is_query: bool) -> Vector<X, N> {
    if is_query { q[place] } else { k[place] }
}

/// Heads in memory: elements of a head are side by side.
struct Heads {
    buffer: Buffer,
    strides: [usize; 3],
}

impl Heads {
    /// A gradient as it lies in memory, or a copy.
    fn from_gradient(gradient: Tensor<4>) -> Self {
        // By heads, as products make them.
        let by_head = gradient.clone().permute([0, 2, 1, 3]);
        let [b, t, heads, d] = gradient.dims();
        match Buffer::as_it_is(&by_head) {
            Some(buffer) => Self { buffer, strides: [heads * t * d, d, t * d] },
            None => Self::by_token(Buffer::from_gradient(gradient), [b, t, heads, d]),
        }
    }

    /// Heads that lie side by side as `[b, t, heads, d]`.
    fn by_token(buffer: Buffer, [_, t, heads, d]: [usize; 4]) -> Self {
        Self { buffer, strides: [t * heads * d, heads * d, d] }
    }

    fn strides(&self, lanes: usize) -> StridesLaunch {
        let [sequence, token, head] = self.strides.map(|stride| (stride / lanes) as u32);
        StridesLaunch::new(sequence, token, head)
    }
}

/// Arguments that both directions share.
struct Packing {
    packed: PackedHeads,
    /// `[b, t]`.
    tokens: [usize; 2],
    angles: Angles,
}

impl Packing {
    fn sizes(&self, lanes: usize) -> SizesLaunch {
        let PackedHeads { groups, queries_per_group, head_size } = self.packed;
        let (head_size, pairs) = (head_size / lanes, self.angles.pairs / lanes);
        let [tokens, groups, queries, head, pairs] =
            [self.tokens[1], groups, queries_per_group, head_size, pairs].map(|size| size as u32);
        SizesLaunch::new(tokens, groups, queries, head, pairs)
    }

    fn storage(&self, x: &Buffer) -> [ElemType; 2] {
        [x.storage(), self.angles.positions.storage()]
    }

    fn split_qkv(&self, x: &Buffer) -> [Buffer; 3] {
        let ([b, t], PackedHeads { groups: g, queries_per_group: r, head_size: d }) = (self.tokens, self.packed);
        let heads = |heads: usize| Heads::by_token(x.uninitialised([b, t, heads, d], x.0.dtype), [b, t, heads, d]);
        let [q, k, v] = [heads(g * r), heads(g), heads(g)];
        let lanes = self.angles.lanes(x, d);
        let (count, dim) = x.grid(x.len() / lanes);
        let angles = &self.angles;
        split_qkv::launch(
            &x.0.client,
            count,
            dim,
            lanes,
            x.arg(),
            q.buffer.arg(),
            k.buffer.arg(),
            v.buffer.arg(),
            angles.cos.arg(),
            angles.sin.arg(),
            angles.positions.arg(),
            self.sizes(lanes),
            q.strides(lanes),
            k.strides(lanes),
            angles.is_interleaved(),
            self.storage(x),
        );
        [q, k, v].map(|heads| heads.buffer)
    }

    fn merge_qkv_gradients(&self, [q, k, v]: [Heads; 3]) -> Buffer {
        let [b, t] = self.tokens;
        let x = q.buffer.uninitialised([b, t, self.packed.width()], q.buffer.0.dtype);
        let lanes = self.angles.lanes(&x, self.packed.head_size);
        let (count, dim) = x.grid(x.len() / lanes);
        let angles = &self.angles;
        merge_qkv_gradients::launch(
            &x.0.client,
            count,
            dim,
            lanes,
            x.arg(),
            q.buffer.arg(),
            k.buffer.arg(),
            v.buffer.arg(),
            angles.cos.arg(),
            angles.sin.arg(),
            angles.positions.arg(),
            self.sizes(lanes),
            q.strides(lanes),
            k.strides(lanes),
            v.strides(lanes),
            angles.is_interleaved(),
            self.storage(&x),
        );
        x
    }
}

/// [`PackedHeads::unpack`], with queries and keys rotated. Explicit positions are not compared with
/// the table's length: they are on the device.
pub fn unpack(
    qkv_btf: &Tensor<3>,
    packed: PackedHeads,
    rotary: Option<(&RotaryTable, &Positions)>,
) -> Option<[Tensor<4>; 3]> {
    let [b, t, _] = qkv_btf.dims();
    let x = Buffer::from_tensor(qkv_btf)?;
    let device = qkv_btf.device().without_autodiff();
    let angles = match rotary {
        Some((table, positions)) => Angles::from_table(table, positions, t, &device)?,
        None => Angles::none(&x),
    };
    let packing = Packing { packed, tokens: [b, t], angles };
    let dtype = x.0.dtype;
    let outputs = packing.split_qkv(&x).map(|heads| heads.tensor::<4>().into_dispatch()).into();
    let [groups, queries] = [packed.groups, packed.groups * packed.queries_per_group];
    let outputs = vjp::attach_all(outputs, vec![qkv_btf.clone().into_dispatch()], move |gradients| {
        let mut gradients = gradients.into_iter();
        let of_heads = [queries, groups, groups].map(|heads| {
            let gradient = gradients.next().flatten().map(Tensor::from_dispatch);
            let shape = [b, t, heads, packed.head_size];
            Heads::from_gradient(gradient.unwrap_or_else(|| Tensor::zeros(shape, (&device, dtype))))
        });
        vec![packing.merge_qkv_gradients(of_heads).gradient()]
    });
    let mut outputs = outputs.into_iter();
    Some([(); 3].map(|()| Tensor::from_dispatch(outputs.next().expect("queries, keys and values"))))
}
