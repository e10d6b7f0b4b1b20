// Functions of f32. Polynomials are those of the CPU backend. Devices may assume that there are no NaN and no infinite
// numbers, and may compute sums in another order: what must not be mistaken goes by bits, and nothing relies on the way
// a sum is rounded.

fn is_nan(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// A constant expression must be finite: the variable makes it none.
fn nan() -> f32 {
  var bits = 0x7fc00000u;
  return bitcast<f32>(bits);
}

fn infinity() -> f32 {
  var bits = 0x7f800000u;
  return bitcast<f32>(bits);
}

fn with_sign_of(magnitude: f32, x: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(magnitude) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
}

// NaN if either is.
fn float_min(a: f32, b: f32) -> f32 {
  return select(b, a, a < b || is_nan(a));
}

// NaN if either is.
fn float_max(a: f32, b: f32) -> f32 {
  return select(b, a, a > b || is_nan(a));
}

// -1, 0 or 1; NaN stays NaN, and -0 stays.
fn float_sign(x: f32) -> f32 {
  let keeps = is_nan(x) || x == 0.0;
  return select(with_sign_of(1.0, x), x, keeps);
}

fn float_sqrt(x: f32) -> f32 {
  return select(sqrt(x), nan(), x < 0.0);
}

// Truncates and saturates; NaN gives 0.
fn float_to_int(x: f32) -> i32 {
  if (is_nan(x)) { return 0; }
  if (x >= 2147483648.0) { return 2147483647; }
  if (x < -2147483648.0) { return bitcast<i32>(0x80000000u); }
  return i32(x);
}

// Truncates and saturates; NaN gives 0.
fn float_to_word(x: f32) -> u32 {
  if (is_nan(x) || x <= 0.0) { return 0u; }
  if (x >= 4294967296.0) { return 0xffffffffu; }
  return u32(x);
}

// To the nearest value of float16, ties to even.
fn round_f16(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let magnitude = bits & 0x7fffffffu;
  // A carry out of the 10 bits that stay goes to the exponent, as it must; from 65520 on it makes infinity.
  let carried = (magnitude + 0xfffu + ((magnitude >> 13u) & 1u)) & 0xffffe000u;
  let normal = select(carried, 0x7f800000u, carried >= 0x47800000u);
  // Below 2^-14, multiples of 2^-24.
  let small = min(bitcast<f32>(magnitude), 1.0);
  let denormal = bitcast<u32>(round(small * 16777216.0) * 5.9604644775390625e-8);
  let finite = select(normal, denormal, magnitude < 0x38800000u);
  return bitcast<f32>(select(finite, magnitude, magnitude >= 0x7f800000u) | (bits & 0x80000000u));
}

// To the nearest value of bfloat16, ties to even.
fn round_bf16(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let rounded = bits + 0x7fffu + ((bits >> 16u) & 1u);
  // Of NaN, not only the lower bits may be set, which go.
  return bitcast<f32>(select(rounded, bits | 0x400000u, is_nan(x)) & 0xffff0000u);
}

// 2^n for n from -126 to 127.
fn power_of_two(n: i32) -> f32 {
  return bitcast<f32>(bitcast<u32>(n + 127) << 23u);
}

// y 2^n for n from -252 to 254, in two factors, since some of them have no normal one.
fn scaled_by(y: f32, n: i32) -> f32 {
  let part = n >> 1u;
  return y * power_of_two(part) * power_of_two(n - part);
}

// e^r for r from -ln(2)/2 to ln(2)/2.
fn exp_near_zero(r: f32) -> f32 {
  let z = r * r;
  let p = 0.49999994 + r * 0.16666521 + z * (0.041668274 + r * 8.368686e-3 + z * 1.3820138e-3);
  return 1.0 + (r + z * p);
}

fn float_exp(x: f32) -> f32 {
  let t = select(clamp(x, -104.0, 89.0), 0.0, is_nan(x));
  let n = round(t * 1.44269504);
  let r = (t - n * 0.6933594) + n * 2.1219444e-4;
  return select(scaled_by(exp_near_zero(r), i32(n)), x, is_nan(x));
}

// Natural logarithm. NaN below 0, -infinity at 0.
fn float_log(x: f32) -> f32 {
  let tiny = x < 1.17549435e-38;
  let bits = bitcast<u32>(select(x, x * 8388608.0, tiny));
  // m 2^n with m from sqrt(1/2) to sqrt(2).
  let n = bitcast<i32>(bits - 0x3f3504f3u) >> 23u;
  let m = bitcast<f32>(bits - (bitcast<u32>(n) << 23u));
  let e = f32(n) - select(0.0, 23.0, tiny);
  let t = m - 1.0;
  let z = t * t;
  let zz = z * z;
  let p0 = 0.3333331 + t * -0.24999994 + z * (0.20002201 + t * -0.16668652);
  let p4 = 0.14218731 + t * -0.12396169 + z * (0.118852206 + t * -0.117218465);
  let p = p0 + zz * (p4 + zz * 0.06803018);
  let y = (p * t * z - e * 2.1219444e-4) - 0.5 * z;
  let finite = (t + y) + e * 0.6933594;
  let above = select(finite, x, bitcast<u32>(x) >= 0x7f800000u);
  return select(select(above, nan(), x < 0.0), -infinity(), x == 0.0);
}

fn float_tanh(x: f32) -> f32 {
  let t = abs(x);
  let z = x * x;
  let zz = z * z;
  let p = -0.3333333 + z * 0.13333221 + zz * ((-0.05394818 + z * 0.021706894) + zz * (-8.190013e-3 + z * 2.1526837e-3));
  let small = t + p * z * t;
  let large = 1.0 - 2.0 / (float_exp(t + t) + 1.0);
  return with_sign_of(select(large, small, t < 0.625), x);
}

// Near 0 an odd polynomial, else 1 - exp(-t - t q(t)).
fn float_erf(x: f32) -> f32 {
  let t = select(min(abs(x), 4.0), abs(x), is_nan(x));
  let z = t * t;
  let zz = z * z;
  let p = 0.12837917 + z * -0.3761263 + zz * (0.11283626 + z * -0.026855731)
    + zz * zz * (5.192405e-3 + z * -8.04977e-4 + zz * 7.99665e-5);
  let q = 0.12864849 + t * 0.6351513 + z * (0.106236845 + t * -0.02376202)
    + zz * (3.6424296e-3 + t * -3.22794e-4 + z * 1.1230012e-5);
  let large = 1.0 - float_exp(-(t + t * q));
  return with_sign_of(select(large, t + t * p, t < 0.925), x);
}

fn float_sigmoid(x: f32) -> f32 {
  return 1.0 / (1.0 + float_exp(-x));
}

fn upper_bits(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}

// The base-2 logarithm of a positive finite number in two parts, the first of which has 12 bits. From FreeBSD's
// e_powf.c: the logarithm of m near 1 or 3/2 by s = (m - c) / (m + c), itself in two parts.
fn log2_in_parts(x: f32) -> vec2<f32> {
  let tiny = x < 1.17549435e-38;
  var bits = bitcast<u32>(select(x, x * 16777216.0, tiny));
  var n = f32(bits >> 23u) - select(127.0, 151.0, tiny);
  let digits = bits & 0x7fffffu;
  bits = digits | 0x3f800000u;
  let middle = digits > 0x1cc471u && digits < 0x5db3d7u;
  if (digits >= 0x5db3d7u) {
    n += 1.0;
    bits -= 0x800000u;
  }
  let m = bitcast<f32>(bits);
  let c = select(1.0, 1.5, middle);
  // s = a + b, and m + c = d + f, each with few bits in the first part.
  let u = m - c;
  let v = 1.0 / (m + c);
  let s = u * v;
  let a = upper_bits(s);
  let d = upper_bits(m + c);
  let f = m - (d - c);
  let b = v * ((u - a * d) - a * f);
  // log(m / c) = 2/3 s (3 + s^2 + r)
  let z = s * s;
  let l = 0.6 + z * (0.42857143 + z * (0.33333334 + z * (0.2727281 + z * (0.23066075 + z * 0.206975))));
  let r = z * z * l + b * (a + s);
  let w = a * a;
  let g = upper_bits(3.0 + w + r);
  let h = r - ((g - 3.0) - w);
  let p = a * g;
  let q = b * g + h * s;
  let p1 = upper_bits(p + q);
  let p2 = q - (p1 - p);
  // Times 2 / (3 ln 2), plus n + log2(c).
  let z1 = 0.9619140625 * p1;
  let z2 = -1.1736857402e-4 * p1 + p2 * 0.96179670095 + select(0.0, 1.56322085e-6, middle);
  let c1 = select(0.0, 0.584960938, middle);
  let t1 = upper_bits(((z1 + z2) + c1) + n);
  return vec2<f32>(t1, z2 - (((t1 - n) - c1) - z1));
}

// |x|^y for finite numbers, x not 0.
fn pow_of_magnitude(x: f32, y: f32) -> f32 {
  let t = log2_in_parts(abs(x));
  // Larger exponents overflow or vanish as well as this one does.
  let e = clamp(y, -1.0e12, 1.0e12);
  let e1 = upper_bits(e);
  let small = (e - e1) * t.x + e * t.y;
  let large = e1 * t.x;
  let sum = large + small;
  let n = round(clamp(sum, -152.0, 129.0));
  let fraction = clamp((large - n) + small, -1.0, 1.0);
  let power = scaled_by(exp_near_zero(fraction * 0.69314718), i32(n));
  return select(select(power, infinity(), sum > 128.5), 0.0, sum < -151.0);
}

// x^y as C's powf has it.
fn float_pow(x: f32, y: f32) -> f32 {
  let ax = abs(x);
  let ay = abs(y);
  let x_bits = bitcast<u32>(x) & 0x7fffffffu;
  let y_bits = bitcast<u32>(y) & 0x7fffffffu;
  if (y_bits == 0u || bitcast<u32>(x) == 0x3f800000u) { return 1.0; }
  if (x_bits > 0x7f800000u || y_bits > 0x7f800000u) { return nan(); }
  let up = y > 0.0;
  if (y_bits == 0x7f800000u) {
    if (x_bits == 0x3f800000u) { return 1.0; }
    return select(0.0, infinity(), (x_bits > 0x3f800000u) == up);
  }
  let whole = ay >= 8388608.0 || floor(ay) == ay;
  let odd = whole && ay < 16777216.0 && (u32(min(ay, 16777216.0)) & 1u) == 1u;
  var power = 0.0;
  if (x_bits == 0u || x_bits == 0x7f800000u) {
    power = select(0.0, infinity(), (x_bits != 0u) == up);
  } else {
    if (x < 0.0 && !whole) { return nan(); }
    power = pow_of_magnitude(ax, y);
  }
  return select(power, with_sign_of(power, x), odd);
}
