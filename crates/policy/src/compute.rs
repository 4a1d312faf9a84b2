//! The compute limits of a namespace: which of several Budgets applies, and what is done with the object that carries
//! them.
//!
//! What always holds: one Budget of a namespace applies, the same one for every caller and every order of events. An
//! object that is not the Budget's own is neither written nor deleted.

/// A Budget with compute limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    /// When it was made, in seconds.
    pub created: i64,
    /// Its name.
    pub name: String,
}

/// The Budget that applies: the oldest one; of those made in the same second, the first by name.
pub fn binding(claimants: impl IntoIterator<Item = Claimant>) -> Option<Claimant> {
    claimants.into_iter().min()
}

/// The object under the name of a Budget's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredObject {
    /// Nothing.
    Nothing,
    /// The Budget's own object.
    Own {
        /// Its uid.
        uid: String,
        /// Its content is as it should be.
        same: bool,
    },
    /// The object of a deleted Budget of the same name.
    Former {
        /// Its uid.
        uid: String,
    },
    /// It is being deleted.
    Leaving,
    /// An object of another owner.
    Foreign,
}

/// What is done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComputeAction {
    /// Nothing: it is as it should be.
    Keep,
    /// Nothing yet: the object is being deleted, and its end triggers the next reconcile.
    Wait,
    /// Create or correct it.
    Apply,
    /// Delete the object with this uid.
    Delete(String),
    /// Nothing: an object of another owner has the name.
    Refuse,
}

/// Decide.
pub fn act(wanted: bool, stored: &StoredObject) -> ComputeAction {
    match (wanted, stored) {
        (true, StoredObject::Nothing | StoredObject::Own { same: false, .. }) => ComputeAction::Apply,
        (true, StoredObject::Own { same: true, .. }) | (false, StoredObject::Nothing | StoredObject::Leaving | StoredObject::Foreign) => {
            ComputeAction::Keep
        }
        (true, StoredObject::Leaving) => ComputeAction::Wait,
        (true, StoredObject::Foreign) => ComputeAction::Refuse,
        (true, StoredObject::Former { uid }) | (false, StoredObject::Own { uid, .. } | StoredObject::Former { uid }) => {
            ComputeAction::Delete(uid.clone())
        }
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
        let own = |same| StoredObject::Own { uid: "u".into(), same };
        let cases = [
            (true, StoredObject::Nothing, ComputeAction::Apply),
            (true, own(true), ComputeAction::Keep),
            (true, own(false), ComputeAction::Apply),
            (true, StoredObject::Former { uid: "f".into() }, ComputeAction::Delete("f".into())),
            (true, StoredObject::Leaving, ComputeAction::Wait),
            (true, StoredObject::Foreign, ComputeAction::Refuse),
            (false, StoredObject::Nothing, ComputeAction::Keep),
            (false, own(true), ComputeAction::Delete("u".into())),
            (false, own(false), ComputeAction::Delete("u".into())),
            (false, StoredObject::Former { uid: "f".into() }, ComputeAction::Delete("f".into())),
            (false, StoredObject::Leaving, ComputeAction::Keep),
            (false, StoredObject::Foreign, ComputeAction::Keep),
        ];
        for (wanted, stored, expected) in cases {
            assert_eq!(act(wanted, &stored), expected, "{wanted} {stored:?}");
        }
    }
}
