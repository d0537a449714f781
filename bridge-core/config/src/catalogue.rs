//! Every setting of a recipe by its dotted key, from the tables of the sections, with what this
//! release says to using it.

use super::kinds::Kinds;
use super::node::Node;
use super::section::Section;
use super::sections::{OF_EVERY_KIND, RecipeConfig};
use super::spec::FieldSpec;

/// One setting, or one section.
pub(super) struct Setting {
    /// Dotted key.
    pub key: String,
    /// Row of the section's table.
    pub field: FieldSpec,
    /// Why it cannot be used with the chosen kinds, whatever its value; of a section, why none of
    /// its settings can.
    pub refused: Option<String>,
    /// True if this is a table of settings.
    is_section: bool,
}

impl Setting {
    /// Last component of the key.
    pub fn name(&self) -> &'static str {
        self.field.name
    }

    /// The section that it is in; empty at the top level.
    pub fn section(&self) -> &str {
        self.key.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// True if the setting is a table of settings, and nothing else.
    pub fn is_section(&self) -> bool {
        self.is_section
    }
}

/// All settings and sections in the order of their declaration, for a recipe that chose these kinds
/// of model and dataset.
pub(super) fn settings(kinds: &Kinds, root: &Node) -> Vec<Setting> {
    let chosen = |key: &str| root.get_path(key).map(|node| node.to_inline().trim_matches(['"', '\'']).to_owned());
    let model = chosen("model.kind").unwrap_or_else(|| "gpt".into());
    let mut all = Vec::new();
    let mut open: Vec<(String, Option<String>, Vec<FieldSpec>)> = vec![(String::new(), None, RecipeConfig::fields())];
    while let Some((prefix, refused, fields)) = open.pop() {
        for field in fields {
            let key = format!("{prefix}{}", field.name);
            let refused = refused.clone().or_else(|| refusal(kinds, &model, &key, &field));
            let inner = (field.spec)().section_fields();
            let is_section = inner.is_some();
            if let Some(fields) = inner {
                open.insert(0, (format!("{key}."), refused.clone(), fields));
            }
            all.push(Setting { key, field, refused, is_section });
        }
    }
    all
}

/// Why a setting cannot be used with a kind of model, whatever its value.
fn refusal(kinds: &Kinds, model: &str, key: &str, field: &FieldSpec) -> Option<String> {
    if let (Some(name), Some(kind)) = (key.strip_prefix("model."), kinds.model.get(model))
        && let Some(listed) = &kind.settings
    {
        let is_listed = OF_EVERY_KIND.contains(&name) || listed.iter().any(|listed| listed == name);
        return (!is_listed).then(|| format!("model.kind = {model:?} does not have this setting"));
    }
    field.refusal.as_ref().filter(|refusal| refusal.is_whole()).map(super::Refusal::message)
}
