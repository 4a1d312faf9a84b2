//! One connection without TLS, over a pipe in memory. The paused clock advances only when all tasks wait.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use hyper::StatusCode;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::Bounds;
use super::connection::{Connection, Register};
use super::listener::{Protocol, drive, tls_handshake};
use crate::pki::tls;
use crate::telemetry::Metrics;

const S: fn(u64) -> Duration = Duration::from_secs;
/// Longer than any connection here may live, on the clock of the tests.
const MOST: Duration = Duration::from_secs(10_000);

/// Answers `/?SECONDS` after that time. The token `good` is valid, `bad` is invalid, `away` cannot be reviewed.
async fn answer(request: Request) -> Response {
    let connection = request.extensions().get::<Connection>().expect("served");
    match request.headers().get("token").map(|token| token.as_bytes()) {
        Some(b"good") => connection.admit("team").expect("a place"),
        Some(b"away") => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        _ => {
            connection.refuse();
            return StatusCode::UNAUTHORIZED.into_response();
        }
    }
    let seconds = request.uri().query().and_then(|query| query.parse().ok()).unwrap_or_default();
    sleep(S(seconds)).await;
    "done".into_response()
}

struct Served {
    client: DuplexStream,
    driver: JoinHandle<()>,
    stop: CancellationToken,
    metrics: Metrics,
}

fn serve(protocol: Protocol) -> Served {
    let (client, server) = duplex(64 * 1024);
    let (metrics, stop) = (Metrics::default(), CancellationToken::new());
    let register = Register::new(Bounds::AGENTS, metrics.clone());
    let place = register.arrive([127, 0, 0, 1].into()).unwrap_or_else(|after| panic!("a place after {after:?}"));
    let stopping = stop.clone();
    let driver = tokio::spawn(async move {
        let routes = axum::Router::new().fallback(answer);
        tokio::select! {
            ended = drive(server, protocol, Bounds::AGENTS, routes, place.connection(), &stopping) => drop(ended),
            () = place.connection().ended() => {}
        }
    });
    Served { client, driver, stop, metrics }
}

impl Served {
    async fn get(&mut self, token: &str, seconds: u64) -> String {
        self.client.write_all(format!("GET /?{seconds} HTTP/1.1\r\nhost: h\r\ntoken: {token}\r\n\r\n").as_bytes()).await.expect("open");
        let mut answer = vec![0; 4096];
        let read = self.client.read(&mut answer).await.expect("an answer");
        String::from_utf8_lossy(&answer[..read]).into_owned()
    }

    /// How long the connection lives from now on.
    async fn lives(mut self) -> Duration {
        let began = Instant::now();
        let mut rest = Vec::new();
        let _ = timeout(MOST, self.client.read_to_end(&mut rest)).await.expect("it ends");
        self.driver.await.expect("no panic");
        began.elapsed()
    }

    fn counted(&self, line: &str) -> bool {
        self.metrics.text().expect("text").contains(line)
    }
}

fn about(took: Duration, seconds: u64) -> bool {
    took >= S(seconds) && took < S(seconds) + S(3)
}

#[tokio::test(start_paused = true)]
async fn a_strange_connection_that_says_nothing_or_a_head_without_end_is_over_soon() {
    let took = serve(Protocol::Http1).lives().await;
    assert!(about(took, 10), "{took:?}");

    let Served { client, driver, .. } = serve(Protocol::Http1);
    let (began, (mut read, mut write)) = (Instant::now(), tokio::io::split(client));
    let dripping = tokio::spawn(async move {
        let mut bytes = b"GET / HTTP/1.1\r\nx: ".as_slice().to_vec();
        while write.write_all(&bytes).await.is_ok() {
            bytes = b"a".to_vec();
            sleep(Duration::from_millis(500)).await;
        }
    });
    let _ = timeout(MOST, read.read_to_end(&mut Vec::new())).await.expect("it ends");
    driver.await.expect("no panic");
    assert!(about(began.elapsed(), 10), "{:?}", began.elapsed());
    dripping.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn requests_that_nobody_lets_in_do_not_keep_a_connection() {
    let mut served = serve(Protocol::Http1);
    let began = Instant::now();
    for _ in 0..9 {
        assert!(served.get("bad", 0).await.starts_with("HTTP/1.1 401"));
        sleep(S(1)).await;
    }
    assert!(served.counted(r#"spillway_connections{listener="agents",class="strange"} 1"#));
    let metrics = served.metrics.clone();
    served.lives().await;
    assert!(about(began.elapsed(), 10), "{:?}", began.elapsed());
    let text = metrics.text().expect("text");
    assert!(text.contains(r#"spillway_connections_refused_total{listener="agents",reason="not_admitted"} 1"#), "{text}");
    assert!(text.contains(r#"spillway_connections{listener="agents",class="strange"} 0"#), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_known_connection_lives_through_a_long_poll_and_then_rests() {
    let mut served = serve(Protocol::Http1);
    assert!(served.get("good", 3600).await.contains("done"));
    assert!(served.counted(r#"spillway_connections{listener="agents",class="known"} 1"#));
    sleep(S(70)).await;
    assert!(served.get("good", 25).await.contains("done"), "it rested for less than it may");
    assert!(served.get("away", 0).await.starts_with("HTTP/1.1 503"), "nobody was refused");
    let took = served.lives().await;
    assert!(about(took, 75), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_head_on_a_known_connection_must_be_whole_soon_after_it_began() {
    let mut served = serve(Protocol::Http1);
    assert!(served.get("good", 0).await.contains("done"));
    sleep(S(30)).await;
    served.client.write_all(b"GET / HTTP/1.1\r\n").await.expect("open");
    sleep(S(5)).await;
    served.client.write_all(b"x: y\r\n").await.expect("open");
    let took = served.lives().await;
    assert!(about(took, 5), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_known_connection_whose_token_is_refused_takes_no_more() {
    let mut served = serve(Protocol::Http1);
    assert!(served.get("good", 0).await.contains("done"));
    let refused = served.get("bad", 0).await;
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    let metrics = served.metrics.clone();
    let took = served.lives().await;
    assert!(took < S(3), "{took:?}");
    let text = metrics.text().expect("text");
    assert!(text.contains(r#"spillway_connections_refused_total{listener="agents",reason="token_refused"} 1"#), "{text}");
}

#[tokio::test(start_paused = true)]
async fn requests_of_an_address_without_a_token_take_turns_and_those_with_one_do_not() {
    let mut served = serve(Protocol::Http1);
    let began = Instant::now();
    for _ in 0..1_000 {
        assert!(served.get("bad", 0).await.starts_with("HTTP/1.1 401"));
    }
    let took = began.elapsed();
    assert!(took >= S(2) && took < S(5), "400 at once, the others 200 a second: {took:?}");
    assert!(served.get("good", 0).await.contains("done"));
    let began = Instant::now();
    for _ in 0..1_000 {
        assert!(served.get("good", 0).await.contains("done"));
    }
    assert!(began.elapsed() < S(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn handshakes_of_an_address_take_turns() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default(); // another test may have
    let acceptor = TlsAcceptor::from(Arc::new(tls::server(tls::Serving::default())));
    let place = Register::new(Bounds::AGENTS, Metrics::default()).arrive([127, 0, 0, 1].into());
    let place = place.unwrap_or_else(|after| panic!("a place after {after:?}"));
    let began = Instant::now();
    for _ in 0..1_000 {
        let (mut client, server) = duplex(1024);
        client.write_all(b"this is no handshake").await.expect("open");
        tls_handshake(server, &acceptor, place.connection()).await.expect_err("it is none");
    }
    let took = began.elapsed();
    assert!(took >= S(2) && took < S(5), "400 at once, the others 200 a second: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_closes_what_rests_and_finishes_what_runs() {
    let mut served = serve(Protocol::Http1);
    assert!(served.get("good", 0).await.contains("done"));
    served.stop.cancel();
    assert!(served.lives().await < S(3));

    let mut served = serve(Protocol::Http1);
    let stop = served.stop.clone();
    tokio::spawn(async move {
        sleep(S(5)).await;
        stop.cancel();
    });
    assert!(served.get("good", 60).await.contains("done"));
    assert!(served.lives().await < S(3));
}

/// An HTTP/2 client that sends a ping each second and answers those of the server, and a task that returns the
/// connection's lifetime.
async fn second(client: DuplexStream) -> (http2::SendRequest<Body>, JoinHandle<Duration>) {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(S(1)).keep_alive_while_idle(true);
    let (sender, connection) = builder.handshake(TokioIo::new(client)).await.expect("HTTP/2");
    let began = Instant::now();
    let over = tokio::spawn(async move {
        let _ = connection.await;
        began.elapsed()
    });
    (sender, over)
}

fn get(token: &str, seconds: u64) -> hyper::Request<Body> {
    hyper::Request::get(format!("https://h/?{seconds}")).header("token", token).body(Body::empty()).expect("a request")
}

#[tokio::test(start_paused = true)]
async fn pings_alone_keep_no_connection() {
    let Served { client, driver, .. } = serve(Protocol::Http2);
    let (_sender, over) = second(client).await;
    let took = timeout(S(100), over).await.expect("it ends").expect("no panic");
    assert!(about(took, 10), "{took:?}");
    driver.await.expect("no panic");

    let Served { client, driver, .. } = serve(Protocol::Http2);
    let (mut sender, over) = second(client).await;
    let answer = sender.send_request(get("good", 200)).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    drop(answer);
    let took = timeout(S(400), over).await.expect("it ends").expect("no panic");
    assert!(about(took, 200 + 75), "{took:?}");
    driver.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_ends_no_call_that_was_let_in() {
    let (began, Served { client, driver, .. }) = (Instant::now(), serve(Protocol::Http2));
    let (mut sender, _over) = second(client).await;
    let mut running = sender.clone();
    let running = tokio::spawn(async move { running.send_request(get("good", 600)).await.map(|answer| answer.status()) });
    sleep(S(1)).await;
    assert_eq!(sender.send_request(get("bad", 0)).await.expect("an answer").status(), StatusCode::UNAUTHORIZED);
    sleep(S(1)).await;
    assert!(sender.send_request(get("good", 0)).await.is_err(), "it takes no more");
    assert_eq!(running.await.expect("no panic").expect("an answer"), StatusCode::OK);
    driver.await.expect("no panic");
    assert!(about(began.elapsed(), 600), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_requests_on_one_connection_ends_it() {
    let Served { client, driver, metrics, .. } = serve(Protocol::Http2);
    let (sender, over) = second(client).await;
    let floods = (0..64).map(|_| {
        let mut sender = sender.clone();
        tokio::spawn(async move { while sender.ready().await.is_ok() && sender.send_request(get("bad", 0)).await.is_ok() {} })
    });
    for flood in floods.collect::<Vec<_>>() {
        flood.await.expect("no panic");
    }
    assert!(over.await.expect("no panic") < S(5));
    driver.await.expect("no panic");
    assert!(metrics.text().expect("text").contains(r#"reason="rate""#));
}
