//! Checkpoints in object stores: `checkpoint.custom_manager_class = "s3://BUCKET/PREFIX"`.
//!
//! Without the cargo feature `object-stores`, the setting is refused, and the error names the
//! feature.

use std::sync::Arc;

use bridge_core::checkpoint::CheckpointManager;
use bridge_core::config::{ConfigError, ErrorKind, RunConfig};
use bridge_core::train::{RunOptions, TrainError};
#[cfg(feature = "object-stores")]
use bridge_objects::{ObjectStoreManager, StoreSettings};

const KEY: &str = "checkpoint.custom_manager_class";

/// Opens the store that the recipe names by its address, for the run. Fails if the name is not the
/// address of a store, or the store's settings are incomplete. No request is sent yet.
pub fn open(config: &RunConfig, options: &mut RunOptions) -> Result<(), TrainError> {
    let Some(address) = &config.checkpoint.custom_manager_class else { return Ok(()) };
    let manager = manager(address)
        .map_err(|error| error.with_found(format!("{address:?}")).with_location(config.location(KEY)))?;
    options.managers.insert(address.clone(), manager);
    Ok(())
}

/// Opens the store at `address`.
#[cfg(feature = "object-stores")]
fn manager(address: &str) -> Result<Arc<dyn CheckpointManager>, Box<ConfigError>> {
    match ObjectStoreManager::open(&StoreSettings::new(address)) {
        Ok(manager) => Ok(Arc::new(manager)),
        Err(error) => Err(ConfigError::new(ErrorKind::WrongType, KEY, error.to_string()).into()),
    }
}

/// Not supported by this build.
#[cfg(not(feature = "object-stores"))]
fn manager(_address: &str) -> Result<Arc<dyn CheckpointManager>, Box<ConfigError>> {
    let message = "needs the cargo feature `object-stores`, which this build does not have";
    let hint = "build with `--features bridge-cli/object-stores`";
    Err(ConfigError::new(ErrorKind::NotImplemented, KEY, message).with_hint(hint).into())
}
