//! The energy of all machines of a run, or of its GPUs (`logger.log_energy`), in each log interval.

use std::collections::BTreeMap;

use crate::logging::{EnergyCounters, Figure, Gpu};
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use crate::train::ranks::device::cuda_number;
use crate::train::reporting::report::{StepReport, is_reported_every};
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

pub(super) struct Energy {
    /// The machine of this rank, with the number of its GPU if it has one: one rank of each is
    /// counted.
    place: String,
    counters: Option<Counters>,
    /// Since the last report.
    joules: f64,
    seconds: f64,
    iterations: u64,
}

impl Energy {
    pub fn new(node: &str) -> Self {
        Self { place: node.to_owned(), counters: None, joules: 0.0, seconds: 0.0, iterations: 0 }
    }

    /// Opens the energy counters of the rank's GPU or machine.
    fn open(&mut self, run: &RunContext) -> Result<(), String> {
        let place = agreement::local_rank(run.groups.world()).map_err(|error| error.to_string())?;
        self.counters = Some(match cuda_number(&run.state.config.device, place) {
            None => Counters::Machine(EnergyCounters::open().ok_or_else(|| {
                format!(
                    "{} shows no energy counters that this process may read; expected \
                     /sys/class/powercap/intel-rapl:0/energy_uj, which Linux lets root read (chmod a+r opens it to all)",
                    self.place
                )
            })?),
            Some(number) => {
                self.place.push_str(&format!(", GPU {number}"));
                let gpu = Gpu::open(number).map_err(|why| format!("{}: {why}", self.place))?;
                let last = gpu.millijoules().map_err(|why| format!("{}: {why}", self.place))?;
                Counters::Gpu { gpu, last }
            }
        });
        Ok(())
    }
}

/// Energy counters.
enum Counters {
    Machine(EnergyCounters),
    Gpu { gpu: Gpu, last: u64 },
}

impl Counters {
    /// Joules since the last call.
    fn joules(&mut self) -> f64 {
        match self {
            Self::Machine(counters) => counters.joules(),
            Self::Gpu { gpu, last } => {
                // A device that does not answer any more has used nothing that is known.
                let now = gpu.millijoules().unwrap_or(*last);
                now.saturating_sub(std::mem::replace(last, now)) as f64 * 1e-3
            }
        }
    }
}

impl Subsystem for Energy {
    fn name(&self) -> &str {
        "energy"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let trouble = agreement::gather(run.groups.world(), &self.open(run).err())?;
        match trouble.into_iter().flatten().next() {
            Some(message) => Err(CommonError::setting("logger.log_energy", message).into()),
            None => Ok(()),
        }
    }

    fn before_step(&mut self, _run: &mut RunContext) -> Result<(), SubsystemError> {
        // Energy between steps is not attributed to a step.
        self.counters.as_mut().map(Counters::joules);
        Ok(())
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        self.joules += self.counters.as_mut().map_or(0.0, Counters::joules);
        self.seconds += step.seconds;
        self.iterations += 1;
        if !is_reported_every(&run.state.config, run.state.config.logger.log_interval, step.iteration) {
            return Ok(());
        }
        let all = agreement::gather(run.groups.world(), &(self.place.clone(), self.joules))?;
        let joules = of_machines(all) / run.groups.world().size() as f64;
        step.figures.extend(figures(joules / self.iterations as f64, joules / self.seconds));
        (self.joules, self.seconds, self.iterations) = (0.0, 0.0, 0);
        Ok(())
    }
}

/// The joules of all machines, or GPUs, each counted by its first rank.
fn of_machines(ranks: Vec<(String, f64)>) -> f64 {
    let mut machines: BTreeMap<String, f64> = BTreeMap::new();
    for (node, joules) in ranks {
        machines.entry(node).or_insert(joules);
    }
    machines.into_values().sum()
}

/// Energy of a step and power, of one rank.
fn figures(joules: f64, watts: f64) -> [Figure; 2] {
    let energy = Figure::new("energy_per_iteration", "joules", "Energy of a step, divided by ranks", joules);
    let power = Figure::new("power", "watts", "Power in steps, divided by ranks", watts);
    [
        energy
            .of_interval()
            .board("iter-energy/gpu")
            .line(152, format!("energy per rank (J/iter/rank): {joules:.1}"))
            .json(162, "energy_joules_per_iteration"),
        power
            .of_interval()
            .board("power/gpu")
            .line(153, format!("power per rank (W/rank): {watts:.1}"))
            .json(163, "power_watts"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_counted_once() {
        let ranks = [("a", 3.0), ("a", 3.1), ("b", 0.5), ("a", 2.9)].map(|(node, joules)| (node.to_owned(), joules));
        assert_eq!(of_machines(ranks.to_vec()), 3.5);
    }
}
