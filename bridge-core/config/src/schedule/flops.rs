//! Rates of floating-point operations. How many there are, a model says itself
//! ([`crate::model::SegmentCost`]).

/// Model TFLOP/s per device: `flops` done by `num_devices` in `seconds`. 0 for no time at all.
pub fn tflops_per_device(flops: f64, seconds: f64, num_devices: u64) -> f64 {
    if seconds > 0.0 { flops / seconds / num_devices.max(1) as f64 / 1e12 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_device() {
        assert_eq!(tflops_per_device(8e12, 2.0, 4), 1.0);
        assert_eq!(tflops_per_device(8e12, 0.0, 4), 0.0);
    }
}
