//! The table of backend_table.rs for kernels that look at indices: Gather, Scatter, Check.

use crate::backend_table::Case;
use ontrain::kernel::{Check, Gather, Kernel, Scatter, View};
use ontrain::tensor::{DType, Tensor};

/// Indices along an axis of size `n`, negative ones among them if the dtype has them. With `bad`, the last and one before it are
/// out of range.
fn indices(case: &mut Case, dtype: DType, shape: &[usize], n: usize, bad: bool) -> Tensor {
    let unsigned = matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64);
    let count: usize = shape.iter().product();
    let mut at: Vec<f64> = (0..count)
        .map(|_| match (dtype, unsigned) {
            (DType::Bool, _) => case.random.below(2.min(n)) as f64,
            (_, true) => case.random.below(n) as f64,
            _ => case.random.below(2 * n) as f64 - n as f64,
        })
        .collect();
    if bad && count > 0 {
        at[count - 1] = n as f64;
        at[count / 2] = if unsigned { n as f64 + 7.0 } else { -(n as f64) - 1.0 };
    }
    Tensor::from_f64s(dtype, shape, &at).unwrap()
}

const INDEX: [DType; 9] =
    [DType::I64, DType::I32, DType::U8, DType::U64, DType::I8, DType::U32, DType::I16, DType::U16, DType::Bool];

#[test]
fn gather() {
    let data_shape = [4usize, 5, 6];
    let mut n = 0;
    for axis in 0..3 {
        for index_shape in [vec![], vec![1], vec![7], vec![2, 3], vec![0], vec![5, 9]] {
            for dtype in DType::ALL {
                for bad in [false, true] {
                    n += 1;
                    let index_dtype = INDEX[if n % 2 == 0 { 0 } else { n / 2 % INDEX.len() }];
                    let what = format!("axis {axis} indices {index_shape:?} {dtype} {index_dtype} {bad}");
                    let shape = [&data_shape[..axis], &index_shape, &data_shape[axis + 1..]].concat();
                    let kernel = || Kernel::Gather(Gather { axis });
                    let bad = bad && index_dtype != DType::Bool;

                    let mut case = Case::new(format!("gather {what}"));
                    let data = case.numbers(dtype, &data_shape);
                    let at = indices(&mut case, index_dtype, &index_shape, data_shape[axis], bad);
                    let at = case.buffer(&at);
                    let out = case.numbers(dtype, &shape);
                    case.read(data).read(at).write(out).check(kernel(), 0.0);

                    let mut case = Case::new(format!("strided gather {what}"));
                    let data = case.strided(dtype, &data_shape, &[2, 0, 1], -1);
                    let at = indices(&mut case, index_dtype, &index_shape, data_shape[axis], bad);
                    let at = backwards(case.buffer(&at));
                    let axes: Vec<usize> = (0..shape.len()).rev().collect();
                    let out = case.strided(dtype, &shape, &axes, 2);
                    case.read(data).read(at).write(out).check(kernel(), 0.0);
                }
            }
        }
    }
}

/// The same elements from the last to the first along the first axis.
fn backwards(view: View) -> View {
    match view.shape.first() {
        Some(&size) if size > 0 => view.sliced(0, size - 1, -1, size),
        _ => view,
    }
}

/// Sums of many small numbers are rounded once.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1e-2,
        _ => 1e-6,
    }
}

#[test]
fn scatter() {
    let mut n = 0;
    // Few indices and many, few slices and many, for the ways in which a device may add them.
    for data_shape in [[4usize, 5, 6], [3, 40, 5], [50, 30, 20]] {
        for axis in 0..3 {
            for index_shape in [vec![], vec![7], vec![2, 3], vec![0], vec![9, 25]] {
                for dtype in DType::ALL {
                    for strided in [false, true] {
                        n += 1;
                        let count: usize = index_shape.iter().product();
                        if data_shape[0] != 4 && n % 3 > 0 || data_shape[0] == 50 && count < 100 {
                            continue;
                        }
                        let index_dtype = INDEX[if n % 2 == 0 { 0 } else { n / 2 % INDEX.len() }];
                        let bad = n % 5 == 0 && index_dtype != DType::Bool;
                        let what = format!("{data_shape:?} axis {axis} indices {index_shape:?} {dtype} {index_dtype}");
                        let shape = [&data_shape[..axis], &index_shape, &data_shape[axis + 1..]].concat();
                        let mut case = Case::new(format!("scatter {what} bad {bad} strided {strided}"));
                        let at = indices(&mut case, index_dtype, &index_shape, data_shape[axis], bad);
                        let at = case.buffer(&at);
                        let (at, updates, out) = if strided {
                            let axes: Vec<usize> = (0..shape.len()).rev().collect();
                            let updates = case.strided(dtype, &shape, &axes, -1);
                            (backwards(at), updates, case.strided(dtype, &data_shape, &[2, 0, 1], 2))
                        } else {
                            (at, case.numbers(dtype, &shape), case.numbers(dtype, &data_shape))
                        };
                        let kernel = Kernel::Scatter(Scatter { axis });
                        case.read(at).read(updates).write(out).check(kernel, tolerance(dtype));
                    }
                }
            }
        }
    }
}

/// An index that comes often: its updates are added in order.
#[test]
fn scatter_to_one_slice() {
    for (size, count, columns) in [(1000, 600, 3), (2, 600, 3), (1, 5, 70), (700, 33, 40)] {
        for dtype in [DType::F32, DType::F16, DType::I64, DType::U8] {
            let mut case = Case::new(format!("{count} updates of a slice of {size}, {dtype}"));
            let at: Vec<i64> = (0..count).map(|i| if i % 7 == 3 { -1 } else { size as i64 / 2 }).collect();
            let at = case.buffer(&Tensor::ints(&at));
            let updates = case.numbers(dtype, &[count, columns]);
            let data = case.numbers(dtype, &[size, columns]);
            let kernel = Kernel::Scatter(Scatter { axis: 0 });
            case.read(at).read(updates).write(data).check(kernel, tolerance(dtype));
        }
    }
}

#[test]
fn check() {
    for dtype in INDEX {
        for (values, ignore) in [
            (vec![0, 1, 4], None),
            (vec![0, 5, 4], None),
            (vec![9, 1, 4], Some(9)),
            (vec![9, 9, 5], Some(9)),
            (vec![0, 100, 101, 102], Some(-100)),
            (vec![], None),
        ] {
            for reverse in [false, true] {
                let mut case = Case::new(format!("check {values:?} of {dtype} but {ignore:?}"));
                let numbers: Vec<f64> = values.iter().map(|&v: &i32| v.into()).collect();
                let tensor = Tensor::from_f64s(dtype, &[values.len()], &numbers).unwrap();
                let view = case.buffer(&tensor);
                let view = if reverse { backwards(view) } else { view };
                let kernel = Check { what: "label", low: 0, high: 5, ignore };
                case.read(view).check(Kernel::Check(kernel), 0.0);
            }
        }
    }
}

/// Values that only 64 bits hold, against ranges that only 64 bits hold.
#[test]
fn check_of_wide_values() {
    let numbers = [0, 1, -1, i64::MIN, i64::MAX, 1 << 32, -(1 << 32), (1 << 32) + 3, 5 - (1 << 33)];
    for dtype in [DType::I64, DType::U64] {
        for value in numbers {
            for (low, high) in [(0, 4), (i64::MIN, 5), (-(1 << 33), 1 << 33), (1 << 32, i64::MAX), (3, 3), (4, 2)] {
                for ignore in [None, Some(-1), Some(1 << 32)] {
                    let mut case = Case::new(format!("check {value} of {dtype} in {low}..{high} but {ignore:?}"));
                    let bytes: Vec<u8> = value.to_le_bytes().into();
                    let view = case.buffer(&Tensor::from_bytes(dtype, &[1, 1], &bytes).unwrap());
                    let kernel = Check { what: "label", low, high, ignore };
                    case.read(view).check(Kernel::Check(kernel), 0.0);
                }
            }
        }
    }
}

/// Of many values, the first bad one in row-major order is named.
#[test]
fn check_of_many_values() {
    for shape in [vec![300], vec![130, 257], vec![3, 5, 7]] {
        let len: usize = shape.iter().product();
        for bad in [vec![], vec![len - 1], vec![len / 2, len / 3, len - 1], vec![0, 1]] {
            for turned in [false, true] {
                for dtype in [DType::I64, DType::I16] {
                    let mut case = Case::new(format!("check of {shape:?}, bad {bad:?}, turned {turned}, {dtype}"));
                    let mut values: Vec<f64> = (0..len).map(|_| case.random.below(10) as f64).collect();
                    bad.iter().enumerate().for_each(|(k, &at)| values[at] = 100.0 + k as f64);
                    let view = case.buffer(&Tensor::from_f64s(dtype, &shape, &values).unwrap());
                    let axes: Vec<usize> = (0..shape.len()).rev().collect();
                    let view = if turned { backwards(view.permuted(&axes)) } else { view };
                    let kernel = Check { what: "label", low: 0, high: 10, ignore: None };
                    case.read(view).check(Kernel::Check(kernel), 0.0);
                }
            }
        }
    }
}
