//! What says how good a model is, beside its loss.

use crate::error::{Result, bail, err};
use crate::graph::{Attribute, Graph};
use crate::tensor::{Tensor, show_dims};

/// Right answers of all answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Answers that are right.
    pub correct: u64,
    /// All answers.
    pub total: u64,
}

impl Tally {
    /// The share of right answers in 0..=1; `None` of no answers.
    pub fn accuracy(self) -> Option<f64> {
        (self.total > 0).then(|| self.correct as f64 / self.total as f64)
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.correct += other.correct;
        self.total += other.total;
    }
}

/// Counts how often the class with the largest score is the label. `scores` `[N, C, d…]` are floating, `labels`
/// `[N, d…]` integers; labels equal to `ignore_index` do not count. Of equal scores the first wins; NaN never does.
///
/// # Errors
/// `Input` if dtypes or shapes do not fit, or a label is out of range.
pub fn accuracy(scores: &Tensor, labels: &Tensor, ignore_index: Option<i64>) -> Result<Tally> {
    let (Some(numbers), true) = (labels.to_i64s(), scores.dtype().is_float()) else {
        return Err(err!(Input, "accuracy compares scores with labels")
            .expected("floating scores, integer labels")
            .found(format!("{} and {}", scores.dtype(), labels.dtype())));
    };
    let fits = scores.shape().len() >= 2 && {
        let rest = || scores.shape()[..1].iter().chain(&scores.shape()[2..]);
        labels.shape().iter().eq(rest())
    };
    if !fits {
        return Err(err!(Input, "accuracy compares scores [N, C, …] with labels [N, …]").found(format!(
            "{} and {}",
            show_dims(scores.shape()),
            show_dims(labels.shape())
        )));
    }
    match scores.as_slice::<f32>() {
        Some(values) => count(values, scores.shape(), &numbers, ignore_index),
        None => count(&scores.to_f64s(), scores.shape(), &numbers, ignore_index),
    }
}

fn count<T: Copy + PartialOrd>(
    scores: &[T],
    shape: &[usize],
    labels: &[i64],
    ignore_index: Option<i64>,
) -> Result<Tally> {
    let classes = shape[1];
    let inner: usize = shape[2..].iter().product();
    let mut tally = Tally::default();
    for (i, &label) in labels.iter().enumerate() {
        if Some(label) == ignore_index {
            continue;
        }
        if !(0..classes as i64).contains(&label) {
            return Err(err!(Input, "a label is out of range")
                .expected(format!("0 to {}", classes.saturating_sub(1)))
                .found(label));
        }
        let at = |class: usize| scores[(i / inner * classes + class) * inner + i % inner];
        #[expect(clippy::eq_op, reason = "NaN is the number that does not equal itself")]
        let is_number = |x: T| x == x;
        let best = (0..classes).filter(|&c| is_number(at(c))).reduce(|best, c| if at(c) > at(best) { c } else { best });
        tally.correct += (best == Some(label as usize)) as u64;
        tally.total += 1;
    }
    Ok(tally)
}

/// Where a model with a cross-entropy loss keeps what its accuracy needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classification {
    /// Position of the scores among the outputs.
    pub scores: usize,
    /// Name of the input with the labels.
    pub labels: String,
    /// A label that does not count.
    pub ignore_index: Option<i64>,
}

impl Classification {
    /// Finds the cross entropy that gives a training or eval model its loss, and makes its scores an output right after
    /// the loss unless they are one already. `None` if the loss is another, or its labels are no input of the model.
    pub fn expose(graph: &mut Graph) -> Option<Self> {
        let loss = *graph.outputs.first()?;
        let is_loss = |op: &str| op == "SoftmaxCrossEntropyLoss" || op == "SoftmaxCrossEntropyLossInternal";
        let node = graph.nodes.iter().find(|n| n.outputs.first() == Some(&Some(loss)) && is_loss(&n.op_type))?;
        let input = |i: usize| node.inputs.get(i).copied().flatten();
        let (scores, labels) = (input(0)?, input(1)?);
        if !graph.inputs.contains(&labels) {
            return None;
        }
        let ignore_index = match node.attributes.get("ignore_index") {
            Some(Attribute::Int(label)) => Some(*label),
            _ => None,
        };
        let at = graph.outputs.iter().position(|id| *id == scores).unwrap_or_else(|| {
            graph.outputs.insert(1, scores);
            1
        });
        Some(Self { scores: at, labels: graph.name_of(labels).to_owned(), ignore_index })
    }

    /// Counts the right answers of a step: its `outputs`, and its inputs as `names` and `tensors`.
    ///
    /// # Errors
    /// As [`accuracy`].
    pub fn tally<'a>(
        &self,
        outputs: &[Tensor],
        mut names: impl Iterator<Item = &'a str>,
        tensors: &[Tensor],
    ) -> Result<Tally> {
        let labels = names.position(|name| name == self.labels).and_then(|i| tensors.get(i));
        match (outputs.get(self.scores), labels) {
            (Some(scores), Some(labels)) => accuracy(scores, labels, self.ignore_index),
            _ => bail!(Input, "accuracy needs output {} and input \"{}\" of the step", self.scores, self.labels),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Node, TensorType};
    use crate::tensor::DType;

    #[test]
    fn counts_right_answers() {
        let scores = Tensor::new(&[3, 2], &[0.5f32, 0.25, f32::NAN, -1.0, 2.0, 2.0]).unwrap();
        let tally = accuracy(&scores, &Tensor::ints(&[0, 1, 1]), None).unwrap();
        assert_eq!(tally, Tally { correct: 2, total: 3 });
        let tally = accuracy(&scores, &Tensor::ints(&[0, -100, 1]), Some(-100)).unwrap();
        assert_eq!(tally, Tally { correct: 1, total: 2 });
        // [N=1, C=2, d=3]: class axis in the middle; and another dtype.
        let scores = Tensor::new(&[1, 2, 3], &[1.0f64, 0.0, 5.0, 0.0, 1.0, 6.0]).unwrap();
        let labels = Tensor::new(&[1, 3], &[0i32, 1, 0]).unwrap();
        assert_eq!(accuracy(&scores, &labels, None).unwrap(), Tally { correct: 2, total: 3 });
        assert_eq!(Tally::default().accuracy(), None);
    }

    #[test]
    fn refusals() {
        let scores = Tensor::new(&[1, 2], &[0.0f32, 1.0]).unwrap();
        let fails = |labels: &Tensor| accuracy(&scores, labels, None).unwrap_err().to_string();
        assert_eq!(fails(&Tensor::ints(&[2])), "a label is out of range; expected 0 to 1; found 2");
        assert!(fails(&Tensor::ints(&[0, 1])).contains("found [1,2] and [2]"));
        assert!(fails(&Tensor::new(&[1], &[0.0f32]).unwrap()).contains("integer labels"));
    }

    #[test]
    fn finds_the_cross_entropy() {
        let mut graph = Graph::new("c", 17);
        let labels = graph.add_input("labels", TensorType::known(DType::I64, &[1])).unwrap();
        let scores = graph.add_input("scores", TensorType::known(DType::F32, &[1, 2])).unwrap();
        let loss = graph.add_value("loss", None).unwrap();
        graph.nodes.push(Node {
            name: String::new(),
            domain: String::new(),
            op_type: "SoftmaxCrossEntropyLoss".into(),
            inputs: vec![Some(scores), Some(labels)],
            outputs: vec![Some(loss)],
            attributes: [("ignore_index".to_owned(), Attribute::Int(3))].into_iter().collect(),
        });
        graph.outputs = vec![loss];
        let found = Classification::expose(&mut graph).unwrap();
        assert_eq!(found, Classification { scores: 1, labels: "labels".into(), ignore_index: Some(3) });
        assert_eq!(graph.outputs, [loss, scores]);
        assert_eq!(Classification::expose(&mut graph), Some(found), "it is an output already");
        graph.nodes.clear();
        assert_eq!(Classification::expose(&mut graph), None);
    }
}
