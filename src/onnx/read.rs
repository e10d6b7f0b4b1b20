//! `ModelProto` → [`Graph`].

use super::external::ExternalData;
use super::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use super::types::TypeReader;
use super::{attribute, functions, order, tensor};
use crate::error::{Result, bail, err};
use crate::graph::{Attribute, Attributes, Graph, Node, TensorType, ValueId, ValueType};
use crate::tensor::{Dim, Tensor};
use std::collections::HashSet;
use std::sync::Arc;

/// The domain under its one name: `ai.onnx` is `""`.
pub(super) fn domain_of(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// The node as errors name it; the same words as [`Node::path`].
pub(super) fn place_of(node: &NodeProto) -> String {
    let op = &node.op_type;
    match (node.name.as_str(), node.output.iter().find(|name| !name.is_empty())) {
        ("", Some(output)) => format!("{op} node writing \"{output}\""),
        ("", None) => format!("{op} node"),
        (name, _) => format!("{op} node \"{name}\""),
    }
}

/// The graph of a model of `file_size` bytes.
pub(super) fn graph(model: ModelProto, external: &dyn ExternalData, file_size: usize) -> Result<Graph> {
    let Some(mut proto) = model.graph else { bail!(Load, "the file holds no graph: it is not an ONNX model") };
    let mut opsets = functions::opsets(&model.opset_import)?;
    if model.opset_import.is_empty() && model.ir_version < 3 {
        // Before IR version 3 there was nothing to import.
        opsets.insert(String::new(), 1);
    }
    let budget = file_size.saturating_mul(16).saturating_add(64 << 20);
    let nodes = std::mem::take(&mut proto.node);
    let taken = if model.functions.is_empty() { HashSet::new() } else { names(&proto, &nodes) };
    let nodes = functions::inline(nodes, &model.functions, &mut opsets, taken, budget)?;
    let types = TypeReader::new(proto.input.iter().chain(&proto.output).chain(&proto.value_info));
    let mut graph = Graph::default();
    graph.name = std::mem::take(&mut proto.name);
    graph.ir_version = model.ir_version;
    graph.opsets = opsets;
    let mut reader = Reader { graph, types, external };
    reader.inputs(&proto)?;
    reader.initializers(std::mem::take(&mut proto.initializer))?;
    if let Some(sparse) = proto.sparse_initializer.first() {
        let name = sparse.values.as_ref().map_or("", |values| &values.name);
        return Err(err!(Unsupported, "sparse tensors").at(format!("initializer \"{name}\"")));
    }
    reader.nodes(nodes)?;
    reader.outputs(&proto)?;
    reader.value_info(&proto)?;
    Ok(reader.graph)
}

/// Every name of a value.
fn names(proto: &GraphProto, nodes: &[NodeProto]) -> HashSet<String> {
    let of_nodes = nodes.iter().flat_map(|n| n.input.iter().chain(&n.output));
    let infos = proto.input.iter().chain(&proto.output).map(|info| &info.name);
    infos.chain(proto.initializer.iter().map(|t| &t.name)).chain(of_nodes).cloned().collect()
}

struct Reader<'a> {
    graph: Graph,
    types: TypeReader,
    external: &'a dyn ExternalData,
}

impl Reader<'_> {
    fn inputs(&mut self, proto: &GraphProto) -> Result<()> {
        for info in &proto.input {
            let place = || format!("graph input \"{}\"", info.name);
            if info.name.is_empty() {
                bail!(Load, "a graph input has no name");
            }
            let ty = self.types.read(info).map_err(|e| e.at(place()))?;
            if ty.is_none() {
                return Err(err!(Load, "the input has no type").at(place()));
            }
            let id = self.graph.add_value(&info.name, ty).map_err(|e| e.at(place()))?;
            self.graph.inputs.push(id);
        }
        Ok(())
    }

    fn initializers(&mut self, tensors: Vec<TensorProto>) -> Result<()> {
        let inputs: HashSet<ValueId> = self.graph.inputs.iter().copied().collect();
        let mut filled = HashSet::new();
        // One by one, so that a large model is not held twice.
        for proto in tensors {
            let place = || format!("initializer \"{}\"", proto.name);
            if proto.name.is_empty() {
                bail!(Load, "an initializer has no name");
            }
            let tensor = tensor::decode(&proto, self.external).map_err(|e| e.at(place()))?;
            match self.graph.find(&proto.name).filter(|id| inputs.contains(id) && filled.insert(*id)) {
                Some(input) => {
                    self.check_default(input, &tensor).map_err(|e| e.at(place()))?;
                    self.graph.initializers.push((input, Arc::new(tensor)));
                }
                None => {
                    self.graph.add_initializer(&proto.name, tensor).map_err(|e| e.at(place()))?;
                }
            }
        }
        Ok(())
    }

    /// The default of an input must be of the input's type.
    fn check_default(&self, input: ValueId, tensor: &Tensor) -> Result<()> {
        let found = TensorType::of(tensor);
        let fits = self.graph.tensor_type(input).is_some_and(|declared| {
            let fits = |(declared, &size): (&Dim, &usize)| declared.known().is_none_or(|n| n == size);
            declared.dtype == tensor.dtype()
                && declared
                    .shape
                    .as_ref()
                    .is_none_or(|dims| dims.len() == tensor.shape().len() && dims.iter().zip(tensor.shape()).all(fits))
        });
        match fits {
            true => Ok(()),
            false => Err(err!(Shape, "the initializer is not of the type of the graph input of that name")
                .expected(self.graph.show(input))
                .found(found)),
        }
    }

    fn nodes(&mut self, protos: Vec<NodeProto>) -> Result<()> {
        // First every value that a node writes: nodes may stand in any order.
        let mut nodes = Vec::with_capacity(protos.len());
        for proto in protos {
            let place = place_of(&proto);
            let domain = domain_of(&proto.domain);
            if !self.graph.opsets.contains_key(domain) {
                return Err(err!(Load, "the model imports no opset of domain \"{domain}\"").at(place));
            }
            if domain.is_empty() && proto.op_type == "Constant" {
                self.constant(proto).map_err(|e| e.at(place))?;
                continue;
            }
            let outputs: Result<Vec<_>> = proto.output.iter().map(|name| self.output(name)).collect();
            nodes.push((outputs.map_err(|e| e.at(&place))?, proto, place));
        }
        for (outputs, proto, place) in nodes {
            let node = self.node(outputs, proto).map_err(|e| e.at(place))?;
            self.graph.nodes.push(node);
        }
        order::sort(&mut self.graph)
    }

    fn output(&mut self, name: &str) -> Result<Option<ValueId>> {
        if name.is_empty() { Ok(None) } else { self.graph.add_value(name, None).map(Some) }
    }

    fn node(&self, outputs: Vec<Option<ValueId>>, proto: NodeProto) -> Result<Node> {
        let input = |name: &String| match (name.as_str(), self.graph.find(name)) {
            ("", _) => Ok(None),
            (_, Some(id)) => Ok(Some(id)),
            _ => Err(err!(Graph, "the input \"{name}\" is written by no node, nor is it a graph input or initializer")),
        };
        let inputs: Result<Vec<_>> = proto.input.iter().map(input).collect();
        let inputs = inputs?;
        let mut attributes = Attributes::new();
        for attribute in proto.attribute {
            let name = attribute.name.clone();
            let value = attribute::decode(attribute, self.external)?;
            if attributes.insert(name.clone(), value).is_some() {
                bail!(Graph, "the attribute \"{name}\" is given twice");
            }
        }
        let domain = domain_of(&proto.domain).to_owned();
        Ok(Node { name: proto.name, domain, op_type: proto.op_type, inputs, outputs, attributes })
    }

    /// A Constant node is an initializer in another place.
    fn constant(&mut self, proto: NodeProto) -> Result<()> {
        let [output] = proto.output.as_slice() else { bail!(Load, "a Constant must have one output") };
        let found = proto.attribute.len();
        let Ok([attribute]) = <[_; 1]>::try_from(proto.attribute) else {
            return Err(err!(Load, "bad number of attributes").expected("1").found(found));
        };
        let name = attribute.name.clone();
        let tensor = match (name.as_str(), attribute::decode(attribute, self.external)?) {
            ("value", Attribute::Tensor(t)) => Arc::unwrap_or_clone(t),
            ("value_float", Attribute::Float(x)) => Tensor::scalar(x),
            ("value_floats", Attribute::Floats(v)) => Tensor::new(&[v.len()], &v)?,
            ("value_int", Attribute::Int(i)) => Tensor::scalar(i),
            ("value_ints", Attribute::Ints(v)) => Tensor::ints(&v),
            ("value_string" | "value_strings", _) => bail!(Unsupported, "constants of strings"),
            ("sparse_value", _) => bail!(Unsupported, "sparse constants"),
            _ => bail!(Load, "attribute \"{name}\" is not one of a Constant, or of the wrong type"),
        };
        match output.is_empty() {
            true => bail!(Load, "a Constant must have one output"),
            false => self.graph.add_initializer(output, tensor).map(|_| ()),
        }
    }

    fn outputs(&mut self, proto: &GraphProto) -> Result<()> {
        for info in &proto.output {
            let place = || format!("graph output \"{}\"", info.name);
            let Some(id) = self.graph.find(&info.name) else {
                return Err(err!(Graph, "no node writes this output").at(place()));
            };
            let ty = self.types.read(info).map_err(|e| e.at(place()))?;
            self.declare(id, ty);
            self.graph.outputs.push(id);
        }
        Ok(())
    }

    fn value_info(&mut self, proto: &GraphProto) -> Result<()> {
        for info in &proto.value_info {
            // Exporters also leave types of values that are gone.
            let Some(id) = self.graph.find(&info.name) else { continue };
            match self.types.read(info) {
                Ok(ty) => self.declare(id, ty),
                // Whoever needs that value will say what it cannot do.
                Err(e) if e.kind() == crate::error::Kind::Unsupported => {}
                Err(e) => return Err(e.at(format!("value \"{}\"", info.name))),
            }
        }
        Ok(())
    }

    /// Notes a declared type, unless the value has one already.
    fn declare(&mut self, id: ValueId, ty: Option<ValueType>) {
        let known = &mut self.graph.value_mut(id).ty;
        if known.is_none() {
            *known = ty;
        }
    }
}
