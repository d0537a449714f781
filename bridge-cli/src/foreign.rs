//! Models of other programs, as commands open them.

use std::path::Path;

use bridge_core::logging::terminal::complain;
use bridge_models::huggingface::HfModel;

use crate::failure::Failure;

/// Opens a Hugging Face folder or a GGUF file, and prints its remark, if it has one.
pub fn open_foreign(path: &Path) -> Result<HfModel, Failure> {
    let model = HfModel::open(path).map_err(Failure::input)?;
    if let Some(warning) = model.unused_warning() {
        complain(&format!("warning: {warning}"));
    }
    Ok(model)
}
