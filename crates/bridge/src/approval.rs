//! Whether a person has approved a call. Pure.
//!
//! A person approves what they see: all arguments, and the contents of artifacts by their hashes. The digest of the question covers that,
//! and who calls for which item. An approval of any other digest counts for nothing.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use spillway_wire::text::hex;
use spillway_wire::tools::{APPROVAL_ID_DIGITS, ApprovalVerdict, CallToApprove, JudgedCall, MAX_SHOWN_ARGUMENTS_CHARS};

use crate::audit::{Caller, RecordedFile};
use crate::call::CallRefused;

/// A call that needs the approval of a person.
#[derive(Clone, Copy, Debug)]
pub struct GuardedCall<'a> {
    /// Who calls.
    pub caller: &'a Caller,
    /// The program.
    pub program: &'a str,
    /// The revision of the definitions.
    pub revision: &'a str,
    /// The checked arguments.
    pub arguments: &'a Map<String, Value>,
    /// The artifacts that they name.
    pub artifacts: &'a BTreeMap<String, RecordedFile>,
}

/// What follows from a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nobody has judged this call: ask.
    Ask(CallToApprove),
    /// The call runs.
    Approved {
        /// The user.
        by: String,
    },
    /// The call runs nothing.
    Denied {
        /// The user. None: nobody answered in time.
        by: Option<String>,
        /// The reason of the user.
        reason: String,
    },
}

impl GuardedCall<'_> {
    /// Whether the call may run. `judged`: a verdict, on this call or on another one.
    pub fn judge(&self, judged: Option<&JudgedCall>) -> Result<Judgement, CallRefused> {
        let question = self.question()?;
        let verdict = judged.filter(|judged| judged.id == question.id).map(|judged| &judged.verdict);
        Ok(match verdict {
            None | Some(ApprovalVerdict::Waiting) => Judgement::Ask(question),
            Some(ApprovalVerdict::Approved { by }) => Judgement::Approved { by: by.clone() },
            Some(ApprovalVerdict::Denied { by, reason }) => Judgement::Denied { by: Some(by.clone()), reason: reason.clone() },
            Some(ApprovalVerdict::TimedOut) => Judgement::Denied { by: None, reason: String::new() },
        })
    }

    /// The question for a person. Nothing may be hidden behind the end of what is shown.
    fn question(&self) -> Result<CallToApprove, CallRefused> {
        let arguments = Value::Object(self.arguments.iter().map(|(name, value)| (name.clone(), self.shown(value))).collect()).to_string();
        let chars = arguments.chars().count();
        if chars > MAX_SHOWN_ARGUMENTS_CHARS {
            let message = format!(
                "a person approves this call, and reads all arguments: as JSON they have {chars} characters, and may have {MAX_SHOWN_ARGUMENTS_CHARS}"
            );
            return Err(CallRefused { field: "args".to_owned(), rule: "tooLongToApprove", message });
        }
        let Self { caller, program, revision, arguments: exact, artifacts } = *self;
        let exact: BTreeMap<_, _> = exact.iter().collect();
        let all = json!([caller, program, revision, exact, artifacts]).to_string();
        let digest = hex(&Sha256::digest(all.as_bytes()));
        let id = digest.chars().take(APPROVAL_ID_DIGITS).collect();
        Ok(CallToApprove { id, program: program.to_owned(), arguments })
    }

    /// A value for people: artifacts by what they hold.
    fn shown(&self, value: &Value) -> Value {
        match value.as_str().and_then(|name| Some((name, self.artifacts.get(name)?))) {
            Some((name, RecordedFile { sha256, bytes })) => json!(format!("{name} ({bytes} bytes, SHA-256 {sha256})")),
            None => value.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn judged_as(verdict: &ApprovalVerdict, id: &str) -> JudgedCall {
        JudgedCall { id: id.to_owned(), verdict: verdict.clone() }
    }

    struct World {
        caller: Caller,
        revision: String,
        arguments: Map<String, Value>,
        artifacts: BTreeMap<String, RecordedFile>,
    }

    impl World {
        fn new(item: &str, revision: &str, version: &str, content: &str) -> Self {
            let arguments = json!({"version": version, "bundle": "run.bundle"}).as_object().cloned().expect("an object");
            let file = RecordedFile { sha256: content.to_owned(), bytes: 5 };
            Self {
                caller: Caller { name: "a".into(), pod: Some("uid".into()), item: Some(item.to_owned()) },
                revision: revision.to_owned(),
                arguments,
                artifacts: [("run.bundle".to_owned(), file)].into(),
            }
        }

        fn call(&self) -> GuardedCall<'_> {
            let Self { caller, revision, arguments, artifacts } = self;
            GuardedCall { caller, program: "deploy", revision, arguments, artifacts }
        }

        fn question(&self) -> CallToApprove {
            self.call().question().expect("a question")
        }
    }

    #[test]
    fn a_person_sees_all_that_is_approved() {
        let question = World::new("i/3", "r", "v1", "ab").question();
        assert_eq!(question.arguments, r#"{"bundle":"run.bundle (5 bytes, SHA-256 ab)","version":"v1"}"#);
        assert_eq!((question.id.len(), question.program.as_str()), (APPROVAL_ID_DIGITS, "deploy"));
        let long = World::new("i/3", "r", &"x".repeat(MAX_SHOWN_ARGUMENTS_CHARS), "ab");
        assert_eq!(long.call().judge(None).expect_err("too long").rule, "tooLongToApprove");
    }

    #[test]
    fn a_verdict_counts_for_its_own_call() {
        let world = World::new("i/3", "r", "v1", "ab");
        let question = world.question();
        let judge = |verdict: &ApprovalVerdict| world.call().judge(Some(&judged_as(verdict, &question.id))).expect("a judgement");
        let approved = ApprovalVerdict::Approved { by: "alice".into() };
        assert_eq!(judge(&approved), Judgement::Approved { by: "alice".into() });
        let denied = ApprovalVerdict::Denied { by: "bob".into(), reason: "no".into() };
        assert_eq!(judge(&denied), Judgement::Denied { by: Some("bob".into()), reason: "no".into() });
        assert_eq!(judge(&ApprovalVerdict::TimedOut), Judgement::Denied { by: None, reason: String::new() });
        assert_eq!(judge(&ApprovalVerdict::Waiting), Judgement::Ask(question.clone()));
        assert_eq!(world.call().judge(None).expect("a judgement"), Judgement::Ask(question));
    }

    proptest! {
        /// Whatever differs between two calls, the approval of one is none of the other.
        #[test]
        fn an_approval_is_for_one_call(
            (a, b) in ((("i/[0-9]", "r[0-9]"), ("v[0-9]", "[a-b]")), (("i/[0-9]", "r[0-9]"), ("v[0-9]", "[a-b]"))),
        ) {
            let world = |((item, revision), (version, content)): &((String, String), (String, String))| World::new(item, revision, version, content);
            let approved = judged_as(&ApprovalVerdict::Approved { by: "alice".into() }, &world(&a).question().id);
            let judged = world(&b).call().judge(Some(&approved)).expect("a judgement");
            prop_assert_eq!(judged == Judgement::Approved { by: "alice".into() }, a == b);
        }
    }
}
