//! A checkpoint of `torch.distributed.checkpoint`: `.metadata`, a pickle that says where the parts
//! of each tensor are, and files with the parts.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use bridge_core::checkpoint::{Run, TensorSlice};
use bridge_data::untrusted_io;
use memmap2::Mmap;

use super::pickle::{Id, Pickle, Value};
use super::{MegatronError, archive};

/// Name of the file that lists the tensors.
pub const METADATA: &str = ".metadata";

/// A tensor as it is on disk.
#[derive(Debug)]
pub struct StoredTensor {
    /// Whole shape of the tensor.
    pub shape: Vec<usize>,
    chunks: Vec<Chunk>,
}

/// A slice of a tensor, and where it is.
#[derive(Debug)]
struct Chunk {
    slice: TensorSlice,
    file: usize,
    bytes: Range<usize>,
}

/// A folder with all of its tensors.
pub struct Folder {
    path: PathBuf,
    tensors: BTreeMap<String, StoredTensor>,
    files: Vec<(PathBuf, Mmap)>,
}

impl std::fmt::Debug for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Folder").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Folder {
    /// Reads the list of tensors; values are read on request. Fails on files that cannot be read,
    /// or are malformed.
    pub fn open(path: &Path) -> Result<Self, MegatronError> {
        let metadata = path.join(METADATA);
        let io = |path: &Path, source| MegatronError::Io { path: path.to_owned(), source };
        let damaged = |reason: String| MegatronError::Damaged { path: metadata.clone(), reason };
        let bytes = untrusted_io::read(&metadata, untrusted_io::RECORDS_BYTES).map_err(|error| io(&metadata, error))?;
        let pickle = Pickle::read(&bytes).map_err(|error| damaged(error.to_string()))?;
        let (mut tensors, mut found) = tables(&pickle).map_err(|what| damaged(what.to_owned()))?;
        let mut files: Vec<(PathBuf, Mmap)> = Vec::new();
        let mut numbers: HashMap<String, usize> = HashMap::new();
        for (name, tensor) in &mut tensors {
            let mut places = found.remove(name).unwrap_or_default();
            for chunk in &mut tensor.chunks {
                let place = places.remove(&Some(chunk.slice.offset.clone())).or_else(|| places.remove(&None));
                let place = place.ok_or_else(|| {
                    damaged(format!("{name}: nothing says where the part at {:?} is", chunk.slice.offset))
                })?;
                chunk.file = match numbers.get(&place.file) {
                    Some(number) => *number,
                    None => {
                        let file = untrusted_io::named(path, &place.file).map_err(|error| io(&metadata, error))?;
                        let map = untrusted_io::map(&file).map_err(|error| io(&file, error))?;
                        files.push((file, map));
                        numbers.insert(place.file, files.len() - 1);
                        files.len() - 1
                    }
                };
                let end = place.offset.checked_add(place.length).filter(|end| *end <= files[chunk.file].1.len());
                let reason = || format!("{name}: the part at {:?} lies behind the end of the file", chunk.slice.offset);
                chunk.bytes = place.offset
                    ..end.ok_or_else(|| MegatronError::Damaged {
                        path: files[chunk.file].0.clone(),
                        reason: reason(),
                    })?;
            }
        }
        Ok(Self { path: path.to_owned(), tensors, files })
    }

    /// All tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.tensors
    }

    /// The values of the tensor called `name` at these places of its first dimensions, row-major.
    ///
    /// # Errors
    /// Parts that are damaged, missing, or there twice.
    pub fn values(&self, name: &str, places: &[usize]) -> Result<Vec<f32>, MegatronError> {
        let tensor = &self.tensors[name];
        let shape = &tensor.shape[places.len()..];
        let mut values = Vec::new();
        let whole: usize = shape.iter().product();
        let wanted = TensorSlice {
            offset: places.iter().copied().chain(shape.iter().map(|_| 0)).collect(),
            extent: places.iter().map(|_| 1).chain(shape.iter().copied()).collect(),
        };
        let covers = |chunk: &&Chunk| places.iter().enumerate().all(|(d, place)| chunk.slice.range(d).contains(place));
        let mut taken: Vec<&TensorSlice> = Vec::new();
        let mut there = 0;
        for chunk in tensor.chunks.iter().filter(covers) {
            let (path, map) = &self.files[chunk.file];
            let damaged = |reason: String| MegatronError::Damaged {
                path: path.clone(),
                reason: format!("{name}, the part at {:?}: {reason}", chunk.slice.offset),
            };
            let (found, part) = archive::tensor(&map[chunk.bytes.clone()]).map_err(damaged)?;
            if found != chunk.slice.extent {
                return Err(damaged(format!("expected the shape {:?}, found {found:?}", chunk.slice.extent)));
            }
            // Allocated only after a chunk was read, so that a false shape does not allocate
            // memory.
            if values.is_empty() {
                values.try_reserve_exact(whole).map_err(|_| damaged(format!("no memory for {whole} values")))?;
                values.resize(whole, 0.0);
            }
            if taken.iter().any(|other| other.overlaps(&chunk.slice)) {
                return Err(damaged("it overlaps another part".into()));
            }
            taken.push(&chunk.slice);
            for Run { source, target, len } in chunk.slice.common_runs(&wanted) {
                values[target..target + len].copy_from_slice(&part[source..source + len]);
                there += len;
            }
        }
        if there == whole {
            return Ok(values);
        }
        let reason = format!("{name} at {places:?}: expected {whole} values, found {there}");
        Err(MegatronError::Damaged { path: self.path.join(METADATA), reason })
    }
}

/// Position of a part.
struct Place {
    file: String,
    offset: usize,
    length: usize,
}

/// Places by the name of the tensor and the offsets of the part.
type Places = HashMap<String, HashMap<Option<Vec<usize>>, Place>>;

/// The two tables of a `Metadata` (PyTorch, torch/distributed/checkpoint/metadata.py).
fn tables(pickle: &Pickle) -> Result<(BTreeMap<String, StoredTensor>, Places), &'static str> {
    let table = |name: &str| {
        let Some(Value::Dict(entries)) = pickle.attribute(pickle.root, name).map(|id| pickle.get(id)) else {
            return Err("it is no Metadata of torch.distributed.checkpoint");
        };
        Ok(entries)
    };
    let mut tensors = BTreeMap::new();
    for (name, what) in table("state_dict_metadata")? {
        let name = pickle.text(*name).ok_or("a tensor has no name")?;
        if !matches!(pickle.class(*what), Some((_, "TensorStorageMetadata"))) {
            continue;
        }
        let tensor = stored(pickle, *what).ok_or("a tensor's shape or parts cannot be understood")?;
        tensors.insert(name.to_owned(), tensor);
    }
    let mut places = Places::new();
    for (index, info) in table("storage_data")? {
        let name = pickle.attribute(*index, "fqn").and_then(|id| pickle.text(id)).ok_or("a part has no name")?;
        let offset = pickle.attribute(*index, "offset").and_then(|id| pickle.sizes(id));
        let place = place(pickle, *info).ok_or("a part's place cannot be understood")?;
        places.entry(name.to_owned()).or_default().insert(offset, place);
    }
    Ok((tensors, places))
}

fn stored(pickle: &Pickle, what: Id) -> Option<StoredTensor> {
    let shape = pickle.sizes(pickle.attribute(what, "size")?)?;
    let chunk = |id: &Id| {
        let [offsets, sizes] = ["offsets", "sizes"].map(|name| pickle.sizes(pickle.attribute(*id, name)?));
        let slice = TensorSlice { offset: offsets?, extent: sizes? };
        slice.is_inside(&shape).then_some(Chunk { slice, file: 0, bytes: 0..0 })
    };
    let chunks = pickle.parts(pickle.attribute(what, "chunks")?)?.iter().map(chunk).collect::<Option<Vec<_>>>()?;
    shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size))?;
    Some(StoredTensor { shape, chunks })
}

fn place(pickle: &Pickle, info: Id) -> Option<Place> {
    // Parts that were compressed or encrypted.
    let transforms = pickle.attribute(info, "transform_descriptors").map(|id| pickle.get(id));
    if transforms.is_some_and(|transforms| *transforms != Value::None) {
        return None;
    }
    let size = |name: &str| pickle.size(pickle.attribute(info, name)?);
    Some(Place {
        file: pickle.text(pickle.attribute(info, "relative_path")?)?.to_owned(),
        offset: size("offset")?,
        length: size("length")?,
    })
}
