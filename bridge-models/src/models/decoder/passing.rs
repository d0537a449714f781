//! Tensors that pass layers beside the residual stream, and so cross borders between segments:
//! vectors of all layers, and keys and values, and choices of keys, that later layers use too.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bridge_core::model::{RankPlace, SegmentCost, Workload};
use bridge_kernels::KeyChoice;
use burn::tensor::Tensor;

use crate::architecture::config::DecoderConfig;

/// Name of the vectors of all layers of each token.
pub(super) const PER_LAYER_INPUTS: &str = "per_layer_inputs";
/// Name of a choice of keys.
pub(super) const CHOSEN_KEYS: &str = "chosen_keys";
/// Names of shared keys and values of layers without a window, and of those with one.
const SHARED: [[&str; 2]; 2] = [["shared_keys", "shared_values"], ["shared_windowed_keys", "shared_windowed_values"]];

/// Place in a model: global number of a layer and number of its part.
pub(super) type Place = (usize, usize);

/// A tensor that some places get beside the residual stream.
#[derive(Clone, Debug)]
pub(super) struct Passing {
    /// Name in boundaries.
    pub name: &'static str,
    /// Elements of a token on this rank; for a choice of keys, runs of heads that choose.
    width: usize,
    /// The places before which the tensor is there.
    places: RangeInclusive<Place>,
    /// For keys, values or choices: the layer that makes them, the layers that use them, and the
    /// size of a head.
    heads: Option<(usize, Vec<usize>, usize)>,
}

impl Passing {
    /// The tensors of a decoder on the rank at `place`.
    pub fn of(config: &DecoderConfig, place: &RankPlace) -> Vec<Self> {
        let per_layer = config.per_layer.map(|per_layer| Self {
            name: PER_LAYER_INPUTS,
            width: config.num_layers * per_layer.size,
            places: (0, 0)..=(config.num_layers - 1, usize::MAX),
            heads: None,
        });
        let mut all: Vec<Self> = per_layer.into_iter().collect();
        let users_of = |source_of: &dyn Fn(usize) -> Option<usize>| {
            let mut users = BTreeMap::<usize, Vec<usize>>::new();
            for layer in 0..config.num_layers {
                source_of(layer).into_iter().for_each(|source| users.entry(source).or_default().push(layer));
            }
            users
        };
        for (source, users) in users_of(&|layer| config.keys_from(layer)) {
            let (first, last) = ((source, 1), (users[users.len() - 1], 0));
            let of_layer = config.of_layer(source);
            let groups = (of_layer.num_query_groups / place.tensor.size).max(1);
            let names = SHARED[usize::from(config.window(source).is_some())];
            let sizes = [of_layer.kv_channels, of_layer.value_size()];
            all.extend(names.into_iter().zip(sizes).map(|(name, size)| Self {
                name,
                width: groups * size,
                places: first..=last,
                heads: Some((source, users.clone(), size)),
            }));
        }
        for (source, users) in users_of(&|layer| config.choice_from(layer)) {
            let runs = config.indexer.as_ref().filter(|indexer| indexer.block_size.is_some());
            all.push(Self {
                name: CHOSEN_KEYS,
                width: runs.map_or(1, |indexer| (indexer.heads / place.tensor.size).max(1)),
                places: (source, 1)..=(users[users.len() - 1], 0),
                heads: Some((source, users, 1)),
            });
        }
        all
    }

    /// Elements of a token on this rank, in sequences of `s` tokens.
    pub fn width(&self, s: usize) -> usize {
        if self.name == CHOSEN_KEYS { self.width * KeyChoice::numbers(s) } else { self.width }
    }

    /// True if the tensor is in the boundary before this place.
    pub fn is_before(&self, place: Place) -> bool {
        self.places.contains(&place)
    }

    /// True if the attention of `layer` makes the tensor.
    pub fn is_made_by(&self, layer: usize) -> bool {
        self.heads.as_ref().is_some_and(|(source, ..)| *source == layer)
    }

    /// True if the attention of `layer` uses the tensor, which another layer makes.
    pub fn serves(&self, layer: usize) -> bool {
        self.heads.as_ref().is_some_and(|(_, users, _)| users.contains(&layer))
    }

    /// The heads of `x_btf`, which is this tensor, if the attention of `layer` uses them: `[b, t,
    /// g, size]`.
    pub fn used_by(&self, layer: usize, x_btf: &Tensor<3>) -> Option<Tensor<4>> {
        let (.., size) = self.heads.as_ref().filter(|_| self.serves(layer))?;
        let [b, t, f] = x_btf.dims();
        Some(x_btf.clone().reshape([b, t, f / size, *size]))
    }

    /// Tokens of the tensor on a rank: `own` of the residual stream, or for heads and choices `all`
    /// of the tensor-parallel region.
    pub fn tokens<T>(&self, own: T, all: T) -> T {
        if self.heads.is_some() { all } else { own }
    }
}

/// The cost `block` of a place with the tensors that pass it beside the residual stream.
pub(super) fn with_passing(block: SegmentCost, config: &DecoderConfig, place: Place, work: &Workload) -> SegmentCost {
    let of = |passing: &Passing| {
        passing.tokens(work.tokens_between_blocks(), work.tokens()) * passing.width(work.seq_length) as u64
    };
    let all = Passing::of(config, &work.place);
    let passing = all.iter().filter(|passing| passing.is_before(place));
    passing.fold(block, |block, passing| SegmentCost {
        input: block.input + of(passing),
        carried_tensors: block.carried_tensors + 1,
        ..block
    })
}
