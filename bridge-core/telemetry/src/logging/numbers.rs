//! Short formats of numbers for people: times, rates, sizes, losses. Log lines and progress share
//! these.

/// Longest time that is written out, in days.
const MOST_DAYS: u64 = 9999;

/// A length of time: `42 s`, `2 min 33 s`, `2 h 05 min`, `3 d 04 h`; `?` for a negative, NaN or
/// infinite value.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".into();
    }
    let total = seconds.round() as u64;
    let (minutes, hours, days) = (total / 60, total / 3600, total / 86_400);
    match total {
        0..60 => format!("{total} s"),
        60..3600 => format!("{minutes} min {:02} s", total % 60),
        3600..86_400 => format!("{hours} h {:02} min", minutes % 60),
        _ if days <= MOST_DAYS => format!("{days} d {:02} h", hours % 24),
        _ => format!("over {MOST_DAYS} d"),
    }
}

/// A number with `digits` significant digits; very small and very large ones with an exponent:
/// `5.5012`, `0.012346`, `1.00e30`.
pub fn significant(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return special(value).into();
    }
    // Rounded first: 9.9999 may have one digit more before the point.
    let rounded = format!("{value:.*e}", digits.saturating_sub(1));
    let exponent: i32 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    match exponent {
        _ if value == 0.0 => "0".into(),
        -2..=4 => format!("{value:.*}", (digits as i32 - 1 - exponent).max(0) as usize),
        _ => format!("{value:.2e}"),
    }
}

/// `1.23e+15`: a mantissa with these `decimals`, an exponent with sign and at least two digits.
pub(super) fn with_exponent(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return special(value).into();
    }
    let text = format!("{value:.decimals$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// A rate or a count with three digits and a prefix: `950`, `5.48k`, `123M`.
pub fn with_prefix(value: f64) -> String {
    if !value.is_finite() {
        return special(value).into();
    }
    let prefixes = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // A value that rounds up to the next prefix uses that prefix.
    match prefixes.into_iter().find(|(unit, _)| value.abs() >= unit * 0.9995) {
        Some((unit, prefix)) if value.abs() < 1e15 => format!("{}{prefix}", three_digits(value / unit)),
        None => format!("{value:.0}"),
        Some(_) => format!("{value:.2e}"),
    }
}

/// Memory: `0.41 GiB`.
pub fn gibibytes(bytes: u64) -> String {
    format!("{} GiB", three_digits(bytes as f64 / super::GIB))
}

/// A count with a comma between thousands.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

fn special(value: f64) -> &'static str {
    match value {
        _ if value.is_nan() => "nan",
        _ if value > 0.0 => "inf",
        _ => "-inf",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_two_units_at_most() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (59.4, "59 s"),
            (59.6, "1 min 00 s"),
            (153.0, "2 min 33 s"),
            (7500.0, "2 h 05 min"),
            (86_399.7, "1 d 00 h"),
            (93_784.4, "1 d 02 h"),
            (1e30, "over 9999 d"),
            (f64::NAN, "?"),
            (f64::INFINITY, "?"),
            (-1.0, "?"),
        ] {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn numbers_keep_their_leading_digits() {
        for (value, text) in [
            (5.501_234, "5.5012"),
            (9.999_99, "10.000"),
            (12_345.6, "12346"),
            (0.012_345_6, "0.012346"),
            (0.001, "1.00e-3"),
            (123_456.0, "1.23e5"),
            (-1e30, "-1.00e30"),
            (0.0, "0"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(significant(value, 5), text, "{value}");
        }
    }

    #[test]
    fn rates_sizes_and_counts() {
        for (value, text) in [
            (0.4, "0"),
            (950.0, "950"),
            (999.6, "1.00k"),
            (5483.0, "5.48k"),
            (99_960.0, "100k"),
            (123_456_789.0, "123M"),
            (1e20, "1.00e20"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(with_prefix(value), text, "{value}");
        }
        assert_eq!((gibibytes(440_000_000), gibibytes(1 << 50)), ("0.41 GiB".into(), "1048576 GiB".into()));
        assert_eq!((grouped(0), grouped(999), grouped(1_234_567)), ("0".into(), "999".into(), "1,234,567".into()));
    }
}
