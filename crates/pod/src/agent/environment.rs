//! The program's environment. It is built from nothing, so that the program gets only the variables of this file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use spillway_wire::work::Assignment;

use super::item_files::{PAYLOAD_FILE, RESULT_FILE};
use crate::process::shells;
use crate::{ARTIFACTS_VARIABLE, DATA_DIR_VARIABLE, DEFAULT_ARTIFACTS_URL, FIRST_LOOPBACK_PORT};

/// Variables of the container that the program gets, if they are set.
const INHERITED_VARIABLES: [&str; 9] = [
    "SPILLWAY_AGENT_ID",
    "SPILLWAY_AGENT_NAME",
    "SPILLWAY_AGENT_TYPE",
    "SPILLWAY_POOL",
    "SPILLWAY_CONTAINER_MODE",
    "SPILLWAY_STORAGE_HASH",
    "HOME",
    "TMPDIR",
    "LANG",
];
/// Settings of git, which point it to the sidecar, and how many there may be.
const GIT_VARIABLES: [&str; 3] = ["SPILLWAY_GIT_URL", "GIT_TERMINAL_PROMPT", "GIT_CONFIG_COUNT"];
const MAX_GIT_SETTINGS: usize = 8;
/// URLs of Toolsets: of the pool's first one, and of all by name.
const TOOL_VARIABLES: [&str; 2] = ["SPILLWAY_MCP_URL", "SPILLWAY_MCP_SERVERS"];
/// Base URLs of models, and the keys that their clients require. The keys are placeholders, because the pod must not hold a
/// secret: the gateway adds the real key.
///
/// Google has two names for the key. Only one is set: with both, its clients warn at each start, and choose one.
const MODEL_VARIABLES: [(&str, &str); 3] =
    [("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"), ("OPENAI_BASE_URL", "OPENAI_API_KEY"), ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY")];
/// Placeholder for clients that require a key.
const PLACEHOLDER_KEY: &str = "held-by-spillway";
/// Hosts that are never reached through the proxy.
const NO_PROXY_HOSTS: &str = "localhost,127.0.0.1,::1";
/// `PATH` for an image that sets none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of the program. `own` reads a variable of the supervisor; `pass` are the names in the pool's `agent.env`.
/// Our own variables have priority over them.
pub fn build(own: impl Fn(&str) -> Option<OsString>, pass: &[String], bin: &Path, data: &Path, tty: bool) -> BTreeMap<String, OsString> {
    let mut built: BTreeMap<String, OsString> = pass.iter().filter_map(|name| Some((name.clone(), own(name)?))).collect();
    let mut set = |name: &str, value: OsString| built.insert(name.to_owned(), value);
    for name in INHERITED_VARIABLES.into_iter().chain(GIT_VARIABLES).chain(TOOL_VARIABLES) {
        if let Some(value) = own(name) {
            set(name, value);
        }
    }
    for name in (0..MAX_GIT_SETTINGS).flat_map(|number| [format!("GIT_CONFIG_KEY_{number}"), format!("GIT_CONFIG_VALUE_{number}")]) {
        if let Some(value) = own(&name) {
            set(&name, value);
        }
    }
    for (url, key) in MODEL_VARIABLES {
        if let Some(value) = own(url) {
            set(url, value);
            set(key, PLACEHOLDER_KEY.into());
        }
    }
    let proxy = OsString::from(format!("http://127.0.0.1:{}", FIRST_LOOPBACK_PORT + 1));
    for (name, value) in [("HTTP_PROXY", &proxy), ("HTTPS_PROXY", &proxy), ("NO_PROXY", &NO_PROXY_HOSTS.into())] {
        let value = own(name).unwrap_or_else(|| value.clone());
        set(&name.to_lowercase(), value.clone());
        set(name, value);
    }
    set(ARTIFACTS_VARIABLE, DEFAULT_ARTIFACTS_URL.into());
    set(DATA_DIR_VARIABLE, data.into());
    let mut path = bin.as_os_str().to_owned();
    path.push(":");
    path.push(own("PATH").filter(|path| !path.is_empty()).unwrap_or_else(|| DEFAULT_PATH.into()));
    set("PATH", path);
    if tty {
        set("TERM", own("TERM").unwrap_or_else(|| "xterm-256color".into()));
    }
    built
}

/// `PATH` with the folder of the timed shells in front, only for shells that the image has: a program must not find a shell that
/// does not exist. `None`: the image has no shell, or there is no folder of timed shells. `is_there`: whether a file is a program.
pub fn with_timed_shells(path: Option<&OsString>, bin: &Path, is_there: impl Fn(&Path) -> bool) -> Option<OsString> {
    let path = path?;
    let has = |shell: &str| std::env::split_paths(path).any(|folder| is_there(&folder.join(shell)));
    let folder = match (has("sh"), has("bash")) {
        (true, true) => shells::SHELLS_FOLDER,
        (true, false) => shells::SH_ONLY_FOLDER,
        (false, _) => return None,
    };
    let folder = bin.join(folder);
    let mut timed = folder.as_os_str().to_owned();
    timed.push(":");
    timed.push(path);
    is_there(&folder.join("sh")).then_some(timed)
}

/// The variables that an item adds when the program runs for it for the `turn`th time.
pub fn item_variables(item: &Assignment, turn: u32, data: &Path) -> BTreeMap<String, OsString> {
    let Assignment { held, name, queue, type_, payload: _, attempt, attempt_seconds: _, checkpoint_ref, branch, folder: _, sandbox: _ } =
        item;
    let text = [
        ("SPILLWAY_ITEM", Some(name.clone())),
        ("SPILLWAY_ITEM_UID", Some(held.uid.clone())),
        ("SPILLWAY_WORK_EPOCH", Some(held.epoch.to_string())),
        ("SPILLWAY_ITEM_TYPE", type_.clone()),
        ("SPILLWAY_QUEUE", Some(queue.clone())),
        ("SPILLWAY_ATTEMPT", Some(attempt.to_string())),
        ("SPILLWAY_CHECKPOINT", checkpoint_ref.clone()),
        ("SPILLWAY_BRANCH", branch.clone()),
        ("SPILLWAY_TURN", Some(turn.to_string())),
    ];
    let files = [("SPILLWAY_PAYLOAD_FILE", data.join(PAYLOAD_FILE)), ("SPILLWAY_RESULT_FILE", data.join(RESULT_FILE))];
    let text = text.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
    text.chain(files.into_iter().map(|(name, path)| (name.to_owned(), path.into()))).collect()
}

#[cfg(test)]
mod tests {
    use spillway_wire::sandbox::ItemSandbox;
    use spillway_wire::work::LeaseRef;

    use super::*;

    fn names(own: &[(&str, &str)], pass: &[&str], tty: bool) -> BTreeMap<String, String> {
        let pass: Vec<String> = pass.iter().map(|name| (*name).to_owned()).collect();
        let look = |name: &str| own.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        let built = build(look, &pass, Path::new("/spillway/bin"), Path::new("/spillway/data"), tty);
        built.into_iter().map(|(name, value)| (name, value.to_string_lossy().into_owned())).collect()
    }

    #[test]
    fn nothing_is_inherited_that_is_not_named() {
        let own = [("SECRET", "s"), ("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("LISTED", "l"), ("PATH", "/img/bin"), ("TERM", "vt100")];
        let built = names(&own, &["LISTED", "ABSENT"], false);
        let expected = [
            "HTTPS_PROXY",
            "HTTP_PROXY",
            "LISTED",
            "NO_PROXY",
            "PATH",
            "SPILLWAY_ARTIFACTS_URL",
            "SPILLWAY_DATA_DIR",
            "http_proxy",
            "https_proxy",
            "no_proxy",
        ];
        assert_eq!(built.keys().map(String::as_str).collect::<Vec<_>>(), expected);
        assert_eq!(built["PATH"], "/spillway/bin:/img/bin");
        assert_eq!(built["https_proxy"], "http://127.0.0.1:4102");
        assert_eq!(names(&own, &[], true)["TERM"], "vt100");
    }

    #[test]
    fn who_it_is_reaches_the_program_whatever_its_pool_lists() {
        let identity = [
            ("SPILLWAY_AGENT_ID", "uid-1"),
            ("SPILLWAY_AGENT_NAME", "coders-1"),
            ("SPILLWAY_AGENT_TYPE", "worker"),
            ("SPILLWAY_POOL", "coders"),
            ("SPILLWAY_STORAGE_HASH", "0123456789abcdef"),
            ("SPILLWAY_CONTAINER_MODE", "true"),
        ];
        let listed = identity.map(|(name, _)| name);
        for pass in [&[][..], &listed[..]] {
            let built = names(&identity, pass, false);
            for (name, value) in identity {
                assert_eq!(built[name], value, "{name}");
            }
            assert_eq!(built["SPILLWAY_DATA_DIR"], "/spillway/data", "as the supervisor has it");
        }
        assert_eq!(names(&[("SPILLWAY_DATA_DIR", "/elsewhere")], &["SPILLWAY_DATA_DIR"], false)["SPILLWAY_DATA_DIR"], "/spillway/data");
    }

    #[test]
    fn the_shells_of_an_image_are_timed_and_no_others_are_there() {
        let path = OsString::from("/spillway/bin:/usr/bin:/bin");
        let timed = |there: &[&str]| {
            let all = ["/spillway/bin/shells/sh", "/spillway/bin/shells/bash", "/spillway/bin/shells/only-sh/sh"];
            let is_there = |file: &Path| all.iter().chain(there).any(|known| Path::new(known) == file);
            let path = with_timed_shells(Some(&path), Path::new("/spillway/bin"), is_there);
            path.map(|path| path.into_string().expect("text"))
        };
        let expected = |folder: &str| Some(format!("/spillway/bin/{folder}:/spillway/bin:/usr/bin:/bin"));
        assert_eq!(timed(&["/bin/sh", "/usr/bin/bash"]), expected("shells"));
        assert_eq!(timed(&["/bin/sh"]), expected("shells/only-sh"), "a bash would seem to be there");
        assert_eq!(timed(&["/opt/bash", "/bin/bash"]), None);
        assert_eq!(
            with_timed_shells(Some(&path), Path::new("/elsewhere"), |file| file == Path::new("/bin/sh")),
            None,
            "no timed ones are there"
        );
    }

    #[test]
    fn an_item_brings_what_is_known_of_it() {
        let item = Assignment {
            held: LeaseRef { uid: "u-1".into(), epoch: 7 },
            name: "fix-1".into(),
            queue: "fixes".into(),
            type_: None,
            payload: "do it".into(),
            attempt: 2,
            attempt_seconds: 60,
            checkpoint_ref: Some("branch-1".into()),
            branch: Some("spillway/fix-1".into()),
            folder: None,
            sandbox: ItemSandbox::default(),
        };
        let built = item_variables(&item, 3, Path::new("/spillway/data"));
        let lines: Vec<String> = built.iter().map(|(name, value)| format!("{name}={}", value.to_string_lossy())).collect();
        let expected = [
            "SPILLWAY_ATTEMPT=2",
            "SPILLWAY_BRANCH=spillway/fix-1",
            "SPILLWAY_CHECKPOINT=branch-1",
            "SPILLWAY_ITEM=fix-1",
            "SPILLWAY_ITEM_UID=u-1",
            "SPILLWAY_PAYLOAD_FILE=/spillway/data/payload",
            "SPILLWAY_QUEUE=fixes",
            "SPILLWAY_RESULT_FILE=/spillway/data/result",
            "SPILLWAY_TURN=3",
            "SPILLWAY_WORK_EPOCH=7",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_model_brings_its_url_and_a_key_that_opens_nothing() {
        let built =
            names(&[("OPENAI_BASE_URL", "http://127.0.0.1:4101/m"), ("OPENAI_API_KEY", "real")], &["OPENAI_API_KEY", "PATH"], false);
        assert_eq!((built["OPENAI_BASE_URL"].as_str(), built["OPENAI_API_KEY"].as_str()), ("http://127.0.0.1:4101/m", PLACEHOLDER_KEY));
        assert!(!built.contains_key("ANTHROPIC_API_KEY"));
        let google = names(&[("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:4101/g")], &[], false);
        let keys: Vec<&str> = google.keys().map(String::as_str).filter(|name| name.ends_with("_KEY")).collect();
        assert_eq!(keys, ["GEMINI_API_KEY"], "clients warn when they find two");
    }
}
