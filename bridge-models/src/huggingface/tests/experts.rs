//! Experts of a layer in tensors of their own, and all in one.

use super::files::export_to_temporary;
use super::*;

/// The same model with separate tensors for each expert, under the names of older files.
fn with_experts_apart(name: &str) -> tempfile::TempDir {
    let is_mixtral = settings_of(name)["model_type"] == "mixtral";
    changed_copy(name, |tensors| {
        let all = std::mem::take(tensors);
        for raw in all {
            let Some((layer, matrix)) = raw.name.split_once(".mlp.experts.") else {
                let renamed =
                    if is_mixtral { raw.name.replace(".mlp.", ".block_sparse_moe.") } else { raw.name.clone() };
                tensors.push(Raw { name: renamed, ..raw });
                continue;
            };
            let experts = raw.shape[0];
            for (expert, bytes) in raw.bytes.chunks(raw.bytes.len() / experts).enumerate() {
                let halves: &[&str] = match (matrix, is_mixtral) {
                    ("gate_up_proj", true) => &["w1", "w3"],
                    ("gate_up_proj", false) => &["gate_proj", "up_proj"],
                    (_, true) => &["w2"],
                    (_, false) => &["down_proj"],
                };
                for (half, bytes) in halves.iter().zip(bytes.chunks(bytes.len() / halves.len())) {
                    let block = if is_mixtral { "block_sparse_moe" } else { "mlp" };
                    tensors.push(Raw {
                        name: format!("{layer}.{block}.experts.{expert}.{half}.weight"),
                        dtype: raw.dtype,
                        shape: vec![raw.shape[1] / halves.len(), raw.shape[2]],
                        bytes: bytes.to_vec(),
                    });
                }
            }
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
    })
}

#[test]
fn experts_may_be_stacked_or_apart() {
    for name in ["mixtral", "qwen3_moe", "olmoe"] {
        let folder = with_experts_apart(name);
        let [apart, stacked] = [folder.path(), &golden(name)].map(|folder| HfModel::open(folder).unwrap());
        assert_eq!([apart.experts(), stacked.experts()], [ExpertLayout::Apart, ExpertLayout::Stacked]);
        let files = |folder: &Path| raw_tensors(&folder.join("model.safetensors"));
        let same = export_to_temporary(&apart, &ExportOptions::default());
        assert!(files(same.path()) == files(folder.path()), "{name}");
        // Stacked experts are exported one by one by default.
        let chunk = stacked.build(&device()).unwrap();
        let other = tempfile::tempdir().unwrap();
        let options = ExportOptions::default();
        to_hf(other.path(), stacked.family(), stacked.config(), &[chunk.as_ref()], &options).unwrap();
        assert!(files(other.path()) == files(folder.path()), "{name}");
    }
}

#[test]
fn a_reference_may_stack_experts_that_the_folder_has_apart() {
    let folder = with_experts_apart("olmoe");
    assert_eq!(HfModel::open(folder.path()).unwrap().experts(), ExpertLayout::Apart);
    let report = crate::verify(folder.path(), &golden("olmoe").join("golden.safetensors"), &device()).unwrap();
    assert!(report.passed && report.gradients.is_some(), "{report:?}");
}

#[test]
fn a_missing_expert_is_named() {
    let folder = with_experts_apart("qwen3_moe");
    let path = folder.path().join("model.safetensors");
    let mut tensors = raw_tensors(&path);
    let name = "model.layers.1.mlp.experts.7.down_proj.weight";
    tensors.retain(|raw| raw.name != name);
    write_raw(&path, &tensors);
    match HfModel::open(folder.path()) {
        Err(HfError::Tensors { problems, .. }) => {
            assert_eq!(problems, [TensorProblem::Missing { name: name.into(), expected: vec![64, 48] }]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn stacked_experts_have_scales_each() {
    let original = HfModel::open(&golden("qwen3_moe")).unwrap();
    let options = ExportOptions { dtype: StorageDtype::F8, ..ExportOptions::default() };
    let files = |folder: &Path| raw_tensors(&folder.join("model.safetensors"));
    let folder = export_to_temporary(&original, &options);
    let raws = files(folder.path());
    let stored = |name: &str| raws.iter().find(|raw| raw.name == name).map(|raw| (raw.dtype, raw.shape.clone()));
    let name = "model.layers.1.mlp.experts.gate_up_proj";
    let experts = original.config().moe.as_ref().unwrap().num_experts;
    assert_eq!(stored(name).unwrap().0, safetensors::Dtype::F8_E4M3);
    let (dtype, grid) = stored(&format!("{name}_scale_inv")).unwrap();
    assert_eq!((dtype, grid.len(), grid[0]), (safetensors::Dtype::F32, 3, experts));
    // Values that were rounded once do not change again.
    let model = HfModel::open(folder.path()).unwrap();
    assert_eq!(model.experts(), ExpertLayout::Stacked);
    let bits = |raws: Vec<Raw>| raws.into_iter().filter(|raw| raw.dtype != safetensors::Dtype::F32).collect::<Vec<_>>();
    let again = export_to_temporary(&model, &options);
    assert!(bits(files(again.path())) == bits(raws));
}

#[test]
fn there_may_be_more_experts_than_tensors() {
    let mut settings = settings_of("qwen3_moe");
    let folder = changed_copy("qwen3_moe", |tensors| {
        for raw in tensors.iter_mut().filter(|raw| raw.name.contains(".mlp.")) {
            raw.shape[0] *= 9;
            raw.bytes = raw.bytes.repeat(9);
        }
    });
    let experts = parse(&settings).unwrap().moe.unwrap().num_experts * 9;
    for key in ["num_experts", "num_local_experts"] {
        settings.insert(key.into(), experts.into());
    }
    std::fs::write(folder.path().join("config.json"), Value::Object(settings.clone()).to_string()).unwrap();
    let model = HfModel::open(folder.path()).unwrap();
    assert!(model.source().tensors().count() < experts);
    // A number of experts without weights is refused before memory is allocated for it.
    settings.insert("num_experts".into(), (1_u64 << 40).into());
    settings.insert("num_local_experts".into(), (1_u64 << 40).into());
    std::fs::write(folder.path().join("config.json"), Value::Object(settings).to_string()).unwrap();
    assert!(HfModel::open(folder.path()).is_err());
}

#[test]
fn stacked_experts_may_be_transposed() {
    let folder = changed_copy("qwen3_moe", |tensors| {
        for raw in tensors.iter_mut().filter(|raw| raw.name.contains(".mlp.experts.")) {
            let [count, rows, columns] = raw.shape[..] else { panic!("{:?}", raw.shape) };
            let element = |expert: usize, row: usize, column: usize| {
                let start = 4 * ((expert * rows + row) * columns + column);
                &raw.bytes[start..start + 4]
            };
            let all = (0..count).flat_map(|expert| (0..columns).map(move |column| (expert, column)));
            let all = all.flat_map(|(expert, column)| (0..rows).map(move |row| (expert, row, column)));
            raw.bytes = all.flat_map(|(expert, row, column)| element(expert, row, column).to_vec()).collect();
            raw.shape = vec![count, columns, rows];
        }
    });
    let model = HfModel::open(folder.path()).unwrap();
    assert_eq!(model.experts(), ExpertLayout::StackedInputs);
    let report = crate::verify(folder.path(), &golden("qwen3_moe").join("golden.safetensors"), &device()).unwrap();
    assert!(report.passed, "{report:?}");
    let exported = export_to_temporary(&model, &ExportOptions::default());
    let files = |folder: &Path| raw_tensors(&folder.join("model.safetensors"));
    assert_eq!(files(exported.path()), files(folder.path()));
}
