//! `AttributeProto` ⇄ [`Attribute`].

use super::external::ExternalData;
use super::proto::AttributeProto;
use super::proto::attribute_proto::AttributeType;
use super::tensor;
use crate::error::{Result, bail};
use crate::graph::Attribute;
use std::sync::Arc;

/// The value of an attribute. Kinds that ontrain does not compute with keep their name only.
pub(super) fn decode(proto: AttributeProto, external: &dyn ExternalData) -> Result<Attribute> {
    if !proto.ref_attr_name.is_empty() {
        bail!(Load, "attribute \"{}\" refers to an attribute of a function, but stands in none", proto.name);
    }
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
    Ok(match kind(&proto)? {
        // An absent number is a zero: writers of proto3 leave zeros out.
        AttributeType::Float => Attribute::Float(proto.f.unwrap_or(0.0)),
        AttributeType::Int => Attribute::Int(proto.i.unwrap_or(0)),
        AttributeType::String => match text(proto.s.unwrap_or_default()) {
            Some(text) => Attribute::String(text),
            None => Attribute::Other("string that is not UTF-8"),
        },
        AttributeType::Tensor => match proto.t {
            Some(t) => match tensor::decode(&t, external) {
                Ok(t) => Attribute::Tensor(Arc::new(t)),
                Err(e) => return Err(e.at(format!("tensor of attribute \"{}\"", proto.name))),
            },
            None => bail!(Load, "attribute \"{}\" has no tensor", proto.name),
        },
        AttributeType::Floats => Attribute::Floats(proto.floats),
        AttributeType::Ints => Attribute::Ints(proto.ints),
        AttributeType::Strings => match proto.strings.into_iter().map(text).collect() {
            Some(strings) => Attribute::Strings(strings),
            None => Attribute::Other("strings that are not UTF-8"),
        },
        AttributeType::Graph => Attribute::Other("graph"),
        AttributeType::Tensors => Attribute::Other("tensors"),
        AttributeType::Graphs => Attribute::Other("graphs"),
        AttributeType::SparseTensor => Attribute::Other("sparse tensor"),
        AttributeType::SparseTensors => Attribute::Other("sparse tensors"),
        AttributeType::TypeProto => Attribute::Other("type"),
        AttributeType::TypeProtos => Attribute::Other("types"),
        AttributeType::Undefined => bail!(Load, "attribute \"{}\" has neither type nor value", proto.name),
    })
}

/// The declared type, or (files of IR version 1) the type of the field that is filled.
fn kind(proto: &AttributeProto) -> Result<AttributeType> {
    let declared = match AttributeType::try_from(proto.r#type) {
        Ok(AttributeType::Undefined) => None,
        Ok(kind) => Some(kind),
        Err(_) => bail!(Load, "attribute \"{}\" has type {}, which ONNX does not define", proto.name, proto.r#type),
    };
    let filled = [
        (proto.f.is_some(), AttributeType::Float),
        (proto.i.is_some(), AttributeType::Int),
        (proto.s.is_some(), AttributeType::String),
        (proto.t.is_some(), AttributeType::Tensor),
        (!proto.floats.is_empty(), AttributeType::Floats),
        (!proto.ints.is_empty(), AttributeType::Ints),
        (!proto.strings.is_empty(), AttributeType::Strings),
    ];
    let mut filled = filled.into_iter().filter_map(|(is, kind)| is.then_some(kind));
    let first = filled.next();
    if filled.next().is_some() || declared.is_some_and(|d| first.is_some_and(|f| f != d)) {
        bail!(Load, "attribute \"{}\" has values of several types", proto.name);
    }
    Ok(declared.or(first).unwrap_or(AttributeType::Undefined))
}

/// The message of an attribute; an `Unsupported` error for one that was carried by name only.
pub(super) fn encode(name: &str, value: &Attribute) -> Result<AttributeProto> {
    let mut proto = AttributeProto { name: name.into(), ..AttributeProto::default() };
    let kind = match value {
        Attribute::Float(f) => {
            proto.f = Some(*f);
            AttributeType::Float
        }
        Attribute::Int(i) => {
            proto.i = Some(*i);
            AttributeType::Int
        }
        Attribute::String(s) => {
            proto.s = Some(s.clone().into_bytes());
            AttributeType::String
        }
        Attribute::Tensor(t) => {
            proto.t = Some(Box::new(tensor::encode("", t)));
            AttributeType::Tensor
        }
        Attribute::Floats(v) => {
            proto.floats = v.clone();
            AttributeType::Floats
        }
        Attribute::Ints(v) => {
            proto.ints = v.clone();
            AttributeType::Ints
        }
        Attribute::Strings(v) => {
            proto.strings = v.iter().map(|s| s.clone().into_bytes()).collect();
            AttributeType::Strings
        }
        Attribute::Other(kind) => bail!(Unsupported, "attribute \"{name}\" holds a {kind}, which cannot be written"),
    };
    proto.r#type = kind as i32;
    Ok(proto)
}
