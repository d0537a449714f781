//! The loss example: its value, its name in the logs, and that a model learns by it.

#[path = "../examples/custom_loss.rs"]
#[allow(dead_code, reason = "main is not called")]
mod custom_loss;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bridge_core::train::Console;
use custom_loss::{FocalLoss, train};

/// Keeps the console's output.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn run(name: &str, gamma: f64) -> (f64, String) {
    let folder = folder(name);
    let _ = std::fs::remove_dir_all(&folder);
    let overrides = [format!("logger.log_dir='{}'", folder.display()), "logger.plot=false".into()];
    let printed = Printed::default();
    let console = Console::Writer(Box::new(printed.clone()));
    let report = train(FocalLoss { gamma }, &overrides, console).unwrap();
    let loss = f64::from(report.validation.unwrap().loss().unwrap());
    let printed = printed.0.lock().unwrap().clone();
    (loss, String::from_utf8(printed).unwrap())
}

#[test]
fn a_model_learns_by_it_and_its_name_is_logged() {
    let (focal, printed) = run("custom_loss", 2.0);
    // ln 64 = 4.16 for a guess among all tokens, which the weight (1 - 1/64)^2 hardly lowers.
    assert!(focal < 4.1, "{focal}");
    assert!(printed.contains("| focal loss: ") && printed.contains("focal loss value: "), "{printed}");
    assert!(printed.contains("| cross-entropy: ") && !printed.contains("lm loss"), "{printed}");
    let metrics = std::fs::read_to_string(folder("custom_loss").join("metrics.jsonl")).unwrap();
    assert!(
        metrics.contains("\"loss\":") && !metrics.contains("lm loss") && !metrics.contains("perplexity"),
        "{metrics}"
    );
}

#[test]
fn without_weights_it_is_the_cross_entropy() {
    let (_, printed) = run("custom_loss_plain", 0.0);
    for line in printed.lines().filter(|line| line.contains("| focal loss: ")) {
        let of = |name: &str| line.split(&format!("| {name}: ")).nth(1).unwrap().split(' ').next().unwrap().to_owned();
        let [focal, plain] = [of("focal loss"), of("cross-entropy")].map(|text| text.parse::<f64>().unwrap());
        assert!((focal - plain).abs() < 1e-5 * plain, "{line}");
    }
}
