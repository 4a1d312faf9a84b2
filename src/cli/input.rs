//! Names, quantities and durations as people write them, checked before anything is sent. Pure.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A DNS label: the name of a namespace, a pool or an Agent.
pub fn label(text: &str) -> Result<String, String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let sound = (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-');
    if sound {
        Ok(text.to_owned())
    } else {
        Err("a name is made of at most 63 lower-case letters, digits and '-', and starts and ends with a letter or digit".to_owned())
    }
}

/// A name for people.
pub fn display_name(text: &str) -> Result<String, String> {
    if (1..=63).contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err("a display name has 1 to 63 characters, none of them a control character".to_owned())
    }
}

/// The name of an Agent, also as `ls -o name` writes it.
pub fn agent(text: &str) -> Result<String, String> {
    named(text, &["agent", "agents", "ag", "agent.spillway.dev", "agents.spillway.dev"], "an Agent")
}

/// The name of an AgentPool, also as `kubectl get -o name` writes it.
pub fn pool(text: &str) -> Result<String, String> {
    named(text, &["agentpool", "agentpools", "apool", "agentpool.spillway.dev", "agentpools.spillway.dev"], "an AgentPool")
}

fn named(text: &str, kinds: &[&str], what: &str) -> Result<String, String> {
    match text.split_once('/') {
        None => label(text),
        Some((kind, name)) if kinds.contains(&kind.to_ascii_lowercase().as_str()) => label(name),
        Some(_) => Err(format!("{text:?} is not {what}")),
    }
}

/// A duration: `30s`, `1m30s`, `2h`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let mend = || "not a duration: write 30s, 2m or 1h".to_owned();
    text.parse::<jiff::SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok()).ok_or_else(mend)
}

/// Cores: `2`, `0.5`, `500m`.
pub fn cpus(text: &str) -> Result<Quantity, String> {
    let mend = "write cores: 2, 0.5 or 500m";
    match amount(text) {
        None => Err(format!("not a quantity: {mend}")),
        Some(cores) if cores <= 0.0 => Err(format!("an agent needs more than nothing: {mend}")),
        Some(cores) if cores < 0.001 => Err(format!("less than 1m, the smallest share there is: {mend}")),
        Some(_) => Ok(Quantity(text.to_owned())),
    }
}

/// Memory: `512Mi`, `1Gi`, `2G`.
pub fn memory(text: &str) -> Result<Quantity, String> {
    let mend = "write bytes: 512Mi, 1Gi or 2G";
    match amount(text) {
        None => Err(match text.trim_end_matches(['b', 'B']).to_ascii_uppercase() {
            short if short != text && amount(&short).is_some() && !short.ends_with(|last: char| last.is_ascii_digit()) => {
                format!("not a quantity: did you mean {short} or {short}i?")
            }
            _ => format!("not a quantity: {mend}"),
        }),
        Some(bytes) if bytes <= 0.0 => Err(format!("an agent needs more than nothing: {mend}")),
        Some(bytes) if bytes < 1_048_576.0 => Err(match text.strip_suffix('m') {
            Some(number) => format!("m means thousandths of a byte: did you mean {number}Mi?"),
            None => format!("less than 1Mi, in which no program starts: {mend}"),
        }),
        Some(_) => Ok(Quantity(text.to_owned())),
    }
}

/// The number that a Kubernetes quantity stands for, exact enough to compare it with limits of good sense; none for what
/// the API server would not take.
fn amount(text: &str) -> Option<f64> {
    // The CRD's own limit: no quantity of good sense is longer.
    if text.len() > 32 {
        return None;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(unsigned.len());
    let (digits, suffix) = unsigned.split_at(end);
    if digits.matches('.').count() > 1 || !digits.contains(|character: char| character.is_ascii_digit()) {
        return None;
    }
    let number: f64 = digits.parse().ok()?;
    let signed = if text.starts_with('-') { -number } else { number };
    scale(suffix).map(|scale| signed * scale)
}

fn scale(suffix: &str) -> Option<f64> {
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(at) = decimal.iter().position(|known| *known == suffix) {
        return Some(1000_f64.powi(i32::try_from(at).ok()? - 3));
    }
    if let Some(at) = binary.iter().position(|known| *known == suffix) {
        return Some(1024_f64.powi(i32::try_from(at).ok()? + 1));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(10_f64.powi(exponent.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        let cases = [
            ("2", Some(2.0)),
            ("500m", Some(0.5)),
            (".5", Some(0.5)),
            ("1.", Some(1.0)),
            ("1Ki", Some(1024.0)),
            ("2G", Some(2e9)),
            ("1e3", Some(1000.0)),
            ("1E", Some(1e18)),
            ("1E-2", Some(0.01)),
            ("-1", Some(-1.0)),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("1K", None),
            ("1g", None),
            ("1 Gi", None),
            ("inf", None),
            ("1ee3", None),
        ];
        for (text, expected) in cases {
            let got = amount(text);
            let same = match (got, expected) {
                (Some(got), Some(expected)) => (got - expected).abs() <= expected.abs() * 1e-9,
                (got, expected) => got.is_none() && expected.is_none(),
            };
            assert!(same, "{text:?}: {got:?}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_may_be() {
        assert_eq!(memory("1gb").expect_err("refused"), "not a quantity: did you mean 1G or 1Gi?");
        assert_eq!(memory("4096").expect_err("refused"), "less than 1Mi, in which no program starts: write bytes: 512Mi, 1Gi or 2G");
        assert_eq!(memory("lots").expect_err("refused"), "not a quantity: write bytes: 512Mi, 1Gi or 2G");
        assert_eq!(cpus("-1").expect_err("refused"), "an agent needs more than nothing: write cores: 2, 0.5 or 500m");
        assert!(cpus("100u").expect_err("refused").starts_with("less than 1m"));
        assert_eq!((cpus("0.5"), memory("1Gi")), (Ok(Quantity("0.5".into())), Ok(Quantity("1Gi".into()))));
    }

    #[test]
    fn durations_and_names() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("-5s").is_err() && duration("").is_err() && duration("1 fortnight").is_err());
        assert_eq!((agent("agent.spillway.dev/a"), pool("apool/p")), (Ok("a".into()), Ok("p".into())));
        assert!(agent("pod/a").is_err() && label(&"a".repeat(64)).is_err() && label("-a").is_err());
        assert!(display_name("Ada \u{1b}[2J").is_err() && display_name("Ada, the first").is_ok());
    }
}
