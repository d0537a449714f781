//! Memory that layers with 8-bit products keep and use in backward. Their FLOPs are those of other
//! layers, and plans assume emulation in float32.

use bridge_kernels::Fp8Scaling;

use super::{Adapter, Workload};

const FLOAT32: u64 = 4;

impl Workload {
    /// The same in layer `number` (global), whose linear layers compute as the adapter says.
    #[must_use]
    pub fn in_layer(&self, adapter: Option<&dyn Adapter>, number: Option<usize>) -> Self {
        Self { eight_bits: adapter.and_then(|adapter| adapter.eight_bits(number)), ..*self }
    }

    /// Bytes that a linear layer keeps of `elements` of its input which no other operation keeps.
    pub fn input_alone(&self, elements: u64) -> u64 {
        self.codes(elements).unwrap_or(elements * self.activation_bytes)
    }

    /// Bytes that a linear layer keeps of `elements` of its input besides the tensor, which another
    /// operation keeps.
    pub fn input_besides(&self, elements: u64) -> u64 {
        self.codes(elements).unwrap_or(0)
    }

    /// Codes and scales of an input, where it is kept so: on the CPU, for a weight gradient in 8
    /// bits. A GPU keeps the inputs in their dtype.
    fn codes(&self, elements: u64) -> Option<u64> {
        let rule = self.eight_bits.map(|layer| layer.rule)?;
        let scales = match rule.scaling {
            Fp8Scaling::Current | Fp8Scaling::Delayed => 0,
            Fp8Scaling::Microscaling => elements / 32 * FLOAT32,
            Fp8Scaling::Blockwise => elements / 128 * FLOAT32,
        };
        (self.on_cpu && rule.weight_gradient).then_some(elements + scales)
    }

    /// Bytes that the backward of an 8-bit layer over `rows` uses besides gradients: its decoded
    /// operands in float32. Zero for other layers. `inputs` and `outputs` are those of this rank.
    pub fn operands_in_hand(&self, rows: u64, [inputs, outputs]: [usize; 2]) -> u64 {
        if self.eight_bits.is_none() {
            return 0;
        }
        let (inputs, outputs) = (inputs as u64, outputs as u64);
        let (gradient, input, weight) = (rows * outputs, rows * inputs, inputs * outputs);
        if !self.on_cpu {
            // A cast is several operations there, each with a tensor of its own.
            return FLOAT32 * gradient + 4 * FLOAT32 * gradient.max(input).max(weight);
        }
        let widened = if self.activation_bytes < FLOAT32 { FLOAT32 * weight } else { 0 };
        FLOAT32 * gradient + (FLOAT32 * input).max((FLOAT32 + 1) * weight + widened)
    }
}
