//! Sliding windows over spatial axes, which convolution and pooling share.

/// One meeting of an output element, a window element and an input element; row-major positions
/// in their spatial axes.
pub(super) struct Tap {
    pub(super) output: usize,
    pub(super) window: usize,
    pub(super) input: usize,
}

/// A window that slides over spatial axes; each slice has one entry per axis.
pub(super) struct Window<'a> {
    pub(super) input: &'a [usize],
    pub(super) output: &'a [usize],
    pub(super) window: &'a [usize],
    pub(super) strides: &'a [usize],
    pub(super) dilations: &'a [usize],
    pub(super) pads_begin: &'a [usize],
}

impl Window<'_> {
    /// Where element `window` of the window lies for element `output` of the output along `axis`,
    /// counted from the first input element; padding lies before 0 and after the last.
    pub(super) fn position(&self, axis: usize, output: usize, window: usize) -> isize {
        (output * self.strides[axis] + window * self.dilations[axis]) as isize - self.pads_begin[axis] as isize
    }

    /// All meetings that lie in the input, ordered by output, then by window element.
    pub(super) fn taps(&self) -> Vec<Tap> {
        let outputs = self.output.iter().product();
        let windows = self.window.iter().product();
        let mut taps = Vec::new();
        for output in 0..outputs {
            for window in 0..windows {
                if let Some(input) = self.input_at(output, window) {
                    taps.push(Tap { output, window, input });
                }
            }
        }
        taps
    }

    /// The input element that an output and a window element meet, unless it is padding.
    fn input_at(&self, mut output: usize, mut window: usize) -> Option<usize> {
        let (mut input, mut step) = (0, 1);
        for axis in (0..self.input.len()).rev() {
            let position = self.position(axis, output % self.output[axis], window % self.window[axis]);
            output /= self.output[axis];
            window /= self.window[axis];
            if position < 0 || position >= self.input[axis] as isize {
                return None;
            }
            input += position as usize * step;
            step *= self.input[axis];
        }
        Some(input)
    }
}
