//! The names of the sources, as `CONTRIBUTING.md` asks for them: a type and a module are known from their name alone, in another file.
//!
//! A machine cannot judge a name. It can refuse the words that have always been bad ones here: pronouns, adverbs, bare participles and
//! pictures.

use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;

/// No type has such a name, in whatever module.
const NO_TYPES: &[&str] = &[
    "About",
    "Above",
    "After",
    "Alike",
    "Around",
    "Asked",
    "Because",
    "Before",
    "Beings",
    "Below",
    "Beside",
    "Book",
    "Desk",
    "Doing",
    "Done",
    "Elsewhere",
    "Ended",
    "Fate",
    "Found",
    "Gave",
    "Given",
    "Glance",
    "Happened",
    "Happening",
    "Heard",
    "Held",
    "Here",
    "How",
    "Judged",
    "Kept",
    "Late",
    "Left",
    "Listed",
    "Made",
    "May",
    "Missed",
    "Moved",
    "Named",
    "Next",
    "No",
    "Observed",
    "Of",
    "On",
    "One",
    "Over",
    "Passing",
    "Picked",
    "Place",
    "Places",
    "Raised",
    "Ran",
    "Reached",
    "Room",
    "Rota",
    "Said",
    "Second",
    "Seen",
    "Settled",
    "Shorter",
    "Shown",
    "Slow",
    "Something",
    "Standing",
    "Stored",
    "Taken",
    "Taker",
    "Telling",
    "Then",
    "There",
    "Things",
    "Thought",
    "Told",
    "Tongue",
    "Tried",
    "Turning",
    "UnderWay",
    "Undecided",
    "Unread",
    "Untold",
    "Wanted",
    "Watched",
    "Way",
    "What",
    "When",
    "Where",
    "Who",
    "Whose",
    "Why",
    "With",
    "Won",
    "Words",
    "Worked",
    "World",
    "Worth",
    "Written",
];
/// No module has such a name.
const NO_MODULES: &[&str] = &[
    "asked",
    "around",
    "attendance",
    "beside",
    "book",
    "descent",
    "desk",
    "disappear",
    "heard",
    "hub",
    "keeper",
    "kept",
    "obstacle",
    "one",
    "pace",
    "papers",
    "park",
    "pieces",
    "presence",
    "remembered",
    "room",
    "rota",
    "said",
    "seat",
    "seen",
    "strict",
    "talk",
    "tell",
    "told",
    "turns",
    "walls",
    "way",
];

/// Adds all files with Rust below a folder.
fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// The names that a file gives to types and modules.
#[derive(Default)]
struct Names {
    types: Vec<String>,
    modules: Vec<String>,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Struct(one) => self.types.push(one.ident.to_string()),
            syn::Item::Enum(one) => self.types.push(one.ident.to_string()),
            syn::Item::Trait(one) => self.types.push(one.ident.to_string()),
            syn::Item::Type(one) => self.types.push(one.ident.to_string()),
            syn::Item::Mod(one) => self.modules.push(one.ident.to_string()),
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }
}

/// The names in a source that are refused.
fn refused(source: &str) -> Vec<String> {
    let mut names = Names::default();
    names.visit_file(&syn::parse_file(source).expect("a source"));
    let types = names.types.into_iter().filter(|name| NO_TYPES.contains(&name.as_str()));
    types.chain(names.modules.into_iter().filter(|name| NO_MODULES.contains(&name.as_str()))).collect()
}

#[test]
fn types_and_modules_are_known_from_their_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ["src", "crates", "tests", "e2e", "fuzz/targets"].iter().for_each(|folder| collect(&root.join(folder), &mut files));
    assert!(files.len() > 100, "the sources are not where they were");
    let mut told = String::new();
    for file in files {
        let names = refused(&fs::read_to_string(&file).expect("a source"));
        if !names.is_empty() {
            told += &format!("{}: {}\n", file.display(), names.join(", "));
        }
    }
    assert!(told.is_empty(), "{told}Say what the thing is: a noun that a Kubernetes or Rust engineer knows without its neighbours.");
}

#[test]
fn a_planted_name_is_refused_wherever_it_stands() {
    assert_eq!(refused("mod desk; fn f() { struct Told; } enum ItemIndex {}"), ["Told", "desk"]);
}
