//! From the recipe's `device` to a Burn device, among those compiled in.

use burn::tensor::Device;

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The name is not one of ours.
    #[error("device: expected one of flex, cuda, wgpu, vulkan (`:N` chooses the N-th), found `{found}`{hint}")]
    Unknown {
        /// What the recipe says.
        found: String,
        /// The nearest valid name.
        hint: String,
    },
    /// The back end was not compiled in.
    #[error(
        "device: `{found}` needs the cargo feature `{feature}`, which this build does not have \
         (build with `--features {feature}`; `cargo xtask train RECIPE --device {feature}` does it)"
    )]
    NotCompiledIn {
        /// What the recipe says.
        found: String,
        /// The feature to build with.
        feature: String,
    },
}

/// The device called `name`, without autodiff.
///
/// # Errors
/// If the name is unknown or its back end is not part of this build.
pub fn select_device(name: &str) -> Result<Device, DeviceError> {
    let unknown = |hint: String| DeviceError::Unknown { found: name.to_owned(), hint };
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, index.parse().map_err(|_| unknown(String::new()))?),
        None => (name, 0_usize),
    };
    match kind {
        "flex" | "cpu" => {
            if index != 0 {
                return Err(unknown("; the CPU is one device".into()));
            }
            Ok(Device::flex())
        }
        "cuda" | "wgpu" | "vulkan" => compiled_in(kind, index)
            .ok_or_else(|| DeviceError::NotCompiledIn { found: name.to_owned(), feature: kind.to_owned() }),
        _ => {
            let names = ["flex", "cpu", "cuda", "wgpu", "vulkan"];
            let nearest = names
                .into_iter()
                .max_by(|a, b| strsim::jaro_winkler(a, kind).total_cmp(&strsim::jaro_winkler(b, kind)));
            let near = nearest.filter(|n| strsim::jaro_winkler(n, kind) > 0.7);
            Err(unknown(near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()))
        }
    }
}

#[allow(unused_variables, reason = "without GPU features there is nothing to select")]
fn compiled_in(kind: &str, index: usize) -> Option<Device> {
    match kind {
        #[cfg(feature = "cuda")]
        "cuda" => Some(Device::cuda(index)),
        #[cfg(feature = "wgpu")]
        "wgpu" => Some(Device::wgpu(gpu(index))),
        #[cfg(feature = "vulkan")]
        "vulkan" => Some(Device::vulkan(gpu(index))),
        _ => None,
    }
}

#[cfg(any(feature = "wgpu", feature = "vulkan"))]
fn gpu(index: usize) -> burn::tensor::DeviceKind {
    match index {
        0 => burn::tensor::DeviceKind::DefaultDevice,
        index => burn::tensor::DeviceKind::DiscreteGpu(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(select_device("flex").is_ok());
        assert!(select_device("cpu").is_ok());
        assert!(select_device("flex:1").is_err());
        let error = select_device("flx").unwrap_err().to_string();
        assert!(error.contains("did you mean `flex`"), "{error}");
        #[cfg(not(feature = "cuda"))]
        assert!(select_device("cuda:3").unwrap_err().to_string().contains("--features cuda"));
    }
}
