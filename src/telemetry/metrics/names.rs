//! Limits the number of label values that tenants choose. Pure.
//!
//! The first names have series of their own until their objects are gone. Further names share one series in their
//! namespace. Further namespaces share one series. No object can have the names of the shared series.

use std::collections::{BTreeMap, BTreeSet};

/// The shared name of names beyond the bound.
pub const OTHER_LABEL: &str = "_other";
/// The name for counts that belong to no existing object.
pub const NO_OBJECT_LABEL: &str = "_none";

/// How many names have series of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// In all.
    pub all: usize,
    /// In one namespace.
    pub of_one: usize,
    /// Namespaces with series of their own.
    pub namespaces: usize,
}

/// The labels of one set of series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series {
    /// A namespace, or `OTHER_LABEL`.
    pub namespace: String,
    /// A name in it, `OTHER_LABEL` or `NO_OBJECT_LABEL`.
    pub name: String,
}

impl Series {
    fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// Which names have series of their own.
#[derive(Debug)]
pub struct Names {
    bounds: Bounds,
    known: BTreeMap<String, BTreeSet<String>>,
}

impl Names {
    /// No name is known.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, known: BTreeMap::new() }
    }

    /// The labels for a count. `None`: it belongs to no existing object.
    pub fn series(&mut self, namespace: &str, name: Option<&str>) -> Series {
        if !self.known.contains_key(namespace) && self.known.len() >= self.bounds.namespaces {
            return Series::new(OTHER_LABEL, OTHER_LABEL);
        }
        let known = self.known.entry(namespace.to_owned()).or_default();
        let Some(name) = name else { return Series::new(namespace, NO_OBJECT_LABEL) };
        if known.contains(name) {
            return Series::new(namespace, name);
        }
        // All names are counted only for a new name, because this runs for each event.
        let room = known.len() < self.bounds.of_one && self.known.values().map(BTreeSet::len).sum::<usize>() < self.bounds.all;
        if !room {
            return Series::new(namespace, OTHER_LABEL);
        }
        self.known.entry(namespace.to_owned()).or_default().insert(name.to_owned());
        Series::new(namespace, name)
    }

    /// The object is gone. Returns its series, if it had its own.
    pub fn forget(&mut self, namespace: &str, name: &str) -> Option<Series> {
        let had = self.known.get_mut(namespace).is_some_and(|known| known.remove(name));
        had.then(|| Series::new(namespace, name))
    }

    /// A namespace has no objects any more. Returns its series.
    pub fn forget_namespace(&mut self, namespace: &str) -> Vec<Series> {
        let Some(known) = self.known.remove(namespace) else { return Vec::new() };
        let names = known.iter().map(String::as_str).chain([OTHER_LABEL, NO_OBJECT_LABEL]);
        names.map(|name| Series::new(namespace, name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { all: 5, of_one: 3, namespaces: 3 };

    fn shown(names: &mut Names, namespace: &str, name: &str) -> String {
        let Series { namespace, name } = names.series(namespace, Some(name));
        format!("{namespace}/{name}")
    }

    #[test]
    fn names_beyond_the_bound_share_one_series_and_places_that_are_given_back_are_free() {
        let mut names = Names::new(BOUNDS);
        for name in ["1", "2", "3"] {
            assert_eq!(shown(&mut names, "a", name), format!("a/{name}"));
        }
        assert_eq!(shown(&mut names, "a", "4"), "a/_other", "one namespace has no more");
        assert_eq!(shown(&mut names, "a", "1"), "a/1", "and keeps those");
        assert_eq!((shown(&mut names, "b", "1"), shown(&mut names, "b", "2")), ("b/1".into(), "b/2".into()));
        assert_eq!(shown(&mut names, "c", "1"), "c/_other", "there are as many as may be in all");
        assert_eq!(shown(&mut names, "d", "1"), "_other/_other", "and as many namespaces");
        assert_eq!(names.series("b", None), Series::new("b", NO_OBJECT_LABEL));
        assert_eq!(names.series("d", None), Series::new(OTHER_LABEL, OTHER_LABEL));
        assert_eq!((names.forget("a", "1"), names.forget("a", "4")), (Some(Series::new("a", "1")), None));
        assert_eq!(shown(&mut names, "c", "1"), "c/1");
        let gone: Vec<String> = names.forget_namespace("b").into_iter().map(|series| series.name).collect();
        assert_eq!(gone, ["1", "2", OTHER_LABEL, NO_OBJECT_LABEL]);
        assert_eq!(shown(&mut names, "d", "1"), "d/1");
        assert_eq!(names.forget_namespace("unknown"), []);
    }

    #[test]
    fn however_many_names_there_are_their_series_are_bounded() {
        let mut names = Names::new(BOUNDS);
        let mut all = BTreeSet::new();
        for namespace in 0..50 {
            for name in 0..50 {
                all.insert(names.series(&format!("n{namespace}"), Some(&format!("q{name}"))));
            }
        }
        assert!(all.len() <= BOUNDS.all + BOUNDS.namespaces + 1, "{all:?}");
    }
}
