//! One error type for the whole engine: a closed set of kinds, where it happened, what was
//! expected and what came. JavaScript and the CLI show the same kinds.

use std::fmt;

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong. The set is closed: a program can match on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bytes that are not the file they should be (truncated, malformed, wrong format).
    Load,
    /// A graph that contradicts itself or a request about it (unknown name, cycle, duplicate).
    Graph,
    /// Shapes or dtypes that do not fit together.
    Shape,
    /// Well-formed, but not something ontrain can do. Names node, operator, opset and reason.
    Unsupported,
    /// A gradient that cannot be built; names what blocks the path.
    Gradient,
    /// A plan that cannot be made for these input shapes.
    Plan,
    /// A tensor handed to a step with the wrong name, dtype, shape or values.
    Input,
    /// A call in the wrong state (no eval model, no optimizer, released object, …).
    State,
    /// The device failed or lacks something.
    Device,
    /// A checkpoint that is damaged or belongs to another model.
    Checkpoint,
}

impl Kind {
    /// The kind's name, as JavaScript and `--json` show it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Load => "Load",
            Kind::Graph => "Graph",
            Kind::Shape => "Shape",
            Kind::Unsupported => "Unsupported",
            Kind::Gradient => "Gradient",
            Kind::Plan => "Plan",
            Kind::Input => "Input",
            Kind::State => "State",
            Kind::Device => "Device",
            Kind::Checkpoint => "Checkpoint",
        }
    }
}

/// What went wrong, where, what was expected and what came.
#[derive(Clone, PartialEq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq)]
struct Inner {
    kind: Kind,
    at: Option<String>,
    message: String,
    expected: Option<String>,
    found: Option<String>,
}

impl Error {
    /// An error of `kind`; `message` is one sentence without a full stop.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        let inner = Inner { kind, at: None, message: message.into(), expected: None, found: None };
        Self(Box::new(inner))
    }

    /// Says where: a node path such as `Gemm node "fc1"`. The innermost place wins.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.0.at.get_or_insert_with(|| place.into());
        self
    }

    /// Says what was expected.
    #[must_use]
    pub fn expected(mut self, what: impl fmt::Display) -> Self {
        self.0.expected = Some(what.to_string());
        self
    }

    /// Says what came instead.
    #[must_use]
    pub fn found(mut self, what: impl fmt::Display) -> Self {
        self.0.found = Some(what.to_string());
        self
    }

    /// The same error under another kind, for a boundary that knows better.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.0.kind = kind;
        self
    }

    /// The error's kind.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Where it happened, if known.
    pub fn place(&self) -> Option<&str> {
        self.0.at.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { at, message, expected, found, .. } = &*self.0;
        if let Some(at) = at {
            write!(f, "{at}: ")?;
        }
        f.write_str(message)?;
        if let Some(expected) = expected {
            write!(f, "; expected {expected}")?;
        }
        if let Some(found) = found {
            write!(f, "; found {found}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {self}", self.0.kind.name())
    }
}

impl std::error::Error for Error {}

/// `err!(Kind, "format", …)`: an [`Error`] from a format string.
#[macro_export]
macro_rules! err {
    ($kind:ident, $($arg:tt)*) => {
        $crate::error::Error::new($crate::error::Kind::$kind, format!($($arg)*))
    };
}

/// `bail!(Kind, "format", …)`: return that error.
#[macro_export]
macro_rules! bail {
    ($kind:ident, $($arg:tt)*) => {
        return Err($crate::err!($kind, $($arg)*))
    };
}

pub use crate::{bail, err};
