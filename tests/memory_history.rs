//! The history of the allocator (`profiling.record_memory_history`): who holds memory when most is
//! in use, and where it runs out.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use bridge_tests::{bridge, losses, program, recipe, run_in};

/// Layers whose activations and weights are large blocks.
const WIDE: [&str; 7] = [
    "model.hidden_size=128",
    "model.ffn_hidden_size=384",
    "model.seq_length=128",
    "train.train_iters=6",
    "train.num_threads=2",
    "profiling.profile_step_start=2",
    "profiling.profile_step_end=4",
];
const RECORDED: &str = "profiling.record_memory_history=true";

/// Bytes, blocks and owner of the lines of a table's first list.
fn owners(folder: &Path, file: &str) -> Vec<(u64, u64, String)> {
    let text = fs::read_to_string(folder.join("runs/tiny/trace").join(file)).expect("a table");
    let lines = text.lines().skip_while(|line| *line != "By owner:").skip(1).take_while(|line| !line.is_empty());
    let number = |word: Option<&str>| word.unwrap().parse::<u64>().unwrap();
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let bytes = number(words.next());
        let blocks = number(words.nth(1));
        (bytes, blocks, words.skip(1).collect::<Vec<_>>().join(" "))
    };
    lines.map(row).collect()
}

#[test]
fn parameters_states_and_activations_have_owners() {
    let folder = tempfile::tempdir().unwrap();
    run_in(folder.path(), &[&WIDE[..], &[RECORDED]].concat());
    let table = owners(folder.path(), "snapshot_0.txt");
    let bytes = |name: &str| table.iter().find(|(.., owner)| owner == name).map(|(bytes, ..)| *bytes);
    // Gate and up projection of a layer, 2 * 384 * 128 floats, and the optimizer's two moments of
    // it.
    let weight = 2 * 384 * 128 * 4;
    let fc1 = "decoder.layers.1.mlp.linear_fc1.weight";
    assert_eq!(bytes(&format!("parameter {fc1}")), Some(weight), "{table:?}");
    for state in ["exp_avg", "exp_avg_sq"] {
        assert_eq!(bytes(&format!("optimizer state {state}.{fc1}")), Some(weight), "{table:?}");
    }
    for what in ["attention-forward of layer", "mlp-forward of layer"] {
        assert!(table.iter().any(|(.., owner)| owner.starts_with(what)), "{what} in {table:?}");
    }
    let text = fs::read_to_string(folder.path().join("runs/tiny/trace/snapshot_0.txt")).unwrap();
    let peak: u64 = text.split(": ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(table.iter().map(|(bytes, ..)| bytes).sum::<u64>(), peak);
    assert!(table.is_sorted_by(|a, b| a.0 >= b.0));
    // Blocks without an owner are a small part.
    let nameless: u64 = table.iter().filter(|(.., owner)| owner == "other threads").map(|(bytes, ..)| bytes).sum();
    assert!(nameless * 5 < peak, "{table:?}");
    let pickle = fs::read(folder.path().join("runs/tiny/trace/snapshot_0.pickle")).unwrap();
    assert_eq!((&pickle[..2], pickle.last()), (&[0x80, 2][..], Some(&b'.')));
    assert!(pickle.windows(fc1.len()).any(|part| part == fc1.as_bytes()));
}

#[test]
fn a_history_changes_no_loss_and_each_rank_has_its_own() {
    let (plain, recorded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let layout = ["--ranks", "2", "model.pipeline_model_parallel_size=2", "train.num_threads=1"];
    run_in(plain.path(), &[&WIDE[..5], &layout].concat());
    run_in(recorded.path(), &[&WIDE[..], &layout, &[RECORDED]].concat());
    assert_eq!(losses(plain.path()), losses(recorded.path()));
    for (rank, own, others) in [(0, "layers.0.", "layers.1."), (1, "layers.1.", "layers.0.")] {
        let table = owners(recorded.path(), &format!("snapshot_{rank}.txt"));
        let has = |layer: &str| table.iter().any(|(.., owner)| owner.starts_with("parameter") && owner.contains(layer));
        assert!(has(own) && !has(others), "rank {rank}: {table:?}");
    }
    let one = tempfile::tempdir().unwrap();
    run_in(one.path(), &[&WIDE[..], &layout, &[RECORDED, "profiling.profile_ranks=[1]"]].concat());
    let files = fs::read_dir(one.path().join("runs/tiny/trace")).unwrap();
    let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["snapshot_1.pickle", "snapshot_1.txt"]);
}

/// Trains with batches that need more memory than the process may have.
fn starved(folder: &Path, arguments: &[&str]) -> Output {
    let large = [
        "model.hidden_size=512",
        "model.ffn_hidden_size=4096",
        "model.seq_length=1024",
        "train.micro_batch_size=32",
        "train.global_batch_size=32",
        "train.check_memory=false",
        "train.train_iters=2",
        "profiling.profile_step_start=0",
        "profiling.profile_step_end=1",
    ];
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v 2000000; exec \"$@\"", "sh"]).arg(program()).arg("train").arg(recipe());
    shell.args(large).args(arguments).current_dir(folder).output().unwrap()
}

#[test]
fn where_memory_runs_out_its_owners_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let output = starved(folder.path(), &[RECORDED]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    let report = fs::read_to_string(folder.path().join("runs/tiny/trace/snapshot_oom_rank-0.txt")).expect("a report");
    assert!(said.contains(&report), "{said}");
    assert!(report.starts_with("out of memory: ") && report.contains(" bytes cannot be had; "), "{report}");
    for owner in ["-forward of layer 0", "parameter "] {
        assert!(report.contains(owner), "{owner} in {report}");
    }
}

#[test]
fn without_a_history_the_sum_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut output = starved(folder.path(), &["profiling.use_pytorch_profiler=true"]);
    let said = String::from_utf8(std::mem::take(&mut output.stderr)).unwrap();
    assert!(!output.status.success() && said.contains("profiling.record_memory_history = true"), "{said}");
    let refused = bridge(folder.path(), &[RECORDED, "device=cuda"]);
    assert_eq!(refused.status.code(), Some(2), "a GPU's allocator keeps none");
}
