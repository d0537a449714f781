//! Weights of other programs that `checkpoint.pretrained_checkpoint` names: they become a
//! checkpoint once, in the run's folder, and the run starts from it.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::checkpoint::{CheckpointError, CheckpointStore, CheckpointWriter, SaveOptions, Verification};
use crate::config::RunConfig;
use crate::train::data::registry::WeightFormat;
use crate::train::resume::error::ResumeError;

/// The folder of the imported checkpoint in that of the run's logs.
const FOLDER: &str = "imported";
/// File in the imported checkpoint with its source.
const MADE_OF: &str = "imported_from.txt";

/// The folder of checkpoints for `checkpoint.pretrained_checkpoint`: the named folder, or the
/// import of another program's weights.
pub(super) fn pretrained_root(config: &RunConfig, formats: &[WeightFormat]) -> Option<PathBuf> {
    let path = config.checkpoint.pretrained_checkpoint.as_ref()?;
    Some(root_of(path, formats, &config.logger.log_dir.join(FOLDER)))
}

/// The folder of checkpoints for `path`: `imported` if `path` has another program's weights, or
/// `path` itself.
pub(super) fn root_of(path: &Path, formats: &[WeightFormat], imported: &Path) -> PathBuf {
    if format_of(path, formats).is_some() { imported.to_owned() } else { path.to_owned() }
}

/// Format of the other program's weights at a path, and their fingerprint.
fn format_of<'a>(path: &Path, formats: &'a [WeightFormat]) -> Option<(&'a WeightFormat, String)> {
    formats.iter().find_map(|format| Some((format, (format.fingerprint)(path)?)))
}

/// Opens another program's weights that the recipe names, and writes nothing. Returns true if the
/// recipe names some.
pub(in crate::train) fn check_foreign(config: &RunConfig, formats: &[WeightFormat]) -> Result<bool, ResumeError> {
    let path = config.checkpoint.pretrained_checkpoint.as_deref();
    let Some((format, _)) = path.and_then(|path| format_of(path, formats)) else { return Ok(false) };
    (format.open)(path.unwrap_or(Path::new(""))).map(drop).map_err(ResumeError::ForeignWeights)?;
    Ok(true)
}

/// Message about another program's weights that the recipe names.
pub(in crate::train) fn remark_on_foreign(config: &RunConfig, formats: &[WeightFormat]) -> Option<String> {
    let path = config.checkpoint.pretrained_checkpoint.as_deref()?;
    let (format, _) = format_of(path, formats)?;
    (format.remark)(path)
}

/// Makes the checkpoint that [`pretrained_root`] names, unless it is there and the weights have not
/// changed since. Returns notes for the user.
pub(super) fn import(config: &RunConfig, formats: &[WeightFormat]) -> Result<Option<String>, ResumeError> {
    let Some(path) = &config.checkpoint.pretrained_checkpoint else { return Ok(None) };
    import_to(path, formats, &config.logger.log_dir.join(FOLDER))
}

/// Makes the checkpoint that [`root_of`] names, in the same way.
pub(super) fn import_to(path: &Path, formats: &[WeightFormat], root: &Path) -> Result<Option<String>, ResumeError> {
    let Some((format, fingerprint)) = format_of(path, formats) else { return Ok(None) };
    if made_of(root).is_some_and(|earlier| earlier == fingerprint) {
        return Ok(None);
    }
    let mut snapshot = (format.open)(path).map_err(ResumeError::ForeignWeights)?;
    snapshot.run.files.insert(MADE_OF.to_owned(), Bytes::from(fingerprint));
    let producer = concat!("bridge ", env!("CARGO_PKG_VERSION")).to_owned();
    let report = CheckpointWriter::open(root, SaveOptions { producer, ..SaveOptions::default() })
        .and_then(|writer| writer.save(&snapshot))
        .map_err(|error| match error {
            CheckpointError::InvalidTensor { reason } => ResumeError::ForeignWeights(reason.into()),
            other => other.into(),
        })?;
    Ok(Some(format!("imported {} to {}", path.display(), report.path.display())))
}

/// Source that an imported checkpoint was made of.
fn made_of(root: &Path) -> Option<String> {
    // The run that starts from it verifies every byte.
    let checkpoint = CheckpointStore::open(root).and_then(|store| store.open_iteration(0, Verification::Sizes)).ok()?;
    String::from_utf8(checkpoint.file(MADE_OF).ok()?).ok()
}
