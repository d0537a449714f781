//! Runs in Weights & Biases' own files, which `wandb sync` sends: the log of a run and its records.
//! No server is contacted.

mod datastore;
mod earlier;
mod records;

pub(super) use datastore::DataStore;
pub(super) use earlier::{Earlier, look_at_earlier};
pub(super) use records::{Checkpoint, Row, RunHead, exit, files, head, history, run, summary};

/// Field of a record as JSON; numbers that are not finite are written as Python writes them, which
/// is how W&B reads them.
pub(super) fn json_of(value: &super::MetricValue) -> String {
    let json = serde_json::to_string(value).unwrap_or_default();
    // In JSON these are texts.
    if value.number().is_some() { json.replace('"', "") } else { json }
}

/// A setting as JSON, likewise.
pub(super) fn json_of_setting(value: &toml::Value) -> String {
    match value {
        toml::Value::Float(number) => json_of(&super::MetricValue::F64(*number)),
        toml::Value::Array(values) => {
            let values: Vec<String> = values.iter().map(json_of_setting).collect();
            format!("[{}]", values.join(","))
        }
        toml::Value::Table(table) => {
            let fields: Vec<String> = table
                .iter()
                .map(|(key, value)| format!("{}:{}", serde_json::Value::from(key.as_str()), json_of_setting(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

#[cfg(test)]
pub(super) mod tests;
