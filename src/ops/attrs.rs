//! Reading the attributes of a node.

use crate::error::{Result, bail, err};
use crate::graph::{Attribute, Node};
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::sync::Arc;

/// A node to be read: its attributes, checked, each asked for by name. What was not asked for in
/// the end is an error: an attribute that is ignored would be a wrong result in silence.
pub struct Spec<'a> {
    node: &'a Node,
    since: i64,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Spec<'a> {
    pub(super) fn new(node: &'a Node, since: i64) -> Self {
        Self { node, since, asked: RefCell::default() }
    }

    /// The version of the operator: the opset that last changed it.
    pub fn since(&self) -> i64 {
        self.since
    }

    /// The node.
    pub fn node(&self) -> &'a Node {
        self.node
    }

    fn get(&self, name: &'static str) -> Option<&'a Attribute> {
        self.asked.borrow_mut().push(name);
        self.node.attributes.get(name)
    }

    fn wrong<T>(&self, name: &str, want: &str, found: &Attribute) -> Result<T> {
        Err(err!(Graph, "attribute {name} has the wrong type").expected(want).found(found))
    }

    /// An integer, if it is there.
    pub fn int_opt(&self, name: &'static str) -> Result<Option<i64>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Int(i)) => Ok(Some(*i)),
            Some(other) => self.wrong(name, "an integer", other),
        }
    }

    /// An integer with a default.
    pub fn int(&self, name: &'static str, default: i64) -> Result<i64> {
        Ok(self.int_opt(name)?.unwrap_or(default))
    }

    /// An integer used as a flag, with a default.
    pub fn flag(&self, name: &'static str, default: bool) -> Result<bool> {
        Ok(self.int(name, default as i64)? != 0)
    }

    /// A list of integers, if it is there.
    pub fn ints_opt(&self, name: &'static str) -> Result<Option<Vec<i64>>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Ints(v)) => Ok(Some(v.clone())),
            Some(other) => self.wrong(name, "a list of integers", other),
        }
    }

    /// A float, if it is there.
    pub fn float_opt(&self, name: &'static str) -> Result<Option<f32>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Float(x)) => Ok(Some(*x)),
            Some(other) => self.wrong(name, "a float", other),
        }
    }

    /// A list of floats, if it is there.
    pub fn floats_opt(&self, name: &'static str) -> Result<Option<Vec<f32>>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Floats(v)) => Ok(Some(v.clone())),
            Some(other) => self.wrong(name, "a list of floats", other),
        }
    }

    /// A float with a default.
    pub fn float(&self, name: &'static str, default: f32) -> Result<f32> {
        Ok(self.float_opt(name)?.unwrap_or(default))
    }

    /// A string with a default.
    pub fn string(&self, name: &'static str, default: &'a str) -> Result<&'a str> {
        match self.get(name) {
            None => Ok(default),
            Some(Attribute::String(s)) => Ok(s),
            Some(other) => self.wrong(name, "a string", other),
        }
    }

    /// One of several words, with the first as default.
    pub fn choice<T: Copy>(&self, name: &'static str, words: &[(&'static str, T)]) -> Result<T> {
        let word = self.string(name, words[0].0)?;
        match words.iter().find(|(w, _)| *w == word) {
            Some(&(_, value)) => Ok(value),
            None => {
                let known: Vec<_> = words.iter().map(|(w, _)| *w).collect();
                Err(err!(Unsupported, "attribute {name}").expected(known.join(" or ")).found(format!("{word:?}")))
            }
        }
    }

    /// A tensor, if it is there.
    pub fn tensor_opt(&self, name: &'static str) -> Result<Option<Arc<Tensor>>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Tensor(t)) => Ok(Some(t.clone())),
            Some(other) => self.wrong(name, "a tensor", other),
        }
    }

    /// Says that an attribute is known and changes nothing here.
    pub fn ignore(&self, name: &'static str) {
        self.asked.borrow_mut().push(name);
    }

    /// Fails if the node has an attribute that nobody asked for.
    pub(super) fn finish(&self) -> Result<()> {
        let asked = self.asked.borrow();
        if let Some(name) = self.node.attributes.keys().find(|name| !asked.contains(&name.as_str())) {
            bail!(Unsupported, "attribute {name} is not one that {} version {} has", self.node.op_type, self.since);
        }
        Ok(())
    }
}
