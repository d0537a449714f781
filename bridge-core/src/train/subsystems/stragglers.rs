//! Slow ranks. A clock measures the time that each rank needs for an iteration by itself. Two
//! reports come from it: scores every few minutes, which may end the run (`[nvrx_straggler]`), and
//! the fastest and slowest ranks of each log interval, with a port that switches it
//! (`[straggler]`).

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;
use bridge_telemetry::http::{Answer, Server};
use serde_json::{Map, Value};

use crate::config::{NvrxStragglerDetectionConfig, RunConfig, StragglerDetectionConfig};
use crate::logging::health::{RankScore, RankScores};
use crate::resilience::rerun::RankLocation;
use crate::resilience::stragglers::{Detector, RankTimes, RankWindow, StragglerReport, list_times};
use crate::train::ranks::agreement;
use crate::train::reporting::report::{StepReport, TrainEnd, is_reported_every};
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// Steps that a window of scores has at least: single ones may take long for many reasons.
const FEWEST_STEPS: usize = 16;
/// The same for the window that the end of the run cuts short.
const FEWEST_STEPS_AT_END: usize = 8;

pub(super) struct Stragglers {
    placement: RankLocation,
    clock: OwnTime,
    scores: Option<ScoreReports>,
    times: Option<TimeReports>,
    /// Request of the step.
    request: LoopRequest,
}

impl Stragglers {
    /// Reports of a configuration, if it asks for any.
    pub fn new(config: &RunConfig, placement: RankLocation) -> Option<Self> {
        let scores = config.nvrx_straggler.as_ref().filter(|settings| settings.enabled).map(ScoreReports::new);
        let times = config.straggler.as_ref().filter(|settings| settings.log_straggler).map(TimeReports::new);
        let asks = scores.is_some() || times.is_some();
        asks.then(|| Self { placement, clock: OwnTime::default(), scores, times, request: LoopRequest::default() })
    }
}

impl Subsystem for Stragglers {
    fn name(&self) -> &str {
        "stragglers"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        if let Some(times) = self.times.as_mut().filter(|_| agreement::is_rank_zero(run.groups)) {
            times.listen(run);
        }
        Ok(())
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        let measured = self.clock.end_iteration(run.groups, step);
        if let Some(scores) = &mut self.scores {
            scores.count(step, measured);
            if scores.window_is_over(run)? {
                self.request.join(scores.end_window(run, &self.placement)?);
            }
        }
        if let Some(times) = &mut self.times {
            times.steps.extend(measured.filter(|_| times.is_on));
            if is_reported_every(&run.state.config, run.state.config.logger.log_interval, step.iteration) {
                self.request.notes.extend(times.report(run, &self.placement, step)?);
            }
        }
        Ok(())
    }

    fn after_step(&mut self, run: &mut RunContext, _step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        self.clock.start(run.groups);
        Ok(std::mem::take(&mut self.request))
    }

    fn on_save(&mut self, run: &mut RunContext, _state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        self.clock.pause(run.groups);
        Ok(())
    }

    fn after_save(&mut self, run: &mut RunContext, _folder: &Path) -> Result<(), SubsystemError> {
        self.clock.resume(run.groups);
        Ok(())
    }

    /// Tells of the window of scores that the end cut short.
    fn on_run_end(&mut self, run: &mut RunContext, end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        let scores = self.scores.as_mut().filter(|scores| end.is_ok() && scores.steps.len() >= FEWEST_STEPS_AT_END);
        if let Some(scores) = scores {
            run.tell(&scores.end_window(run, &self.placement)?);
        }
        Ok(())
    }
}

/// Window of each rank. All ranks call this together.
fn gather(
    run: &RunContext,
    placement: &RankLocation,
    times: RankTimes,
    usual: Option<f64>,
) -> Result<Vec<RankWindow>, CommError> {
    let stage = run.groups.pipeline().rank();
    agreement::gather(run.groups.world(), &RankWindow { place: placement.clone(), stage, times, usual })
}

/// Scores of ranks, and what follows where one is too slow.
struct ScoreReports {
    settings: NvrxStragglerDetectionConfig,
    detector: Detector,
    /// Steps of the window.
    steps: Vec<RankTimes>,
    /// When the window began.
    began: Instant,
    /// Iterations since then, and how many more until ranks look whether its time is over.
    iterations: u64,
    until_look: u64,
    /// Micro-batches of the last step.
    num_microbatches: u64,
}

impl ScoreReports {
    fn new(settings: &NvrxStragglerDetectionConfig) -> Self {
        let relative = settings.calc_relative_gpu_perf.then_some(settings.gpu_relative_perf_threshold);
        let individual = settings.calc_individual_gpu_perf.then_some(settings.gpu_individual_perf_threshold);
        Self {
            settings: settings.clone(),
            detector: Detector::new(relative, individual, settings.num_gpu_perf_scores_to_print),
            steps: Vec::new(),
            began: Instant::now(),
            iterations: 0,
            until_look: 1,
            num_microbatches: 0,
        }
    }

    /// Counts an iteration.
    fn count(&mut self, step: &StepReport, measured: Option<RankTimes>) {
        self.num_microbatches = step.num_microbatches;
        let is_sampled = step.iteration.is_multiple_of(self.settings.profiling_interval as u64);
        self.steps.extend(measured.filter(|_| is_sampled));
        self.iterations += 1;
        self.until_look = self.until_look.saturating_sub(1);
    }

    /// True if the window is over. All ranks call this together and get the same result.
    fn window_is_over(&mut self, run: &RunContext) -> Result<bool, CommError> {
        if self.until_look > 0 {
            return Ok(false);
        }
        let mut elapsed = [self.began.elapsed().as_secs_f64()];
        agreement::max(run.groups.world(), &mut elapsed)?;
        let left = self.settings.report_time_interval - elapsed[0];
        if left <= 0.0 && self.steps.len() >= FEWEST_STEPS {
            return Ok(true);
        }
        let pace = (elapsed[0] / self.iterations as f64).max(1e-6);
        let missing = FEWEST_STEPS.saturating_sub(self.steps.len()) * self.settings.profiling_interval;
        self.until_look = ((left / pace).ceil() as u64).max(missing as u64).max(1);
        Ok(false)
    }

    /// Ends the window: scores all ranks and reports stragglers. All ranks call this together.
    fn end_window(&mut self, run: &RunContext, placement: &RankLocation) -> Result<LoopRequest, CommError> {
        let steps = std::mem::take(&mut self.steps);
        (self.began, self.iterations, self.until_look) = (Instant::now(), 0, 1);
        let times = RankTimes::undisturbed(&steps).unwrap_or_default();
        let usual = self.detector.usual_before(times.own(), self.num_microbatches);
        let windows = gather(run, placement, times, usual)?;
        let report = self.detector.detect(&windows, steps.len());
        if agreement::is_rank_zero(run.groups) {
            // For those who look at the run. A disk that is full ends no run.
            let scores = scores_of(run.state.train_state.step, &windows, &report);
            if let Err(error) = scores.write(&run.state.config.logger.log_dir) {
                run.warn(&format!("the scores of ranks cannot be written: {error}"));
            }
        }
        let first = report.stragglers.first().filter(|_| self.settings.stop_if_detected);
        let mut request = LoopRequest { exit: first.map(|first| (0, first.clone())), ..LoopRequest::default() };
        if self.settings.enable_logging {
            request.notes.extend(report.lines.into_iter().chain(report.stragglers));
        }
        Ok(request)
    }
}

/// Scores of the ranks in a file for other programs.
fn scores_of(iteration: u64, windows: &[RankWindow], report: &StragglerReport) -> RankScores {
    let of_rank = |(rank, window): (usize, &RankWindow)| RankScore {
        rank,
        node: window.place.node.clone(),
        relative: report.scores[rank].relative,
        individual: report.scores[rank].individual,
        times: [window.times.compute, window.times.data, window.times.communication],
        is_slow: report.slow.contains(&rank),
    };
    RankScores { iteration, ranks: windows.iter().enumerate().map(of_rank).collect() }
}

/// Least and most times of ranks in each log interval.
struct TimeReports {
    settings: StragglerDetectionConfig,
    /// Steps of the log interval.
    steps: Vec<RankTimes>,
    /// True if ranks measure.
    is_on: bool,
    /// Last request to rank 0.
    wish: Arc<AtomicBool>,
    /// On rank 0, where the port can be had.
    server: Option<Server>,
}

impl TimeReports {
    fn new(settings: &StragglerDetectionConfig) -> Self {
        let is_on = settings.enable_straggler_on_startup && !settings.disable_straggler_on_startup;
        let wish = Arc::new(AtomicBool::new(is_on));
        Self { settings: settings.clone(), steps: Vec::new(), is_on, wish, server: None }
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

    /// Line about the log interval, which ends; `None` if nothing was measured. All ranks call this
    /// together.
    fn report(
        &mut self,
        run: &RunContext,
        placement: &RankLocation,
        step: &StepReport,
    ) -> Result<Option<String>, CommError> {
        let steps = std::mem::take(&mut self.steps);
        let windows = RankTimes::undisturbed(&steps).map(|times| gather(run, placement, times, None)).transpose()?;
        // Only rank 0 has a port.
        let wish = agreement::is_rank_zero(run.groups) && self.wish.load(Ordering::Relaxed);
        self.is_on = agreement::any(run.groups.world(), wish)?;
        Ok(windows.map(|windows| {
            let flops = step.flops.map(|flops| flops / windows.len() as f64);
            list_times(&windows, self.settings.straggler_minmax_count, steps.len(), flops)
        }))
    }
}

/// Clock of one rank's iterations, without waiting for others. It counts from one report of a step
/// to the next, without saves, because rank 0 has more to do there than the others.
#[derive(Debug, Default)]
struct OwnTime {
    /// The moment when it was started, and the time in calls of communicators then.
    started: Option<(Instant, Duration)>,
    elapsed: Duration,
    in_calls: Duration,
}

impl OwnTime {
    /// Goes on counting.
    fn start(&mut self, groups: &ProcessGroups) {
        self.started = Some((Instant::now(), groups.time_in_calls()));
    }

    /// Stops counting.
    fn pause(&mut self, groups: &ProcessGroups) {
        if let Some((moment, in_calls)) = self.started.take() {
            self.elapsed += moment.elapsed();
            self.in_calls += groups.time_in_calls() - in_calls;
        }
    }

    /// Goes on if it has counted: it stands still until the first step is over, which takes longer
    /// than others.
    fn resume(&mut self, groups: &ProcessGroups) {
        if self.elapsed > Duration::ZERO {
            self.start(groups);
        }
    }

    /// Ends an iteration; its times, if it was counted from its beginning.
    fn end_iteration(&mut self, groups: &ProcessGroups, step: &StepReport) -> Option<RankTimes> {
        self.pause(groups);
        let (elapsed, in_calls) = (std::mem::take(&mut self.elapsed), std::mem::take(&mut self.in_calls));
        if elapsed.is_zero() {
            return None;
        }
        let own = elapsed.saturating_sub(in_calls).as_secs_f64();
        let data = step.own_data_seconds.min(own);
        Some(RankTimes { compute: own - data, data, communication: in_calls.as_secs_f64() })
    }
}
