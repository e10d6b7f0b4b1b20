//! Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random
//! numbers by counter, so that a mask computed twice, or on another device, is the same mask.

use super::RunContext;

pub(crate) const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
pub(crate) const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for a 128-bit counter under a 64-bit key.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = MULTIPLIERS[0] as u64 * counter[0] as u64;
        let b = MULTIPLIERS[1] as u64 * counter[2] as u64;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// The number that `Expr::Random(stream)` has at row-major position `index`: 24 bits in [0, 1).
pub fn uniform(cx: &RunContext, stream: u32, index: u64) -> f32 {
    // Counter: block number (48 bits), stream, step; each block serves four positions.
    let block = index / 4;
    let counter =
        [block as u32, ((block >> 32) as u32 & 0xFFFF) | (((cx.step >> 32) as u32) << 16), stream, cx.step as u32];
    let words = philox4x32(counter, [cx.seed as u32, (cx.seed >> 32) as u32]);
    (words[(index % 4) as usize] >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 library's `kat_vectors` for philox4x32-10.
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn uniform_is_uniform() {
        let cx = RunContext::new(7, 3);
        let mean = (0..40_000).map(|i| uniform(&cx, 1, i) as f64).sum::<f64>() / 40_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert_ne!(uniform(&cx, 1, 0), uniform(&RunContext::new(7, 4), 1, 0));
        assert_ne!(uniform(&cx, 1, 0), uniform(&cx, 2, 0));
    }
}
