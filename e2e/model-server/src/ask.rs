//! A call in a form that all protocols share, and its answer. Pure.
//!
//! There is no real model. The answer calls a tool that runs commands, once, to write a file named after the words of
//! the task, or to run the command that a test set for it. A task `Call PROGRAM NAME=VALUE` calls the program of a bridge instead. Then it
//! says that it is done. The client's text is data: only its letters and digits get into a command.

use serde_json::{Map, Value, json};

use crate::script::Script;

/// The protocol of a model API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Api {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions.
    Chat,
    /// OpenAI Responses.
    Responses,
    /// Gemini generateContent.
    Gemini,
}

/// How a tool takes its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// As JSON that its schema describes.
    Json,
    /// As text (OpenAI's custom tools).
    Text,
    /// As JavaScript that calls other tools (Codex's `exec`).
    Script,
    /// As a command (OpenAI's `local_shell`).
    Command,
}

/// A tool that the client offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its namespace, in protocols with namespaces for tools.
    pub namespace: Option<String>,
    /// How it takes its input.
    pub input: Input,
    /// Its JSON schema, if it has one.
    pub schema: Value,
}

/// A call.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The protocol.
    pub api: Api,
    /// The model's name in the call.
    pub model: String,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether a stream of Chat Completions reports its usage.
    pub include_usage: bool,
    /// Whether a stream is a list of JSON objects (Gemini without `alt=sse`).
    pub as_list: bool,
    /// The output limit.
    pub limit: Option<u64>,
    /// Number of answers.
    pub choices: u64,
    /// The tools.
    pub tools: Vec<Tool>,
    /// The last words of a person.
    pub task: String,
    /// Number of tool results since then.
    pub results: usize,
    /// Bytes of the body.
    pub bytes: usize,
}

/// Tokens. The first four add up to the total. `reasoning` is a part of `output`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Input that was not cached.
    pub input: u64,
    /// Cached input.
    pub cache_read: u64,
    /// Input written to a cache.
    pub cache_write: u64,
    /// Output.
    pub output: u64,
    /// Thinking.
    pub reasoning: u64,
}

impl Tokens {
    /// All input.
    #[must_use]
    pub fn all_input(&self) -> u64 {
        self.input + self.cache_read + self.cache_write
    }

    /// Limits the output to this number.
    #[must_use]
    pub fn of_output(output: u64) -> Self {
        Self { output, ..Self::default() }
    }

    /// The same without output.
    #[must_use]
    pub fn without_output(&self) -> Self {
        Self { output: 0, reasoning: 0, ..*self }
    }

    /// Adds, and stops at the largest number.
    pub fn add(&mut self, other: &Self) {
        self.input = self.input.saturating_add(other.input);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.output = self.output.saturating_add(other.output);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
    }
}

/// The model's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Say {
    /// It calls a tool.
    Call {
        /// Name of the call.
        id: String,
        /// The tool.
        tool: Tool,
        /// Its input: JSON, or a string.
        input: Value,
    },
    /// It answers with text, in parts. `whole` is false if the output limit cut the text.
    Text {
        /// The parts. Each is one event.
        parts: Vec<ContentPart>,
        /// Whether the text is complete.
        whole: bool,
    },
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct ContentPart {
    /// The text.
    pub text: String,
    /// Its tokens.
    pub tokens: u64,
}

/// An answer that a test set for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresetAnswer {
    /// This text.
    Text(String),
    /// A call of a tool with this command, and then a text.
    Command(String),
}

/// The answer to `ask`, and its tokens. `preset` is the answer that a test set for it.
#[must_use]
pub fn decide(ask: &Ask, script: &Script, preset: Option<&PresetAnswer>) -> (Say, Tokens) {
    let bridge_call = BridgeCall::of_task(&ask.task);
    let done = bridge_call.as_ref().map(|call| call.end(ask));
    let (command, told) = match preset {
        None => (Some(command(&ask.task)), done.as_deref()),
        Some(PresetAnswer::Text(text)) => (None, Some(text.as_str())),
        Some(PresetAnswer::Command(command)) => (Some(command.clone()), Some("Done: the command was run.")),
    };
    let command = command.filter(|_| ask.results < script.calls.unwrap_or(1));
    let call = match &bridge_call {
        Some(call) if preset.is_none() => command.and_then(|_| call.tool_for(ask)),
        Some(_) | None => command.and_then(|command| tool_for(ask, &command)),
    };
    let say = match call {
        Some((tool, input)) => Say::Call { id: format!("call_{}", ask.results + 1), tool, input },
        None => text(ask, script, told),
    };
    let said = match &say {
        Say::Call { input, .. } => u64::try_from(input.to_string().len()).unwrap_or(u64::MAX) / 4 + 8,
        Say::Text { parts, .. } => parts.iter().map(|part| part.tokens).sum::<u64>() * ask.choices.max(1),
    };
    let all = script.input.unwrap_or(u64::try_from(ask.bytes).unwrap_or(u64::MAX) / 4 + 1);
    let (read, write) = if script.cache { (all / 2, all / 4) } else { (0, 0) };
    // Only one of the four protocols reports writes to a cache.
    let write = if ask.api == Api::Anthropic { write } else { 0 };
    let output = said.saturating_add(script.think);
    (say, Tokens { input: all - read - write, cache_read: read, cache_write: write, output, reasoning: script.think })
}

/// Makes a name of letters, digits and dashes from words, for a file and a command.
#[must_use]
pub fn slug(words: &str) -> String {
    let mut slug = String::new();
    for letter in words.chars() {
        if slug.len() >= 48 {
            break;
        }
        if letter.is_ascii_alphanumeric() {
            slug.push(letter.to_ascii_lowercase());
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() { "nothing".to_owned() } else { slug.to_owned() }
}

/// The command for the task: it writes a file, named after the task's words, into the program's folder. For a task that
/// begins with `Hang` the command never ends.
#[must_use]
pub fn command(task: &str) -> String {
    let slug = slug(task);
    if slug.split('-').next() == Some("hang") {
        return "sleep 86400".to_owned();
    }
    format!("printf '%s\\n' '{slug}' > '{slug}.txt'")
}

/// The start of a task that is a call of a program of a bridge.
const BRIDGE_CALL: &str = "Call ";

/// A call of a program of a bridge (`spillway bridge`).
struct BridgeCall<'a> {
    program: &'a str,
    arguments: Map<String, Value>,
}

impl<'a> BridgeCall<'a> {
    /// The call that the first line of a task names: `Call PROGRAM NAME=VALUE...`.
    fn of_task(task: &'a str) -> Option<Self> {
        let mut words = task.lines().next()?.strip_prefix(BRIDGE_CALL)?.split_whitespace();
        let program = words.next()?;
        let arguments = words.filter_map(|word| word.split_once('=')).map(|(name, value)| (name.to_owned(), json!(value))).collect();
        Some(Self { program, arguments })
    }

    /// The bridge's tool in the form in which a client of MCP offers it, and the input.
    fn tool_for(&self, ask: &Ask) -> Option<(Tool, Value)> {
        let is_execute = |tool: &&Tool| tool.input == Input::Json && (tool.name == "execute" || tool.name.ends_with("__execute"));
        let tool = ask.tools.iter().find(is_execute)?;
        Some((tool.clone(), json!({"program": self.program, "args": self.arguments})))
    }

    /// The last words.
    fn end(&self, ask: &Ask) -> String {
        let Self { program, .. } = self;
        if self.tool_for(ask).is_some() {
            format!("Done: {program} was called.")
        } else {
            format!("{program} was not called: the tool execute is not offered.")
        }
    }
}

/// Names of tools that run commands, in the programs that offer them.
const SHELLS: [&str; 10] = [
    "exec_command",
    "exec",
    "shell_command",
    "shell",
    "local_shell",
    "container.exec",
    "Bash",
    "bash",
    "run_shell_command",
    "execute_command",
];

fn tool_for(ask: &Ask, command: &str) -> Option<(Tool, Value)> {
    let shell = SHELLS.iter().find_map(|name| ask.tools.iter().find(|tool| tool.name == *name));
    let tool = shell.or_else(|| ask.tools.first())?;
    let input = match tool.input {
        Input::Text => Value::String(command.to_owned()),
        Input::Script => Value::String(format!("text(await tools.exec_command({}))", json!({"cmd": command}))),
        Input::Command => json!({"type": "exec", "command": ["bash", "-c", command], "env": {}}),
        Input::Json => arguments(tool, command),
    };
    Some((tool.clone(), input))
}

/// Arguments for a schema: the command where the schema has one, and valid values for the other required fields.
fn arguments(tool: &Tool, command: &str) -> Value {
    let properties = tool.schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let required: Vec<&str> =
        tool.schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let mut arguments = Map::new();
    for (name, schema) in &properties {
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
        let value = match (name.as_str(), kind.as_str()) {
            ("command" | "cmd", "array") => json!(["bash", "-c", command]),
            ("command" | "cmd", _) => json!(command),
            (name, _) if !required.contains(&name) => continue,
            (_, "array") => json!([]),
            (_, "object") => json!({}),
            (_, "boolean") => json!(false),
            (_, "integer" | "number") => json!(1),
            _ => json!(slug(command)),
        };
        arguments.insert(name.clone(), value);
    }
    Value::Object(arguments)
}

fn text(ask: &Ask, script: &Script, told: Option<&str>) -> Say {
    let long = "x".repeat(script.long);
    let part = |word: &str| ContentPart { text: word.to_owned(), tokens: 1 };
    let mut words: Vec<ContentPart> = match (told, script.output) {
        // Short parts, like tokens: text without spaces, such as JSON, would otherwise have too few tokens.
        (Some(told), _) => told.chars().collect::<Vec<_>>().chunks(4).map(|piece| part(&piece.iter().collect::<String>())).collect(),
        (None, Some(count)) => {
            let word = |at| if at % 16 == 15 { "é→.\n" } else { "word " };
            (0..count).map(|at| ContentPart { text: format!("{long}{}", word(at)), tokens: 1 }).collect()
        }
        (None, None) => format!("Done: {}.txt is written.", slug(&ask.task)).split_inclusive(' ').map(part).collect(),
    };
    let room = ask.limit.map(|limit| limit.saturating_sub(script.think).max(1));
    let most = room.and_then(|room| usize::try_from(room).ok()).unwrap_or(usize::MAX);
    let whole = words.len() <= most;
    words.truncate(most);
    let mut parts = group(words, script.events);
    if script.line > 0 {
        let text = "x".repeat(usize::try_from(script.line).unwrap_or_default());
        parts.push(ContentPart { text, tokens: script.line / 4 });
    }
    Say::Text { parts, whole }
}

/// Distributes `words` over a number of parts. With fewer words some parts are empty, which is allowed.
fn group(words: Vec<ContentPart>, events: Option<usize>) -> Vec<ContentPart> {
    let Some(events) = events else { return words };
    let mut parts = vec![ContentPart { text: String::new(), tokens: 0 }; events];
    let count = words.len().max(1);
    for (at, word) in words.into_iter().enumerate() {
        if let Some(part) = parts.get_mut(at * events / count) {
            part.text.push_str(&word.text);
            part.tokens += word.tokens;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(task: &str, tools: Vec<Tool>, results: usize) -> Ask {
        let (model, task) = ("m".to_owned(), task.to_owned());
        Ask {
            api: Api::Responses,
            model,
            stream: true,
            include_usage: false,
            as_list: false,
            limit: None,
            choices: 1,
            tools,
            task,
            results,
            bytes: 400,
        }
    }

    fn shell(name: &str, schema: Value) -> Tool {
        Tool { name: name.to_owned(), namespace: None, input: Input::Json, schema }
    }

    #[test]
    fn a_task_is_one_call_and_then_the_end() {
        let tools = vec![
            shell("other", json!({})),
            shell("exec_command", json!({"properties": {"cmd": {"type": "string"}, "tty": {"type": "boolean"}}, "required": ["cmd"]})),
        ];
        let (say, _) = decide(&ask("Write it!", tools.clone(), 0), &Script::default(), None);
        let Say::Call { tool, input, .. } = say else { panic!("{say:?}") };
        assert_eq!((tool.name.as_str(), input), ("exec_command", json!({"cmd": "printf '%s\\n' 'write-it' > 'write-it.txt'"})));
        let (say, used) = decide(&ask("Write it!", tools, 1), &Script::default(), None);
        let Say::Text { parts, whole: true } = say else { panic!("{say:?}") };
        assert_eq!(parts.iter().map(|part| part.text.as_str()).collect::<String>(), "Done: write-it.txt is written.");
        assert_eq!(used, Tokens { input: 101, output: 4, ..Tokens::default() });
    }

    #[test]
    fn what_it_is_told_to_say_it_says_whatever_tools_there_are() {
        let preset = PresetAnswer::Text("{\"say\": \"hello  you\"}".to_owned());
        let (say, used) = decide(&ask("x", vec![shell("exec", json!({}))], 0), &Script::default(), Some(&preset));
        let Say::Text { parts, whole: true } = say else { panic!("{say:?}") };
        assert_eq!(parts.iter().map(|part| part.text.as_str()).collect::<String>(), "{\"say\": \"hello  you\"}");
        assert_eq!(used.output, 6, "a token is four characters");
    }

    #[test]
    fn a_command_that_is_set_for_a_task_is_run_once() {
        let preset = PresetAnswer::Command("sh test.sh".to_owned());
        let tools = vec![shell("exec_command", json!({"properties": {"cmd": {"type": "string"}}}))];
        let (say, _) = decide(&ask("Mend it", tools.clone(), 0), &Script::default(), Some(&preset));
        let Say::Call { input, .. } = say else { panic!("{say:?}") };
        assert_eq!(input, json!({"cmd": "sh test.sh"}));
        let (say, _) = decide(&ask("Mend it", tools, 1), &Script::default(), Some(&preset));
        let Say::Text { parts, whole: true } = say else { panic!("{say:?}") };
        assert_eq!(parts.iter().map(|part| part.text.as_str()).collect::<String>(), "Done: the command was run.");
    }

    #[test]
    fn a_task_may_be_to_call_a_program_of_a_bridge() {
        let shell = shell("exec_command", json!({"properties": {"cmd": {"type": "string"}}}));
        let execute = Tool { name: "mcp__release__execute".to_owned(), namespace: None, input: Input::Json, schema: json!({}) };
        let task = "Call sign_release version=v7\nNow.";
        let (say, _) = decide(&ask(task, vec![shell.clone(), execute.clone()], 0), &Script::default(), None);
        let Say::Call { tool, input, .. } = say else { panic!("{say:?}") };
        assert_eq!((tool, input), (execute.clone(), json!({"program": "sign_release", "args": {"version": "v7"}})));
        let cases = [
            (vec![shell.clone(), execute], 1, "Done: sign_release was called."),
            (vec![shell], 0, "sign_release was not called: the tool execute is not offered."),
        ];
        for (tools, results, words) in cases {
            let (say, _) = decide(&ask(task, tools, results), &Script::default(), None);
            let Say::Text { parts, .. } = say else { panic!("{say:?}") };
            assert_eq!(parts.iter().map(|part| part.text.as_str()).collect::<String>(), words);
        }
    }

    #[test]
    fn a_task_may_be_to_hang() {
        assert_eq!(command("Hang for ever"), "sleep 86400");
        assert_eq!(command("Hanging"), "printf '%s\\n' 'hanging' > 'hanging.txt'");
    }

    #[test]
    fn nothing_of_a_task_but_letters_and_digits_comes_into_a_command() {
        let hostile = "a'; rm -rf / #$(x)`y`\n../../etc";
        assert_eq!(command(hostile), "printf '%s\\n' 'a-rm-rf-x-y-etc' > 'a-rm-rf-x-y-etc.txt'");
        assert_eq!((slug("é"), slug(&"ab ".repeat(100)).len() <= 48), ("nothing".to_owned(), true));
    }

    #[test]
    fn an_output_limit_cuts_the_text_and_the_cost() {
        let script = Script { output: Some(100), events: Some(3), think: 4, long: 20, ..Script::default() };
        let (say, used) = decide(&Ask { limit: Some(10), ..ask("x", vec![], 0) }, &script, None);
        let Say::Text { parts, whole } = say else { panic!("{say:?}") };
        assert_eq!((parts.len(), parts.iter().map(|part| part.tokens).sum::<u64>(), whole, used.output), (3, 6, false, 10));
    }

    #[test]
    fn a_shell_that_takes_words_gets_words() {
        let schema = json!({"properties": {"command": {"type": "array"}, "workdir": {"type": "string"}}, "required": ["command"]});
        let (say, _) = decide(&ask("x", vec![shell("shell", schema)], 0), &Script::default(), None);
        let Say::Call { input, .. } = say else { panic!("{say:?}") };
        assert_eq!(input, json!({"command": ["bash", "-c", "printf '%s\\n' 'x' > 'x.txt'"]}));
    }
}
