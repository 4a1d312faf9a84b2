//! The request bodies for webhooks. Pure. Text from outside is never used as markup.

use std::sync::Arc;

use serde_json::{Value, json};

use super::notice::{Notice, NoticeGroup};
use super::settings::Format;
use crate::policy::outbox::Delivery;

/// The most names in a text for people.
const MAX_NAMES_PER_LINE: usize = 5;

/// The body. `lost` is the number of lost notices before this one.
pub fn text(format: Format, telling: &Delivery<NoticeGroup, Arc<Notice>>, lost: u64) -> String {
    match format {
        Format::Generic => generic(telling, lost),
        Format::Slack => json!({ "text": slack(telling, lost) }),
    }
    .to_string()
}

fn generic(telling: &Delivery<NoticeGroup, Arc<Notice>>, lost: u64) -> Value {
    let (first, last) = ends(telling);
    let objects: Vec<Value> = telling.named.iter().map(|notice| object(notice)).collect();
    json!({
        "apiVersion": format!("{}/{}", crate::api::GROUP, crate::api::VERSION),
        "kind": "Notice",
        "type": if first.warning { "Warning" } else { "Normal" },
        "reason": telling.key.reason,
        "action": telling.key.action,
        "message": last.message,
        "namespace": telling.key.namespace,
        "firstTime": first.time.to_string(),
        "lastTime": last.time.to_string(),
        "count": telling.count,
        "objects": objects,
        "lost": lost,
    })
}

fn ends(telling: &Delivery<NoticeGroup, Arc<Notice>>) -> (&Notice, &Notice) {
    // A delivery always has a first notice.
    let first = &telling.named[0];
    (first, telling.last.as_ref().or(telling.named.last()).unwrap_or(first))
}

fn object(notice: &Notice) -> Value {
    let about = &notice.about;
    json!({"apiVersion": about.api_version, "kind": about.kind, "namespace": about.namespace, "name": about.name, "uid": about.uid})
}

fn slack(telling: &Delivery<NoticeGroup, Arc<Notice>>, lost: u64) -> String {
    let (first, last) = ends(telling);
    let NoticeGroup { namespace, kind, reason, .. } = &telling.key;
    let names: Vec<&str> =
        telling.named.iter().take(MAX_NAMES_PER_LINE).map(|notice| notice.about.name.as_deref().unwrap_or_default()).collect();
    let place = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
    let sign = if first.warning { ":warning: " } else { "" };
    let mut text =
        format!("{sign}*{}* {} {}{}: {}", plain(reason), plain(kind), plain(&names.join(", ")), plain(&place), plain(&last.message));
    let unnamed = telling.count.saturating_sub(names.len() as u64);
    if unnamed > 0 {
        text.push_str(&format!(" (and {unnamed} more)"));
    }
    if lost > 0 {
        let notices = if lost == 1 { "1 earlier notice was".to_owned() } else { format!("{lost} earlier notices were") };
        text.push_str(&format!(" ({notices} lost)"));
    }
    text
}

/// Text without markup: it cannot mention everyone in a channel, and has no links.
fn plain(text: &str) -> String {
    let text: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{notice, told};
    use super::*;

    #[test]
    fn one_notice() {
        let telling = told(vec![notice("default", "Budget/default: 90 % of <the limit>")]);
        let body: Value = serde_json::from_str(&text(Format::Generic, &telling, 0)).expect("JSON");
        assert_eq!((&body["kind"], &body["count"], &body["objects"][0]["name"]), (&json!("Notice"), &json!(1), &json!("default")));
        assert_eq!((&body["reason"], &body["type"], &body["lost"]), (&json!("ThresholdReached"), &json!("Warning"), &json!(0)));
        let body: Value = serde_json::from_str(&text(Format::Slack, &telling, 0)).expect("JSON");
        assert_eq!(body, json!({"text": ":warning: *ThresholdReached* Budget default in team: Budget/default: 90 % of &lt;the limit&gt;"}));
    }

    #[test]
    fn many_are_counted_and_the_lost_are_told() {
        let telling = told((0..30).map(|number| notice(&format!("n{number}"), &format!("message\n{number}"))).collect());
        let body: Value = serde_json::from_str(&text(Format::Generic, &telling, 3)).expect("JSON");
        assert_eq!((&body["count"], &body["lost"], &body["message"]), (&json!(30), &json!(3), &json!("message\n29")));
        assert_eq!(body["objects"].as_array().map(Vec::len), Some(20));
        let body = text(Format::Slack, &telling, 3);
        assert!(body.contains("n0, n1, n2, n3, n4 in team: message 29 (and 25 more) (3 earlier notices were lost)"), "{body}");
    }
}
