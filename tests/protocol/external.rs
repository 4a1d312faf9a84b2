//! Calls from outside the cluster, with the token of a user, for a pool in which that user may register agents.

use axum::body::Body;
use http::Request;
use serde_json::{Value, json};
use spillway::serve::Bounds;
use spillway::wire::external::EXTERNAL_HEADER;
use spillway::wire::governor::{
    CALLER_AGENT_UID_HEADER, CALLER_NAMESPACE_HEADER, CALLER_POD_HEADER, CALLER_POOL_HEADER, CALLER_UID_HEADER, CALLER_USER_HEADER,
};
use spillway::wire::{Code, Refusal};

use crate::{Served, served};

/// A gateway in a cluster where alice may register agents of the pool `laptops` in the namespace `team`.
async fn set_up() -> Served {
    let served = served(Bounds::AGENTS).await;
    served.world.rights.lock().expect("whole").allowed.insert("alice team/laptops".into());
    served
}

fn call(path: &str, token: &str, place: Option<&str>) -> Request<Body> {
    let body = match path {
        "/agent/v1/report" => json!({"program": "running", "silentMs": 0}),
        _ => json!({"version": "1", "displayName": "laptop"}),
    };
    let request = Request::post(path).header("authorization", format!("Bearer {token}")).header("idempotency-key", "k-1");
    let request = place.into_iter().fold(request, |request, place| request.header(EXTERNAL_HEADER, place));
    request.body(Body::from(body.to_string())).expect("a request")
}

impl Served {
    async fn call_as(&self, path: &str, token: &str, place: Option<&str>) -> Result<Value, Refusal> {
        let got = self.side.ask(call(path, token, place)).await;
        let body = got.body.expect("whole");
        if got.status == 200 {
            Ok(serde_json::from_str(&body).expect("JSON"))
        } else {
            Err(serde_json::from_str(&body).expect("a refusal"))
        }
    }

    /// Number of calls that the governor received, without questions about the owner of an agent.
    fn governor_call_count(&self) -> usize {
        self.world.leader.table().agent_calls.iter().filter(|(path, _)| path != "/agent/v1/wanted").count()
    }

    /// Checks that it is refused with this code and these words, and that the governor does not receive it.
    async fn assert_refused(&self, path: &str, token: &str, place: Option<&str>, code: Code, words: &[&str]) {
        let before = self.governor_call_count();
        let refusal = self.call_as(path, token, place).await.expect_err("a refusal");
        assert_eq!(refusal.code, code, "{token} {place:?}: {refusal}");
        assert!(words.iter().all(|word| refusal.message.contains(word)), "{token} {place:?}: {refusal}: where is {words:?}?");
        assert_eq!(self.governor_call_count(), before, "{token} {place:?}");
    }
}

const ENROL: &str = "/agent/v1/external";
const REPORT: &str = "/agent/v1/report";
const WHO: &str = "team/laptops/laptops-1/uid-1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_is_named_to_the_governor_as_the_api_server_vouched_for_it() {
    let served = set_up().await;
    let enrolled = served.call_as(ENROL, "user-alice", Some("team/laptops")).await.expect("an agent");
    assert_eq!((&enrolled["agent"], &enrolled["uid"]), (&json!("laptops-1"), &json!("uid-1")));
    served.call_as(REPORT, "user-alice", Some(WHO)).await.expect("it is taken");
    let asked = served.world.leader.table().agent_calls.clone();
    let said = |at: usize, name: &str| asked[at].1.get(name).map(|value| value.to_str().expect("text").to_owned());
    let paths: Vec<&str> = asked.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, [ENROL, "/agent/v1/wanted", REPORT], "whose agent it is is asked first");
    for at in 0..3 {
        assert_eq!(
            [CALLER_USER_HEADER, CALLER_POOL_HEADER, CALLER_NAMESPACE_HEADER].map(|name| said(at, name)),
            ["alice", "laptops", "team"].map(|word| Some(word.to_owned()))
        );
    }
    assert_eq!((said(0, "idempotency-key").as_deref(), said(0, EXTERNAL_HEADER)), (Some("k-1"), None));
    for at in 1..3 {
        assert_eq!(
            (said(at, CALLER_POD_HEADER).as_deref(), said(at, CALLER_AGENT_UID_HEADER).as_deref()),
            (Some("laptops-1"), Some("uid-1"))
        );
    }
    let proved = asked.iter().filter(|(_, headers)| headers.contains_key(CALLER_UID_HEADER)).count();
    assert_eq!(proved, 0, "what it says of itself stands nowhere where a pod's proved uid stands: an older leader refuses it");
    assert_eq!(served.world.rights.lock().expect("whole").asked, 1, "a yes is remembered for a moment");
    served.call_as(REPORT, "user-alice", Some(WHO)).await.expect("it is taken");
    assert_eq!(served.world.leader.table().agent_calls.len(), 4, "and asked once");
    // A call of a pod names no user.
    served.call_as(REPORT, "pod-a", None).await.expect("it is taken");
    let asked = served.world.leader.table().agent_calls.clone();
    assert!(
        asked.last().is_some_and(|(_, headers)| headers.get(CALLER_USER_HEADER).is_none() && headers[CALLER_UID_HEADER] == "uid-pod-a")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_is_told_why_and_gets_no_further() {
    let served = set_up().await;
    let right = ["may not create agentpools/external", "RoleBinding"];
    served.assert_refused(ENROL, "user-mallory", Some("team/laptops"), Code::NotAllowed, &right).await;
    served.assert_refused(ENROL, "user-alice", Some("team/others"), Code::NotAllowed, &["pool others"]).await;
    served.assert_refused(ENROL, "user-alice", Some("elsewhere/laptops"), Code::NotAllowed, &["namespace elsewhere"]).await;
    served.assert_refused(REPORT, "user-mallory", Some(WHO), Code::NotAllowed, &right).await;
    served.assert_refused(ENROL, "stranger", Some("team/laptops"), Code::InvalidToken, &["does not accept this token"]).await;
    served.assert_refused(ENROL, "user-alice", None, Code::NotAPod, &["not bound to a pod", "spillway-external"]).await;
    served.assert_refused(ENROL, "user-alice", Some("team/laptops/x"), Code::InvalidBody, &["NAMESPACE/POOL"]).await;
    served.assert_refused(REPORT, "user-alice", Some("team/../laptops/u"), Code::InvalidBody, &["NAMESPACE/POOL"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_token_is_its_pods_alone_wherever_it_is_shown() {
    let served = set_up().await;
    served
        .assert_refused(ENROL, "pod-a", Some("team/laptops"), Code::NotAllowed, &["bound to pod pod-a", "by an agent outside the cluster"])
        .await;
    served.assert_refused(REPORT, "pod-a", Some(WHO), Code::NotAllowed, &["bound to pod pod-a"]).await;
    served.assert_refused(ENROL, "pod-a", None, Code::NotAllowed, &["agents may not make this call"]).await;
    // A user without an agent is no agent.
    served.assert_refused(REPORT, "user-alice", Some("team/laptops"), Code::NotAllowed, &["agents may not make this call"]).await;
    served.assert_refused(ENROL, "user-alice", Some(WHO), Code::NotAllowed, &["agents may not make this call"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_an_agent_that_is_nobodys_goes_no_further_than_the_question_whose_it_is() {
    let served = set_up().await;
    let refusal = served.call_as(REPORT, "user-alice", Some("team/laptops/laptops-1/nobody")).await.expect_err("a refusal");
    assert_eq!(refusal.code, Code::NotAnAgent);
    let asked = served.world.leader.table().agent_calls.clone();
    assert_eq!(asked.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["/agent/v1/wanted"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_names_pool_after_pool_floods_no_api_server() {
    let served = set_up().await;
    let mut refused = 0;
    for pool in 0..100 {
        let refusal = served.call_as(ENROL, "user-alice", Some(&format!("team/p-{pool}"))).await.expect_err("a refusal");
        refused += usize::from(refusal.code == Code::TooManyCalls);
    }
    let asked = served.world.rights.lock().expect("whole").asked;
    assert!(asked < 50 && refused > 50, "asked {asked} times, refused {refused}");
}
