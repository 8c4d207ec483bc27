//! An arrow points only down: the table at the head of the daemon's `lib.rs` says which module is in which
//! layer, and nothing may name a module of a layer above its own. The lowest layer knows no runtime.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A mention of a top-level module: where, and which.
#[derive(Debug, PartialEq)]
struct Mention {
    line: usize,
    module: String,
}

fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kli-daemon/src")
}

/// Module name → layer, read from the table itself, so that the picture cannot drift from what is checked.
fn layers() -> BTreeMap<String, u32> {
    let text = std::fs::read_to_string(source_dir().join("lib.rs")).unwrap();
    let mut layers = BTreeMap::from([("main".to_owned(), 5)]);
    for line in text.lines().filter_map(|line| line.strip_prefix("//! ")) {
        let Some((number, rest)) = line.split_once("  ") else { continue };
        let Ok(number) = number.parse() else { continue };
        // Brackets hold remarks; of each item only the first word is a name.
        let mut depth = 0;
        let plain: String = rest
            .chars()
            .filter(|c| {
                depth += i32::from(*c == '(') - i32::from(*c == ')');
                depth == 0 && *c != ')'
            })
            .collect();
        for item in plain.split('·') {
            if let Some(name) = item.split_whitespace().next() {
                layers.insert(name.to_owned(), number);
            }
        }
    }
    layers
}

/// The source with comments and the contents of strings blanked out; lines stay where they are.
fn code_only(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let bytes: Vec<char> = text.chars().collect();
    let mut i = 0;
    let blank = |out: &mut String, c: char| out.push(if c == '\n' { '\n' } else { ' ' });
    while i < bytes.len() {
        let rest = &bytes[i..];
        if rest.starts_with(&['/', '/']) {
            while i < bytes.len() && bytes[i] != '\n' {
                i += 1;
            }
        } else if rest.starts_with(&['/', '*']) {
            let mut depth = 0;
            while i < bytes.len() {
                match (bytes[i], bytes.get(i + 1)) {
                    ('/', Some('*')) => (depth, i) = (depth + 1, i + 1),
                    ('*', Some('/')) => (depth, i) = (depth - 1, i + 1),
                    (c, _) => blank(&mut out, c),
                }
                i += 1;
                if depth == 0 {
                    break;
                }
            }
        } else if let Some(hashes) = raw_string(rest) {
            let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            i += hashes + 2;
            while i < bytes.len() && !bytes[i..].starts_with(&end) {
                blank(&mut out, bytes[i]);
                i += 1;
            }
            i += end.len();
        } else if bytes[i] == '"' {
            i += 1;
            while i < bytes.len() && bytes[i] != '"' {
                i += usize::from(bytes[i] == '\\');
                if let Some(c) = bytes.get(i) {
                    blank(&mut out, *c);
                }
                i += 1;
            }
            i += 1;
        } else if bytes[i] == '\'' && (bytes.get(i + 1) == Some(&'\\') || bytes.get(i + 2) == Some(&'\'')) {
            // A character, not a lifetime: it may be a quotation mark.
            i += 2 + usize::from(bytes[i + 1] == '\\');
            while i < bytes.len() && bytes[i] != '\'' {
                i += 1;
            }
            i += 1;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    out
}

/// How many `#` a raw string that begins here has.
fn raw_string(rest: &[char]) -> Option<usize> {
    let after = rest.strip_prefix(&['r'])?;
    let hashes = after.iter().take_while(|c| **c == '#').count();
    (after.get(hashes) == Some(&'"')).then_some(hashes)
}

/// The top-level modules that a file names, by `crate::…` or by enough `super::`. `depth` is how many `super`
/// lead from its items to the root of the crate.
fn mentions(code: &str, depth: usize) -> Vec<Mention> {
    let mut found = Vec::new();
    let at_line = |offset: usize| code[..offset].matches('\n').count() + 1;
    for (offset, _) in code.match_indices("crate::") {
        let is_whole_word = !code[..offset].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$');
        if is_whole_word || code[..offset].ends_with('$') {
            let line = at_line(offset);
            let names = first_names(&code[offset + "crate::".len()..]);
            found.extend(names.into_iter().map(|module| Mention { line, module }));
        }
    }
    let mut offset = 0;
    while let Some(start) = code[offset..].find("super::").map(|at| at + offset) {
        let mut end = start;
        let mut supers = 0;
        while code[end..].starts_with("super::") {
            (end, supers) = (end + "super::".len(), supers + 1);
        }
        if supers >= depth {
            let line = at_line(start);
            found.extend(first_names(&code[end..]).into_iter().map(|module| Mention { line, module }));
        }
        offset = end;
    }
    found
}

/// The first name of a path, or of each path of a group: `a::b` → a; `{a, b::{c, d}}` → a, b.
fn first_names(path: &str) -> Vec<String> {
    let name_of =
        |text: &str| -> String { text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let Some(group) = path.trim_start().strip_prefix('{') else { return vec![name_of(path)] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(name_of(&group[start..i]));
                start = i + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// All files of the daemon: path, code, the top-level module it belongs to, and its depth.
fn files() -> Vec<(PathBuf, String, String, usize)> {
    fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let root = source_dir();
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let inside = path.strip_prefix(&root).unwrap().with_extension("");
            let parts: Vec<String> = inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            let depth = parts.len() - usize::from(parts.last().is_some_and(|last| last == "mod"));
            let code = code_only(&std::fs::read_to_string(&path).unwrap());
            (path, code, parts[0].clone(), depth)
        })
        .filter(|(_, _, module, _)| module != "lib")
        .collect()
}

#[test]
fn every_module_has_a_layer() {
    let layers = layers();
    for (path, _, module, _) in files() {
        assert!(layers.contains_key(&module), "{}: `{module}` is not in the table of lib.rs", path.display());
    }
}

#[test]
fn imports_point_down() {
    let layers = layers();
    let mut upward = Vec::new();
    for (path, code, module, depth) in files() {
        let own = layers.get(&module).copied().unwrap_or(5);
        for mention in mentions(&code, depth) {
            if let Some(layer) = layers.get(&mention.module).filter(|layer| **layer > own) {
                let Mention { line, module: named } = mention;
                upward.push(format!("{}:{line}: {module} (layer {own}) names {named} (layer {layer})", path.display()));
            }
        }
    }
    assert!(upward.is_empty(), "upward imports:\n{}", upward.join("\n"));
}

#[test]
fn the_lowest_layer_is_pure() {
    let layers = layers();
    let mut found = Vec::new();
    for (path, code, module, _) in files().into_iter().filter(|(_, _, module, _)| layers.get(module) == Some(&0)) {
        for (i, line) in code.lines().enumerate() {
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            for word in words {
                let is_runtime = matches!(word, "async" | "await" | "tokio" | "futures_util");
                let is_world = matches!(word, "SystemTime" | "Instant" | "Utc" | "OsRng" | "File") && module != "clock";
                if is_runtime || is_world {
                    found.push(format!("{}:{}: {word}", path.display(), i + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "layer 0 is synchronous and asks for nothing:\n{}", found.join("\n"));
}

#[test]
fn the_table_is_read_as_it_is_written() {
    let layers = layers();
    for (module, layer) in
        [("tree", 0), ("text", 0), ("store", 1), ("agent", 2), ("session", 3), ("rpc", 4), ("daemon", 5), ("lock", 5)]
    {
        assert_eq!(layers.get(module), Some(&layer), "{module} in {layers:?}");
    }
}

#[test]
fn mentions_are_found() {
    for (code, depth, expected) in [
        ("use crate::store;", 1, vec!["store"]),
        ("use crate::{agent::run, store::{file, memory}, text};", 1, vec!["agent", "store", "text"]),
        ("use crate::{\n    rpc,\n};", 1, vec!["rpc"]),
        ("fn f() { crate::session::open() }", 2, vec!["session"]),
        ("use super::agent;", 1, vec!["agent"]),
        ("use super::agent;", 2, vec![]),
        ("use super::super::agent;", 2, vec!["agent"]),
        ("pub(crate) fn f() {}", 1, vec![]),
        ("use my_crate::rpc;", 1, vec![]),
        ("// crate::rpc\n/* crate::rpc /* crate::rpc */ */ let x = \"crate::rpc\";", 1, vec![]),
        ("let q = '\"'; use crate::lock; let r = '\\''; let s: &'static str = r#\"crate::rpc \" \"#;", 1, vec!["lock"]),
    ] {
        let found: Vec<String> = mentions(&code_only(code), depth).into_iter().map(|mention| mention.module).collect();
        assert_eq!(found, expected, "{code}");
    }
}
