//! `bridge plan`: the cost of a recipe on any number of ranks. Parsing is here, printing in `text`
//! and `measured`, computation in the library.

mod layout;
mod measured;
mod remedies;
mod room;
mod search;
mod text;

use std::path::Path;

use bridge_core::config::{ConfigErrors, DType, Format, PipelineSchedule, RawConfig, RunConfig, World};
use bridge_core::plan::{Plan, PlanOptions, Rates, SearchOptions, plan};
use bridge_models::registry;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::line;
use layout::Layout;
use remedies::{Remedy, remedies};
use room::Room;
pub use text::{bytes, number, seconds};

/// Recipes that are part of the program.
const PRESETS: [(&str, &str); 4] = [
    ("llama3-8b", include_str!("../../../../recipes/llama3-8b.toml")),
    ("llama3-70b", include_str!("../../../../recipes/llama3-70b.toml")),
    ("llama3-405b", include_str!("../../../../recipes/llama3-405b.toml")),
    ("mixtral-8x7b", include_str!("../../../../recipes/mixtral-8x7b.toml")),
];

/// The recipe and layouts to plan.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The recipe: a TOML, YAML or JSON file. With `--preset`, the first override.
    #[arg(required_unless_present = "preset")]
    recipe: Option<String>,
    /// Overrides, such as `model.tensor_model_parallel_size=8`.
    overrides: Vec<String>,
    /// A built-in recipe instead of a file: a known model with the batch and length that it was
    /// trained with.
    #[arg(long, value_parser = PRESETS.map(|(name, _)| name))]
    preset: Option<String>,
    /// Say whether it fits on this GPU, and how long a step takes: h100-80gb, h200, a100-80gb,
    /// a100-40gb, b200, mi300x, mi325x, l40s, l4, 5090, 4090 or 3090, in nodes of 8.
    #[arg(long)]
    gpu: Option<String>,
    /// Memory of a device in GiB, for GPUs that `--gpu` does not know.
    #[arg(long, value_name = "GIB", value_parser = rate)]
    gpu_memory: Option<f64>,
    /// Search the fastest layouts that fit on `--world-size` devices, and say where those of
    /// `--layout` and the recipe's own stand. Needs `--gpu`, or `--gpu-memory` with
    /// `--device-tflops` and `--link-gbps`.
    #[arg(long, requires = "world_size", conflicts_with = "measure")]
    search: bool,
    /// Number of layouts that `--search` shows.
    #[arg(long, value_parser = positive, default_value_t = 10, requires = "search")]
    count: usize,
    /// Number of ranks; by default the fewest that the parallel sizes allow: data-parallel size 1.
    #[arg(long, value_parser = positive)]
    world_size: Option<usize>,
    /// Compare layouts: `tp=8,pp=16,vp=2,cp=1,ep=1,etp=1,sp=true,mbs=1,gbs=2048,world=1024`, any of
    /// them; may be repeated.
    #[arg(long, value_name = "SIZES")]
    layout: Vec<Layout>,
    /// Pipeline schedule, instead of the recipe's `model.pipeline_schedule`.
    #[arg(long, value_parser = schedule_parser())]
    schedule: Option<PipelineSchedule>,
    /// Train the recipe's model for a few steps on mock data, with threads as ranks, count what
    /// they communicate and hold, and compare with the plan. Exits with 1 if they differ. With
    /// `--link-gbps`, ranks send at most that much, and the output shows how much of the gradient
    /// reduction is hidden behind backward.
    #[arg(long, conflicts_with = "layout")]
    measure: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    rates: RateArguments,
}

/// Rates for an estimate of the time.
#[derive(Debug, Args)]
struct RateArguments {
    /// Peak of a device in TFLOP/s, for an estimate of the time.
    #[arg(long, value_parser = rate, requires = "link_gbps")]
    device_tflops: Option<f64>,
    /// Fraction of the peak that matrix multiplications reach, above 0 and at most 1.
    #[arg(long, value_parser = share, default_value_t = 1.0, requires = "device_tflops")]
    device_efficiency: f64,
    /// Gigabits per second that a rank can send to another node.
    #[arg(long, value_parser = rate)]
    link_gbps: Option<f64>,
    /// Gigabits per second that a rank can send within its node; by default as between nodes.
    #[arg(long, value_parser = rate, requires_all = ["intra_node", "device_tflops"], conflicts_with = "measure")]
    intra_link_gbps: Option<f64>,
    /// Ranks per node.
    #[arg(long, value_parser = positive, default_value_t = 1, requires = "device_tflops", conflicts_with = "measure")]
    intra_node: usize,
}

/// Parser of the name of a pipeline schedule.
fn schedule_parser() -> impl TypedValueParser<Value = PipelineSchedule> {
    let values = [
        PossibleValue::new("1f1b").help("1F1B, interleaved if there are virtual stages"),
        PossibleValue::new("gpipe").help("All forwards, then all backwards"),
        PossibleValue::new("zb-h1").help("ZB-H1"),
    ];
    PossibleValuesParser::new(values).map(|name| PipelineSchedule::from_name(&name).expect("a possible value"))
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "expected a whole number above 0".into())
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| "expected a number above 0".into())
}

fn share(text: &str) -> Result<f64, String> {
    rate(text).ok().filter(|share| *share <= 1.0).ok_or_else(|| "expected a number above 0 and at most 1".into())
}

impl Arguments {
    /// The rates of the arguments, or those of the GPU in the dtype of the recipe's parameters;
    /// products of 8-bit operands count as emulated in float32.
    fn rates(&self, config: &RunConfig, room: Option<&Room>) -> Option<Rates> {
        let RateArguments { device_tflops, device_efficiency, link_gbps, intra_link_gbps, intra_node } = self.rates;
        let given = device_tflops.zip(link_gbps).map(|(device_tflops, link_gbps)| Rates {
            device_tflops,
            device_efficiency,
            link_gbps,
            intra_link_gbps: intra_link_gbps.unwrap_or(link_gbps),
            ranks_per_node: intra_node,
            memory_bandwidth_gb_per_s: f64::INFINITY,
            message_seconds: 0.0,
            host_bandwidth_gb_per_s: f64::INFINITY,
        });
        let is_float32 = config.model.params_dtype == DType::Float32 || config.model.fp8.is_some();
        let bytes = if is_float32 { 4 } else { 2 };
        given.or_else(|| room.and_then(|room| room.gpu).map(|gpu| gpu.rates(bytes)))
    }

    /// The recipe with more overrides. If a GPU is given, it is the device.
    fn recipe(&self, more: impl Iterator<Item = String>) -> Result<RawConfig, ConfigErrors> {
        let schedule = self.schedule.map(|schedule| format!("model.pipeline_schedule={schedule}"));
        let device = (self.gpu.is_some() || self.gpu_memory.is_some()).then(|| "device=cuda".to_owned());
        let first = self.recipe.iter().filter(|_| self.preset.is_some()).cloned();
        let overrides: Vec<String> =
            device.into_iter().chain(first).chain(self.overrides.iter().cloned()).chain(schedule).chain(more).collect();
        let kinds = registry().kinds();
        let preset = PRESETS.into_iter().find(|(name, _)| self.preset.as_deref() == Some(name));
        let recipe = match (preset, &self.recipe) {
            (Some((_, text)), _) => RawConfig::from_text(text, Format::Toml, &overrides, &kinds),
            (None, recipe) => {
                RawConfig::from_file(Path::new(recipe.as_deref().unwrap_or_default()), &overrides, &kinds)
            }
        };
        recipe?.with_checkpoint_args()
    }

    /// The plan of the recipe with a layout's sizes.
    fn plan(&self, layout: &Layout, room: Option<&Room>) -> Result<Planned, Failure> {
        let recipe = self.recipe(layout.overrides())?;
        let size = layout.world_size().or(self.world_size).unwrap_or_else(|| fewest_ranks(&recipe));
        let config = recipe.finalize_for_plan(&World { size })?;
        let rates = self.rates(&config, room);
        let options = PlanOptions { rates, has_tensor_cores: has_tensor_cores(room), ..PlanOptions::default() };
        let plan = plan(&config, &registry().models, &options).map_err(Failure::input)?;
        Ok(Planned { name: config.name.clone(), recipe, plan })
    }

    /// Changes with which a plan that does not fit would.
    fn remedies(&self, planned: &Planned, room: &Room) -> Vec<Remedy> {
        let models = registry().models;
        let options = PlanOptions { has_tensor_cores: has_tensor_cores(Some(room)), ..PlanOptions::default() };
        let try_out = |settings: &[String], ranks: Option<usize>| {
            let recipe = self.recipe(settings.iter().cloned()).ok().filter(|recipe| *recipe != planned.recipe)?;
            let size = ranks.unwrap_or_else(|| fewest_ranks(&recipe));
            let config = recipe.finalize_for_plan(&World { size }).ok()?;
            plan(&config, &models, &options).ok().filter(|plan| room.fits(plan))
        };
        remedies(self.world_size, try_out)
    }

    /// Searches layouts.
    fn search(&self, room: Option<&Room>) -> Result<u8, Failure> {
        let recipe = self.recipe(std::iter::empty())?;
        let named = |name: String, layout: &Layout| {
            let planned = self.plan(layout, room);
            search::Named { name, plan: planned.map(|Planned { recipe, plan, .. }| (recipe, plan)) }
        };
        let own = named("the recipe's own layout".into(), &Layout::default());
        let others = self.layout.iter().map(|layout| named(format!("layout {layout}"), layout));
        let named: Vec<search::Named> = [own].into_iter().chain(others).collect();
        let world_size = self.world_size.unwrap_or(1);
        // Settings that all layouts share are checked once, with the layout of a single rank.
        let single = bridge_core::plan::Sizes::SINGLE.apply(&recipe);
        let config = single.finalize_for_plan(&World::SINGLE)?;
        plan(&config, &registry().models, &PlanOptions::default()).map_err(Failure::input)?;
        let (Some(room), Some(rates)) = (room, self.rates(&config, room)) else {
            return Err(Failure::input("--search: give --gpu, or --gpu-memory with --device-tflops and --link-gbps"));
        };
        let has_tensor_cores = has_tensor_cores(Some(room));
        let options =
            SearchOptions { world_size, rates, memory_bytes: room.memory, has_tensor_cores, count: self.count };
        search::run(&recipe, &options, room, &named, self.json)
    }
}

/// True if the device is known to have tensor cores that attention runs on.
fn has_tensor_cores(room: Option<&Room>) -> bool {
    room.and_then(|room| room.gpu).is_some_and(|gpu| gpu.has_tensor_cores)
}

/// A recipe with its plan.
struct Planned {
    name: String,
    recipe: RawConfig,
    plan: Plan,
}

/// The smallest world that the parallel sizes of dense layers and experts both divide.
fn fewest_ranks(raw: &RawConfig) -> usize {
    let model = &raw.model;
    let (tensor, pipeline) = (model.tensor_model_parallel_size, model.pipeline_model_parallel_size);
    let expert_tensor = model.expert_tensor_parallel_size.unwrap_or(tensor);
    let dense = tensor.saturating_mul(model.context_parallel_size);
    let expert = expert_tensor.saturating_mul(model.expert_model_parallel_size);
    (dense / greatest_common_divisor(dense, expert).max(1)).saturating_mul(expert).saturating_mul(pipeline).max(1)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let room = Room::new(arguments.gpu.as_deref(), arguments.gpu_memory)?;
    let room = room.as_ref();
    if arguments.rates.link_gbps.is_some() && arguments.rates.device_tflops.is_none() && !arguments.measure {
        return Err(Failure::input("--link-gbps needs --device-tflops (for an estimate) or --measure"));
    }
    if arguments.search {
        return arguments.search(room);
    }
    if arguments.layout.is_empty() {
        let planned = arguments.plan(&Layout::default(), room)?;
        return if arguments.measure { measure(arguments, planned) } else { print(arguments, &planned, room) };
    }
    let mut plans = Vec::with_capacity(arguments.layout.len());
    for layout in &arguments.layout {
        let planned = arguments.plan(layout, room).map_err(|failure| failure.in_layout(layout))?;
        plans.push((layout.to_string(), planned));
    }
    if arguments.json {
        for (layout, planned) in &plans {
            let mut value = to_json(planned, room)?;
            value["name"] = json!(format!("{} ({layout})", planned.name));
            line(&value.to_string());
        }
    } else {
        text::compare(
            &plans.iter().map(|(layout, planned)| (layout.as_str(), &planned.plan)).collect::<Vec<_>>(),
            room,
        );
    }
    Ok(0)
}

fn print(arguments: &Arguments, planned: &Planned, room: Option<&Room>) -> Result<u8, Failure> {
    let remedies = room.filter(|room| !room.fits(&planned.plan)).map(|room| arguments.remedies(planned, room));
    if arguments.json {
        let mut value = to_json(planned, room)?;
        if let Some(remedies) = &remedies {
            value["device"]["would_fit"] = remedies.iter().map(Remedy::json).collect();
        }
        line(&value.to_string());
        return Ok(0);
    }
    text::print(&planned.name, &planned.plan);
    if let Some(room) = room {
        text::print_room(&planned.plan, room);
    }
    match remedies.as_deref() {
        None => {}
        Some([]) => {
            line("no change that was tried makes it fit: a smaller model, a shorter sequence or a larger device would")
        }
        Some(remedies) => {
            line("it would fit with");
            for Remedy { settings, plan } in remedies {
                let ranks = plan.layout.world_size;
                let more =
                    if ranks == planned.plan.layout.world_size { String::new() } else { format!(" on {ranks} ranks") };
                line(&format!("  {}{more}: {} a rank", settings.join(" "), bytes(plan.most_memory())));
            }
        }
    }
    Ok(0)
}

/// Prints the plan and its comparison with a short run. Returns the exit code.
fn measure(arguments: &Arguments, planned: Planned) -> Result<u8, Failure> {
    let comparison = measured::compare(&planned.recipe, &planned.plan, arguments.rates.link_gbps)?;
    if arguments.json {
        let mut value = to_json(&planned, None)?;
        value["measured"] = serde_json::to_value(&comparison).map_err(Failure::run)?;
        line(&value.to_string());
    } else {
        text::print(&planned.name, &planned.plan);
        measured::print(&comparison);
    }
    Ok(u8::from(!comparison.matches))
}

fn to_json(Planned { name, plan, .. }: &Planned, room: Option<&Room>) -> Result<Value, Failure> {
    let mut value = json!({ "name": name });
    let fields = serde_json::to_value(plan).map_err(Failure::run)?;
    for (key, field) in fields.as_object().into_iter().flatten() {
        value[key] = field.clone();
    }
    if let Some(room) = room {
        value["device"] = room.json(plan);
    }
    Ok(value)
}
