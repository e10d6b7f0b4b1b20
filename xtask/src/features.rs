//! `cargo xtask features`: the operators that ontrain has, as the table in README.md.

use anyhow::{Result, bail};
use ontrain::ops::{Entry, entries};

use crate::readme;

/// Print the table of operators, or write it into README.md
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the table into README.md
    #[arg(long)]
    write: bool,
    /// Fail unless README.md has the table as it is now
    #[arg(long, conflicts_with = "write")]
    check: bool,
}

/// The name of the table's markers in README.md.
const PART: &str = "features";

/// Every backend runs the whole kernel set and every operator lowers to it, so a backend is a column of marks.
const BACKENDS: [&str; 3] = ["cpu", "wasm", "webgpu"];

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        if self.check {
            return check();
        }
        if self.write {
            return readme::write(PART, &table());
        }
        print!("{}", table());
        Ok(())
    }
}

/// Fails unless README.md has the table as it is now.
pub(crate) fn check() -> Result<()> {
    if readme::holds(PART, &table())? {
        return Ok(());
    }
    bail!("the table of operators in README.md is out of date: `cargo xtask features --write` brings it up to date")
}

/// The table, by domain and name.
fn table() -> String {
    let mut list: Vec<&Entry> = entries().collect();
    list.sort_by_key(|entry| (entry.domain, entry.name));
    let gradients = list.iter().filter(|entry| entry.gradient).count();
    let mut text = format!("{} operators, {gradients} with a gradient rule.\n\n", list.len());
    text += &format!("| domain | operator | opset versions | forward | gradient | {} |\n", BACKENDS.join(" | "));
    text += &format!("| - | - | - | - | - |{}\n", " - |".repeat(BACKENDS.len()));
    for entry in list {
        let domain = if entry.domain.is_empty() { "ai.onnx" } else { entry.domain };
        let versions: Vec<String> = entry.since.iter().map(ToString::to_string).collect();
        let gradient = if entry.gradient { "✓" } else { "–" };
        let backends = " ✓ |".repeat(BACKENDS.len());
        text += &format!("| {domain} | {} | {} | ✓ | {gradient} |{backends}\n", entry.name, versions.join(", "));
    }
    text
}
