//! The folder order is the order of dependence: a module imports only what stands before it.

use std::fs;
use std::path::{Path, PathBuf};

const ORDER: [&str; 14] = [
    "error",
    "tensor",
    "graph",
    "onnx",
    "checkpoint",
    "kernel",
    "ops",
    "passes",
    "grad",
    "artifacts",
    "plan",
    "backend",
    "train",
    "wasm",
];

fn files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The modules that a line of code names as `crate::module`.
fn imports(line: &str) -> Vec<&'static str> {
    let code = line.split("//").next().unwrap_or("");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let names: Vec<&str> = match rest.strip_prefix('{') {
            Some(group) => {
                group.split(',').map(|part| part.trim().split([':', '}', ' ']).next().unwrap_or("")).collect()
            }
            None => vec![rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("")],
        };
        found.extend(names.iter().filter_map(|name| ORDER.iter().find(|m| *m == name)));
    }
    found
}

/// Test code may look to the right: it is not part of the engine.
fn is_test(path: &Path) -> bool {
    let name = path.file_stem().unwrap().to_string_lossy();
    name.ends_with("tests") || name == "testing" || path.components().any(|c| c.as_os_str() == "tests")
}

#[test]
fn imports_point_to_the_left() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    files(&src, &mut paths);
    assert!(paths.len() > 30, "the walk found too little");
    let mut wrong = Vec::new();
    for path in paths {
        let inside = path.strip_prefix(&src).unwrap();
        let module = inside.components().next().unwrap().as_os_str().to_string_lossy().replace(".rs", "");
        if module == "lib" || is_test(&path) {
            continue;
        }
        let rank =
            ORDER.iter().position(|m| *m == module).unwrap_or_else(|| panic!("{module} has no place in the order"));
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
        for (n, line) in code.lines().enumerate() {
            for name in imports(line) {
                if ORDER.iter().position(|m| *m == name).unwrap() > rank {
                    wrong.push(format!("{}:{}: {module} imports {name}", inside.display(), n + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "imports to the right:\n{}", wrong.join("\n"));
}

#[test]
fn the_walk_sees_imports() {
    assert_eq!(imports("use crate::plan::Plan; // crate::wasm"), ["plan"]);
    assert_eq!(imports("use crate::{graph, ops::Builder};"), ["graph", "ops"]);
}
