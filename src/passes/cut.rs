//! Giving a graph other outputs.

use super::fold::drop_dead;
use crate::error::{Result, bail, err};
use crate::graph::{Graph, ValueId};
use std::collections::HashSet;

/// How many names an error lists.
const LISTED: usize = 30;

/// Makes the values named `outputs` the outputs of the graph, in this order, and drops nodes and
/// initializers that they do not need. Graph inputs stay.
///
/// # Errors
/// `Graph` if a name is not a value of the graph (the error lists those that are), stands there twice, or if
/// there is none.
pub fn cut(graph: &mut Graph, outputs: &[&str]) -> Result<()> {
    if outputs.is_empty() {
        bail!(Graph, "a graph without outputs was asked for");
    }
    let available = available(graph);
    let known: HashSet<ValueId> = available.iter().copied().collect();
    let mut ids = Vec::with_capacity(outputs.len());
    for name in outputs {
        let Some(id) = graph.find(name).filter(|id| known.contains(id)) else {
            return Err(err!(Graph, "the graph has no value \"{name}\"").expected(list(graph, &available)));
        };
        if ids.contains(&id) {
            bail!(Graph, "the output \"{name}\" is asked for twice");
        }
        ids.push(id);
    }
    graph.outputs = ids;
    drop_dead(graph);
    Ok(())
}

/// What can be an output: results of nodes first, those that come last first, then inputs and constants.
fn available(graph: &Graph) -> Vec<ValueId> {
    let results = graph.nodes.iter().rev().flat_map(|n| n.outputs.iter().flatten().copied());
    let given = graph.inputs.iter().copied().chain(graph.initializers.iter().map(|(id, _)| *id));
    let mut seen = HashSet::new();
    graph.outputs.iter().copied().chain(results).chain(given).filter(|id| seen.insert(*id)).collect()
}

fn list(graph: &Graph, ids: &[ValueId]) -> String {
    let names: Vec<String> = ids.iter().take(LISTED).map(|&id| format!("\"{}\"", graph.name_of(id))).collect();
    let more = if ids.len() > LISTED { format!(", … ({} in all)", ids.len()) } else { String::new() };
    format!("one of {}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Node, TensorType};
    use crate::tensor::{DType, Tensor};

    /// h = x + w; y = h + v.
    fn model() -> Graph {
        let mut graph = Graph::new("cut", 17);
        graph.add_input("x", TensorType::known(DType::F32, &[2])).unwrap();
        for name in ["w", "v"] {
            graph.add_initializer(name, Tensor::new(&[2], &[1.0f32, 2.0]).unwrap()).unwrap();
        }
        for (a, b, out) in [("x", "w", "h"), ("h", "v", "y")] {
            let inputs = vec![graph.find(a), graph.find(b)];
            let outputs = vec![Some(graph.add_value(out, None).unwrap())];
            let (name, domain, op_type) = (String::new(), String::new(), "Add".into());
            graph.nodes.push(Node { name, domain, op_type, inputs, outputs, attributes: Default::default() });
        }
        graph.outputs = vec![graph.find("y").unwrap()];
        graph
    }

    #[test]
    fn another_head() {
        let mut graph = model();
        cut(&mut graph, &["h"]).unwrap();
        assert_eq!((graph.nodes.len(), graph.initializers.len(), graph.inputs.len()), (1, 1, 1));
        assert_eq!(graph.name_of(graph.outputs[0]), "h");
        let mut graph = model();
        cut(&mut graph, &["y", "h"]).unwrap();
        assert_eq!((graph.nodes.len(), graph.outputs.len()), (2, 2));
    }

    #[test]
    fn refusals() {
        let fails = |names: &[&str]| format!("{:?}", cut(&mut model(), names).unwrap_err());
        let message = fails(&["z"]);
        assert!(message.contains("no value \"z\"; expected one of \"y\", \"h\", \"x\", \"w\", \"v\""), "{message}");
        assert!(fails(&["h", "h"]).contains("twice"));
        assert!(fails(&[]).contains("without outputs"));
        let mut graph = model();
        cut(&mut graph, &["h"]).unwrap();
        assert!(cut(&mut graph, &["y"]).is_err(), "what was cut off is gone");
    }
}
