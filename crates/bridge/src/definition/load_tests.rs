use super::*;

fn allowed() -> Allowed {
    Allowed {
        commands: Some(vec!["/usr/bin/git".into(), "/bin/echo".into(), "/opt/tools/*".into(), "/usr/bin/python3.11".into()]),
        credentials: vec!["deploy-key".into()],
        max_seconds: 300,
    }
}

fn loaded(fields: &str) -> Result<Definition, Fault> {
    load(format!("---\n{fields}\n---\nHelp.\n").as_bytes(), &allowed())
}

/// The least that a definition has, with more fields behind it. They begin at line 5.
fn with(more: &str) -> Result<Definition, Fault> {
    loaded(&format!("name: a\ndescription: d\ncommand: /bin/echo\n{more}"))
}

const WHOLE: &str = r#"name: git_push
description: Push the run branch to origin
command: /usr/bin/git
argv: ["push", "--porcelain", "origin", "{bundle}:refs/heads/{branch}"]
args:
  - {name: bundle, type: artifact, required: true}
  - {name: branch, type: string, pattern: "agent/[a-z0-9][a-z0-9._-]{0,62}", required: true, maxLength: 80, description: target branch}
timeoutSeconds: 60
limits: {stdoutBytes: 262144, stderrBytes: 65536, concurrency: 2, perAgentPerMinute: 10}
env: {set: {GIT_TERMINAL_PROMPT: "0"}, credentials: [deploy-key]}
requiresApproval: true"#;

#[test]
fn every_field_is_read() {
    let definition = loaded(WHOLE).expect("it is valid");
    assert_eq!(
        (definition.name.as_str(), definition.command.to_str(), definition.help.as_str()),
        ("git_push", Some("/usr/bin/git"), "Help.")
    );
    assert_eq!((definition.words.len(), definition.arguments.len(), definition.timeout_seconds), (4, 2, 60));
    let limits = Limits { stdout_bytes: 262_144, stderr_bytes: 65_536, concurrency: 2, per_agent_per_minute: 10 };
    assert_eq!((definition.limits, definition.requires_approval), (limits, true));
    assert_eq!(definition.environment.get("GIT_TERMINAL_PROMPT").map(String::as_str), Some("0"));
    assert_eq!(definition.credentials, ["deploy-key"]);
}

#[test]
fn a_definition_without_argv_gives_each_argument_in_order() {
    let definition =
        with("args:\n  - {name: first, type: string, pattern: '[a-z]+', required: true}\n  - {name: second}").expect("it is valid");
    let words: Vec<&str> = definition.words.iter().filter_map(Template::first_argument).collect();
    assert_eq!(words, ["first", "second"]);
    assert_eq!((definition.timeout_seconds, definition.limits), (DEFAULT_SECONDS, Limits::default()));
}

#[test]
fn what_is_wrong_has_a_line_and_a_rule() {
    for (more, at, rule) in [
        ("argv: [\"{x}\"]", 5, "undeclared"),
        ("argv: [\"{x\"]\nargs: [{name: x}]", 5, "argv"),
        ("argv: [a]\nargs: [{name: x}]", 6, "unused"),
        ("args:\n  - {name: x}\n  - {name: x}", 7, "duplicateArgument"),
        ("args: [{name: X}]", 5, "name"),
        ("args: [{name: x, pattern: '['}]", 5, "pattern"),
        ("args: [{name: x, pattern: '(a{1000}){1000}{1000}'}]", 5, "pattern"),
        ("args: [{name: x, maxLength: 0}]", 5, "maxLength"),
        ("args: [{name: x, maxLength: 100000}]", 5, "maxLength"),
        ("args: [{name: x, type: integer, pattern: a}]", 5, "type"),
        ("args: [{name: x, min: 1}]", 5, "type"),
        ("args: [{name: x, type: boolean, values: [\"a\"]}]", 5, "type"),
        ("args: [{name: x, type: enum}]", 5, "values"),
        ("args: [{name: x, type: enum, values: [\"-a\"]}]", 5, "leadingDash"),
        ("args: [{name: x, type: integer, min: -1}]", 5, "leadingDash"),
        ("args: [{name: x, type: integer, min: 2, max: 1}]", 5, "range"),
        ("timeoutSeconds: 301", 5, "timeoutSeconds"),
        ("timeoutSeconds: 0", 5, "timeoutSeconds"),
        ("limits: {concurrency: 0}", 5, "limits"),
        ("limits: {stdoutBytes: 99999999}", 5, "limits"),
        ("env: {set: {LD_PRELOAD: x}}", 5, "env"),
        ("env: {set: {BASH_ENV: x}}", 5, "env"),
        ("env: {set: {\"a b\": x}}", 5, "env"),
        ("env:\n  set: {A: \"x\\ny\"}", 6, "env"),
        ("env: {credentials: [other]}", 5, "credentials"),
    ] {
        let fault = with(more).expect_err(more);
        assert_eq!((fault.line, fault.rule), (Some(at), rule), "{more}: {fault}");
    }
}

#[test]
fn a_dash_is_a_matter_of_where_a_word_begins() {
    let text = |more: &str| match &with(more).expect(more).arguments[0].type_ {
        ArgumentType::Text { leading_dash, .. } => *leading_dash,
        other => panic!("{other:?}"),
    };
    assert!(!text("args: [{name: x}]"), "the value is a word of its own");
    assert!(text("argv: [\"--x={x}\"]\nargs: [{name: x}]"), "the word is an option already");
    assert!(text("args: [{name: x, leadingDash: true}]"));
    with("argv: [\"--x={x}\"]\nargs: [{name: x, type: integer, min: -5}]").expect("harmless");
    with("args: [{name: x, type: integer, min: -5, leadingDash: true}]").expect("it is meant");
}

#[test]
fn only_allowed_programs_are_named_and_no_interpreters() {
    let command = |command: &str, more: &str| loaded(&format!("name: a\ndescription: d\ncommand: {command}\n{more}"));
    for (path, rule) in [
        ("git", "command"),
        ("./git", "command"),
        ("/usr/bin/../bin/git", "command"),
        ("/usr/bin/./git", "command"),
        ("/usr//bin/git", "command"),
        ("/usr/bin/git/", "command"),
        ("/", "command"),
        ("/usr/bin/git-shell", "allowedCommands"),
        ("/opt/tools/sub/x", "allowedCommands"),
        ("/usr/bin/python3.11", "interpreter"),
        ("/opt/tools/bash", "interpreter"),
        ("/opt/tools/python", "interpreter"),
        ("/opt/tools/perl5.36", "interpreter"),
        ("/opt/tools/env", "interpreter"),
    ] {
        assert_eq!(command(path, "").expect_err(path).rule, rule, "{path}");
    }
    command("/opt/tools/deploy", "").expect("a program of an allowed folder");
    command("/usr/bin/python3.11", "interpreter: true").expect("it is meant");
}

#[test]
fn yaml_means_what_it_seems_to_mean() {
    for (more, about) in [
        ("requiresApproval: yes", "a word that is a boolean in YAML 1.1"),
        ("requiresApproval: on", "the same"),
        ("args: [{name: x, type: enum, values: [1]}]", "a number for a text"),
        ("args: [{name: x, type: enum, values: [true]}]", "a boolean for a text"),
        ("name: b", "a key twice"),
        ("strange: 1", "an unknown field"),
        ("args: [{name: x, strange: 1}]", "an unknown field of an argument"),
        ("env: &a {}\nlimits: *a", "an anchor"),
        ("env: {<<: {set: {}}}", "a merge key"),
        ("requiresApproval: !!bool true\nenv: !custom {}", "a tag"),
        ("args: 5", "another type"),
        ("args: [[[[[[[[[[]]]]]]]]]]", "deep nesting"),
        ("...\nname: b", "a second document"),
    ] {
        let fault = with(more).expect_err(about);
        assert!(matches!(fault.rule, "InvalidFields"), "{about}: {fault}");
    }
    // Only YAML 1.1 reads these as booleans.
    let norway = with("args: [{name: country, type: enum, values: [no, se, y]}]").expect("texts");
    assert!(matches!(&norway.arguments[0].type_, ArgumentType::Enum(values) if values == &["no", "se", "y"]), "{norway:?}");
    // An alias bomb: each line ten times the one before.
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(", ")));
    }
    assert_eq!(with(&bomb).expect_err("a bomb").rule, "InvalidFields");
    assert_eq!(with("").map(|definition| definition.requires_approval), Ok(false));
    let missing = loaded("name: a\ncommand: /bin/echo").expect_err("a field is missing");
    assert!(missing.message.contains("description"), "{missing}");
}

#[test]
fn names_and_descriptions_are_plain() {
    for (fields, rule) in [
        ("name: Git\ndescription: d\ncommand: /bin/echo", "name"),
        ("name: \"\"\ndescription: d\ncommand: /bin/echo", "name"),
        ("name: a/b\ndescription: d\ncommand: /bin/echo", "name"),
        ("name: a\ndescription: \" \"\ncommand: /bin/echo", "description"),
        ("name: a\ndescription: \"a\\u202eb\"\ncommand: /bin/echo", "description"),
    ] {
        assert_eq!(loaded(fields).expect_err(fields).rule, rule, "{fields}");
    }
    let long = format!("name: a\ndescription: {}\ncommand: /bin/echo", "d".repeat(MAX_DESCRIPTION_CHARS + 1));
    assert_eq!(loaded(&long).expect_err("long").rule, "description");
}
