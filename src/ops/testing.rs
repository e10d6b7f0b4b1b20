//! One operator as a test case: inputs and attributes in, values and gradients checked.

use crate::grad::check_gradients;
use crate::graph::{Attribute, Graph, Node, TensorType};
use crate::kernel::RunContext;
use crate::tensor::{DType, Tensor};

/// A graph of one node, its inputs in order.
pub(crate) struct Case {
    domain: &'static str,
    op: &'static str,
    opset: i64,
    inputs: Vec<Option<(String, Tensor, bool)>>,
    attributes: Vec<(&'static str, Attribute)>,
    outputs: usize,
}

impl Case {
    /// A node of ai.onnx at opset 21.
    pub(crate) fn op(op: &'static str) -> Self {
        Self { domain: "", op, opset: 21, inputs: Vec::new(), attributes: Vec::new(), outputs: 1 }
    }

    /// Of another domain.
    pub(crate) fn domain(mut self, domain: &'static str) -> Self {
        self.domain = domain;
        self
    }

    /// At another opset.
    pub(crate) fn opset(mut self, opset: i64) -> Self {
        self.opset = opset;
        self
    }

    /// With more outputs.
    pub(crate) fn outputs(mut self, outputs: usize) -> Self {
        self.outputs = outputs;
        self
    }

    /// With an attribute.
    pub(crate) fn attr(mut self, name: &'static str, value: Attribute) -> Self {
        self.attributes.push((name, value));
        self
    }

    /// With an integer attribute.
    pub(crate) fn int(self, name: &'static str, value: i64) -> Self {
        self.attr(name, Attribute::Int(value))
    }

    /// With a list attribute.
    pub(crate) fn ints(self, name: &'static str, value: &[i64]) -> Self {
        self.attr(name, Attribute::Ints(value.to_vec()))
    }

    /// The next input: floats whose gradient is checked.
    pub(crate) fn input(self, name: &str, shape: &[usize], values: &[f64]) -> Self {
        let tensor = Tensor::from_f64s(DType::F64, shape, values).unwrap();
        self.tensor(name, tensor, true)
    }

    /// The next input: pseudo-random floats in a range, whose gradient is checked.
    pub(crate) fn random(self, name: &str, shape: &[usize], low: f64, high: f64) -> Self {
        let mut state = 0x1234_5678_9ABC_DEFFu64 ^ (self.inputs.len() as u64 * 0x9E37_79B9);
        let values: Vec<f64> = (0..shape.iter().product())
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                low + (high - low) * ((state >> 11) as f64 / (1u64 << 53) as f64)
            })
            .collect();
        self.input(name, shape, &values)
    }

    /// The next input: a constant of the graph, without gradient.
    pub(crate) fn constant(self, name: &str, shape: &[usize], values: &[f64]) -> Self {
        let tensor = Tensor::from_f64s(DType::F64, shape, values).unwrap();
        self.tensor(name, tensor, false)
    }

    /// The next input: constant integers.
    pub(crate) fn indices(self, name: &str, shape: &[usize], values: &[i64]) -> Self {
        self.tensor(name, Tensor::new(shape, values).unwrap(), false)
    }

    /// The next input is left out.
    pub(crate) fn none(mut self) -> Self {
        self.inputs.push(None);
        self
    }

    /// The next input: any tensor.
    pub(crate) fn tensor(mut self, name: &str, tensor: Tensor, differentiate: bool) -> Self {
        self.inputs.push(Some((name.into(), tensor, differentiate)));
        self
    }

    fn graph(&self) -> (Graph, Vec<Tensor>) {
        let mut graph = Graph::new("case", self.opset);
        if !self.domain.is_empty() {
            graph.opsets.insert(self.domain.into(), 1);
        }
        let mut inputs = Vec::new();
        let mut ids = Vec::new();
        for input in &self.inputs {
            ids.push(input.as_ref().map(|(name, tensor, moves)| {
                if *moves {
                    inputs.push(tensor.clone());
                    graph.add_input(name, TensorType::of(tensor)).unwrap()
                } else {
                    graph.add_initializer(name, tensor.clone()).unwrap()
                }
            }));
        }
        let outputs: Vec<_> = (0..self.outputs).map(|o| graph.add_value(&format!("out{o}"), None).unwrap()).collect();
        graph.nodes.push(Node {
            name: "case".into(),
            domain: self.domain.into(),
            op_type: self.op.into(),
            inputs: ids,
            outputs: outputs.iter().copied().map(Some).collect(),
            attributes: self.attributes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
        });
        graph.outputs = outputs;
        (graph, inputs)
    }

    /// Checks the gradient of every differentiable input against finite differences: < 1e-6.
    #[track_caller]
    pub(crate) fn check(self) {
        let (graph, inputs) = self.graph();
        let wrt: Vec<&str> = self.inputs.iter().flatten().filter(|i| i.2).map(|i| &*i.0).collect();
        for check in check_gradients(&graph, &inputs, &wrt, 64).unwrap_or_else(|e| panic!("{}: {e:?}", self.op)) {
            assert!(check.error < 1e-6, "{} {:?}: {check:?}", self.op, self.attributes);
        }
    }

    /// The outputs, by the reference kernels.
    #[track_caller]
    pub(crate) fn run(&self) -> Vec<Tensor> {
        self.try_run().unwrap_or_else(|e| panic!("{}: {e:?}", self.op))
    }

    /// The outputs, or why there are none.
    pub(crate) fn try_run(&self) -> crate::error::Result<Vec<Tensor>> {
        let (graph, inputs) = self.graph();
        let inputs: Vec<_> = inputs.into_iter().map(Some).collect();
        crate::ops::interpret(&graph, &inputs, &RunContext::new(1, 1))
    }

    /// Checks shape and values (to 1e-9) of the first output.
    #[track_caller]
    pub(crate) fn gives(self, shape: &[usize], values: &[f64]) {
        let out = &self.run()[0];
        assert_eq!(out.shape(), shape, "{}", self.op);
        for (got, want) in out.to_f64s().iter().zip(values) {
            assert!(
                (got - want).abs() <= 1e-9 * want.abs().max(1.0) || got == want,
                "{}: {out:?}, want {values:?}",
                self.op
            );
        }
        assert_eq!(out.len(), values.len());
    }

    /// The message of the error that it gives.
    #[track_caller]
    pub(crate) fn fails(&self) -> String {
        match self.try_run() {
            Err(e) => format!("{e:?}"),
            Ok(out) => panic!("{} should fail but gave {out:?}", self.op),
        }
    }
}
