//! A folder of `peft` made of branches that were trained here.

use bridge_core::config::PeftKind;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::tensor::Tensor;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};

use super::modules::{Module, ModuleNames, WORD_EMBEDDINGS, modules, tied_head};
use super::{A, B, MAGNITUDES, PREFIX, SETTINGS, TENSORS, tensor_name};
use crate::adapters::AdapterError;
use crate::adapters::lora::row_lengths;
use crate::adapters::parts::Parts;
use crate::adapters::trained::{AdaptedLayer, ReadValues, TrainedAdapter, Values, floats, matrix, vector};
use crate::decoder::DecoderConfig;
use crate::huggingface::{ExpertLayout, Family, HfError, HostTensor, Layout, Staged, WeightMap};

/// Content of a folder besides the branches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeftOptions {
    /// Base: a folder, or a name.
    pub base: Option<String>,
    /// Names of modules of a multimodal base; `None` for other bases.
    pub layout: Option<Layout>,
    /// The share of a branch's input that was dropped in training.
    pub dropout: f64,
}

/// The branch of a module, in its order of rows.
struct ModuleBranch {
    module: String,
    scale: f64,
    a_ri: Tensor<2>,
    b_or: Tensor<2>,
    magnitudes_o: Option<Tensor<1>>,
}

impl TrainedAdapter {
    /// Writes the branches and the fully trained modules to `folder`, which is created if it does
    /// not exist, for a base of the family `family`. If a layer is several modules in the family,
    /// its branch becomes one branch of each module. If several branches belong to one module, they
    /// become one branch with the sum of their ranks. Returns the number of modules.
    ///
    /// # Errors
    /// If an adapted layer is not a module of the family, values cannot be read, or files cannot be
    /// written.
    pub fn to_peft(
        &self,
        folder: &Path,
        family: &Family,
        config: &DecoderConfig,
        options: &PeftOptions,
        base: &ReadValues<'_>,
        own: &ReadValues<'_>,
    ) -> Result<usize, AdapterError> {
        let map = WeightMap::new(family, config, ExpertLayout::default())?;
        let module_names = ModuleNames::new(family, options.layout);
        let all = modules(config, &map, module_names);
        let mut branches = Vec::new();
        for adapted in self.layers.values() {
            let of_layer: Vec<&Module> = all.iter().filter(|module| module.layer.name == adapted.layer.name).collect();
            if of_layer.is_empty() || adapted.is_of_expert {
                return Err(AdapterError::NoModule { layer: adapted.layer.name.clone() });
            }
            let values = self.values(adapted, own)?;
            for module in of_layer {
                branches.extend(self.branch(adapted, module, &values, base)?);
            }
        }
        let is_conv =
            all.iter().any(|module| module.rows_are_inputs && branches.iter().any(|b| b.module == module.name));
        let names: Vec<&str> = all.iter().map(|module| module.name.as_str()).collect();
        let in_full = self.tensors_in_full(family, config, module_names, &map, own)?;
        let mut settings = self.settings(&branches, &names, module_names, options);
        let saved: BTreeSet<&str> =
            in_full.iter().filter_map(|(name, _)| name.rsplit_once('.').map(|(module, _)| module)).collect();
        let saved_modules = saved.len();
        if !saved.is_empty() {
            settings.insert("modules_to_save".into(), json!(saved));
        }
        settings.insert("fan_in_fan_out".into(), json!(is_conv));
        let task = if config.encoder.is_some() { "SEQ_2_SEQ_LM" } else { "CAUSAL_LM" };
        settings.insert("task_type".into(), json!(task));
        write(folder, &branches, &in_full, settings)?;
        Ok(branches.len() + saved_modules)
    }

    /// Tensors that are trained in full, as the family stores them. A head that is tied to the
    /// embedding is a tensor of its own there: `peft` trains a copy of each.
    fn tensors_in_full(
        &self,
        family: &Family,
        config: &DecoderConfig,
        module_names: ModuleNames,
        map: &WeightMap,
        own: &ReadValues<'_>,
    ) -> Result<Vec<(String, HostTensor)>, AdapterError> {
        let mut tensors = Vec::new();
        for parameter in &self.in_full {
            let refused = || AdapterError::NoModule { layer: parameter.clone() };
            let is_tied = config.share_embeddings_and_output_weights && parameter.ends_with(WORD_EMBEDDINGS);
            if is_tied && config.encoder.is_some() {
                return Err(refused());
            }
            let of_head = if is_tied { tied_head(family, config)? } else { None };
            let values = own(parameter)?;
            for entry in [map.entry(parameter), of_head.as_ref()].into_iter().flatten() {
                if entry.tensors.iter().any(|stored| stored.part.is_some()) {
                    return Err(refused());
                }
                let names = entry.tensors.iter().map(|stored| module_names.module_name(&stored.name));
                tensors.extend(names.zip(entry.split(&values)));
            }
        }
        Ok(tensors)
    }

    /// Branch of a layer as one of its modules; `None` if the branches belong to other parts.
    fn branch(
        &self,
        adapted: &AdaptedLayer,
        module: &Module,
        Values { matrices, vectors }: &Values,
        base: &ReadValues<'_>,
    ) -> Result<Option<ModuleBranch>, AdapterError> {
        let AdaptedLayer { layer, branches, .. } = adapted;
        let parts = Parts::from_layer(layer);
        let scale = branches[0].scale;
        let is_dora = self.method == PeftKind::Dora;
        let of = |index: usize| (matrices[2 * index].clone(), matrices[2 * index + 1].clone());
        let (a_ri, b_or, magnitudes_o) = match (branches[0].part, module.part) {
            (None, None) => (of(0).0, of(0).1, vectors.first().cloned()),
            (None, Some(part)) => {
                let rows = vectors.first().map(|v| parts.select(part, v.clone().unsqueeze_dim::<2>(1)).flatten(0, 1));
                (of(0).0, parts.select(part, of(0).1), rows)
            }
            (Some(_), Some(part)) => {
                let Some(index) = branches.iter().position(|branch| branch.part == Some(part)) else { return Ok(None) };
                (of(index).0, of(index).1, vectors.get(index).cloned())
            }
            (Some(_), None) => {
                let count = parts.names("").len();
                // The columns of each branch have values in its own rows alone.
                let widened = branches.iter().enumerate().map(|(index, branch)| {
                    let only = |part| (Some(part) == branch.part).then(|| of(index).1.transpose());
                    parts.join((0..count).map(only).collect(), layer.outputs, 0.0).transpose()
                });
                let b_or = Tensor::cat(widened.collect(), 1);
                let a_ri = Tensor::cat((0..branches.len()).map(|index| of(index).0).collect(), 0);
                let magnitudes_o = match is_dora {
                    true => Some(self.whole_lengths(adapted, vectors, &base(&format!("{}.weight", layer.name))?)),
                    false => None,
                };
                (a_ri, b_or, magnitudes_o)
            }
        };
        let rank = a_ri.dims()[0];
        let outputs = module.rows.len();
        let b_or = matrix(module.stored(&floats(b_or), rank), [outputs, rank]);
        let magnitudes_o = magnitudes_o.map(|rows| vector(module.stored(&floats(rows), 1)));
        Ok(Some(ModuleBranch { module: module.name.clone(), scale, a_ri, b_or, magnitudes_o }))
    }

    /// The lengths of all rows of a layer: learned lengths, or the lengths of the base's `weight`
    /// for parts without a branch.
    fn whole_lengths(&self, adapted: &AdaptedLayer, vectors: &[Tensor<1>], weight: &[f32]) -> Tensor<1> {
        let AdaptedLayer { layer, branches, .. } = adapted;
        let parts = Parts::from_layer(layer);
        let of_base_o1 = matrix(row_lengths(weight, layer.inputs), [layer.outputs, 1]);
        let of_part = |part: usize| {
            let learned = branches.iter().position(|branch| branch.part == Some(part));
            let learned = learned.map(|index| vectors[index].clone().unsqueeze_dim::<2>(0));
            Some(learned.unwrap_or_else(|| parts.select(part, of_base_o1.clone()).transpose()))
        };
        let all = (0..parts.names("").len()).map(of_part).collect();
        parts.join(all, layer.outputs, 1.0).reshape([layer.outputs])
    }

    fn settings(
        &self,
        branches: &[ModuleBranch],
        all: &[&str],
        module_names: ModuleNames,
        options: &PeftOptions,
    ) -> Map<String, Value> {
        let rank = |branch: &ModuleBranch| branch.a_ri.dims()[0];
        let alpha = |branch: &ModuleBranch| number(branch.scale * rank(branch) as f64);
        let common = branches.first();
        let (r, lora_alpha) = common.map_or((1, json!(1)), |branch| (rank(branch), alpha(branch)));
        let other = |of: &dyn Fn(&ModuleBranch) -> Value, common: &Value| {
            let others = branches.iter().filter(|branch| of(branch) != *common);
            others.map(|branch| (branch.module.clone(), of(branch))).collect::<Map<String, Value>>()
        };
        let settings = json!({
            "peft_type": "LORA",
            "base_model_name_or_path": options.base,
            "r": r,
            "lora_alpha": lora_alpha,
            "rank_pattern": other(&|branch| json!(rank(branch)), &json!(r)),
            "alpha_pattern": other(&alpha, &lora_alpha),
            "lora_dropout": options.dropout,
            "target_modules": targets(branches, all, module_names.has_others()),
            "use_dora": self.method == PeftKind::Dora,
            "use_rslora": false,
            "bias": "none",
            "inference_mode": true,
            "init_lora_weights": true,
            "modules_to_save": null,
        });
        match settings {
            Value::Object(settings) => settings,
            _ => unreachable!("it was written as an object"),
        }
    }
}

/// A number without a fraction as an integer.
fn number(value: f64) -> Value {
    let whole = value.round();
    if (value - whole).abs() < 1e-9 * value.abs() { json!(whole as i64) } else { json!(value) }
}

/// The ends of names that mean the modules with branches and no others: the last part of a name
/// where all modules of that name have one. Whole names if the base has modules besides `all`.
fn targets(branches: &[ModuleBranch], all: &[&str], has_others: bool) -> BTreeSet<String> {
    let short = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let adapted: BTreeSet<&str> = branches.iter().map(|branch| branch.module.as_str()).collect();
    let mixed: BTreeSet<String> = all.iter().filter(|name| !adapted.contains(*name)).map(|name| short(name)).collect();
    let is_whole = |name: &str| has_others || mixed.contains(&short(name));
    let target = |name: &&str| if is_whole(name) { (*name).to_owned() } else { short(name) };
    adapted.iter().map(target).collect()
}

fn write(
    folder: &Path,
    branches: &[ModuleBranch],
    in_full: &[(String, HostTensor)],
    settings: Map<String, Value>,
) -> Result<(), AdapterError> {
    let bytes = |values: Vec<f32>| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for ModuleBranch { module, a_ri, b_or, magnitudes_o, .. } in branches {
        for (name, matrix) in [(A, a_ri), (B, b_or)] {
            let values = bytes(floats(matrix.clone()));
            tensors.insert(tensor_name(module, name), (matrix.dims().to_vec(), values));
        }
        if let Some(rows) = magnitudes_o {
            tensors.insert(tensor_name(module, MAGNITUDES), (rows.dims().to_vec(), bytes(floats(rows.clone()))));
        }
    }
    for (name, HostTensor { shape, values }) in in_full {
        tensors.insert(format!("{PREFIX}{name}"), (shape.clone(), bytes(values.clone())));
    }
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("as many bytes as the shape says"))
    });
    let content = safetensors::serialize(views, Some(metadata));
    let content = content.expect("names and sizes are those of tensors in memory");
    let json = |source| AdapterError::from(HfError::Json { path: folder.join(SETTINGS), source });
    let settings = serde_json::to_vec_pretty(&Value::Object(settings)).map_err(json)?;
    let mut staged = Staged::create(folder, Vec::new())?;
    staged.add(TENSORS, &content)?;
    staged.add(SETTINGS, &settings)?;
    Ok(staged.publish()?)
}
