//! Codes of several weights side by side on a GPU, as ranks send them: cast and decoded by one
//! kernel each, with the bits of [`WeightCast`].

use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Tensor, TensorData};

use super::cube::{CodeForm, IN_WORD, OneScale, code};
use super::weight_cast::{CodePlaces, FORMAT, WeightCast};
use crate::cube::Buffer;

/// Number of codes.
const NUMBERS: usize = 256;

/// The weight that an element at a place of a part is of: the first of `count` that ends after it,
/// from `ends[first]` on.
#[cube]
fn weight_at(ends: &[u32], first: usize, count: usize, place: u32) -> usize {
    let mut low = 0usize;
    let mut high = count;
    while low < high {
        let middle = (low + high) / 2;
        if ends[first + middle] > place {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Codes of `x`, whose weights end at `ends` and are multiplied by `scales`; a unit a word. After
/// the last element are zeros.
#[cube(launch)]
fn encode_several<X: Float>(
    x: &[X],
    ends: &[u32],
    scales: &[f32],
    codes: &mut [u32],
    #[comptime] form: CodeForm,
    #[define(X)] _storage: ElemType,
) {
    let place = ABSOLUTE_POS;
    if place >= codes.len() {
        terminate!();
    }
    let mut word = 0u32;
    #[unroll]
    for i in 0..IN_WORD {
        let at = place * IN_WORD + i;
        if at < x.len() {
            let weight = weight_at(ends, 0usize, scales.len(), at as u32);
            word |= code(f32::cast_from(x[at]), scales[weight], form) << comptime!(8 * i as u32);
        }
    }
    codes[place] = word;
}

/// Decodes codes part by part: `length` elements in `words` words. `numbers` has the value of each
/// code of each weight. One unit decodes an element.
#[cube(launch)]
fn decode_several<X: Float>(
    codes: &[u32],
    ends: &[u32],
    numbers: &[f32],
    x: &mut [X],
    length: u32,
    words: u32,
    #[define(X)] _storage: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at >= x.len() {
        terminate!();
    }
    let (length, words) = (length as usize, words as usize);
    let (part, place) = (at / length, at % length);
    let count = numbers.len() / NUMBERS;
    let weight = weight_at(ends, part * count, count, place as u32);
    let word = codes[part * words + place / IN_WORD];
    let number = (word >> (8u32 * (place % IN_WORD) as u32)) & 0xffu32;
    x[at] = X::cast_from(numbers[weight * NUMBERS + number as usize]);
}

/// Ends as kernels read them, with one weight more after the last, up to the end of the part.
fn ends_of(places: &CodePlaces, like: &Tensor<1>) -> Buffer {
    let ends = places.ends.iter().flat_map(|part| part.iter().copied().chain([places.length]));
    let ends: Vec<i64> = ends.map(|end| end as i64).collect();
    let data = TensorData::new(ends.iter().map(|end| *end as u32).collect::<Vec<_>>(), [ends.len()]);
    let tensor = Tensor::<1, burn::tensor::Int>::from_data(data, (&like.device(), DType::U32));
    Buffer::from_integers(&tensor).expect("a part has an end")
}

fn floats(values: Vec<f32>, like: &Tensor<1>) -> Buffer {
    let len = values.len();
    let tensor = Tensor::<1>::from_data(TensorData::new(values, [len]), (&like.device(), DType::F32));
    Buffer::from_tensor(&tensor).expect("a tensor on the device of another one that is there")
}

/// See [`CodePlaces::encode`].
pub(super) fn encode(places: &CodePlaces, values: &Tensor<1>, casts: &[WeightCast]) -> Option<Tensor<1>> {
    let x = Buffer::from_tensor(values)?;
    let ends = ends_of(places, values);
    let scales = floats(casts.iter().map(|cast| cast.scale()).chain([1.0]).collect(), values);
    let mut codes = x.uninitialised([places.words()], DType::U32);
    let (count, dim) = codes.unit_per_element();
    let (client, form) = (x.0.client.clone(), FORMAT.form());
    encode_several::launch(&client, count, dim, x.arg(), ends.arg(), scales.arg(), codes.arg(), form, x.storage());
    codes.0.dtype = DType::F32;
    Some(codes.tensor())
}

/// See [`CodePlaces::decode`].
pub(super) fn decode(places: &CodePlaces, codes: &Tensor<1>, casts: &[WeightCast], dtype: DType) -> Option<Tensor<1>> {
    let mut words = Buffer::from_f32(codes)?;
    words.0.dtype = DType::U32;
    let ends = ends_of(places, codes);
    let numbers = casts.iter().flat_map(|cast| cast.values()).chain([0.0; NUMBERS]);
    let numbers = floats(numbers.collect(), codes);
    let x = words.uninitialised([places.ends.len() * places.length], dtype);
    let (count, dim) = x.unit_per_element();
    decode_several::launch(
        &x.0.client,
        count,
        dim,
        words.arg(),
        ends.arg(),
        numbers.arg(),
        x.arg(),
        places.length as u32,
        places.words() as u32,
        x.storage(),
    );
    Some(x.tensor())
}

/// See [`WeightCast::largest_on_device`].
pub(super) fn largest_magnitude(weight: &Tensor<1>) -> Option<Tensor<1>> {
    let weight = Buffer::from_tensor(weight)?;
    Some(OneScale::new(&weight, FORMAT, None, true).largest())
}
