//! The screen of `top`: draws, reads keys, refreshes. It restores the terminal at every end: a key, a signal, an error or a
//! panic. It must not decide what a key does, nor how a snapshot is shown.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::OptionFuture;
use jiff::Timestamp;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::state::{Key, State};
use super::stop_signals::StopSignals;
use super::subject::Subject;
use super::view;
use crate::connect::Cluster;
use crate::error::Error;

/// How often the thread that reads keys checks whether it has to end.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The interval of redraws: ages on the screen also grow between two refreshes.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// A refresh in progress.
type PendingLook<'a, S> = Pin<Box<dyn Future<Output = Result<S, Error>> + 'a>>;

/// Shows `snapshot` and the later refreshes until the user quits.
pub async fn run<S: Subject>(cluster: &Cluster, subject: &S, sort: S::Sort, every: Duration, snapshot: S::Snapshot) -> Result<(), Error> {
    let mut signals = StopSignals::listen().map_err(|error| terminal_error(&error))?;
    let mut screen = Screen::open().map_err(|error| terminal_error(&error))?;
    // `screen` is dropped before the error is returned, so the terminal is restored before the message is printed.
    let result = session((&mut screen.terminal, &mut signals), cluster, subject, (sort, every), snapshot).await;
    drop(screen);
    result.map_err(|error| terminal_error(&error))
}

async fn session<S: Subject>(
    (terminal, signals): (&mut DefaultTerminal, &mut StopSignals),
    cluster: &Cluster,
    subject: &S,
    (sort, every): (S::Sort, Duration),
    mut snapshot: S::Snapshot,
) -> io::Result<()> {
    let mut state = State { sort, ..State::default() };
    let mut keys = Keys::read();
    let mut looks = interval(every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.reset(); // `snapshot` is the first refresh
    let mut redraw = interval(REDRAW_INTERVAL);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut looking: Option<PendingLook<'_, S::Snapshot>> = None;
    while !state.quit {
        let sheet = S::sheet(&snapshot, state.sort, Timestamp::now());
        let room = view::visible_rows(&sheet, terminal.size()?, &state);
        state.settle(sheet.rows.len(), room);
        terminal.draw(|frame| view::draw(frame, &sheet, &state))?;
        tokio::select! {
            event = keys.events.recv() => match event {
                Some(Event::Key(pressed)) => {
                    let held = state.paused;
                    if let Some(key) = key_action(pressed) {
                        state.press(key, sheet.rows.len(), room);
                    }
                    if held && !state.paused {
                        looks.reset_immediately();
                    }
                }
                Some(_) => {} // a resize: the next draw sees it
                None => state.quit = true, // the terminal is gone
            },
            _ = looks.tick(), if looking.is_none() && !state.paused => looking = Some(Box::pin(subject.look(cluster))),
            Some(found) = OptionFuture::from(looking.as_mut()), if looking.is_some() => {
                looking = None;
                match found {
                    // A refresh that was in progress when the user paused must not change the screen.
                    Ok(_) if state.paused => {}
                    Ok(found) => {
                        snapshot = found;
                        state.succeeded();
                    }
                    Err(error) => state.failed(error.to_string()),
                }
            }
            () = signals.any() => state.quit = true,
            _ = redraw.tick() => {}
        }
    }
    Ok(())
}

fn terminal_error(error: &io::Error) -> Error {
    Error::Usage(format!("the terminal cannot be used: {error}; --once prints plain text"))
}

/// The action of a key.
fn key_action(pressed: KeyEvent) -> Option<Key> {
    if pressed.kind == KeyEventKind::Release {
        return None;
    }
    let control = pressed.modifiers.contains(KeyModifiers::CONTROL);
    match pressed.code {
        KeyCode::Char('c') if control => Some(Key::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('s') => Some(Key::Sort),
        KeyCode::Char('p') => Some(Key::Pause),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Rows(-1)),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Rows(1)),
        KeyCode::PageUp => Some(Key::Screens(-1)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(Key::Screens(1)),
        KeyCode::Home => Some(Key::First),
        KeyCode::End => Some(Key::Last),
        _ => None,
    }
}

/// The terminal in raw mode. Drop restores it.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Opens the screen. A panic restores the terminal before it prints its message.
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(|terminal| Self { terminal })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads the terminal on a thread of its own: reading blocks.
struct Keys {
    events: mpsc::UnboundedReceiver<Event>,
    stop_requested: Arc<AtomicBool>,
}

impl Keys {
    fn read() -> Self {
        let (send, events) = mpsc::unbounded_channel();
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match event::poll(KEY_POLL_INTERVAL).and_then(|ready| if ready { event::read().map(Some) } else { Ok(None) }) {
                    Ok(None) => {}
                    Ok(Some(event)) => {
                        if send.send(event).is_err() {
                            return;
                        }
                    }
                    Err(_) => return, // the terminal is gone: the session sees the closed channel
                }
            }
        });
        Self { events, stop_requested: over }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.stop_requested.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_the_help_says() {
        let press = |code, modifiers| key_action(KeyEvent::new(code, modifiers));
        let cases = [
            (KeyCode::Char('q'), Some(Key::Quit)),
            (KeyCode::Char('s'), Some(Key::Sort)),
            (KeyCode::Char('p'), Some(Key::Pause)),
            (KeyCode::Down, Some(Key::Rows(1))),
            (KeyCode::PageUp, Some(Key::Screens(-1))),
            (KeyCode::Char('c'), None),
        ];
        for (code, expected) in cases {
            assert_eq!(press(code, KeyModifiers::NONE), expected, "{code:?}");
        }
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Quit));
    }
}
