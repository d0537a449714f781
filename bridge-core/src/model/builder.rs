//! Model configurations, and the builders they name.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bridge_dist::schedule::placement::StageContent;
use burn::tensor::{Device, FloatDType};

use super::{Adapter, DeferredParameters, ModelBuildError, ModelChunk, Outline, Parallel, Workload};
use crate::config::TransformerConfig;

/// Part of one of the model's stacks of layers that a chunk has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackPart {
    /// Numbers of the layers, counted in the stack.
    pub layers: Range<usize>,
    /// True if the stage includes the part before the first layer: an embedding (`pre_process`
    /// upstream).
    pub start: bool,
    /// True if the stage includes the part after the last layer: in the model's last stack final
    /// norm, output projection and loss (`post_process` upstream).
    pub end: bool,
}

/// Segments of a model that a chunk has: a range of them, over one stack of layers or several, such
/// as an encoder and its decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Part of each of the model's stacks, in their order; it may be empty.
    pub stacks: Vec<StackPart>,
}

impl From<StackPart> for Stage {
    /// A stage of a model with one stack.
    fn from(part: StackPart) -> Self {
        Self { stacks: vec![part] }
    }
}

impl Stage {
    /// Whole model, with these numbers of layers in its stacks.
    pub fn whole(num_layers: impl IntoIterator<Item = usize>) -> Self {
        let stack = |count| StackPart { layers: 0..count, start: true, end: true };
        Self { stacks: num_layers.into_iter().map(stack).collect() }
    }

    /// Stage of a chunk with this content, for stacks with these numbers of layers, each at least
    /// one. The content numbers layers through all stacks; the end of a stack belongs to its last
    /// layer, and the start of the next stack to its first.
    pub fn from_content(num_layers: &[usize], content: &StageContent) -> Self {
        let mut next = 0;
        let stacks = num_layers.iter().enumerate().map(|(index, count)| {
            let all = next..next + count;
            next = all.end;
            let place = |layer: usize| layer.clamp(all.start, all.end) - all.start;
            let (is_first, is_last) = (index == 0, index + 1 == num_layers.len());
            StackPart {
                layers: place(content.layers.start)..place(content.layers.end),
                start: if is_first { content.embedding } else { content.layers.contains(&all.start) },
                end: if is_last { content.loss } else { content.layers.contains(&(all.end - 1)) },
            }
        });
        Self { stacks: stacks.collect() }
    }

    /// The part of the only stack.
    ///
    /// # Panics
    /// If the model has several.
    pub fn only_stack(&self) -> &StackPart {
        assert_eq!(self.stacks.len(), 1, "a model with one stack is built from a stage of one stack");
        &self.stacks[0]
    }
}

/// Arguments of a builder.
#[derive(Clone, Debug)]
pub struct BuildContext {
    /// Device with autodiff on; parameters are created there.
    pub device: Device,
    /// Base seed: a parameter's initial values depend on it, on the parameter's name and on nothing
    /// else.
    pub seed: u64,
    /// dtype of the parameters.
    pub params_dtype: FloatDType,
    /// Size of the vocabulary including padding.
    pub padded_vocab_size: usize,
    /// The ranks the model is spread over.
    pub parallel: Parallel,
    /// Set where this rank keeps a part of each parameter only: initial values are then left here
    /// until they are needed.
    pub deferred: Option<DeferredParameters>,
    /// Adapter that changes the declarations of blocks ([`ChunkScope::new`](super::ChunkScope::new)
    /// passes it on).
    pub adapter: Option<Arc<dyn Adapter>>,
}

/// A model configuration: pure data that names its builder.
pub trait ModelConfig: fmt::Debug + Send + Sync {
    /// The kind under which the configuration is registered and serialised (`model.kind`).
    fn kind(&self) -> &str;

    /// The fields all models share.
    fn transformer(&self) -> &TransformerConfig;

    /// Layers of each of the model's stacks, in the order in which activations pass through them.
    /// One stack by default.
    fn stacks(&self) -> Vec<usize> {
        vec![self.transformer().num_layers]
    }

    /// Checks that the settings can be built together, on ranks as `[model]` says; called by
    /// `bridge config check`. The default accepts all settings.
    ///
    /// # Errors
    /// With the key of the first setting that cannot be, as the builder's would be.
    fn check(&self) -> Result<(), ModelBuildError> {
        Ok(())
    }

    /// Names that other programs have for a parameter. Empty by default.
    fn other_names(&self, _parameter: &str) -> Vec<String> {
        Vec::new()
    }

    /// The builder for this configuration.
    fn builder(&self) -> Box<dyn ModelBuilder>;

    /// Runs, in order, on the chunks before they are prepared for training (PEFT, weight import).
    /// Empty by default.
    fn pre_wrap_hooks(&self) -> Vec<ModelHook> {
        Vec::new()
    }

    /// Runs, in order, after the chunks are complete. Empty by default.
    fn post_wrap_hooks(&self) -> Vec<ModelHook> {
        Vec::new()
    }
}

/// Makes model chunks from a configuration.
pub trait ModelBuilder {
    /// Builds one stage.
    ///
    /// # Errors
    /// If the model does not support the configuration.
    fn build_model(&self, context: &BuildContext, stage: &Stage) -> Result<Box<dyn ModelChunk>, ModelBuildError>;

    /// Declarations that [`Self::build_model`] would make for a stage on the rank of `work` with
    /// `adapter`, without tensors, and its cost on a micro-batch of `work`.
    ///
    /// # Errors
    /// Errors of [`Self::build_model`].
    fn outline(
        &self,
        work: &Workload,
        stage: &Stage,
        adapter: Option<Arc<dyn Adapter>>,
    ) -> Result<Outline, ModelBuildError>;

    /// Builds the stages of this rank and runs the hooks around them.
    ///
    /// # Errors
    /// Errors of [`ModelBuilder::build_model`] and of the hooks.
    fn build_models(
        &self,
        config: &dyn ModelConfig,
        context: &BuildContext,
        stages: &[Stage],
    ) -> Result<Vec<Box<dyn ModelChunk>>, ModelBuildError> {
        let chunks = stages.iter().map(|stage| self.build_model(context, stage)).collect::<Result<Vec<_>, _>>()?;
        let chunks = compose_hooks(config.pre_wrap_hooks())(chunks)?;
        compose_hooks(config.post_wrap_hooks())(chunks)
    }
}

/// A function from chunks to chunks. A hook that knows the module type of a chunk may change the
/// whole module ([`ModuleChunk::downcast`](super::ModuleChunk::downcast),
/// [`ModuleChunk::map_module`](super::ModuleChunk::map_module)). A hook must not add or remove
/// parameters, because outlines, plans and checkpoints rely on the declared ones: use these instead
/// ([`ModelRegistry::adapt`](super::ModelRegistry::adapt),
/// [`ModelRegistry::replace_last_layer`](super::ModelRegistry::replace_last_layer)).
pub type ModelHook =
    Arc<dyn Fn(Vec<Box<dyn ModelChunk>>) -> Result<Vec<Box<dyn ModelChunk>>, ModelBuildError> + Send + Sync>;

/// One hook that runs `hooks` from left to right; the identity for none.
pub fn compose_hooks(hooks: Vec<ModelHook>) -> ModelHook {
    Arc::new(move |chunks| hooks.iter().try_fold(chunks, |chunks, hook| hook(chunks)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_tile_the_stacks() {
        let content = |layers: Range<usize>, total: usize| StageContent {
            embedding: layers.start == 0,
            loss: layers.end == total,
            layers,
            num_mtp_layers: 0,
        };
        let part = |layers, start, end| StackPart { layers, start, end };
        let of = |layers: Range<usize>| Stage::from_content(&[3, 2], &content(layers, 5)).stacks;
        assert_eq!(of(0..2), [part(0..2, true, false), part(0..0, false, false)]);
        assert_eq!(of(2..4), [part(2..3, false, true), part(0..1, true, false)]);
        assert_eq!(of(3..5), [part(3..3, false, false), part(0..2, true, true)]);
        assert_eq!(of(0..3), [part(0..3, true, true), part(0..0, false, false)]);
        assert_eq!(of(0..5), Stage::whole([3, 2]).stacks);
        // Stages without layers, and the ends of the model without a layer.
        assert_eq!(of(4..4), [part(3..3, false, false), part(1..1, false, false)]);
        let head = StageContent { embedding: false, loss: true, layers: 3..3, num_mtp_layers: 0 };
        assert_eq!(Stage::from_content(&[3], &head), Stage::from(part(3..3, false, true)));
    }
}
