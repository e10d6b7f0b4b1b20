//! Inlining of model-local functions.

use super::proto::{AttributeProto, FunctionProto, NodeProto, OperatorSetIdProto};
use super::read::{domain_of, place_of};
use crate::error::{Result, bail, err};
use prost::Message;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Deepest nesting of calls. Exporters nest a handful.
const MAX_DEPTH: usize = 64;

/// What identifies a function: domain, name, overload.
type Key<'a> = (&'a str, &'a str, &'a str);

/// A function with its opset imports.
struct Function<'a> {
    proto: &'a FunctionProto,
    opsets: BTreeMap<String, i64>,
}

/// `(domain, version)` by domain. Repeating an import is harmless, contradicting one is not.
pub(super) fn opsets(imports: &[OperatorSetIdProto]) -> Result<BTreeMap<String, i64>> {
    let mut opsets = BTreeMap::new();
    for import in imports {
        let domain = domain_of(&import.domain);
        let known = *opsets.entry(domain.to_owned()).or_insert(import.version);
        if import.version < 1 {
            bail!(Load, "opset {} of domain \"{domain}\" is imported, which cannot exist", import.version);
        }
        if known != import.version {
            bail!(Load, "opsets {known} and {} of domain \"{domain}\" are both imported", import.version);
        }
    }
    Ok(opsets)
}

/// Replaces every call of a local function by the function's nodes. `opsets` are the model's and follow;
/// `taken` are the names in use; `budget` bounds the bytes that inlining may write, since a short file can
/// ask for endless copies.
pub(super) fn inline(
    nodes: Vec<NodeProto>,
    functions: &[FunctionProto],
    opsets: &mut BTreeMap<String, i64>,
    taken: HashSet<String>,
    budget: usize,
) -> Result<Vec<NodeProto>> {
    if functions.is_empty() {
        return Ok(nodes);
    }
    let mut table = HashMap::new();
    let mut bodies = Vec::with_capacity(functions.len());
    for proto in functions {
        let place = || format!("function \"{}\"", proto.name);
        bodies.push(Function { proto, opsets: self::opsets(&proto.opset_import).map_err(|e| e.at(place()))? });
        let key = (domain_of(&proto.domain), proto.name.as_str(), proto.overload.as_str());
        if table.insert(key, bodies.len() - 1).is_some() {
            return Err(err!(Graph, "the function is defined twice").at(place()));
        }
    }
    let mut inliner = Inliner {
        functions: &bodies,
        table: &table,
        opsets,
        taken,
        budget,
        open: Vec::new(),
        renamed: 0,
        nodes: Vec::new(),
    };
    for node in nodes {
        inliner.place(node)?;
    }
    let nodes = inliner.nodes;
    // Domains that only named functions are gone with them.
    let used: HashSet<&str> = nodes.iter().map(|n| domain_of(&n.domain)).collect();
    let of_function: HashSet<&str> = table.keys().map(|key| key.0).collect();
    opsets.retain(|domain, _| {
        domain.is_empty() || used.contains(domain.as_str()) || !of_function.contains(domain.as_str())
    });
    Ok(nodes)
}

struct Inliner<'a> {
    functions: &'a [Function<'a>],
    /// Index into `functions`.
    table: &'a HashMap<Key<'a>, usize>,
    opsets: &'a mut BTreeMap<String, i64>,
    taken: HashSet<String>,
    budget: usize,
    /// The calls that we are inside of.
    open: Vec<usize>,
    renamed: usize,
    nodes: Vec<NodeProto>,
}

impl<'a> Inliner<'a> {
    /// Adds a node of the model, or what it calls.
    fn place(&mut self, node: NodeProto) -> Result<()> {
        let Some(function) = self.find(&node) else {
            self.nodes.push(node);
            return Ok(());
        };
        let place = place_of(&node);
        self.call(function, node).map_err(|e| e.at(place))
    }

    fn find(&self, node: &NodeProto) -> Option<usize> {
        self.table.get(&(domain_of(&node.domain), node.op_type.as_str(), node.overload.as_str())).copied()
    }

    fn call(&mut self, index: usize, call: NodeProto) -> Result<()> {
        let functions = self.functions;
        let Some(function) = functions.get(index) else { return Ok(()) };
        let proto = function.proto;
        if self.open.contains(&index) {
            bail!(Graph, "function \"{}\" calls itself", proto.name);
        }
        if self.open.len() == MAX_DEPTH {
            bail!(Unsupported, "function calls nest deeper than {MAX_DEPTH}");
        }
        self.follow_opsets(function)?;
        self.open.push(index);
        let mut names = self.bind(proto, &call)?;
        let prefix = if call.name.is_empty() { &call.op_type } else { &call.name };
        for node in &proto.node {
            self.charge(node.encoded_len() + size_of::<NodeProto>())?;
            let mut node = node.clone();
            for formal in node.input.iter_mut().chain(&mut node.output) {
                self.rename(&mut names, prefix, formal)?;
            }
            if !node.name.is_empty() {
                self.charge(prefix.len())?;
                node.name = format!("{prefix}/{}", node.name);
            }
            node.attribute = self.resolve(node.attribute, &call.attribute, &proto.attribute_proto)?;
            self.place(node)?;
        }
        self.open.pop();
        Ok(())
    }

    /// The caller's names of the function's inputs and outputs.
    fn bind(&mut self, proto: &FunctionProto, call: &NodeProto) -> Result<HashMap<String, String>> {
        for (formal, actual, what) in [(&proto.input, &call.input, "inputs"), (&proto.output, &call.output, "outputs")]
        {
            if actual.len() > formal.len() {
                return Err(err!(Graph, "the call of function \"{}\" has too many {what}", proto.name)
                    .expected(formal.len())
                    .found(actual.len()));
            }
        }
        let mut names = HashMap::new();
        for (i, formal) in proto.input.iter().enumerate() {
            if names.insert(formal.clone(), call.input.get(i).cloned().unwrap_or_default()).is_some() {
                bail!(Graph, "function \"{}\" has two inputs \"{formal}\"", proto.name);
            }
        }
        // An unwanted output gets a name like the values inside, when a node writes it.
        for (formal, actual) in proto.output.iter().zip(&call.output).filter(|(_, actual)| !actual.is_empty()) {
            if let Some(given) = names.get(formal).filter(|_| proto.input.contains(formal)) {
                // The function hands an input through.
                let (input, output) = (vec![given.clone()], vec![actual.clone()]);
                self.nodes.push(NodeProto { op_type: "Identity".into(), input, output, ..NodeProto::default() });
            } else if names.insert(formal.clone(), actual.clone()).is_some() {
                bail!(Graph, "function \"{}\" has two outputs \"{formal}\"", proto.name);
            }
        }
        Ok(names)
    }

    /// The name that a value of the function has in the model.
    fn rename(&mut self, names: &mut HashMap<String, String>, prefix: &str, formal: &mut String) -> Result<()> {
        if formal.is_empty() {
            return Ok(());
        }
        if let Some(actual) = names.get(formal) {
            self.charge(actual.len())?;
            actual.clone_into(formal);
            return Ok(());
        }
        self.charge(prefix.len())?;
        let stem = format!("{prefix}/{formal}");
        let mut fresh = stem.clone();
        while !self.taken.insert(fresh.clone()) {
            // One count for all names, or a million calls would try a million numbers each.
            self.renamed += 1;
            fresh = format!("{stem}_{}", self.renamed);
        }
        names.insert(std::mem::replace(formal, fresh.clone()), fresh);
        Ok(())
    }

    /// Puts the caller's attributes, or the function's defaults, where the body refers to them. A reference
    /// to an attribute that neither gives leaves the body's attribute out.
    fn resolve(
        &mut self,
        body: Vec<AttributeProto>,
        call: &[AttributeProto],
        defaults: &[AttributeProto],
    ) -> Result<Vec<AttributeProto>> {
        let mut resolved = Vec::with_capacity(body.len());
        for attribute in body {
            if attribute.ref_attr_name.is_empty() {
                resolved.push(attribute);
                continue;
            }
            let given = call.iter().chain(defaults).find(|a| a.name == attribute.ref_attr_name);
            if let Some(given) = given {
                self.charge(given.encoded_len())?;
                resolved.push(AttributeProto { name: attribute.name, ..given.clone() });
            }
        }
        Ok(resolved)
    }

    /// The body's operators must mean in the model what they mean in the function.
    fn follow_opsets(&mut self, function: &Function<'a>) -> Result<()> {
        for node in &function.proto.node {
            let domain = domain_of(&node.domain);
            if self.find(node).is_some() {
                continue;
            }
            let Some(&version) = function.opsets.get(domain) else {
                bail!(Load, "function \"{}\" imports no opset of domain \"{domain}\"", function.proto.name);
            };
            let of_model = *self.opsets.entry(domain.to_owned()).or_insert(version);
            if of_model != version {
                let name = &function.proto.name;
                return Err(err!(Unsupported, "function \"{name}\" uses another opset of \"{domain}\" than the model")
                    .expected(of_model)
                    .found(version));
            }
        }
        Ok(())
    }

    fn charge(&mut self, bytes: usize) -> Result<()> {
        match self.budget.checked_sub(bytes) {
            Some(rest) => self.budget = rest,
            None => bail!(Load, "the model's functions expand without measure"),
        }
        Ok(())
    }
}
