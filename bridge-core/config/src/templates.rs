//! Check of chat templates: text with places that are filled in, or the file of one. Rendering does
//! not belong here.

use std::path::Path;

/// Message for a text that is not a template.
pub const NO_TEMPLATE: &str = "is no template, because nothing in it is filled in: expected Jinja text with {{ ... }} or {% ... %}, \
                                      or the file of one, such as chat_template.jinja. Names such as chatml are not known";

/// True if a setting for a template names a file.
pub fn names_file(template: &str) -> bool {
    !template.contains(['{', '\n']) && Path::new(template).extension().is_some()
}

/// True if a template has a place that is filled in: without one, all conversations are the same
/// text.
pub fn has_marks(template: &str) -> bool {
    template.contains("{{") || template.contains("{%")
}
