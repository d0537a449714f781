//! Multi-token prediction layers: their targets and their gradients. `sharded` compares several
//! ranks with one rank.

use super::spread::sequences;
use super::*;

fn config(layers: usize, weight: f64) -> DecoderConfig {
    DecoderConfig { mtp_num_layers: layers, mtp_loss_scaling_factor: weight, ..llama() }
}

/// Loss and gradients, with weights of targets that are those of `mask` in each sequence of eight.
fn step(config: &DecoderConfig, mask: [f32; 8]) -> (f32, Values) {
    let micro_batch = MicroBatch { loss_mask: [mask, mask].concat(), ..sequences(config.vocab_size, 0) };
    loss_and_gradients(build(config).as_ref(), &Batch::new(&micro_batch, &device()), Mode::Evaluate)
}

const ALL: [f32; 8] = [1.0; 8];

/// Loss mask in which only the target at one position counts.
fn only(place: usize) -> [f32; 8] {
    std::array::from_fn(|index| if index == place { 1.0 } else { 0.0 })
}

fn largest(gradients: &Values, part: &str) -> f32 {
    let of_part = gradients.iter().filter(|(name, _)| name.contains(part));
    of_part.flat_map(|(_, values)| values).fold(0.0, |largest, value| largest.max(value.abs()))
}

#[test]
fn the_loss_is_that_of_the_next_token_and_gradients_are_added() {
    let (plain, without) = step(&llama(), ALL);
    let [nothing, some, twice] = [0.0, 0.3, 0.6].map(|weight| step(&config(2, weight), ALL));
    assert!([nothing.0, some.0, twice.0].iter().all(|loss| *loss == plain));
    for (name, gradient) in &without {
        assert_eq!(*gradient, nothing.1[name], "{name}");
        let scale = gradient.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        for (index, value) in gradient.iter().enumerate() {
            let added = [some.1[name][index] - value, twice.1[name][index] - value];
            assert!((2.0 * added[0] - added[1]).abs() <= 1e-4 * scale, "{name}: {added:?}");
        }
    }
    assert!(largest(&nothing.1, "mtp.layers.0") == 0.0 && largest(&some.1, "mtp.layers.0") > 0.0);
    let of_words = "embedding.word_embeddings.weight";
    assert!(without[of_words].iter().zip(&some.1[of_words]).any(|(a, b)| a != b));
}

#[test]
fn a_layer_sees_only_targets_that_lie_so_far_on() {
    let config = config(2, 1.0);
    let reached = |place| {
        let (_, gradients) = step(&config, only(place));
        ["mtp.layers.0.final_layernorm", "mtp.layers.1.final_layernorm"].map(|part| largest(&gradients, part) > 0.0)
    };
    assert_eq!([0, 1, 2, 7].map(reached), [[false, false], [true, false], [true, true], [true, true]]);
}

#[test]
fn no_target_is_of_another_document() {
    let config = config(1, 1.0);
    let chunk = build(&config);
    let reached = |document_ids: Option<Vec<i32>>| {
        let loss_mask = [only(4), only(4)].concat();
        let micro_batch = MicroBatch { loss_mask, document_ids, ..sequences(config.vocab_size, 0) };
        let batch = Batch::new(&micro_batch, &device());
        largest(&loss_and_gradients(chunk.as_ref(), &batch, Mode::Evaluate).1, "mtp.layers.0.final_layernorm") > 0.0
    };
    let documents = |starts: usize| {
        Some(
            [0, 1]
                .map(|row| (0..8).map(move |place| row * 2 + i32::from(place >= starts)))
                .into_iter()
                .flatten()
                .collect(),
        )
    };
    assert!(reached(None) && reached(documents(5)) && !reached(documents(4)));
}

#[test]
fn what_has_no_place_for_them_is_refused() {
    let learned = DecoderConfig { mtp_num_layers: 1, ..gpt2() };
    assert!(learned.validate().unwrap_err().to_string().contains("model.mtp_num_layers"));
}
