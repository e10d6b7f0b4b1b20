//! Which initializers are trained, which travel frozen, which stay constants.

use super::Options;
use crate::error::{Result, bail, err};
use crate::graph::{Graph, ValueId};
use std::collections::HashSet;

/// The chosen parameters, in the order of the model's initializers.
pub(super) struct Chosen {
    /// Value and whether it is trained.
    pub(super) parameters: Vec<(ValueId, bool)>,
}

/// Does a name match a glob? `*` stands for any run of characters, `?` for one.
pub(crate) fn glob(pattern: &str, name: &str) -> bool {
    let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // The usual two-pointer match: on a mismatch the last star takes one character more.
    let (mut i, mut j, mut star) = (0, 0, None);
    while j < n.len() {
        if i < p.len() && p[i] == '*' {
            star = Some((i, j));
            i += 1;
        } else if i < p.len() && (p[i] == '?' || p[i] == n[j]) {
            i += 1;
            j += 1;
        } else if let Some((si, sj)) = star {
            i = si + 1;
            j = sj + 1;
            star = Some((si, j));
        } else {
            return false;
        }
    }
    p[i..].iter().all(|&c| c == '*')
}

fn is_glob(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Resolves the two lists of `options` on `graph`.
pub(super) fn choose(graph: &Graph, options: &Options) -> Result<Chosen> {
    let statistics = running_statistics(graph);
    let exact = |list: &[String]| -> Result<HashSet<ValueId>> {
        let mut ids = HashSet::new();
        for name in list.iter().filter(|n| graph.find(n).is_some() || !is_glob(n)) {
            ids.insert(parameter(graph, name)?);
        }
        Ok(ids)
    };
    let (train, freeze) = (exact(&options.requires_grad)?, exact(&options.frozen_params)?);
    if let Some(id) = train.intersection(&freeze).next() {
        bail!(Graph, "parameter \"{}\" stands in both requires_grad and frozen_params", graph.name_of(*id));
    }
    if let Some(id) = train.iter().find(|id| statistics.contains(id)) {
        bail!(
            Graph,
            "\"{}\" is a running statistic of BatchNormalization: it is updated, not trained",
            graph.name_of(*id)
        );
    }
    let matches = |list: &[String], id: ValueId| {
        list.iter().any(|p| is_glob(p) && graph.find(p).is_none() && glob(p, graph.name_of(id)))
    };
    let mut parameters = Vec::new();
    for (id, tensor) in &graph.initializers {
        let candidate = tensor.dtype().is_float() && !tensor.shape().is_empty() && !statistics.contains(id);
        if train.contains(id) {
            parameters.push((*id, true));
        } else if freeze.contains(id) || statistics.contains(id) || matches(&options.frozen_params, *id) {
            parameters.push((*id, false));
        } else if candidate && matches(&options.requires_grad, *id) {
            parameters.push((*id, true));
        }
    }
    let globs =
        options.requires_grad.iter().chain(&options.frozen_params).filter(|p| is_glob(p) && graph.find(p).is_none());
    for pattern in globs {
        if !graph.initializers.iter().any(|(id, _)| glob(pattern, graph.name_of(*id))) {
            return Err(err!(Graph, "no parameter matches \"{pattern}\"").expected(known_names(graph)));
        }
    }
    if !parameters.iter().any(|(_, trained)| *trained) {
        return Err(err!(Graph, "requires_grad names no trainable parameter").expected(known_names(graph)));
    }
    Ok(Chosen { parameters })
}

/// The initializer of that name.
fn parameter(graph: &Graph, name: &str) -> Result<ValueId> {
    let id = graph.find(name).filter(|id| graph.initializer(*id).is_some());
    id.ok_or_else(|| {
        let what = if graph.find(name).is_some() {
            "is not an initializer of the model"
        } else {
            "does not exist in the model"
        };
        err!(Graph, "parameter \"{name}\" {what}").expected(known_names(graph))
    })
}

/// `one of "fc1.weight", "fc1.bias", … (12 in all)`.
fn known_names(graph: &Graph) -> String {
    let names: Vec<String> = graph
        .initializers
        .iter()
        .filter(|(_, t)| t.dtype().is_float())
        .map(|(id, _)| format!("\"{}\"", graph.name_of(*id)))
        .collect();
    match names.len() {
        0 => "a model with floating initializers".into(),
        n if n > 20 => format!("one of {}, … ({n} in all)", names[..20].join(", ")),
        _ => format!("one of {}", names.join(", ")),
    }
}

/// Running mean and variance of every BatchNormalization.
fn running_statistics(graph: &Graph) -> HashSet<ValueId> {
    let norms = graph.nodes.iter().filter(|n| n.domain.is_empty() && n.op_type == "BatchNormalization");
    norms
        .flat_map(|n| n.inputs.iter().skip(3).take(2).flatten().copied())
        .filter(|id| graph.initializer(*id).is_some())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn globs() {
        for (pattern, name, yes) in [
            ("*", "fc1.weight", true),
            ("fc?.*", "fc1.weight", true),
            ("fc?.*", "fc12.weight", false),
            ("*.weight", "a.b.weight", true),
            ("*.weight", "a.b.bias", false),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1c", false),
            ("", "", true),
        ] {
            assert_eq!(glob(pattern, name), yes, "{pattern} {name}");
        }
    }
}
