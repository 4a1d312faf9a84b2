//! All definitions of a folder, in memory. A folder is loaded whole or not at all, and the catalogue never changes afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use spillway_wire::artifact::MAX_NAME_CHARS;
use spillway_wire::text::hex;

use crate::definition::front_matter::MAX_DEFINITION_BYTES;
use crate::definition::{Allowed, Argument, ArgumentType, Definition, Fault, load};

/// The most programs of a catalogue.
pub const MAX_PROGRAMS: usize = 128;
/// The ending of a definition's file.
const ENDING: &str = ".md";
/// Characters of a revision.
const REVISION_CHARS: usize = 16;

/// The programs that agents may call.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// The programs, by name.
    programs: BTreeMap<String, Definition>,
    /// A hash of all files.
    revision: String,
}

/// A fault, and the file that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// Name of the file.
    pub file: String,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for FileFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.file, self.fault)
    }
}

/// Whether a file or a key of this name is a definition. Kubernetes keeps files of its own in a mounted ConfigMap, which begin with two dots.
pub fn is_definition(name: &str) -> bool {
    !name.starts_with('.') && name.ends_with(ENDING)
}

/// Judges definitions one after the other as [`Catalog::load`] does, and keeps only their names: the patterns of all programs may need
/// much memory.
#[derive(Clone, Debug, Default)]
pub struct DefinitionCheck {
    programs: BTreeSet<String>,
}

impl DefinitionCheck {
    /// Judges the next file.
    pub fn judge(&mut self, file: &str, bytes: &[u8], allowed: &Allowed) -> Result<(), FileFault> {
        let fault = |fault| FileFault { file: file.to_owned(), fault };
        let definition = load(bytes, allowed).map_err(fault)?;
        if self.programs.contains(&definition.name) {
            return Err(fault(duplicate_name(&definition.name)));
        }
        self.programs.insert(definition.name);
        Ok(())
    }
}

fn duplicate_name(program: &str) -> Fault {
    Fault::new(None, "duplicateName", format!("another file defines the program {program} too"))
}

/// The files of a folder that are definitions, by name. Others are ignored.
pub fn read(folder: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // A pipe would be waited for.
        if !is_definition(&name) || !fs::metadata(entry.path())?.is_file() {
            continue;
        }
        // One byte more than a definition may have says that it is too long.
        let mut bytes = Vec::new();
        fs::File::open(entry.path())?.take(MAX_DEFINITION_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        files.insert(name, bytes);
        if files.len() > MAX_PROGRAMS {
            return Err(io::Error::other(format!("the folder has more than {MAX_PROGRAMS} definitions")));
        }
    }
    Ok(files)
}

impl Catalog {
    /// Loads all files, or says what is wrong with each that is wrong.
    pub fn load(files: &BTreeMap<String, Vec<u8>>, allowed: &Allowed) -> Result<Self, Vec<FileFault>> {
        let mut programs: BTreeMap<String, Definition> = BTreeMap::new();
        let mut faults = Vec::new();
        let mut hash = Sha256::new();
        for (file, bytes) in files {
            for part in [file.as_bytes(), bytes] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
            match load(bytes, allowed) {
                Ok(definition) if programs.contains_key(&definition.name) => {
                    faults.push(FileFault { file: file.clone(), fault: duplicate_name(&definition.name) });
                }
                Ok(definition) => {
                    programs.insert(definition.name.clone(), definition);
                }
                Err(fault) => faults.push(FileFault { file: file.clone(), fault }),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(Self { programs, revision: revision_of(hash) })
    }

    /// A catalogue of these definitions, which no file has.
    pub fn of(definitions: impl IntoIterator<Item = Definition>, revision: String) -> Self {
        Self { programs: definitions.into_iter().map(|definition| (definition.name.clone(), definition)).collect(), revision }
    }

    /// A hash of all definitions.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The programs, by name.
    pub fn programs(&self) -> impl Iterator<Item = &Definition> {
        self.programs.values()
    }

    /// The program with this name.
    pub fn program(&self, name: &str) -> Option<&Definition> {
        self.programs.get(name)
    }
}

/// The revision with this hash.
pub(crate) fn revision_of(hash: Sha256) -> String {
    let mut revision = hex(&hash.finalize());
    revision.truncate(REVISION_CHARS);
    revision
}

/// What models are told of an artifact.
const ARTIFACT_DESCRIPTION: &str = "name of an artifact of your item: put the file there first, with `spillway artifact put FILE`";

/// The arguments of a program, as JSON Schema.
pub fn arguments_schema(definition: &Definition) -> Value {
    let properties: serde_json::Map<String, Value> =
        definition.arguments.iter().map(|argument| (argument.name.clone(), argument_schema(argument))).collect();
    let required: Vec<&str> =
        definition.arguments.iter().filter(|argument| argument.required).map(|argument| argument.name.as_str()).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn argument_schema(argument: &Argument) -> Value {
    let mut schema = match &argument.type_ {
        ArgumentType::Text { pattern: _, written, max_chars, leading_dash: _, multiline: _ } => {
            let mut schema = json!({"type": "string", "maxLength": max_chars});
            if let Some(pattern) = written {
                schema["pattern"] = json!(format!("^(?:{pattern})$"));
            }
            schema
        }
        ArgumentType::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        ArgumentType::Boolean => json!({"type": "boolean"}),
        ArgumentType::Enum(values) => json!({"type": "string", "enum": values}),
        ArgumentType::Artifact => json!({"type": "string", "maxLength": MAX_NAME_CHARS, "description": ARTIFACT_DESCRIPTION}),
    };
    if !argument.description.is_empty() {
        schema["description"] = json!(match argument.type_ {
            ArgumentType::Artifact => format!("{} ({ARTIFACT_DESCRIPTION})", argument.description),
            _ => argument.description.clone(),
        });
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Allowed {
        Allowed { commands: Some(vec!["/bin/*".into()]), credentials: Vec::new(), max_seconds: 300 }
    }

    fn file(name: &str, more: &str) -> Vec<u8> {
        format!("---\nname: {name}\ndescription: d\ncommand: /bin/echo\n{more}\n---\nHelp of {name}.\n").into_bytes()
    }

    fn files(all: &[(&str, Vec<u8>)]) -> BTreeMap<String, Vec<u8>> {
        all.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect()
    }

    #[test]
    fn a_folder_is_loaded_whole_or_not_at_all() {
        let good = files(&[("a.md", file("a", "")), ("b.md", file("b", ""))]);
        let catalog = Catalog::load(&good, &allowed()).expect("a catalogue");
        assert_eq!(catalog.programs().map(|program| program.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(catalog.program("b").is_some_and(|program| program.help == "Help of b.") && catalog.program("c").is_none());
        let bad =
            files(&[("a.md", file("a", "")), ("b.md", file("a", "")), ("c.md", file("c", "timeoutSeconds: 0")), ("d.md", b"x".to_vec())]);
        let faults = Catalog::load(&bad, &allowed()).expect_err("faults");
        let mut check = DefinitionCheck::default();
        let alone: Vec<_> = bad.iter().filter_map(|(file, bytes)| check.judge(file, bytes, &allowed()).err()).collect();
        assert_eq!(alone, faults, "one after the other");
        let faults: Vec<String> = faults.iter().map(FileFault::to_string).collect();
        assert_eq!(faults.len(), 3);
        assert_eq!(faults[0], "b.md: duplicateName: another file defines the program a too");
        assert!(faults[1].starts_with("c.md: line 5: timeoutSeconds: "), "{faults:?}");
        assert!(faults[2].starts_with("d.md: line 1: NoFrontMatter: "), "{faults:?}");
    }

    #[test]
    fn a_revision_is_that_of_all_files() {
        let revision = |all: &[(&str, Vec<u8>)]| Catalog::load(&files(all), &allowed()).expect("a catalogue").revision().to_owned();
        let one = revision(&[("a.md", file("a", ""))]);
        assert_eq!((one.len(), &one), (REVISION_CHARS, &revision(&[("a.md", file("a", ""))])));
        assert_ne!(one, revision(&[("a.md", file("a", "requiresApproval: true"))]));
        assert_ne!(one, revision(&[("b.md", file("a", ""))]));
        assert_ne!(one, revision(&[("a.md", file("a", "")), ("b.md", file("b", ""))]));
    }

    #[test]
    fn only_definitions_are_read_and_so_many() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["a.md", "notes.txt", ".hidden.md", "..data"] {
            fs::write(folder.path().join(name), "x").expect("a file");
        }
        fs::create_dir(folder.path().join("folder.md")).expect("a folder");
        std::os::unix::net::UnixListener::bind(folder.path().join("socket.md")).expect("a socket");
        fs::write(folder.path().join("long.md"), vec![b'x'; MAX_DEFINITION_BYTES * 2]).expect("a file");
        let found = read(folder.path()).expect("the folder");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a.md", "long.md"]);
        assert_eq!(found.get("long.md").map(Vec::len), Some(MAX_DEFINITION_BYTES + 1));
        (0..=MAX_PROGRAMS).for_each(|number| fs::write(folder.path().join(format!("{number}.md")), "x").expect("a file"));
        assert!(read(folder.path()).expect_err("too many").to_string().contains("128"));
        read(&folder.path().join("missing")).expect_err("no folder");
    }

    #[test]
    fn the_schema_of_arguments_says_what_a_call_may_give() {
        let more = "args:\n  - {name: t, pattern: 'a|b', maxLength: 5, required: true, description: text}\n  - {name: n, type: integer, min: 1, max: 3}\n  \
                    - {name: e, type: enum, values: [\"x\", \"y\"]}\n  - {name: b, type: boolean}\n  - {name: f, type: artifact}";
        let catalog = Catalog::load(&files(&[("a.md", file("a", more))]), &allowed()).expect("a catalogue");
        let schema = arguments_schema(catalog.program("a").expect("the program"));
        assert_eq!((&schema["required"], &schema["additionalProperties"]), (&json!(["t"]), &json!(false)));
        assert_eq!(schema["properties"]["t"], json!({"type": "string", "maxLength": 5, "pattern": "^(?:a|b)$", "description": "text"}));
        assert_eq!(schema["properties"]["n"], json!({"type": "integer", "minimum": 1, "maximum": 3}));
        assert_eq!(schema["properties"]["e"]["enum"], json!(["x", "y"]));
        assert!(schema["properties"]["f"]["description"].as_str().is_some_and(|text| text.contains("spillway artifact put")));
    }
}
