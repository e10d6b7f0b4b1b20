use super::*;
use crate::backend::cpu::threads::set_threads;

/// Numbers in [-1, 1) that look random and are the same on every machine.
pub(crate) fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Seconds that a call of `f` takes: of processor time where the system tells, which other programs disturb
/// less. The clock of that is coarse, so `f` runs many times.
pub(crate) fn measure(mut f: impl FnMut()) -> f64 {
    let now = || {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let spent = stat.split(' ').next().and_then(|s| s.parse::<f64>().ok());
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        spent.map_or_else(|| clock.map_or(0.0, |d| d.as_secs_f64()), |ns| ns * 1e-9)
    };
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let (start, mut calls) = (now(), 0);
        while now() - start < 0.08 {
            for _ in 0..8 {
                f();
            }
            calls += 8;
        }
        best = best.min((now() - start) / f64::from(calls));
    }
    best
}

fn naive(p: &Gemm<'_>, c: &[f32], ldc: usize) -> Vec<f64> {
    let at = |m: &Matrix<'_>, i: usize, j: usize| {
        f64::from(m.data[(m.offset as isize + i as isize * m.row + j as isize * m.col) as usize])
    };
    let mut out: Vec<f64> = c.iter().map(|&x| f64::from(x)).collect();
    for i in 0..p.m {
        for j in 0..p.n {
            let sum: f64 = (0..p.k).map(|k| at(&p.a, i, k) * at(&p.b, k, j)).sum();
            let old = if p.beta == 0.0 { 0.0 } else { f64::from(p.beta) * out[i * ldc + j] };
            let bias = p.row_bias.map_or(0.0, |b| f64::from(b[i])) + p.col_bias.map_or(0.0, |b| f64::from(b[j]));
            out[i * ldc + j] = f64::from(p.alpha) * sum + old + bias;
        }
    }
    out
}

fn check_close(got: &[f32], want: &[f64], k: usize, what: &str) {
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let tolerance = 1e-6 * (4.0 + (k as f64).sqrt() * 2.0);
        assert!((f64::from(g) - w).abs() <= tolerance, "{what}: element {i} is {g}, not {w}");
    }
}

/// All four layouts of the factors, with and without beta and biases, on every instruction set.
fn check_shape(m: usize, n: usize, k: usize) {
    let (a, b) = (noise((m + 3) * (k + 3), 1), noise((n + 3) * (k + 3), 2));
    let (rows, cols) = (noise(m, 3), noise(n, 4));
    for layout in 0..4 {
        let a = Matrix { data: &a, offset: 1, row: k as isize + 1, col: 1 };
        let a = if layout & 1 == 0 { a } else { Matrix { row: 1, col: m as isize + 1, ..a } };
        let b = Matrix { data: &b, offset: 2, row: n as isize + 2, col: 1 };
        let b = if layout & 2 == 0 { b } else { Matrix { row: 1, col: k as isize + 1, ..b } };
        for extras in 0..4 {
            let p = Gemm {
                m,
                n,
                k,
                alpha: if extras == 0 { 1.0 } else { 0.5 },
                beta: [0.0, 1.0, -0.25, 0.0][extras],
                a,
                b,
                row_bias: (extras >= 2).then_some(&rows),
                col_bias: (extras & 1 == 1).then_some(&cols),
            };
            let ldc = n + if extras == 3 { 0 } else { 5 };
            // NaN shows where beta 0 reads C or a tile writes past its edge.
            let mut c = noise(m * ldc, 5);
            if p.beta == 0.0 {
                for row in c.chunks_mut(ldc.max(1)) {
                    row[..n].fill(f32::NAN);
                }
            }
            let want = naive(&p, &c, ldc);
            for isa in Isa::available() {
                let mut got = c.clone();
                let mut scratch = vec![f32::NAN; gemm_scratch(m, n, k)];
                gemm_on(isa, &p, &mut got, ldc, &mut scratch);
                check_close(&got, &want, k, &format!("{isa:?} {m}x{n}x{k} layout {layout} extras {extras}"));
            }
        }
    }
}

#[test]
fn small_shapes() {
    for m in [1, 2, 3, 4, 5, 7] {
        for n in [1, 2, 3, 4, 7, 8, 9, 16, 17, 33] {
            for k in [0, 1, 2, 5, 17] {
                check_shape(m, n, k);
            }
        }
    }
}

#[test]
fn larger_shapes() {
    for (m, n, k) in [
        (1, 300, 100),
        (300, 1, 100),
        (1, 1, 1500),
        (2, 130, 67),
        (13, 13, 300),
        (50, 40, 257),
        (64, 10, 128),
        (16, 128, 784),
        (97, 65, 31),
        (101, 35, 520),
        (49, 100, 99),
    ] {
        check_shape(m, n, k);
    }
}

#[test]
fn more_rows_than_are_packed_at_once() {
    check_shape(ROWS_AT_ONCE + 7, 5, 3);
}

#[test]
fn empty_products_write_nothing() {
    for (m, n) in [(0, 3), (3, 0), (0, 0)] {
        let empty = Matrix::row_major(&[], n);
        let p = Gemm { m, n, k: 4, alpha: 1.0, beta: 0.0, a: empty, b: empty, row_bias: None, col_bias: None };
        gemm(&p, &mut [], n, &mut vec![0.0; 4096]);
    }
}

#[test]
fn strides_may_be_negative_or_zero() {
    let (a, b) = (noise(12 * 20, 1), noise(20, 2));
    let backwards = Matrix { data: &a, offset: 12 * 20 - 1, row: -20, col: -1 };
    let spread = Matrix { data: &b, offset: 0, row: 1, col: 0 };
    let p = Gemm { m: 12, n: 9, k: 20, alpha: 1.0, beta: 0.0, a: backwards, b: spread, row_bias: None, col_bias: None };
    let mut c = vec![f32::NAN; 12 * 9];
    let want = naive(&p, &c, 9);
    gemm(&p, &mut c, 9, &mut vec![0.0; gemm_scratch(12, 9, 20)]);
    check_close(&c, &want, 20, "backwards");
}

#[test]
fn batches_are_single_products() {
    for (batch, m, n, k) in [(1, 5, 6, 7), (3, 8, 1, 9), (40, 6, 17, 12), (2, 128, 128, 128), (20, 33, 20, 130)] {
        let (a, b) = (noise(batch * m * k, 1), noise(n * k, 2));
        for transposed in [false, true] {
            let left = Matrix::row_major(&a, k);
            let left = if transposed { Matrix { row: 1, col: m as isize, ..left } } else { left };
            let p = Gemm {
                m,
                n,
                k,
                alpha: 1.0,
                beta: 0.0,
                a: left,
                b: Matrix::row_major(&b, n),
                row_bias: None,
                col_bias: None,
            };
            let mut c = vec![f32::NAN; batch * m * n];
            let mut scratch = vec![f32::NAN; gemm_batched_scratch(batch, m, n, k)];
            // Every product shares one B.
            gemm_batched(&p, batch, |i| (i * m * k, 0), &mut c, n, m * n, &mut scratch);
            for i in 0..batch {
                let one = Gemm { a: Matrix { offset: i * m * k, ..p.a }, ..p };
                let mut want = vec![0.0; m * n];
                gemm(&one, &mut want, n, &mut scratch);
                assert_eq!(want, c[i * m * n..(i + 1) * m * n], "product {i} of {batch}");
            }
        }
    }
}

#[test]
fn same_bits_whatever_the_threads() {
    for (m, n, k, transposed) in [(200, 300, 300, false), (150, 70, 600, true), (32, 500, 600, true)] {
        let (a, b) = (noise(m * k, 1), noise(n * k, 2));
        let a = Matrix::row_major(&a, k);
        let b = Matrix { row: 1, col: k as isize, ..Matrix::row_major(&b, n) };
        let b = if transposed { b } else { Matrix { row: n as isize, col: 1, ..b } };
        let p = Gemm { m, n, k, alpha: 1.0, beta: 0.0, a, b, row_bias: None, col_bias: None };
        let run = |threads| {
            set_threads(threads);
            let mut c = vec![0.0; m * n];
            gemm(&p, &mut c, n, &mut vec![0.0; gemm_scratch(m, n, k)]);
            set_threads(0);
            c.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(2));
    }
}

#[test]
#[should_panic(expected = "matrix reaches outside its slice")]
fn a_short_slice_is_refused() {
    let p = Gemm {
        m: 2,
        n: 2,
        k: 2,
        alpha: 1.0,
        beta: 0.0,
        a: Matrix::row_major(&[0.0; 3], 2),
        b: Matrix::row_major(&[0.0; 4], 2),
        row_bias: None,
        col_bias: None,
    };
    gemm(&p, &mut [0.0; 4], 2, &mut [0.0; 16]);
}

#[test]
fn f64_is_the_plain_sum() {
    let (m, n, k) = (7, 600, 11);
    let a: Vec<f64> = noise(m * k, 1).into_iter().map(f64::from).collect();
    let b: Vec<f64> = noise(n * k, 2).into_iter().map(f64::from).collect();
    let bias = vec![0.5; n];
    let p = Gemm {
        m,
        n,
        k,
        alpha: 2.0,
        beta: 3.0,
        a: Matrix::row_major(&a, k),
        b: Matrix { data: &b, offset: 0, row: 1, col: k as isize },
        row_bias: None,
        col_bias: Some(&bias),
    };
    let mut c = vec![1.0; m * n];
    gemm_f64(&p, &mut c, n);
    for i in 0..m {
        for j in 0..n {
            let sum: f64 = (0..k).map(|x| a[i * k + x] * b[j * k + x]).sum();
            assert!((c[i * n + j] - (2.0 * sum + 3.5)).abs() < 1e-13);
        }
    }
}

/// `cargo test --release gemm::tests::speed -- --ignored --nocapture`
#[test]
#[ignore = "measures, checks nothing"]
fn speed() {
    set_threads(1);
    for (m, n, k) in [
        (24, 16, 256),
        (256, 256, 256),
        (512, 512, 512),
        (1024, 1024, 1024),
        (32, 128, 784),
        (32, 784, 128),
        (784, 128, 32),
        (32, 10, 128),
    ] {
        let (a, b, mut c) = (noise(m * k, 1), noise(n * k, 2), vec![0.0; m * n]);
        let mut scratch = vec![0.0; gemm_scratch(m, n, k)];
        let mut line = format!("{m}x{n}x{k}:");
        for layout in ["NN", "NT", "TN"] {
            let left = Matrix::row_major(&a, k);
            let left = if layout == "TN" { Matrix { row: 1, col: m as isize, ..left } } else { left };
            let right = Matrix::row_major(&b, n);
            let right = if layout == "NT" { Matrix { row: 1, col: k as isize, ..right } } else { right };
            let p = Gemm { m, n, k, alpha: 1.0, beta: 0.0, a: left, b: right, row_bias: None, col_bias: None };
            let flops = 2.0 * (m * n * k) as f64;
            let best = measure(|| gemm(&p, &mut c, n, &mut scratch));
            line += &format!("  {layout} {:.1} GFLOP/s ({:.1} us)", flops / best * 1e-9, best * 1e6);
        }
        println!("{line}");
    }
    set_threads(0);
}
