//! The internal certificates: a new authority replaces the old one, while an agent, its gateway and the governor go on.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::json;
use spillway::api::Agent;
use spillway::api::work_item::WorkItemPhase::Succeeded;
use spillway::pki::authority::{PemKeyPair, authority};
use spillway::policy::certificates::{AUTHORITY_PUBLISH_DELAY, AUTHORITY_VALIDITY};

use crate::support::{TestNamespace, check_state, eventually};

const AUTHORITY: &str = "spillway-ca";
const GATEWAY: &str = "spillway-gateway-tls";

async fn certificates(room: &TestNamespace, secret: &str) -> BTreeMap<String, String> {
    let data = room.api::<Secret>().get(secret).await.expect("the Secret").data.unwrap_or_default();
    data.into_iter().map(|(key, ByteString(value))| (key, String::from_utf8(value).expect("PEM"))).collect()
}

/// Stores two authorities: the first ends in `first_ends` seconds, and the second signs in `second_signs` seconds.
async fn store_authorities(room: &TestNamespace, first_ends: u64, second_signs: u64) {
    let made_before = |age: Duration| authority(jiff::Timestamp::now().as_second() - age.as_secs().cast_signed()).expect("an authority");
    let first = made_before(AUTHORITY_VALIDITY - Duration::from_secs(first_ends));
    let second = made_before(AUTHORITY_PUBLISH_DELAY - Duration::from_secs(second_signs));
    let mut data = BTreeMap::new();
    for (name, PemKeyPair { certificate, key, times }) in [("first", first), ("second", second)] {
        let times = format!("{} {}", times.made, times.ends);
        data.extend([("crt", certificate), ("key", key), ("times", times)].map(|(part, text)| (format!("{name}.{part}"), text)));
    }
    let secret = Secret {
        string_data: Some(data),
        metadata: kube::core::ObjectMeta { name: Some(AUTHORITY.into()), ..Default::default() },
        ..Secret::default()
    };
    room.api::<Secret>().create(&PostParams::default(), &secret).await.expect("a new Secret");
}

#[tokio::test]
async fn a_new_authority_signs_and_then_is_alone_and_the_agent_goes_on() {
    let room = TestNamespace::open("authority").await;
    store_authorities(&room, 300, 120).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    eventually("the first authority signs", async || {
        let there = room.api::<Secret>().get_opt(GATEWAY).await.map_err(|error| error.to_string())?;
        check_state(there.is_some(), || "no Secret".into())
    })
    .await;
    let before = certificates(&room, GATEWAY).await;
    assert_eq!(before["ca.crt"].matches("BEGIN CERTIFICATE").count(), 2);
    room.apply_queue("bugs", json!({})).await;
    room.apply_workers("workers", &["bugs"], "true", json!({"replicas": 1})).await;
    room.submit("bugs", "before", json!({})).await;
    room.wait_for_item_phase("before", Succeeded).await;
    let agent = room.list::<Agent>().await.remove(0);

    let signed = eventually("the second authority signs", async || {
        let now = certificates(&room, GATEWAY).await;
        check_state(now["signer"] != before["signer"], || now["signer"].clone()).map(|()| now)
    })
    .await;
    assert!(signed["tls.crt"] != before["tls.crt"] && signed["ca.crt"] == before["ca.crt"]);
    // A new gateway has only the new certificate, so the agent connects anew, and must trust it.
    room.kill_gateway();
    room.start_gateway("renewed");
    room.submit("bugs", "during", json!({})).await;
    room.wait_for_item_phase("during", Succeeded).await;

    eventually("the second authority is alone", async || {
        let now = certificates(&room, GATEWAY).await;
        check_state(now["ca.crt"] != before["ca.crt"], || now["ca.crt"].clone())
    })
    .await;
    let left = (certificates(&room, GATEWAY).await, certificates(&room, AUTHORITY).await);
    assert_eq!((&left.0["ca.crt"], &left.0["tls.crt"], left.1.len()), (&left.1["first.crt"], &signed["tls.crt"], 3));
    room.submit("bugs", "after", json!({})).await;
    room.wait_for_item_phase("after", Succeeded).await;
    let still = room.list::<Agent>().await;
    assert_eq!(still.iter().map(ResourceExt::uid).collect::<Vec<_>>(), [agent.uid()], "one agent, and always the same");
    room.close().await;
}
