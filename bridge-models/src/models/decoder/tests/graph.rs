//! Graph properties: cuts, stages, dropout, tied weights, caches, documents, windows.

use bridge_core::config::{BlockOrder, NormPlacement};
use bridge_kernels::Philox;

use super::*;

fn with_dropout(config: DecoderConfig) -> DecoderConfig {
    DecoderConfig { embedding_dropout: 0.2, hidden_dropout: 0.3, attention_dropout: 0.1, ..config }
}

#[test]
fn cutting_the_graph_at_every_segment_changes_no_bit_of_the_gradients() {
    let parallel = ResidualConfig {
        norms: NormPlacement::Sandwich,
        blocks: BlockOrder::Parallel,
        branch_multiplier: 0.5,
        stream_multiplier: 1.1,
        adds_to_norm: false,
    };
    let parallel = DecoderConfig { residual: parallel, ..with_dropout(llama()) };
    let state_space = with_dropout(super::hybrid::hybrid());
    let shortcut = with_dropout(super::moe::shortcut());
    let shared = with_dropout(super::hybrid::shared(2));
    for config in [with_dropout(llama()), with_dropout(gpt2()), everything(), parallel, state_space, shortcut, shared]
        .into_iter()
        .chain(layer_ends().map(with_dropout))
        .chain(shared_keys().map(with_dropout))
    {
        let chunk = build(&config);
        let batch = Batch::new(&micro_batch(config.vocab_size), &device());
        let mode = Mode::Train(Philox::new(3));
        let (_, whole) = loss_and_gradients(chunk.as_ref(), &batch, mode);

        let context = ForwardContext::new(&batch, mode);
        let mut inputs = vec![Boundary::default()];
        let count = chunk.segments().len();
        for index in 0..count - 1 {
            let SegmentOutput::Boundary(y) = chunk.forward_segment(index, inputs[index].clone(), &context) else {
                panic!("segment {index} is not the last");
            };
            let leaves = y.iter().map(|(name, y)| (name, y.clone().detach().require_grad()));
            inputs.push(leaves.fold(Boundary::default(), |all, (name, y)| all.with(name, y)));
        }
        let mut cut: BTreeMap<String, Vec<Tensor<1>>> = BTreeMap::new();
        let mut upstream = Boundary::default();
        for index in (0..count).rev() {
            let input = inputs[index].clone();
            let seeded = match chunk.forward_segment(index, input.clone(), &context) {
                SegmentOutput::LossSum(loss) => loss,
                SegmentOutput::Boundary(mut y) => {
                    let seeds = upstream.iter().map(|(name, dy)| (y.take(name) * dy.clone().autodiff()).sum());
                    seeds.reduce(|a, b| a + b).unwrap()
                }
            };
            let mut gradients = seeded.backward();
            let of_inputs = input.iter().filter_map(|(name, x)| Some((name, x.grad_remove(&mut gradients)?)));
            upstream = of_inputs.fold(Boundary::default(), |all, (name, dx)| all.with(name, dx));
            chunk.take_gradients(&mut gradients, &mut |name, gradient| {
                cut.entry(name.to_owned()).or_default().push(gradient);
            });
        }
        assert_eq!(cut.len(), whole.len());
        for (name, parts) in cut {
            let sum = parts.into_iter().reduce(|a, b| a + b).unwrap();
            // Gradients of a tensor that several blocks read are summed in another order.
            match config.carried_into(1).is_empty() {
                false => assert_close(&floats(sum), &whole[&name], 1e-5),
                true => assert!(floats(sum) == whole[&name], "{name} differs"),
            }
        }
    }
}

#[test]
fn stages_in_a_row_are_the_whole_model() {
    let configs = [llama(), gpt2(), super::moe::shortcut()].into_iter().chain(layer_ends()).chain(shared_keys());
    for config in configs.map(with_dropout) {
        let (whole, count) = (build(&config), config.num_layers);
        let first = build_stage(&config, &Stage::from(StackPart { layers: 0..1, start: true, end: false }));
        let middle = build_stage(&config, &Stage::from(StackPart { layers: 1..count, start: false, end: false }));
        let last = build_stage(&config, &Stage::from(StackPart { layers: count..count, start: false, end: true }));
        let batch = Batch::new(&micro_batch(config.vocab_size), &device());
        let mode = Mode::Train(Philox::new(8));
        let stages = [first.as_ref(), middle.as_ref(), last.as_ref()];
        assert_eq!(
            loss_sum(&stages, &batch, mode).into_scalar::<f32>(),
            loss_sum(&[whole.as_ref()], &batch, mode).into_scalar::<f32>(),
        );
        let segments: Vec<_> = stages.iter().flat_map(|stage| stage.segments()).collect();
        assert_eq!(segments, whole.segments());
        assert_eq!(middle.segments().last().unwrap().layer, Some(count - 1));
        assert!(first.inference().logits(Tensor::zeros([1, 1], &Device::flex()), &mut first.new_state()).is_none());
    }
}

#[test]
fn dropout_depends_on_the_stream_alone() {
    for config in [with_dropout(llama()), with_dropout(gpt2())] {
        let chunk = build(&config);
        let batch = Batch::new(&micro_batch(config.vocab_size), &device());
        let run = |mode| loss_and_gradients(chunk.as_ref(), &batch, mode);
        let one = run(Mode::Train(Philox::new(1)));
        assert_eq!(one, run(Mode::Train(Philox::new(1))));
        assert_ne!(one.0, run(Mode::Train(Philox::new(2))).0);
        let dry =
            build(&DecoderConfig { embedding_dropout: 0.0, hidden_dropout: 0.0, attention_dropout: 0.0, ..config });
        let expected = loss_and_gradients(dry.as_ref(), &batch, Mode::Train(Philox::new(1)));
        assert_eq!(run(Mode::Evaluate), expected);
        assert_ne!(one.0, expected.0);
    }
}

#[test]
fn every_kind_of_dropout_is_applied() {
    let dry = llama();
    let batch = Batch::new(&micro_batch(dry.vocab_size), &device());
    let loss = |config: &DecoderConfig| {
        loss_sum(&[build(config).as_ref()], &batch, Mode::Train(Philox::new(1))).into_scalar::<f32>()
    };
    let plain = loss(&dry);
    assert_ne!(plain, loss(&DecoderConfig { embedding_dropout: 0.2, ..dry.clone() }));
    assert_ne!(plain, loss(&DecoderConfig { hidden_dropout: 0.2, ..dry.clone() }));
    assert_ne!(plain, loss(&DecoderConfig { attention_dropout: 0.2, ..dry.clone() }));
}

#[test]
fn grouped_heads_equal_repeated_ones() {
    let grouped = llama();
    let full = DecoderConfig { num_query_groups: 6, ..grouped.clone() };
    let (one, mut other) = (build(&grouped), build(&full));
    let mut weights = values(one.as_ref());
    let (r, block) = (3, grouped.kv_channels * grouped.hidden_size);
    for (_, qkv) in weights.iter_mut().filter(|(name, _)| name.ends_with("linear_qkv.weight")) {
        let repeated = qkv.chunks((r + 2) * block).flat_map(|group| {
            (0..r).flat_map(move |q| [&group[q * block..(q + 1) * block], &group[r * block..]].concat())
        });
        *qkv = repeated.collect();
    }
    set_values(other.as_mut(), &weights);
    let ids = tokens(9, 37);
    assert_close(&logits(other.as_ref(), &ids), &logits(one.as_ref(), &ids), 1e-6);
}

#[test]
fn a_tied_gradient_is_the_sum_of_both_uses() {
    for config in [llama(), gpt2()] {
        let tied = DecoderConfig { share_embeddings_and_output_weights: true, ..config.clone() };
        let untied = DecoderConfig { share_embeddings_and_output_weights: false, ..config };
        let (one, mut other) = (build(&tied), build(&untied));
        let mut weights = values(one.as_ref());
        weights.insert("output_layer.weight".into(), weights["embedding.word_embeddings.weight"].clone());
        set_values(other.as_mut(), &weights);
        let batch = Batch::new(&micro_batch(tied.vocab_size), &device());
        let (_, found) = loss_and_gradients(one.as_ref(), &batch, Mode::Evaluate);
        let (_, expected) = loss_and_gradients(other.as_ref(), &batch, Mode::Evaluate);
        let parts = [&expected["embedding.word_embeddings.weight"], &expected["output_layer.weight"]];
        let sum: Vec<f32> = parts[0].iter().zip(parts[1]).map(|(a, b)| a + b).collect();
        assert_close(&found["embedding.word_embeddings.weight"], &sum, 1e-6);
        assert!(!found.contains_key("output_layer.weight"));
    }
}

#[test]
fn remembered_tokens_change_no_logits() {
    let windowed = |window, marks: [bool; 3]| DecoderConfig {
        window_size: Some(window),
        window_layers: LayerPattern::Listed(marks.to_vec()),
        ..llama()
    };
    let windows = [windowed(1, [true; 3]), windowed(4, [false, true, true]), windowed(11, [true, false, false])];
    for config in [llama(), gpt2(), everything()]
        .into_iter()
        .chain(windows)
        .chain(factors())
        .chain(switches())
        .chain(layer_ends())
        .chain(gates())
    {
        let chunk = build(&config);
        let ids = tokens(13, config.vocab_size);
        let expected = logits(chunk.as_ref(), &ids);
        let model = chunk.inference();
        for ends in [vec![5, 6, 9, 10, 13], vec![12, 13], (1..=13).collect()] {
            let mut state = model.new_state();
            let mut found = Vec::new();
            for end in ends {
                let new = &ids[state.length..end];
                found.extend(logits_after(model.as_ref(), &mut state, new));
            }
            assert_eq!(state.length, 13);
            assert_close(&found, &expected, 1e-5);
        }
    }
}

#[test]
fn a_sequence_that_grows_over_the_original_length_is_seen_again() {
    let config = longrope();
    let chunk = build(&config);
    let ids = tokens(13, config.vocab_size);
    let model = chunk.inference();
    let last = |logits: Vec<f32>| logits[logits.len() - config.padded_vocab_size..].to_vec();
    let whole: Vec<Vec<f32>> = (1..=13).map(|end| last(logits(chunk.as_ref(), &ids[..end]))).collect();
    let short = build(&DecoderConfig { max_position_embeddings: 7, ..config.clone() });
    assert_eq!(last(logits(short.as_ref(), &ids[..7])), whole[6]);
    for ends in [(1..=13).collect(), vec![7, 8, 13], vec![5, 9, 10], vec![13]] {
        let mut state = model.new_state();
        for end in ends {
            let new = &ids[state.length..end];
            let found = logits_after(model.as_ref(), &mut state, new);
            assert_eq!((state.length, found.len()), (end, new.len() * config.padded_vocab_size));
            assert_close(&last(found), &whole[end - 1], 1e-5);
        }
    }
}

#[test]
fn packed_documents_do_not_see_each_other() {
    for config in [llama(), gpt2(), everything()].into_iter().chain(gates()) {
        let chunk = build(&config);
        let mut packed = micro_batch(config.vocab_size);
        packed.document_ids = Some([0, 0, 0, 1, 1, 1, 1].repeat(2));
        packed.position_ids = [0, 1, 2, 0, 1, 2, 3].repeat(2);
        let found = loss_sum(&[chunk.as_ref()], &Batch::new(&packed, &device()), Mode::Evaluate).into_scalar::<f32>();
        let mut expected = 0.0;
        for (from, to) in [(0, 3), (3, 7), (7, 10), (10, 14)] {
            let alone = MicroBatch {
                tokens: packed.tokens[from..to].to_vec(),
                labels: packed.labels[from..to].to_vec(),
                loss_mask: packed.loss_mask[from..to].to_vec(),
                position_ids: (0..(to - from) as i64).collect(),
                batch_size: 1,
                seq_length: to - from,
                ..MicroBatch::default()
            };
            let loss = loss_sum(&[chunk.as_ref()], &Batch::new(&alone, &device()), Mode::Evaluate);
            expected += loss.into_scalar::<f32>();
        }
        assert_close(&[found], &[expected], 1e-5);
    }
}

#[test]
fn a_window_hides_what_lies_further_back() {
    let windowed = DecoderConfig { num_layers: 1, window_size: Some(3), ..llama() };
    let open = DecoderConfig { window_size: None, ..windowed.clone() };
    let ids = tokens(9, 37);
    let mut changed = ids.clone();
    changed[4] = (changed[4] + 1) % 37;
    let last = |config: &DecoderConfig, ids: &[i64]| logits(build(config).as_ref(), ids).split_off(8 * 37);
    assert_eq!(last(&windowed, &ids), last(&windowed, &changed));
    assert_ne!(last(&open, &ids), last(&open, &changed));
    changed[5] = (changed[5] + 1) % 37;
    assert_ne!(last(&windowed, &ids), last(&windowed, &changed), "three keys back is within the window");
}

#[test]
fn padding_the_vocabulary_keeps_the_logits_of_real_tokens() {
    let config = llama();
    let padded = DecoderConfig { padded_vocab_size: 41, ..config.clone() };
    let (one, mut other) = (build(&config), build(&padded));
    let mut weights = values(one.as_ref());
    for name in ["embedding.word_embeddings.weight", "output_layer.weight"] {
        weights.get_mut(name).unwrap().resize(41 * 23, 100.0);
    }
    set_values(other.as_mut(), &weights);
    let ids = tokens(8, 37);
    let expected = logits(one.as_ref(), &ids);
    let found: Vec<f32> = logits(other.as_ref(), &ids).chunks(41).flat_map(|row| row[..37].to_vec()).collect();
    assert_close(&found, &expected, 1e-6);

    // The padded rows win every comparison with real ones, and are still never generated.
    let prompt = [3, 4];
    let options = crate::generate::GenerateOptions::greedy(&padded, 6);
    let generate = |chunk: &dyn ModelChunk| {
        crate::generate(chunk, &device(), &prompt, &options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap()
    };
    assert_eq!(generate(other.as_ref()), generate(one.as_ref()));
}

#[test]
fn a_bfloat16_model_trains() {
    let config = llama();
    let context = BuildContext { params_dtype: FloatDType::BF16, ..context(&config) };
    let chunk = build_decoder(&config, &context, &Stage::whole([3])).unwrap();
    let batch = Batch::new(&micro_batch(37), &device());
    let loss = loss_sum(&[chunk.as_ref()], &batch, Mode::Evaluate);
    let value = loss.clone().into_scalar::<f32>();
    let mut expected = build_decoder(&config, &self::context(&config), &Stage::whole([3])).unwrap();
    set_values(
        expected.as_mut(),
        &values(build_decoder(&config, &self::context(&config), &Stage::whole([3])).unwrap().as_ref()),
    );
    let reference = loss_sum(&[expected.as_ref()], &batch, Mode::Evaluate).into_scalar::<f32>();
    assert!((value / reference - 1.0).abs() < 0.02, "{value} in bfloat16, {reference} in float32");
    let mut gradients = loss.backward();
    let mut count = 0;
    chunk.take_gradients(&mut gradients, &mut |_, gradient| {
        count += 1;
        assert_eq!(gradient.dtype(), burn::tensor::DType::BF16);
    });
    assert_eq!(count, chunk.parameters().len());
}

#[test]
fn segments_read_what_they_declare() {
    let (mixture, shortcut, shared) = (super::moe::mixture(5, 2), super::moe::shortcut(), super::hybrid::shared(2));
    for config in [llama(), gpt2(), everything(), mixture, shortcut, shared]
        .into_iter()
        .chain(super::reference::compositions())
        .chain(factors())
        .chain(layer_ends())
    {
        let batch = micro_batch(config.vocab_size);
        let last = StackPart { layers: 1..config.num_layers, start: false, end: true };
        for stage in [Stage::whole([config.num_layers]), last.into()] {
            let mut chunk = build_stage(&config, &stage);
            bridge_core::testing::check_segments(chunk.as_mut(), &batch).expect("every use is declared");
        }
    }
}
