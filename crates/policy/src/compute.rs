//! What a Budget says of a namespace's compute: which of several binds, and what is done about the object that carries it.
//!
//! What always holds: one Budget a namespace binds, the same one whoever looks and whatever the order of events; an object
//! that is not the Budget's own is neither written nor deleted.

/// A Budget that says something about compute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    /// When it was made, in seconds.
    pub created: i64,
    /// Its name.
    pub name: String,
}

/// The one that binds: the oldest, and of those made in the same second the first by name.
pub fn binding(claimants: impl IntoIterator<Item = Claimant>) -> Option<Claimant> {
    claimants.into_iter().min()
}

/// What has the name under which a Budget's object is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Nothing.
    Nothing,
    /// The Budget's own object.
    Own {
        /// Its uid.
        uid: String,
        /// It says what it should.
        same: bool,
    },
    /// That of a Budget of the same name that is gone.
    Former {
        /// Its uid.
        uid: String,
    },
    /// It is being deleted.
    Leaving,
    /// Somebody else's object.
    Foreign,
}

/// What is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing: it is as it should be.
    Keep,
    /// Nothing yet: what is there goes first, and its end wakes us.
    Wait,
    /// It is made, or made right.
    Apply,
    /// The one with this uid is deleted.
    Delete(String),
    /// Nothing: somebody else has the name.
    Refuse,
}

/// Decide.
pub fn act(wanted: bool, stored: &Stored) -> Act {
    match (wanted, stored) {
        (true, Stored::Nothing | Stored::Own { same: false, .. }) => Act::Apply,
        (true, Stored::Own { same: true, .. }) | (false, Stored::Nothing | Stored::Leaving | Stored::Foreign) => Act::Keep,
        (true, Stored::Leaving) => Act::Wait,
        (true, Stored::Foreign) => Act::Refuse,
        (true, Stored::Former { uid }) | (false, Stored::Own { uid, .. } | Stored::Former { uid }) => Act::Delete(uid.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_binds_and_then_the_first_by_name() {
        let one = |created, name: &str| Claimant { created, name: name.into() };
        assert_eq!(binding([one(5, "a"), one(4, "z")]), Some(one(4, "z")));
        assert_eq!(binding([one(4, "z"), one(4, "b")]), Some(one(4, "b")));
        assert_eq!(binding([]), None);
    }

    #[test]
    fn only_the_budgets_own_object_is_touched() {
        let own = |same| Stored::Own { uid: "u".into(), same };
        let cases = [
            (true, Stored::Nothing, Act::Apply),
            (true, own(true), Act::Keep),
            (true, own(false), Act::Apply),
            (true, Stored::Former { uid: "f".into() }, Act::Delete("f".into())),
            (true, Stored::Leaving, Act::Wait),
            (true, Stored::Foreign, Act::Refuse),
            (false, Stored::Nothing, Act::Keep),
            (false, own(true), Act::Delete("u".into())),
            (false, own(false), Act::Delete("u".into())),
            (false, Stored::Former { uid: "f".into() }, Act::Delete("f".into())),
            (false, Stored::Leaving, Act::Keep),
            (false, Stored::Foreign, Act::Keep),
        ];
        for (wanted, stored, expected) in cases {
            assert_eq!(act(wanted, &stored), expected, "{wanted} {stored:?}");
        }
    }
}
