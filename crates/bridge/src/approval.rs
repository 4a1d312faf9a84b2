//! Whether a person has approved a call. Pure.
//!
//! A person approves what they see: all arguments, and the contents of artifacts by their hashes. The digest of the question covers that,
//! and who calls for which item. An approval of any other digest counts for nothing.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use spillway_wire::text::{hex, visible};
use spillway_wire::tools::{ApprovalVerdict, CallToApprove, JudgedCall, MAX_SHOWN_ARGUMENTS_CHARS};

use crate::audit::{Caller, RecordedFile};
use crate::call::CallRefused;

/// A call that needs the approval of a person.
#[derive(Clone, Copy, Debug)]
pub struct GuardedCall<'a> {
    /// Who calls.
    pub caller: &'a Caller,
    /// The Toolset. Another one may have the same definitions, and other credentials.
    pub toolset: &'a str,
    /// The program.
    pub program: &'a str,
    /// The revision of the definitions.
    pub revision: &'a str,
    /// The checked arguments.
    pub arguments: &'a Map<String, Value>,
    /// The names of the arguments that are artifacts, and the names of their files.
    pub files: &'a BTreeMap<String, String>,
    /// The contents of these files.
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
        let shown: Map<String, Value> = self.arguments.iter().map(|(name, value)| (name.clone(), self.shown(name, value))).collect();
        let arguments = visible(&Value::Object(shown).to_string());
        let chars = arguments.chars().count();
        if chars > MAX_SHOWN_ARGUMENTS_CHARS {
            let message = format!(
                "a person approves this call, and reads all arguments: as JSON they have {chars} characters, and may have {MAX_SHOWN_ARGUMENTS_CHARS}"
            );
            return Err(CallRefused { field: "args".to_owned(), rule: "tooLongToApprove", message });
        }
        let Self { caller, toolset, program, revision, arguments: exact, files, artifacts } = *self;
        let exact: BTreeMap<_, _> = exact.iter().collect();
        let all = json!([caller, toolset, program, revision, exact, files, artifacts]).to_string();
        let id = hex(&Sha256::digest(all.as_bytes()));
        Ok(CallToApprove { id, program: program.to_owned(), arguments })
    }

    /// A value for people: an artifact by what it holds.
    fn shown(&self, argument: &str, value: &Value) -> Value {
        let file = self.files.get(argument).and_then(|name| Some((name, self.artifacts.get(name)?)));
        match file {
            Some((name, RecordedFile { sha256, bytes })) => json!({"artifact": name, "bytes": bytes, "sha256": sha256}),
            None => value.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use spillway_wire::tools::APPROVAL_ID_DIGITS;

    use super::*;

    fn judged_as(verdict: &ApprovalVerdict, id: &str) -> JudgedCall {
        JudgedCall { id: id.to_owned(), verdict: verdict.clone() }
    }

    struct Call {
        caller: Caller,
        toolset: String,
        program: String,
        revision: String,
        arguments: Map<String, Value>,
        files: BTreeMap<String, String>,
        artifacts: BTreeMap<String, RecordedFile>,
    }

    impl Call {
        /// A call that differs from others by these texts.
        fn new([pod, item, toolset, program, revision, version, file, content]: [&str; 8]) -> Self {
            let arguments = json!({"version": version, "bundle": file}).as_object().cloned().expect("an object");
            let recorded = RecordedFile { sha256: content.to_owned(), bytes: 5 };
            Self {
                caller: Caller { name: "a".into(), pod: Some(pod.to_owned()), item: Some(item.to_owned()) },
                toolset: toolset.to_owned(),
                program: program.to_owned(),
                revision: revision.to_owned(),
                arguments,
                files: [("bundle".to_owned(), file.to_owned())].into(),
                artifacts: [(file.to_owned(), recorded)].into(),
            }
        }

        fn of_version(version: &str) -> Self {
            Self::new(["uid", "i/3", "prod", "deploy", "r", version, "run.bundle", "ab"])
        }

        fn guarded(&self) -> GuardedCall<'_> {
            let Self { caller, toolset, program, revision, arguments, files, artifacts } = self;
            GuardedCall { caller, toolset, program, revision, arguments, files, artifacts }
        }

        fn question(&self) -> CallToApprove {
            self.guarded().question().expect("a question")
        }
    }

    #[test]
    fn a_person_sees_all_that_is_approved() {
        let question = Call::of_version("v1").question();
        assert_eq!(question.arguments, r#"{"bundle":{"artifact":"run.bundle","bytes":5,"sha256":"ab"},"version":"v1"}"#);
        assert_eq!((question.id.len(), question.program.as_str()), (APPROVAL_ID_DIGITS, "deploy"));
        // A text that looks like an artifact is a text.
        let text = Call::of_version("run.bundle").question();
        assert!(text.arguments.contains(r#""version":"run.bundle""#), "{}", text.arguments);
        let hidden = Call::of_version("v1\u{200b}\u{e0041}\u{3164}\u{a0}\u{e9}\u{65e5}").question();
        assert!(hidden.arguments.contains("v1\\u200b\\udb40\\udc41\\u3164\\u00a0\u{e9}\u{65e5}"), "{}", hidden.arguments);
        let long = Call::of_version(&"x".repeat(MAX_SHOWN_ARGUMENTS_CHARS));
        assert_eq!(long.guarded().judge(None).expect_err("too long").rule, "tooLongToApprove");
    }

    #[test]
    fn a_verdict_counts_for_its_own_call() {
        let call = Call::of_version("v1");
        let question = call.question();
        let judge = |verdict: &ApprovalVerdict| call.guarded().judge(Some(&judged_as(verdict, &question.id))).expect("a judgement");
        let approved = ApprovalVerdict::Approved { by: "alice".into() };
        assert_eq!(judge(&approved), Judgement::Approved { by: "alice".into() });
        let denied = ApprovalVerdict::Denied { by: "bob".into(), reason: "no".into() };
        assert_eq!(judge(&denied), Judgement::Denied { by: Some("bob".into()), reason: "no".into() });
        assert_eq!(judge(&ApprovalVerdict::TimedOut), Judgement::Denied { by: None, reason: String::new() });
        assert_eq!(judge(&ApprovalVerdict::Waiting), Judgement::Ask(question.clone()));
        assert_eq!(call.guarded().judge(None).expect("a judgement"), Judgement::Ask(question));
    }

    proptest! {
        /// Whatever differs between two calls, the approval of one is none of the other.
        #[test]
        fn an_approval_is_for_one_call(
            a in proptest::array::uniform8(prop::sample::select(vec!["a", "b"])),
            b in proptest::array::uniform8(prop::sample::select(vec!["a", "b"])),
        ) {
            let approved = judged_as(&ApprovalVerdict::Approved { by: "alice".into() }, &Call::new(a).question().id);
            let judged = Call::new(b).guarded().judge(Some(&approved)).expect("a judgement");
            prop_assert_eq!(judged == Judgement::Approved { by: "alice".into() }, a == b);
        }
    }
}
