//! Requests whose end or target could be read in two ways: each is refused, or read as the standard says. A hidden part
//! never becomes a request with the token of another client.

use crate::client::{exchange, statuses, within_patience};
use crate::{served, short};

/// A request with a valid token: its line, its other fields with the empty line, and the rest.
fn with_token(line: &str, rest: &str) -> Vec<u8> {
    format!("{line}\r\nhost: gateway\r\nauthorization: Bearer pod-a\r\n{rest}").into_bytes()
}

const ASK: &str = "POST /agent/v1/budget/request HTTP/1.1";
/// The special feature of a request, its bytes, and the accepted lists of answer statuses.
type Row<'a> = (&'a str, Vec<u8>, &'a [&'a [u16]]);

const HIDDEN: &str = "POST /models/claude/v1/messages HTTP/1.1\r\nhost: gateway\r\nx: ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_is_read_in_one_way() {
    let body = r#"{"tokens":0}"#;
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let long = "a".repeat(64 * 1024);
    let rows: &[Row] = &[
        ("a body by length", with_token(ASK, &format!("content-length: 12\r\n\r\n{body}")), &[&[200]]),
        ("a body by chunks", with_token(ASK, &format!("transfer-encoding: chunked\r\n\r\n{chunked}")), &[&[200]]),
        // The length is ignored. The bytes after the chunks are another request, without a token.
        (
            "length and chunks",
            with_token(
                ASK,
                &format!(
                    "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n{chunked}GET /agent/v1/budget HTTP/1.1\r\nhost: g\r\n\r\n"
                ),
            ),
            &[&[200], &[200, 401]],
        ),
        ("chunks and length", with_token(ASK, &format!("transfer-encoding: chunked\r\ncontent-length: 500\r\n\r\n{chunked}")), &[&[200]]),
        ("two lengths", with_token(ASK, &format!("content-length: 12\r\ncontent-length: 0\r\n\r\n{body}{HIDDEN}")), &[&[400]]),
        ("a list of lengths", with_token(ASK, &format!("content-length: 12, 12\r\n\r\n{body}{HIDDEN}")), &[&[400]]),
        ("a length with a sign", with_token(ASK, &format!("content-length: +12\r\n\r\n{body}")), &[&[400]]),
        ("a length beyond all", with_token(ASK, "content-length: 99999999999999999999999\r\n\r\n"), &[&[400]]),
        ("another encoding", with_token(ASK, &format!("transfer-encoding: xchunked\r\n\r\n{chunked}")), &[&[400]]),
        ("chunks and then another encoding", with_token(ASK, &format!("transfer-encoding: chunked, identity\r\n\r\n{chunked}")), &[&[400]]),
        (
            "an encoding with HTTP/1.0",
            with_token("POST /agent/v1/budget/request HTTP/1.0", &format!("transfer-encoding: chunked\r\n\r\n{chunked}")),
            &[&[400]],
        ),
        ("a space before the colon", with_token(ASK, &format!("content-length : 12\r\n\r\n{body}")), &[&[400]]),
        (
            "a chunk with an extension",
            with_token(ASK, &format!("transfer-encoding: chunked\r\n\r\nc;a=b\r\n{body}\r\n0\r\n\r\n")),
            &[&[200]],
        ),
        (
            "a chunk with a long extension",
            with_token(ASK, &format!("transfer-encoding: chunked\r\n\r\nc;{long}\r\n{body}\r\n0\r\n\r\n")),
            &[&[400], &[413], &[]],
        ),
        (
            "a chunk's length without end",
            with_token(ASK, "transfer-encoding: chunked\r\n\r\n11111111111111111\r\n"),
            &[&[400], &[413], &[]],
        ),
        (
            "a token in trailers",
            format!("{ASK}\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n0\r\nauthorization: Bearer pod-a\r\n\r\n").into_bytes(),
            &[&[401]],
        ),
        ("a folded field", with_token("GET /agent/v1/budget HTTP/1.1", "x: a\r\n b\r\n\r\n"), &[&[400]]),
        ("a NUL in a field", with_token("GET /agent/v1/budget HTTP/1.1", "x: a\0b\r\n\r\n"), &[&[400]]),
        ("a bare CR in a field", with_token("GET /agent/v1/budget HTTP/1.1", "x: a\rb\r\n\r\n"), &[&[400]]),
        ("a NUL in the target", with_token("GET /agent/v1/\0budget HTTP/1.1", "\r\n"), &[&[400]]),
        (
            "an upgrade to h2c",
            with_token(
                "GET /agent/v1/budget HTTP/1.1",
                "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n\r\n",
            ),
            &[&[200]],
        ),
        (
            "an upgrade to a websocket",
            with_token(
                "GET /agent/v1/budget HTTP/1.1",
                "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            ),
            &[&[200]],
        ),
        ("CONNECT", with_token("CONNECT provider:443 HTTP/1.1", "\r\n"), &[&[404]]),
        ("the absolute form of another host", with_token("GET http://other/agent/v1/budget HTTP/1.1", "\r\n"), &[&[200]]),
        ("OPTIONS *", with_token("OPTIONS * HTTP/1.1", "\r\n"), &[&[404]]),
        ("HTTP/2 without its negotiation", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(), &[&[400], &[]]),
        ("a version that does not exist", with_token("GET /agent/v1/budget HTTP/3.7", "\r\n"), &[&[400]]),
        ("what is no HTTP", vec![0xff; 64], &[&[400]]),
    ];
    let served = served(short()).await;
    assert_eq!(served.honest_call().await, 200);
    let mut wrong = Vec::new();
    let asked = futures::future::join_all(rows.iter().map(async |(name, bytes, expected)| {
        let answer = within_patience(name, exchange(served.connect("http/1.1").await, [bytes.clone()])).await;
        (name, statuses(&answer), expected)
    }));
    for (name, got, expected) in asked.await {
        if !expected.contains(&got.as_slice()) {
            wrong.push(format!("{name}: {got:?}, expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(served.world.provider.calls(), 0, "nothing that was hidden went out");
    assert_eq!(served.honest_call().await, 200);
}
