//! A section with a `kind`: the flat settings that all kinds share, and the extra ones that a
//! registered kind declares. The list of kinds belongs to `kinds`.

use std::ops::{Deref, DerefMut};

use super::choice::SourceFormat;
use super::error::ErrorKind;
use super::field::Field;
use super::kinds::{KindRegistry, Kinds};
use super::node::{Data, Entry, Node};
use super::reader::Reader;
use super::section::{Section, section, section_field};
use super::sections::{GptDatasetConfig, TransformerConfig};
use super::spec::FieldSpec;

/// The `[model]` section.
pub type ModelConfig = Kinded<TransformerConfig>;
/// The `[dataset]` section.
pub type DatasetConfig = Kinded<GptDatasetConfig>;

/// Settings shared by all kinds of a section.
pub trait KindedConfig: Section {
    /// The default kind.
    const DEFAULT_KIND: &'static str;
    /// Description of the choice of the kind, for the schema.
    const KIND_DOC: &'static str;
    /// The registered kinds of this section.
    fn registry(kinds: &Kinds) -> &KindRegistry;
}

impl KindedConfig for TransformerConfig {
    const DEFAULT_KIND: &'static str = "gpt";
    const KIND_DOC: &'static str =
        "The model family: gpt, mamba, t5, or a name that code registered. Plays the part of upstream's _target_.";
    fn registry(kinds: &Kinds) -> &KindRegistry {
        &kinds.model
    }
}

impl KindedConfig for GptDatasetConfig {
    const DEFAULT_KIND: &'static str = "gpt";
    const KIND_DOC: &'static str = "The dataset family: gpt, fim, mock, finetuning, t5, mock_t5, or a name that code registered. Plays the part of upstream's _target_.";
    fn registry(kinds: &Kinds) -> &KindRegistry {
        &kinds.dataset
    }
}

impl GptDatasetConfig {
    /// True if the text of `dataset.source` becomes examples for fine-tuning.
    pub fn makes_examples(&self) -> bool {
        self.source_format == Some(SourceFormat::RustDocs) && self.source.is_some()
    }
}

/// A section whose `kind` chooses the implementation. Dereferences to the shared settings, so
/// `config.model.num_layers` reads and writes as if there were one flat struct.
#[derive(Debug, Clone, PartialEq)]
pub struct Kinded<C> {
    /// Kind that is built.
    pub kind: String,
    /// The shared settings.
    pub config: C,
    /// The values of the settings that the kind registered.
    pub extra: toml::Table,
}

impl<C: KindedConfig> Default for Kinded<C> {
    fn default() -> Self {
        Self { kind: C::DEFAULT_KIND.to_owned(), config: C::default(), extra: toml::Table::new() }
    }
}

impl<C> Deref for Kinded<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.config
    }
}

impl<C> DerefMut for Kinded<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.config
    }
}

impl<C: KindedConfig> Kinded<C> {
    fn assign_kind(&mut self, node: &Node, reader: &mut Reader<'_>) {
        let Some(kind) = String::read(node, reader) else { return };
        let registry = C::registry(reader.kinds);
        if registry.get(&kind).is_none() {
            let names: Vec<_> = registry.usable_names().collect();
            let mut error = reader
                .error(ErrorKind::WrongType, "unknown kind", node)
                .with_expected(format!("one of {}", names.join(", ")))
                .with_nearest(&kind, names);
            error.written = Some(node.clone());
            reader.push(error);
        }
        self.kind = kind;
    }

    fn assign_extra(&mut self, name: &str, node: &Node, reader: &mut Reader<'_>) -> bool {
        let kind = C::registry(reader.kinds).get(&self.kind);
        let Some(field) = kind.and_then(|kind| kind.extra.iter().find(|field| field.name == name)) else {
            return false;
        };
        if node.is_null() {
            self.extra.remove(name);
        } else if field.spec.accepts(node) {
            self.extra.insert(name.to_owned(), node.to_toml_value());
        } else {
            let spec = field.spec.clone();
            reader.wrong_type::<()>(node, &spec);
        }
        true
    }
}

impl<C: KindedConfig> Section for Kinded<C> {
    const ALIASES: &'static [(&'static str, &'static str)] = C::ALIASES;
    const FIRST: Option<&'static str> = Some("kind");

    fn fields() -> Vec<FieldSpec> {
        let default = Node::string(C::DEFAULT_KIND);
        let kind = section!(@row "kind", C::KIND_DOC, (), String::spec, default, None, []);
        std::iter::once(kind).chain(C::fields()).collect()
    }

    fn known_names(&self, kinds: &Kinds) -> Vec<String> {
        let mut names: Vec<_> = Self::names().into_iter().map(str::to_owned).collect();
        if let Some(kind) = C::registry(kinds).get(&self.kind) {
            names.extend(kind.extra.iter().map(|field| field.name.clone()));
        }
        names
    }

    fn assign(&mut self, name: &str, node: &Node, reader: &mut Reader<'_>) -> bool {
        if name == "kind" {
            self.assign_kind(node, reader);
            return true;
        }
        self.config.assign(name, node, reader) || self.assign_extra(name, node, reader)
    }

    fn to_node(&self) -> Node {
        let mut entries = vec![Entry::new("kind", Node::string(&self.kind))];
        if let Data::Table(shared) = self.config.to_node().data {
            entries.extend(shared);
        }
        let extra = self.extra.iter();
        entries.extend(extra.map(|(name, value)| Entry::new(name, Node::from_toml_value(value))));
        Data::Table(entries).into()
    }
}

section_field!(ModelConfig);
section_field!(DatasetConfig);
