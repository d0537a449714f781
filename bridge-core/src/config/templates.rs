//! What can be a chat template: text with places that are filled in, or the file of one. How it is filled in does not belong here.

use std::path::Path;

/// What is said of a template that is none.
pub(crate) const NO_TEMPLATE: &str = "is no template, because nothing in it is filled in: expected Jinja text with {{ ... }} or {% ... %}, \
                                      or the file of one, such as chat_template.jinja. Names such as chatml are not known";

/// Whether a setting for a template names the file of one.
pub(crate) fn names_file(template: &str) -> bool {
    !template.contains(['{', '\n']) && Path::new(template).extension().is_some()
}

/// Whether a template has a place that is filled in: without one, all conversations are the same text.
pub(crate) fn has_marks(template: &str) -> bool {
    template.contains("{{") || template.contains("{%")
}
