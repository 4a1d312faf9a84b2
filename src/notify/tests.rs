//! Real receivers on loopback: one that accepts, one that is slow, and faulty ones.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use settings::Format;
use tokio::net::TcpListener;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::*;

/// Longer than any wait here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn notice(name: &str, message: &str) -> Notice {
    let about = ObjectReference {
        api_version: Some("spillway.dev/v1alpha1".into()),
        kind: Some("Budget".into()),
        namespace: Some("team".into()),
        name: Some(name.into()),
        uid: Some(format!("uid-{name}")),
        ..ObjectReference::default()
    };
    let (reason, action) = ("ThresholdReached".to_owned(), "Meter".to_owned());
    Notice { time: Timestamp::UNIX_EPOCH, warning: true, about, reason, action, message: message.into() }
}

pub fn told(notices: Vec<Notice>) -> Delivery<NoticeGroup, Arc<Notice>> {
    let mut outbox = Outbox::default();
    for notice in notices {
        outbox.push(NoticeGroup::of(&notice), Arc::new(notice), Duration::ZERO);
    }
    match outbox.next(Duration::ZERO) {
        NextStep::Send(telling, _) => telling,
        NextStep::WaitUntil(_) | NextStep::Rest => panic!("nothing to tell"),
    }
}

/// The requests that a receiver got, and its next answers. After these it answers 200.
struct ReceivedCalls {
    calls: Mutex<Vec<(HeaderMap, Value)>>,
    answers: Mutex<Vec<Response>>,
}

async fn receiver(answers: Vec<Response>) -> (SocketAddr, Arc<ReceivedCalls>) {
    let seen = Arc::new(ReceivedCalls { calls: Mutex::default(), answers: Mutex::new(answers) });
    let take = async |State(seen): State<Arc<ReceivedCalls>>, headers: HeaderMap, body: String| {
        seen.calls.lock().expect("whole").push((headers, serde_json::from_str(&body).expect("JSON")));
        let mut answers = seen.answers.lock().expect("whole");
        if answers.is_empty() { StatusCode::OK.into_response() } else { answers.remove(0) }
    };
    let routes = Router::new().fallback(take).with_state(seen.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (address, seen)
}

struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str, url: &str) -> Self {
        let path = std::env::temp_dir().join(format!("spillway-notify-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::write(path.join("url"), format!("{url}\n")).expect("written");
        std::fs::write(path.join("authorization"), "Bearer secret").expect("written");
        Self(path)
    }

    fn webhook(&self, namespaces: &[&str]) -> Webhook {
        Webhook {
            name: "ops".into(),
            format: Format::Generic,
            url_file: self.0.join("url"),
            authorization_file: Some(self.0.join("authorization")),
            ca_bundle: String::new(),
            namespaces: namespaces.iter().map(|namespace| (*namespace).to_owned()).collect(),
        }
    }

    fn sender(&self) -> Sender {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Sender::new(&self.webhook(&[])).expect("a sender")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn until(what: &str, look: impl Fn() -> bool) {
    let waiting = async {
        while !look() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
}

#[tokio::test]
async fn a_notice_arrives_also_after_the_receiver_was_away() {
    let (address, seen) = receiver(vec![StatusCode::SERVICE_UNAVAILABLE.into_response()]).await;
    let folder = Folder::new("arrives", &format!("http://{address}/hook"));
    let metrics = Metrics::default();
    let notifier = Notifier::start(vec![folder.webhook(&["team"])], &metrics).expect("a notifier");
    let mut other = notice("other", "of another namespace");
    other.about.namespace = Some("elsewhere".into());
    notifier.tell(other);
    notifier.tell(notice("default", "90 %"));
    until("it is told twice", || seen.calls.lock().expect("whole").len() == 2).await;
    let calls = seen.calls.lock().expect("whole").clone();
    assert_eq!(calls[0].1, calls[1].1, "the same");
    assert_eq!(calls[0].0["spillway-notice"], calls[1].0["spillway-notice"], "under the same number");
    assert_eq!((&calls[0].0["authorization"], &calls[0].1["message"]), (&"Bearer secret".parse().expect("a value"), &Value::from("90 %")));
    until("it is counted", || metrics.text().expect("text").contains(r#"outcome="sent",webhook="ops"} 1"#)).await;
    assert!(metrics.text().expect("text").contains(r#"outcome="retried",webhook="ops"} 1"#));
}

#[tokio::test]
async fn who_tells_never_waits() {
    // It accepts connections, and never answers.
    let deaf = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let folder = Folder::new("deaf", &format!("http://{}/", deaf.local_addr().expect("bound")));
    let metrics = Metrics::default();
    let notifier = Notifier::start(vec![folder.webhook(&[])], &metrics).expect("a notifier");
    // The task cannot run in between, because nothing here waits. So the queue fills, and further notices are counted
    // as lost.
    (0..NOTICE_QUEUE_CAPACITY + 7).for_each(|number| notifier.tell(notice(&number.to_string(), "x")));
    assert!(metrics.text().expect("text").contains(r#"outcome="lost",webhook="ops"} 7"#));
}

#[tokio::test]
async fn what_a_receiver_answers_is_not_believed_too_far() {
    let cases: Vec<(Response, Outcome)> = vec![
        (StatusCode::NO_CONTENT.into_response(), Outcome::Taken),
        ((StatusCode::FOUND, [("location", "http://127.0.0.1:1/")]).into_response(), Outcome::Refused),
        (StatusCode::NOT_FOUND.into_response(), Outcome::Refused),
        ((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")]).into_response(), Outcome::Later(Some(Duration::from_secs(7)))),
        ((StatusCode::BAD_GATEWAY, [("retry-after", "soon")]).into_response(), Outcome::Later(None)),
        // A body that would fill the memory is not read.
        (
            axum::body::Body::from_stream(futures::stream::repeat(Ok::<_, std::convert::Infallible>(vec![b'x'; 65_536]))).into_response(),
            Outcome::Taken,
        ),
    ];
    let (answers, outcomes): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    let (address, seen) = receiver(answers).await;
    let folder = Folder::new("answers", &format!("http://{address}/"));
    let sender = folder.sender();
    for outcome in outcomes {
        assert_eq!(send::judge(&sender.send(1, "{}".into()).await), outcome);
    }
    assert_eq!(seen.calls.lock().expect("whole").len(), 6, "a redirect is not followed");
}

#[tokio::test]
async fn what_goes_wrong_says_nothing_that_is_secret() {
    let closed = tokio::net::TcpSocket::new_v4().expect("a socket");
    closed.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let at = closed.local_addr().expect("bound");
    let urls =
        [format!("http://{at}/T0/B0/hush"), format!("https://{at}/hush"), "ftp://x/hush".into(), "hush".into(), "http://[hush".into()];
    for url in urls {
        let folder = Folder::new("secret", &url);
        let error = folder.sender().send(1, "{}".into()).await.expect_err("it cannot be sent");
        let said = format!("{error:#}");
        assert!(!said.contains("hush") && !said.contains("Bearer"), "{url}: {said}");
        assert_eq!(send::judge(&Err(error)), Outcome::Later(None), "a Secret may be mended");
    }
    let folder = Folder::new("missing", "http://x/");
    let sender = folder.sender();
    std::fs::remove_file(folder.0.join("url")).expect("removed");
    let said = format!("{:#}", sender.send(1, "{}".into()).await.expect_err("there is no URL"));
    assert!(said.contains("check that its Secret exists"), "{said}");
}
