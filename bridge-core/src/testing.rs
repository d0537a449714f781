//! For authors of models: a test that segments read only the parameters that they declare, and an
//! adapter to test with.

mod low_rank;

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::{Device, Tensor};

use crate::model::{Batch, Boundary, ForwardContext, Mode, ModelChunk, Replacement, SegmentOutput};
use bridge_data::MicroBatch;
pub use low_rank::LowRank;

/// Runs each segment of a chunk while all parameters that only other segments declare are released,
/// and compares with the chunk whole.
///
/// # Errors
/// Names the first segment that reads what it does not declare, and the parameter.
pub fn check_segments(chunk: &mut dyn ModelChunk, micro_batch: &MicroBatch) -> Result<(), String> {
    let batch = Batch::new(micro_batch, &Device::flex());
    let context = ForwardContext::new(&batch, Mode::Evaluate);
    let mut values: BTreeMap<String, Tensor<1>> = BTreeMap::new();
    chunk.visit_parameters(&mut |name, value| {
        values.insert(name.to_owned(), value);
    });
    let ones = |input: Boundary, declared: &crate::model::BoundaryTensor| {
        let options = (&Device::flex(), declared.dtype.into());
        input.with(declared.name, Tensor::ones(declared.shape, options))
    };
    let mut input = chunk.boundary(0, &batch).iter().fold(Boundary::default(), ones);
    for (index, segment) in chunk.segments().into_iter().enumerate() {
        let run = |chunk: &dyn ModelChunk| chunk.inference().forward_segment(index, input.clone(), &context);
        let expected = run(chunk);
        let of_others = chunk.parameters().iter().filter(|declaration| !declaration.segments.contains(&index));
        let of_others: BTreeSet<String> = of_others.map(|declaration| declaration.name.clone()).collect();
        let mut is_read = |names: &BTreeSet<String>| {
            chunk.replace_parameters(names.iter().map(|name| (name.as_str(), Replacement::Released)).collect());
            let is_read = bits(&run(chunk)) != bits(&expected);
            chunk.replace_parameters(names.iter().map(|name| (name.as_str(), values[name].clone().into())).collect());
            is_read
        };
        if is_read(&of_others) {
            let read = of_others.into_iter().find(|name| is_read(&BTreeSet::from([name.clone()])));
            let read = read.unwrap_or_else(|| "a parameter".to_owned());
            return Err(format!("segment {index} ({segment:?}) reads `{read}` and does not declare it"));
        }
        if let SegmentOutput::Boundary(boundary) = expected {
            input = boundary;
        }
    }
    Ok(())
}

/// All numbers of an output, with NaN equal to itself.
fn bits(output: &SegmentOutput) -> Vec<u64> {
    let numbers = |tensor: burn::tensor::TensorData| tensor.iter::<f64>().map(f64::to_bits).collect::<Vec<_>>();
    match output {
        SegmentOutput::LossSum(sum) => numbers(sum.to_data()),
        SegmentOutput::Boundary(boundary) => {
            boundary.iter().flat_map(|(_, tensor)| numbers(tensor.to_data())).collect()
        }
    }
}
