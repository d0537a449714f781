//! `bridge plan` from outside. `UPDATE_FIXTURES=1` writes the expected output anew.

use std::fs;
use std::process::{Command, Output};

use bridge_tests::{program, root};
use serde_json::Value;

fn bridge(arguments: &[&str]) -> Output {
    Command::new(program()).arg("plan").args(arguments).current_dir(root()).output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = bridge(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const SPLIT: [&str; 6] = [
    "recipes/tiny.toml",
    "model.tensor_model_parallel_size=2",
    "model.sequence_parallel=true",
    "model.pipeline_model_parallel_size=2",
    "--world-size",
    "8",
];

#[test]
fn json_is_what_it_was() {
    let found: Value = serde_json::from_str(&text(&[&SPLIT[..], &["--json"]].concat())).unwrap();
    let found = format!("{found:#}\n");
    let path = root().join("tests/fixtures/plan-tiny.json");
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    assert_eq!(found, expected, "if that is meant, write it with UPDATE_FIXTURES=1");
}

#[test]
fn the_world_is_as_small_as_the_sizes_allow() {
    let ranks = |more: &[&str]| {
        let plan: Value = serde_json::from_str(&text(&[&["recipes/tiny.toml", "--json"], more].concat())).unwrap();
        plan["layout"]["world_size"].as_u64().unwrap()
    };
    assert_eq!(ranks(&[]), 1);
    assert_eq!(ranks(&["model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2"]), 4);
    let experts =
        ["model.num_moe_experts=4", "model.expert_model_parallel_size=4", "model.tensor_model_parallel_size=2"];
    let whole = ["model.expert_tensor_parallel_size=1", "model.sequence_parallel=true", "train.global_batch_size=8"];
    let whole = [&experts[..], &whole[..]].concat();
    assert_eq!(ranks(&whole), 4);
}

#[test]
fn people_get_tables() {
    let found = text(&SPLIT);
    assert!(
        found.starts_with("tiny on 8 ranks: tensor 2 x context 1 x data 2 x pipeline 2; sequence parallel"),
        "{found}"
    );
    for expected in ["parameters  164.16 K", "1F1B, bubble 50.0%", "a rank of each pipeline stage", "reduce_scatter"] {
        assert!(found.contains(expected), "{expected} in {found}");
    }
    assert!(!found.contains("tokens per second"), "no rates were given: {found}");
}

#[test]
fn layouts_stand_side_by_side() {
    let rates = ["--device-tflops", "0.1", "--link-gbps", "10"];
    let layouts = ["--layout", "tp=2,world=4", "--layout", "pp=2,world=4"];
    let found = text(&[&["recipes/tiny.toml"], &layouts[..], &rates].concat());
    let title = found.lines().next().unwrap();
    assert_eq!(title.split_whitespace().collect::<Vec<_>>(), ["tp=2,world=4", "pp=2,world=4"]);
    for row in ["memory", "communication", "bubble", "  tensor parallel", "step", "MFU"] {
        assert!(found.lines().any(|line| line.starts_with(row)), "{row} in {found}");
    }
    let json = text(&[&["recipes/tiny.toml", "--json"], &layouts[..]].concat());
    let plans: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(plans[1]["name"], "tiny (pp=2,world=4)");
    assert_eq!(plans[1]["layout"]["pipeline"], 2);
}

#[test]
fn states_in_host_memory_are_told_apart() {
    let gpu = ["recipes/tiny.toml", "--gpu", "h100-80gb"];
    let moved = ["optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_fraction=1.0"];
    let found = text(&[&gpu[..], &moved].concat());
    assert!(found.contains("a rank of stage 0 has 1.25 MiB of optimizer state in host memory besides"), "{found}");
    assert!(found.contains("; of the host's memory 1.25 MiB for optimizer states and activations"), "{found}");
    let device = |more: &[&str]| {
        let plan: Value = serde_json::from_str(&text(&[&gpu[..], &["--json"], more].concat())).unwrap();
        ["needed_bytes", "host_bytes"].map(|key| plan["device"][key].as_u64().unwrap())
    };
    let (states, [needed, none]) = (8 * 164_160, device(&[]));
    assert_eq!((none, device(&moved)), (0, [needed - states, states]));
    assert!(!text(&gpu).contains("host"));
    let layouts = [&gpu[..], &["--layout", "tp=2,world=4"], &moved].concat();
    assert!(text(&layouts).lines().any(|line| line.starts_with("host memory")));
}

/// Attention on tensor cores has no score matrix. For an unnamed GPU the plan does not know which
/// kernel runs.
#[test]
fn tensor_cores_of_a_named_gpu_need_no_scores() {
    let long = ["recipes/tiny.toml", "mixed_precision=bf16_mixed", "model.kv_channels=16", "model.seq_length=256"];
    let scores = |device: &[&str]| {
        let plan: Value = serde_json::from_str(&text(&[&long[..], &["--json"], device].concat())).unwrap();
        plan["stages"][0]["memory"]["attention"].as_u64().unwrap()
    };
    let by_products = 2 * 2 * 8 * 256 * 256 * (4 + 2) + 2 * 4 * 256 * 2 * 16 * 4;
    assert_eq!(scores(&["--gpu", "h100-80gb"]), 0);
    assert_eq!([scores(&["--gpu", "mi300x"]), scores(&["device=cuda"])], [by_products; 2]);
}

/// Published layouts are in the list, or the output has the reason for their exclusion.
#[test]
fn searches_find_layouts_that_fit() {
    for (preset, ranks, published) in [
        ("llama3-8b", "8", "tp=1,cp=2"),
        ("llama3-70b", "64", "tp=4,cp=2,pp=4,vp=5"),
        ("llama3-405b", "16384", "tp=8,pp=16,vp=8"),
    ] {
        let search = ["--preset", preset, "--world-size", ranks, "--gpu", "h100-80gb", "--search", "--json"];
        let found = text(&[&search[..], &["--layout", published]].concat());
        let records: Vec<Value> = found.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |kind: &str| records.iter().filter(|record| record["kind"] == kind).collect::<Vec<_>>();
        let layouts = of("layout");
        assert_eq!(layouts.len(), 10, "{preset}");
        let times: Vec<f64> =
            layouts.iter().map(|layout| layout["plan"]["estimate"]["step_seconds"].as_f64().unwrap()).collect();
        assert!(times.is_sorted(), "{preset}: {times:?}");
        for layout in layouts.iter().take(2) {
            // The search's result for a layout equals a plan with its settings.
            let settings: Vec<&str> =
                layout["settings"].as_array().unwrap().iter().map(|setting| setting.as_str().unwrap()).collect();
            let plan = ["--preset", preset, "--world-size", ranks, "--gpu", "h100-80gb", "--json"];
            let plan: Value = serde_json::from_str(&text(&[&plan[..], &settings].concat())).unwrap();
            assert_eq!(plan["device"]["fits"], true, "{preset}: {settings:?}");
            assert_eq!(plan["stages"], layout["plan"]["stages"], "{preset}: {settings:?}");
        }
        for named in of("named") {
            let standing = &named["standing"];
            let is_placed = standing["fits"] == true && standing["place"].as_u64().is_some();
            let says_why = standing["fits"] == false && standing["with_recompute"]["place"].as_u64().is_some();
            assert!(is_placed || says_why, "{preset}: {named}");
        }
    }
}

/// Llama 3 405B was trained at 38% to 43% (arXiv:2407.21783, table 4).
#[test]
fn estimates_are_near_published_ones() {
    let utilization = |more: &[&str]| {
        let arguments = [&["--preset", "llama3-405b", "--gpu", "h100-80gb", "--json"], more].concat();
        let plan: Value = serde_json::from_str(&text(&arguments)).unwrap();
        100.0 * plan["estimate"]["model_flops_utilization"].as_f64().unwrap()
    };
    let long = ["model.context_parallel_size=16", "model.seq_length=131072", "train.global_batch_size=128"];
    for (found, published) in [
        (utilization(&["--world-size", "8192"]), 43.0),
        (utilization(&["--world-size", "16384"]), 41.0),
        (utilization(&[&["--world-size", "16384"], &long[..]].concat()), 38.0),
    ] {
        assert!((found - published).abs() < 5.0, "{found} and {published}");
    }
}

#[test]
fn plans_say_whether_they_fit() {
    let of = |arguments: &[&str]| text(&[&["--preset", "llama3-8b", "--world-size", "8"], arguments].concat());
    assert!(of(&["--gpu", "h200"]).contains("fits on h200: a rank needs"));
    assert!(of(&["--gpu", "4090"]).contains("does not fit on 4090: a rank of stage 0 needs"));
    assert!(of(&["--gpu-memory", "200"]).contains("fits on the device"));
    let layouts = of(&["--gpu", "h100-80gb", "--layout", "tp=2,sp=true", "--layout", "tp=1,cp=1"]);
    let fits = layouts.lines().find(|line| line.starts_with("fits")).unwrap();
    assert_eq!(fits.split_whitespace().collect::<Vec<_>>(), ["fits", "yes", "no"], "{layouts}");
    // The columns of a stage's memory add up to the last one.
    let table = of(&[]);
    let row = table.lines().skip_while(|line| !line.starts_with("stage")).nth(1).unwrap();
    let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).skip(3).collect();
    let hundredths = |cell: &str| cell.strip_suffix(" GiB").unwrap().replace('.', "").parse::<u64>().unwrap();
    let (total, parts) = cells.split_last().unwrap();
    assert_eq!(parts.iter().map(|part| hundredths(part)).sum::<u64>(), hundredths(total), "{row}");
}

/// Each named change was tried: with it the plan fits.
#[test]
fn a_plan_that_does_not_fit_names_what_would() {
    for (more, expected) in [
        (
            &["--world-size", "8", "--gpu", "h200", "model.context_parallel_size=1", "train.micro_batch_size=4"][..],
            "train.micro_batch_size=1",
        ),
        (&["--world-size", "8", "--gpu", "4090"], "model.tensor_model_parallel_size"),
        (&["--world-size", "1", "--gpu", "l40s", "model.context_parallel_size=1"], "ranks"),
    ] {
        let arguments = [&["--preset", "llama3-8b"], more].concat();
        let said = text(&arguments);
        let listed = said.split("it would fit with\n").nth(1).unwrap_or_else(|| panic!("{said}"));
        assert!(listed.contains(expected), "{expected} in {said}");
        let plan: Value = serde_json::from_str(&text(&[&arguments[..], &["--json"]].concat())).unwrap();
        let remedies = plan["device"]["would_fit"].as_array().unwrap();
        assert_eq!(remedies.len(), listed.lines().count());
        for remedy in remedies {
            let settings: Vec<&str> =
                remedy["settings"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
            let ranks = remedy["world_size"].to_string();
            let others = arguments
                .iter()
                .copied()
                .filter(|argument| !argument.starts_with("--world") && *argument != "8" && *argument != "1");
            let again: Vec<&str> = others.chain(settings).chain(["--world-size", &ranks, "--json"]).collect();
            let again: Value = serde_json::from_str(&text(&again)).unwrap();
            assert_eq!(again["device"]["fits"], true, "{remedy}");
            assert_eq!(again["device"]["needed_bytes"], remedy["needed_bytes"]);
        }
    }
    assert!(!text(&["recipes/tiny.toml", "--gpu", "h100-80gb"]).contains("it would fit"));
}

#[test]
fn a_search_that_finds_nothing_says_why() {
    let search = ["--gpu", "h100-80gb", "--search", "--world-size"];
    let said =
        |arguments: &[&str]| text(&[arguments, &search[..]].concat().into_iter().chain(["8"]).collect::<Vec<_>>());
    let small = said(&["--preset", "llama3-405b"]);
    assert!(small.contains("none fits: the smallest is tp=") && small.contains("a rank of stage"), "{small}");
    let odd = said(&[
        "recipes/tiny.toml",
        "model.num_layers=3",
        "model.num_attention_heads=1",
        "model.num_query_groups=1",
        "train.global_batch_size=9",
    ]);
    assert!(odd.contains("train.global_batch_size = 9 is a multiple of none") && !odd.contains("vocabulary"), "{odd}");
}

/// A setting that two sections have is set in one of them.
#[test]
fn searches_name_each_setting_once() {
    let search = ["--preset", "llama3-8b", "--world-size", "8", "--gpu", "h200", "--search", "--json"];
    for record in text(&search).lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let settings: Vec<&str> =
            record["settings"].as_array().into_iter().flatten().map(|s| s.as_str().unwrap()).collect();
        for same in bridge_core::config::SAME_SETTINGS {
            let named = |key: &&&str| settings.iter().any(|setting| setting.starts_with(&format!("{key}=")));
            assert!(same.iter().filter(named).count() <= 1, "{settings:?}");
        }
    }
}

#[test]
fn mistakes_are_bad_input() {
    let failed = |arguments: &[&str]| {
        let output = bridge(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(failed(&["recipes/tiny.toml", "--layout", "tp=3,world=4"]).contains("layout tp=3,world=4"));
    assert!(failed(&["recipes/tiny.toml", "--layout", "dp=3"]).contains("unknown size `dp`"));
    assert!(failed(&["recipes/tiny.toml", "--world-size", "0"]).contains("above 0"));
    assert!(failed(&["recipes/tiny.toml", "--device-tflops", "10"]).contains("--link-gbps"));
    assert!(failed(&["recipes/tiny.toml", "--gpu", "h1000"]).contains("--gpu: expected one of h100-80gb"));
    assert!(failed(&["recipes/tiny.toml", "--search", "--world-size", "8"]).contains("--search: give --gpu"));
    assert!(failed(&["--preset", "llama4"]).contains("llama3-405b"));
    assert!(failed(&["recipes/gpt2-124m.toml"]).contains("model.vocab_size: must be given for a plan"));
}

/// Each `console` block of docs/parallelism.md begins with a command and goes on with its output.
#[test]
fn the_documentation_shows_what_is_printed() {
    let path = root().join("docs/parallelism.md");
    let document = fs::read_to_string(&path).unwrap();
    let mut written = String::new();
    let mut commands = 0;
    for (index, part) in document.split("```").enumerate() {
        let separator = if index == 0 { "" } else { "```" };
        match part.strip_prefix("console\n$ bridge plan ") {
            Some(block) => {
                let command = block.lines().next().unwrap();
                let output = text(&command.split_whitespace().collect::<Vec<_>>());
                written += &format!("{separator}console\n$ bridge plan {command}\n{output}");
                commands += 1;
            }
            None => written += &format!("{separator}{part}"),
        }
    }
    assert!(commands >= 2, "found {commands} commands");
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        fs::write(&path, &written).unwrap();
    } else {
        assert!(document == written, "docs/parallelism.md is stale; write it with UPDATE_FIXTURES=1:\n{written}");
    }
}
