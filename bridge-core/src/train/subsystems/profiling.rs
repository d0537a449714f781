//! Traces of some steps (`profiling.use_pytorch_profiler`): the timeline of each rank, in one file
//! per rank.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bridge_dist::comm::call_log::CallRecord;
use serde_json::{Map, Value};

use crate::config::RunConfig;
use crate::logging::trace::{Event, FOLDER, Header, Part, Phase, Trace, TracedRank};
use crate::timers::{Labels, Span};
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use crate::train::reporting::report::TrainEnd;
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

pub(super) struct Profiling {
    /// First and last traced iteration.
    window: (u64, u64),
    /// `Some` while steps are traced.
    clock: Option<Clock>,
    node: String,
}

/// Times of this rank as times since tracing began on rank 0.
struct Clock {
    began: Instant,
    /// Microseconds from the beginning on rank 0 to that on this one.
    offset: f64,
}

impl Clock {
    /// Microseconds since tracing began on rank 0.
    fn at(&self, moment: Instant) -> f64 {
        self.offset + moment.saturating_duration_since(self.began).as_nanos() as f64 * 1e-3
    }

    /// Beginning and duration.
    fn span(&self, start: Instant, end: Instant) -> (f64, f64) {
        (self.at(start), self.at(end) - self.at(start))
    }
}

impl Profiling {
    /// The subsystem on the machine `node`, if the recipe asks for traces.
    pub fn new(config: &RunConfig, node: &str) -> Option<Self> {
        let settings = &config.profiling;
        let window = (settings.profile_step_start as u64 + 1, settings.profile_step_end as u64);
        settings.use_pytorch_profiler.then(|| Self { window, clock: None, node: node.to_owned() })
    }

    /// Starts after a barrier, so that clocks of ranks can be compared: ranks of a machine share a
    /// clock, clocks of two machines may differ.
    fn begin(&mut self, run: &RunContext) -> Result<(), SubsystemError> {
        let world = run.groups.world();
        world.barrier()?;
        let began = Instant::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let all = agreement::gather(world, &(self.node.clone(), wall))?;
        let of_machine = all.iter().find(|(node, _)| *node == self.node).map_or(wall, |(_, wall)| *wall);
        self.clock = Some(Clock { began, offset: (wall as i128 - of_machine as i128) as f64 * 1e-3 });
        let settings = &run.state.config.profiling;
        if settings.profile_ranks.is_empty() || settings.profile_ranks.contains(&world.rank()) {
            run.groups.call_log().keep_all();
            run.timers.spans().record(settings.pytorch_profiler_collect_shapes);
        }
        Ok(())
    }

    /// Writes the trace.
    fn end(&self, clock: &Clock, run: &RunContext) -> Result<(), SubsystemError> {
        if !run.timers.spans().are_on() {
            return Ok(());
        }
        let spans = run.timers.spans().take();
        let calls = run.groups.call_log().calls();
        run.groups.call_log().keep_all_no_more();
        let (config, rank) = (&run.state.config, run.groups.world().rank());
        let stage = run.groups.pipeline().rank();
        let traced = TracedRank { rank, stage, node: self.node.clone() };
        let mut events = vec![Event::rank_name(rank, &format!("rank {rank}, stage {stage}, {}", self.node))];
        events.extend(self::events(clock, rank, spans, calls.iter().filter(|call| call.started >= clock.began)));
        let world_size = run.groups.world().size();
        let trace = Trace::new(Header { run: config.name.clone(), world_size, ranks: vec![traced] }, events);
        let path = config.logger.log_dir.join(FOLDER).join(format!("rank_{rank:05}.json"));
        trace.write(&path).map_err(|error| CommonError::log(path.display().to_string(), error))?;
        run.note(&format!("trace: {}", path.display()));
        Ok(())
    }
}

impl Subsystem for Profiling {
    fn name(&self) -> &str {
        "profiling"
    }

    fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let next = run.state.train_state.step + 1;
        if self.clock.is_none() && (self.window.0..=self.window.1).contains(&next) {
            return self.begin(run);
        }
        match self.clock.take_if(|_| next > self.window.1) {
            Some(clock) => self.end(&clock, run),
            None => Ok(()),
        }
    }

    fn on_run_end(&mut self, run: &mut RunContext, _end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        match self.clock.take() {
            Some(clock) => self.end(&clock, run),
            None => Ok(()),
        }
    }
}

/// Recorded spans as events, in the order of their beginnings. Calls get the labels of the spans
/// around them.
fn events<'a>(clock: &Clock, rank: usize, spans: Vec<Span>, calls: impl Iterator<Item = &'a CallRecord>) -> Vec<Event> {
    let mut events: Vec<Event> = spans.into_iter().map(|span| of_span(clock, rank, span)).collect();
    events.extend(calls.flat_map(|call| of_call(clock, rank, call)));
    events.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.end().total_cmp(&a.end())));
    let mut around: Vec<(f64, Map<String, Value>)> = Vec::new();
    for event in &mut events {
        around.retain(|(end, _)| *end > event.ts);
        match event.cat {
            Some(Part::Collective | Part::InFlight) => {
                let labels = around.iter().rev().flat_map(|(_, args)| args);
                for (name, value) in labels.filter(|(name, _)| ["layer", "microbatch"].contains(&name.as_str())) {
                    event.args.entry(name).or_insert_with(|| value.clone());
                }
            }
            _ => around.push((event.end(), event.args.clone())),
        }
    }
    events
}

fn of_span(clock: &Clock, rank: usize, span: Span) -> Event {
    let Span { name, labels, shapes, start, end } = span;
    let mut event = Event::span(name.clone(), Part::of_span(&name), rank, clock.span(start, end));
    let Labels { iteration, layer, microbatch, chunk } = labels;
    let numbers = [("iteration", iteration), ("layer", layer.map(|n| n as u64))];
    let more = [("microbatch", microbatch.map(|n| n as u64)), ("chunk", chunk.map(|n| n as u64))];
    let numbers = numbers.into_iter().chain(more).filter_map(|(name, number)| Some((name.to_owned(), number?.into())));
    event.args.extend(numbers);
    event.args.extend(shapes.map(|shapes| ("shapes".to_owned(), shapes.into())));
    event
}

/// Events of a call: a span if the rank blocked in it. For a background call, events of its begin
/// and end, and a span for the wait.
fn of_call(clock: &Clock, rank: usize, call: &CallRecord) -> Vec<Event> {
    let name = call.operation.name();
    let mut args: Map<String, Value> = [
        ("group", Value::from(call.group.as_str())),
        ("ranks", call.ranks.to_vec().into()),
        ("dtype", call.dtype.to_string().into()),
        ("elements", call.elements.into()),
        ("bytes", call.bytes.into()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    args.extend(call.root.map(|root| ("root".to_owned(), root.into())));
    let Some(ended) = call.ended else { return Vec::new() };
    if !call.is_background {
        return vec![Event { args, ..Event::span(name, Part::Collective, rank, clock.span(call.started, ended)) }];
    }
    let id = Some(format!("{rank}.{}", call.id));
    let at = |ph, moment| {
        let span = Event::span(name, Part::InFlight, rank, (clock.at(moment), 0.0));
        Event { ph, dur: None, id: id.clone(), ..span }
    };
    let mut events = vec![Event { args, ..at(Phase::Begins, call.started) }, at(Phase::Ends, ended)];
    let wait = |(start, end)| Event::span(format!("wait for {name}"), Part::Collective, rank, clock.span(start, end));
    events.extend(call.waited.map(wait));
    events
}
