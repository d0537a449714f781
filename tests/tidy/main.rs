//! House rules, held by reading sources and manifests: who may know whom, sizes, circles of files.
//!
//! Exceptions are listed beside each rule with their numbers. A number that grows fails, and one
//! that shrinks fails too: the list then takes the smaller one.

mod imports;
mod language;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use bridge_tests::root;
use imports::Crate;
use source::{Source, packages, sources};

/// Most lines of a file.
const FILE_LINES: usize = 800;
/// Most lines of a function, from its name to its last brace.
const FUNCTION_LINES: usize = 150;
/// Files that use each other in a ring.
const CIRCLE: usize = 3;

/// Packages and tensor libraries that a package may depend on.
const PACKAGES: [(&str, &[&str]); 18] = [
    (
        "bridge-cli",
        &[
            "bridge-core",
            "bridge-data",
            "bridge-dist",
            "bridge-kernels",
            "bridge-models",
            "bridge-objects",
            "bridge-ui",
            "burn",
            "burn-train",
        ],
    ),
    (
        "bridge-core",
        &[
            "bridge-checkpoint",
            "bridge-config",
            "bridge-cuda",
            "bridge-data",
            "bridge-dist",
            "bridge-kernels",
            "bridge-regions",
            "bridge-telemetry",
            "burn",
        ],
    ),
    ("bridge-core/checkpoint", &["bridge-data", "bridge-dist"]),
    ("bridge-core/config", &["bridge-data", "bridge-dist"]),
    ("bridge-core/telemetry", &["bridge-config", "bridge-data", "bridge-memory"]),
    ("bridge-cuda", &["bridge-dist", "bridge-kernels", "bridge-regions", "burn"]),
    ("bridge-data", &[]),
    ("bridge-dist", &[]),
    ("bridge-dist/regions", &["bridge-dist", "bridge-kernels", "burn"]),
    ("bridge-kernels", &["bridge-memory", "burn", "cubecl-server"]),
    ("bridge-kernels/memory", &[]),
    ("bridge-models", &["bridge-core", "bridge-data", "bridge-dist", "bridge-kernels", "bridge-regions", "burn"]),
    ("bridge-objects", &["bridge-core"]),
    ("bridge-ui", &["bridge-checkpoint", "bridge-data", "bridge-telemetry"]),
    ("examples", &["bridge-core", "bridge-data", "bridge-kernels", "bridge-models", "bridge-objects", "burn"]),
    ("fuzz", &["bridge-core", "bridge-data", "bridge-models"]),
    ("tests", &["bridge-core", "bridge-data", "bridge-dist", "bridge-models", "bridge-objects", "burn"]),
    ("xtask", &[]),
];

/// Files that are longer, with their lines.
const LONG_FILES: [(&str, usize); 0] = [];

/// Functions that are longer, with their lines.
const LONG_FUNCTIONS: [(&str, usize); 0] = [];

/// Circles that are larger, by their package and first file, with the number of their files.
const LARGE_CIRCLES: [(&str, usize); 0] = [];

/// Modules of bridge-core that each module may use. `train` may use all, and no module may use it.
const MODULES: [(&str, &[&str]); 6] = [
    ("model", &[]),
    ("optim", &["model"]),
    ("plan", &["model", "optim"]),
    ("resilience", &[]),
    ("testing", &["model"]),
    ("train", &["model", "optim", "plan", "resilience"]),
];

/// Rooms of `train`: each knows those below it, and those below `run` have errors of their own.
const ROOMS: [&str; 11] =
    ["tools", "run", "step", "resume", "subsystems", "reporting", "objectives", "engine", "data", "stop", "ranks"];

/// Uses of a room above, by the files that use and are used.
const USES_OF_ROOMS_ABOVE: usize = 8;

/// Modules of bridge-core that know tensors.
const TENSORS: [&str; 4] = ["model", "optim", "testing", "train"];

/// Files of other modules that may use tensors: a plan measures memory and traffic of kernels.
const TENSOR_FILES: [&str; 2] = ["bridge-core/src/plan/memory.rs", "bridge-core/src/plan/traffic/model.rs"];

/// Files of names that Megatron Bridge's configurations have.
const UPSTREAMS_NAMES: [&str; 8] = [
    "bridge-core/config/src/choice/training.rs",
    "bridge-core/config/src/finalize/presets.rs",
    "bridge-core/config/src/finalize/tokenizer.rs",
    "bridge-core/config/src/kinds.rs",
    "bridge-core/config/src/sections/scheduler.rs",
    "bridge-core/config/src/upstream/classes.rs",
    "bridge-core/config/src/upstream/models.rs",
    "bridge-core/src/train/data/tokenizers.rs",
];

/// A family whose name is also a kind of model, because it is the only one of that kind.
const KINDS_NAME: &str = "t5";

/// Fails where something is found that is not listed, has a greater number than is listed, or is
/// listed and not found.
fn assert_listed(rule: &str, found: &BTreeMap<String, usize>, listed: &[(&str, usize)]) {
    let number = |name: &str| listed.iter().find(|(listed, _)| *listed == name).map(|(_, number)| *number);
    let new = found.iter().filter(|(name, lines)| number(name).is_none_or(|listed| **lines > listed));
    let mut wrong: Vec<String> =
        new.map(|(name, lines)| format!("{name}: {lines}, listed {:?}", number(name))).collect();
    let gone = listed.iter().filter(|(name, _)| !found.contains_key(*name));
    wrong.extend(gone.map(|(name, _)| format!("{name} keeps the rule: take it from the list")));
    assert!(wrong.is_empty(), "{rule}:\n{}", wrong.join("\n"));
}

/// All sources of the workspace.
fn all() -> Vec<Source> {
    packages().iter().flat_map(|package| sources(package)).collect()
}

#[test]
fn packages_depend_on_each_other_as_drawn() {
    let mut expected: Vec<&str> = PACKAGES.iter().map(|(package, _)| *package).collect();
    expected.sort_unstable();
    assert_eq!(packages(), expected, "a package without arrows in this table");
    for (package, allowed) in PACKAGES {
        let manifest = std::fs::read_to_string(root().join(package).join("Cargo.toml")).expect("a manifest");
        let mut section = "";
        let mut found = BTreeSet::new();
        for line in manifest.lines() {
            section = if line.starts_with('[') { line } else { section };
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let is_ours = ["bridge-", "burn", "cubecl"].iter().any(|start| name.starts_with(start));
            if section.contains("dependencies") && is_ours {
                found.insert(name);
            }
        }
        assert_eq!(
            found,
            allowed.iter().copied().collect(),
            "{package} depends on what is drawn in design and ARCHITECTURE.md"
        );
    }
}

#[test]
fn files_say_what_they_are_and_are_short() {
    let mut long = BTreeMap::new();
    for file in all() {
        assert!(file.text.starts_with("//!"), "{} does not open with `//!`", file.path);
        let lines = file.text.lines().count();
        if lines > FILE_LINES {
            long.insert(file.path, lines);
        }
    }
    assert_listed(&format!("files of more than {FILE_LINES} lines"), &long, &LONG_FILES);
}

#[test]
fn functions_are_short() {
    let mut long = BTreeMap::new();
    for file in all() {
        for (name, lines) in functions(&file.code).into_iter().filter(|(_, lines)| *lines > FUNCTION_LINES) {
            long.insert(format!("{} {name}", file.path), lines);
        }
    }
    assert_listed(&format!("functions of more than {FUNCTION_LINES} lines"), &long, &LONG_FUNCTIONS);
}

/// Names and lines of the functions in code without literals.
fn functions(code: &str) -> Vec<(String, usize)> {
    let mut functions = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + 3..];
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let body = rest.find('{').unwrap_or(rest.len());
        if name.is_empty() || rest[..body].contains(';') && !rest[..body].contains("; ") {
            continue;
        }
        let mut depth = 0;
        let end = rest[body..].find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        functions.push((name, rest[..body + end.unwrap_or(0)].lines().count()));
    }
    functions
}

#[test]
fn no_large_circle_of_files() {
    let mut large = BTreeMap::new();
    for package in packages() {
        for circle in Crate::read(&package).circles().into_iter().filter(|circle| circle.len() > CIRCLE) {
            eprintln!("{package}: {} files\n    {}", circle.len(), circle.join("\n    "));
            large.insert(format!("{package} {}", circle[0]), circle.len());
        }
    }
    assert_listed(&format!("circles of more than {CIRCLE} files"), &large, &LARGE_CIRCLES);
}

#[test]
fn modules_of_the_core_know_each_other_as_drawn() {
    let core = Crate::read("bridge-core");
    let module = |file: usize| {
        let inner = core.files[file].path.trim_start_matches("bridge-core/src/").trim_end_matches(".rs");
        inner.split('/').next().unwrap_or_default()
    };
    for (from, edges) in core.edges().iter().enumerate().filter(|(from, _)| module(*from) != "lib") {
        let (_, allowed) =
            MODULES.iter().find(|(name, _)| *name == module(from)).expect("a module without arrows in this table");
        let mut others = edges.iter().map(|to| module(*to)).filter(|to| *to != module(from) && *to != "lib");
        let refused = others.find(|to| !allowed.contains(to));
        assert_eq!(refused, None, "{} uses it, which {} may not know", core.files[from].path, module(from));
        let knows_tensors =
            core.files[from].tokens().windows(2).any(|pair| matches!(pair, ["burn" | "bridge_kernels", "::"]));
        let may = TENSORS.contains(&module(from)) || TENSOR_FILES.contains(&core.files[from].path.as_str());
        assert!(may || !knows_tensors, "{} knows tensors", core.files[from].path);
    }
}

#[test]
fn rooms_of_the_loop_know_those_below() {
    let core = Crate::read("bridge-core");
    let room = |file: usize| {
        let inner = core.files[file].path.strip_prefix("bridge-core/src/train/")?;
        let name = inner.split_once('/')?.0;
        Some(
            ROOMS
                .iter()
                .position(|room| *room == name)
                .unwrap_or_else(|| panic!("{name} has no place among the rooms")),
        )
    };
    let mut above = Vec::new();
    for (from, edges) in core.edges().iter().enumerate() {
        let Some(own) = room(from) else { continue };
        let uses = edges.iter().filter(|to| room(**to).is_some_and(|other| other < own));
        above.extend(uses.map(|to| format!("{} -> {}", core.files[from].path, core.files[*to].path)));
        let (path, may) = (&core.files[from].path, ["tools", "run"].contains(&ROOMS[own]));
        assert!(may || !core.files[from].tokens().contains(&"TrainError"), "{path}: TrainError is that of a whole run");
    }
    assert!(
        above.len() <= USES_OF_ROOMS_ABOVE,
        "{} uses of rooms above, at most {USES_OF_ROOMS_ABOVE}:\n{}",
        above.len(),
        above.join("\n")
    );
}

/// The core names no family: each is a folder of bridge-models, and no other code knows its name.
/// Upstream's classes and tokenizers have such names, too, as values of recipes.
#[test]
fn the_core_names_no_family() {
    let families = std::fs::read_dir(root().join("bridge-models/src/families")).expect("families");
    let families: Vec<String> = families
        .flatten()
        .filter(|f| f.path().is_dir())
        .map(|f| f.file_name().to_string_lossy().into_owned())
        .filter(|name| name != KINDS_NAME)
        .collect();
    assert!(families.len() > 1, "{families:?}");
    for file in sources("bridge-core").iter().filter(|file| !file.is_test()) {
        if UPSTREAMS_NAMES.contains(&file.path.as_str()) {
            continue;
        }
        let mut words: Vec<String> = file.tokens().into_iter().map(str::to_lowercase).collect();
        // A string literal that is just the name; sentences may have names.
        words.extend(
            file.text.split('"').filter(|text| families.iter().any(|family| family == text)).map(str::to_owned),
        );
        // Short names are in other words, as phi is in cudagraphimpl.
        let names = |word: &str, family: &str| word == family || (family.len() > 3 && word.contains(family));
        let named = words.iter().find(|word| families.iter().any(|family| names(word, family)));
        assert!(named.is_none(), "{} names {named:?}", file.path);
    }
}
