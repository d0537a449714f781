//! Activations that are moved to the host, here from host memory: no bit of loss or gradients
//! changes, and the moved bytes are those of the cost model.

use bridge_core::model::Workload;
use bridge_core::train::{Executor, Offload, Recompute, RegionContext, RegionHooks, SegmentOffload};
use bridge_dist::comm::CommError;
use bridge_kernels::Philox;
use bridge_kernels::offload::{Devices, Module, Moved, Moves};

use super::spread::mixtures;
use super::*;
use crate::models::decoder::model::outline;

/// Takes gradients, and waits for the offloader where forward ends.
struct Hooks<'a> {
    gradients: BTreeMap<String, Vec<u32>>,
    offload: Option<&'a SegmentOffload>,
}

fn bits(tensor: Tensor<1>) -> Vec<u32> {
    tensor.cast(FloatDType::F32).into_data().iter::<f32>().map(f32::to_bits).collect()
}

impl RegionHooks for Hooks<'_> {
    fn before_region(&mut self, _: &mut dyn ModelChunk, _: RegionContext<'_>) -> Result<(), CommError> {
        Ok(())
    }

    fn objective(&mut self, loss_sum: Tensor<1>) -> Tensor<1> {
        if let Some(offload) = self.offload {
            offload.settle();
        }
        loss_sum * 0.5
    }

    fn gradient(&mut self, name: &str, gradient: Tensor<1>) {
        assert!(self.gradients.insert(name.to_owned(), bits(gradient)).is_none(), "one region has all");
    }
}

/// Loss, gradients, and the moved bytes.
fn run(
    config: &DecoderConfig,
    dtype: FloatDType,
    offload: Option<(Offload, Moves)>,
) -> (Vec<u32>, BTreeMap<String, Vec<u32>>, Moved) {
    let context = BuildContext { params_dtype: dtype, ..context(config) };
    let mut chunk = build_decoder(config, &context, &Stage::whole([config.num_layers])).unwrap();
    let batch = Batch::new(&micro_batch(config.vocab_size), &device());
    let context = ForwardContext::new(&batch, Mode::Train(Philox::new(3)));
    let offload = offload.map(|what| SegmentOffload::with(what, Devices::All));
    let executor = Executor::new(chunk.as_ref(), &Recompute::Off).offloading(offload.clone());
    let mut hooks = Hooks { gradients: BTreeMap::new(), offload: offload.as_ref() };
    let (in_flight, output) = executor.forward(chunk.as_mut(), Boundary::default(), &context, &mut hooks).unwrap();
    let loss = bits(output.loss_sum().expect("the chunk is a whole model"));
    executor.backward(in_flight, Boundary::default(), chunk.as_mut(), &context, &mut hooks).unwrap();
    (loss, hooks.gradients, offload.map(|offload| offload.moved()).unwrap_or_default())
}

fn models() -> Vec<(&'static str, DecoderConfig)> {
    let plain = [("llama", llama()), ("gpt2", gpt2()), ("everything", everything())];
    let with_dropout = |config| DecoderConfig { attention_dropout: 0.2, hidden_dropout: 0.1, ..config };
    plain.into_iter().chain(mixtures()).map(|(name, config)| (name, with_dropout(config))).collect()
}

fn modules(modules: &[Module]) -> (Offload, Moves) {
    let names = modules.iter().map(|module| module.name().to_owned()).collect();
    (Offload::Modules(names), Moves::Modules(modules.to_vec()))
}

#[test]
fn no_bit_changes() {
    for (name, config) in models() {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let (loss, gradients, _) = run(&config, dtype, None);
            assert!(gradients.values().filter(|g| g.iter().any(|bits| *bits << 1 != 0)).count() > 15, "{name}");
            let layers = |count| (Offload::Layers(count), Moves::FromElements(1));
            for what in [layers(1), layers(config.num_layers - 1), modules(&Module::ALL)] {
                let found = run(&config, dtype, Some(what.clone()));
                assert!((&found.0, &found.1) == (&loss, &gradients), "{name}, {dtype:?}, {what:?}");
                assert!(found.2.tensors > 0 && found.2.returned == found.2.bytes, "{name}, {what:?}: {:?}", found.2);
            }
        }
    }
}

/// Bytes that stay between forward and backward: the more layers are moved, the fewer.
#[test]
fn less_stays_on_the_device() {
    let of = |offload, moves| run(&llama(), FloatDType::F32, Some((offload, moves))).2;
    let all = of(Offload::Layers(3), Moves::Nothing);
    assert_eq!((all.bytes, all.tensors), (0, 0));
    let in_layer = all.staying / 3;
    for layers in [1, 2] {
        let moved = of(Offload::Layers(layers), Moves::FromElements(1));
        assert_eq!((moved.bytes, moved.staying), (layers as u64 * in_layer, 0));
    }
}

/// Each module alone moves the bytes that the costs of a layer assign to it, in every layer.
/// Attention's output belongs to `core_attn`.
#[test]
fn what_a_module_moves_is_what_costs_say() {
    let grouped = |config: &DecoderConfig| {
        let moe = config.moe.clone().map(|moe| MoeConfig { grouped_gemm: true, ..moe });
        DecoderConfig { moe, ..config.clone() }
    };
    let (_, experts) = mixtures().remove(0);
    let batch = micro_batch(37);
    let work = Workload {
        micro_batch_size: batch.batch_size,
        seq_length: batch.seq_length,
        ..Workload::sequence(batch.seq_length, 37)
    };
    for config in [llama(), gpt2(), experts.clone(), grouped(&experts)] {
        let is_grouped = config.moe.as_ref().is_some_and(|moe| moe.grouped_gemm);
        let costs = outline(&config, &work, &Stage::whole([config.num_layers]), None).costs.unwrap();
        for module in Module::ALL.into_iter().filter(|module| *module != Module::AttnProj) {
            let of_costs: u64 = costs
                .iter()
                .flat_map(|cost| &cost.modules)
                .filter(|(name, _)| *name == module.name())
                .map(|(_, bytes)| bytes)
                .sum();
            let found = run(&config, FloatDType::F32, Some(modules(&[module]))).2;
            // On the CPU grouped experts are one operation, not two modules, and offload does not
            // move the tensors that they keep.
            let is_held = matches!(module, Module::ExpertFc1 | Module::MoeAct);
            let expected = if is_held && (is_grouped || module == Module::MoeAct) { 0 } else { of_costs };
            assert_eq!(found.bytes, expected, "{module:?} of {config:?}");
        }
    }
}
