//! The structure of the sources, by the rules of `CONTRIBUTING.md`: no two files of a crate import each other, except a
//! module and its own parts; no file is long; the name of a type or a module is understood alone, in another file.
//!
//! Files are read as text and by their syntax, and nothing is run. Paths inside macros are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;

/// The most lines of a file.
const MAX_LINES: usize = 500;

/// Pronouns, adverbs, bare participles and pictures: no type has such a name, in any module. A program cannot judge a
/// name, but it can refuse words that failed before.
const NO_TYPES: &str = "About Above After Alike Around Asked Because Before Beings Below Beside Book Desk Doing Done Elsewhere Ended Fate Found Gave Given \
    Glance Happened Happening Heard Held Here How Judged Kept Late Left Listed Made May Missed Moved Named Next No Observed Of On One \
    Over Passing Picked Place Places Raised Ran Reached Room Rota Said Second Seen Settled Shorter Shown Slow Something Standing Stored \
    Taken Taker Telling Then There Things Thought Told Tongue Tried Turning UnderWay Undecided Unread Untold Wanted Watched Way What \
    When Where Who Whose Why With Won Words Worked World Worth Written";
/// No module has such a name.
const NO_MODULES: &str = "asked around attendance beside book descent desk disappear heard hub keeper kept obstacle one pace papers park pieces presence \
    remembered room rota said seat seen strict talk tell told turns walls way";

/// The path of a module below its crate: `["work", "item_index"]`.
type Module = Vec<String>;

/// All our Rust files.
fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for folder in ["src", "crates", "tests", "e2e", "fuzz/targets"] {
        collect(&root.join(folder), &mut found);
    }
    assert!(found.len() > 100, "too few sources were found: {found:?}");
    found
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, found);
            }
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// One crate: its files by module, without those of tests.
struct Crate {
    files: BTreeMap<Module, PathBuf>,
}

/// The crates: the files below a folder `src` with a `lib.rs` or `main.rs`.
fn crates(sources: &[PathBuf]) -> Vec<Crate> {
    let roots: BTreeSet<&Path> = sources
        .iter()
        .filter(|path| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs"))
        .filter_map(|path| path.parent())
        .collect();
    let of = |root: &&Path| {
        let below = |path: &&PathBuf| path.starts_with(root) && !path.starts_with(root.join("bin"));
        let module = |path: &PathBuf| {
            let inner = path.strip_prefix(root).expect("it lies below").with_extension("");
            let mut module: Module = inner.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                module.pop();
            }
            module
        };
        let files = sources.iter().filter(below).map(|path| (module(path), path.clone()));
        Crate { files: files.filter(|(module, _)| module.iter().all(|part| part != "tests" && !part.ends_with("_tests"))).collect() }
    };
    roots.iter().map(of).collect()
}

/// The paths that a file names, each with a flag for re-exports (`pub use`).
#[derive(Default)]
struct Paths {
    found: Vec<(Vec<String>, bool)>,
    /// Name of a re-export of the file, and its path.
    exports: BTreeMap<String, Vec<String>>,
    /// Depth of inline modules in the file.
    inner: usize,
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test"))
    })
}

impl Paths {
    /// A path relative to the file, from any inline module of it.
    fn add(&mut self, mut path: Vec<String>, exports: bool) {
        let mut inner = self.inner;
        while inner > 0 && path.first().is_some_and(|first| first == "super") {
            path.remove(0);
            inner -= 1;
        }
        if inner == 0 || path.first().is_some_and(|first| first == "crate") {
            self.found.push((path, exports));
        }
    }

    fn tree(&mut self, tree: &syn::UseTree, before: &[String], exports: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident), exports),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, before, exports)),
            syn::UseTree::Name(name) => self.leaf(with(&name.ident), &name.ident, exports),
            syn::UseTree::Rename(name) => self.leaf(with(&name.ident), &name.rename, exports),
            syn::UseTree::Glob(_) => self.add(before.to_vec(), exports),
        }
    }

    fn leaf(&mut self, path: Vec<String>, name: &syn::Ident, exports: bool) {
        if exports && self.inner == 0 {
            self.exports.insert(name.to_string(), path.clone());
        }
        self.add(path, exports);
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(one) => &one.attrs,
            syn::Item::Fn(one) => &one.attrs,
            syn::Item::Use(one) => &one.attrs,
            syn::Item::Impl(one) => &one.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.inner += 1;
        syn::visit::visit_item_mod(self, module);
        self.inner -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&item.tree, &[], !matches!(item.vis, syn::Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect(), false);
        }
        syn::visit::visit_path(self, path);
    }
}

/// For each module of a crate, the modules that it imports, with the paths.
fn imports(one: &Crate) -> BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>> {
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a source");
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut paths = Paths::default();
        paths.visit_file(&file);
        paths
    };
    let all: BTreeMap<&Module, Paths> = one.files.iter().map(|(module, path)| (module, read(path))).collect();
    let mut edges = BTreeMap::new();
    for (module, paths) in &all {
        let mut to: BTreeMap<Module, BTreeSet<String>> = BTreeMap::new();
        for (path, _) in paths.found.iter().filter(|(_, exports)| !exports) {
            if let Some(found) = place(&all, module, path, 0).filter(|found| !is_part(found, module)) {
                to.entry(found).or_default().insert(path.join("::"));
            }
        }
        edges.insert((*module).clone(), to);
    }
    edges
}

/// The module whose file defines the item at `path`, as `from` names it. None: it is in another crate, or in the same
/// file.
fn place(all: &BTreeMap<&Module, Paths>, from: &Module, path: &[String], depth: usize) -> Option<Module> {
    let (mut at, mut rest) = match path.first()?.as_str() {
        "crate" => (Module::new(), &path[1..]),
        "self" => (from.clone(), &path[1..]),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            (from[..from.len().checked_sub(ups)?].to_vec(), &path[ups..])
        }
        first if all.contains_key(&[from.as_slice(), &[first.to_owned()]].concat()) => (from.clone(), path),
        _ => return None,
    };
    while let Some((next, after)) = rest.split_first() {
        let below = [at.as_slice(), std::slice::from_ref(next)].concat();
        if all.contains_key(&below) {
            (at, rest) = (below, after);
            continue;
        }
        // Another file re-exports it: follow it to its definition.
        let exported = all.get(&at).and_then(|paths| paths.exports.get(next)).filter(|_| depth < 8);
        if let Some(exported) = exported {
            return place(all, &at, &[exported.as_slice(), after].concat(), depth + 1).or(Some(at));
        }
        return Some(at);
    }
    Some(at)
}

/// Whether one is a part of the other: a module names its parts, and a part may use the shared items of its module.
fn is_part(one: &Module, other: &Module) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// The groups of modules that reach each other.
fn circles(edges: &BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>) -> Vec<BTreeSet<Module>> {
    let reach = |from: &Module| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(next) = left.pop() {
            for to in edges.get(&next).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(to.clone()) {
                    left.push(to.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> = edges.keys().map(|module| (module, reach(module))).collect();
    let mut found: BTreeSet<BTreeSet<Module>> = BTreeSet::new();
    for (module, to) in &reached {
        let circle: BTreeSet<Module> =
            to.iter().filter(|other| reached.get(other).is_some_and(|back| back.contains(*module))).cloned().collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

#[test]
fn no_two_files_import_each_other() {
    let mut told = String::new();
    for one in crates(&sources()) {
        let edges = imports(&one);
        for circle in circles(&edges) {
            told += &format!("{} files import each other:\n", circle.len());
            for from in &circle {
                for (to, paths) in edges[from].iter().filter(|(to, _)| circle.contains(*to)) {
                    let names: Vec<&str> = paths.iter().map(String::as_str).collect();
                    told += &format!("  {} -> {}: {}\n", one.files[from].display(), one.files[to].display(), names.join(", "));
                }
            }
        }
    }
    assert!(told.is_empty(), "{told}Move the shared part into a file that imports neither.");
}

#[test]
fn no_file_is_longer_than_a_reader_keeps_in_mind() {
    let lines = |path: &PathBuf| fs::read_to_string(path).expect("a source").lines().count();
    let long: Vec<String> = sources()
        .iter()
        .map(|path| (lines(path), path))
        .filter(|(lines, _)| *lines > MAX_LINES)
        .map(|(n, path)| format!("{}: {n}", path.display()))
        .collect();
    assert!(long.is_empty(), "more than {MAX_LINES} lines: {long:?}. Move one subject into a file of its own.");
}

#[test]
fn a_circle_is_found_and_what_is_none_is_not() {
    let module = |name: &str| vec![name.to_owned()];
    let edges = |pairs: &[(&str, &str)]| {
        let mut edges: BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>> = BTreeMap::new();
        for (from, to) in pairs {
            edges.entry(module(from)).or_default().insert(module(to), BTreeSet::new());
            edges.entry(module(to)).or_default();
        }
        edges
    };
    assert!(circles(&edges(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    let found = circles(&edges(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]));
    assert_eq!(found, [["a", "b", "c"].map(module).into_iter().collect()]);
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
fn refused_names(source: &str) -> Vec<String> {
    let mut names = Names::default();
    names.visit_file(&syn::parse_file(source).expect("a source"));
    let is_in = |list: &str, name: &String| list.split_whitespace().any(|word| word == name);
    let types = names.types.into_iter().filter(|name| is_in(NO_TYPES, name));
    types.chain(names.modules.into_iter().filter(|name| is_in(NO_MODULES, name))).collect()
}

#[test]
fn types_and_modules_are_known_from_their_names() {
    let mut told = String::new();
    for file in sources() {
        let names = refused_names(&fs::read_to_string(&file).expect("a source"));
        if !names.is_empty() {
            told += &format!("{}: {}\n", file.display(), names.join(", "));
        }
    }
    assert!(told.is_empty(), "{told}Use a noun that a Kubernetes or Rust engineer understands alone.");
}

#[test]
fn a_planted_name_is_refused_wherever_it_stands() {
    assert_eq!(refused_names("mod desk; fn f() { struct Told; } enum ItemIndex {}"), ["Told", "desk"]);
}
