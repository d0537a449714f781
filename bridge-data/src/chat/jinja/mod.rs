//! Templates as Jinja2 runs them in the sandbox of transformers: syntax, values and filters with
//! Python's meaning.
//!
//! | part | file |
//! |---|---|
//! | text to tokens, tokens to a syntax tree | `lexer`, `parser`, `ast` |
//! | running the tree, variables | `eval`, `scope` |
//! | values, their operators, attributes and methods | `value`, `operators`, `methods`, `strings` (methods of text), `unicode` |
//! | filters and tests | `filters`, `predicates`, `given` (arguments) |
//! | values as text | `text`, `format`, `strftime` |
//! | bounds on the work of hostile templates | `limits` |

mod ast;
mod error;
mod eval;
mod filters;
mod format;
mod given;
mod lexer;
pub(super) mod limits;
mod methods;
mod operators;
mod parser;
mod predicates;
mod scope;
mod strftime;
mod strings;
mod text;
mod unicode;
mod value;

pub(super) use error::Error;
pub(super) use eval::{Owned, Rendered};
pub(super) use value::Value;

use std::sync::Arc;

/// A parsed template.
pub(super) struct Template {
    body: Vec<ast::Stmt>,
    names: Vec<Arc<str>>,
    has_generation: bool,
}

impl Template {
    /// Parses a template. Fails on a syntax error, with the line.
    pub(super) fn parse(source: &str) -> Result<Self, Error> {
        let parser::Parsed { body, names, has_generation } = parser::parse(source)?;
        Ok(Self { body, names, has_generation })
    }

    /// True if the template marks the assistant's generated text (`{% generation %}`).
    pub(super) fn has_generation(&self) -> bool {
        self.has_generation
    }

    /// The text of the template with these variables. `messages` are found again in the text. Fails
    /// if the template refuses the variables, or exceeds a limit.
    pub(super) fn render(&self, variables: Vec<(&str, Value)>, messages: &[Value]) -> Result<Rendered, Error> {
        eval::render(self, variables, messages)
    }
}
