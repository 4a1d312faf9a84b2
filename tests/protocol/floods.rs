//! Floods and slow ones: each connection ends, and honest clients are served meanwhile.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use crate::client::{PREFACE, exchange, frame, hello, soon, statuses};
use crate::{Served, served, short};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Of `/`, which is refused for want of a token.
const GET: &[u8] = &[0x82, 0x87, 0x84, 0x41, 1, b'g'];
const POST: &[u8] = &[0x83, 0x87, 0x84, 0x41, 1, b'g'];
/// More than any flood here needs.
const MANY: u32 = 100_000;

fn preface() -> impl Iterator<Item = Vec<u8>> {
    std::iter::once(PREFACE.to_vec())
}

/// The numbers of a client's streams.
fn streams() -> impl Iterator<Item = u32> {
    (0..MANY).map(|number| 2 * number + 1)
}

fn rapid_reset() -> Vec<Vec<u8>> {
    let request = |stream| [frame(HEADERS, END_HEADERS | END_STREAM, stream, GET), frame(RESET, 0, stream, &8_u32.to_be_bytes())].concat();
    preface().chain(streams().map(request)).collect()
}

fn continuation() -> Vec<Vec<u8>> {
    let more = (0..MANY).map(|_| frame(CONTINUATION, 0, 1, &[0x40, 1, b'x', 1, b'y'].repeat(20)));
    preface().chain([frame(HEADERS, END_STREAM, 1, GET)]).chain(more).collect()
}

fn empty_continuation() -> Vec<Vec<u8>> {
    preface().chain([frame(HEADERS, END_STREAM, 1, GET)]).chain((0..MANY).map(|_| frame(CONTINUATION, 0, 1, &[]))).collect()
}

/// One field of 4 kB, remembered; then a reference of one byte to it, again and again.
fn header_bomb() -> Vec<Vec<u8>> {
    let value = [b'v'; 3_000];
    let field = [&[0x40, 1, b'x', 0x7f, 0xb9, 0x16][..], &value].concat();
    let first = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[GET, &field].concat());
    let bomb = [GET, &[0xbe; 16_000]].concat();
    let bombs = streams().skip(1).take(2_000).map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &bomb));
    preface().chain([first]).chain(bombs).collect()
}

fn settings() -> Vec<Vec<u8>> {
    preface().chain((0..MANY).map(|_| frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]))).collect()
}

fn pings() -> Vec<Vec<u8>> {
    preface().chain((0..MANY).map(|_| frame(PING, 0, 0, &[0; 8]))).collect()
}

/// Requests whose answers the client has no room for.
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
    statuses(&soon(name, exchange(stream, bytes)).await)
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
    let _ = soon(name, tokio::io::AsyncReadExt::read_to_end(&mut read, &mut answer)).await;
    writing.abort();
    statuses(&answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_http_2_end_their_connection_and_nobody_elses() {
    let served = served(short()).await;
    let floods = [
        ("rapid reset", rapid_reset()),
        ("CONTINUATION", continuation()),
        ("empty CONTINUATION", empty_continuation()),
        ("HPACK bomb", header_bomb()),
        ("SETTINGS", settings()),
        ("PING", pings()),
        ("no room for answers", no_room_for_answers()),
        ("bodies without end", bodies_without_end()),
        ("an HTTP/1 request", vec![b"GET / HTTP/1.1\r\nhost: g\r\n\r\n".to_vec()]),
    ];
    let mut honest = served.connect("http/1.1").await;
    assert_eq!(hello(&mut honest).await.expect("an answer"), 200);
    for (name, bytes) in floods {
        let stream = served.connect("h2").await;
        let flood = soon(name, exchange(stream, bytes));
        let beside = async { assert_eq!(soon(name, served.honest()).await, 200, "{name}") };
        tokio::join!(flood, beside);
    }
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
    // The server may reset a connection while the client still writes: then the answer is lost.
    assert!(head == [431] || head.is_empty(), "{head:?}");
    assert!(matches!(target.as_slice(), [] | [414 | 431]), "{target:?}");
    assert_eq!((most, one_more), (vec![401], vec![431]));
    assert_eq!((slow_head, slow_line), (vec![], vec![]));
    assert!(matches!(slow_body.as_slice(), [] | [401]), "{slow_body:?}");
    assert_eq!(served.honest().await, 200);
}
