//! When each Toolset is looked at.

use super::*;
use serde_json::json;

fn metadata(name: &str, generation: i64) -> ObjectMeta {
    of("team", name, generation)
}

fn of(namespace: &str, name: &str, generation: i64) -> ObjectMeta {
    serde_json::from_value(json!({"namespace": namespace, "name": name, "uid": name, "generation": generation})).expect("metadata")
}

fn names(due: &[(ObjectKey, LookMemory)]) -> Vec<&str> {
    due.iter().map(|(key, _)| key.name.as_str()).collect()
}

#[test]
fn each_is_looked_at_at_once_after_a_change_and_then_at_intervals() {
    let (mut schedules, start) = (LookSchedules::default(), BootTime::default());
    let at = |seconds| start.after(Duration::from_secs(seconds));
    let both = [metadata("a", 1), metadata("b", 1)];
    let (due, _) = schedules.take_due(&both, 8, start);
    assert_eq!(names(&due), ["a", "b"]);
    assert_eq!(names(&schedules.take_due(&both, 8, at(1)).0), [] as [&str; 0], "their looks are under way");
    for (key, memory) in due {
        schedules.ended(&key, memory, LOOK_INTERVAL, at(1));
    }
    assert_eq!(names(&schedules.take_due(&both, 8, at(30)).0), [] as [&str; 0]);
    let changed = [metadata("a", 1), metadata("b", 2)];
    let (due, _) = schedules.take_due(&changed, 8, at(30));
    assert_eq!(names(&due), ["b"]);
    assert_eq!(names(&schedules.take_due(&changed, 8, at(31)).0), ["a"]);
    // It changes again while it is looked at.
    let again = [metadata("a", 1), metadata("b", 3)];
    assert_eq!(names(&schedules.take_due(&again, 8, at(31)).0), [] as [&str; 0]);
    for (key, memory) in due {
        schedules.ended(&key, memory, LOOK_INTERVAL, at(32));
    }
    assert_eq!(names(&schedules.take_due(&again, 8, at(32)).0), ["b"]);
}

#[test]
fn few_are_looked_at_at_once_and_those_that_waited_longest_first() {
    let (mut schedules, start) = (LookSchedules::default(), BootTime::default());
    let stored: Vec<ObjectMeta> = ["a", "b", "c"].map(|name| metadata(name, 1)).into();
    assert_eq!(names(&schedules.take_due(&stored, 2, start).0), ["a", "b"]);
    let later = start.after(Duration::from_secs(1));
    assert_eq!(names(&schedules.take_due(&[stored, vec![metadata("A", 1)]].concat(), 2, later).0), ["c", "A"]);
}

#[test]
fn a_namespace_with_many_delays_no_other_one() {
    let (mut schedules, start) = (LookSchedules::default(), BootTime::default());
    let at = |seconds| start.after(Duration::from_secs(seconds));
    let mut stored: Vec<ObjectMeta> = (0..20).map(|number| of("flood", &format!("f{number:02}"), 1)).collect();
    let (due, _) = schedules.take_due(&stored, MAX_CONCURRENT_LOOKS, start);
    assert_eq!(names(&due), ["f00", "f01", "f02", "f03"], "half of the looks");
    stored.extend(["a", "b"].map(|name| of("team", name, 1)));
    stored.push(of("other", "c", 1));
    assert_eq!(names(&schedules.take_due(&stored, 4, at(1)).0), ["c", "a", "b"]);
    let mut due = due.into_iter();
    let (key, memory) = due.next().expect("a look");
    schedules.ended(&key, memory, LOOK_INTERVAL, at(2));
    assert_eq!(names(&schedules.take_due(&stored, 4, at(2)).0), ["f04"], "one for one");
    // Looks at Toolsets that are gone count until they end.
    assert_eq!(schedules.take_due(&[], 4, at(3)).0.len(), 0);
    assert_eq!(names(&schedules.take_due(&[of("flood", "new", 1)], 4, at(3)).0), [] as [&str; 0]);
    for (key, memory) in due {
        schedules.ended(&key, memory, LOOK_INTERVAL, at(4));
    }
    assert_eq!(names(&schedules.take_due(&[of("flood", "new", 1)], 4, at(4)).0), ["new"]);
}

#[test]
fn those_that_are_gone_are_forgotten() {
    let (mut schedules, start) = (LookSchedules::default(), BootTime::default());
    let (due, gone) = schedules.take_due(&[metadata("a", 1)], 8, start);
    assert_eq!((due.len(), gone.len()), (1, 0));
    let (due_then, gone) = schedules.take_due(&[], 8, start);
    assert_eq!((due_then.len(), gone.len(), schedules.toolsets.len()), (0, 1, 0));
    // Its look ends later.
    for (key, memory) in due {
        schedules.ended(&key, memory, LOOK_INTERVAL, start);
    }
    assert!(schedules.toolsets.is_empty());
}
