//! Mixtures of experts against transformers: Mixtral and Qwen3-MoE with random weights, their logits, loss and all gradients.

use safetensors::SafeTensors;

use super::*;

/// Tensors of a file, as float32.
struct File(Vec<u8>);

impl File {
    fn open(model: &str, file: &str) -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/golden");
        Self(std::fs::read(format!("{folder}/{model}/{file}.safetensors")).unwrap())
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        tensors.tensor(name).unwrap_or_else(|_| panic!("the file has no {name}")).data().to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn integers(&self, name: &str) -> Vec<i64> {
        self.bytes(name).as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    }

    /// The values of one of our parameters; `prefix` is that of gradients, or nothing.
    fn parameter(&self, prefix: &str, name: &str, config: &DecoderConfig) -> Vec<f32> {
        let read = |theirs: &str| self.floats(&format!("{prefix}{theirs}"));
        let whole = match name {
            "embedding.word_embeddings.weight" => Some("model.embed_tokens.weight"),
            "decoder.final_layernorm.weight" => Some("model.norm.weight"),
            "output_layer.weight" => Some("lm_head.weight"),
            _ => None,
        };
        if let Some(theirs) = whole {
            return read(theirs);
        }
        let (layer, path) = name.strip_prefix("decoder.layers.").unwrap().split_once('.').unwrap();
        let read = |theirs: &str| read(&format!("model.layers.{layer}.{theirs}"));
        if let Some(expert) = path.strip_prefix("mlp.experts.local_experts.") {
            let (expert, matrix) = expert.split_once('.').unwrap();
            let all = match matrix {
                "linear_fc1.weight" => read("mlp.experts.gate_up_proj"),
                "linear_fc2.weight" => read("mlp.experts.down_proj"),
                other => panic!("no expert has a {other}"),
            };
            let each = all.len() / config.moe.as_ref().unwrap().num_experts;
            return all[expert.parse::<usize>().unwrap() * each..][..each].to_vec();
        }
        match path {
            "input_layernorm.weight" => read("input_layernorm.weight"),
            "pre_mlp_layernorm.weight" => read("post_attention_layernorm.weight"),
            "self_attention.linear_proj.weight" => read("self_attn.o_proj.weight"),
            "self_attention.q_layernorm.weight" => read("self_attn.q_norm.weight"),
            "self_attention.k_layernorm.weight" => read("self_attn.k_norm.weight"),
            "mlp.router.weight" => read("mlp.gate.weight"),
            "self_attention.linear_qkv.weight" => {
                let parts = ["q", "k", "v"].map(|part| read(&format!("self_attn.{part}_proj.weight")));
                let of_group = |group: usize| {
                    parts.iter().flat_map(move |part| {
                        let each = part.len() / config.num_query_groups;
                        part[group * each..][..each].iter().copied()
                    })
                };
                (0..config.num_query_groups).flat_map(of_group).collect()
            }
            other => panic!("no counterpart of {other}"),
        }
    }
}

fn decoder(experts: usize, width: usize, qk_layernorm: bool, base: f64, epsilon: f64) -> DecoderConfig {
    let moe = MoeConfig {
        num_experts: experts,
        layers: LayerPattern::All,
        ffn_hidden_size: width,
        shared_expert_intermediate_size: None,
        topk: 2,
        pre_softmax: false,
        topk_scaling_factor: None,
        router_in_float32: true,
        aux_loss_coeff: 0.0,
        z_loss_coeff: 0.0,
        dispatcher: Dispatcher::AllToAll,
    };
    DecoderConfig {
        num_layers: 2,
        hidden_size: 64,
        ffn_hidden_size: 112,
        num_attention_heads: 4,
        num_query_groups: 2,
        kv_channels: 16,
        vocab_size: 160,
        padded_vocab_size: 160,
        max_position_embeddings: 128,
        position_embedding: PositionEmbedding::Rope(RopeConfig {
            base,
            percent: 1.0,
            interleaved: false,
            scaling: None,
            windowed_base: None,
        }),
        norm: NormConfig { kind: NormKind::RmsNorm, epsilon, zero_centered_gamma: false },
        qk_layernorm,
        softmax_scale: 0.25,
        moe: Some(moe),
        ..llama()
    }
}

/// The largest difference relative to the largest value.
fn difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f64, |largest, x| largest.max(f64::from(x.abs())));
    assert!(largest > 0.0, "the reference says nothing");
    let differences = found.iter().zip(expected).map(|(a, b)| f64::from((a - b).abs()));
    differences.fold(0.0, f64::max) / largest
}

#[test]
fn mixtures_are_those_of_transformers() {
    for (model, config) in
        [("mixtral", decoder(4, 112, false, 1e6, 1e-5)), ("qwen3_moe", decoder(8, 48, true, 1e4, 1e-6))]
    {
        let (weights, golden) = (File::open(model, "model"), File::open(model, "golden"));
        let mut chunk = build(&config);
        let names: Vec<String> = chunk.parameters().iter().map(|info| info.name.clone()).collect();
        let values = names.iter().map(|name| (name.clone(), weights.parameter("", name, &config))).collect();
        set_values(chunk.as_mut(), &values);

        let ids = golden.integers("input_ids");
        let t = ids.len() / 2;
        let found: Vec<f32> = ids.chunks(t).flat_map(|ids| logits(chunk.as_ref(), ids)).collect();
        let off = difference(&found, &golden.floats("logits"));
        assert!(off < 1e-5, "{model}: logits differ by {off}");

        // Their loss is that of the next token; the last token of a sequence has none.
        let mut labels = ids.clone();
        labels.rotate_left(1);
        let batch = MicroBatch {
            tokens: ids.clone(),
            labels,
            loss_mask: (0..2 * t).map(|place| if place % t == t - 1 { 0.0 } else { 1.0 }).collect(),
            position_ids: (0..2).flat_map(|_| 0..t as i64).collect(),
            batch_size: 2,
            seq_length: t,
            ..MicroBatch::default()
        };
        let (loss_sum, gradients) = loss_and_gradients(chunk.as_ref(), &Batch::new(&batch, &device()), Mode::Evaluate);
        let tokens = (2 * (t - 1)) as f32;
        let expected = golden.floats("ce_loss")[0];
        assert!((loss_sum / tokens / expected - 1.0).abs() < 1e-6, "{model}: loss {}", loss_sum / tokens);
        for name in &names {
            let found: Vec<f32> = gradients[name].iter().map(|g| g / tokens).collect();
            let off = difference(&found, &golden.parameter("grad.", name, &config));
            assert!(off < 2e-5, "{model}: the gradient of {name} differs by {off}");
        }
    }
}
