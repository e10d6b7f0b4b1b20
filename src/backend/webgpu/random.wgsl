// Philox 4x32-10, as kernel/philox.rs has it.

fn philox(at: vec4<u32>, seed: vec2<u32>) -> vec4<u32> {
  var counter = at;
  var key = seed;
  for (var k = 0u; k < 10u; k++) {
    let a = word_mul(0xd2511f53u, counter.x);
    let b = word_mul(0xcd9e8d57u, counter.z);
    counter = vec4<u32>(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
    key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  }
  return counter;
}

// The numbers in [0, 1) at 4 row-major positions from a multiple of 4 on; `run` is the seed and the step, low words first.
fn uniforms_at(run: vec4<u32>, stream: u32, index: u32) -> vec4<f32> {
  let words = philox(vec4<u32>(index >> 2u, run.w << 16u, stream, run.z), run.xy);
  return vec4<f32>(words >> vec4<u32>(8u, 8u, 8u, 8u)) * 5.9604644775390625e-8;
}

// The number at one position.
fn uniform_at(run: vec4<u32>, stream: u32, index: u32) -> f32 {
  let numbers = uniforms_at(run, stream, index);
  let low = select(numbers.x, numbers.y, (index & 1u) == 1u);
  let high = select(numbers.z, numbers.w, (index & 1u) == 1u);
  return select(low, high, (index & 2u) == 2u);
}
