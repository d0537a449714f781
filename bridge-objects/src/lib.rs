//! Checkpoints in an object store: Amazon's S3 and compatible stores, Google Cloud Storage, Azure.
//! [`ObjectStoreManager`] is a `CheckpointManager`, which a program hands to a run in
//! `RunOptions::managers`:
//!
//! ```text
//! PREFIX/iter_0000100/model-rank00000.safetensors
//! PREFIX/iter_0000100/...
//! PREFIX/iter_0000100/metadata.json      the manifest, stored last: without it there is no checkpoint
//! ```
//!
//! A stored checkpoint has the names and bytes of the folder `iter_0000100`, so a copy of all
//! objects is a folder of checkpoints. The newest checkpoint is the newest manifest; there is no
//! pointer that could disagree.

mod connector;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bridge_core::checkpoint::{CheckpointManager, ManagerError};
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt as _, PutPayload};
use tokio::runtime::{Builder, Runtime};

pub use settings::StoreSettings;

/// The last object of a checkpoint.
const MANIFEST: &str = "metadata.json";
/// Parts of a file that are on their way at the same time.
const PARTS_AT_ONCE: usize = 4;
/// Bytes that are fetched at once at most.
const LONGEST_RANGE: usize = 64 << 20;
/// S3 takes no smaller part but the last.
const LEAST_PART: usize = 5 << 20;
/// An upload has at most 10 000 parts.
const MOST_PARTS: u64 = 9_000;

/// Progress of a file.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// The checkpoint's iteration.
    pub iteration: u64,
    /// The file's name in the checkpoint.
    pub file: &'a str,
    /// True if the file is stored, false if it is fetched.
    pub is_upload: bool,
    /// Bytes that have been handed over.
    pub done: u64,
    /// All bytes.
    pub total: u64,
}

/// Callback for transfers.
type OnTransfer = Box<dyn Fn(Transfer<'_>) + Send + Sync>;

/// Keeps checkpoints in an object store.
pub struct ObjectStoreManager {
    store: Box<dyn ObjectStore>,
    url: String,
    prefix: ObjectPath,
    part_bytes: usize,
    on_transfer: Option<OnTransfer>,
    /// Files of the checkpoint that is being stored, with their sizes.
    stored: Mutex<BTreeMap<ObjectPath, u64>>,
    runtime: Option<Runtime>,
}

impl std::fmt::Debug for ObjectStoreManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ObjectStoreManager").field(&self.url).finish()
    }
}

impl Drop for ObjectStoreManager {
    fn drop(&mut self) {
        // The value may be dropped in a program's own runtime, where waiting is not allowed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl ObjectStoreManager {
    /// The manager for a place. No request is sent yet.
    ///
    /// # Errors
    /// If the URL or an option is wrong, or credentials cannot be read.
    pub fn open(settings: &StoreSettings) -> Result<Self, ManagerError> {
        if settings.part_bytes < LEAST_PART {
            let part_bytes = settings.part_bytes;
            return Err(format!("parts of {part_bytes} bytes: S3 takes those of {LEAST_PART} at least").into());
        }
        let (store, prefix) = settings.store()?;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("objects").enable_time().build()?;
        Ok(Self {
            store,
            url: settings.url.clone(),
            prefix,
            part_bytes: settings.part_bytes,
            on_transfer: None,
            stored: Mutex::default(),
            runtime: Some(runtime),
        })
    }

    /// Calls `told` whenever a part of a file has been handed over.
    #[must_use]
    pub fn on_transfer(mut self, told: impl Fn(Transfer<'_>) + Send + Sync + 'static) -> Self {
        self.on_transfer = Some(Box::new(told));
        self
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, ManagerError>>) -> Result<T, ManagerError> {
        self.runtime.as_ref().ok_or("the manager is being dropped")?.block_on(work)
    }

    fn tell(&self, transfer: Transfer<'_>) {
        if let Some(told) = &self.on_transfer {
            told(transfer);
        }
    }

    fn folder(&self, iteration: u64) -> ObjectPath {
        self.prefix.clone().join(format!("iter_{iteration:07}"))
    }

    fn object(&self, iteration: u64, name: &str) -> ObjectPath {
        name.split('/').fold(self.folder(iteration), |path, part| path.join(part))
    }

    fn failed(&self, doing: &str, path: &ObjectPath) -> impl FnOnce(object_store::Error) -> ManagerError {
        let what = format!("{doing} {path} of {}", self.url);
        move |error| format!("{what}: {}", told_whole(&error)).into()
    }

    /// All objects below `folder`, with their sizes.
    async fn objects(&self, folder: &ObjectPath) -> Result<Vec<ObjectMeta>, ManagerError> {
        self.store.list(Some(folder)).try_collect().await.map_err(self.failed("list", folder))
    }

    /// The iteration of an object, and whether it is a manifest.
    fn place_of(&self, path: &ObjectPath) -> Option<(u64, bool)> {
        let parts: Vec<_> = path.prefix_match(&self.prefix)?.collect();
        let iteration = parts.first()?.as_ref().strip_prefix("iter_")?.parse().ok()?;
        Some((iteration, parts.len() == 2 && parts[1].as_ref() == MANIFEST))
    }

    /// Deletes objects, many at once.
    async fn remove(&self, paths: Vec<ObjectPath>) -> Result<(), ManagerError> {
        let paths = futures_util::stream::iter(paths.into_iter().map(Ok)).boxed();
        let mut results = self.store.delete_stream(paths);
        while let Some(result) = results.next().await {
            match result {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(self.failed("delete objects below", &self.prefix)(error)),
            }
        }
        Ok(())
    }

    async fn upload(&self, iteration: u64, name: &str, file: &mut File, total: u64) -> object_store::Result<u64> {
        let path = self.object(iteration, name);
        let part_bytes = self.part_bytes.max(usize::try_from(total / MOST_PARTS).unwrap_or(usize::MAX));
        let step = |done| Transfer { iteration, file: name, is_upload: true, done, total };
        let unreadable = |error: std::io::Error| object_store::Error::Generic { store: "file", source: error.into() };
        if total <= part_bytes as u64 {
            let bytes = next_part(file, part_bytes).map_err(unreadable)?;
            let size = bytes.len() as u64;
            self.store.put(&path, PutPayload::from(bytes)).await?;
            self.tell(step(size));
            return Ok(size);
        }
        let mut upload = self.store.put_multipart(&path).await?;
        let mut on_their_way = FuturesUnordered::new();
        let work = async {
            let mut done = 0;
            loop {
                let bytes = next_part(file, part_bytes).map_err(unreadable)?;
                if bytes.is_empty() {
                    break;
                }
                // Bounds the memory: no more parts are read than are on their way.
                if on_their_way.len() == PARTS_AT_ONCE {
                    on_their_way.try_next().await?;
                }
                done += bytes.len() as u64;
                on_their_way.push(upload.put_part(PutPayload::from(bytes)));
                self.tell(step(done));
            }
            while on_their_way.try_next().await?.is_some() {}
            upload.complete().await?;
            Ok(done)
        };
        let result = work.await;
        if result.is_err() {
            // Otherwise the store keeps uploaded parts. An error of the abort is less informative
            // than the first error.
            let _ = upload.abort().await;
        }
        result
    }

    async fn download(&self, iteration: u64, name: &str, file: &Path) -> Result<bool, ManagerError> {
        let path = self.object(iteration, name);
        let total = match self.store.head(&path).await {
            Ok(found) => found.size,
            Err(object_store::Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(self.failed("look at", &path)(error)),
        };
        let mut written = File::create_new(file)?;
        let mut done = 0;
        while done < total {
            let end = total.min(done + self.part_bytes.min(LONGEST_RANGE) as u64);
            let bytes = match self.store.get_range(&path, done..end).await {
                Ok(bytes) => bytes,
                // Deleted since.
                Err(object_store::Error::NotFound { .. }) => return Ok(false),
                Err(error) => return Err(self.failed("fetch", &path)(error)),
            };
            if bytes.len() as u64 != end - done {
                let had = bytes.len();
                return Err(format!("fetch {path}: {had} bytes came of bytes {done} to {end}").into());
            }
            written.write_all(&bytes)?;
            done = end;
            self.tell(Transfer { iteration, file: name, is_upload: false, done, total });
        }
        written.sync_all()?;
        Ok(true)
    }
}

impl CheckpointManager for ObjectStoreManager {
    fn list(&self) -> Result<Vec<u64>, ManagerError> {
        let objects = self.wait(self.objects(&self.prefix))?;
        let places = objects.iter().filter_map(|object| self.place_of(&object.location));
        Ok(places.filter(|(_, is_manifest)| *is_manifest).map(|(iteration, _)| iteration).collect())
    }

    fn put(&self, iteration: u64, name: &str, file: &Path) -> Result<(), ManagerError> {
        let path = self.object(iteration, name);
        let mut opened = File::open(file)?;
        let total = opened.metadata()?.len();
        let size = self.wait(async {
            self.upload(iteration, name, &mut opened, total).await.map_err(self.failed("store", &path))
        })?;
        if size != total {
            return Err(format!("store {path}: {size} bytes were read of a file of {total}").into());
        }
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).insert(path, size);
        Ok(())
    }

    fn commit(&self, iteration: u64, manifest: &[u8]) -> Result<(), ManagerError> {
        let path = self.object(iteration, MANIFEST);
        let folder = self.folder(iteration);
        let stored = std::mem::take(&mut *self.stored.lock().unwrap_or_else(PoisonError::into_inner));
        self.wait(async {
            let there: BTreeMap<ObjectPath, u64> =
                self.objects(&folder).await?.into_iter().map(|object| (object.location, object.size)).collect();
            for (path, size) in stored.iter().filter(|(path, _)| path.prefix_matches(&folder)) {
                let found = there.get(path);
                if found != Some(size) {
                    return Err(format!("{path}: stored with {size} bytes, the store has {found:?}").into());
                }
            }
            let put = self.store.put(&path, PutPayload::from(manifest.to_vec())).await;
            let Err(error) = put else { return Ok(()) };
            // The answer may have been lost after the object was stored.
            let found = async { self.store.get(&path).await?.bytes().await };
            if found.await.is_ok_and(|bytes| bytes == manifest) {
                Ok(())
            } else {
                Err(self.failed("store", &path)(error))
            }
        })
    }

    fn manifest(&self, iteration: u64) -> Result<Vec<u8>, ManagerError> {
        let path = self.object(iteration, MANIFEST);
        self.wait(async {
            let found = self.store.get(&path).await.map_err(self.failed("fetch", &path))?;
            Ok(found.bytes().await.map_err(self.failed("fetch", &path))?.to_vec())
        })
    }

    fn open(&self, iteration: u64, name: &str, file: &Path) -> Result<bool, ManagerError> {
        let fetched = self.wait(self.download(iteration, name, file));
        if !matches!(fetched, Ok(true)) {
            let _ = std::fs::remove_file(file);
        }
        fetched
    }

    fn delete(&self, iteration: u64) -> Result<(), ManagerError> {
        let (folder, manifest) = (self.folder(iteration), self.object(iteration, MANIFEST));
        self.wait(async {
            let mut paths: Vec<_> = self.objects(&folder).await?.into_iter().map(|object| object.location).collect();
            if paths.contains(&manifest) {
                self.remove(vec![manifest.clone()]).await?;
            }
            paths.retain(|path| *path != manifest);
            self.remove(paths).await
        })
    }

    fn clear_up(&self) -> Result<(), ManagerError> {
        self.wait(async {
            let objects = self.objects(&self.prefix).await?;
            let places = || objects.iter().filter_map(|object| Some((self.place_of(&object.location)?, object)));
            let committed: BTreeSet<u64> =
                places().filter(|((_, is_manifest), _)| *is_manifest).map(|((iteration, _), _)| iteration).collect();
            let left = places().filter(|((iteration, _), _)| !committed.contains(iteration));
            self.remove(left.map(|(_, object)| object.location.clone()).collect()).await
        })
    }
}

/// The next part of a file; empty at its end.
fn next_part(file: &mut File, bytes: usize) -> std::io::Result<Bytes> {
    let mut part = Vec::new();
    file.take(bytes as u64).read_to_end(&mut part)?;
    Ok(part.into())
}

/// An error with all of its causes that it does not tell itself.
fn told_whole(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !told.contains(&more) {
            told = format!("{told}: {more}");
        }
        cause = error.source();
    }
    told
}
