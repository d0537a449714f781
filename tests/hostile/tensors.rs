//! Safetensors files, taken apart and put together again with something changed.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

/// dtype, shape and bytes of each tensor.
pub struct Tensors(pub BTreeMap<String, (String, Vec<u64>, Vec<u8>)>);

impl Tensors {
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let (length, rest) = bytes.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
        let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
        let tensor = |info: &Value| {
            let [from, to] = [0, 1].map(|i| info["data_offsets"][i].as_u64().unwrap() as usize);
            let shape = info["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect();
            (info["dtype"].as_str().unwrap().to_owned(), shape, data[from..to].to_vec())
        };
        let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
        Self(tensors.map(|(name, info)| (name.clone(), tensor(info))).collect())
    }

    pub fn write(&self, path: &Path) {
        let (mut header, mut data) = (BTreeMap::new(), Vec::new());
        for (name, (dtype, shape, bytes)) in &self.0 {
            let end = data.len() + bytes.len();
            header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": [data.len(), end] }));
            data.extend_from_slice(bytes);
        }
        let mut text = serde_json::to_string(&header).unwrap();
        text.push_str(&" ".repeat((8 - text.len() % 8) % 8));
        let length = (text.len() as u64).to_le_bytes();
        std::fs::write(path, [&length[..], text.as_bytes(), &data].concat()).unwrap();
    }

    /// Changes one tensor.
    pub fn with(mut self, name: &str, change: impl FnOnce(&mut (String, Vec<u64>, Vec<u8>))) -> Self {
        change(self.0.get_mut(name).unwrap_or_else(|| panic!("there is `{name}`")));
        self
    }
}
