//! Dropout from a counter-based stream.

pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
mod flex;
mod key;

use burn::tensor::{Bool, Device, Tensor, TensorData};

pub use key::DropoutKey;

use crate::flex::by_element;
use crate::precision::{narrow, widen};

/// Zeroes each element with probability `rate` and scales the others by `1 / (1 - rate)`.
///
/// Element `i` (row-major) is dropped when word `i` of the key's stream is below `rate * 2^32`.
///
/// # Shapes
/// any -> the same.
///
/// # Panics
/// If `rate` is not in `[0, 1)`.
pub fn dropout<const D: usize>(x: Tensor<D>, rate: f64, key: DropoutKey) -> Tensor<D> {
    assert!((0.0..1.0).contains(&rate), "a dropout rate lies in [0, 1), got {rate}");
    if rate == 0.0 {
        return x;
    }
    #[cfg(feature = "cube")]
    if let Some(y) = cube::dropout(&x, rate, key) {
        return y;
    }
    by_element!(x, E => flex::dropout::<E, D>(&x, rate, key)).unwrap_or_else(|| reference(x, rate, key))
}

/// [`dropout`] in plain Burn operations, for a rate above 0; the mask is materialised.
pub fn reference<const D: usize>(x: Tensor<D>, rate: f64, key: DropoutKey) -> Tensor<D> {
    let dropped = Tensor::<1, Bool>::from_data(
        TensorData::new(dropped(x.shape().num_elements(), rate, key), [x.shape().num_elements()]),
        &Device::without_autodiff(x.device()),
    );
    let (dtype, shape) = (x.dtype(), x.dims());
    // In 16 bits the factor itself would be rounded, which is a bias.
    narrow(widen(x) * (1.0 / (1.0 - rate)), dtype).mask_fill(dropped.reshape(shape), 0.0)
}

/// The mask of the first `count` elements: true is dropped.
pub fn dropped(count: usize, rate: f64, key: DropoutKey) -> Vec<bool> {
    let threshold = (rate * 4_294_967_296.0) as u32;
    (0..count.div_ceil(4) as u64).flat_map(|i| key.0.block(i)).take(count).map(|word| word < threshold).collect()
}
