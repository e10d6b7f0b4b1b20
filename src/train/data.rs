//! Data in memory: named arrays, cut into batches in a seeded order.

use crate::error::{Result, bail, err};
use crate::kernel::philox::philox4x32;
use crate::tensor::{Tensor, show_dims};

/// Named arrays whose first dimension counts the same samples.
#[derive(Clone, Debug)]
pub struct Dataset {
    arrays: Vec<(String, Tensor)>,
    len: usize,
}

impl Dataset {
    /// A dataset of these arrays, in this order.
    ///
    /// # Errors
    /// `Input` if there is no array or no sample, if an array has rank 0, if two share a name, or if the first
    /// dimensions differ.
    pub fn new(arrays: Vec<(String, Tensor)>) -> Result<Self> {
        let mut len = None;
        for (i, (name, tensor)) in arrays.iter().enumerate() {
            let Some(&samples) = tensor.shape().first() else {
                return Err(err!(Input, "array \"{name}\" has no samples")
                    .expected("rank 1 or more")
                    .found("a scalar"));
            };
            if arrays[..i].iter().any(|(other, _)| other == name) {
                bail!(Input, "two arrays are named \"{name}\"");
            }
            let (first, wanted) = *len.get_or_insert((name, samples));
            if samples != wanted {
                return Err(err!(Input, "array \"{name}\" has another number of samples than \"{first}\"")
                    .expected(wanted)
                    .found(format!("{samples} ({})", show_dims(tensor.shape()))));
            }
        }
        match len {
            None => Err(err!(Input, "a dataset needs at least one array")),
            Some((name, 0)) => Err(err!(Input, "array \"{name}\" has no samples").expected("1 or more").found(0)),
            Some((_, len)) => Ok(Self { arrays, len }),
        }
    }

    /// The arrays of these names in this order, such as a module's input names; others are left out.
    ///
    /// # Errors
    /// `Input` if one is missing.
    pub fn ordered(mut self, names: &[String]) -> Result<Self> {
        let mut arrays = Vec::with_capacity(names.len());
        for name in names {
            let Some(at) = self.arrays.iter().position(|(n, _)| n == name) else {
                let known: Vec<_> = self.names().map(|n| format!("\"{n}\"")).collect();
                return Err(err!(Input, "the data has no array for input \"{name}\"")
                    .expected(format!("arrays named {}", quoted(names)))
                    .found(known.join(", ")));
            };
            arrays.push(self.arrays.remove(at));
        }
        Self::new(arrays)
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a dataset has samples.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Names of the arrays, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.iter().map(|(name, _)| &**name)
    }

    /// The array of that name.
    pub fn array(&self, name: &str) -> Option<&Tensor> {
        self.arrays.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }

    /// Copies the samples `rows` into `batch`, whose tensors are kept from call to call while the number of rows
    /// stays the same.
    ///
    /// # Errors
    /// `Input` for a row outside the dataset.
    pub fn gather(&self, rows: &[usize], batch: &mut Batch) -> Result<()> {
        if let Some(row) = rows.iter().find(|&&row| row >= self.len) {
            return Err(err!(Input, "no such sample").expected(format!("below {}", self.len)).found(row));
        }
        batch.fit(&self.arrays, rows.len())?;
        for ((_, from), to) in self.arrays.iter().zip(&mut batch.tensors) {
            let size = from.bytes().len() / self.len;
            if size == 0 {
                continue;
            }
            for (&row, to) in rows.iter().zip(to.bytes_mut().chunks_exact_mut(size)) {
                to.copy_from_slice(&from.bytes()[row * size..][..size]);
            }
        }
        Ok(())
    }
}

/// `"a", "b"`, for messages.
fn quoted(names: &[String]) -> String {
    names.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", ")
}

/// One batch: a tensor per array, in the dataset's order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    tensors: Vec<Tensor>,
}

impl Batch {
    /// The tensors, in the dataset's order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.tensors.first().map_or(0, |t| t.shape()[0])
    }

    /// Has nothing been gathered yet?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the tensors hold `rows` samples of `arrays`.
    fn fit(&mut self, arrays: &[(String, Tensor)], rows: usize) -> Result<()> {
        let fits = |(have, (_, want)): (&Tensor, &(String, Tensor))| {
            have.dtype() == want.dtype() && have.shape()[0] == rows && have.shape()[1..] == want.shape()[1..]
        };
        if self.tensors.len() == arrays.len() && self.tensors.iter().zip(arrays).all(fits) {
            return Ok(());
        }
        self.tensors.clear();
        for (_, array) in arrays {
            let shape: Vec<usize> = [rows].iter().chain(&array.shape()[1..]).copied().collect();
            self.tensors.push(Tensor::zeros(array.dtype(), &shape)?);
        }
        Ok(())
    }
}

/// The order in which epoch `epoch` visits `len` samples: Fisher and Yates's shuffle with Philox numbers keyed by seed and
/// epoch, so that any epoch's order can be had without those before it.
pub fn shuffled(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    for i in (1..len).rev() {
        // A 64-bit number scaled to 0..=i: its bias is below i / 2^64.
        let words = philox4x32(
            [i as u32, (i as u64 >> 32) as u32, epoch as u32, (epoch >> 32) as u32],
            [seed as u32, (seed >> 32) as u32],
        );
        let number = words[0] as u128 | (words[1] as u128) << 32;
        order.swap(i, ((number * (i as u128 + 1)) >> 64) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Dataset {
        let x = Tensor::new(&[4, 2], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
        let y = Tensor::new(&[4], &[0i64, 1, 2, 3]).unwrap();
        Dataset::new(vec![("x".into(), x), ("y".into(), y)]).unwrap()
    }

    #[test]
    fn batches_hold_the_rows_asked_for() {
        let (data, mut batch) = (data(), Batch::default());
        data.gather(&[3, 1], &mut batch).unwrap();
        assert_eq!(batch.tensors()[0], Tensor::new(&[2, 2], &[6.0f32, 7.0, 2.0, 3.0]).unwrap());
        assert_eq!(batch.tensors()[1], Tensor::ints(&[3, 1]));
        let kept = batch.tensors()[0].bytes().as_ptr();
        data.gather(&[0, 2], &mut batch).unwrap();
        assert_eq!(batch.tensors()[1], Tensor::ints(&[0, 2]));
        assert_eq!(kept, batch.tensors()[0].bytes().as_ptr(), "the tensors are reused");
        data.gather(&[2], &mut batch).unwrap();
        assert_eq!((batch.len(), batch.tensors()[0].shape()), (1, &[1, 2][..]));
        assert!(data.gather(&[4], &mut batch).is_err());
    }

    #[test]
    fn ordered_by_input_names() {
        let names: Vec<String> = vec!["y".into(), "x".into()];
        assert_eq!(data().ordered(&names).unwrap().names().collect::<Vec<_>>(), ["y", "x"]);
        let e = data().ordered(&["input".to_owned()]).unwrap_err();
        assert_eq!(
            e.to_string(),
            "the data has no array for input \"input\"; expected arrays named \"input\"; found \"x\", \"y\""
        );
    }

    #[test]
    fn bad_arrays() {
        let array =
            |name: &str, shape: &[usize]| (name.to_owned(), Tensor::zeros(crate::tensor::DType::F32, shape).unwrap());
        let fails = |arrays| Dataset::new(arrays).unwrap_err().to_string();
        assert!(fails(vec![]).contains("at least one array"));
        assert!(fails(vec![array("a", &[])]).contains("scalar"));
        assert!(fails(vec![array("a", &[0, 3])]).contains("no samples"));
        assert!(fails(vec![array("a", &[2]), array("a", &[2])]).contains("two arrays"));
        assert!(fails(vec![array("a", &[2]), array("b", &[3, 1])]).contains("expected 2; found 3 ([3,1])"));
    }

    #[test]
    fn shuffles() {
        let a = shuffled(1000, 7, 0);
        let mut sorted = a.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..1000), "a permutation");
        assert_eq!(a, shuffled(1000, 7, 0));
        assert_ne!(a, shuffled(1000, 7, 1));
        assert_ne!(a, shuffled(1000, 8, 0));
        // Each sample is as likely in the first as in the second half.
        let first = (0..2000).filter(|&epoch| shuffled(8, 1, epoch)[0] < 4).count();
        assert!((900..1100).contains(&first), "{first}");
    }
}
