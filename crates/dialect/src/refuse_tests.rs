use super::*;

const DIALECTS: [Dialect; 4] = [Dialect::Anthropic, Dialect::OpenAIChat, Dialect::OpenAIResponses, Dialect::Gemini];
/// 2026-11-22T16:05:30Z.
const NOW: i64 = 1_795_363_530_000;

fn room(resets_at: Option<i64>) -> LimitRoom {
    LimitRoom { budget: "Budget/default in team".into(), name: "hourly".into(), limit: 1000, used: 900, held: 60, left: 40, resets_at }
}

fn short(code: Code, resets_at: Option<i64>) -> Refusal {
    let field = "spec.tokens.limits[hourly].tokens of Budget/default".to_owned();
    let shortage = Shortage { room: Some(room(resets_at)), because: "used".into(), field, own: false };
    Refusal::new(code, "the tokens of this hour are spent").budget(shortage)
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
}

/// Status, `retry-after`, `x-should-retry`, and the type of the error.
fn row(dialect: Dialect, refusal: &Refusal) -> (u16, Option<String>, bool, String) {
    let answer = refuse(dialect, false, refusal, NOW);
    assert_eq!(refuse(dialect, true, refusal, NOW), answer, "a stream is refused alike");
    assert_eq!(header(&answer, "content-type"), Some("application/json"));
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let error = &body["error"];
    assert!(error["message"].as_str().is_some_and(|message| message.starts_with("Spillway: ")), "{body}");
    let kind = match dialect {
        Dialect::Anthropic => {
            assert_eq!(body["type"], "error");
            &error["type"]
        }
        Dialect::OpenAIChat | Dialect::OpenAIResponses => {
            assert_eq!(error["code"], refusal.code.label());
            &error["type"]
        }
        Dialect::Gemini => {
            assert_eq!(error["code"], answer.status);
            &error["status"]
        }
    };
    let never = match header(&answer, "x-should-retry") {
        Some("false") => true,
        None => false,
        Some(other) => panic!("{other}"),
    };
    (answer.status, header(&answer, "retry-after").map(str::to_owned), never, kind.as_str().expect("a type").to_owned())
}

#[test]
fn each_refusal_is_what_programs_understand() {
    let held = short(Code::BudgetHeld, None).retry_after(3);
    let spent = short(Code::BudgetExhausted, Some(NOW + 1_800_000));
    let away = Refusal::new(Code::GovernorAway, "the governor cannot be reached").retry_after(10);
    let open = Refusal::new(Code::GovernorAway, "breaker b is open").retry_after(600);
    let model = Refusal::new(Code::ModelNotAllowed, "not allowed").field("model");
    let wait = |seconds: &str| Some(seconds.to_owned());
    type Row = (u16, Option<String>, bool, &'static str);
    let table: [(&Refusal, [Row; 4]); 5] = [
        (
            &held,
            [
                (429, wait("3"), false, "rate_limit_error"),
                (429, wait("3"), false, "rate_limit_exceeded"),
                (429, wait("3"), false, "rate_limit_exceeded"),
                (429, wait("3"), false, "RESOURCE_EXHAUSTED"),
            ],
        ),
        (
            &spent,
            [
                (402, None, true, "billing_error"),
                (402, None, true, "insufficient_quota"),
                (429, None, true, "usage_limit_reached"),
                (402, None, true, "FAILED_PRECONDITION"),
            ],
        ),
        (
            &away,
            [
                (503, wait("10"), false, "api_error"),
                (503, wait("10"), false, "server_error"),
                (429, wait("10"), false, "server_error"),
                (503, wait("10"), false, "UNAVAILABLE"),
            ],
        ),
        (
            &open,
            [
                (402, None, true, "billing_error"),
                (402, None, true, "insufficient_quota"),
                (429, None, true, "usage_limit_reached"),
                (402, None, true, "FAILED_PRECONDITION"),
            ],
        ),
        (
            &model,
            [
                (400, None, false, "invalid_request_error"),
                (400, None, false, "invalid_request_error"),
                (400, None, false, "invalid_request_error"),
                (400, None, false, "INVALID_ARGUMENT"),
            ],
        ),
    ];
    for (refusal, rows) in table {
        for (dialect, (status, retry, never, kind)) in DIALECTS.into_iter().zip(rows) {
            assert_eq!(row(dialect, refusal), (status, retry, never, kind.to_owned()), "{dialect:?} {refusal}");
        }
    }
    for code in [Code::NotWorking, Code::AgentEnded, Code::LeaseLost] {
        assert_eq!(row(Dialect::Anthropic, &Refusal::new(code, "paused")).0, 402);
        assert_eq!(row(Dialect::OpenAIResponses, &Refusal::new(code, "paused")).3, "usage_limit_reached");
    }
    for code in [Code::InvalidBody, Code::BodyTooLarge, Code::NotAllowed] {
        assert!(DIALECTS.into_iter().all(|dialect| row(dialect, &Refusal::new(code, "no")).0 == 400), "{code:?}");
    }
    assert_eq!(row(Dialect::Anthropic, &Refusal::new(Code::NoSuchCall, "no")).0, 404);
}

#[test]
fn nothing_is_401_or_403_or_waits_longer_than_a_minute() {
    for seconds in [None, Some(0), Some(1), Some(60), Some(61), Some(u32::MAX)] {
        for code in [Code::BudgetHeld, Code::TooManyCalls, Code::GovernorAway, Code::Internal, Code::InvalidToken, Code::NotAnAgent] {
            for dialect in DIALECTS {
                let (status, retry, never, _) = row(dialect, &Refusal { retry_after_seconds: seconds, ..Refusal::new(code, "x") });
                assert!(matches!(status, 402 | 429 | 503), "{code:?} {status}");
                assert!(retry.is_none() == never, "{code:?}: it waits or it ends");
                assert!(retry.is_none_or(|retry| retry.parse::<u32>().is_ok_and(|retry| (1..=60).contains(&retry))));
                assert!(dialect != Dialect::OpenAIResponses || status == 429, "thirty requests");
            }
        }
    }
}

#[test]
fn a_window_that_ends_soon_says_when() {
    for (left, want) in [(100, "1"), (12_001, "13"), (60_000, "60"), (61_000, "5"), (-5, "1")] {
        assert_eq!(row(Dialect::Anthropic, &short(Code::BudgetHeld, Some(NOW + left))).1.as_deref(), Some(want), "{left}");
    }
}

#[test]
fn a_refusal_names_the_budget_what_is_left_when_it_resets_the_field_and_whom_to_ask() {
    let refusal = short(Code::BudgetExhausted, Some(NOW + 1_800_000));
    assert_eq!(
        message(&refusal),
        "Spillway: the tokens of this hour are spent. Budget/default in team, limit hourly: 40 of 1000 tokens are left (900 used, 60 held \
         by calls in flight). It resets at 2026-11-22T16:35Z. The field to raise is spec.tokens.limits[hourly].tokens of Budget/default. \
         The platform engineers of this team can raise it, or give more for a while with a Grant."
    );
    let answer = refuse(Dialect::OpenAIResponses, true, &refusal, NOW);
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(body["error"]["resets_at"], (NOW + 1_800_000) / 1000);
    for (name, want) in [("x-budget-limit", "1000"), ("x-budget-remaining", "40"), ("x-budget-reset", "1795365330")] {
        assert_eq!(header(&answer, name), Some(want));
    }
    let shown = header(&answer, "x-codex-promo-message").expect("what Codex shows");
    assert!(shown.contains("40 of 1000") && shown.contains("spec.tokens.limits[hourly].tokens") && shown.ends_with("Grant"), "{shown}");
    assert_eq!(header(&refuse(Dialect::OpenAIChat, true, &refusal, NOW), "x-codex-promo-message"), None);
    assert_eq!(header_text("a\r\nb\u{e4}\u{7f}c."), "a  b??c");
    let forever = refuse(Dialect::OpenAIResponses, true, &short(Code::BudgetExhausted, None), NOW);
    assert!(String::from_utf8_lossy(&forever.body).contains("does not reset by itself"));
    assert!(!String::from_utf8_lossy(&forever.body).contains("resets_at"));
    let mut missing = short(Code::BudgetExhausted, None);
    missing.budget.as_mut().expect("a shortage").because = "missing".into();
    let said = message(&missing);
    assert!(said.ends_with("The platform engineers of this team can correct it.") && !said.contains("raise"), "{said}");
    // Facts that the message already contains are not repeated.
    let said = "Budget/default in team: 40 of 1000 tokens are left of the limit hourly and the call asks for 100. The limit resets at \
                2026-11-22T16:35Z. Raise spec.tokens.limits[hourly].tokens";
    let said = message(&Refusal { message: said.into(), ..refusal });
    assert_eq!(
        (said.matches("40 of 1000").count(), said.matches("16:35Z").count(), said.matches("limits[hourly]").count()),
        (1, 1, 1),
        "{said}"
    );
    assert!(message(&Refusal::new(Code::Internal, "\u{e4}".repeat(5000))).chars().count() <= MAX_MESSAGE_CHARS);
}

#[test]
fn times_are_calendar_times() {
    for (ms, want) in [
        (0, "1970-01-01T00:00Z"),
        (3_600_000, "1970-01-01T01:00Z"),
        (951_782_400_000, "2000-02-29T00:00Z"),
        (1_709_164_799_999, "2024-02-28T23:59Z"),
        (4_107_542_400_000, "2100-03-01T00:00Z"),
        (NOW, "2026-11-22T16:05Z"),
        (-60_000, "1969-12-31T23:59Z"),
    ] {
        assert_eq!(format_utc(ms), want);
    }
}

#[test]
fn an_open_circuit_is_waited_out_if_that_is_soon_and_else_ends_the_work() {
    let open = |seconds: Option<u32>| {
        let refusal = Refusal::new(Code::CircuitOpen, "model circuit breaker open for api.example.com/large: too many failures");
        seconds.map_or(refusal.clone(), |seconds| refusal.retry_after(seconds))
    };
    let header = |answer: &Answer, name: &str| answer.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
    for dialect in [Dialect::Anthropic, Dialect::OpenAIChat, Dialect::OpenAIResponses, Dialect::Gemini] {
        let codex = dialect == Dialect::OpenAIResponses;
        for (seconds, told) in [(12, "12"), (66, "60")] {
            let answer = refuse(dialect, true, &open(Some(seconds)), 0);
            assert_eq!(answer.status, if codex { 429 } else { 503 });
            assert_eq!((header(&answer, "retry-after").as_deref(), header(&answer, "x-should-retry")), (Some(told), None));
        }
        for seconds in [None, Some(120)] {
            let answer = refuse(dialect, false, &open(seconds), 0);
            assert_eq!(answer.status, if codex { 429 } else { 402 });
            assert_eq!((header(&answer, "retry-after"), header(&answer, "x-should-retry").as_deref()), (None, Some("false")));
            assert!(String::from_utf8_lossy(&answer.body).contains("model circuit breaker open for"));
        }
        let event = refuse_in_stream(dialect, &Refusal::new(Code::TurnTimedOut, "this model turn took longer than 600 s"), 0);
        let text = String::from_utf8(event).expect("text");
        let data = text.lines().find_map(|line| line.strip_prefix("data: ")).expect("an event");
        let body: Value = serde_json::from_str(data).expect("JSON");
        assert!(body["error"]["message"].as_str().is_some_and(|message| message.contains("600 s")) && text.ends_with("\n\n"), "{text}");
    }
}

#[test]
fn a_refusal_of_no_dialect_is_read_by_clients_of_each() {
    let body: Value =
        serde_json::from_slice(&refuse_in_unknown_dialect(&Refusal::new(Code::NoSuchCall, "POST /v1/files is not passed on"), NOW))
            .expect("JSON");
    let words = "Spillway: POST /v1/files is not passed on.";
    assert_eq!(body["error"], json!({"type": "not_found_error", "message": words, "code": 404, "status": "NOT_FOUND"}));
    assert_eq!(
        (&body["type"], &body["code"], &body["message"]),
        (&json!("error"), &json!("no_such_call"), &json!("POST /v1/files is not passed on"))
    );
}
