//! `model.fp8`: linear layers of transformer layers whose products are made of 8-bit floats, of any
//! kind of model.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bridge_kernels::{Fp8Format, Fp8Rule, Fp8Scaling, Quantization};

use super::{Adapter, Declaration, EightBitLayer, LinearAdaptation, LinearLayer, ModelBuildError, Scope};
use crate::config::{Fp8Format as FormatName, Fp8Recipe, TransformerConfig};

/// Gives linear layers 8-bit products, and leaves all else to another adapter, if there is one.
#[derive(Debug)]
pub(super) struct EightBits {
    layer: EightBitLayer,
    /// Numbers of the layers that have them, of the model's own.
    layers: Range<usize>,
    /// Layers of the model; those after them, of multi-token prediction, have 8-bit products too.
    count: usize,
    /// True if a linear layer in 8 bits was declared.
    is_met: AtomicBool,
    /// True if the other adapter changes one of these layers.
    is_adapted: AtomicBool,
    other: Option<Arc<dyn Adapter>>,
}

impl EightBits {
    /// 8-bit layers of a model section; `None` without `model.fp8`.
    pub fn from_config(section: &TransformerConfig, other: Option<&Arc<dyn Adapter>>) -> Option<Self> {
        let format = section.fp8?;
        let scaling = match section.fp8_recipe? {
            Fp8Recipe::Tensorwise => Fp8Scaling::Current,
            Fp8Recipe::Delayed => Fp8Scaling::Delayed,
            Fp8Recipe::Mxfp8 => Fp8Scaling::Microscaling,
            Fp8Recipe::Blockwise => Fp8Scaling::Blockwise,
            Fp8Recipe::Custom => unreachable!("a recipe of scales from code is refused"),
        };
        let gradient = match format {
            FormatName::E4m3 => Fp8Format::E4M3,
            FormatName::Hybrid => Fp8Format::E5M2,
        };
        let rule = Fp8Rule { gradient, scaling, weight_gradient: section.fp8_wgrad };
        let count = section.num_layers;
        let layers = if section.first_last_layers_bf16 {
            section.num_layers_at_start_in_bf16..count.saturating_sub(section.num_layers_at_end_in_bf16)
        } else {
            0..count
        };
        let layer = EightBitLayer { rule, history: section.fp8_amax_history_len };
        Some(Self {
            layer,
            layers,
            count,
            is_met: AtomicBool::default(),
            is_adapted: AtomicBool::default(),
            other: other.cloned(),
        })
    }
}

impl Adapter for EightBits {
    fn trains(&self, declaration: &Declaration) -> bool {
        self.other.as_ref().is_none_or(|other| other.trains(declaration))
    }

    fn inner(&self) -> Option<&dyn Adapter> {
        self.other.as_deref()
    }

    fn eight_bits(&self, number: Option<usize>) -> Option<EightBitLayer> {
        let is_one = |number: &usize| self.layers.contains(number) || *number >= self.count;
        let found = number.filter(is_one).map(|_| self.layer);
        self.is_met.fetch_or(found.is_some(), Ordering::Relaxed);
        found.or_else(|| self.inner()?.eight_bits(number))
    }

    fn quantization(&self, layer: &LinearLayer) -> Option<Quantization> {
        let found = self.inner()?.quantization(layer);
        self.is_adapted.fetch_or(found.is_some(), Ordering::Relaxed);
        found
    }

    fn adapt(&self, layer: &LinearLayer, scope: &Scope) -> Option<LinearAdaptation> {
        let found = self.inner()?.adapt(layer, scope);
        self.is_adapted.fetch_or(found.is_some(), Ordering::Relaxed);
        found
    }

    fn check_met(&self) -> Result<(), ModelBuildError> {
        if self.is_adapted.load(Ordering::Relaxed) {
            let message = "8-bit products of layers that an adapter changes are not implemented".to_owned();
            return Err(ModelBuildError::Invalid { key: "model.fp8".into(), message });
        }
        if !self.is_met.load(Ordering::Relaxed) {
            let message = "this kind of model has no linear layer that 8-bit products were built for".to_owned();
            return Err(ModelBuildError::Invalid { key: "model.fp8".into(), message });
        }
        self.other.as_ref().map_or(Ok(()), |other| other.check_met())
    }
}
