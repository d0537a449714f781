//! Saving in the background.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bridge_dist::comm::Group;
use bridge_dist::comm::single::SingleCommunicator;

use super::*;

fn saver(root: &Path) -> AsyncSaver {
    let alone: Group = Arc::new(SingleCommunicator::new("world"));
    AsyncSaver::new(ShardedWriter::open(root, SaveOptions::default(), alone).unwrap()).unwrap()
}

/// A save that waits for leave to begin.
fn gated(saver: &mut AsyncSaver, step: u64) -> Sender<()> {
    let (open, gate): (Sender<()>, Receiver<()>) = channel();
    saver
        .submit_task(step, move |writer| {
            gate.recv().unwrap();
            writer.save(&snapshot(step))
        })
        .unwrap();
    open
}

fn latest(root: &Path) -> u64 {
    found(resolve(root).unwrap()).checkpoint.iteration()
}

#[test]
fn training_goes_on_while_a_checkpoint_is_written() {
    let dir = root_with(&[1]);
    let mut saver = saver(dir.path());
    assert!(saver.poll().unwrap().is_none() && saver.finish().unwrap().is_none());
    let open = gated(&mut saver, 2);
    assert!(saver.poll().unwrap().is_none());
    assert_eq!(latest(dir.path()), 1);
    open.send(()).unwrap();
    assert_eq!(saver.finish().unwrap().unwrap().iteration, 2);
    assert_eq!(latest(dir.path()), 2);
}

#[test]
fn a_second_save_waits_for_the_first_and_reports_it() {
    let dir = root_with(&[]);
    let mut saver = saver(dir.path());
    assert!(saver.submit(snapshot(1)).unwrap().is_none());
    assert_eq!(saver.submit(snapshot(2)).unwrap().unwrap().iteration, 1);
    while saver.poll().unwrap().is_none_or(|report| report.iteration != 2) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(latest(dir.path()), 2);
}

#[test]
fn dropping_waits() {
    let dir = root_with(&[]);
    let mut saver = saver(dir.path());
    let open = gated(&mut saver, 1);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        open.send(()).unwrap();
    });
    drop(saver);
    assert_eq!(latest(dir.path()), 1);
    opener.join().unwrap();
}

#[test]
fn errors_of_the_background_surface_at_the_next_call() {
    let dir = root_with(&[1]);
    let mut saver = saver(dir.path());
    let mut bad = snapshot(2);
    bad.run.files.insert("../escape".into(), Vec::new().into());
    saver.submit(bad.clone()).unwrap();
    assert!(saver.finish().unwrap_err().to_string().contains("../escape"));
    saver.submit(bad).unwrap();
    assert!(saver.submit(snapshot(3)).unwrap_err().to_string().contains("../escape"));
    assert_eq!(latest(dir.path()), 1);
    // The saver goes on after errors and panics.
    saver.submit_task(4, |_| panic!("broken in {}", "many ways")).unwrap();
    let error = saver.finish().unwrap_err();
    assert!(
        matches!(&error, CheckpointError::SaverPanicked { iteration: 4, message } if message == "broken in many ways")
    );
    saver.submit(snapshot(5)).unwrap();
    assert!(saver.finish().unwrap().is_some());
    assert_eq!(latest(dir.path()), 5);
}
