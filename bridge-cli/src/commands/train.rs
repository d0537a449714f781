//! `bridge train`: run a recipe, on one rank or many.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bridge_core::config::{ConfigErrors, RawConfig, RunConfig, World};
use bridge_core::logging::terminal::output_is_terminal;
use bridge_core::train::{
    Console, DryRun, DryRunReport, ExitReason, LearningRateSweep, RankEnv, RankUnit, Registry, RunOptions, RunReport,
    Subsystem, SubsystemError, TrainError, WatchSignals, over_devices, pretrain, process_groups, rank_timeout,
    run_on_threads, sweeping_recipe,
};
use bridge_data::tokenizer::Tokenizer;
use bridge_dist::comm::{Communicator, Group};
use bridge_dist::mesh::ProcessGroups;
use bridge_models::generate::{Draw, GenerateOptions, Sampling, StateCache, TokenRules};
use bridge_models::registry;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::machines::{Machine, Starter, of_slurm_job};
use super::mpi;
use super::plan::{bytes, number, seconds};
use super::restarts::{RestartHost, rank_env};
use super::supervise::{OPTION, supervise};
use super::worlds::{Spread, Worlds, without_options};
use crate::continuation::{Prompt, Request, continue_text};
use crate::failure::Failure;
use crate::object_stores;
use crate::output::{line, text_lines};
use crate::speech::Speech;

/// Start method of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Launcher {
    /// Threads of this process.
    Threads,
    /// Processes under mpirun or srun.
    Mpi,
    /// Processes that this program starts by srun, inside of a Slurm job.
    Slurm,
}

/// Display during training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ui {
    /// Lines, and a progress bar on a terminal.
    Plain,
    /// A dashboard on the terminal, from builds with the `tui` feature.
    Tui,
}

/// A recipe and how to run it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The recipe: a TOML, YAML or JSON file.
    recipe: PathBuf,
    /// Overrides, such as `train.train_iters=100`.
    overrides: Vec<String>,
    /// Number of ranks; by default 1, or the number that mpirun or srun started.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    ranks: Option<u32>,
    /// Start method of ranks; by default as threads, or by MPI if mpirun or srun started this
    /// program.
    #[arg(long, value_enum)]
    launcher: Option<Launcher>,
    /// The machines for ranks that are processes, each with the number of ranks that it may have:
    /// HOST:RANKS,... Those that are not needed are spare. By default this machine, with
    /// `--launcher slurm` those of the job.
    #[arg(long, value_name = "HOST[:RANKS]", value_delimiter = ',')]
    hosts: Vec<Machine>,
    /// Compute device, instead of the recipe's: flex, cuda, wgpu or vulkan.
    #[arg(long)]
    device: Option<String>,
    /// Instead of training, find a learning rate: a sweep over many, with the recipe's model and
    /// data. No checkpoint is written.
    #[arg(long)]
    find_lr: bool,
    /// Display during training.
    #[arg(long, value_enum, default_value = "plain")]
    ui: Ui,
    /// Print each log record as a JSON line.
    #[arg(long)]
    json: bool,
    /// Check the recipe, build everything, train two steps on mock data, and say how much memory
    /// and time the run takes. Leaves no files.
    #[arg(long, conflicts_with_all = ["ui", "find_lr"])]
    dry_run: bool,
    /// Refuse settings that have no effect because of others, instead of warning.
    #[arg(long)]
    strict: bool,
    /// Train in a process of its own, and start that again, up to this many times, after it crashed
    /// or was killed, while it makes progress.
    #[arg(long, value_name = "N", conflicts_with_all = ["dry_run", "find_lr"])]
    max_restarts: Option<u32>,
}

/// Runs the command of a program that began at `started`.
pub fn run(arguments: &Arguments, started: Instant, speech: &Speech) -> Result<u8, Failure> {
    if arguments.ui == Ui::Tui {
        check_dashboard(arguments.json)?;
    }
    let ranks = arguments.ranks.map(|ranks| ranks as usize);
    let started_by_mpi = mpi::started_ranks();
    if let Some(max_restarts) = arguments.max_restarts {
        return arguments.supervise(max_restarts, started_by_mpi.is_some());
    }
    let is_mpi = match arguments.launcher {
        Some(launcher) => launcher != Launcher::Threads,
        None => started_by_mpi.is_some_and(|found| found > 1),
    };
    if !is_mpi && !arguments.hosts.is_empty() {
        return Err(Failure::input(
            "--hosts: threads are all on this machine; give `--launcher mpi` or `--launcher slurm`",
        ));
    }
    if is_mpi && started_by_mpi.is_none() && (ranks != Some(1) || !arguments.hosts.is_empty()) {
        let ranks = arguments.ranks_of_processes()?;
        return mpi::start_this_program(ranks, arguments.starter(), &arguments.hosts);
    }
    if is_mpi {
        let timeout = |raw: &RawConfig| raw.dist.distributed_timeout_minutes as u64;
        let minutes = arguments.read().as_ref().map_or(DEFAULT_TIMEOUT_MINUTES, timeout);
        let timeout = Duration::from_secs(minutes.saturating_mul(60));
        return mpi::as_rank(ranks, timeout, speech.error_form(), |world| arguments.run_rank(world, started, speech));
    }
    if let Some(count) = ranks.filter(|count| *count > MOST_THREADS) {
        return Err(Failure::input(format!(
            "--ranks: expected at most {MOST_THREADS} ranks as threads of one process, found {count}; `--launcher mpi` \
             starts processes on any number of machines, and `bridge plan RECIPE --world-size N` only computes the cost"
        )));
    }
    let _folder = arguments.dry_run.then(|| arguments.dry_folder().map(DryFolder)).transpose()?;
    let config = arguments.load(ranks.unwrap_or(1))?;
    arguments.after(&arguments.train_on_threads(&config, started, speech)?)
}

/// Ranks that may be threads of this process: each has threads of its own, and the memory maps of a
/// process are limited.
const MOST_THREADS: usize = 2048;

/// For ranks whose recipe cannot be read, so that they can report this to other ranks.
const DEFAULT_TIMEOUT_MINUTES: u64 = 10;

/// Environment variable with the name of the machine, where its host name does not last: in pods,
/// say.
const NODE_VARIABLE: &str = "BRIDGE_NODE_NAME";

/// Time limit for the other ranks to end after one has failed. A rank that hangs outside an
/// operation never notices the failure.
const GRACE: Duration = Duration::from_secs(10);

impl Arguments {
    fn read(&self) -> Result<RawConfig, Failure> {
        Ok(self.read_with(&[])?)
    }

    /// The recipe with its overrides, and `more` over them.
    pub(super) fn read_with(&self, more: &[String]) -> Result<RawConfig, ConfigErrors> {
        let mut overrides = self.overrides.clone();
        if let Some(device) = &self.device {
            overrides.push(format!("device=\"{device}\""));
        }
        overrides.extend_from_slice(more);
        RawConfig::from_file(&self.recipe, &overrides, &registry().kinds())?.with_checkpoint_args()
    }

    /// Number of ranks to start.
    pub(super) fn ranks(&self) -> usize {
        self.ranks.unwrap_or(1) as usize
    }

    /// Starts the run, and starts it again.
    fn supervise(&self, max_restarts: u32, is_rank: bool) -> Result<u8, Failure> {
        if is_rank {
            return Err(Failure::input(
                "--max-restarts: this process is one of the ranks that mpirun or srun started, and cannot start the others again; \
                 `bridge train RECIPE --launcher mpi --ranks N --max-restarts M` starts mpirun itself",
            ));
        }
        if self.ui == Ui::Tui {
            return Err(Failure::input("--max-restarts: the dashboard of --ui tui needs the terminal for itself"));
        }
        let recipe = self.read()?;
        let arguments = without_options(std::env::args_os().skip(1), &[OPTION]);
        let worlds = Worlds::new(arguments, self.spread(&recipe)?);
        let is_monitored = recipe.ft.as_ref().is_some_and(|settings| settings.enable_ft_package);
        match &recipe.checkpoint.save {
            Some(save) => {
                let named = || PathBuf::from("runs").join(recipe.name.as_deref().unwrap_or("run"));
                let log_dir = recipe.logger.log_dir.clone().unwrap_or_else(named);
                let monitored = is_monitored.then_some(save.as_path());
                supervise(max_restarts, &worlds, &recipe.checkpoint, &log_dir, monitored)
            }
            None => Err(Failure::input("--max-restarts needs checkpoint.save: a run that saves nothing begins again")),
        }
    }

    /// Launcher of ranks that are processes.
    fn starter(&self) -> Starter {
        if self.launcher == Some(Launcher::Slurm) { Starter::Srun } else { Starter::Mpirun }
    }

    /// True if the run draws on the terminal itself.
    pub fn uses_terminal(&self) -> bool {
        self.ui == Ui::Tui
    }

    fn ranks_of_processes(&self) -> Result<usize, Failure> {
        let ranks = self.ranks.map(|ranks| ranks as usize);
        ranks.ok_or_else(|| Failure::input("--launcher mpi and slurm: say how many ranks with --ranks N"))
    }

    /// The machines of a supervised run, if it has any to choose from.
    fn spread(&self, recipe: &RawConfig) -> Result<Option<Spread>, Failure> {
        let starter = self.starter();
        let machines = match (self.launcher, self.hosts.as_slice()) {
            (None | Some(Launcher::Threads), []) | (Some(Launcher::Mpi), []) => return Ok(None),
            (None | Some(Launcher::Threads), _) => {
                return Err(Failure::input(
                    "--hosts: threads are all on this machine; give `--launcher mpi` or `--launcher slurm`",
                ));
            }
            (Some(Launcher::Slurm), []) => of_slurm_job()?,
            (_, hosts) => hosts.to_vec(),
        };
        let wanted = self.ranks_of_processes()?;
        Ok(Some(Spread { starter, machines, wanted, recipe: recipe.clone() }))
    }

    /// The configuration for a world of `ranks` ranks.
    fn load(&self, ranks: usize) -> Result<RunConfig, Failure> {
        let world = World { size: ranks };
        if self.strict {
            self.read()?.finalize(&world)?.strict()?;
        }
        if self.dry_run {
            return Ok(self.dry(&world)?.config);
        }
        let raw = self.read()?;
        let config = raw.finalize(&world)?;
        if self.find_lr { Ok(sweeping_recipe(&raw, &config).finalize(&world)?) } else { Ok(config) }
    }

    /// The dry run of the recipe.
    fn dry(&self, world: &World) -> Result<DryRun, Failure> {
        Ok(DryRun::new(&self.read()?, world, &self.dry_folder()?)?)
    }

    /// Folder in which a dry run may write: a new one, or for ranks that are processes one that all
    /// of them know.
    fn dry_folder(&self) -> Result<PathBuf, Failure> {
        static FOLDER: OnceLock<PathBuf> = OnceLock::new();
        if let Some(folder) = FOLDER.get() {
            return Ok(folder.clone());
        }
        let failed = |error: std::io::Error| Failure::run(format!("the folder of a dry run: {error}"));
        let folder = if mpi::started_ranks().is_none() {
            tempfile::Builder::new().prefix("bridge-dry-run-").tempdir().map_err(failed)?.keep()
        } else {
            let mut hasher = DefaultHasher::new();
            let job = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID"].map(std::env::var_os);
            (&self.recipe, &self.overrides, job).hash(&mut hasher);
            let folder = std::env::temp_dir().join(format!("bridge-dry-run-{:016x}", hasher.finish()));
            own_folder(&folder).map_err(failed)?;
            folder
        };
        Ok(FOLDER.get_or_init(|| folder).clone())
    }

    /// Runs the process of one rank; returns its exit code.
    fn run_rank(&self, world: Group, started: Instant, speech: &Speech) -> Result<u8, Failure> {
        let is_first = world.rank() == 0;
        let folder = (self.dry_run && is_first).then(|| self.dry_folder().map(DryFolder)).transpose();
        let config = folder.and_then(|folder| Ok((folder, self.load(world.size())?)));
        all_have_recipes(world.as_ref(), config.is_ok())?;
        let (_folder, config) = config?;
        let groups = process_groups(&config, over_devices(&config, world)?)?;
        if config.inprocess_restart.as_ref().is_some_and(|settings| settings.enabled) {
            return Err(Failure::input(
                "inprocess_restart.enabled: an MPI library cannot lose a rank and go on; `bridge train RECIPE --launcher mpi --ranks N \
                 --max-restarts M` starts all of them again",
            ));
        }
        let rank_env = RankEnv { unit: RankUnit::Process, ..rank_env() };
        let report = match self.train(config, groups, started, speech, rank_env) {
            // All ranks end together and in order, so that none has to be killed.
            Err(TrainError::Stopped(reason)) => {
                if is_first {
                    Failure::from(TrainError::Stopped(reason.clone())).print(speech.error_form());
                }
                return Ok(exit_code(&reason));
            }
            ended => ended?,
        };
        if is_first { self.after(&report) } else { Ok(exit_code(&report.reason)) }
    }

    /// Trains with threads as ranks; returns the report of rank 0.
    fn train_on_threads(&self, config: &RunConfig, started: Instant, speech: &Speech) -> Result<RunReport, TrainError> {
        if config.inprocess_restart.as_ref().is_some_and(|settings| settings.enabled) {
            let host = RestartHost { arguments: self, speech };
            let start =
                |config: &RunConfig, groups, rank_env| self.train(config.clone(), groups, started, speech, rank_env);
            return host.run(config.clone(), start);
        }
        if config.parallel.world_size == 1 {
            return self.train(config.clone(), ProcessGroups::single(), started, speech, rank_env());
        }
        let (failures, failed) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let ranks = scope.spawn(|| {
                let failures = failures;
                run_on_threads(config, rank_timeout(config), |groups| {
                    let rank = groups.world().rank();
                    self.train(config.clone(), groups, started, speech, rank_env()).inspect_err(|error| {
                        // The receiver may be gone at the end.
                        let _ = failures.send(format!("rank {rank}: {error}"));
                    })
                })
            });
            // Ends without a message when all ranks have ended.
            if let Ok(first) = failed.recv() {
                let failed = Instant::now();
                while !ranks.is_finished() && failed.elapsed() < GRACE {
                    std::thread::sleep(Duration::from_millis(10));
                }
                if !ranks.is_finished() {
                    Failure::run(first).print(speech.error_form());
                    std::process::exit(1);
                }
            }
            let mut reports = ranks.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(reports.swap_remove(0))
        })
    }

    /// Trains on one rank.
    fn train(
        &self,
        config: RunConfig,
        groups: ProcessGroups,
        started: Instant,
        speech: &Speech,
        rank_env: RankEnv,
    ) -> Result<RunReport, TrainError> {
        let mut options = RunOptions::new(registry());
        options.groups = groups;
        options.rank_env = rank_env;
        options.program_start = started;
        options.node = std::env::var(NODE_VARIABLE).ok();
        options.verbosity = speech.verbosity();
        options.signals = WatchSignals::Process;
        object_stores::open(&config, &mut options)?;
        if self.find_lr {
            options.subsystems.push(Box::new(LearningRateSweep::default()));
        }
        if self.json {
            options.console = Console::Json;
        }
        if self.dry_run {
            options.console = Console::Silent;
            options.subsystems.push(self.watch_dry(&config, &mut options.registry)?);
        }
        #[cfg(feature = "tui")]
        if self.ui == Ui::Tui && options.groups.world().rank() == 0 {
            return crate::dashboard::pretrain_with_dashboard(config, options);
        }
        pretrain(config, options)
    }

    /// The subsystem that prints the report of a dry run, for models that `watched` builds.
    fn watch_dry(&self, config: &RunConfig, watched: &mut Registry) -> Result<Box<dyn Subsystem>, TrainError> {
        let failed =
            |failure: Failure| SubsystemError::Subsystem { name: "dry run".into(), source: failure.text().into() };
        let recipe = self.read().map_err(failed)?;
        let folder = self.dry_folder().map_err(failed)?;
        let dry = DryRun::new(&recipe, &World { size: config.parallel.world_size }, &folder)?;
        let is_json = self.json;
        let mut planned = registry();
        for registry in [watched, &mut planned] {
            registry.models.adapt_as(recipe.peft.as_ref(), &config.model)?;
        }
        Ok(dry.watch(planned.models, move |report| print_dry_run(&report, is_json)))
    }

    /// Finishes the run on rank 0: prints a sample, if the recipe asks for one. Returns the exit
    /// code.
    fn after(&self, report: &RunReport) -> Result<u8, Failure> {
        let generate = &report.run.state.config.generate;
        if report.reason.is_end()
            && let Some(prompt) = &generate.prompt
        {
            let device = report.run.device().clone().without_autodiff();
            let sampling = if generate.temperature == 0.0 {
                Sampling::Greedy
            } else {
                let draw = Draw::new(generate.temperature, generate.seed);
                Sampling::Random(Draw { top_k: generate.top_k, top_p: generate.top_p, ..draw })
            };
            let sample = Sample { prompt, max_tokens: generate.max_tokens, sampling, json: self.json };
            print_sample(report, &device, &sample)?;
        }
        Ok(exit_code(&report.reason))
    }
}

/// Makes a folder that only this user can write in, or takes one that other ranks have made.
fn own_folder(folder: &Path) -> std::io::Result<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
    let found = std::fs::symlink_metadata(folder)?;
    // SAFETY: the call has no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    let is_own = found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0;
    match made {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && is_own => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(std::io::Error::other(format!("{} belongs to somebody else: remove it", folder.display())))
        }
        Err(error) => Err(error),
    }
}

/// Removes the files of a dry run when it is dropped.
struct DryFolder(PathBuf);

impl Drop for DryFolder {
    fn drop(&mut self) {
        // Ignore errors: the folder may not exist.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn print_dry_run(report: &DryRunReport, is_json: bool) {
    if is_json {
        line(&json!({ "kind": "dry_run", "report": report }).to_string());
        return;
    }
    let ranks = if report.world_size == 1 { "1 rank".into() } else { format!("{} ranks", report.world_size) };
    line(&format!("dry run on {ranks}: the run can begin"));
    let planned = report.planned_bytes.map(bytes);
    line(&match (report.peak_bytes, planned) {
        (Some(peak), Some(planned)) => format!("memory  {} measured, {planned} planned", bytes(peak)),
        (Some(peak), None) => format!("memory  {} measured; the model does not say what it needs", bytes(peak)),
        (None, Some(planned)) => format!("memory  {planned} planned; this system does not say what was used"),
        (None, None) => "memory  not known".into(),
    });
    line(&format!("step    {}, {} tokens per second", seconds(report.step_seconds), number(report.tokens_per_second)));
    let Some((steps, total)) = report.train_iters.zip(report.total_seconds) else {
        return line("run     train.num_epochs is known in steps when the data has been read");
    };
    let hours = total / 3600.0;
    line(&format!(
        "run     {steps} steps in {}, without evaluations and checkpoints",
        if hours >= 1.0 { format!("{hours:.1} h") } else { seconds(total) }
    ));
}

fn exit_code(reason: &ExitReason) -> u8 {
    u8::try_from(reason.exit_code()).unwrap_or(1)
}

/// Refuses a dashboard that cannot be shown.
fn check_dashboard(json: bool) -> Result<(), Failure> {
    if cfg!(not(feature = "tui")) {
        return Err(Failure::input(
            "--ui tui: this program was built without the `tui` feature; build with `--features bridge-cli/tui`, or run \
             `cargo xtask train RECIPE --ui tui`, which does",
        ));
    }
    if json {
        return Err(Failure::input(
            "--ui tui: cannot be combined with --json, because the dashboard uses the whole terminal",
        ));
    }
    if !output_is_terminal() {
        return Err(Failure::input("--ui tui: expected a terminal on standard output, found a file or a pipe"));
    }
    Ok(())
}

/// Fails on all ranks if one cannot read its recipe. That rank reports the reason.
fn all_have_recipes(world: &dyn Communicator, has_recipe: bool) -> Result<(), Failure> {
    let mut all = vec![0_u8; world.size()];
    world.all_gather((&[u8::from(has_recipe)]).into(), (&mut all).into()).map_err(Failure::run)?;
    match all.iter().position(|has_recipe| *has_recipe == 0) {
        Some(rank) if has_recipe => {
            Err(Failure::input(format!("rank {rank} could not read its recipe; see its own error message")))
        }
        _ => Ok(()),
    }
}

struct Sample<'a> {
    prompt: &'a str,
    max_tokens: usize,
    sampling: Sampling,
    json: bool,
}

/// Prints the model's continuation of the recipe's prompt.
fn print_sample(report: &RunReport, device: &burn::tensor::Device, sample: &Sample) -> Result<(), Failure> {
    let run = &report.run;
    let Some(tokenizer) = run.data().tokenizer() else { return Ok(()) };
    let tokenizer: &dyn Tokenizer = tokenizer.as_ref();
    let max_positions = run.state.config.model.seq_length;
    let prompt_tokens = tokenizer.encode(sample.prompt).map_err(Failure::input)?.len();
    let request = Request {
        prompt: &Prompt::new(tokenizer, sample.prompt)?,
        stop: &[],
        options: GenerateOptions {
            decoder_start: (run.state.config.model.kind == bridge_models::encoder_decoder::KIND)
                .then_some(run.state.config.model.decoder_start_token_id as i64),
            max_new_tokens: sample.max_tokens.min(max_positions.saturating_sub(prompt_tokens + 1)),
            sampling: sample.sampling,
            rules: TokenRules::default(),
            cache: StateCache::On,
            stop_tokens: tokenizer.eod().into_iter().collect(),
            vocab_size: tokenizer.vocab_size(),
            max_positions,
        },
    };
    let text = continue_text(run.chunks()[0].as_ref(), tokenizer, device, &request, &mut |_| {})?.text;
    if sample.json {
        line(&json!({ "kind": "sample", "prompt": sample.prompt, "text": text }).to_string());
    } else {
        text_lines(&format!("sample:\n{}{text}", sample.prompt));
    }
    Ok(())
}
