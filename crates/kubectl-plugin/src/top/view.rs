//! Renders a sheet of rows as lines. Pure: it turns a sheet, a size and a state into lines. It must not print unsafe characters.

use std::borrow::Cow;

use ratatui::Frame;
use ratatui::layout::Size;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::state::{Order, State};
use crate::table::{EMPTY_COLUMN, printable, table};

/// Spaces between two columns.
const COLUMN_GAP: usize = 2;
/// The last line of the screen.
const KEY_HELP: &str = "q quit  s sort  p pause  arrows scroll";

/// The content of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sheet {
    /// The scope, for the first line.
    pub scope: String,
    /// Lines above the rows.
    pub summary: Vec<String>,
    /// Names of the columns.
    pub header: Vec<Cow<'static, str>>,
    /// The sorted rows, with each cell as it was read.
    pub rows: Vec<(Vec<String>, Style)>,
    /// The columns that shrink on a narrow screen, in this order, with their minimum widths.
    pub shrinkable_columns: &'static [(&'static str, usize)],
}

impl Sheet {
    fn cells(&self) -> Vec<Vec<String>> {
        let safe = |cell: &String| if cell.is_empty() { EMPTY_COLUMN.to_owned() } else { printable(cell) };
        self.rows.iter().map(|(cells, _)| cells.iter().map(safe).collect()).collect()
    }
}

/// Draws the screen.
pub fn draw(frame: &mut Frame<'_>, sheet: &Sheet, state: &State<impl Order>) {
    let area = frame.area();
    frame.render_widget(Paragraph::new(lines(sheet, area.as_size(), state)), area);
}

/// How many rows fit on the screen.
pub fn visible_rows(sheet: &Sheet, size: Size, state: &State<impl Order>) -> usize {
    // The title, the summary, an empty line, the header and the keys; one more line for an error.
    usize::from(size.height).saturating_sub(4 + sheet.summary.len() + usize::from(state.failure.is_some()))
}

/// The screen's lines.
pub fn lines(sheet: &Sheet, size: Size, state: &State<impl Order>) -> Vec<Line<'static>> {
    let room = visible_rows(sheet, size, state);
    let mut lines = vec![title(sheet, state)];
    lines.extend(sheet.summary.iter().map(|words| Line::from(printable(words))));
    if let Some((words, times)) = &state.failure {
        let words = printable(&format!("the data is old, retrying (failed: {times}): {words}"));
        lines.push(Line::styled(words, Style::new().fg(Color::Red)));
    }
    lines.push(Line::default());
    let cells = sheet.cells();
    let widths = widths(sheet, &cells, size.width.into());
    lines.push(Line::styled(join_cells(&sheet.header, &widths), Style::new().add_modifier(Modifier::REVERSED)));
    let visible = cells.iter().zip(&sheet.rows).skip(state.offset).take(room);
    lines.extend(visible.map(|(cells, (_, style))| Line::styled(join_cells(cells, &widths), *style)));
    lines.resize(usize::from(size.height).saturating_sub(1).max(lines.len()), Line::default());
    lines.push(Line::styled(keys(sheet.rows.len(), room, state), Style::new().add_modifier(Modifier::DIM)));
    lines
}

/// The sheet as plain text, for pipes and for `--once`.
pub fn plain_text(sheet: &Sheet) -> String {
    let mut text: String = sheet.summary.iter().map(|words| format!("{}\n", printable(words))).collect();
    if !sheet.rows.is_empty() {
        let header: Vec<&str> = sheet.header.iter().map(AsRef::as_ref).collect();
        text.push('\n');
        text.push_str(&table(&header, sheet.cells()));
    }
    text
}

fn title(sheet: &Sheet, state: &State<impl Order>) -> Line<'static> {
    let mut spans = vec![
        Span::styled("spillway", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!("  {}  sorted by {}", printable(&sheet.scope), state.sort.option_name())),
    ];
    if state.paused {
        spans.push(Span::styled("  paused: p resumes", Style::new().fg(Color::Yellow)));
    }
    Line::from(spans)
}

fn keys(rows: usize, room: usize, state: &State<impl Order>) -> String {
    let last = state.offset.saturating_add(room).min(rows);
    if room >= rows { KEY_HELP.to_owned() } else { format!("{KEY_HELP}  {}-{last} of {rows}", state.offset.saturating_add(1).min(last)) }
}

/// The widths of the columns: the needed widths, reduced to the width of the screen.
fn widths(sheet: &Sheet, cells: &[Vec<String>], width: usize) -> Vec<usize> {
    let header = &sheet.header;
    let widest = |at: usize| cells.iter().filter_map(|row| row.get(at)).map(|cell| display_width(cell)).max().unwrap_or(0);
    let mut widths: Vec<usize> = header.iter().enumerate().map(|(at, name)| display_width(name).max(widest(at))).collect();
    let whole = |widths: &[usize]| widths.iter().sum::<usize>() + COLUMN_GAP * widths.len().saturating_sub(1);
    for (name, least) in sheet.shrinkable_columns {
        let missing = whole(&widths).saturating_sub(width);
        if let Some(column) = header.iter().position(|column| column == name).and_then(|at| widths.get_mut(at)) {
            *column = (*column).min((*column).saturating_sub(missing).max(*least));
        }
    }
    widths
}

/// The cells of a row, each padded to the width of its column.
fn join_cells(cells: &[impl AsRef<str>], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| fit_width(cell.as_ref(), *width));
    padded.collect::<Vec<_>>().join(&" ".repeat(COLUMN_GAP))
}

/// The text in exactly this width; a text that is too long ends with an ellipsis.
fn fit_width(text: &str, width: usize) -> String {
    let mut fitted = String::with_capacity(width);
    let mut used = 0;
    if display_width(text) <= width {
        fitted.push_str(text);
        used = display_width(text);
    } else {
        for character in text.chars() {
            let next = display_width(character.encode_utf8(&mut [0; 4]));
            if used + next + 1 > width {
                break;
            }
            fitted.push(character);
            used += next;
        }
        if used < width {
            fitted.push('\u{2026}');
            used += 1;
        }
    }
    fitted.extend(std::iter::repeat_n(' ', width.saturating_sub(used)));
    fitted
}

/// The width of the text on the screen.
fn display_width(text: &str) -> usize {
    Span::raw(text).width()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::api::agent::AgentPhase;
    use crate::top::Subject as _;
    use crate::top::agents::{Agents, Pools, Row, Snapshot, Sort};

    type State = super::State<Sort>;

    fn now() -> Timestamp {
        "2026-01-01T00:02:00Z".parse().expect("a time")
    }
    fn row(number: usize) -> Row {
        Row {
            namespace: "n".into(),
            name: format!("p-{number}"),
            display_name: format!("calm-otter{number}"),
            pool: "p".into(),
            type_: "worker".into(),
            phase: Some(AgentPhase::Idle),
            created: "2026-01-01T00:00:00Z".parse().ok(),
            ..Row::default()
        }
    }
    fn snapshot(agents: Vec<Row>) -> Snapshot {
        let pools = Pools { count: 1, desired: 3, agents: 2, active: 1, idle: 1, problem_pools: Vec::new() };
        Snapshot { namespace: Some("n".into()), agents, pools, ..Snapshot::default() }
    }
    fn sheet(snapshot: &Snapshot, state: &State) -> Sheet {
        Agents::sheet(snapshot, state.sort, now())
    }
    /// The visible lines of the screen.
    fn screen(snapshot: &Snapshot, state: &State, (width, height): (u16, u16)) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &sheet(snapshot, state), state)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    #[test]
    fn the_screen_has_a_header_the_agents_and_the_keys() {
        let busy = Row {
            phase: Some(AgentPhase::Active),
            action: "run: cargo test".into(),
            item: "bug-7".into(),
            tokens: Some(1234),
            heartbeat: "2026-01-01T00:01:45Z".parse().ok(),
            ..row(1)
        };
        let mut all = snapshot(vec![row(2), busy]);
        all.ended = 4;
        all.pools.problem_pools = vec![("p".into(), "QuotaExceeded".into())];
        assert_eq!(
            screen(&all, &State::default(), (100, 9)),
            [
                "spillway  namespace n  sorted by name",
                "Agents 2  Active 1  Idle 1  ended 4",
                "Pools 1  desired 3  agents 2  active 1  idle 1  problems: p QuotaExceeded",
                "",
                "DISPLAY      POOL  TYPE    PHASE   ACTION           ITEM   TOKENS  BEAT  AGE  NAME",
                "calm-otter1  p     worker  Active  run: cargo test  bug-7  1234    15s   2m   p-1",
                "calm-otter2  p     worker  Idle    -                -      -       -     2m   p-2",
                "",
                "q quit  s sort  p pause  arrows scroll",
            ]
        );
    }

    #[test]
    fn what_is_long_gives_way_and_nothing_moves_the_cursor() {
        let wordy =
            Row { action: "run: \u{1b}[2J a very long command line".into(), item: "bug-7-in-the-long-name-of-a-module".into(), ..row(1) };
        let seen = screen(&snapshot(vec![wordy]), &State::default(), (80, 9));
        assert_eq!(seen[5], "calm-otter1  p     worker  Idle   run: \u{fffd}[\u{2026}  bug-7-in-t\u{2026}  -       -     2m   p-1");
        assert_eq!(fit_width("abcdef", 4), "abc\u{2026}");
        assert_eq!(fit_width("\u{65e5}\u{672c}\u{8a9e}", 4), "\u{65e5}\u{2026} ");
        assert_eq!((fit_width("ab", 4), fit_width("ab", 0)), ("ab  ".to_owned(), String::new()));
    }

    #[test]
    fn many_agents_scroll_and_a_small_screen_is_no_trouble() {
        let many = snapshot((0..30).map(row).collect());
        let mut state = State::default();
        let shown = visible_rows(&sheet(&many, &state), Size::new(80, 16), &state);
        state.press(super::super::state::Key::Last, 30, shown);
        let seen = screen(&many, &state, (80, 16));
        assert!(seen[5].starts_with("calm-otter27 ") && seen[14].starts_with("calm-otter9 "), "{seen:?}");
        assert_eq!(seen[15], "q quit  s sort  p pause  arrows scroll  21-30 of 30");
        for size in [(1, 1), (3, 2), (80, 5), (10, 40)] {
            screen(&many, &state, size);
        }
    }

    #[test]
    fn a_failed_look_and_a_held_picture_are_told() {
        let mut state = State { paused: true, ..State::default() };
        state.failed("from server (Forbidden): no\u{7}".into());
        let seen = screen(&snapshot(vec![row(1)]), &state, (100, 10));
        assert!(seen[0].ends_with("paused: p resumes"), "{seen:?}");
        assert_eq!(seen[3], "the data is old, retrying (failed: 1): from server (Forbidden): no\u{fffd}");
        assert!(seen[6].starts_with("calm-otter1"), "{seen:?}");
    }

    #[test]
    fn plain_text_has_the_same_columns() {
        let mut everywhere = snapshot(vec![row(1)]);
        everywhere.namespace = None;
        assert_eq!(
            plain_text(&Agents::sheet(&everywhere, Sort::Name, now())),
            "Agents 1  Idle 1\nPools 1  desired 3  agents 2  active 1  idle 1\n\n\
             NAMESPACE   DISPLAY       POOL   TYPE     PHASE   ACTION   ITEM   TOKENS   BEAT   AGE   NAME\n\
             n           calm-otter1   p      worker   Idle    -        -      -        -      2m    p-1\n"
        );
        assert_eq!(
            plain_text(&Agents::sheet(&Snapshot::default(), Sort::Name, now())),
            "Agents 0\nPools 0  desired 0  agents 0  active 0  idle 0\n"
        );
    }
}
