//! The energy of all machines of a run (`logger.log_energy`), in each log interval.

use std::collections::BTreeMap;

use crate::logging::{EnergyCounters, Figure};
use crate::train::report::{StepReport, is_reported_every};
use crate::train::subsystem::{RunContext, Subsystem};
use crate::train::{TrainError, ranks};

pub(super) struct Energy {
    /// The machine of this rank: one rank of each machine is counted.
    node: String,
    counters: Option<EnergyCounters>,
    /// Since the last report.
    joules: f64,
    seconds: f64,
    iterations: u64,
}

impl Energy {
    pub fn new(node: &str) -> Self {
        Self { node: node.to_owned(), counters: EnergyCounters::open(), joules: 0.0, seconds: 0.0, iterations: 0 }
    }
}

impl Subsystem for Energy {
    fn name(&self) -> &str {
        "energy"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), TrainError> {
        let readable = ranks::gather(run.groups.world(), &(self.node.clone(), self.counters.is_some()))?;
        if let Some((node, _)) = readable.iter().find(|(_, is_readable)| !is_readable) {
            let message = format!(
                "{node} shows no energy counters that this process may read; expected \
                 /sys/class/powercap/intel-rapl:0/energy_uj, which Linux lets root read (chmod a+r opens it to all)"
            );
            return Err(TrainError::Sink { key: "logger.log_energy", message });
        }
        Ok(())
    }

    fn before_step(&mut self, _run: &mut RunContext) -> Result<(), TrainError> {
        // What was used between steps belongs to none.
        self.counters.as_mut().map(EnergyCounters::joules);
        Ok(())
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), TrainError> {
        self.joules += self.counters.as_mut().map_or(0.0, EnergyCounters::joules);
        self.seconds += step.seconds;
        self.iterations += 1;
        if !is_reported_every(&run.state.config, run.state.config.logger.log_interval, step.iteration) {
            return Ok(());
        }
        let all = ranks::gather(run.groups.world(), &(self.node.clone(), self.joules))?;
        let joules = of_machines(all) / run.groups.world().size() as f64;
        step.figures.extend(figures(joules / self.iterations as f64, joules / self.seconds));
        (self.joules, self.seconds, self.iterations) = (0.0, 0.0, 0);
        Ok(())
    }
}

/// The joules of all machines, each counted by its first rank.
fn of_machines(ranks: Vec<(String, f64)>) -> f64 {
    let mut machines: BTreeMap<String, f64> = BTreeMap::new();
    for (node, joules) in ranks {
        machines.entry(node).or_insert(joules);
    }
    machines.into_values().sum()
}

/// Energy of a step and power, of one rank.
fn figures(joules: f64, watts: f64) -> [Figure; 2] {
    let energy =
        Figure::new("energy_per_iteration", "joules", "Energy of a step, of the machine divided by its ranks", joules);
    let power = Figure::new("power", "watts", "Power in steps, of the machine divided by its ranks", watts);
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
