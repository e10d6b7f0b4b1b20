//! A graph cut at chosen values.

use super::fold::drop_dead;
use crate::error::{Result, err};
use crate::graph::Graph;

/// Makes the values of these names the outputs of the graph, and drops what they do not need.
///
/// `Graph` error if one does not exist or none is given.
pub fn cut(graph: &mut Graph, outputs: &[&str]) -> Result<()> {
    let known = |graph: &Graph| {
        let written = graph.nodes.iter().flat_map(|n| n.outputs.iter().flatten());
        let names: Vec<_> = written.map(|id| format!("\"{}\"", graph.name_of(*id))).collect();
        let shown = names.len().min(20);
        format!("one of {}{}", names[names.len() - shown..].join(", "), if names.len() > 20 { " (the last 20)" } else { "" })
    };
    if outputs.is_empty() {
        return Err(err!(Graph, "no output is named").expected(known(graph)));
    }
    let mut ids = Vec::new();
    for name in outputs {
        let written = |id: &_| graph.inputs.contains(id) || graph.nodes.iter().any(|n| n.outputs.contains(&Some(*id)));
        let id = graph.find(name).filter(written);
        ids.push(id.ok_or_else(|| err!(Graph, "the model has no value \"{name}\" to give out").expected(known(graph)))?);
    }
    graph.outputs = ids;
    drop_dead(graph);
    Ok(())
}
