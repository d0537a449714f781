//! Stage 1: precision recipes and `[comm_overlap]` become ordinary settings of model, optimizer and
//! ddp.
//!
//! A value that a precision recipe states must agree with what the user set: equal is fine,
//! different is an error. A value that it leaves at its default only fills in what the user did not
//! set.

use super::super::advice::advice_on_value;
use super::super::choice::{AmaxAlgo, DType, Fp8Format, Fp8Recipe, PipelineSchedule, ShardingStrategy};
use super::super::error::{ConfigError, ErrorKind};
use super::super::field::Field;
use super::super::sections::{MixedPrecisionConfig, Precision, RecipeConfig};
use super::Draft;

/// Advice on parameters of 8 bits.
const INSTEAD_OF_BYTES: &str = "; model.fp8 gives linear layers products of 8-bit operands, whatever parameters are";

/// Recipes of 4 bits, understood but not implemented.
const NOT_IMPLEMENTED: [&str; 2] = ["bf16_with_nvfp4_mixed", "nemotron_3_super_bf16_with_nvfp4_mixed"];

/// The recipes: the dtype of parameters, and what their linear layers do in 8 bits.
const RECIPES: [(&str, Mode, Option<EightBitRecipe>); 12] = [
    ("bf16_mixed", Mode::BFloat16, None),
    ("fp16_mixed", Mode::Float16, None),
    ("bf16_with_fp8_delayed_scaling_mixed", Mode::BFloat16, Some(EightBitRecipe::DELAYED)),
    ("fp16_with_fp8_delayed_scaling_mixed", Mode::Float16, Some(EightBitRecipe::DELAYED)),
    ("bf16_with_mxfp8_mixed", Mode::BFloat16, Some(EightBitRecipe::MICROSCALING)),
    ("fp16_with_mxfp8_mixed", Mode::Float16, Some(EightBitRecipe::MICROSCALING)),
    ("bf16_with_fp8_current_scaling_mixed", Mode::BFloat16, Some(EightBitRecipe::current(1))),
    ("fp16_with_fp8_current_scaling_mixed", Mode::Float16, Some(EightBitRecipe::current(1))),
    ("nemotron_h_bf16_with_fp8_current_scaling_mixed", Mode::BFloat16, Some(EightBitRecipe::current(2))),
    ("nanov2_bf16_with_fp8_current_scaling_mixed", Mode::BFloat16, Some(EightBitRecipe::blockwise(true))),
    ("bf16_with_fp8_subchannel_scaling_mixed", Mode::BFloat16, Some(EightBitRecipe::blockwise(false))),
    ("fp16_with_fp8_subchannel_scaling_mixed", Mode::Float16, Some(EightBitRecipe::blockwise(false))),
];

/// Settings of 8-bit products in a named recipe; `None` stays at its default.
#[derive(Clone, Copy)]
struct EightBitRecipe {
    format: Fp8Format,
    recipe: Fp8Recipe,
    /// Steps of the history, of which the largest magnitude counts.
    history: Option<usize>,
    /// Layers at the start, and as many at the end, outside of it.
    edges: Option<usize>,
    /// True if upstream gathers weights in 8 bits.
    gathers: bool,
}

impl EightBitRecipe {
    const DELAYED: Self =
        Self { format: Fp8Format::Hybrid, recipe: Fp8Recipe::Delayed, history: Some(1024), edges: None, gathers: true };
    const MICROSCALING: Self =
        Self { format: Fp8Format::E4m3, recipe: Fp8Recipe::Mxfp8, history: None, edges: None, gathers: true };

    const fn current(edges: usize) -> Self {
        Self {
            format: Fp8Format::Hybrid,
            recipe: Fp8Recipe::Tensorwise,
            history: None,
            edges: Some(edges),
            gathers: true,
        }
    }

    /// With two layers at each end outside, or none.
    const fn blockwise(has_edges: bool) -> Self {
        let edges = if has_edges { Some(2) } else { None };
        Self { format: Fp8Format::Hybrid, recipe: Fp8Recipe::Blockwise, history: None, edges, gathers: has_edges }
    }
}

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
    if let Some((_, mode, eight_bits)) = RECIPES.iter().find(|(known, ..)| *known == canonical) {
        let mut preset = Preset::new(draft, source);
        preset.mode(*mode);
        let reduces_wide = *mode == Mode::BFloat16;
        preset.state(|r| &mut r.ddp.grad_reduce_in_fp32, reduces_wide, "ddp.grad_reduce_in_fp32");
        if let Some(recipe) = eight_bits {
            preset.eight_bits(recipe);
            let gathers = draft.recipe.ddp.fp8_param_gather;
            if recipe.gathers && !gathers && draft.world.size > 1 && has_shards(&draft.recipe) {
                draft.warnings.push(format!(
                    "{key} = \"{name}\": weights are gathered in 16 bits; upstream's recipe gathers them in 8, as ddp.fp8_param_gather does here \
                     where parameters are sharded"
                ));
            }
        }
        return;
    }
    match canonical.as_str() {
        other if NOT_IMPLEMENTED.contains(&other) => {
            let message = "not implemented yet: 4-bit formats";
            draft.error(ErrorKind::NotImplemented, key, message);
        }
        other => {
            let mut error = ConfigError::new(ErrorKind::WrongType, key, "unknown precision recipe")
                .with_found(format!("{name:?}"))
                .with_expected(format!("one of {}", RECIPES.map(|(known, ..)| known).join(", ")))
                .with_nearest(other, RECIPES.map(|(known, ..)| known))
                .with_location(draft.raw.location(key));
            error.hint = advice_on_value(key, name, draft.raw.kinds());
            draft.errors.push(error);
        }
    }
}

fn custom(draft: &mut Draft<'_>, config: &MixedPrecisionConfig) {
    let modes = [config.fp32, config.fp16, config.bf16];
    if modes.iter().filter(|mode| **mode).count() > 1 {
        draft.conflict("mixed_precision", "only one of fp32, fp16 and bf16 can be true");
        return;
    }
    let mode = match modes {
        [_, true, _] => Mode::Float16,
        [_, _, true] => Mode::BFloat16,
        _ => Mode::Float32,
    };
    if config.params_dtype.is_some_and(|dtype| dtype != mode.dtype()) {
        let is_bytes = config.params_dtype == Some(DType::UInt8);
        let more = if is_bytes { INSTEAD_OF_BYTES } else { "" };
        let message = format!("parameters are {} in this mode{more}", mode.dtype());
        draft.conflict("mixed_precision.params_dtype", message);
        return;
    }
    let stated = |field: &str| draft.raw.is_explicit(&format!("mixed_precision.{field}"));
    let is_mode_stated = stated("fp32") || stated("fp16") || stated("bf16");
    let is_reduce_stated = stated("grad_reduce_in_fp32");
    let mut preset = Preset::new(draft, "the [mixed_precision] table".into());
    if is_mode_stated {
        preset.mode_only(mode);
    }
    if let Some(dtype) = config.params_dtype {
        preset.params_dtype(dtype);
    }
    if let Some(dtype) = config.pipeline_dtype {
        preset.state(|r| &mut r.model.pipeline_dtype, Some(dtype), "model.pipeline_dtype");
    }
    if let Some(dtype) = config.autocast_dtype {
        preset.state(|r| &mut r.model.autocast_dtype, Some(dtype), "model.autocast_dtype");
    }
    let reduce = config.grad_reduce_in_fp32;
    if is_reduce_stated {
        preset.state(|r| &mut r.ddp.grad_reduce_in_fp32, reduce, "ddp.grad_reduce_in_fp32");
    } else {
        preset.suggest(|r| &mut r.ddp.grad_reduce_in_fp32, reduce, "ddp.grad_reduce_in_fp32");
    }
    preset.eight_bit_table(config);
    if stated("fp8_param_gather") {
        preset.state(|r| &mut r.ddp.fp8_param_gather, config.fp8_param_gather, "ddp.fp8_param_gather");
    }
    preset.loss_scaling(config);
    agree_with_sections(&mut draft.recipe);
}

/// If the table had only suggested a value, the resolved table gets the final value of the section,
/// so that the resolved recipe is consistent when it is read again.
fn agree_with_sections(recipe: &mut RecipeConfig) {
    if let Some(Precision::Custom(config)) = &mut recipe.mixed_precision {
        config.fp16 = recipe.model.fp16;
        config.bf16 = recipe.model.bf16;
        config.grad_reduce_in_fp32 = recipe.ddp.grad_reduce_in_fp32;
        let model = &recipe.model;
        config.fp8 = model.fp8;
        config.fp8_recipe = model.fp8_recipe;
        config.fp8_margin = model.fp8_margin;
        config.fp8_amax_history_len = model.fp8_amax_history_len;
        config.fp8_amax_compute_algo = model.fp8_amax_compute_algo;
        config.fp8_wgrad = model.fp8_wgrad;
        config.fp8_param_gather = recipe.ddp.fp8_param_gather;
        config.first_last_layers_bf16 = model.first_last_layers_bf16;
        config.num_layers_at_start_in_bf16 = model.num_layers_at_start_in_bf16;
        config.num_layers_at_end_in_bf16 = model.num_layers_at_end_in_bf16;
        let optimizer = &recipe.optimizer;
        config.loss_scale = optimizer.loss_scale;
        config.initial_loss_scale = optimizer.initial_loss_scale;
        config.min_loss_scale = optimizer.min_loss_scale;
        config.loss_scale_window = optimizer.loss_scale_window;
        config.hysteresis = optimizer.hysteresis;
    }
}

/// Default bucket size of `[comm_overlap]`, in elements.
const OVERLAPPED_BUCKET: usize = 134_217_728;

/// True if replicas shard optimizer state or more.
fn has_shards(recipe: &RecipeConfig) -> bool {
    let is_distributed = recipe.optimizer.use_distributed_optimizer || recipe.ddp.use_distributed_optimizer;
    is_distributed || recipe.ddp.data_parallel_sharding_strategy != ShardingStrategy::NoShard
}

/// Copies `[comm_overlap]` onto ddp: its values, and overlap with a distributed optimizer unless it
/// sets that.
fn overlaps(draft: &mut Draft<'_>) {
    let Some(config) = draft.recipe.comm_overlap.clone() else {
        return;
    };
    let recipe = &draft.recipe;
    let strategy = recipe.ddp.data_parallel_sharding_strategy;
    let has_shards = has_shards(recipe);
    let is_by_segment = matches!(strategy, ShardingStrategy::OptimGrads | ShardingStrategy::OptimGradsParams);
    let defers_weights = recipe.model.pipeline_schedule == Some(PipelineSchedule::ZeroBubbleH1);
    let mut preset = Preset::new(draft, "the [comm_overlap] table".into());
    match config.overlap_grad_reduce {
        Some(overlaps) => preset.state(|r| &mut r.ddp.overlap_grad_reduce, overlaps, "ddp.overlap_grad_reduce"),
        None if has_shards && !defers_weights => {
            preset.suggest(|r| &mut r.ddp.overlap_grad_reduce, true, "ddp.overlap_grad_reduce");
        }
        None => {}
    }
    match config.overlap_param_gather {
        Some(overlaps) => {
            preset.state(|r| &mut r.ddp.overlap_param_gather, overlaps, "ddp.overlap_param_gather");
            preset.state(|r| &mut r.optimizer.overlap_param_gather, overlaps, "optimizer.overlap_param_gather");
        }
        None if has_shards && !preset.draft.is_explicit("optimizer.overlap_param_gather") => {
            preset.suggest(|r| &mut r.ddp.overlap_param_gather, true, "ddp.overlap_param_gather");
        }
        None => {}
    }
    let ddp = &preset.draft.recipe.ddp;
    let has_buckets = ddp.overlap_grad_reduce || ddp.overlap_param_gather;
    match config.bucket_size {
        Some(_) => preset.state(|r| &mut r.ddp.bucket_size, config.bucket_size, "ddp.bucket_size"),
        None if has_shards && has_buckets && !is_by_segment => {
            preset.suggest(|r| &mut r.ddp.bucket_size, Some(OVERLAPPED_BUCKET), "ddp.bucket_size");
        }
        None => {}
    }
    let ddp = draft.recipe.ddp.clone();
    if let Some(config) = &mut draft.recipe.comm_overlap {
        config.overlap_grad_reduce = Some(ddp.overlap_grad_reduce);
        config.overlap_param_gather = Some(ddp.overlap_param_gather || draft.recipe.optimizer.overlap_param_gather);
        config.bucket_size = ddp.bucket_size;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Float32,
    Float16,
    BFloat16,
}

impl Mode {
    const fn dtype(self) -> DType {
        match self {
            Self::Float32 => DType::Float32,
            Self::Float16 => DType::Float16,
            Self::BFloat16 => DType::BFloat16,
        }
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
    fn state<T: Field + PartialEq>(&mut self, slot: impl FnOnce(&mut RecipeConfig) -> &mut T, value: T, key: &str) {
        let raw = self.draft.raw;
        let slot = slot(&mut self.draft.recipe);
        if *slot == value {
            return;
        }
        if raw.is_explicit(key) {
            let (found, wanted) = (slot.write().to_inline(), value.write().to_inline());
            let is_bytes = key.ends_with(".params_dtype") && found.trim_matches('"') == DType::UInt8.as_str();
            let more = if is_bytes { INSTEAD_OF_BYTES } else { "" };
            let message = format!("set to {found}, but {} sets it to {wanted}{more}", self.source);
            self.draft.conflict(key, message);
        } else {
            *slot = value;
        }
    }

    /// Sets `key` unless the user set it.
    fn suggest<T: Field + PartialEq>(&mut self, slot: impl FnOnce(&mut RecipeConfig) -> &mut T, value: T, key: &str) {
        if !self.draft.is_explicit(key) {
            *slot(&mut self.draft.recipe) = value;
        }
    }

    fn mode_only(&mut self, mode: Mode) {
        let (fp16, bf16) = (mode == Mode::Float16, mode == Mode::BFloat16);
        self.state(|r| &mut r.model.fp16, fp16, "model.fp16");
        self.state(|r| &mut r.model.bf16, bf16, "model.bf16");
        self.state(|r| &mut r.optimizer.fp16, fp16, "optimizer.fp16");
        self.state(|r| &mut r.optimizer.bf16, bf16, "optimizer.bf16");
    }

    fn mode(&mut self, mode: Mode) {
        self.mode_only(mode);
        let dtype = mode.dtype();
        self.params_dtype(dtype);
        // What stages send is the residual stream.
        let is_wide = self.draft.recipe.model.fp32_residual_connection;
        let sent = if is_wide { DType::Float32 } else { dtype };
        self.state(|r| &mut r.model.pipeline_dtype, Some(sent), "model.pipeline_dtype");
        self.state(|r| &mut r.model.enable_autocast, false, "model.enable_autocast");
    }

    /// Settings of 8-bit products in a named recipe.
    fn eight_bits(&mut self, recipe: &EightBitRecipe) {
        self.state(|r| &mut r.model.fp8, Some(recipe.format), "model.fp8");
        self.state(|r| &mut r.model.fp8_recipe, Some(recipe.recipe), "model.fp8_recipe");
        if let Some(steps) = recipe.history {
            self.suggest(|r| &mut r.model.fp8_amax_history_len, steps, "model.fp8_amax_history_len");
            self.suggest(|r| &mut r.model.fp8_amax_compute_algo, AmaxAlgo::Max, "model.fp8_amax_compute_algo");
        }
        if let Some(count) = recipe.edges {
            self.suggest(|r| &mut r.model.first_last_layers_bf16, true, "model.first_last_layers_bf16");
            if self.draft.recipe.model.first_last_layers_bf16 {
                self.suggest(|r| &mut r.model.num_layers_at_start_in_bf16, count, "model.num_layers_at_start_in_bf16");
                self.suggest(|r| &mut r.model.num_layers_at_end_in_bf16, count, "model.num_layers_at_end_in_bf16");
            }
        }
    }

    /// The table's settings of 8-bit products: those that were written there; with a format, the
    /// table's defaults for the others, of which the numbers of layers are those of its own switch.
    fn eight_bit_table(&mut self, config: &MixedPrecisionConfig) {
        let has_format = config.fp8.is_some();
        let has_edges = has_format && config.first_last_layers_bf16;
        if has_format {
            self.state(|r| &mut r.model.fp8, config.fp8, "model.fp8");
        }
        macro_rules! copy {
            ($is_suggested:ident: $($field:ident)*) => {$(
                let value = config.$field.clone();
                let key = concat!("model.", stringify!($field));
                if self.draft.raw.is_explicit(concat!("mixed_precision.", stringify!($field))) {
                    self.state(|r| &mut r.model.$field, value, key);
                } else if $is_suggested {
                    self.suggest(|r| &mut r.model.$field, value, key);
                }
            )*};
        }
        copy!(has_format: fp8_recipe fp8_margin fp8_amax_history_len fp8_amax_compute_algo fp8_wgrad);
        copy!(has_format: first_last_layers_bf16);
        copy!(has_edges: num_layers_at_start_in_bf16 num_layers_at_end_in_bf16);
    }

    fn params_dtype(&mut self, dtype: DType) {
        self.state(|r| &mut r.model.params_dtype, dtype, "model.params_dtype");
        self.state(|r| &mut r.optimizer.params_dtype, dtype, "optimizer.params_dtype");
    }

    /// The table's loss scale settings: those that were written there, even with their default
    /// value.
    fn loss_scaling(&mut self, config: &MixedPrecisionConfig) {
        let raw = self.draft.raw;
        let stated = |field: &str| raw.is_explicit(&format!("mixed_precision.{field}"));
        if config.loss_scale.is_some() {
            self.state(|r| &mut r.optimizer.loss_scale, config.loss_scale, "optimizer.loss_scale");
        }
        if stated("initial_loss_scale") {
            let value = config.initial_loss_scale;
            self.state(|r| &mut r.optimizer.initial_loss_scale, value, "optimizer.initial_loss_scale");
        }
        if stated("min_loss_scale") {
            let value = config.min_loss_scale;
            self.state(|r| &mut r.optimizer.min_loss_scale, value, "optimizer.min_loss_scale");
        }
        if stated("loss_scale_window") {
            let value = config.loss_scale_window;
            self.state(|r| &mut r.optimizer.loss_scale_window, value, "optimizer.loss_scale_window");
        }
        if stated("hysteresis") {
            self.state(|r| &mut r.optimizer.hysteresis, config.hysteresis, "optimizer.hysteresis");
        }
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
    preset.state(|r| &mut r.model.params_dtype, dtype, "model.params_dtype");
    preset.state(|r| &mut r.optimizer.params_dtype, dtype, "optimizer.params_dtype");
    preset.state(|r| &mut r.optimizer.fp16, fp16, "optimizer.fp16");
    preset.state(|r| &mut r.optimizer.bf16, bf16, "optimizer.bf16");
    // bfloat16's 8 bits of precision cannot accumulate many micro-batches. A table sets the
    // reduction dtype itself.
    if bf16 && is_alone {
        preset.state(|r| &mut r.ddp.grad_reduce_in_fp32, true, "ddp.grad_reduce_in_fp32");
    }
}
