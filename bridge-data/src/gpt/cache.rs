//! Index arrays on disk: their names, writing, and loading with checks. The meaning of the arrays
//! belongs to `index`.

use std::path::{Path, PathBuf};

use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use super::index::{EpochPlan, IndexRequest, PartialSample, SampleIndex, SampleIndices, ShuffleIndex};
use crate::npy::{self, IndexArray, Npy};
use crate::{DataError, atomic, untrusted_io};

/// Names the files of one dataset in one cache folder.
pub(crate) struct CacheKey {
    folder: PathBuf,
    stem: String,
    description: String,
}

impl CacheKey {
    /// `description` is the JSON text that identifies a dataset; its md5 becomes part of the names.
    pub(crate) fn new(folder: PathBuf, class: &str, split: &str, description: String) -> Self {
        let digest = Md5::digest(description.as_bytes());
        let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { folder, stem: format!("{hash}-{class}-{split}"), description }
    }

    /// The file of one array.
    pub(crate) fn file(&self, affix: &str) -> PathBuf {
        self.folder.join(format!("{}-{affix}", self.stem))
    }

    /// Writes the text that the name was made from.
    pub(crate) fn write_description(&self) -> Result<(), DataError> {
        atomic::write(&self.file(DESCRIPTION), self.description.as_bytes())
    }

    /// Loads the fingerprint; `None` when another program wrote the cache.
    pub(crate) fn read_fingerprint(&self) -> Result<Option<Fingerprint>, DataError> {
        let path = self.file(FINGERPRINT);
        match untrusted_io::read(&path, untrusted_io::SETTINGS_BYTES) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| DataError::malformed(&path, format!("damaged fingerprint: {error}"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DataError::io("read", &path)(error)),
        }
    }

    /// Writes the fingerprint; must be last, since its checksums certify the arrays.
    pub(crate) fn write_fingerprint(&self, fingerprint: &Fingerprint) -> Result<(), DataError> {
        let text = serde_json::to_vec_pretty(fingerprint).unwrap_or_default();
        atomic::write(&self.file(FINGERPRINT), &text)
    }

    /// Opens one array; `None` if it does not exist.
    pub(crate) fn open(&self, affix: &str) -> Result<Option<(PathBuf, Npy)>, DataError> {
        let path = self.file(affix);
        if !path.exists() {
            return Ok(None);
        }
        Npy::open(&path).map(|npy| Some((path, npy)))
    }
}

const DESCRIPTION: &str = "description.txt";
const FINGERPRINT: &str = "fingerprint.json";
const DOCUMENT: &str = "document_index.npy";
const SAMPLE: &str = "sample_index.npy";
const SHUFFLE: &str = "shuffle_index.npy";

/// The inputs of a cache and checksums of its arrays, to detect damage and changed data. Kept
/// beside the arrays, whose names and content are Megatron's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fingerprint {
    /// Settings that change the arrays but not the file name.
    pub(crate) options: String,
    /// Checksum of the dataset's index.
    pub(crate) data: u64,
    /// Checksums of the array files.
    pub(crate) arrays: Vec<u64>,
}

/// The options that a fingerprint of this request must have.
pub(crate) fn options_of(request: &IndexRequest<'_>) -> String {
    let partial = match request.partial {
        PartialSample::Drop => "drop",
        PartialSample::Keep => "keep",
    };
    format!("extra {} partial {partial}", request.extra)
}

/// Loads the arrays of `request`. `Ok(None)` if there is no complete cache. An error gives the
/// reason for which an existing cache is unusable.
pub(crate) fn load(
    key: &CacheKey,
    request: &IndexRequest<'_>,
    plan: EpochPlan,
    data: u64,
) -> Result<Option<SampleIndices>, DataError> {
    let (Some(document), Some(sample), Some(shuffle)) = (key.open(DOCUMENT)?, key.open(SAMPLE)?, key.open(SHUFFLE)?)
    else {
        return Ok(None);
    };
    let folder = key.file(DESCRIPTION);
    if let Some(fingerprint) = key.read_fingerprint()? {
        let checksums = [&document, &sample, &shuffle].map(|(_, npy)| npy::checksum(npy.file_bytes()));
        let found = Fingerprint { options: options_of(request), data, arrays: checksums.to_vec() };
        if fingerprint != found {
            return Err(DataError::malformed(&folder, differing(&fingerprint, &found)));
        }
    }
    let indices = typed(document, sample, shuffle)?;
    let counts = (indices.document.as_slice().len(), indices.sample.len(), indices.shuffle.len());
    let expected = (plan.epochs * request.lengths.len(), plan.samples + 1, plan.samples);
    if counts != expected {
        return Err(DataError::malformed(
            &folder,
            format!("(documents, boundaries, samples) are {counts:?}, expected {expected:?}"),
        ));
    }
    check_arrays(&indices, request, plan, &folder)?;
    Ok(Some(indices))
}

fn differing(cached: &Fingerprint, found: &Fingerprint) -> String {
    if cached.options != found.options {
        format!("cached for {:?}, expected {:?}", cached.options, found.options)
    } else if cached.data != found.data {
        "the dataset has changed since then".to_owned()
    } else {
        "the checksum of an array does not match".to_owned()
    }
}

/// Sample indices of three opened arrays, each with the path of its file.
fn typed(
    document: (PathBuf, Npy),
    sample: (PathBuf, Npy),
    shuffle: (PathBuf, Npy),
) -> Result<SampleIndices, DataError> {
    let ((document_path, document), (sample_path, sample), (shuffle_path, shuffle)) = (document, sample, shuffle);
    if sample.shape.len() != 2 || sample.shape[1] != 2 {
        return Err(DataError::malformed(&sample_path, format!("expected pairs, found shape {:?}", sample.shape)));
    }
    Ok(SampleIndices {
        document: document.into_array(&document_path)?,
        sample: match sample.descr.as_str() {
            "<i8" => SampleIndex::Wide(sample.into_array(&sample_path)?),
            _ => SampleIndex::Narrow(sample.into_array(&sample_path)?),
        },
        shuffle: match shuffle.descr.as_str() {
            "<i8" => ShuffleIndex::Wide(shuffle.into_array(&shuffle_path)?),
            _ => ShuffleIndex::Narrow(shuffle.into_array(&shuffle_path)?),
        },
    })
}

/// Checks the numbers of arrays: a fingerprint does not guarantee them, because a writer of arrays
/// can write a fingerprint too. The boundaries are recomputed from the document order, the rest
/// must be in range.
fn check_arrays(
    indices: &SampleIndices,
    request: &IndexRequest<'_>,
    plan: EpochPlan,
    folder: &Path,
) -> Result<(), DataError> {
    let sequences = request.first_sequence..request.first_sequence + request.lengths.len();
    let document = indices.document.as_slice();
    if !document.iter().all(|&id| usize::try_from(id).is_ok_and(|id| sequences.contains(&id))) {
        return Err(DataError::malformed(folder, "the document index leaves the split"));
    }
    if !request.fits(plan, document, &indices.sample) {
        return Err(DataError::malformed(folder, "the sample index does not fit the dataset's lengths"));
    }
    if !indices.shuffle.in_range() {
        return Err(DataError::malformed(folder, "the shuffle index names samples that do not exist"));
    }
    Ok(())
}

/// Writes all arrays, each atomically.
pub(crate) fn store(
    key: &CacheKey,
    request: &IndexRequest<'_>,
    indices: &SampleIndices,
    data: u64,
) -> Result<(), DataError> {
    let document = indices.document.as_slice();
    let pairs = [indices.sample.len(), 2];
    let samples = [indices.shuffle.len()];
    let arrays = vec![
        npy::write(&key.file(DOCUMENT), document, &[document.len()])?,
        match &indices.sample {
            SampleIndex::Narrow(array) => npy::write(&key.file(SAMPLE), array.as_slice(), &pairs)?,
            SampleIndex::Wide(array) => npy::write(&key.file(SAMPLE), array.as_slice(), &pairs)?,
        },
        match &indices.shuffle {
            ShuffleIndex::Narrow(array) => npy::write(&key.file(SHUFFLE), array.as_slice(), &samples)?,
            ShuffleIndex::Wide(array) => npy::write(&key.file(SHUFFLE), array.as_slice(), &samples)?,
        },
    ];
    key.write_description()?;
    key.write_fingerprint(&Fingerprint { options: options_of(request), data, arrays })
}

/// A single array of numbers for the blend's cache.
pub(crate) fn typed_array<T: npy::Element>(
    opened: Option<(PathBuf, Npy)>,
) -> Result<Option<(IndexArray<T>, u64)>, DataError> {
    opened
        .map(|(path, npy)| {
            let checksum = npy::checksum(npy.file_bytes());
            npy.into_array(&path).map(|array| (array, checksum))
        })
        .transpose()
}
