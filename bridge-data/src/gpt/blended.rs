//! Several datasets read as one, in fixed proportions. The arithmetic of blends is in `blending`;
//! members are built by `provider`.

use std::sync::Arc;

use super::blending::{BlendingIndices, MAX_DATASETS, blending_indices, exhaustive_blending_indices, normalize};
use super::cache::{CacheKey, Fingerprint, typed_array};
use super::fim::FimDataset;
use super::spans::SpanDataset;
use super::{GptDataset, IndexCache};
use crate::DataError;
use crate::dataset::{BuildEvent, BuildObserver, Dataset, FetchOrder, Sample};
use crate::json_text::Json;
use crate::npy::{self, IndexArray};

/// A dataset that can be a member of a blend.
#[allow(clippy::large_enum_variant, reason = "a blend has a handful of members, and they are not moved")]
pub(crate) enum Member {
    Gpt(GptDataset),
    Fim(FimDataset),
    Spans(SpanDataset),
}

impl Member {
    pub(crate) fn gpt(&self) -> &GptDataset {
        match self {
            Self::Gpt(dataset) => dataset,
            Self::Fim(dataset) => dataset.inner(),
            Self::Spans(dataset) => dataset.inner(),
        }
    }

    fn dataset(&self) -> &dyn Dataset {
        match self {
            Self::Gpt(dataset) => dataset,
            Self::Fim(dataset) => dataset,
            Self::Spans(dataset) => dataset,
        }
    }

    pub(crate) fn into_shared(self) -> Arc<dyn Dataset> {
        match self {
            Self::Gpt(dataset) => Arc::new(dataset),
            Self::Fim(dataset) => Arc::new(dataset),
            Self::Spans(dataset) => Arc::new(dataset),
        }
    }
}

/// Mixture of members.
pub(crate) enum Mix {
    /// Datasets mixed by weight, with this many samples in total.
    Weighted { weights: Vec<f64>, size: usize },
    /// Every sample of every member once.
    Exhaustive,
}

/// Several datasets in one; not shuffled beyond the shuffling of the members.
pub struct BlendedDataset {
    members: Vec<Member>,
    dataset_index: IndexArray<i16>,
    sample_index: IndexArray<i64>,
}

const CLASS: &str = "BlendedDataset";
const DATASET_INDEX: &str = "dataset_index.npy";
const SAMPLE_INDEX: &str = "dataset_sample_index.npy";

impl BlendedDataset {
    /// Blends members of one split. The arrays are cached only in a user-named folder, because they
    /// belong to no single dataset.
    pub(crate) fn build(
        members: Vec<Member>,
        mix: &Mix,
        cache: &IndexCache,
        observer: &dyn BuildObserver,
    ) -> Result<Self, DataError> {
        if members.len() >= MAX_DATASETS {
            return Err(DataError::Parameter(format!(
                "a blend of {} datasets; there must be fewer than {MAX_DATASETS}",
                members.len()
            )));
        }
        let sizes: Vec<usize> = members.iter().map(|member| member.gpt().len()).collect();
        let plan = BlendPlan::new(&members, mix, &sizes);
        let key = match cache {
            IndexCache::Folder(folder) => {
                Some(CacheKey::new(folder.clone(), CLASS, plan.split, plan.description.dump()))
            }
            IndexCache::Default | IndexCache::Off => None,
        };
        let cached = key.as_ref().map_or(Ok(None), |key| load(key, members.len(), plan.size));
        let cached = cached.unwrap_or_else(|error| {
            observer.on_event(&BuildEvent::CacheRejected {
                path: "blend".to_owned(),
                split: plan.split,
                reason: error.to_string(),
            });
            None
        });
        let (dataset_index, sample_index) = match cached {
            Some(arrays) => arrays,
            None => {
                let built = match mix {
                    Mix::Weighted { size, .. } => blending_indices(&plan.weights, *size),
                    Mix::Exhaustive => exhaustive_blending_indices(&sizes),
                };
                key.as_ref().map_or(Ok(()), |key| store(key, &built))?;
                (IndexArray::Owned(built.dataset), IndexArray::Owned(built.sample))
            }
        };
        check_demand(&members, &sizes, dataset_index.as_slice())?;
        Ok(Self { members, dataset_index, sample_index })
    }
}

/// The parameters of a blend, before its arrays are computed.
struct BlendPlan {
    /// Normalized; empty for an exhaustive blend.
    weights: Vec<f64>,
    size: usize,
    split: &'static str,
    description: Json,
}

impl BlendPlan {
    fn new(members: &[Member], mix: &Mix, sizes: &[usize]) -> Self {
        let split = members.first().map_or("train", |member| member.gpt().split().name());
        let (weights, size) = match mix {
            Mix::Weighted { weights, size } => (normalize(weights), *size),
            Mix::Exhaustive => (Vec::new(), sizes.iter().sum()),
        };
        let (shown_weights, shown_size) = match mix {
            Mix::Weighted { .. } => {
                (weights.iter().map(|&weight| Json::Float(weight)).collect(), Json::Integer(size as i128))
            }
            Mix::Exhaustive => (sizes.iter().map(|&size| Json::Integer(size as i128)).collect(), Json::Null),
        };
        let datasets = members.iter().map(|member| member.gpt().identity().clone()).collect();
        let description = Json::Object(vec![
            ("class", Json::text(CLASS)),
            ("datasets", Json::List(datasets)),
            ("split", Json::text(split)),
            ("weights", Json::List(shown_weights)),
            ("size", shown_size),
        ]);
        Self { weights, size, split, description }
    }
}

/// Checks that the index uses no more samples of a member than it has.
fn check_demand(members: &[Member], sizes: &[usize], dataset_index: &[i16]) -> Result<(), DataError> {
    let mut demand = vec![0u64; members.len()];
    for &member in dataset_index {
        demand[member as usize] += 1;
    }
    for ((member, &size), &needed) in members.iter().zip(sizes).zip(&demand) {
        if needed > size as u64 {
            return Err(DataError::BlendOversamples {
                path: member.gpt().name(),
                split: member.gpt().split().name(),
                needed,
                found: size as u64,
            });
        }
    }
    Ok(())
}

type Arrays = (IndexArray<i16>, IndexArray<i64>);

/// The cached arrays, after checking that they are a blend: members in range, and each member's
/// samples numbered from 0.
fn load(key: &CacheKey, members: usize, size: usize) -> Result<Option<Arrays>, DataError> {
    let (Some((dataset, dataset_sum)), Some((sample, sample_sum))) =
        (typed_array::<i16>(key.open(DATASET_INDEX)?)?, typed_array::<i64>(key.open(SAMPLE_INDEX)?)?)
    else {
        return Ok(None);
    };
    let bad = |problem: &str| Err(DataError::malformed(&key.file(DATASET_INDEX), problem));
    if let Some(fingerprint) = key.read_fingerprint()?
        && fingerprint.arrays != [dataset_sum, sample_sum]
    {
        return bad("the checksum of an array does not match");
    }
    if dataset.as_slice().len() != size || sample.as_slice().len() != size {
        return bad("the blend has another size");
    }
    let mut counts = vec![0i64; members];
    for (&member, &number) in dataset.as_slice().iter().zip(sample.as_slice()) {
        match usize::try_from(member).ok().and_then(|member| counts.get_mut(member)) {
            Some(count) if *count == number => *count += 1,
            _ => return bad("the arrays are not a blend of these datasets"),
        }
    }
    Ok(Some((dataset, sample)))
}

fn store(key: &CacheKey, built: &BlendingIndices) -> Result<(), DataError> {
    let shape = [built.dataset.len()];
    let arrays = vec![
        npy::write(&key.file(DATASET_INDEX), &built.dataset, &shape)?,
        npy::write(&key.file(SAMPLE_INDEX), &built.sample, &shape)?,
    ];
    key.write_description()?;
    key.write_fingerprint(&Fingerprint { options: "blend".to_owned(), data: 0, arrays })
}

impl Dataset for BlendedDataset {
    fn len(&self) -> usize {
        self.dataset_index.as_slice().len()
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        let (datasets, samples) = (self.dataset_index.as_slice(), self.sample_index.as_slice());
        if index >= datasets.len() {
            let what = "blended sample".to_owned();
            return Err(DataError::OutOfRange { what, index, len: datasets.len() });
        }
        self.members[datasets[index] as usize].dataset().get(samples[index] as usize)
    }

    fn fetch_order(&self) -> FetchOrder {
        self.members.first().map_or(FetchOrder::Any, |member| member.dataset().fetch_order())
    }

    fn restart(&self) {
        self.members.iter().for_each(|member| member.dataset().restart());
    }
}
