//! Which clients get a connection, and how long connections live.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::Request;
use spillway::serve::Bounds;
use spillway::serve::admission::Capacity;
use spillway::serve::connection::Register;
use spillway::serve::lifetime::Times;
use spillway::telemetry::Metrics;
use spillway::wire::governor::Change;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{dial, exchange, hello, statuses, within_patience};
use crate::world::{TestCluster, wait_for};
use crate::{SHORT, served, short};

fn count(text: &str, class: &str) -> Option<usize> {
    let line = format!("spillway_connections{{listener=\"agents\",class=\"{class}\"}} ");
    text.lines().find_map(|one| one.strip_prefix(&line))?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_known_by_its_token_and_no_longer_when_its_agent_ended() {
    let times = Times { idle: Bounds::AGENTS.times.idle, ..short().times };
    let served = served(Bounds { times, ..short() }).await;
    let connections = || {
        let text = served.side.metrics.text().expect("text");
        (count(&text, "strange"), count(&text, "known"))
    };
    let mut known = served.connect("http/1.1").await;
    assert_eq!(hello(&mut known).await.expect("an answer"), 200);
    assert_eq!(connections(), (Some(0), Some(1)));
    // An invalid token, no token, and the document, which needs no token.
    let requests = [
        "GET /agent/v1/budget HTTP/1.1\r\nhost: g\r\nauthorization: Bearer other\r\n\r\n",
        "GET /agent/v1/budget HTTP/1.1\r\nhost: g\r\n\r\n",
        "GET /openapi.json HTTP/1.1\r\nhost: g\r\n\r\n",
    ];
    let strange = requests.map(async |request| {
        let strange = served.connect("http/1.1").await;
        statuses(&within_patience("the end of a strange connection", exchange(strange, [request.into()])).await)
    });
    let answers = futures::future::join_all(strange).await;
    assert_eq!(answers, [[401], [401], [200]], "they are answered, and ended");
    assert_eq!(hello(&mut known).await.expect("it lives on"), 200);
    served.side.long_polls.apply(Change::Revoked { uid: "uid-pod-a".into() });
    let refused = hello(&mut known).await.expect("an answer");
    assert!((400..500).contains(&refused), "{refused}");
    let mut rest = Vec::new();
    let _ = within_patience("the end of a connection whose agent ended", known.read_to_end(&mut rest)).await;
    wait_for("no connection is left", || (connections() == (Some(0), Some(0))).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_leaves_places_for_others() {
    let capacity = Capacity { known: 8, ..Bounds::AGENTS.capacity };
    let served = served(Bounds { capacity, ..Bounds::AGENTS }).await;
    let mut kept = Vec::new();
    for number in 0..7 {
        let mut stream = served.connect("http/1.1").await;
        let status = hello(&mut stream).await.expect("an answer");
        assert_eq!(status, if number < 6 { 200 } else { 429 }, "{number}");
        kept.push(stream);
    }
    let mut other = served.connect("http/1.1").await;
    let request = "HEAD /models/claude/ HTTP/1.1\r\nhost: g\r\nauthorization: Bearer pod-of-others\r\n\r\n";
    other.write_all(request.as_bytes()).await.expect("open");
    let mut answer = vec![0; 12];
    other.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(statuses(&answer), [200]);
    // Ended connections free their places.
    kept.remove(0);
    drop(other);
    wait_for("places were given back", || {
        let text = served.side.metrics.text().expect("text");
        (count(&text, "known") == Some(5)).then_some(())
    })
    .await;
    assert_eq!(hello(&mut kept[5]).await.expect("an answer"), 200, "the one that was refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_of_the_api_is_sent_once_to_who_remembers_it() {
    let served = served(Bounds::AGENTS).await;
    let ask = async |field: &str| {
        let request = format!("GET /openapi.json HTTP/1.1\r\nhost: g\r\nconnection: close\r\n{field}\r\n");
        let answer = within_patience("an answer", exchange(served.connect("http/1.1").await, [request.into_bytes()])).await;
        String::from_utf8(answer).expect("text")
    };
    let whole = ask("").await;
    let tag = whole.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
    assert!(whole.contains(r#""openapi":"3.1.0""#) && whole.contains("cache-control: public, max-age=3600"), "{whole}");
    for known in [tag.to_owned(), format!("\"other\", W/{tag}"), "*".to_owned()] {
        let answer = ask(&format!("if-none-match: {known}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 304") && answer.ends_with("\r\n\r\n"), "{known}: {answer}");
    }
    assert!(ask("if-none-match: \"other\"\r\n").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn the_document_is_given_out_in_turn_on_known_connections_too() {
    let world = TestCluster::new().await;
    let side = world.gateway("g", Default::default(), true);
    let place = Register::new(Bounds::AGENTS, Metrics::default()).arrive(Ipv4Addr::LOCALHOST.into());
    let place = place.unwrap_or_else(|after| panic!("a place after {after:?}"));
    place.connection().admit("team").expect("a place");
    // From here on time passes only while a task waits for it.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    for _ in 0..1_000 {
        let request = Request::get("/openapi.json").header("if-none-match", "*").extension(place.connection().clone());
        assert_eq!(side.ask(request.body(Body::empty()).expect("a request")).await.status, 304);
    }
    let took = began.elapsed();
    let between = Duration::from_secs(2)..Duration::from_secs(5);
    assert!(between.contains(&took), "400 at once, the others 200 a second: {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_way_is_ended_at_once() {
    let capacity = Capacity { strange_per_address: 2, ..Bounds::AGENTS.capacity };
    let times = Times { strange: Duration::from_secs(600), ..Bounds::AGENTS.times };
    let served = served(Bounds { capacity, times, ..Bounds::AGENTS }).await;
    let mut oldest = served.connect("http/1.1").await;
    let _others = (served.connect("http/1.1").await, served.connect("http/1.1").await);
    let mut bytes = Vec::new();
    let _ = within_patience("the end of the oldest", oldest.read_to_end(&mut bytes)).await;
    assert!(bytes.is_empty());
}

/// Number of connections that one hostile address keeps.
const KEPT: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_addresses_with_ten_thousand_connections_keep_no_newcomer_out() {
    raise_descriptors();
    let capacity = Capacity { strange: 128, strange_per_address: 16, ..Bounds::AGENTS.capacity };
    let served = Arc::new(served(Bounds { capacity, ..Bounds::AGENTS }).await);
    let attempts = Arc::new(AtomicUsize::new(0));
    let mut hostile = tokio::task::JoinSet::new();
    for number in 0..10 {
        let (served, attempts) = (served.clone(), attempts.clone());
        hostile.spawn(async move {
            let mut kept = VecDeque::new();
            for attempt in 0..1_000_u32 {
                let from = Ipv4Addr::new(127, 0, 1, number);
                // Most send nothing. Some make a TLS handshake.
                if attempt % 50 == 0 {
                    drop(served.connect_from(from, "h2").await);
                } else if let Ok(stream) = dial(served.address, from).await {
                    kept.push_back(stream);
                }
                if kept.len() > KEPT {
                    kept.pop_front();
                }
                attempts.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut honest = 0;
    while !hostile.is_empty() || honest < 20 {
        assert_eq!(within_patience("an honest call", served.honest_call()).await, 200);
        honest += 1;
        while let Some(ended) = hostile.try_join_next() {
            ended.expect("no panic");
        }
    }
    assert_eq!(attempts.load(Ordering::Relaxed), 10_000);
    let text = served.side.metrics.text().expect("text");
    assert!(count(&text, "strange").is_some_and(|strange| strange <= 128), "{text}");
    assert!(text.contains(r#"spillway_connections_refused_total{listener="agents",reason="evicted"}"#), "{text}");
}

/// Raises the limit of file descriptors for both ends of all connections, because the usual limit of a shell is too
/// low.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("a soft limit up to the hard one");
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_do_not_end_take_little_memory() {
    const STRANGE: usize = 1_024;
    raise_descriptors();
    let times = Times { strange: Duration::from_secs(120), ..Bounds::AGENTS.times };
    let served = served(Bounds { times, ..Bounds::AGENTS }).await;
    assert_eq!(served.honest_call().await, 200);
    let before = resident_bytes();
    let head = [b"GET / HTTP/1.1\r\nx: ".as_slice(), &[b'a'; 31 * 1024]].concat();
    let mut kept = Vec::new();
    for number in 0..STRANGE {
        let from = Ipv4Addr::new(127, 0, 2, u8::try_from(number / 64).expect("sixteen"));
        let mut stream = served.connect_from(from, "http/1.1").await.expect("a connection");
        stream.write_all(&head).await.expect("open");
        stream.flush().await.expect("open");
        kept.push(stream);
    }
    let strange = || count(&served.side.metrics.text().expect("text"), "strange");
    assert!(strange() >= Some(STRANGE - 16), "{:?}", strange());
    let each = (resident_bytes() - before) / STRANGE;
    println!("{STRANGE} strange connections with unfinished heads, both ends: {each} bytes each");
    assert!(each < 192 * 1024, "{each} bytes each");
    // One byte more than the limit of a head ends the connection.
    let mut last = kept.pop().expect("many");
    last.write_all(&[b'a'; 2 * 1024]).await.expect("open");
    let mut answer = Vec::new();
    let _ = within_patience("the end of a head that is too long", last.read_to_end(&mut answer)).await;
    // The answer is lost if the connection is reset first.
    assert!(matches!(statuses(&answer).as_slice(), [] | [431]), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_say_nothing_are_ended() {
    let served = served(short()).await;
    let began = tokio::time::Instant::now();
    // No handshake, an unfinished handshake, and no data after a handshake.
    let mut silent = dial(served.address, Ipv4Addr::LOCALHOST).await.expect("a connection");
    let mut half = dial(served.address, Ipv4Addr::LOCALHOST).await.expect("a connection");
    half.write_all(&[22, 3, 1, 2, 0, 1, 0]).await.expect("open");
    let first = served.connect("http/1.1").await;
    let second = served.connect("h2").await;
    let mut bytes = Vec::new();
    let _ = within_patience("no handshake", silent.read_to_end(&mut bytes)).await;
    let _ = within_patience("half a handshake", half.read_to_end(&mut bytes)).await;
    assert!(bytes.is_empty());
    within_patience("no request", exchange(first, [])).await;
    within_patience("no preface", exchange(second, [])).await;
    assert!(began.elapsed() >= SHORT, "they had their time");
    assert_eq!(served.honest_call().await, 200);
}
