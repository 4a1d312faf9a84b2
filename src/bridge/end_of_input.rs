//! Hearing of the end of standard input: the process that started us has gone, or wants us to end.

use std::io;

/// Calls `act` on a thread of its own when our standard input ends, or cannot be read.
pub fn when_input_ends(act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let read = move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        act();
    };
    std::thread::Builder::new().name("input".to_owned()).spawn(read).map(drop)
}
