//! The parts of README.md that are printed by a verb. Each stands between `<!-- name -->` and `<!-- /name -->`.

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::sh;

fn path() -> PathBuf {
    sh::root().join("README.md")
}

fn load() -> Result<String> {
    String::from_utf8(sh::read_file(&path())?).context("README.md is not UTF-8")
}

/// Puts `text` between the markers of the part `name`.
pub(crate) fn write(name: &str, text: &str) -> Result<()> {
    let mut readme = load()?;
    let place = place(&readme, name)?;
    readme.replace_range(place, &framed(text));
    sh::write_file(&path(), readme)
}

/// Is `text` what stands between the markers of the part `name`?
pub(crate) fn holds(name: &str, text: &str) -> Result<bool> {
    let readme = load()?;
    Ok(readme[place(&readme, name)?] == framed(text))
}

fn framed(text: &str) -> String {
    format!("\n\n{}\n\n", text.trim())
}

/// Where the part `name` stands, without its markers.
fn place(readme: &str, name: &str) -> Result<Range<usize>> {
    let (open, close) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    let wanted = || format!("README.md must hold {open} and {close} after it, once each");
    ensure!(readme.matches(&open).count() == 1 && readme.matches(&close).count() == 1, wanted());
    let start = readme.find(&open).with_context(wanted)? + open.len();
    let length = readme[start..].find(&close).with_context(wanted)?;
    Ok(start..start + length)
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn parts_are_found_between_their_markers() {
        let readme = "a <!-- x -->old<!-- /x --> b <!-- y --><!-- /y -->";
        assert_eq!(&readme[place(readme, "x").unwrap()], "old");
        assert_eq!(&readme[place(readme, "y").unwrap()], "");
        for broken in ["", "<!-- x -->", "<!-- /x --><!-- x -->", "<!-- x --><!-- x --><!-- /x -->"] {
            assert!(place(broken, "x").is_err(), "{broken}");
        }
    }
}
