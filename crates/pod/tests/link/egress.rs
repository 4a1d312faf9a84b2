//! The egress port: what a program asks of its proxy, and what reaches the gateway.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use serde_json::json;

use crate::common::gateway::{ECHO_DESTINATION, FakeGateway};
use crate::common::{self, Folder, until};
use crate::{ports, start_link_with};

/// Sends a request to the egress port, and closes its direction.
fn ask(port: u16, request: &str) -> String {
    let mut stream = until("the port is open", || TcpStream::connect(("127.0.0.1", port + 1)).ok());
    stream.set_read_timeout(Some(common::PATIENCE)).expect("a time-out");
    stream.write_all(request.as_bytes()).expect("asked");
    stream.shutdown(Shutdown::Write).expect("all of it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

#[test]
fn a_tunnel_carries_what_the_program_sends_and_what_comes_back() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let port = ports();
    let _link = start_link_with(&folder, &gateway, &["--first-port", &port.to_string()]);
    let long = "a line of a program\n".repeat(20_000);
    let answer = ask(port, &format!("CONNECT {ECHO_DESTINATION} HTTP/1.1\r\nHost: x\r\n\r\n{long}"));
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(body == long, "{} bytes of {} came back", body.len(), long.len());
}

#[test]
fn a_program_reads_why_the_gateway_denies_a_destination() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let port = ports();
    let _link = start_link_with(&folder, &gateway, &["--first-port", &port.to_string()]);
    let denial = json!({"code": "egress_denied", "message": "AgentPool/coders does not list it", "reason": "NotListed"});
    gateway.refuse_with("/agent/v1/connect", 403, denial);
    for request in [
        "CONNECT api.example.org:443 HTTP/1.1\r\nHost: elsewhere\r\n\r\n",
        "GET http://api.example.org:443/x HTTP/1.1\r\nHost: elsewhere\r\n\r\n",
    ] {
        let answer = ask(port, request);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(answer.contains("spillway-denied: NotListed") && answer.contains("AgentPool/coders does not list it"), "{answer}");
    }
    let asked = gateway.calls("/agent/v1/connect");
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|call| call.body["destination"] == "api.example.org:443"), "the request line counts, and not Host");
    let plain = ask(port, "GET http://api.example.org/x HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(plain.starts_with("HTTP/1.1 403 "), "{plain}");
    assert_eq!(gateway.calls("/agent/v1/connect").last().map(|call| call.body["destination"].clone()), Some(json!("api.example.org:80")));
    for request in ["GET /x HTTP/1.1\r\nHost: x\r\n\r\n", "GET https://api.example.org/ HTTP/1.1\r\nHost: x\r\n\r\n"] {
        assert!(ask(port, request).starts_with("HTTP/1.1 400 "), "{request}");
    }
}
