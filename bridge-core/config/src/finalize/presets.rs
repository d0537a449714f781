//! Stage 1: precision recipes and `[comm_overlap]` become ordinary settings of model, optimizer and
//! ddp.
//!
//! A value that a precision recipe states must agree with the user's value: equal is fine,
//! different is an error. A value that it leaves at its default is used only if the user has not
//! set one.

use super::super::choice::{DType, PipelineSchedule, ShardingStrategy};
use super::super::error::ErrorKind;
use super::super::field::Field;
use super::super::node::Node;
use super::super::overrides::value_of;
use super::super::section::Section;
use super::super::sections::{MixedPrecisionConfig, Precision, RecipeConfig};
use super::Draft;

/// Advice on parameters of 8 bits.
const INSTEAD_OF_BYTES: &str = "; model.fp8 gives linear layers products of 8-bit operands, whatever parameters are";

/// Recipes of 4 bits, understood but not implemented.
const NOT_IMPLEMENTED: [&str; 2] = ["bf16_with_nvfp4_mixed", "nemotron_3_super_bf16_with_nvfp4_mixed"];

/// The recipes: the dtype of parameters, and the settings of 8-bit products in `[model]`, which a
/// recipe states (`=`) or only suggests (`?`).
const RECIPES: [(&str, DType, &str); 12] = [
    ("bf16_mixed", DType::BFloat16, ""),
    ("fp16_mixed", DType::Float16, ""),
    ("bf16_with_fp8_delayed_scaling_mixed", DType::BFloat16, DELAYED),
    ("fp16_with_fp8_delayed_scaling_mixed", DType::Float16, DELAYED),
    ("bf16_with_mxfp8_mixed", DType::BFloat16, MICROSCALING),
    ("fp16_with_mxfp8_mixed", DType::Float16, MICROSCALING),
    ("bf16_with_fp8_current_scaling_mixed", DType::BFloat16, CURRENT),
    ("fp16_with_fp8_current_scaling_mixed", DType::Float16, CURRENT),
    ("nemotron_h_bf16_with_fp8_current_scaling_mixed", DType::BFloat16, CURRENT_OF_NEMOTRON),
    ("nanov2_bf16_with_fp8_current_scaling_mixed", DType::BFloat16, BLOCKWISE_OF_NANO),
    ("bf16_with_fp8_subchannel_scaling_mixed", DType::BFloat16, BLOCKWISE),
    ("fp16_with_fp8_subchannel_scaling_mixed", DType::Float16, BLOCKWISE),
];
const DELAYED: &str = "fp8=hybrid fp8_recipe=delayed fp8_amax_history_len?1024 fp8_amax_compute_algo?max";
const MICROSCALING: &str = "fp8=e4m3 fp8_recipe=mxfp8";
const CURRENT: &str = "fp8=hybrid fp8_recipe=tensorwise \
                       first_last_layers_bf16?true num_layers_at_start_in_bf16?1 num_layers_at_end_in_bf16?1";
const CURRENT_OF_NEMOTRON: &str = "fp8=hybrid fp8_recipe=tensorwise \
                                   first_last_layers_bf16?true num_layers_at_start_in_bf16?2 num_layers_at_end_in_bf16?2";
const BLOCKWISE_OF_NANO: &str = "fp8=hybrid fp8_recipe=blockwise \
                                 first_last_layers_bf16?true num_layers_at_start_in_bf16?2 num_layers_at_end_in_bf16?2";
/// The only recipe in which upstream does not gather weights in 8 bits.
const BLOCKWISE: &str = "fp8=hybrid fp8_recipe=blockwise";

/// Settings that a table sets in a section: the section, the table, and the names in both.
pub(in super::super) const COPIES: [(&str, &str, &[&str]); 4] = [
    (
        "model",
        "mixed_precision",
        &[
            "fp16",
            "bf16",
            "pipeline_dtype",
            "autocast_dtype",
            "fp8",
            "fp8_recipe",
            "fp8_margin",
            "fp8_amax_history_len",
            "fp8_amax_compute_algo",
            "fp8_wgrad",
            "first_last_layers_bf16",
            "num_layers_at_start_in_bf16",
            "num_layers_at_end_in_bf16",
        ],
    ),
    ("ddp", "mixed_precision", &["grad_reduce_in_fp32", "fp8_param_gather"]),
    (
        "optimizer",
        "mixed_precision",
        &["loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"],
    ),
    ("ddp", "comm_overlap", &["overlap_grad_reduce", "overlap_param_gather", "bucket_size"]),
];

/// Copies the precision recipe and the overlap settings to the sections that they concern.
pub(super) fn resolve(draft: &mut Draft<'_>) {
    match draft.recipe.mixed_precision.clone() {
        None => {}
        Some(Precision::Named(name)) => named(draft, &name),
        Some(Precision::Custom(config)) => custom(draft, &config),
    }
    follow_model(draft);
    overlaps(draft);
}

fn named(draft: &mut Draft<'_>, name: &str) {
    let key = "mixed_precision";
    let canonical = name.replace('-', "_");
    let source = format!("mixed_precision = \"{name}\"");
    if let Some((_, dtype, eight_bits)) = RECIPES.iter().find(|(known, ..)| *known == canonical) {
        let mut preset = Preset::new(draft, source);
        preset.mode(*dtype);
        preset.state("ddp.grad_reduce_in_fp32", *dtype == DType::BFloat16);
        preset.eight_bits(eight_bits);
        let would_gather = !matches!(*eight_bits, "" | BLOCKWISE) && !draft.recipe.ddp.fp8_param_gather;
        if would_gather && draft.world.size > 1 && has_shards(&draft.recipe) {
            draft.warnings.push(format!(
                "{key} = \"{name}\": weights are gathered in 16 bits; upstream's recipe gathers them in 8, as ddp.fp8_param_gather does here \
                 where parameters are sharded"
            ));
        }
    } else if NOT_IMPLEMENTED.contains(&canonical.as_str()) {
        draft.error(ErrorKind::NotImplemented, key, "not implemented yet: 4-bit formats");
    } else {
        let names = RECIPES.map(|(known, ..)| known);
        draft.unknown_name(key, "unknown precision recipe", (name, &canonical), &names, "");
    }
}

fn custom(draft: &mut Draft<'_>, config: &MixedPrecisionConfig) {
    let modes = [config.fp32, config.fp16, config.bf16];
    if modes.iter().filter(|mode| **mode).count() > 1 {
        draft.conflict("mixed_precision", "only one of fp32, fp16 and bf16 can be true");
        return;
    }
    let mode = match modes {
        [_, true, _] => DType::Float16,
        [_, _, true] => DType::BFloat16,
        _ => DType::Float32,
    };
    if config.params_dtype.is_some_and(|dtype| dtype != mode) {
        let is_bytes = config.params_dtype == Some(DType::UInt8);
        let more = if is_bytes { INSTEAD_OF_BYTES } else { "" };
        let message = format!("parameters are {mode} in this mode{more}");
        draft.conflict("mixed_precision.params_dtype", message);
        return;
    }
    let is_mode_stated = ["fp32", "fp16", "bf16"].iter().any(|mode| draft.is_stated("mixed_precision", mode));
    let mut preset = Preset::new(draft, "the [mixed_precision] table".into());
    if is_mode_stated {
        preset.mode_only(mode);
    }
    if let Some(dtype) = config.params_dtype {
        preset.params_dtype(dtype);
    }
    let has_format = config.fp8.is_some();
    let has_edges = has_format && config.first_last_layers_bf16;
    for (section, table, names) in COPIES.iter().filter(|(_, table, _)| *table == "mixed_precision") {
        for name in *names {
            let value = config.value(name).unwrap_or_else(Node::null);
            let is_stated = match *name {
                // The mode sets these.
                "fp16" | "bf16" => None,
                "pipeline_dtype" | "autocast_dtype" | "fp8" | "loss_scale" => (!value.is_null()).then_some(true),
                name if preset.draft.is_stated(table, name) => Some(true),
                "grad_reduce_in_fp32" => Some(false),
                "num_layers_at_start_in_bf16" | "num_layers_at_end_in_bf16" => has_edges.then_some(false),
                _ => (*section == "model" && has_format).then_some(false),
            };
            if let Some(is_stated) = is_stated {
                preset.put(&format!("{section}.{name}"), value, is_stated);
            }
        }
    }
    agree_with_sections(draft);
}

/// If the table had only suggested a value, the resolved table gets the final value of the section,
/// so that the resolved recipe is consistent when it is read again.
fn agree_with_sections(draft: &mut Draft<'_>) {
    for (section, table, names) in COPIES.iter().filter(|(_, table, _)| *table == "mixed_precision") {
        for name in names.iter().filter(|name| !["pipeline_dtype", "autocast_dtype"].contains(name)) {
            let value = draft.value(&format!("{section}.{name}")).unwrap_or_else(Node::null);
            draft.set(&format!("{table}.{name}"), &value);
        }
    }
}

/// Default bucket size of `[comm_overlap]`, in elements.
const OVERLAPPED_BUCKET: usize = 134_217_728;

/// True if replicas shard optimizer state.
pub(super) fn has_shards(recipe: &RecipeConfig) -> bool {
    let is_distributed = recipe.optimizer.use_distributed_optimizer || recipe.ddp.use_distributed_optimizer;
    is_distributed || recipe.ddp.data_parallel_sharding_strategy != ShardingStrategy::NoShard
}

/// Copies `[comm_overlap]` onto ddp: its values, and overlap with a distributed optimizer unless it
/// sets that.
fn overlaps(draft: &mut Draft<'_>) {
    let Some(config) = draft.recipe.comm_overlap.clone() else { return };
    let recipe = &draft.recipe;
    let strategy = recipe.ddp.data_parallel_sharding_strategy;
    let has_shards = has_shards(recipe);
    let is_by_segment = matches!(strategy, ShardingStrategy::OptimGrads | ShardingStrategy::OptimGradsParams);
    let defers_weights = recipe.model.pipeline_schedule == Some(PipelineSchedule::ZeroBubbleH1);
    let mut preset = Preset::new(draft, "the [comm_overlap] table".into());
    match config.overlap_grad_reduce {
        Some(overlaps) => preset.state("ddp.overlap_grad_reduce", overlaps),
        None if has_shards && !defers_weights => preset.suggest("ddp.overlap_grad_reduce", true),
        None => {}
    }
    match config.overlap_param_gather {
        Some(overlaps) => {
            preset.state("ddp.overlap_param_gather", overlaps);
            preset.state("optimizer.overlap_param_gather", overlaps);
        }
        None if has_shards && !preset.draft.is_explicit("optimizer.overlap_param_gather") => {
            preset.suggest("ddp.overlap_param_gather", true);
        }
        None => {}
    }
    let ddp = &preset.draft.recipe.ddp;
    let has_buckets = ddp.overlap_grad_reduce || ddp.overlap_param_gather;
    match config.bucket_size {
        Some(size) => preset.state("ddp.bucket_size", size),
        None if has_shards && has_buckets && !is_by_segment => preset.suggest("ddp.bucket_size", OVERLAPPED_BUCKET),
        None => {}
    }
    let ddp = draft.recipe.ddp.clone();
    if let Some(config) = &mut draft.recipe.comm_overlap {
        config.overlap_grad_reduce = Some(ddp.overlap_grad_reduce);
        config.overlap_param_gather = Some(ddp.overlap_param_gather || draft.recipe.optimizer.overlap_param_gather);
        config.bucket_size = ddp.bucket_size;
    }
}

/// Copies settings of one preset, called `source` in messages.
struct Preset<'d, 'r> {
    draft: &'d mut Draft<'r>,
    source: String,
}

impl<'d, 'r> Preset<'d, 'r> {
    fn new(draft: &'d mut Draft<'r>, source: String) -> Self {
        Self { draft, source }
    }

    /// Sets `key` unless the user set it differently, which is an error.
    fn state(&mut self, key: &str, value: impl Field) {
        self.put(key, value.write(), true);
    }

    /// Sets `key` unless the user set it.
    fn suggest(&mut self, key: &str, value: impl Field) {
        self.put(key, value.write(), false);
    }

    fn put(&mut self, key: &str, value: Node, is_stated: bool) {
        let found = self.draft.value(key).unwrap_or_else(Node::null);
        if found == value {
            return;
        }
        if !self.draft.is_explicit(key) {
            self.draft.set(key, &value);
        } else if is_stated {
            let (found, wanted) = (found.to_inline(), value.to_inline());
            let is_bytes = key.ends_with(".params_dtype") && found.trim_matches('"') == DType::UInt8.as_str();
            let more = if is_bytes { INSTEAD_OF_BYTES } else { "" };
            let message = format!("set to {found}, but {} sets it to {wanted}{more}", self.source);
            self.draft.conflict(key, message);
        }
    }

    fn mode_only(&mut self, dtype: DType) {
        for section in ["model", "optimizer"] {
            self.state(&format!("{section}.fp16"), dtype == DType::Float16);
            self.state(&format!("{section}.bf16"), dtype == DType::BFloat16);
        }
    }

    fn mode(&mut self, dtype: DType) {
        self.mode_only(dtype);
        self.params_dtype(dtype);
        // Pipeline stages send the residual stream, so its dtype decides.
        let is_wide = self.draft.recipe.model.fp32_residual_connection;
        self.state("model.pipeline_dtype", if is_wide { DType::Float32 } else { dtype });
        self.state("model.enable_autocast", false);
    }

    /// Settings of 8-bit products in a named recipe.
    fn eight_bits(&mut self, settings: &str) {
        for setting in settings.split_whitespace() {
            let (name, value) = setting.split_once(['=', '?']).unwrap_or((setting, ""));
            if !name.starts_with("num_layers_") || self.draft.recipe.model.first_last_layers_bf16 {
                self.put(&format!("model.{name}"), value_of(value), setting.contains('='));
            }
        }
    }

    fn params_dtype(&mut self, dtype: DType) {
        self.state("model.params_dtype", dtype);
        self.state("optimizer.params_dtype", dtype);
    }
}

/// The model's mode decides the dtypes that were not set, and the optimizer mirrors the model.
fn follow_model(draft: &mut Draft<'_>) {
    let (fp16, bf16) = (draft.recipe.model.fp16, draft.recipe.model.bf16);
    let is_alone = draft.recipe.mixed_precision.is_none();
    if fp16 && bf16 {
        draft.conflict("model.bf16", "model.fp16 and model.bf16 exclude each other");
        return;
    }
    let dtype = match (fp16, bf16) {
        (true, _) => DType::Float16,
        (_, true) => DType::BFloat16,
        _ => DType::Float32,
    };
    let mode = match dtype {
        DType::Float16 => "model.fp16 = true",
        DType::BFloat16 => "model.bf16 = true",
        _ => "a model without model.fp16 and model.bf16",
    };
    let mut preset = Preset::new(draft, mode.into());
    preset.params_dtype(dtype);
    preset.state("optimizer.fp16", fp16);
    preset.state("optimizer.bf16", bf16);
    // bfloat16's 8 bits of precision cannot accumulate many micro-batches. A table sets the
    // reduction dtype itself.
    if bf16 && is_alone {
        preset.state("ddp.grad_reduce_in_fp32", true);
    }
}
