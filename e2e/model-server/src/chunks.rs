//! From events to bytes: the framing, the script's changes of it, and the time of each piece. Pure.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use crate::ask::{Ask, Tokens};
use crate::script::{Ending, Script, ScriptedSpeech};
use crate::turn::{Event, Stream, make_odd};

/// Pause between two events of a stream that never ends, so that a recording does not fill the disk.
const ENDLESS_PAUSE: Duration = Duration::from_millis(5);
/// Sizes of pieces in the mode `split`. Over time each boundary falls on every position.
const SPLITS: [usize; 5] = [1, 2, 3, 5, 7];

/// Bytes, and the tokens that are counted when they are sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// The pause before.
    pub wait: Duration,
    /// The bytes.
    pub bytes: Bytes,
    /// Tokens that are charged for them.
    pub charged: Tokens,
    /// Tokens that they report.
    pub said: Tokens,
}

/// The end of the body, after its last piece.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The end of the body.
    Proper,
    /// The end of the connection.
    Cut,
    /// No data, as long as the client waits.
    Silence,
    /// This piece, repeated for ever.
    Again(Chunk),
}

/// A body.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// Its content type.
    pub content_type: &'static str,
    /// Its pieces, in order.
    pub pieces: Vec<Chunk>,
    /// Its end.
    pub end: End,
}

/// A body in one piece. The mode `cut` sends half of it.
#[must_use]
pub fn complete_body(mut value: Value, charged: Tokens, told: Option<Tokens>, script: &Script) -> Body {
    let mut said = told.unwrap_or_default();
    if script.reported_usage == ScriptedSpeech::Odd {
        make_odd(&mut value);
    }
    let mut text = value.to_string();
    if script.broken {
        text.insert(text.len() / 2, '\u{1}');
    }
    let mut bytes = Bytes::from(text);
    let end = match script.ending {
        Ending::Proper | Ending::Endless | Ending::Error(_) => End::Proper,
        Ending::Cut(_) => End::Cut,
        Ending::Silent(_) => End::Silence,
    };
    if end != End::Proper {
        (bytes, said) = (bytes.slice(..bytes.len() / 2), Tokens::default());
    }
    let pieces = split(Chunk { wait: script.slow, bytes, charged, said }, script.split);
    Body { content_type: "application/json", pieces, end }
}

/// A body of events.
#[must_use]
pub fn stream(ask: &Ask, stream: Stream, script: &Script) -> Body {
    let framing = Framing { list: ask.as_list, end: if script.crlf { "\r\n" } else { "\n" } };
    let (events, end) = arrange(stream, script);
    let mut pieces = Vec::with_capacity(events.len());
    for (at, mut event) in events.into_iter().enumerate() {
        if script.reported_usage == ScriptedSpeech::Odd {
            make_odd(&mut event.data);
        }
        let wait = if at == 0 { script.slow } else { script.pace };
        let text = if script.comments { framing.filler(at) } else { String::new() } + &framing.frame(&event, at);
        pieces.extend(split(Chunk { wait, bytes: text.into(), charged: event.charged, said: event.reported }, script.split));
    }
    let end = match end {
        Last::Proper => {
            if ask.as_list {
                pieces.push(Chunk { bytes: Bytes::from_static(b"]"), ..Chunk::default() });
            }
            End::Proper
        }
        Last::Cut => End::Cut,
        Last::Silence => End::Silence,
        Last::Again(event) => {
            let bytes = framing.frame(&event, 1).into();
            End::Again(Chunk { wait: script.pace.max(ENDLESS_PAUSE), bytes, charged: event.charged, said: Tokens::default() })
        }
    };
    let content_type = if ask.as_list { "application/json" } else { "text/event-stream; charset=utf-8" };
    Body { content_type, pieces, end }
}

enum Last {
    Proper,
    Cut,
    Silence,
    Again(Event),
}

/// The events that are sent, and the end after them.
fn arrange(stream: Stream, script: &Script) -> (Vec<Event>, Last) {
    let Stream { head, mut content, tail, error } = stream;
    if script.broken {
        content.insert(content.len() / 2, Event { raw: Some("{\"broken\": ".to_owned()), ..Event::default() });
    }
    let last = match script.ending {
        Ending::Proper => None,
        Ending::Cut(after) => Some((after, Last::Cut)),
        Ending::Silent(after) => Some((after, Last::Silence)),
        Ending::Error(after) => Some((after, Last::Proper)),
        Ending::Endless => {
            let again = content.iter().rev().find(|event| event.content).cloned().unwrap_or_default();
            Some((usize::MAX, Last::Again(again)))
        }
    };
    let mut events = head;
    let Some((after, last)) = last else {
        events.extend(content);
        events.extend(tail);
        return (events, Last::Proper);
    };
    let mut left = after;
    for event in content {
        if event.content {
            if left == 0 {
                break;
            }
            left -= 1;
        }
        events.push(event);
    }
    if matches!(script.ending, Ending::Error(_)) {
        events.push(error);
    }
    (events, last)
}

struct Framing {
    list: bool,
    end: &'static str,
}

impl Framing {
    fn frame(&self, event: &Event, at: usize) -> String {
        let data = event.raw.clone().unwrap_or_else(|| event.data.to_string());
        let end = self.end;
        if self.list {
            return format!("{}{data}", if at == 0 { "[" } else { ",\r\n" });
        }
        match event.name {
            Some(name) => format!("event: {name}{end}data: {data}{end}{end}"),
            None => format!("data: {data}{end}{end}"),
        }
    }

    /// Comments and fields without data between events.
    fn filler(&self, at: usize) -> String {
        let end = self.end;
        match (self.list, at % 3) {
            (true, _) => " \n".to_owned(),
            (false, 0) => format!(": keep-alive {at}{end}{end}"),
            (false, 1) => format!("id: {at}{end}retry: 3000{end}{end}"),
            (false, _) => format!(":{end}{end}{end}"),
        }
    }
}

/// Splits a piece. Its tokens are counted with the last part, when all of it is sent.
fn split(piece: Chunk, wanted: bool) -> Vec<Chunk> {
    if !wanted {
        return vec![piece];
    }
    let Chunk { mut wait, mut bytes, charged, said } = piece;
    let (mut small, mut sizes) = (Vec::new(), SPLITS.into_iter().cycle());
    while !bytes.is_empty() {
        let size = sizes.next().unwrap_or(1).min(bytes.len());
        small.push(Chunk { wait: std::mem::take(&mut wait), bytes: bytes.split_to(size), ..Chunk::default() });
    }
    if let Some(last) = small.last_mut() {
        (last.charged, last.said) = (charged, said);
    }
    small
}
