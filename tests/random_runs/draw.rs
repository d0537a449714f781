//! Draw of a run: a recipe (model, data, batch), layouts of ranks, and events of the run.

/// The iterations of every run.
pub const ITERATIONS: u64 = 10;

/// Shares of training, validation and test.
const SPLIT: &str = "dataset.split=80,10,10";

/// Numbers drawn from a seed, the same on every machine (SplitMix64; Steele, Lea and Flood 2014).
pub struct Draw(pub u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Source of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    Mock,
    /// Token files on disk.
    Indexed,
    /// Text, packed by the run itself, with a tokenizer that the run trains.
    Text,
}

/// Computation of a run, however it is distributed: the same overrides on one rank give the losses
/// to compare with.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub data: Data,
    pub overrides: Vec<String>,
    num_experts: u64,
    num_layers: u64,
}

/// Distribution of a run over ranks.
#[derive(Clone, Debug)]
pub struct Layout {
    pub ranks: u64,
    pub overrides: Vec<String>,
}

/// Event before a run is started again.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The run stops after an iteration.
    Stop(u64),
    /// A watched signal arrives after this many milliseconds.
    Terminate(u64),
    /// The run is killed after this many milliseconds.
    Kill(u64),
    /// The disk of its logs is full after some KiB, and it stops after an iteration.
    FullDisk { stop: u64, kib: u64 },
}

/// A run with its events: each event ends a part of the run, and the last part runs to the end.
#[derive(Clone, Debug)]
pub struct Case {
    pub recipe: Recipe,
    pub parts: Vec<(Layout, Event)>,
    pub last: Layout,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "  all:  {}", self.recipe.overrides.join(" "))?;
        for (layout, event) in &self.parts {
            writeln!(f, "  {event:?}: {layout}")?;
        }
        write!(f, "  last: {}", self.last)
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "--ranks {} {}", self.ranks, self.overrides.join(" "))
    }
}

impl Case {
    pub fn draw(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let recipe = recipe(&mut draw);
        let first = layout(&mut draw, &recipe);
        let parts: Vec<(Layout, Event)> = (0..draw.below(3))
            .map(|part| {
                let place = if part == 0 || draw.one_in(2) { first.clone() } else { layout(&mut draw, &recipe) };
                (place, event(&mut draw))
            })
            .collect();
        let last = if parts.is_empty() || draw.one_in(3) { first } else { layout(&mut draw, &recipe) };
        Self { recipe, parts, last }
    }
}

fn event(draw: &mut Draw) -> Event {
    match draw.below(5) {
        0 => Event::FullDisk { stop: 1 + draw.below(ITERATIONS - 1), kib: draw.choose(&[8, 12, 16]) },
        1 => Event::Terminate(draw.below(2500)),
        2 => Event::Kill(draw.below(2500)),
        _ => Event::Stop(1 + draw.below(ITERATIONS - 1)),
    }
}

fn recipe(draw: &mut Draw) -> Recipe {
    let data = draw.choose(&[Data::Mock, Data::Indexed, Data::Text]);
    let num_layers = draw.choose(&[2, 4, 6]);
    let num_experts = if draw.one_in(4) { 4 } else { 0 };
    let micro_batch_size =
        draw.choose(&["train.micro_batch_size=1", "train.micro_batch_size=2", "train.micro_batch_size=3"]);
    let mut overrides = vec![
        format!("model.num_layers={num_layers}"),
        format!("model.num_query_groups={}", draw.choose(&[1, 2, 3, 4, 6, 12])),
        format!("model.share_embeddings_and_output_weights={}", draw.one_in(2)),
    ];
    let mut set = |settings: &[&str]| overrides.extend(settings.iter().map(|setting| (*setting).to_owned()));
    set(&["model.num_attention_heads=12", "model.hidden_size=96", "model.ffn_hidden_size=120"]);
    // 528 rows can be cut by every number of tensor-parallel ranks drawn here.
    set(&["model.seq_length=48", "model.vocab_size=528", "train.global_batch_size=24"]);
    // Shuffled together, in an order that depends on the size of micro-batches but not on the
    // number of ranks.
    set(&["dataset.data_sharding=false", micro_batch_size]);
    set(&["dataset.dataloader_type=cyclic"]);
    set(match data {
        Data::Mock => &["tokenizer.vocab_size=500"],
        Data::Indexed => &["tokenizer.vocab_size=500", "dataset.kind=gpt", "dataset.data_path=tokens", SPLIT],
        Data::Text => &[
            "tokenizer.tokenizer_type=ByteLevelBPE",
            "tokenizer.vocab_size=null",
            "tokenizer.bpe_vocab_size=300",
            "dataset.kind=gpt",
            "dataset.source=text/*.txt",
            "dataset.source_cache_dir=packed",
            SPLIT,
        ],
    });
    if num_experts > 0 {
        set(&["model.num_moe_experts=4", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=72"]);
        // Load balancing depends on the content of a micro-batch, and so on the layout.
        set(&["model.moe_router_load_balancing_type=none", "model.moe_token_dispatcher_type=alltoall"]);
    }
    // Micro-batches with other numbers of tokens weigh the same unless losses are counted by token,
    // so layouts would differ.
    if draw.one_in(2) {
        set(&["model.calculate_per_token_loss=true"]);
        for mask in ["reset_position_ids", "reset_attention_mask", "eod_mask_loss"] {
            set(&[&format!("dataset.{mask}={}", draw.one_in(2))]);
        }
    }
    if draw.one_in(5) {
        set(&["train.iterations_to_skip=[3,7]"]);
    }
    if draw.one_in(5) {
        set(&["train.rampup_batch_size=[12,12,48]"]);
    }
    Recipe { data, overrides, num_experts, num_layers }
}

/// The divisors of `number` among `choices`.
fn divisors(number: u64, choices: &[u64]) -> Vec<u64> {
    choices.iter().copied().filter(|choice| number.is_multiple_of(*choice)).collect()
}

fn layout(draw: &mut Draw, recipe: &Recipe) -> Layout {
    let ranks = draw.choose(&[1, 2, 2, 3, 4, 4, 5, 6, 8]);
    let tensor = draw.choose(&divisors(ranks, &[1, 1, 2, 3, 4, 6]));
    let pipeline = draw.choose(&divisors(ranks / tensor, &[1, 1, 2, 3, 4]));
    let context = draw.choose(&divisors(ranks / tensor / pipeline, &[1, 1, 2, 3, 4]));
    let data = ranks / tensor / pipeline / context;
    let mut overrides = Vec::new();
    let mut set = |setting: String| overrides.push(setting);
    if tensor > 1 {
        set(format!("model.tensor_model_parallel_size={tensor}"));
        set(format!("model.sequence_parallel={}", draw.one_in(2)));
    }
    if pipeline > 1 {
        set(format!("model.pipeline_model_parallel_size={pipeline}"));
        match draw.below(5) {
            0 if recipe.num_layers > pipeline => set("model.virtual_pipeline_model_parallel_size=2".into()),
            1 => set("model.pipeline_schedule=gpipe".into()),
            2 => set("model.pipeline_schedule=zb_h1".into()),
            _ => {}
        }
    }
    if context > 1 {
        set(format!("model.context_parallel_size={context}"));
    }
    if recipe.num_experts > 0 && (data * context).is_multiple_of(2) && draw.one_in(2) {
        set("model.expert_model_parallel_size=2".into());
    }
    replicas(draw, &mut set);
    match draw.below(6) {
        0 => ["granularity=full", "method=uniform", "num_layers=1"]
            .into_iter()
            .for_each(|setting| set(format!("model.recompute_{setting}"))),
        1 => {
            set("model.recompute_granularity=selective".into());
            if recipe.num_experts > 0 && draw.one_in(2) {
                set("model.recompute_modules=['moe_act', 'core_attn']".into());
            }
        }
        _ => {}
    }
    Layout { ranks, overrides }
}

/// State that the replicas of a model divide.
fn replicas(draw: &mut Draw, set: &mut impl FnMut(String)) {
    match draw.below(5) {
        0 => {
            set("ddp.use_megatron_fsdp=true".into());
            let strategy = draw.choose(&["optim", "optim_grads", "optim_grads_params"]);
            set(format!("ddp.data_parallel_sharding_strategy={strategy}"));
        }
        1 => {
            set("ddp.use_distributed_optimizer=true".into());
            set(format!("ddp.overlap_grad_reduce={}", draw.one_in(2)));
        }
        2 => {
            set("ddp.use_distributed_optimizer=true".into());
            set("ddp.overlap_grad_reduce=true".into());
            set("ddp.overlap_param_gather=true".into());
        }
        3 => set("ddp.overlap_grad_reduce=true".into()),
        _ => {}
    }
}
