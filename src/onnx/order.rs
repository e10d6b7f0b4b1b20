//! Topological order.

use crate::error::{Result, bail};
use crate::graph::{Graph, Node};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Puts the nodes of `graph` in topological order. Nodes that already stand in one do not move.
pub(super) fn sort(graph: &mut Graph) -> Result<()> {
    let producers = graph.producers();
    let inputs_of =
        |node: &Node| -> Vec<usize> { node.inputs.iter().flatten().filter_map(|id| producers[id.index()]).collect() };
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    let mut waits: Vec<usize> = Vec::with_capacity(graph.nodes.len());
    for (reader, node) in graph.nodes.iter().enumerate() {
        let inputs = inputs_of(node);
        waits.push(inputs.len());
        inputs.into_iter().for_each(|writer| readers[writer].push(reader));
    }
    // Of the nodes that are ready, the first in the file goes first.
    let mut ready: BinaryHeap<Reverse<usize>> = (0..waits.len()).filter(|&i| waits[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(waits.len());
    while let Some(Reverse(writer)) = ready.pop() {
        order.push(writer);
        for &reader in &readers[writer] {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    if order.len() < waits.len() {
        let stuck = on_cycle(&waits, |node| inputs_of(&graph.nodes[node]));
        bail!(Graph, "{} depends on its own output", graph.nodes[stuck].path(graph));
    }
    let mut nodes: Vec<Option<Node>> = std::mem::take(&mut graph.nodes).into_iter().map(Some).collect();
    graph.nodes = order.into_iter().filter_map(|i| nodes[i].take()).collect();
    Ok(())
}

/// A node on a cycle. Every node that still waits has an input that waits, so walking from one to the next
/// must come to a node that was seen before, and that one is on a cycle.
fn on_cycle(waits: &[usize], inputs_of: impl Fn(usize) -> Vec<usize>) -> usize {
    let waiting = |node: usize| waits[node] > 0;
    let mut seen = vec![false; waits.len()];
    let mut at = (0..waits.len()).find(|&node| waiting(node));
    let mut last = 0;
    while let Some(node) = at {
        last = node;
        if std::mem::replace(&mut seen[node], true) {
            break;
        }
        at = inputs_of(node).into_iter().find(|&input| waiting(input));
    }
    last
}
