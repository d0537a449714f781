//! Weights in and out of models that are spread over ranks: the same bytes as on one.

use std::time::Duration;

use bridge_core::model::{BuildContext, Member, Parallel, RankPlace, Stage};
use bridge_dist::comm::thread::run_ranks;
use bridge_dist::mesh::{Mesh, MeshSetupError, ParallelSizes, ProcessGroups, RankOrder};
use bridge_dist::schedule::placement::StageContent;
use burn::tensor::FloatDType;

use super::files::as_in_files;
use super::*;
use crate::architecture::divisions::check_divides;
use crate::decoder::HybridBlock;
use crate::decoder::build_decoder;
use crate::gather_parameters;

/// Imports a golden model on `world_size` ranks and exports it again from there, to `folder`.
fn through_ranks(name: &str, sizes: ParallelSizes, world_size: usize, folder: &Path) {
    let mesh = Mesh::new(world_size, sizes, RankOrder::default()).unwrap();
    let stages = sizes.pipeline_model_parallel_size;
    let outcome = run_ranks(world_size, Duration::from_secs(60), |world| {
        let rank = world.rank();
        let groups = ProcessGroups::new(world, mesh)?;
        let model = HfModel::open(&golden(name)).unwrap();
        // Padded so that the vocabulary divides, which Hugging Face's does not have to.
        let config = DecoderConfig { padded_vocab_size: 168, ..model.config().clone() };
        let pp = groups.coordinates().pp;
        let stacks = config.stacks();
        let total: usize = stacks.iter().sum();
        let first = |stage: usize| stage * total / stages;
        let (embedding, loss) = (pp == 0, pp + 1 == stages);
        let content = StageContent { embedding, layers: first(pp)..first(pp + 1), num_mtp_layers: 0, loss };
        let stage = Stage::from_content(&stacks, &content);
        let context = BuildContext {
            device: device(),
            seed: 1,
            params_dtype: FloatDType::F32,
            padded_vocab_size: config.padded_vocab_size,
            parallel: Parallel { groups: groups.clone(), sequence_parallel: false },
            deferred: None,
            adapter: None,
        };
        let mut chunk = build_decoder(&config, &context, &stage).unwrap();
        model.load_into(chunk.as_mut()).unwrap();
        // Only one of them writes.
        let options = ExportOptions { experts: model.experts(), ..ExportOptions::default() };
        let exporter = (rank == 0).then(|| Exporter::new(folder, model.family(), &config, &options));
        let mut exporter = exporter.transpose().unwrap();
        gather_parameters(&config, &[chunk.as_ref()], &groups, &mut |name, shape, values| {
            if let Some(exporter) = &mut exporter {
                exporter.add(name, shape, &values);
            }
        })
        .unwrap();
        if let Some(exporter) = exporter {
            exporter.finish().unwrap();
        }
        Ok::<_, MeshSetupError>(())
    });
    outcome.unwrap();
}

#[test]
fn ranks_import_their_slices_and_export_the_whole() {
    let tensor = ParallelSizes { tensor_model_parallel_size: 2, ..ParallelSizes::default() };
    let stages = ParallelSizes { pipeline_model_parallel_size: 2, ..ParallelSizes::default() };
    let both = ParallelSizes { pipeline_model_parallel_size: 2, ..tensor };
    // As many as the heads, and twice the key/value heads of most.
    let four = ParallelSizes { tensor_model_parallel_size: 4, ..tensor };
    for name in &golden_models() {
        // The last of each size with two data-parallel replicas.
        let model = HfModel::open(&golden(name)).unwrap();
        let config = DecoderConfig { padded_vocab_size: 168, ..model.config().clone() };
        let fits = |size: usize| {
            let member = |size| Member { rank: 0, size };
            let (tensor, expert) = (member(size), member(1));
            let place = RankPlace { tensor, expert, expert_tensor: tensor, sequence_parallel: false };
            check_divides(&config, &place).is_ok()
        };
        // Stages do not divide the layers of a shared block.
        let is_shared = config.has_block(HybridBlock::SharedMamba);
        let layouts = [(stages, 2), (tensor, 2), (both, 4), (tensor, 4), (four, 4), (four, 8)];
        let layouts = layouts.into_iter().filter(|(sizes, _)| {
            fits(sizes.tensor_model_parallel_size) && !(is_shared && sizes.pipeline_model_parallel_size > 1)
        });
        for (sizes, world_size) in layouts {
            let folder = tempfile::tempdir().unwrap();
            through_ranks(name, sizes, world_size, folder.path());
            let bytes = |path: &Path| raw_tensors(&path.join("model.safetensors"));
            assert!(bytes(folder.path()) == as_in_files(name), "{name} on {world_size} ranks");
        }
    }
}

#[test]
fn a_parameter_that_nobody_gave_is_missed() {
    let model = HfModel::open(&golden("llama")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("new/model");
    let exporter = || Exporter::new(&place, family("llama"), model.config(), &ExportOptions::default()).unwrap();
    assert!(matches!(exporter().finish(), Err(HfError::MissingParameter { .. })));
    let mut strange = exporter();
    strange.add("decoder.final_layernorm.weight", &[3], &[0.0; 3]);
    assert!(matches!(strange.finish(), Err(HfError::Parameter { .. })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left of it");
}
