//! Errors of templates.

/// Reason why a template does not parse or render.
#[derive(Debug, Clone)]
pub(in crate::chat) struct Error {
    message: String,
    line: u32,
    is_raised: bool,
}

impl Error {
    /// An error while the template runs.
    pub(in crate::chat) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), line: 0, is_raised: false }
    }

    /// A template that does not parse.
    pub(super) fn syntax(message: impl Into<String>) -> Self {
        Self::new(format!("syntax error: {}", message.into()))
    }

    /// A message of the template itself (`raise_exception`).
    pub(super) fn raised(message: impl Into<String>) -> Self {
        Self { is_raised: true, ..Self::new(message) }
    }

    /// A limit on the work of templates that was exceeded.
    pub(super) fn too_much(what: &str) -> Self {
        Self::new(format!("the template does too much: {what}"))
    }

    /// The error with its line, unless it has one.
    pub(super) fn at_line(self, line: u32) -> Self {
        if self.line == 0 { Self { line, ..self } } else { self }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if self.line > 0 && !self.is_raised {
            write!(f, " (line {} of the template)", self.line)?;
        }
        Ok(())
    }
}
