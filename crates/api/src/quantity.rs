//! Kubernetes quantities as numbers. The API server rewrites a quantity (`1000m` becomes `1`), so that only numbers can be compared and
//! added.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Billionths in one: the finest resolution of Kubernetes.
const NANOS_PER_UNIT: i128 = 1_000_000_000;
/// Maximum length of a quantity. No reasonable number has more digits, and no number of this length overflows.
const MAX_QUANTITY_LENGTH: usize = 32;

/// The number in billionths, rounded up. `None` if the text is not a quantity or is too large.
pub fn nanos(quantity: &Quantity) -> Option<i128> {
    let text = quantity.0.trim();
    if text.len() > MAX_QUANTITY_LENGTH {
        return None;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(unsigned.len());
    let (digits, suffix) = unsigned.split_at(end);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let divisor = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let scaled = match scale(suffix)? {
        Scale::Times(factor) => mantissa.checked_mul(factor)?,
        Scale::Over(factor) => mantissa.checked_add(factor - 1)? / factor,
    };
    let rounded = scaled.checked_add(divisor - 1)? / divisor;
    Some(if text.starts_with('-') { -rounded } else { rounded })
}

/// The number in whole units, rounded up. 0 if the text is not a quantity.
pub fn units(quantity: &Quantity) -> u64 {
    let nanos = nanos(quantity).unwrap_or(0).max(0);
    u64::try_from(nanos.saturating_add(NANOS_PER_UNIT - 1) / NANOS_PER_UNIT).unwrap_or(u64::MAX)
}

/// Whether both quantities are the same number, in any notation.
pub fn is_same_quantity(one: &Quantity, other: &Quantity) -> bool {
    one.0 == other.0 || nanos(one).is_some_and(|number| Some(number) == nanos(other))
}

/// How a suffix scales a number, in billionths.
enum Scale {
    Times(i128),
    Over(i128),
}

fn scale(suffix: &str) -> Option<Scale> {
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(at) = decimal.iter().position(|known| *known == suffix) {
        return Some(Scale::Times(1000_i128.pow(u32::try_from(at).ok()?)));
    }
    if let Some(at) = binary.iter().position(|known| *known == suffix) {
        return Some(Scale::Times(NANOS_PER_UNIT * 1024_i128.pow(u32::try_from(at).ok()? + 1)));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let exponent = exponent.checked_add(9)?;
    let factor = 10_i128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { Scale::Over(factor) } else { Scale::Times(factor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<i128> {
        nanos(&Quantity(text.to_owned()))
    }

    #[test]
    fn the_same_number_is_the_same_however_it_is_written() {
        let pairs = [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1e3", "1k"),
            ("1E", "1000P"),
            ("2E0", "2"),
            (".5Gi", "512Mi"),
            ("+3", "3.0"),
        ];
        for (one, other) in pairs {
            assert!(is_same_quantity(&Quantity(one.into()), &Quantity(other.into())), "{one} {other}");
        }
        assert!(!is_same_quantity(&Quantity("1G".into()), &Quantity("1Gi".into())));
        assert_eq!((of("1"), of("-1"), of("1n")), (Some(NANOS_PER_UNIT), Some(-NANOS_PER_UNIT), Some(1)));
        assert_eq!(of("0.0000000001"), Some(1), "rounded up, as the API server does");
        assert_eq!(of("1e-12"), Some(1));
    }

    #[test]
    fn what_is_no_quantity_is_none_and_nothing_overflows() {
        for text in
            ["", ".", "x", "1.2.3", "1Qi", "--1", "1e", "1e999", "99999999999999999999999999999999", "1 Gi", "9".repeat(40).as_str()]
        {
            assert!(of(text).is_none() || text.starts_with("99"), "{text}");
        }
        assert_eq!(of("99999999999999999999999E"), None);
        assert_eq!(units(&Quantity("1Mi".into())), 1_048_576);
        assert_eq!((units(&Quantity("1m".into())), units(&Quantity("x".into())), units(&Quantity("-5".into()))), (1, 0, 0));
    }
}
