//! Floods and slow clients: each hostile connection ends, and honest clients are served meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use spillway::serve::Bounds;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::client::{PREFACE, exchange, frame, hello, statuses, within_patience};
use crate::{Served, served, short};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// A request of `/`, which is refused without a token.
const GET: &[u8] = &[0x82, 0x87, 0x84, 0x41, 1, b'g'];
const POST: &[u8] = &[0x83, 0x87, 0x84, 0x41, 1, b'g'];
/// `authorization`, with a good token.
const TOKEN: &[u8] = b"\x0f\x08\x0cBearer pod-a";
/// Shorter than the 30 s after which a client without answers to pings is dropped, and longer than any flood needs.
const BEFORE_PINGS: Duration = Duration::from_secs(25);
/// More frames than any flood needs.
const MANY: u32 = 100_000;

fn preface() -> impl Iterator<Item = Vec<u8>> {
    std::iter::once(PREFACE.to_vec())
}

/// The numbers of a client's streams, without the first one.
fn streams() -> impl Iterator<Item = u32> {
    (0..MANY).map(|number| 2 * number + 3)
}

/// A request that its client resets at once.
fn given_up(stream: u32, get: &[u8]) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS | END_STREAM, stream, get), frame(RESET, 0, stream, &8_u32.to_be_bytes())].concat()
}

/// A request that the server must reset, because its trailers do not end the stream.
fn malformed(stream: u32, post: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, post).repeat(2)
}

fn rapid_reset(get: &[u8]) -> Vec<Vec<u8>> {
    preface().chain(streams().map(|stream| given_up(stream, get))).collect()
}

fn server_reset_request(post: &[u8]) -> Vec<Vec<u8>> {
    preface().chain(streams().map(|stream| malformed(stream, post))).collect()
}

fn continuation() -> Vec<Vec<u8>> {
    let more = (0..MANY).map(|_| frame(CONTINUATION, 0, 3, &[0x40, 1, b'x', 1, b'y'].repeat(20)));
    preface().chain([frame(HEADERS, END_STREAM, 3, GET)]).chain(more).collect()
}

fn empty_continuation() -> Vec<Vec<u8>> {
    preface().chain([frame(HEADERS, END_STREAM, 3, GET)]).chain((0..MANY).map(|_| frame(CONTINUATION, 0, 3, &[]))).collect()
}

/// One indexed field of 4 kB, and then many references of one byte to it.
fn header_bomb(get: &[u8]) -> Vec<Vec<u8>> {
    let value = [b'v'; 3_000];
    let field = [&[0x40, 1, b'x', 0x7f, 0xb9, 0x16][..], &value].concat();
    let first = frame(HEADERS, END_HEADERS | END_STREAM, 3, &[get, &field].concat());
    let bomb = [get, &[0xbe; 16_000]].concat();
    let bombs = streams().skip(1).take(2_000).map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &bomb));
    preface().chain([first]).chain(bombs).collect()
}

fn settings() -> Vec<Vec<u8>> {
    preface().chain((0..MANY).map(|_| frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]))).collect()
}

fn pings() -> Vec<Vec<u8>> {
    preface().chain((0..MANY).map(|_| frame(PING, 0, 0, &[0; 8]))).collect()
}

/// Requests whose answers do not fit into the client's window.
fn no_room_for_answers() -> Vec<Vec<u8>> {
    let settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0".to_vec();
    let requests = streams().take(64).map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, GET));
    std::iter::once(settings).chain(requests).collect()
}

/// Bodies that begin and do not end.
fn bodies_without_end() -> Vec<Vec<u8>> {
    let requests = streams().take(64).map(|stream| [frame(HEADERS, END_HEADERS, stream, POST), frame(DATA, 0, stream, b"{")].concat());
    preface().chain(requests).collect()
}

async fn first(served: &Served, name: &str, bytes: Vec<Vec<u8>>) -> Vec<u16> {
    let stream = served.connect("http/1.1").await;
    statuses(&within_patience(name, exchange(stream, bytes)).await)
}

async fn dripping(served: &Served, name: &str, head: &str) -> Vec<u16> {
    let (read, mut write) = tokio::io::split(served.connect("http/1.1").await);
    let mut read = read;
    let head = head.to_owned();
    let writing = tokio::spawn(async move {
        let mut bytes = head.into_bytes();
        while write.write_all(&bytes).await.is_ok() {
            bytes = b"a".to_vec();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let mut answer = Vec::new();
    let _ = within_patience(name, tokio::io::AsyncReadExt::read_to_end(&mut read, &mut answer)).await;
    writing.abort();
    statuses(&answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_http_2_end_their_connection_and_nobody_elses() {
    let served = served(short()).await;
    let floods = [
        ("rapid reset", rapid_reset(GET)),
        ("resets that the server makes", server_reset_request(POST)),
        ("CONTINUATION", continuation()),
        ("empty CONTINUATION", empty_continuation()),
        ("HPACK bomb", header_bomb(GET)),
        ("SETTINGS", settings()),
        ("PING", pings()),
        ("no room for answers", no_room_for_answers()),
        ("bodies without end", bodies_without_end()),
        ("an HTTP/1 request", vec![b"GET / HTTP/1.1\r\nhost: g\r\n\r\n".to_vec()]),
    ];
    let count = floods.len();
    let mut honest = served.connect("http/1.1").await;
    assert_eq!(hello(&mut honest).await.expect("an answer"), 200);
    // Boxed: together they are larger than the stack of a test.
    let floods = futures::future::join_all(floods.into_iter().map(|(name, bytes)| {
        Box::pin(async {
            let stream = served.connect("h2").await;
            within_patience(name, exchange(stream, bytes)).await
        })
    }));
    let mut calls = 0;
    let beside = async {
        loop {
            assert_eq!(within_patience("an honest call", served.honest_call()).await, 200);
            calls += 1;
        }
    };
    tokio::select! {
        _ = floods => {}
        () = beside => {}
    }
    assert!(calls >= count, "{calls} honest calls were served beside {count} floods");
    assert_eq!(served.honest_call().await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_and_bodies_of_http_1_are_bounded_in_size_and_time() {
    let served = served(short()).await;
    let long = [b"GET / HTTP/1.1\r\nhost: g\r\nx: ".as_slice(), &[b'a'; 384 * 1024]].concat();
    let fields = |count: usize| format!("GET / HTTP/1.1\r\nhost: g\r\n{}\r\n", "x: y\r\n".repeat(count - 1)).into_bytes();
    let target = format!("GET /{} HTTP/1.1\r\nhost: g\r\n\r\n", "a".repeat(40_000)).into_bytes();
    let (head, most, one_more, target, slow_head, slow_body, slow_line) = tokio::join!(
        first(&served, "a head of 384 kB", long.chunks(4096).map(<[u8]>::to_vec).collect()),
        first(&served, "64 fields", vec![fields(64)]),
        first(&served, "65 fields", vec![fields(65)]),
        first(&served, "a long target", vec![target]),
        dripping(&served, "a slow head", "GET / HTTP/1.1\r\nx: "),
        dripping(&served, "a slow body", "POST /agent/v1/report HTTP/1.1\r\nhost: g\r\ncontent-length: 100000\r\n\r\n"),
        dripping(&served, "a slow line", "GET /"),
    );
    // The server may reset a connection while the client still writes. Then the answer is lost.
    assert!(head == [431] || head.is_empty(), "{head:?}");
    assert!(matches!(target.as_slice(), [] | [414 | 431]), "{target:?}");
    assert_eq!((most, one_more), (vec![401], vec![431]));
    assert_eq!((slow_head, slow_line), (vec![], vec![]));
    assert!(matches!(slow_body.as_slice(), [] | [401]), "{slow_body:?}");
    assert_eq!(served.honest_call().await, 200);
}

/// The next frame: its kind and its payload.
async fn next(stream: &mut TlsStream<TcpStream>) -> (u8, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.expect("a frame");
    let [high, middle, low, kind, ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
    stream.read_exact(&mut payload).await.expect("all of it");
    (kind, payload)
}

/// An HTTP/2 connection that is known by an answered request with a token.
async fn known(served: &Served) -> TlsStream<TcpStream> {
    let mut stream = served.connect("h2").await;
    let first = [PREFACE, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &[GET, TOKEN].concat())].concat();
    stream.write_all(&first).await.expect("open");
    while within_patience("an answer", next(&mut stream)).await.0 != HEADERS {}
    stream
}

/// Known connections live as long as they are used. Only the number of frames ends them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_resets_and_heads_end_a_known_connection_too() {
    let served = served(Bounds { shutdown_timeout: Duration::ZERO, ..Bounds::AGENTS }).await;
    // With a token. Without one the requests would be refused, and that alone would end the connection.
    let (get, post) = ([GET, TOKEN].concat(), [POST, TOKEN].concat());
    let floods = [
        ("rapid reset", rapid_reset(&get)),
        ("resets that the server makes", server_reset_request(&post)),
        ("CONTINUATION", continuation()),
        ("empty CONTINUATION", empty_continuation()),
        ("HPACK bomb", header_bomb(&get)),
    ];
    for (name, bytes) in floods {
        let stream = known(&served).await;
        // The preface was sent.
        let ended = tokio::time::timeout(BEFORE_PINGS, exchange(stream, bytes.into_iter().skip(1))).await;
        assert!(ended.is_ok(), "{name}: it goes on");
        assert_eq!(served.honest_call().await, 200, "{name}");
    }
}

/// Sends `bytes`, then a ping. None: it is answered. Otherwise the server's reason for ending the connection.
async fn told_after(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) -> Option<String> {
    // In one piece, so that the server reads all bytes before it handles a request.
    stream.write_all(&[bytes, &frame(PING, 0, 0, b"our ping")].concat()).await.expect("open");
    stream.flush().await.expect("open");
    loop {
        match within_patience("an answer", next(stream)).await {
            (PING, payload) if payload == b"our ping" => return None,
            // After the last stream and the error code.
            (GOAWAY, payload) => return Some(String::from_utf8_lossy(&payload[8..]).into_owned()),
            _ => {}
        }
    }
}

/// The accepted number, and one more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_are_counted_and_one_too_many_ends_the_connection() {
    let served = served(Bounds::AGENTS).await;
    let (get, post) = ([GET, TOKEN].concat(), [POST, TOKEN].concat());
    for (count, end) in [(20, None), (21, Some("too_many_resets"))] {
        let mut stream = known(&served).await;
        let requests: Vec<u8> = streams().take(count).flat_map(|stream| given_up(stream, &get)).collect();
        assert_eq!(told_after(&mut stream, &requests).await.as_deref(), end, "{count} requests are given up before they are looked at");
    }
    let (mut stream, mut streams) = (known(&served).await, streams());
    for count in 1..=64 {
        let request = malformed(streams.next().expect("there are more"), &post);
        assert_eq!(told_after(&mut stream, &request).await, None, "the server resets {count}");
    }
    let request = malformed(streams.next().expect("there are more"), &post);
    assert_eq!(told_after(&mut stream, &request).await.as_deref(), Some("too_many_internal_resets"));
    assert_eq!(served.honest_call().await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_connection_may_take_is_said_and_a_longer_head_is_refused() {
    let served = served(Bounds::AGENTS).await;
    let mut stream = served.connect("h2").await;
    stream.write_all(PREFACE).await.expect("open");
    let (kind, settings) = within_patience("settings", next(&mut stream)).await;
    assert_eq!(kind, SETTINGS);
    let setting = |one: &[u8]| (u16::from_be_bytes([one[0], one[1]]), u32::from_be_bytes([one[2], one[3], one[4], one[5]]));
    let said: BTreeMap<u16, u32> = settings.chunks_exact(6).map(setting).collect();
    let or = |number: u16, unsaid: u32| said.get(&number).copied().unwrap_or(unsaid);
    let (table, streams, window, frame, list) = (or(1, 4096), or(3, u32::MAX), or(4, 65_535), or(5, 16_384), or(6, u32::MAX));
    assert_eq!((table, streams, window, frame, list), (4 * 1024, 64, 32 * 1024, 16 * 1024, 16 * 1024));
    // A client that ignores them.
    let stream = TokioIo::new(served.connect("h2").await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    for (length, status) in [(12 * 1024, 404), (17 * 1024, 431)] {
        let request = Request::get("https://g/nothing").header("authorization", "Bearer pod-a").header("x", "a".repeat(length));
        let answer = sender.send_request(request.body(Body::empty()).expect("a request")).await.expect("an answer");
        assert_eq!(answer.status().as_u16(), status, "{length} bytes");
    }
}
