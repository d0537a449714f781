//! `Debug` of errors as people read it: `fn main() -> Result<(), Box<dyn Error>>` and `unwrap`
//! print errors by `Debug`.

use std::error::Error;
use std::fmt;

/// Writes an error with its causes, a line each; causes whose text is in the line before are left
/// out.
///
/// # Errors
/// Errors of the formatter.
pub fn write_with_causes(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut last = error.to_string();
    f.write_str(&last)?;
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !last.contains(&text) {
            write!(f, "\ncaused by: {text}")?;
            last = text;
        }
        cause = error.source();
    }
    Ok(())
}

/// Implements `Debug` of errors by their `Display`, with their causes.
#[macro_export]
macro_rules! readable_errors {
    ($($error:ty),+ $(,)?) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::write_with_causes(self, f)
            }
        }
    )+};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataError;

    #[derive(thiserror::Error)]
    #[error("the run could not start")]
    struct Outer(#[source] DataError);

    readable_errors!(Outer);

    #[test]
    fn boxed_errors_print_their_words_and_causes() {
        let refused = std::io::Error::other("no space");
        let inner = DataError::Io { action: "open", path: "a.bin".into(), source: refused };
        assert_eq!(format!("{inner:?}"), "a.bin: cannot open: no space", "a cause that is told is not told again");
        let boxed: Box<dyn Error> = Box::new(Outer(inner));
        assert_eq!(format!("{boxed:?}"), "the run could not start\ncaused by: a.bin: cannot open: no space");
    }
}
