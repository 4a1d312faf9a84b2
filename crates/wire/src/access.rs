//! The access table: which caller may make which call. A call that is not in the table is refused.

/// The caller of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The program in the pod and its commands, through the sidecar's unix socket.
    Program,
    /// The pod's sidecar, by the pod's token.
    Link,
    /// A gateway, by its ServiceAccount's token.
    Gateway,
    /// A process outside the cluster that is no agent yet, by the token of its user.
    External,
}

/// The calls of Spillway's APIs, including those that this version does not serve yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `POST /agent/v1/external`: creates an Agent for a process outside the cluster
    Enrol,
    /// `POST /agent/v1/register`
    Register,
    /// `POST /agent/v1/report`
    Report,
    /// `GET /agent/v1/wanted`
    Wanted,
    /// `POST /agent/v1/goodbye`
    Goodbye,
    /// `POST /agent/v1/agents`
    Spawn,
    /// `POST /agent/v1/work/claim`
    Claim,
    /// `POST /agent/v1/work/{uid}/complete`
    Complete,
    /// `POST /agent/v1/work/{uid}/fail`
    Fail,
    /// `POST /agent/v1/work/{uid}/release`
    Release,
    /// `POST /agent/v1/work/{uid}/progress`
    Advance,
    /// `POST /agent/v1/work`
    Submit,
    /// `POST /agent/v1/plan`
    Plan,
    /// `GET /agent/v1/work`
    ListWork,
    /// `GET /agent/v1/inbox`
    Inbox,
    /// `GET /agent/v1/budget`
    Budget,
    /// `POST /agent/v1/budget/request`
    AskBudget,
    /// `POST /agent/v1/commands/try`: asks to run a command as a probe while the breaker of the namespace is open
    TryCommand,
    /// `POST /agent/v1/commands/end`: reports how the probe ended
    EndTry,
    /// `POST /agent/v1/connect`: the bytes of a connection to a destination other than models
    Connect,
    /// `PUT /agent/v1/artifacts/{name}`: stores a file with the caller's item
    PutArtifact,
    /// `GET /agent/v1/artifacts/{item}`
    ListArtifacts,
    /// `GET /agent/v1/artifacts/{item}/{name}`
    GetArtifact,
    /// `GET /governor/v1/changes`
    Changes,
    /// `POST /governor/v1/meter/begin`
    MeterBegin,
    /// `POST /governor/v1/meter/way`: asks for the route of a call that costs no tokens
    MeterWay,
    /// `POST /governor/v1/meter/hold`
    MeterHold,
    /// `POST /governor/v1/meter/extend`
    MeterExtend,
    /// `POST /governor/v1/meter/late`
    MeterLate,
    /// `POST /governor/v1/meter/settle`
    MeterSettle,
    /// `POST /governor/v1/egress`: whether an agent may reach a destination
    Egress,
    /// `POST /governor/v1/git`: which repository an agent may use
    Git,
    /// `POST /governor/v1/tools`: whether an agent may call a Toolset
    Tools,
    /// `POST /governor/v1/artifacts`: a step of a call of an agent about artifacts
    Artifacts,
    /// `POST /governor/v1/artifacts/read`: which object has an artifact that a person may read
    ReadArtifact,
    /// `POST /governor/v1/artifacts/unused`: which objects belong to no artifact
    UnusedArtifacts,
    /// `POST /governor/v1/work/replay`: repeats an earlier answer about a lease, after the store was rolled back
    WorkReplay,
}

/// A row of the table: a call, its method and path, its callers, and whether this version serves it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The call.
    pub call: Call,
    /// Its method.
    pub method: &'static str,
    /// Its path. A name in braces stands for one segment.
    pub path: &'static str,
    /// The callers that may make it.
    pub callers: &'static [Caller],
    /// Whether this version serves it.
    pub served: bool,
}

const fn row(call: Call, method: &'static str, path: &'static str, callers: &'static [Caller], served: bool) -> Row {
    Row { call, method, path, callers, served }
}

/// The access table. A program's calls go through the sidecar. Therefore the sidecar may make every call that the
/// program may make. An agent outside the cluster has the rights of a sidecar.
pub const ACCESS_TABLE: [Row; 37] = [
    row(Call::Enrol, "POST", "/agent/v1/external", &[Caller::External], true),
    row(Call::Register, "POST", "/agent/v1/register", &[Caller::Link], true),
    row(Call::Report, "POST", "/agent/v1/report", &[Caller::Link], true),
    row(Call::Wanted, "GET", "/agent/v1/wanted", &[Caller::Link], true),
    row(Call::Goodbye, "POST", "/agent/v1/goodbye", &[Caller::Program, Caller::Link], true),
    row(Call::Spawn, "POST", "/agent/v1/agents", &[Caller::Program, Caller::Link], true),
    row(Call::Claim, "POST", "/agent/v1/work/claim", &[Caller::Program, Caller::Link], true),
    row(Call::Complete, "POST", "/agent/v1/work/{uid}/complete", &[Caller::Program, Caller::Link], true),
    row(Call::Fail, "POST", "/agent/v1/work/{uid}/fail", &[Caller::Program, Caller::Link], true),
    row(Call::Release, "POST", "/agent/v1/work/{uid}/release", &[Caller::Program, Caller::Link], true),
    row(Call::Advance, "POST", "/agent/v1/work/{uid}/progress", &[Caller::Program, Caller::Link], true),
    row(Call::Submit, "POST", "/agent/v1/work", &[Caller::Program, Caller::Link], true),
    row(Call::Plan, "POST", "/agent/v1/plan", &[Caller::Program, Caller::Link], true),
    row(Call::ListWork, "GET", "/agent/v1/work", &[Caller::Program, Caller::Link], true),
    row(Call::Inbox, "GET", "/agent/v1/inbox", &[Caller::Program, Caller::Link], true),
    row(Call::Budget, "GET", "/agent/v1/budget", &[Caller::Program, Caller::Link], true),
    row(Call::AskBudget, "POST", "/agent/v1/budget/request", &[Caller::Program, Caller::Link], true),
    row(Call::TryCommand, "POST", "/agent/v1/commands/try", &[Caller::Link], true),
    row(Call::EndTry, "POST", "/agent/v1/commands/end", &[Caller::Link], true),
    row(Call::Connect, "POST", "/agent/v1/connect", &[Caller::Link], true),
    row(Call::PutArtifact, "PUT", "/agent/v1/artifacts/{name}", &[Caller::Program, Caller::Link], true),
    row(Call::ListArtifacts, "GET", "/agent/v1/artifacts/{item}", &[Caller::Program, Caller::Link], true),
    row(Call::GetArtifact, "GET", "/agent/v1/artifacts/{item}/{name}", &[Caller::Program, Caller::Link], true),
    row(Call::Changes, "GET", "/governor/v1/changes", &[Caller::Gateway], true),
    row(Call::MeterBegin, "POST", "/governor/v1/meter/begin", &[Caller::Gateway], true),
    row(Call::MeterWay, "POST", "/governor/v1/meter/way", &[Caller::Gateway], true),
    row(Call::MeterHold, "POST", "/governor/v1/meter/hold", &[Caller::Gateway], true),
    row(Call::MeterExtend, "POST", "/governor/v1/meter/extend", &[Caller::Gateway], true),
    row(Call::MeterLate, "POST", "/governor/v1/meter/late", &[Caller::Gateway], true),
    row(Call::MeterSettle, "POST", "/governor/v1/meter/settle", &[Caller::Gateway], true),
    row(Call::Egress, "POST", "/governor/v1/egress", &[Caller::Gateway], true),
    row(Call::Git, "POST", "/governor/v1/git", &[Caller::Gateway], true),
    row(Call::Tools, "POST", "/governor/v1/tools", &[Caller::Gateway], true),
    row(Call::Artifacts, "POST", "/governor/v1/artifacts", &[Caller::Gateway], true),
    row(Call::ReadArtifact, "POST", "/governor/v1/artifacts/read", &[Caller::Gateway], true),
    row(Call::UnusedArtifacts, "POST", "/governor/v1/artifacts/unused", &[Caller::Gateway], true),
    row(Call::WorkReplay, "POST", "/governor/v1/work/replay", &[Caller::Gateway], true),
];

/// The result of looking up a request in the table.
#[derive(Clone, Copy, Debug)]
pub enum RequestMatch {
    /// A row of the table.
    Row(&'static Row),
    /// The path exists, but not with this method.
    OtherMethod,
    /// There is no such path.
    UnknownPath,
}

/// Finds the row for `method` and `path` (without the query).
pub fn find(method: &str, path: &str) -> RequestMatch {
    let mut seen = false;
    for row in &ACCESS_TABLE {
        if path_matches(row.path, path) {
            if row.method == method {
                return RequestMatch::Row(row);
            }
            seen = true;
        }
    }
    if seen { RequestMatch::OtherMethod } else { RequestMatch::UnknownPath }
}

/// The methods of `path` in the table.
pub fn methods_of_path(path: &str) -> Vec<&'static str> {
    ACCESS_TABLE.iter().filter(|row| path_matches(row.path, path)).map(|row| row.method).collect()
}

fn path_matches(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern.split('/'), path.split('/'));
    loop {
        match (pattern.next(), path.next()) {
            (None, None) => return true,
            (Some(wanted), Some(segment)) if wanted.starts_with('{') && !segment.is_empty() => {}
            (Some(wanted), Some(segment)) if wanted == segment => {}
            _ => return false,
        }
    }
}

/// Whether `caller` may make `call`.
pub fn is_allowed(caller: Caller, call: Call) -> bool {
    ACCESS_TABLE.iter().any(|row| row.call == call && row.callers.contains(&caller))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_cell_by_cell() {
        use Call::*;
        use Caller::*;
        let cells = [
            (Register, [(Program, false), (Link, true), (Gateway, false)]),
            (Report, [(Program, false), (Link, true), (Gateway, false)]),
            (Wanted, [(Program, false), (Link, true), (Gateway, false)]),
            (Goodbye, [(Program, true), (Link, true), (Gateway, false)]),
            (Spawn, [(Program, true), (Link, true), (Gateway, false)]),
            (Claim, [(Program, true), (Link, true), (Gateway, false)]),
            (Complete, [(Program, true), (Link, true), (Gateway, false)]),
            (Submit, [(Program, true), (Link, true), (Gateway, false)]),
            (Plan, [(Program, true), (Link, true), (Gateway, false)]),
            (ListWork, [(Program, true), (Link, true), (Gateway, false)]),
            (Inbox, [(Program, true), (Link, true), (Gateway, false)]),
            (Budget, [(Program, true), (Link, true), (Gateway, false)]),
            (AskBudget, [(Program, true), (Link, true), (Gateway, false)]),
            (TryCommand, [(Program, false), (Link, true), (Gateway, false)]),
            (EndTry, [(Program, false), (Link, true), (Gateway, false)]),
            (Connect, [(Program, false), (Link, true), (Gateway, false)]),
            (Changes, [(Program, false), (Link, false), (Gateway, true)]),
            (MeterBegin, [(Program, false), (Link, false), (Gateway, true)]),
            (MeterHold, [(Program, false), (Link, false), (Gateway, true)]),
            (MeterLate, [(Program, false), (Link, false), (Gateway, true)]),
            (MeterSettle, [(Program, false), (Link, false), (Gateway, true)]),
            (Egress, [(Program, false), (Link, false), (Gateway, true)]),
            (Git, [(Program, false), (Link, false), (Gateway, true)]),
            (Tools, [(Program, false), (Link, false), (Gateway, true)]),
            (PutArtifact, [(Program, true), (Link, true), (Gateway, false)]),
            (ListArtifacts, [(Program, true), (Link, true), (Gateway, false)]),
            (GetArtifact, [(Program, true), (Link, true), (Gateway, false)]),
            (Artifacts, [(Program, false), (Link, false), (Gateway, true)]),
            (ReadArtifact, [(Program, false), (Link, false), (Gateway, true)]),
            (UnusedArtifacts, [(Program, false), (Link, false), (Gateway, true)]),
            (WorkReplay, [(Program, false), (Link, false), (Gateway, true)]),
        ];
        assert!(is_allowed(External, Enrol) && ![Program, Link, Gateway].iter().any(|caller| is_allowed(*caller, Enrol)));
        for (call, callers) in cells {
            assert!(!is_allowed(External, call), "a process that is not an agent yet makes no other call: {call:?}");
            for (caller, may) in callers {
                assert_eq!(is_allowed(caller, call), may, "{caller:?} {call:?}");
            }
        }
    }

    #[test]
    fn requests_find_their_row_and_nothing_else() {
        assert!(matches!(find("POST", "/agent/v1/goodbye"), RequestMatch::Row(row) if row.call == Call::Goodbye));
        assert!(matches!(find("POST", "/agent/v1/work/claim"), RequestMatch::Row(row) if row.call == Call::Claim));
        assert!(matches!(find("POST", "/agent/v1/work/u1/fail"), RequestMatch::Row(row) if row.call == Call::Fail && row.served));
        assert!(matches!(find("PUT", "/agent/v1/goodbye"), RequestMatch::OtherMethod));
        assert_eq!(methods_of_path("/agent/v1/work"), ["POST", "GET"]);
        for path in ["/agent/v1/goodbye/", "/agent/v1", "//agent/v1/goodbye", "/agent/v1/work//fail", "/agent/v1/../v1/goodbye"] {
            assert!(matches!(find("POST", path), RequestMatch::UnknownPath), "{path}");
        }
    }
}
