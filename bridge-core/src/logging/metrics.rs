//! Which metrics a step reports, under which names and conditions, and the sinks they fan out to.

use super::EvaluatedSplit;
use super::tensorboard::{EventFileError, EventWriter, SAMPLES_SUFFIX};

/// Whether a metric has a twin against consumed samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twin {
    /// Against this number of samples.
    Samples(u64),
    /// None.
    None,
}

/// A place where metrics go. New trackers implement this.
pub trait MetricsSink: Send {
    /// Adds a point to the curve `name` at iteration `step`.
    ///
    /// # Errors
    /// Whatever the sink reports, as a boxed error.
    fn scalar(
        &mut self,
        name: &str,
        value: f64,
        step: u64,
        twin: Twin,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

    /// Hands on everything that waits.
    ///
    /// # Errors
    /// Whatever the sink reports.
    fn flush(&mut self) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

type SinkResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

impl MetricsSink for EventWriter {
    fn scalar(&mut self, name: &str, value: f64, step: u64, twin: Twin) -> SinkResult {
        EventWriter::scalar(self, name, value, step)?;
        if let Twin::Samples(samples) = twin {
            EventWriter::scalar(self, &format!("{name}{SAMPLES_SUFFIX}"), value, samples)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> SinkResult {
        EventWriter::flush(self).map_err(|error: EventFileError| error.into())
    }
}

/// The `logger` settings that decide what is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricConditions {
    /// Iterations between reports (`tensorboard_log_interval`).
    pub interval: u64,
    /// `log_loss_scale_to_tensorboard`.
    pub loss_scale: bool,
    /// `log_world_size_to_tensorboard`.
    pub world_size: bool,
    /// `log_validation_ppl_to_tensorboard`.
    pub validation_ppl: bool,
    /// `log_timers_to_tensorboard`.
    pub timers: bool,
    /// `log_throughput_to_tensorboard`.
    pub throughput: bool,
    /// `log_memory_to_tensorboard`.
    pub memory: bool,
    /// `log_runtime_to_tensorboard`.
    pub runtime: bool,
    /// `log_l2_norm_grad_to_tensorboard`.
    pub l2_norm_grad: bool,
    /// `log_energy`.
    pub energy: bool,
}

impl Default for MetricConditions {
    fn default() -> Self {
        Self {
            interval: 1,
            loss_scale: true,
            world_size: false,
            validation_ppl: false,
            timers: false,
            throughput: false,
            memory: false,
            runtime: false,
            l2_norm_grad: false,
            energy: false,
        }
    }
}

/// What one iteration has to report. `None` and empty mean there is no such value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IterationMetrics {
    /// Iterations completed.
    pub iteration: u64,
    /// Samples trained on, over all runs.
    pub consumed_samples: u64,
    /// Samples rounded away so far.
    pub skipped_samples: u64,
    /// Learning rate.
    pub learning_rate: Option<f64>,
    /// Learning rate of embedding and output layers, if they have their own.
    pub decoupled_learning_rate: Option<f64>,
    /// Samples of the iteration.
    pub batch_size: u64,
    /// Losses by name.
    pub losses: Vec<(String, f64)>,
    /// Loss scale.
    pub loss_scale: f64,
    /// Ranks.
    pub world_size: u64,
    /// Gradient norm before clipping.
    pub grad_norm: Option<f64>,
    /// Zeros in the gradients.
    pub num_zeros: Option<u64>,
    /// Norm of the parameters.
    pub params_norm: Option<f64>,
    /// Largest attention logit.
    pub max_attention_logit: Option<f64>,
    /// Of the routers of a mixture of experts; reported under `moe/`.
    pub experts: Vec<(String, f64)>,
    /// From [`super::ThroughputWindow::report`].
    pub throughput: Vec<(String, f64)>,
    /// From [`super::report_memory`]; reported under `memory/`.
    pub memory: Vec<(String, f64)>,
    /// From [`super::RuntimeReport::metrics`].
    pub runtime: Vec<(String, f64)>,
    /// From [`super::report_l2_norm_grad`].
    pub l2_norm_grad: Vec<(String, f64)>,
}

/// What a log interval has to report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntervalMetrics {
    /// Iterations completed.
    pub iteration: u64,
    /// Samples trained on, over all runs.
    pub consumed_samples: u64,
    /// Seconds per iteration.
    pub iteration_time: f64,
    /// Model TFLOP/s over all devices.
    pub tflops: f64,
    /// Ranks, to share the TFLOP/s.
    pub world_size: u64,
    /// Energy per device.
    pub energy: Option<super::Energy>,
    /// From [`super::RankTimers::metrics`].
    pub timers: Vec<(String, f64)>,
}

/// Applies the conditions and fans out to every sink.
pub struct MetricsLogger {
    conditions: MetricConditions,
    sinks: Vec<Box<dyn MetricsSink>>,
}

impl MetricsLogger {
    /// A logger to `sinks`; with none, nothing is reported.
    pub fn new(conditions: MetricConditions, sinks: Vec<Box<dyn MetricsSink>>) -> Self {
        Self { conditions, sinks }
    }

    /// Whether [`Self::log_iteration`] reports this iteration; figures that cost something need not be computed else.
    pub fn wants(&self, iteration: u64) -> bool {
        !self.sinks.is_empty() && iteration.is_multiple_of(self.conditions.interval.max(1))
    }

    /// The conditions in force.
    pub fn conditions(&self) -> &MetricConditions {
        &self.conditions
    }

    /// Reports an iteration, if it is due.
    ///
    /// # Errors
    /// The first error of a sink.
    pub fn log_iteration(&mut self, metrics: &IterationMetrics) -> SinkResult {
        if !self.wants(metrics.iteration) {
            return Ok(());
        }
        let conditions = self.conditions.clone();
        let when = |condition: bool, value: f64| condition.then_some(value);
        let mut fan = Fan::new(self, metrics.iteration, metrics.consumed_samples);
        fan.some("learning-rate", metrics.learning_rate)?;
        if let Some(learning_rate) = metrics.decoupled_learning_rate {
            fan.without_twin("decoupled-learning-rate", learning_rate)?;
        }
        if metrics.skipped_samples > 0 {
            fan.without_twin("skipped-train-samples", metrics.skipped_samples as f64)?;
        }
        fan.some("batch-size", Some(metrics.batch_size as f64))?;
        fan.all("", &metrics.losses)?;
        fan.some("loss-scale", when(conditions.loss_scale, metrics.loss_scale))?;
        fan.some("world-size", when(conditions.world_size, metrics.world_size as f64))?;
        fan.some("grad-norm", metrics.grad_norm)?;
        fan.some("num-zeros", metrics.num_zeros.map(|num_zeros| num_zeros as f64))?;
        fan.some("params-norm", metrics.params_norm)?;
        fan.some("max-attention-logit", metrics.max_attention_logit)?;
        fan.all("moe/", &metrics.experts)?;
        for (condition, prefix, report) in [
            (conditions.throughput, "", &metrics.throughput),
            (conditions.memory, "memory/", &metrics.memory),
            (conditions.runtime, "", &metrics.runtime),
            (conditions.l2_norm_grad, "", &metrics.l2_norm_grad),
        ] {
            if condition {
                fan.all(prefix, report)?;
            }
        }
        Ok(())
    }

    /// Reports a log interval; the caller calls this every `log_interval` iterations.
    ///
    /// # Errors
    /// The first error of a sink.
    pub fn log_interval(&mut self, metrics: &IntervalMetrics) -> SinkResult {
        let conditions = self.conditions.clone();
        let mut fan = Fan::new(self, metrics.iteration, metrics.consumed_samples);
        if conditions.timers {
            fan.some("iteration-time", Some(metrics.iteration_time))?;
            fan.all("", &metrics.timers)?;
        }
        if conditions.throughput {
            fan.some("throughput/tflops", Some(metrics.tflops))?;
            fan.some("throughput/tflops/device", Some(metrics.tflops / metrics.world_size.max(1) as f64))?;
        }
        if let (true, Some(energy)) = (conditions.energy, metrics.energy) {
            fan.some("iter-energy/gpu", Some(energy.joules_per_iteration))?;
            fan.some("power/gpu", Some(energy.watts))?;
        }
        Ok(())
    }

    /// Reports the losses of an evaluation as `{name} validation` or `{name} test` and, if wanted, the same with ` ppl`.
    ///
    /// # Errors
    /// The first error of a sink.
    pub fn log_evaluation(
        &mut self,
        split: EvaluatedSplit,
        iteration: u64,
        consumed_samples: u64,
        losses: &[(String, f64)],
    ) -> SinkResult {
        let split = split.metric();
        let perplexity = self.conditions.validation_ppl;
        let mut fan = Fan::new(self, iteration, consumed_samples);
        for (name, loss) in losses {
            fan.some(&format!("{name} {split}"), Some(*loss))?;
            if perplexity {
                fan.some(&format!("{name} {split} ppl"), Some(super::perplexity(*loss)))?;
            }
        }
        Ok(())
    }

    /// Reports one metric unconditionally.
    ///
    /// # Errors
    /// The first error of a sink.
    pub fn scalar(&mut self, name: &str, value: f64, step: u64, twin: Twin) -> SinkResult {
        self.sinks.iter_mut().try_for_each(|sink| sink.scalar(name, value, step, twin))
    }

    /// Flushes every sink.
    ///
    /// # Errors
    /// The first error of a sink.
    pub fn flush(&mut self) -> SinkResult {
        self.sinks.iter_mut().try_for_each(|sink| sink.flush())
    }
}

/// Reports at one point in time.
struct Fan<'a> {
    logger: &'a mut MetricsLogger,
    step: u64,
    samples: u64,
}

impl<'a> Fan<'a> {
    fn new(logger: &'a mut MetricsLogger, step: u64, samples: u64) -> Self {
        Self { logger, step, samples }
    }

    fn some(&mut self, name: &str, value: Option<f64>) -> SinkResult {
        match value {
            Some(value) => self.logger.scalar(name, value, self.step, Twin::Samples(self.samples)),
            None => Ok(()),
        }
    }

    fn without_twin(&mut self, name: &str, value: f64) -> SinkResult {
        self.logger.scalar(name, value, self.step, Twin::None)
    }

    fn all(&mut self, prefix: &str, metrics: &[(String, f64)]) -> SinkResult {
        metrics.iter().try_for_each(|(name, value)| self.some(&format!("{prefix}{name}"), Some(*value)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::Energy;
    use super::super::tensorboard::{EventKind, ResumePoint, read_events};
    use super::*;

    type Points = Arc<Mutex<Vec<(String, f64, u64, Twin)>>>;

    struct Remember(Points);

    impl MetricsSink for Remember {
        fn scalar(&mut self, name: &str, value: f64, step: u64, twin: Twin) -> SinkResult {
            self.0.lock().unwrap().push((name.to_owned(), value, step, twin));
            Ok(())
        }

        fn flush(&mut self) -> SinkResult {
            Err("no flush".into())
        }
    }

    fn logger(conditions: MetricConditions) -> (MetricsLogger, Points) {
        let points = Points::default();
        (MetricsLogger::new(conditions, vec![Box::new(Remember(points.clone()))]), points)
    }

    fn names(points: &Points) -> Vec<String> {
        points.lock().unwrap().drain(..).map(|point| point.0).collect()
    }

    fn metrics(iteration: u64) -> IterationMetrics {
        let named = |name: &str| vec![(name.to_owned(), 1.0)];
        IterationMetrics {
            iteration,
            consumed_samples: iteration * 8,
            learning_rate: Some(1e-3),
            batch_size: 8,
            losses: named("lm loss"),
            world_size: 4,
            throughput: named("throughput/tokens_per_sec"),
            memory: named("mem-allocated-gigabytes"),
            runtime: named("time/total"),
            l2_norm_grad: named("l2_norm/grad/global"),
            ..IterationMetrics::default()
        }
    }

    #[test]
    fn defaults_report_little() {
        let (mut logger, points) = logger(MetricConditions { interval: 2, ..MetricConditions::default() });
        logger.log_iteration(&metrics(3)).unwrap();
        assert_eq!(names(&points), Vec::<String>::new());
        logger.log_iteration(&metrics(4)).unwrap();
        assert_eq!(points.lock().unwrap()[0], ("learning-rate".into(), 1e-3, 4, Twin::Samples(32)));
        assert_eq!(names(&points), ["learning-rate", "batch-size", "lm loss", "loss-scale"]);
    }

    #[test]
    fn each_condition_adds_its_metrics() {
        let all = MetricConditions {
            interval: 1,
            loss_scale: false,
            world_size: true,
            validation_ppl: true,
            timers: true,
            throughput: true,
            memory: true,
            runtime: true,
            l2_norm_grad: true,
            energy: true,
        };
        let (mut logger, points) = logger(all);
        let full = IterationMetrics {
            decoupled_learning_rate: Some(1e-4),
            skipped_samples: 2,
            grad_norm: Some(1.0),
            num_zeros: Some(3),
            params_norm: Some(9.0),
            max_attention_logit: Some(4.0),
            ..metrics(1)
        };
        logger.log_iteration(&full).unwrap();
        {
            let points = points.lock().unwrap();
            let twin_of = |name: &str| points.iter().find(|point| point.0 == name).unwrap().3;
            assert_eq!(twin_of("decoupled-learning-rate"), Twin::None);
            assert_eq!(twin_of("skipped-train-samples"), Twin::None);
            assert_eq!(twin_of("grad-norm"), Twin::Samples(8));
        }
        assert_eq!(
            names(&points).join("|"),
            "learning-rate|decoupled-learning-rate|skipped-train-samples|batch-size|lm loss|world-size|grad-norm|num-zeros|\
             params-norm|max-attention-logit|throughput/tokens_per_sec|memory/mem-allocated-gigabytes|time/total|\
             l2_norm/grad/global"
        );
        let interval = IntervalMetrics {
            tflops: 8.0,
            world_size: 4,
            energy: Some(Energy { joules_per_iteration: 1.0, watts: 2.0 }),
            timers: vec![("optimizer-time".into(), 0.1)],
            ..IntervalMetrics::default()
        };
        logger.log_interval(&interval).unwrap();
        assert_eq!(points.lock().unwrap()[3].1, 2.0, "TFLOP/s per device");
        assert_eq!(
            names(&points).join("|"),
            "iteration-time|optimizer-time|throughput/tflops|throughput/tflops/device|iter-energy/gpu|power/gpu"
        );
        logger.log_evaluation(EvaluatedSplit::Valid, 1, 8, &[("lm loss".into(), 30.0)]).unwrap();
        assert_eq!(points.lock().unwrap()[1].1, 20f64.exp(), "perplexities are capped");
        assert_eq!(names(&points), ["lm loss validation", "lm loss validation ppl"]);
        logger.log_evaluation(EvaluatedSplit::Test, 1, 8, &[("lm loss".into(), 3.0)]).unwrap();
        assert_eq!(names(&points), ["lm loss test", "lm loss test ppl"]);
        assert!(logger.flush().is_err(), "a sink's error is passed on");
    }

    #[test]
    fn without_sinks_nothing_is_wanted() {
        assert!(!MetricsLogger::new(MetricConditions::default(), Vec::new()).wants(1));
    }

    #[test]
    fn tensorboard_gets_twins() {
        let folder = tempfile::tempdir().unwrap();
        let writer = EventWriter::open(folder.path(), ResumePoint::default(), 10).unwrap();
        let path = writer.path().to_owned();
        let mut logger = MetricsLogger::new(MetricConditions::default(), vec![Box::new(writer)]);
        logger.scalar("a", 1.0, 2, Twin::Samples(16)).unwrap();
        logger.scalar("b", 1.0, 2, Twin::None).unwrap();
        logger.flush().unwrap();
        let points: Vec<_> = read_events(&path)
            .unwrap()
            .into_iter()
            .filter_map(|event| match event.kind {
                EventKind::Scalar { tag, .. } => Some((tag, event.step)),
                _ => None,
            })
            .collect();
        assert_eq!(points, [("a".into(), 2), ("a vs samples".into(), 16), ("b".into(), 2)]);
    }
}
