//! An MCP server by hand, of the revision with sessions. It answers calls of its tools as a test says, with whatever bytes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// A request, as the server got it.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub authorization: Option<String>,
    pub session: Option<String>,
    /// The HTTP method, for a request without a body.
    pub method: String,
    pub body: Value,
}

/// Answers a call: writes what it likes to the connection.
type Answer = dyn Fn(&Value, &mut TcpStream) + Send + Sync;

/// A running server.
pub struct UpstreamServer {
    port: u16,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    description: Arc<Mutex<String>>,
}

/// An answer of HTTP.
pub fn reply(stream: &mut TcpStream, status: &str, headers: &str, body: &str) {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    let _ = stream.write_all((head + body).as_bytes()); // the client may have gone
}

/// An answer of MCP.
pub fn result(stream: &mut TcpStream, request: &Value, result: &Value) {
    let body = json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string();
    reply(stream, "200 OK", "Content-Type: application/json\r\nMcp-Session-Id: s1\r\n", &body);
}

/// The answer of a tool: a text.
pub fn text(stream: &mut TcpStream, request: &Value, text: &str) {
    result(stream, request, &json!({"content": [{"type": "text", "text": text}]}));
}

/// Begins a stream of events.
pub fn begin_events(stream: &mut TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n");
}

impl UpstreamServer {
    pub fn start(answer: impl Fn(&Value, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Self::on(listener, answer)
    }

    pub fn on(listener: TcpListener, answer: impl Fn(&Value, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let port = listener.local_addr().expect("an address").port();
        let (seen, description): (Arc<Mutex<Vec<ReceivedRequest>>>, _) = (Arc::default(), Arc::new(Mutex::new("Finds things.".to_owned())));
        let (kept, told, answer): (_, _, Arc<Answer>) = (seen.clone(), description.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, told, answer) = (kept.clone(), told.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &kept, &told, &*answer));
            }
        });
        Self { port, seen, description }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it says about its tool from now on.
    pub fn describe(&self, text: &str) {
        *self.description.lock().expect("whole") = text.to_owned();
    }

    pub fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().expect("whole").clone()
    }

    /// The calls of tools that it got.
    pub fn calls(&self) -> Vec<Value> {
        self.seen().into_iter().filter(|seen| seen.body["method"] == "tools/call").map(|seen| seen.body["params"].clone()).collect()
    }
}

fn serve(stream: TcpStream, kept: &Mutex<Vec<ReceivedRequest>>, description: &Mutex<String>, answer: &Answer) {
    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
    let mut stream = stream;
    while let Some(seen) = read(&mut reader) {
        kept.lock().expect("whole").push(seen.clone());
        let request = seen.body;
        match request["method"].as_str().unwrap_or_default() {
            "initialize" => {
                let capabilities = json!({"tools": {}});
                let info = json!({"name": "by-hand", "version": "1"});
                result(&mut stream, &request, &json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}));
            }
            "tools/list" => {
                let description = description.lock().expect("whole").clone();
                let schema = json!({"type": "object", "properties": {"query": {"type": "string", "description": "what to find"}}});
                let tool = |name: &str| json!({"name": name, "description": description, "inputSchema": schema});
                // On two pages.
                match request["params"]["cursor"].as_str() {
                    None => result(&mut stream, &request, &json!({"tools": [tool("search"), tool("secret")], "nextCursor": "2"})),
                    Some(_) => result(&mut stream, &request, &json!({"tools": [tool("update"), tool("guarded")]})),
                }
            }
            "tools/call" => answer(&request, &mut stream),
            method if method.starts_with("notifications/") => reply(&mut stream, "202 Accepted", "", ""),
            "server/discover" => reply(&mut stream, "400 Bad Request", "Content-Type: text/plain\r\n", "Bad Request: no session"),
            _ => reply(&mut stream, "200 OK", "", ""),
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let header = |wanted: &str| {
        let found = lines.iter().filter_map(|line| line.split_once(": ")).find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| value.to_owned())
    };
    let mut body = vec![0; header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let method = lines.first()?.split(' ').next()?.to_owned();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some(ReceivedRequest { authorization: header("authorization"), session: header("mcp-session-id"), method, body })
}
