//! What goes to stdout and stderr, and how a run ends.

use ontrain::error::{Error, Kind};
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;

/// Why a verb did not finish.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The engine or a file said no: exit code 1.
    Error(Error),
    /// The command line asks for something that makes no sense: exit code 2.
    Usage(String),
    /// Ctrl-C, after saving: exit code 130, as shells have it.
    Interrupted,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Stop>;

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Stop::Error(e)
    }
}

impl Stop {
    /// Says why on stderr; gives the exit code.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        let (kind, message, code) = match self {
            Stop::Error(e) => (e.kind().name(), e.to_string(), 1),
            Stop::Usage(message) => ("Usage", message.clone(), 2),
            Stop::Interrupted => return ExitCode::from(130),
        };
        complain(&if json {
            json!({"error": {"kind": kind, "message": message}}).to_string()
        } else {
            format!("error[{kind}]: {message}")
        });
        ExitCode::from(code)
    }
}

/// A line on stdout. That nobody reads it any more (a closed pipe) must not end a training.
pub(crate) fn say(line: impl AsRef<str>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", line.as_ref()).and_then(|()| out.flush());
}

/// A line of JSON on stdout.
pub(crate) fn say_json(value: &Value) {
    say(value.to_string());
}

/// A line on stderr.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// A file that cannot be read.
pub(crate) fn cannot_read(path: &std::path::Path, e: impl std::fmt::Display) -> Error {
    Error::new(Kind::Load, format!("cannot read {}: {e}", path.display()))
}

/// `1.2 MB`, in powers of 1000.
pub(crate) fn bytes(n: usize) -> String {
    let (mut value, mut unit) = (n as f64, "B");
    for next in ["kB", "MB", "GB"] {
        if value >= 1000.0 {
            (value, unit) = (value / 1000.0, next);
        }
    }
    if unit == "B" { format!("{n} B") } else { format!("{value:.1} {unit}") }
}

/// `1 thing`, `2 things`.
pub(crate) fn count(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}
