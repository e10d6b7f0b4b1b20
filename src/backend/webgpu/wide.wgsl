// Integers of 64 bits as pairs of words, low word first; signed ones in two's complement. Functions whose names end in
// _u take them as unsigned. All wrap.

// The whole product of two words.
fn word_mul(a: u32, b: u32) -> vec2<u32> {
  let a0 = a & 0xffffu;
  let a1 = a >> 16u;
  let b0 = b & 0xffffu;
  let b1 = b >> 16u;
  let right = a1 * b0 + ((a0 * b0) >> 16u);
  let left = a0 * b1 + (right & 0xffffu);
  return vec2<u32>(a * b, a1 * b1 + (right >> 16u) + (left >> 16u));
}

// Modulo 2^32, which wrapping to a narrower width afterwards makes modulo that width.
fn word_pow(base: u32, exponent: u32) -> u32 {
  var result = 1u;
  var square = base;
  var rest = exponent;
  while (rest != 0u) {
    if ((rest & 1u) == 1u) { result *= square; }
    square *= square;
    rest >>= 1u;
  }
  return result;
}

// A negative exponent gives the reciprocal, truncated.
fn int_pow(base: i32, exponent: i32) -> i32 {
  if (exponent >= 0) { return bitcast<i32>(word_pow(bitcast<u32>(base), bitcast<u32>(exponent))); }
  if (base == 1) { return 1; }
  if (base == -1) { return 1 - 2 * (exponent & 1); }
  return 0;
}

// By zero gives 0; the lowest value by -1 is itself.
fn int_div(a: i32, b: i32) -> i32 {
  if (b == 0) { return 0; }
  if (b == -1) { return bitcast<i32>(0u - bitcast<u32>(a)); }
  return a / b;
}

// By zero gives 0.
fn word_div(a: u32, b: u32) -> u32 {
  if (b == 0u) { return 0u; }
  return a / b;
}

fn wide_of_word(x: u32) -> vec2<u32> {
  return vec2<u32>(x, 0u);
}

fn wide_of_int(x: i32) -> vec2<u32> {
  return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u));
}

fn wide_is_zero(a: vec2<u32>) -> bool {
  return (a.x | a.y) == 0u;
}

fn wide_is_negative(a: vec2<u32>) -> bool {
  return (a.y >> 31u) == 1u;
}

fn wide_equal(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.x == b.x && a.y == b.y;
}

fn wide_less_u(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn wide_less(a: vec2<u32>, b: vec2<u32>) -> bool {
  let a1 = bitcast<i32>(a.y);
  let b1 = bitcast<i32>(b.y);
  return a1 < b1 || (a1 == b1 && a.x < b.x);
}

fn wide_min(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(b, a, wide_less(a, b));
}

fn wide_min_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(b, a, wide_less_u(a, b));
}

fn wide_max(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, wide_less(a, b));
}

fn wide_max_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, wide_less_u(a, b));
}

fn wide_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn wide_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn wide_neg(a: vec2<u32>) -> vec2<u32> {
  return wide_sub(vec2<u32>(0u, 0u), a);
}

fn wide_abs(a: vec2<u32>) -> vec2<u32> {
  return select(a, wide_neg(a), wide_is_negative(a));
}

fn wide_sign(a: vec2<u32>) -> vec2<u32> {
  let one = vec2<u32>(select(1u, 0u, wide_is_zero(a)), 0u);
  return select(one, vec2<u32>(0xffffffffu, 0xffffffffu), wide_is_negative(a));
}

fn wide_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = word_mul(a.x, b.x);
  return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}

// By zero gives 0. Long division, a bit at a time, unless both are words.
fn wide_div_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (wide_is_zero(b)) { return vec2<u32>(0u, 0u); }
  if ((a.y | b.y) == 0u) { return vec2<u32>(a.x / b.x, 0u); }
  var quotient = a;
  var rest = vec2<u32>(0u, 0u);
  for (var k = 0u; k < 64u; k++) {
    // The bit that leaves the rest at the top makes it larger than any divisor.
    let carry = rest.y >> 31u;
    rest = vec2<u32>((rest.x << 1u) | (quotient.y >> 31u), (rest.y << 1u) | (rest.x >> 31u));
    let fits = carry == 1u || !wide_less_u(rest, b);
    rest = select(rest, wide_sub(rest, b), fits);
    quotient = vec2<u32>((quotient.x << 1u) | select(0u, 1u, fits), (quotient.y << 1u) | (quotient.x >> 31u));
  }
  return quotient;
}

// Truncates. By zero gives 0; the lowest value by -1 is itself.
fn wide_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let quotient = wide_div_u(wide_abs(a), wide_abs(b));
  return select(quotient, wide_neg(quotient), wide_is_negative(a) != wide_is_negative(b));
}

fn wide_pow_u(base: vec2<u32>, exponent: vec2<u32>) -> vec2<u32> {
  var result = vec2<u32>(1u, 0u);
  var square = base;
  var rest = exponent;
  while (!wide_is_zero(rest)) {
    if ((rest.x & 1u) == 1u) { result = wide_mul(result, square); }
    square = wide_mul(square, square);
    rest = vec2<u32>((rest.x >> 1u) | (rest.y << 31u), rest.y >> 1u);
  }
  return result;
}

// A negative exponent gives the reciprocal, truncated.
fn wide_pow(base: vec2<u32>, exponent: vec2<u32>) -> vec2<u32> {
  if (!wide_is_negative(exponent)) { return wide_pow_u(base, exponent); }
  if (wide_equal(base, vec2<u32>(1u, 0u))) { return base; }
  if ((base.x & base.y) == 0xffffffffu) {
    return select(vec2<u32>(1u, 0u), base, (exponent.x & 1u) == 1u);
  }
  return vec2<u32>(0u, 0u);
}

// The 32 bits from the highest one that is set, of a number that does not fit a word; the last bit is also set if any
// below it is, so that it rounds as the whole number does.
fn wide_top(x: vec2<u32>) -> u32 {
  let s = countLeadingZeros(x.y);
  let top = select((x.y << s) | (x.x >> ((32u - s) & 31u)), x.y, s == 0u);
  return top | select(0u, 1u, (x.x << s) != 0u);
}

// What the top of a number has to be multiplied with: a power of two.
fn wide_unit(x: vec2<u32>) -> f32 {
  return bitcast<f32>((159u - countLeadingZeros(x.y)) << 23u);
}

// Rounded once, in the sum: some devices do not convert large words so.
fn word_to_float(x: u32) -> f32 {
  return f32(x >> 16u) * 65536.0 + f32(x & 0xffffu);
}

fn wide_to_float_u(x: vec2<u32>) -> f32 {
  if (x.y == 0u) { return word_to_float(x.x); }
  return word_to_float(wide_top(x)) * wide_unit(x);
}

fn wide_to_float(x: vec2<u32>) -> f32 {
  let magnitude = wide_to_float_u(wide_abs(x));
  return select(magnitude, -magnitude, wide_is_negative(x));
}

// Rounded to the neighbour with an odd last bit where it is not exact: rounding this once more, to a format of at most
// 22 bits, gives what rounding the integer itself would.
fn word_to_float_odd(x: u32) -> f32 {
  let lost = 0xffu >> (countLeadingZeros(x) & 31u);
  return word_to_float((x & ~lost) | select(0u, lost + 1u, (x & lost) != 0u));
}

fn int_to_float_odd(x: i32) -> f32 {
  let magnitude = word_to_float_odd(bitcast<u32>(abs(x)));
  return select(magnitude, -magnitude, x < 0);
}

fn wide_to_float_odd_u(x: vec2<u32>) -> f32 {
  if (x.y == 0u) { return word_to_float_odd(x.x); }
  return word_to_float_odd(wide_top(x)) * wide_unit(x);
}

fn wide_to_float_odd(x: vec2<u32>) -> f32 {
  let magnitude = wide_to_float_odd_u(wide_abs(x));
  return select(magnitude, -magnitude, wide_is_negative(x));
}

// The whole part of the float with these bits, which is neither negative nor 2^64 or more.
fn wide_of_float_bits(bits: u32) -> vec2<u32> {
  let exponent = bits >> 23u;
  let digits = (bits & 0x7fffffu) | 0x800000u;
  if (exponent < 127u) { return vec2<u32>(0u, 0u); }
  if (exponent <= 150u) { return vec2<u32>(digits >> (150u - exponent), 0u); }
  let s = exponent - 150u;
  if (s < 32u) { return vec2<u32>(digits << s, digits >> (32u - s)); }
  return vec2<u32>(0u, digits << (s - 32u));
}

// Truncates and saturates; NaN gives 0.
fn wide_of_float(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let magnitude = bits & 0x7fffffffu;
  let negative = bits != magnitude;
  if (magnitude > 0x7f800000u) { return vec2<u32>(0u, 0u); }
  if (magnitude >= 0x5f000000u) {
    return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), negative);
  }
  let whole = wide_of_float_bits(magnitude);
  return select(whole, wide_neg(whole), negative);
}

// Truncates and saturates; NaN gives 0.
fn wide_of_float_u(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  if (bits > 0x7f800000u) { return vec2<u32>(0u, 0u); }
  if (bits >= 0x5f800000u) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  return wide_of_float_bits(bits);
}
