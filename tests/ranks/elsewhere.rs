//! A checkpoint manager for tests, which keeps checkpoints in another folder.

use std::path::{Path, PathBuf};

use bridge_core::checkpoint::{CheckpointManager, ManagerError};

/// Another folder, with the manifests beside the files.
pub struct Elsewhere(pub PathBuf);

impl Elsewhere {
    fn folder(&self, iteration: u64) -> PathBuf {
        self.0.join(iteration.to_string())
    }

    fn manifest_of(&self, iteration: u64) -> PathBuf {
        self.0.join(format!("{iteration}.manifest"))
    }
}

fn unless_gone(result: std::io::Result<()>) -> Result<(), ManagerError> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

impl CheckpointManager for Elsewhere {
    fn list(&self) -> Result<Vec<u64>, ManagerError> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.0)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            found.extend(name.strip_suffix(".manifest").map(str::parse::<u64>).transpose()?);
        }
        Ok(found)
    }

    fn put(&self, iteration: u64, name: &str, file: &Path) -> Result<(), ManagerError> {
        let to = self.folder(iteration).join(name);
        std::fs::create_dir_all(to.parent().ok_or("no folder")?)?;
        std::fs::copy(file, to)?;
        Ok(())
    }

    fn commit(&self, iteration: u64, manifest: &[u8]) -> Result<(), ManagerError> {
        Ok(std::fs::write(self.manifest_of(iteration), manifest)?)
    }

    fn manifest(&self, iteration: u64) -> Result<Vec<u8>, ManagerError> {
        Ok(std::fs::read(self.manifest_of(iteration))?)
    }

    fn open(&self, iteration: u64, name: &str, file: &Path) -> Result<bool, ManagerError> {
        let from = self.folder(iteration).join(name);
        Ok(from.exists() && std::fs::copy(from, file).map(|_| true)?)
    }

    fn delete(&self, iteration: u64) -> Result<(), ManagerError> {
        unless_gone(std::fs::remove_file(self.manifest_of(iteration)))?;
        unless_gone(std::fs::remove_dir_all(self.folder(iteration)))
    }
}
