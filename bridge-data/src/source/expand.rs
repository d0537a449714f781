//! `~`, `$VAR`, `${VAR}` and `${VAR:-default}` in paths, expanded as by a shell. Wildcards belong
//! to the caller.

use crate::DataError;

/// Expands with the process's environment.
pub(crate) fn expand(text: &str) -> Result<String, DataError> {
    expand_with(text, &|name| std::env::var(name).ok())
}

/// Expands with the given variables; `~` expands to `HOME`.
fn expand_with(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, DataError> {
    let lookup = |name: &str| -> Result<String, DataError> {
        if let Some((name, default)) = name.split_once(":-") {
            return match variable(name).filter(|value| !value.is_empty()) {
                Some(value) => Ok(value),
                None => expand_with(default, variable),
            };
        }
        variable(name).ok_or_else(|| DataError::Source(format!("{text:?}: the variable {name} is not set")))
    };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    if text == "~" || text.starts_with("~/") {
        out.push_str(&lookup("HOME")?);
        rest = &text[1..];
    }
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        let (name, tail) = match after.strip_prefix('{') {
            Some(braced) => braced
                .split_once('}')
                .ok_or_else(|| DataError::Source(format!("{text:?}: ${{ without a closing brace")))?,
            None => {
                let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
                after.split_at(end)
            }
        };
        if name.is_empty() {
            // A lone dollar sign is an ordinary character.
            out.push('$');
        } else {
            out.push_str(&lookup(name)?);
        }
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expands_home_and_variables() {
        let variable = |name: &str| match name {
            "HOME" => Some("/home/me".to_owned()),
            "DATA" => Some("/data".to_owned()),
            _ => None,
        };
        let expanded = |text| expand_with(text, &variable).expect("expandable");
        assert_eq!(expanded("~/a.txt"), "/home/me/a.txt");
        assert_eq!(expanded("$DATA/x/${DATA}.txt"), "/data/x//data.txt");
        assert_eq!(expanded("a~b/5$"), "a~b/5$");
        assert_eq!(expanded("${NOPE:-~/.cargo}/x"), "/home/me/.cargo/x");
        assert_eq!(expanded("${DATA:-~/.cargo}/x"), "/data/x");
        for text in ["$NOPE/x", "${DATA"] {
            assert!(expand_with(text, &variable).expect_err(text).to_string().contains(text), "{text}");
        }
    }
}
