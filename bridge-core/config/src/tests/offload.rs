//! Activations on the host: upstream's checks, and the activations that can be moved.

use super::{Format, Kinds, TINY, World, assert_all_refused, load_text, tiny};

const LAYERS: &str = "model.cpu_offloading=true";
const MODULES: &str = "model.fine_grained_activation_offloading=true";

fn named(modules: &str) -> String {
    format!("model.offload_modules=[{modules}]")
}

/// Overrides, and the setting that is named.
const REFUSED: [(&[&str], &str); 13] = [
    (&[LAYERS], "model.cpu_offloading_num_layers"),
    (&[LAYERS, "model.cpu_offloading_num_layers=0"], "model.cpu_offloading_num_layers"),
    (&[LAYERS, "model.cpu_offloading_num_layers=2"], "model.cpu_offloading_num_layers"),
    (&["model.cpu_offloading_num_layers=1"], "model.cpu_offloading_num_layers"),
    (&[LAYERS, "model.cpu_offloading_num_layers=1", "model.recompute_granularity=selective"], "model.cpu_offloading"),
    (&[MODULES], "model.offload_modules"),
    (&["model.offload_modules=[\"core_attn\"]"], "model.offload_modules"),
    (&[MODULES, "model.offload_modules=[\"mlp\"]"], "model.offload_modules"),
    (&[MODULES, "model.offload_modules=[\"attn_proj\"]"], "model.offload_modules"),
    (&[MODULES, "model.offload_modules=[\"expert_fc1\"]"], "model.offload_modules"),
    (
        &[LAYERS, "model.cpu_offloading_num_layers=1", MODULES, "model.offload_modules=[\"core_attn\"]"],
        "model.fine_grained_activation_offloading",
    ),
    (
        &[
            MODULES,
            "model.offload_modules=[\"core_attn\"]",
            "model.recompute_granularity=full",
            "model.recompute_method=uniform",
            "model.recompute_num_layers=1",
        ],
        "model.fine_grained_activation_offloading",
    ),
    (
        &[
            MODULES,
            "model.offload_modules=[\"core_attn\"]",
            "ddp.use_megatron_fsdp=true",
            "ddp.data_parallel_sharding_strategy=optim_grads_params",
        ],
        "model.fine_grained_activation_offloading",
    ),
];

#[test]
fn each_rule_refuses_and_names_its_key() {
    assert_all_refused(&REFUSED);
}

#[test]
fn modules_that_run_again_are_refused() {
    let key = "model.offload_modules";
    let again = |modules: &str| format!("model.recompute_modules=[{modules}]");
    let with = |moved: &str, recomputed: &str| {
        [MODULES.into(), named(moved), "model.recompute_granularity=selective".into(), again(recomputed)]
    };
    let checked = |moved: &str, recomputed: &str, more: &[&str]| {
        let overrides = with(moved, recomputed);
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).chain(more.iter().copied()).collect();
        (tiny(&overrides).err().is_some_and(|errors| errors.names(key)), overrides.join(" "))
    };
    let experts = ["model.num_moe_experts=4"];
    let refused: [(&str, &str, &[&str]); 6] = [
        ("\"core_attn\"", "\"core_attn\"", &[]),
        ("\"attn_norm\"", "\"core_attn\"", &[]),
        ("\"mlp_norm\"", "\"mlp\"", &[]),
        ("\"qkv_linear\"", "\"layernorm\"", &[]),
        ("\"moe_act\"", "\"moe_act\"", &experts),
        ("\"expert_fc1\"", "\"moe\"", &experts),
    ];
    for (moved, recomputed, more) in refused {
        let (is_refused, overrides) = checked(moved, recomputed, more);
        assert!(is_refused, "{overrides}");
    }
    for (moved, recomputed, more) in [
        ("\"core_attn\"", "\"mlp\"", &[][..]),
        ("\"mlp_norm\"", "\"core_attn\"", &[]),
        ("\"expert_fc1\"", "\"moe_act\"", &experts),
    ] {
        let (is_refused, overrides) = checked(moved, recomputed, more);
        assert!(!is_refused, "{overrides}");
    }
}

#[test]
fn modules_that_are_there_are_listed() {
    let run = tiny(&[MODULES, &named("\"attn_norm\", \"qkv_linear\", \"core_attn\", \"attn_proj\", \"mlp_norm\"")]);
    assert_eq!(run.unwrap_or_else(|errors| panic!("{errors}")).model.offload_modules.len(), 5);
    let experts = ["model.num_moe_experts=4", MODULES, &named("\"expert_fc1\", \"moe_act\"")];
    assert_eq!(tiny(&experts).unwrap_or_else(|errors| panic!("{errors}")).model.offload_modules.len(), 2);
    let errors = tiny(&[MODULES, &named("\"moe_act\"")]).unwrap_err().to_string();
    assert!(errors.contains("attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm"), "{errors}");
    let run = tiny(&[LAYERS, "model.cpu_offloading_num_layers=1"]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(run.model.cpu_offloading_num_layers, 1);
}

/// Layers are counted on one stage; modules may be on several.
#[test]
fn layers_need_one_stage() {
    let stages = ["model.pipeline_model_parallel_size=2", "model.num_layers=4"];
    let run = |overrides: &[&str]| {
        let overrides: Vec<String> = stages.iter().chain(overrides).map(|one| (*one).to_owned()).collect();
        load_text(TINY, Format::Toml, &overrides, &Kinds::builtin(), &World { size: 2 })
    };
    let errors = run(&[LAYERS, "model.cpu_offloading_num_layers=1"]).unwrap_err();
    assert!(errors.names("model.cpu_offloading"), "{errors}");
    run(&[MODULES, &named("\"core_attn\"")]).unwrap_or_else(|errors| panic!("{errors}"));
}
