//! The fake governor of the tests of model calls: it gives holds and counts in a table, and refuses or is silent as the
//! test sets.

use super::*;

/// The governor's state.
pub struct Table {
    pub begins: Vec<Begin>,
    /// Sessions that have begun.
    pub known_sessions: BTreeSet<String>,
    pub holds: Vec<Hold>,
    pub open: BTreeMap<(String, u64), JournaledHold>,
    pub settles: Vec<Settle>,
    pub extends: Vec<Extend>,
    pub routes: Vec<ModelRoute>,
    /// Calls of agents, with the caller that the gateway named.
    pub agent_calls: Vec<(String, HeaderMap)>,
    /// The last settle of each session.
    pub acked: BTreeMap<String, u64>,
    /// Answers to the next holds, instead of the usual ones.
    pub next_refusals: VecDeque<Refusal>,
    /// Number of answers to holds that are lost.
    pub answers_to_lose: u32,
    pub target: Target,
    pub ended: bool,
    pub away: bool,
    /// Holds without an answer because of that.
    pub turned_away: u32,
    /// Received requests for tokens, and whether their answers are held back.
    pub token_requests: usize,
    pub silent: bool,
}

impl Table {
    fn take(&mut self, session: &str, settle: Settle) {
        let acked = self.acked.entry(session.to_owned()).or_default();
        assert!(settle.seq <= *acked + 1, "settles come without gaps: {settle:?}");
        if settle.seq == *acked + 1 {
            *acked = settle.seq;
            self.open.remove(&(session.to_owned(), settle.hold));
            self.settles.push(settle);
        }
    }
}

pub struct Leader {
    pub(super) table: Mutex<Table>,
    pub changes: broadcast::Sender<Change>,
    /// Ends all streams of changes.
    pub(super) cut: broadcast::Sender<()>,
}

impl Leader {
    pub fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("whole")
    }

    /// Breaks connections and clears the state.
    pub fn lose_state(&self) {
        self.table().known_sessions.clear();
        let _ = self.cut.send(()); // there may be no listener
    }

    fn listen(&self) -> Body {
        let (changes, cut) = (self.changes.subscribe(), self.cut.subscribe());
        let lines = futures::stream::unfold((changes, cut, true), async |(mut changes, mut cut, first)| {
            let change = if first {
                Change::Alive
            } else {
                tokio::select! {
                    change = changes.recv() => change.ok()?,
                    _ = cut.recv() => return None,
                }
            };
            let line = format!("{}\n", serde_json::to_string(&change).expect("JSON"));
            Some((Ok::<_, Infallible>(Bytes::from(line)), (changes, cut, false)))
        });
        Body::from_stream(lines)
    }

    fn meter(&self, path: &str, body: &[u8]) -> Result<Value, Refusal> {
        fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> T {
            serde_json::from_slice(body).expect("a body of the API")
        }
        let mut table = self.table();
        if table.away {
            table.turned_away += u32::from(path.ends_with("/hold"));
            return Err(Refusal::new(Code::GovernorAway, "another one leads"));
        }
        let known = |session: &str, table: &Table| {
            if table.known_sessions.contains(session) { Ok(()) } else { Err(Refusal::new(Code::SessionUnknown, "begin")) }
        };
        Ok(match path {
            "/governor/v1/meter/begin" => {
                let begin: Begin = read(body);
                table.known_sessions.insert(begin.session.clone());
                for (told, seq) in begin.settles.iter().zip(begin.acked + 1..) {
                    let (&JournaledHold { id: hold, input, output, .. }, usage, quality) = (&told.open, told.usage, told.quality);
                    let settle =
                        Settle { seq, hold, input, output, usage, quality, model: String::new(), bytes: 0, end: CallEnd::default() };
                    table.take(&begin.session, settle);
                }
                let acked = table.acked.get(&begin.session).copied().unwrap_or_default();
                table.begins.push(begin);
                json!(MeterAck { acked })
            }
            "/governor/v1/meter/way" => {
                table.routes.push(read(body));
                if table.ended {
                    return Err(Refusal::new(Code::AgentEnded, "it ended"));
                }
                json!(table.target)
            }
            "/governor/v1/meter/hold" => {
                let hold: Hold = read(body);
                known(&hold.session, &table)?;
                if let Some(refusal) = table.next_refusals.pop_front() {
                    return Err(refusal);
                }
                let open = JournaledHold { id: hold.id, at: 1, path: vec!["p".into()], input: 100, output: 50 };
                table.open.insert((hold.session.clone(), hold.id), open.clone());
                table.holds.push(hold);
                let room =
                    LimitRoom { budget: "b".into(), name: "day".into(), limit: 1000, used: 0, held: 150, left: 850, resets_at: None };
                let target = table.target.clone();
                json!(HoldAnswer { open, output: 50, target, room: Some(room), first_token_seconds: 60, turn_seconds: 600 })
            }
            "/governor/v1/meter/extend" => {
                let extend: Extend = read(body);
                let output = extend.output;
                table.extends.push(extend);
                json!(Extended { output })
            }
            "/governor/v1/meter/settle" => {
                let settles: Settles = read(body);
                known(&settles.session, &table)?;
                for settle in settles.settles {
                    table.take(&settles.session, settle);
                }
                json!(MeterAck { acked: table.acked.get(&settles.session).copied().unwrap_or_default() })
            }
            "/agent/v1/external" => json!({"agent": "laptops-1", "uid": "uid-1", "type": "worker"}),
            "/agent/v1/report" | "/agent/v1/wanted" => json!({"revision": "1", "directive": "run"}),
            "/agent/v1/budget" => json!({"limits": []}),
            "/agent/v1/budget/request" => json!({"asked": serde_json::from_slice::<Value>(body).expect("JSON")}),
            other => panic!("no such call: {other}"),
        })
    }

    pub(super) async fn answer(State(leader): State<Arc<Self>>, request: Request) -> Response {
        let path = request.uri().path().to_owned();
        let mut response = if path == "/governor/v1/changes" {
            leader.listen().into_response()
        } else {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let nobodys = head.headers.get(CALLER_AGENT_UID_HEADER).is_some_and(|uid| uid == "nobody");
            if path.starts_with("/agent/") {
                leader.table().agent_calls.push((path.clone(), head.headers));
            }
            if path == "/agent/v1/budget/request" {
                leader.table().token_requests += 1;
                while leader.table().silent {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
            let answered = if nobodys { Err(Refusal::new(Code::NotAnAgent, "no such agent")) } else { leader.meter(&path, &body) };
            let mut table = leader.table();
            if path.ends_with("/hold") && table.answers_to_lose > 0 && answered.is_ok() {
                table.answers_to_lose -= 1;
                Body::from_stream(futures::stream::iter([Err::<Bytes, _>(std::io::Error::other("lost"))])).into_response()
            } else {
                answered.map_or_else(|refusal| refusal_response(&refusal), |value| value.to_string().into_response())
            }
        };
        response.headers_mut().insert(OWNER_EPOCH_HEADER, 7.into());
        response
    }
}
