//! The gateway's journal of holds from an earlier process: entries that are read can be rewritten and are then the
//! same, and a torn end loses no entry before it.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;
use spillway_holds::journal::read;
use spillway_holds::session::Session;

fuzz_target!(|data: &[u8]| {
    let lines = read(data);
    let torn = read(&[data, b"{\"sent\": 1"].concat());
    if data.last() == Some(&b'\n') {
        assert_eq!(torn, lines, "half a line is none");
    }
    let Ok(mut session) = Session::restore(&lines, || "new".to_owned()) else { return };
    let snapshot: Vec<_> = session.snapshot().lines().collect();
    let mut text = Vec::new();
    for line in &snapshot {
        text.extend(serde_json::to_vec(line).expect("JSON"));
        text.push(b'\n');
    }
    assert_eq!(read(&text), snapshot, "what is written is read");
    let again = Session::restore(&snapshot, || "other".to_owned()).expect("what was taken up is taken up again");
    assert_eq!(again.snapshot().lines().collect::<Vec<_>>(), snapshot);
    assert_eq!((again.name(), again.unacknowledged_count()), (session.name(), session.unacknowledged_count()));
    // The journal can be continued.
    let Ok((id, line)) = session.take_number("team") else { return };
    assert!(line.is_some(), "what was reserved may have been used");
    session.discard_number(id);
});
