//! The times of ranks in each log interval, fastest and slowest, with a port that switches it
//! (`[straggler]`).

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};

use super::own_time::OwnTime;
use crate::config::StragglerDetectionConfig;
use crate::resilience::rerun::Placement;
use crate::resilience::stragglers::{RankTimes, RankWindow, list_times};
use crate::train::ranks::agreement;
use crate::train::reporting::report::{StepReport, is_reported_every};
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;
use bridge_telemetry::http::{Answer, Server};

pub(super) struct StragglerTimes {
    settings: StragglerDetectionConfig,
    placement: Placement,
    clock: OwnTime,
    steps: Vec<RankTimes>,
    /// True if ranks measure.
    is_on: bool,
    /// Last request to rank 0.
    wish: Arc<AtomicBool>,
    /// On rank 0, where the port can be had.
    server: Option<Server>,
    /// Line of the step.
    line: Option<String>,
}

impl StragglerTimes {
    pub fn new(settings: &StragglerDetectionConfig, placement: Placement) -> Self {
        let is_on = settings.enable_straggler_on_startup && !settings.disable_straggler_on_startup;
        Self {
            settings: settings.clone(),
            placement,
            clock: OwnTime::default(),
            steps: Vec::new(),
            is_on,
            wish: Arc::new(AtomicBool::new(is_on)),
            server: None,
            line: None,
        }
    }

    /// Listens for clients that switch it on and off. A port that cannot be had is no reason to
    /// stop a run.
    fn listen(&mut self, run: &RunContext) {
        let port = self.settings.straggler_ctrlr_port as u16;
        let wish = Arc::clone(&self.wish);
        // `finalize` has checked the address.
        let host = self.settings.straggler_ctrlr_host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let server = TcpListener::bind((host, port)).and_then(|listener| {
            Server::start(listener, "straggler port", move |request| match (request.method, request.path) {
                ("GET" | "POST", "/") => {
                    let was_on = wish.fetch_xor(true, Ordering::Relaxed);
                    let now = if was_on { "off" } else { "on" };
                    Answer::text("200 OK", format!("straggler detection is {now} from the next log interval on\n"))
                }
                (_, "/") => Answer::text("405 Method Not Allowed", "GET / and POST / switch straggler detection\n"),
                _ => Answer::text("404 Not Found", "GET / and POST / switch straggler detection\n"),
            })
        });
        match server {
            Ok(server) => {
                let which = if port == 0 { "a free port" } else { "port" };
                let port = server.address().port();
                run.note(&format!("a request to {which} {port} of {host} switches the times of ranks on and off"));
                self.server = Some(server);
            }
            Err(error) => {
                run.warn(&format!("straggler.straggler_ctrlr_port: cannot listen on port {port} of {host}: {error}"))
            }
        }
    }

    /// The line about the interval that ends. All ranks call this together.
    fn report(&mut self, run: &RunContext, step: &StepReport) -> Result<(), SubsystemError> {
        let steps = std::mem::take(&mut self.steps);
        let Some(times) = RankTimes::undisturbed(&steps) else { return Ok(()) };
        let stage = run.groups.pipeline().rank();
        let mine = RankWindow { place: self.placement.clone(), stage, times, usual: None };
        let windows = agreement::gather(run.groups.world(), &mine)?;
        let flops = step.flops.map(|flops| flops / windows.len() as f64);
        self.line = Some(list_times(&windows, self.settings.straggler_minmax_count, steps.len(), flops));
        Ok(())
    }
}

impl Subsystem for StragglerTimes {
    fn name(&self) -> &str {
        "straggler times"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        if agreement::is_first(run.groups) {
            self.listen(run);
        }
        Ok(())
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        if self.is_on {
            self.steps.extend(self.clock.end_iteration(run.groups, step));
        }
        if !is_reported_every(&run.state.config, run.state.config.logger.log_interval, step.iteration) {
            return Ok(());
        }
        self.report(run, step)?;
        // Only rank 0 has a port.
        let wish = agreement::is_first(run.groups) && self.wish.load(Ordering::Relaxed);
        self.is_on = agreement::any(run.groups.world(), wish)?;
        Ok(())
    }

    fn after_step(&mut self, run: &mut RunContext, _step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        if self.is_on {
            self.clock.start(run.groups);
        }
        Ok(self.line.take().map_or_else(LoopRequest::default, |line| LoopRequest::default().note(line)))
    }

    fn on_save(&mut self, run: &mut RunContext, _state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        self.clock.pause(run.groups);
        Ok(())
    }

    fn after_save(&mut self, run: &mut RunContext, _folder: &Path) -> Result<(), SubsystemError> {
        self.clock.resume(run.groups);
        Ok(())
    }
}
