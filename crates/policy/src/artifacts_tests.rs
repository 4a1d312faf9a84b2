use proptest::prelude::*;

use super::*;

const TOTAL: u64 = 100;
const FILE: u64 = 60;
const RETENTION: Duration = Duration::from_secs(1000);

fn limits() -> Limits {
    let limit = |most, source: &str| Limit { most, source: source.into() };
    Limits { file: limit(FILE, "Budget/b (file)"), total: limit(TOTAL, "Budget/b (total)"), retention: RETENTION, of_item: 2 }
}

fn at(seconds: i64) -> UnixMillis {
    UnixMillis(seconds * 1000)
}

fn artifact(name: &str, bytes: u64, id: &str, created: UnixMillis) -> Artifact {
    let (name, sha256, id) = (name.to_owned(), "0".repeat(64), id.to_owned());
    Artifact { name, bytes, sha256, id, epoch: 1, created, expires: created.after(RETENTION) }
}

/// Begins and finishes an upload, as calls of an agent do.
fn put(artifacts: &mut Artifacts, item: &str, name: &str, bytes: u64, id: &str, now: UnixMillis) -> Result<(), Denial> {
    artifacts.begin(&limits(), item, name, bytes, id, now)?;
    let all = artifacts.with(&limits(), item, artifact(name, bytes, id, now), now)?;
    artifacts.observe(item, all, now);
    Ok(())
}

#[test]
fn a_file_over_a_limit_is_refused_with_the_field_that_sets_it() {
    let mut artifacts = Artifacts::default();
    let words = put(&mut artifacts, "i", "a", 61, "1", at(0)).expect_err("too large").to_string();
    assert_eq!(words, "the file has 61 bytes, and Budget/b (file) allows 60");
    put(&mut artifacts, "i", "a", 60, "1", at(0)).expect("it fits");
    let words = put(&mut artifacts, "j", "a", 41, "2", at(0)).expect_err("full").to_string();
    assert!(words.contains("41 bytes, the artifacts of the namespace have 60, and Budget/b (total) allows 100"), "{words}");
    put(&mut artifacts, "j", "a", 20, "3", at(0)).expect("it fits");
    put(&mut artifacts, "j", "b", 10, "4", at(0)).expect("it fits");
    assert_eq!(put(&mut artifacts, "j", "c", 1, "5", at(0)), Err(Denial::ItemFull(2)));
    assert_eq!(put(&mut artifacts, "j", "b", 10, "6", at(0)), Ok(()), "it replaces one");
    assert_eq!(artifacts.of("j").len(), 2);
}

#[test]
fn an_upload_counts_from_its_permission_until_it_ends() {
    let mut artifacts = Artifacts::default();
    artifacts.begin(&limits(), "i", "a", 60, "1", at(0)).expect("it fits");
    assert!(matches!(artifacts.begin(&limits(), "i", "b", 60, "2", at(1)), Err(Denial::NamespaceFull { used: 60, .. })));
    artifacts.removed("1");
    artifacts.begin(&limits(), "i", "b", 60, "2", at(2)).expect("the first one ended without an artifact");
    assert!(artifacts.begin(&limits(), "i", "c", 60, "3", at(2)).is_err());
    artifacts.begin(&limits(), "i", "c", 60, "3", at(2 + 3600)).expect("no upload lasts that long");
    assert!(!artifacts.is_idle(at(4000)) && artifacts.is_idle(at(4000 + 3600)));
}

#[test]
fn an_object_that_was_left_counts_until_it_is_removed() {
    let mut artifacts = Artifacts::default();
    put(&mut artifacts, "i", "a", 40, "1", at(0)).expect("it fits");
    put(&mut artifacts, "i", "a", 40, "2", at(1)).expect("both objects fit");
    assert_eq!(artifacts.used(at(1)), 80);
    assert!(put(&mut artifacts, "i", "a", 40, "3", at(2)).is_err(), "the first object is still in the store");
    assert!(artifacts.is_unused("i", "1", Duration::ZERO, at(2)));
    artifacts.removed("1");
    put(&mut artifacts, "i", "a", 40, "3", at(3)).expect("there is room again");
    artifacts.observe("i", Vec::new(), at(4));
    assert_eq!(artifacts.used(at(4)), 80, "the item was deleted, its objects were not");
    assert_eq!(artifacts.used(at(4 + 2 * 3600)), 0);
}

#[test]
fn an_object_is_unused_when_nothing_needs_it() {
    let mut artifacts = Artifacts::default();
    let (young, old) = (Duration::from_secs(60), UNKNOWN_OBJECT_AGE);
    put(&mut artifacts, "i", "a", 10, "1", at(0)).expect("it fits");
    artifacts.begin(&limits(), "i", "b", 10, "2", at(0)).expect("it fits");
    let unused = |id, age, now| artifacts.is_unused("i", id, age, now);
    assert!(!unused("1", old, at(999)) && unused("1", young, at(1000)), "its time is over");
    assert!(artifacts.get("i", "a", at(999)).is_some() && artifacts.get("i", "a", at(1000)).is_none());
    assert!(!unused("2", old, at(1)), "it is being uploaded");
    assert!(unused("2", old, at(3600)), "its gateway crashed");
    assert!(!unused("3", young, at(1)) && unused("3", old, at(1)), "an earlier leader may have permitted it");
}

#[test]
fn what_is_remembered_is_bounded() {
    let (mut artifacts, limits) = (Artifacts::default(), limits());
    for upload in 0..MAX_REMEMBERED {
        artifacts.begin(&limits, "i", "a", 0, &upload.to_string(), at(0)).expect("there is room");
    }
    assert_eq!(artifacts.begin(&limits, "i", "a", 0, "one more", at(0)), Err(Denial::TooManyUploads));
    for object in 0..=MAX_REMEMBERED {
        artifacts.observe("i", vec![artifact("a", 1, &format!("o{object}"), at(0))], at(0));
    }
    artifacts.observe("i", Vec::new(), at(0));
    assert_eq!(artifacts.used(at(0)), MAX_REMEMBERED as u64, "further objects are not counted");
}

#[derive(Clone, Debug)]
enum Step {
    Begin { item: usize, name: usize, bytes: u64 },
    Finish(usize),
    Lose(usize),
    Delete(usize),
    Sweep,
    Wait(i64),
    NewLeader,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..3, 0usize..3, 0u64..70).prop_map(|(item, name, bytes)| Step::Begin { item, name, bytes }),
        4 => (0usize..8).prop_map(Step::Finish),
        1 => (0usize..8).prop_map(Step::Lose),
        1 => (0usize..3).prop_map(Step::Delete),
        1 => Just(Step::Sweep),
        1 => (1i64..2000).prop_map(Step::Wait),
        1 => Just(Step::NewLeader),
    ]
}

proptest! {
    /// A store, items and one leader after another: whatever happens, no object of an artifact is removed, and under one leader the store
    /// never has more than the limit.
    #[test]
    fn no_artifact_is_lost_and_no_store_is_filled(steps in proptest::collection::vec(step(), 0..80)) {
        let limits = limits();
        let (mut artifacts, mut now, mut next) = (Artifacts::default(), at(0), 0);
        // The truth: objects by id, with their item, size and age; and the records of the items.
        let mut store: HashMap<String, (String, u64, UnixMillis)> = HashMap::new();
        let mut records: HashMap<String, Vec<Artifact>> = HashMap::new();
        let mut uploads: Vec<(String, String, u64, String, UnixMillis)> = Vec::new();
        let mut one_leader = true;
        for step in steps {
            match step {
                Step::Begin { item, name, bytes } => {
                    let (item, name, id) = (format!("i{item}"), format!("n{name}"), format!("{next}"));
                    next += 1;
                    if artifacts.begin(&limits, &item, &name, bytes, &id, now).is_ok() {
                        store.insert(id.clone(), (item.clone(), bytes, now));
                        uploads.push((item, name, bytes, id, now));
                    }
                }
                Step::Finish(which) if which < uploads.len() => {
                    let (item, name, bytes, id, began) = uploads.remove(which);
                    // A gateway ends an upload that takes too long.
                    if now.since(began) < MAX_UPLOAD
                        && let Ok(all) = artifacts.with(&limits, &item, artifact(&name, bytes, &id, now), now)
                    {
                        records.insert(item.clone(), all.clone());
                        artifacts.observe(&item, all, now);
                    } else {
                        store.remove(&id);
                        artifacts.removed(&id);
                    }
                }
                Step::Lose(which) if which < uploads.len() => drop(uploads.remove(which)), // its gateway crashed
                Step::Finish(_) | Step::Lose(_) => {}
                Step::Delete(item) => {
                    records.remove(&format!("i{item}"));
                    artifacts.observe(&format!("i{item}"), Vec::new(), now);
                }
                Step::Sweep => {
                    let unused: Vec<String> = store.iter()
                        .filter(|(id, (item, _, since))| artifacts.is_unused(item, id, now.since(*since), now))
                        .map(|(id, _)| id.clone()).collect();
                    for id in unused {
                        store.remove(&id);
                        artifacts.removed(&id);
                    }
                }
                Step::Wait(seconds) => now = now.after(Duration::from_secs(seconds.unsigned_abs())),
                Step::NewLeader => {
                    one_leader = false;
                    artifacts = Artifacts::default();
                    records.iter().for_each(|(item, all)| artifacts.observe(item, all.clone(), now));
                }
            }
            for (item, all) in &records {
                for artifact in all.iter().filter(|artifact| artifact.expires > now) {
                    prop_assert!(store.contains_key(&artifact.id), "{artifact:?} of {item} is lost");
                }
            }
            for (_, _, _, id, began) in &uploads {
                prop_assert!(now.since(*began) >= MAX_UPLOAD || store.contains_key(id), "the upload {id} lost its object");
            }
            let kept = records.values().flatten().filter(|artifact| artifact.expires > now).map(|artifact| artifact.bytes).sum::<u64>();
            prop_assert!(!one_leader || kept <= TOTAL, "{kept} bytes are kept");
            prop_assert!(artifacts.used(now) >= kept);
        }
    }
}
