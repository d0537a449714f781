//! The model of a new recipe: one of a size, or that of a Hugging Face folder.

use std::path::{Path, PathBuf};
use std::time::Instant;

use bridge_core::config::RawConfig;
use bridge_data::tokenizer::HuggingFaceTokenizer;
use bridge_models::adapters::usual_targets;
use bridge_models::decoder::PositionEmbedding;
use bridge_models::huggingface::HfModel;
use burn::tensor::{Device, Distribution, Tensor};

use crate::failure::Failure;

/// A Llama-style model by its shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Name of the size.
    pub name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    groups: usize,
    ffn: usize,
}

const fn size(name: &'static str, [layers, hidden, heads, groups, ffn]: [usize; 5]) -> Size {
    Size { name, layers, hidden, heads, groups, ffn }
}

/// All sizes, the smallest first.
pub const SIZES: [Size; 7] = [
    size("nano", [2, 128, 4, 2, 384]),
    size("tiny", [4, 256, 8, 4, 768]),
    size("small", [6, 384, 6, 2, 1024]),
    size("medium", [12, 576, 9, 3, 1536]),
    size("135m", [30, 576, 9, 3, 1536]),
    size("350m", [24, 1024, 16, 4, 2816]),
    size("1b", [24, 2048, 16, 4, 5632]),
];

impl Size {
    /// The size of a name.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = SIZES.into_iter().find(|size| size.name == name.to_lowercase());
        found.ok_or_else(|| format!("expected one of {}", SIZES.map(|size| size.name).join(", ")))
    }

    /// Parameters, with an embedding of `vocab` rows that is the output layer too.
    pub fn parameters(&self, vocab: usize) -> usize {
        let attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.hidden * self.groups / self.heads;
        self.layers * (attention + 3 * self.hidden * self.ffn) + vocab * self.hidden
    }

    /// Lines of the section `[model]`.
    pub fn section(&self) -> String {
        let Self { layers, hidden, heads, groups, ffn, .. } = self;
        format!(
            "kind = \"gpt\"\nnum_layers = {layers}\nhidden_size = {hidden}\nnum_attention_heads = {heads}\nnum_query_groups = {groups}\n\
             ffn_hidden_size = {ffn}\nnormalization = \"RMSNorm\"\nposition_embedding_type = \"rope\"\ngated_linear_unit = true\n\
             activation_func = \"silu\"\nadd_bias_linear = false\nshare_embeddings_and_output_weights = true\n\
             hidden_dropout = 0.0\nattention_dropout = 0.0\n"
        )
    }

    /// A learning rate for training from random weights: falls with the width.
    pub fn learning_rate(&self) -> f64 {
        let rate = 2e-3 * (256.0 / self.hidden as f64).sqrt();
        // Two digits are as exact as a rule of thumb is.
        format!("{:.1e}", rate.min(3e-3)).parse().unwrap_or(rate)
    }
}

/// A model with its weights.
pub struct Pretrained {
    /// Folder of the model.
    pub folder: PathBuf,
    /// Parameters.
    pub parameters: usize,
    /// Positions it was trained on.
    pub positions: usize,
    /// True if positions are learned, so that the model has none beyond these.
    pub has_learned_positions: bool,
    /// Lines of the section `[model]`, without `seq_length`.
    pub section: String,
    /// The linear layers that adapters have branches on.
    pub targets: Vec<&'static str>,
}

impl Pretrained {
    /// Opens the Hugging Face folder. Fails if there is no such model, it is of a family that
    /// cannot be trained here, or there is no tokenizer.
    pub fn open(folder: &Path) -> Result<Self, Failure> {
        if !folder.join("config.json").is_file() {
            let message = "expected a Hugging Face folder (with config.json), or a size";
            return Err(Failure::input(format!("{}: {message}", folder.display())));
        }
        let model = HfModel::open(folder).map_err(Failure::input)?;
        let config = model.config();
        if !HuggingFaceTokenizer::is_in(folder) {
            return Err(Failure::input(format!(
                "{}: there is no tokenizer (expected tokenizer.json)",
                folder.display()
            )));
        }
        let mut raw = RawConfig::default();
        raw.model.kind = config.kind().to_owned();
        raw.model.config = config.to_transformer().map_err(Failure::input)?;
        let text = raw.to_toml();
        let body = text.lines().skip_while(|line| *line != "[model]").skip(1).take_while(|line| !line.starts_with('['));
        let section = body.filter(|line| !line.starts_with("seq_length") && !line.is_empty());
        Ok(Self {
            folder: std::path::absolute(folder).map_err(Failure::run)?,
            parameters: config.num_parameters(),
            positions: config.max_position_embeddings,
            has_learned_positions: config.position_embedding == PositionEmbedding::LearnedAbsolute,
            section: section.map(|line| format!("{line}\n")).collect(),
            targets: usual_targets(config),
        })
    }

    /// A learning rate that improves a trained model and does not undo it: small, and smaller for
    /// larger models.
    pub const fn learning_rate(&self) -> f64 {
        match self.parameters {
            0..500_000_000 => 5e-5,
            500_000_000..3_000_000_000 => 2e-5,
            _ => 1e-5,
        }
    }
}

/// Approximate FLOPs per second of training on the device: the measured rate of matrix products,
/// times their share of a step, one half.
pub fn training_rate(device: &Device) -> f64 {
    const WIDTH: usize = 512;
    const SHARE: f64 = 0.5;
    let matrix = || Tensor::<2>::random([WIDTH, WIDTH], Distribution::Default, device);
    let (a, b) = (matrix(), matrix());
    let product = || a.clone().matmul(b.clone()).into_data();
    // The first ones prepare threads and kernels.
    drop((product(), product()));
    let started = Instant::now();
    let mut count = 0;
    while count < 4 || started.elapsed().as_secs_f64() < 0.2 {
        drop(product());
        count += 1;
    }
    SHARE * count as f64 * 2.0 * (WIDTH * WIDTH * WIDTH) as f64 / started.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_and_learn_more_slowly() {
        for pair in SIZES.windows(2) {
            assert!(pair[0].parameters(4096) < pair[1].parameters(4096));
            assert!(pair[0].learning_rate() >= pair[1].learning_rate());
        }
        assert_eq!(Size::named("135M").unwrap().parameters(49152), 134_479_872);
        assert!(Size::named("huge").unwrap_err().contains("nano"));
    }

    #[test]
    fn learned_positions_alone_have_an_end() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bridge-models/tests/fixtures/golden");
        for (name, is_learned) in [("gpt2", true), ("llama", false), ("mamba2", false), ("nemotron_h", false)] {
            let folder = tempfile::tempdir().unwrap();
            for file in ["config.json", "model.safetensors"] {
                std::fs::copy(golden.join(name).join(file), folder.path().join(file)).unwrap();
            }
            std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
            let model = Pretrained::open(folder.path()).unwrap();
            assert_eq!(model.has_learned_positions, is_learned, "{name}");
        }
    }
}
