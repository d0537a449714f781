//! `--layout tp=8,pp=16`: parallel sizes and batch sizes by their short names, as overrides of a
//! recipe.

use std::fmt;
use std::str::FromStr;

/// Short names and their settings. `world` is not a setting.
const NAMES: [(&str, &str); 9] = [
    ("tp", "model.tensor_model_parallel_size"),
    ("sp", "model.sequence_parallel"),
    ("cp", "model.context_parallel_size"),
    ("pp", "model.pipeline_model_parallel_size"),
    ("vp", "model.virtual_pipeline_model_parallel_size"),
    ("ep", "model.expert_model_parallel_size"),
    ("etp", "model.expert_tensor_parallel_size"),
    ("mbs", "train.micro_batch_size"),
    ("gbs", "train.global_batch_size"),
];

/// Sizes that a layout changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    world_size: Option<usize>,
    settings: Vec<(&'static str, String)>,
}

impl Layout {
    /// Sizes of the layout as overrides.
    pub fn overrides(&self) -> impl Iterator<Item = String> + '_ {
        self.settings.iter().map(|(key, value)| format!("{key}={value}"))
    }

    /// Number of ranks of the layout, if it is given.
    pub fn world_size(&self) -> Option<usize> {
        self.world_size
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut layout = Self::default();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').ok_or_else(|| format!("expected name=size, found `{item}`"))?;
            if name == "world" {
                let size = value.parse().ok().filter(|size| *size > 0);
                layout.world_size = Some(size.ok_or_else(|| format!("expected a number of ranks, found `{item}`"))?);
                continue;
            }
            let Some((_, key)) = NAMES.iter().find(|(short, _)| *short == name) else {
                let known: Vec<&str> = NAMES.iter().map(|(short, _)| *short).chain(["world"]).collect();
                return Err(format!("unknown size `{name}`; expected one of {}", known.join(", ")));
            };
            layout.settings.push((key, value.to_owned()));
        }
        Ok(layout)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |key: &str| NAMES.iter().find(|(_, known)| *known == key).map_or("", |(short, _)| *short);
        let settings = self.settings.iter().map(|(key, value)| format!("{}={value}", short(key)));
        let world = self.world_size.map(|size| format!("world={size}"));
        f.write_str(&settings.chain(world).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_become_overrides() {
        let layout: Layout = "tp=8,sp=true,world=64,gbs=128".parse().unwrap();
        assert_eq!(layout.world_size(), Some(64));
        let expected =
            ["model.tensor_model_parallel_size=8", "model.sequence_parallel=true", "train.global_batch_size=128"];
        assert_eq!(layout.overrides().collect::<Vec<_>>(), expected);
        assert_eq!(layout.to_string(), "tp=8,sp=true,gbs=128,world=64");
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<Layout>().unwrap_err();
        assert!(error("tpp=8").contains("unknown size `tpp`; expected one of tp, sp"));
        assert!(error("tp").contains("name=size, found `tp`"));
        assert!(error("world=0").contains("a number of ranks, found `world=0`"));
    }
}
