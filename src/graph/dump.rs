//! A graph as text, one line a node: for snapshots, messages and `ontrain inspect`.

use super::{Attribute, Graph, ValueId, ValueType};
use std::fmt;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, ids) in [("input", &self.inputs), ("output", &self.outputs)] {
            for &id in ids {
                writeln!(f, "{title} {}", self.show(id))?;
            }
        }
        for (id, tensor) in &self.initializers {
            writeln!(f, "constant {} = {tensor:?}", self.name_of(*id))?;
        }
        for node in &self.nodes {
            let names = |ids: &[Option<ValueId>]| {
                let names: Vec<&str> = ids.iter().map(|id| id.map_or("-", |id| self.name_of(id))).collect();
                names.join(", ")
            };
            let dot = if node.domain.is_empty() { "" } else { "." };
            write!(f, "{} = {}{dot}{}({})", names(&node.outputs), node.domain, node.op_type, names(&node.inputs))?;
            for (name, value) in &node.attributes {
                write!(f, " {name}={value}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Graph {
    /// `name: float32[batch,10]`.
    pub fn show(&self, id: ValueId) -> String {
        let value = self.value(id);
        match &value.ty {
            Some(ValueType::Tensor(ty)) => format!("{}: {ty}", value.name),
            Some(ValueType::Sequence(dtype)) => format!("{}: seq({dtype})", value.name),
            None => format!("{}: ?", value.name),
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Int(i) => write!(f, "{i}"),
            Attribute::Float(x) => write!(f, "{x}"),
            Attribute::String(s) => write!(f, "{s:?}"),
            Attribute::Tensor(t) => write!(f, "{t:?}"),
            Attribute::Ints(v) => write!(f, "{v:?}"),
            Attribute::Floats(v) => write!(f, "{v:?}"),
            Attribute::Strings(v) => write!(f, "{v:?}"),
            Attribute::Other(kind) => write!(f, "<{kind}>"),
        }
    }
}
