//! The subsystems of a run, in their order, and how ranks agree on their requests. A new one is a
//! file here and its line in [`Subsystems::new`].

mod attention_logits;
mod best;
mod cast_scales;
pub(in crate::train) mod contract;
mod divergence;
mod early_stopping;
mod energy;
pub(in crate::train) mod error;
mod expert_bias;
mod flight_recorder;
mod graphs;
mod heartbeats;
mod loss_watch;
mod losses_of_run;
mod memory;
mod memory_history;
mod norms;
mod nvidia_marks;
mod offload;
mod profiling;
mod simulated_fault;
mod stall;
mod stragglers;
mod synchronize;
mod tensor_inspect;
mod timeouts;
mod times;
mod weight_hashes;

use std::error::Error;
use std::path::{Path, PathBuf};

use bridge_dist::mesh::ProcessGroups;
use serde_json::{Map, Value};

pub(in crate::train) use best::best_of;
pub use best::check_metric;
pub(in crate::train) use loss_watch::{LocalResults, LossWatch};
pub use losses_of_run::LOSSES_KEY;
pub(in crate::train) use memory_history::begin as begin_memory_history;

use crate::config::{CudaGraphImpl, RunConfig};
use crate::plan;
use crate::resilience::rerun::RankLocation;
use crate::train::engine::global_state::GlobalState;
use crate::train::exit_reason::ExitReason;
use crate::train::ranks::agreement;
use crate::train::ranks::rank_env::RankEnv;
use crate::train::reporting::report::{EvaluationReport, StepReport};
use crate::train::subsystems::contract::{Agreement, Loaded, LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// All subsystems of a run.
pub(in crate::train) struct Subsystems {
    /// Loss checks, which the step also calls directly: in the middle of a step they decide whether
    /// the pass over the micro-batches is repeated.
    pub losses: LossWatch,
    /// All others, in the order in which they are called.
    subsystems: Vec<Box<dyn Subsystem>>,
    /// True if some rank has a subsystem of the program whose results are exchanged
    /// ([`Agreement::Exchanged`]).
    exchanges_requests: bool,
}

impl Subsystems {
    /// The subsystems that every run has, with the program's `own` between those that measure and
    /// those that judge. All ranks call this together.
    pub fn new(
        config: &RunConfig,
        groups: &ProcessGroups,
        losses: LossWatch,
        placement: RankLocation,
        rank_env: &RankEnv,
        own: Vec<Box<dyn Subsystem>>,
    ) -> Result<Self, SubsystemError> {
        let exchanges = own.iter().any(|subsystem| subsystem.agreement() == Agreement::Exchanged);
        let exchanges_requests = agreement::any(groups.world(), exchanges)?;
        let mut subsystems: Vec<Box<dyn Subsystem>> = Vec::new();
        if let Some(recorder) = flight_recorder::FlightRecorder::new(config, groups, &placement.node) {
            subsystems.push(Box::new(recorder));
        }
        if let Some(profiling) = profiling::Profiling::new(config, &placement.node) {
            subsystems.push(Box::new(profiling));
        }
        if let Some(marks) = nvidia_marks::NvidiaMarks::new(config, groups.world().rank()) {
            subsystems.push(Box::new(marks));
        }
        if let Some(history) = memory_history::MemoryHistory::new(config, groups.world().rank()) {
            subsystems.push(Box::new(history));
        }
        // It measures the time between its calls, so it comes before subsystems that take time.
        if let Some(stragglers) = stragglers::Stragglers::new(config, placement.clone()) {
            subsystems.push(Box::new(stragglers));
        }
        if config.logger.log_energy {
            subsystems.push(Box::new(energy::Energy::new(&placement.node)));
        }
        if config.logger.log_max_attention_logit {
            subsystems.push(Box::new(attention_logits::AttentionLogits::default()));
        }
        if let Some(inspect) = tensor_inspect::TensorInspect::new(config) {
            subsystems.push(Box::new(inspect));
        }
        let measuring: [Box<dyn Subsystem>; 6] = [
            Box::new(timeouts::Timeouts),
            Box::new(norms::ParameterNorm),
            Box::new(times::Times::new(config)),
            Box::new(memory::MemoryOfRun::default()),
            Box::new(losses_of_run::LossesOfRun::default()),
            Box::new(expert_bias::ExpertBiases::new(config)),
        ];
        subsystems.extend(measuring);
        if let Some(scales) = cast_scales::CastScales::new(config) {
            subsystems.push(Box::new(scales));
        }
        if config.model.cuda_graph_impl != CudaGraphImpl::None {
            subsystems.push(Box::new(graphs::Replays));
        }
        if plan::settings::activation_offload(config) != plan::offload::Offload::Nothing {
            subsystems.push(Box::new(offload::MovedActivations::default()));
        }
        subsystems.extend(own);
        if let Some(heartbeats) = heartbeats::Heartbeats::new(config, rank_env)? {
            subsystems.push(Box::new(heartbeats));
        }
        if let Some(fault) = simulated_fault::SimulatedFault::from_config(config, groups.world().rank(), rank_env) {
            subsystems.push(Box::new(fault));
        }
        subsystems.push(Box::new(weight_hashes::WeightHashes::new(config, placement)));
        subsystems.push(Box::new(stall::StallWatch::default()));
        subsystems.push(Box::new(divergence::DivergenceWatch::default()));
        subsystems.push(Box::new(best::KeepBest::default()));
        subsystems.push(Box::new(early_stopping::EarlyStopping::default()));
        subsystems.push(Box::new(synchronize::Synchronize));
        Ok(Self { losses, subsystems, exchanges_requests })
    }

    /// Calls `f` for each subsystem, until one fails on any rank.
    fn each(
        &mut self,
        run: &mut RunContext,
        mut f: impl FnMut(&mut dyn Subsystem, &mut RunContext) -> Result<(), SubsystemError>,
    ) -> Result<(), SubsystemError> {
        f(&mut self.losses, run)?;
        let called = self.subsystems.iter_mut().try_for_each(|subsystem| f(subsystem.as_mut(), run));
        if self.exchanges_requests { agreement::agree(run.groups, "calling its subsystems", called) } else { called }
    }

    pub fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        self.each(run, |subsystem, run| subsystem.before_step(run))
    }

    pub fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        self.each(run, |subsystem, run| subsystem.measure(run, step))
    }

    /// Combined request of all subsystems of all ranks.
    pub fn after_step(&mut self, run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        let mut request = LoopRequest::default();
        self.each(run, |subsystem, run| {
            request.join(subsystem.after_step(run, step)?);
            Ok(())
        })?;
        self.agreed(run, request)
    }

    /// Combined request of all ranks, with its lines printed.
    fn agreed(&self, run: &RunContext, mut request: LoopRequest) -> Result<LoopRequest, SubsystemError> {
        let world = run.groups.world();
        if self.exchanges_requests && world.size() > 1 && agreement::any(world, request != LoopRequest::default())? {
            let requests = agreement::gather(world, &request)?;
            request = LoopRequest::default();
            // Equal lines of several ranks are printed once.
            for mut other in requests {
                other.notes.retain(|note| !request.notes.contains(note));
                other.details.retain(|detail| !request.details.contains(detail));
                request.join(other);
            }
        }
        run.tell(&request);
        Ok(request)
    }

    pub fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        self.each(run, |subsystem, run| subsystem.on_run_start(run))
    }

    /// Combined request of all subsystems of all ranks.
    pub fn on_evaluation(
        &mut self,
        run: &mut RunContext,
        report: &EvaluationReport,
    ) -> Result<LoopRequest, SubsystemError> {
        let mut request = LoopRequest::default();
        self.each(run, |subsystem, run| {
            request.join(subsystem.on_evaluation(run, report)?);
            Ok(())
        })?;
        self.agreed(run, request)
    }

    /// Reason to end training before its last iteration, if a subsystem of any rank has one.
    pub fn stop_reason(&self, groups: &ProcessGroups, state: &GlobalState) -> Result<Option<String>, SubsystemError> {
        let mine = self.subsystems.iter().find_map(|subsystem| subsystem.stop_reason(state));
        if !self.exchanges_requests || groups.world().size() == 1 || !agreement::any(groups.world(), mine.is_some())? {
            return Ok(mine);
        }
        Ok(agreement::gather(groups.world(), &mine)?.into_iter().flatten().next())
    }

    pub fn on_save(&mut self, run: &mut RunContext, state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        self.each(run, |subsystem, run| subsystem.on_save(run, state))
    }

    pub fn after_save(&mut self, run: &mut RunContext, folder: &Path) -> Result<(), SubsystemError> {
        self.each(run, |subsystem, run| subsystem.after_save(run, folder))
    }

    /// A checkpoint that must not be deleted to make room for others.
    pub fn protected_checkpoint(&self) -> Option<PathBuf> {
        self.subsystems.iter().find_map(|subsystem| subsystem.protected_checkpoint())
    }

    pub fn on_load(&mut self, run: &mut RunContext, loaded: &Loaded) -> Result<(), SubsystemError> {
        self.each(run, |subsystem, run| subsystem.on_load(run, loaded))
    }

    /// Tells every subsystem how training ended, and returns that; their errors count where it
    /// ended in order.
    pub fn on_run_end<E: From<SubsystemError> + Error + 'static>(
        &mut self,
        run: &mut RunContext,
        mut end: Result<ExitReason, E>,
    ) -> Result<ExitReason, E> {
        let losses = std::iter::once(&mut self.losses as &mut dyn Subsystem);
        for subsystem in losses.chain(self.subsystems.iter_mut().map(|subsystem| subsystem.as_mut() as _)) {
            let told = end.as_ref().map_err(|error| error as &dyn Error);
            if let (Err(error), true) = (subsystem.on_run_end(run, told), end.is_ok()) {
                end = Err(error.into());
            }
        }
        end
    }
}
