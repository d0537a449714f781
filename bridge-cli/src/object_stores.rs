//! Checkpoints in object stores: `checkpoint.custom_manager_class = "s3://BUCKET/PREFIX"`.

use std::sync::Arc;

use bridge_core::config::{ConfigError, ErrorKind, RunConfig};
use bridge_core::train::{RunOptions, TrainError};
use bridge_objects::{ObjectStoreManager, StoreSettings};

const KEY: &str = "checkpoint.custom_manager_class";

/// Opens the store that the recipe names by its address, for the run.
///
/// # Errors
/// If it is no address of a store, or the store's settings do not suffice. Nothing is sent yet.
pub fn open(config: &RunConfig, options: &mut RunOptions) -> Result<(), TrainError> {
    let Some(address) = &config.checkpoint.custom_manager_class else { return Ok(()) };
    let manager = ObjectStoreManager::open(&StoreSettings::new(address)).map_err(|error| {
        let error = ConfigError::new(ErrorKind::WrongType, KEY, error.to_string())
            .with_found(format!("{address:?}"))
            .with_location(config.location(KEY));
        TrainError::Config(error.into())
    })?;
    options.managers.insert(address.clone(), Arc::new(manager));
    Ok(())
}
