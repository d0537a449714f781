//! Times as glibc's `strftime` writes them in the C locale, with what Python's `datetime` changes.

use std::fmt::Write;

use chrono::{DateTime, Local, Timelike};

use super::error::Error;
use super::limits::charge;

/// Largest width of a field.
const WIDTH: usize = 1000;

/// `time.strftime(format)` of a time without time zone. Unknown codes are written unchanged.
///
/// # Errors
/// A width above 1000; a limit that is exceeded.
pub(super) fn strftime(time: &DateTime<Local>, format: &str) -> Result<String, Error> {
    let mut made = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        made.push_str(&rest[..at]);
        rest = &rest[at..];
        let behind = rest[1..].trim_start_matches(['_', '-', '0', '^', '#']);
        let flags = &rest[1..rest.len() - behind.len()];
        let coded = behind.trim_start_matches(|c: char| c.is_ascii_digit());
        let width = match &behind[..behind.len() - coded.len()] {
            "" => 0,
            digits => digits
                .parse()
                .ok()
                .filter(|width| *width <= WIDTH)
                .ok_or_else(|| Error::too_much(&format!("strftime_now: {digits} is too large a width")))?,
        };
        let (allowed, coded) = match coded.chars().next() {
            Some('E') => ("cCxXyY", &coded[1..]),
            Some('O') => ("bBdehHImMSuUVwWy", &coded[1..]),
            // `%:z` is empty without a time zone.
            Some(':') if coded.starts_with(":z") => ("z", &coded[1..]),
            _ => ("", coded),
        };
        let code = coded.chars().next();
        let end = rest.len() - coded.len() + code.map_or(0, char::len_utf8);
        let field =
            code.filter(|code| allowed.is_empty() || allowed.contains(*code)).and_then(|code| field(time, code));
        match (field, code) {
            (Some(field), Some(code)) => padded(field, code, flags, width, &mut made),
            _ => made.push_str(&rest[..end]),
        }
        charge(width)?;
        rest = &rest[end..];
    }
    made.push_str(rest);
    Ok(made)
}

/// Text of a code, and its usual number of digits if it is a number.
fn field(time: &DateTime<Local>, code: char) -> Option<(String, usize)> {
    let digits = match code {
        'f' => return Some((format!("{:06}", time.nanosecond() % 1_000_000_000 / 1000), 0)),
        'z' | 'Z' => return Some((String::new(), 0)),
        'a' | 'A' | 'b' | 'B' | 'h' | 'c' | 'D' | 'F' | 'n' | 'p' | 'P' | 'r' | 'R' | 't' | 'T' | 'x' | 'X' | '%' => 0,
        'u' | 'w' | 's' => 1,
        'C' | 'd' | 'e' | 'g' | 'H' | 'I' | 'k' | 'l' | 'm' | 'M' | 'S' | 'U' | 'V' | 'W' | 'y' => 2,
        'j' => 3,
        'G' | 'Y' => 4,
        _ => return None,
    };
    let mut text = String::new();
    let unpadded = if digits > 0 { "-" } else { "" };
    write!(text, "{}", time.format(&format!("%{unpadded}{code}"))).ok()?;
    Some((text, digits))
}

/// Adds a field with the case and padding that its flags and width ask for.
fn padded((text, digits): (String, usize), code: char, flags: &str, width: usize, made: &mut String) {
    let changes_case = flags.contains('#');
    let text = match code {
        'p' if changes_case => text.to_lowercase(),
        'a' | 'A' | 'b' | 'B' | 'h' if changes_case => text.to_uppercase(),
        _ if flags.contains('^') => text.to_uppercase(),
        _ => text,
    };
    let flag = flags.chars().rev().find(|flag| "_-0".contains(*flag));
    let fill = match flag {
        None if digits > 0 && !"ekl".contains(code) => '0',
        Some('0') => '0',
        _ => ' ',
    };
    let digits = if flag == Some('-') { 0 } else { digits };
    made.extend(std::iter::repeat_n(fill, digits.max(width).saturating_sub(text.len())));
    made.push_str(&text);
}

#[cfg(test)]
mod tests {
    use chrono::TimeZone;

    use super::*;

    /// The expected texts are those of Python 3.12 with glibc 2.36.
    #[test]
    fn times_are_written_as_python_writes_them() {
        let time = Local.with_ymd_and_hms(2024, 2, 5, 9, 3, 7).unwrap().with_nanosecond(4_321_987).unwrap();
        super::super::limits::open(0);
        for (format, expected) in [
            ("%d %B %Y|%-d|%_d|%-m/%-d|%-H:%M", "05 February 2024|5| 5|2/5|9:03"),
            ("%f|%z|%Z|%:z|%#Z", "004321||||"),
            ("%^a|%^B|%#a|%#p|%^p|%#P|%^c", "MON|FEBRUARY|MON|am|AM|am|MON FEB  5 09:03:07 2024"),
            ("%5d|%_5d|%-5d|%010d|%5j|%_10Y", "00005|    5|    5|0000000005|00036|      2024"),
            ("%10a|%-10a|%05a|%^10a|%05p", "       Mon|       Mon|00Mon|       MON|000AM"),
            ("%e|%-e|%0e|%k|%0k|%l|%_H|%j|%-j|%-y|%-I", " 5|5|05| 9|09| 9| 9|036|36|24|9"),
            ("%Ey|%EY|%EC|%Ex|%Od|%OH|%Ob", "24|2024|20|02/05/24|05|09|Feb"),
            ("%Ea|%Oa|%EB|%OY|%Ed|%E5d|%E|%O", "%Ea|%Oa|%EB|%OY|%Ed|%E5d|%E|%O"),
            ("%Q|%v|%+|%+Y|%N|%L|%i|%é", "%Q|%v|%+|%+Y|%N|%L|%i|%é"),
            (
                "%c|%x|%X|%r|%D|%F|%T|%R",
                "Mon Feb  5 09:03:07 2024|02/05/24|09:03:07|09:03:07 AM|02/05/24|2024-02-05|09:03:07|09:03",
            ),
            ("%C|%g|%G|%u|%w|%U|%V|%W|%y|%h", "20|24|2024|1|1|05|06|06|24|Feb"),
            ("%%|%5%|%n|%t|%", "%|    %|\n|\t|%"),
        ] {
            assert_eq!(strftime(&time, format).unwrap(), expected, "{format}");
        }
        assert!(strftime(&time, "%999999999d").is_err());
    }
}
