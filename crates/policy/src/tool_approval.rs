//! Calls of privileged programs that a person approves: what becomes of each, and what the caller is told.
//!
//! A call that waits is a question with an id of its own, and no id is used twice. An answer counts only for the question that it names, so
//! an answer to an earlier call with the same arguments approves nothing. The list of questions is the whole state: it is stored before a
//! verdict is told, so a leader that ends at any step leaves a list from which the next one decides the same.
//!
//! What always holds: the approval of one question is used at most once. Nothing is approved without an answer to exactly this question and
//! its Toolset, nor after the question has expired, nor for an agent that has lost the item of the call.

/// The most questions of one agent.
pub const MAX_QUESTIONS: usize = 8;
/// Seconds for which an expired question is kept, so that a caller that asks again learns how it ended.
pub const RETENTION_SECONDS: i64 = 60;

/// The item for which a program is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldItem {
    /// Its name, for people.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The epoch of the lease.
    pub epoch: i64,
}

/// A call of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Digest of all that is approved.
    pub digest: String,
    /// The Toolset.
    pub toolset: String,
    /// The program, for people.
    pub program: String,
    /// Its arguments, for people.
    pub arguments: String,
    /// Uid of the pod that calls.
    pub pod_uid: String,
    /// The item that the pod works on.
    pub item: Option<HeldItem>,
}

impl Call {
    /// Whether both are one call that is repeated. Texts for people are not compared.
    fn is_repeat_of(&self, other: &Self) -> bool {
        let lease = |item: &Option<HeldItem>| item.as_ref().map(|HeldItem { name: _, uid, epoch }| (uid.clone(), *epoch));
        let Self { digest, toolset, program: _, arguments: _, pod_uid, item } = self;
        *digest == other.digest && *toolset == other.toolset && *pod_uid == other.pod_uid && lease(item) == lease(&other.item)
    }
}

/// What has become of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// No person has answered.
    Waiting,
    /// A person has approved the call, and it has not run.
    Approved {
        /// The user.
        by: String,
        /// Why, in the user's words.
        reason: Option<String>,
    },
    /// A person has denied the call.
    Denied {
        /// The user.
        by: String,
        /// Why, in the user's words.
        reason: Option<String>,
    },
    /// No person has answered in time, or the approved call did not come back in time.
    TimedOut,
    /// The approval is spent: the call may have run.
    Used {
        /// The user.
        by: String,
        /// Why, in the user's words.
        reason: Option<String>,
    },
}

/// A call that a person was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Its id. No other question of any agent has it.
    pub id: String,
    /// The call.
    pub call: Call,
    /// When the person was asked, in seconds since 1970.
    pub asked_at: i64,
    /// From when on it cannot be approved, in seconds since 1970.
    pub expires_at: i64,
    /// What has become of it.
    pub state: State,
}

/// What a person decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The call may run once.
    Approve,
    /// The call must not run.
    Deny,
}

/// A person's answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The id of the question.
    pub id: String,
    /// The Toolset on which the user may answer.
    pub toolset: String,
    /// The decision.
    pub decision: Decision,
    /// The user.
    pub by: String,
    /// Why, in the user's words.
    pub reason: Option<String>,
}

/// The facts of a decision.
pub struct Facts<'a> {
    /// Seconds since 1970.
    pub now: i64,
    /// The answers of persons.
    pub answers: &'a [Answer],
    /// Questions that were asked up to this time count no more: the store has lost writes, and an approval that was used may be among
    /// them. Seconds since 1970.
    pub void_until: Option<i64>,
    /// Whether the pod of a call is the living agent, and holds the item of the call.
    pub may_act: &'a dyn Fn(&Call) -> bool,
}

/// A new question, if one is needed.
pub struct NewQuestion {
    /// An id that was never used.
    pub id: String,
    /// Seconds in which a person can answer.
    pub timeout_seconds: i64,
}

/// A change that people hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A person is asked.
    Requested(Question),
    /// A person has approved.
    Given(Question),
    /// A person has denied.
    Denied(Question),
    /// Nobody has answered in time.
    TimedOut(Question),
    /// The call was let through.
    Used(Question),
}

/// The questions after a decision. They are stored if they differ, before anything is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reviewed {
    /// The questions, the oldest first.
    pub questions: Vec<Question>,
    /// The changes.
    pub news: Vec<News>,
}

/// What a caller is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody has answered yet.
    Waiting,
    /// The call may run, once.
    Approved {
        /// The user.
        by: String,
    },
    /// The call must not run.
    Denied {
        /// The user.
        by: String,
        /// Why, in the user's words.
        reason: Option<String>,
    },
    /// Nobody has answered in time.
    TimedOut,
    /// The agent has too many questions. In so many seconds there may be room.
    Full {
        /// Seconds.
        retry_seconds: i64,
    },
}

/// Looks at all questions: takes answers over, lets questions expire, and drops those that no call can use any more.
pub fn review(stored: &[Question], facts: &Facts<'_>) -> Reviewed {
    let mut news = Vec::new();
    let questions = stored.iter().filter_map(|question| settle(question, facts, &mut news)).collect();
    Reviewed { questions, news }
}

/// Decides about a call, which may be a repeat. If the verdict is [`Verdict::Approved`], the approval is used up in the result.
pub fn ask(stored: &[Question], call: &Call, new: NewQuestion, facts: &Facts<'_>) -> (Reviewed, Verdict) {
    let mut reviewed = review(stored, facts);
    let Reviewed { questions, news } = &mut reviewed;
    let known = questions.iter().position(|question| question.call.is_repeat_of(call));
    if let Some(place) = known {
        match questions[place].state.clone() {
            State::Waiting => return (reviewed, Verdict::Waiting),
            State::Approved { by, reason } => {
                questions[place].state = State::Used { by: by.clone(), reason };
                news.push(News::Used(questions[place].clone()));
                return (reviewed, Verdict::Approved { by });
            }
            State::Denied { by, reason } => return (reviewed, Verdict::Denied { by, reason }),
            State::TimedOut => return (reviewed, Verdict::TimedOut),
            // Spent: a person is asked anew.
            State::Used { .. } => drop(questions.remove(place)),
        }
    }
    if questions.len() >= MAX_QUESTIONS {
        match questions.iter().position(|question| matches!(question.state, State::Used { .. })) {
            Some(oldest) => drop(questions.remove(oldest)),
            None => {
                let first = questions.iter().map(kept_until).min().unwrap_or(facts.now);
                return (reviewed, Verdict::Full { retry_seconds: first.saturating_sub(facts.now).max(1) });
            }
        }
    }
    let NewQuestion { id, timeout_seconds } = new;
    let expires_at = facts.now.saturating_add(timeout_seconds);
    let question = Question { id, call: call.clone(), asked_at: facts.now, expires_at, state: State::Waiting };
    news.push(News::Requested(question.clone()));
    questions.push(question);
    (reviewed, Verdict::Waiting)
}

/// When the next question changes without an answer, in seconds since 1970.
pub fn next_change(questions: &[Question]) -> Option<i64> {
    let of = |question: &Question| match question.state {
        State::Waiting | State::Approved { .. } => question.expires_at,
        State::Denied { .. } | State::TimedOut | State::Used { .. } => kept_until(question),
    };
    questions.iter().map(of).min()
}

/// Until when a question is kept, in seconds since 1970.
fn kept_until(question: &Question) -> i64 {
    question.expires_at.saturating_add(RETENTION_SECONDS)
}

/// One question as it is now. `None`: it is dropped.
fn settle(stored: &Question, facts: &Facts<'_>, news: &mut Vec<News>) -> Option<Question> {
    let Facts { now, answers, void_until, may_act } = facts;
    if void_until.is_some_and(|until| stored.asked_at <= until) {
        return None;
    }
    let is_open = match stored.state {
        State::Waiting | State::Approved { .. } => true,
        State::Denied { .. } | State::TimedOut | State::Used { .. } => false,
    };
    if is_open && !may_act(&stored.call) {
        return None;
    }
    let mut question = stored.clone();
    if is_open && *now >= question.expires_at {
        question.state = State::TimedOut;
        news.push(News::TimedOut(question.clone()));
    } else if is_open {
        let answer = answers.iter().find(|answer| answer.id == question.id && answer.toolset == question.call.toolset);
        let said = answer.map(|Answer { id: _, toolset: _, decision, by, reason }| (*decision, by.clone(), reason.clone()));
        match (said, &question.state) {
            (Some((Decision::Approve, by, reason)), State::Waiting) => {
                question.state = State::Approved { by, reason };
                news.push(News::Given(question.clone()));
            }
            // Also an approval that was not used yet can be taken back.
            (Some((Decision::Deny, by, reason)), _) => {
                question.state = State::Denied { by, reason };
                news.push(News::Denied(question.clone()));
            }
            (Some((Decision::Approve, ..)) | None, _) => {}
        }
    }
    (*now < kept_until(&question)).then_some(question)
}

#[cfg(test)]
#[path = "tool_approval_tests.rs"]
mod tests;
