//! Number of micro-batches of a step that are in memory at a time.

/// Tokens of the micro-batches that one rank holds at a time.
const TOKENS: usize = 1 << 18;

/// Minimum number of units per window of a pipeline, because the pipeline drains between two
/// windows: at most a thirty-second of the time is lost.
const UNITS: usize = 32;

/// Divides the micro-batches of a step into windows. The data of a window is read, used and dropped
/// before that of the next one. Most steps are one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBatchWindows {
    size: usize,
    /// A pass may be split after any multiple of this number of micro-batches.
    unit: usize,
}

impl MicroBatchWindows {
    /// Windows for micro-batches of `tokens` tokens on each rank. `pipeline` is the number of
    /// micro-batches that a pipeline schedule moves together; `None` for a model on one stage,
    /// which may stop after each.
    pub fn new(tokens: usize, pipeline: Option<usize>) -> Self {
        let unit = pipeline.map_or(1, |unit| UNITS * unit.max(1));
        let size = (TOKENS / tokens.max(1)).max(1).next_multiple_of(unit);
        Self { size, unit }
    }

    /// Micro-batches of the next window, if `left` remain. The last window may be up to twice as
    /// long as other windows, but not shorter, because schedules have a minimum length.
    pub fn next(&self, left: usize) -> usize {
        if left >= 2 * self.size { self.size } else { left }
    }

    /// Number of windows of a step of `total` micro-batches.
    pub fn count(&self, total: usize) -> usize {
        (total / self.size).max(1)
    }

    /// Number of micro-batches after which a pass over `left` should pause to poll for stop
    /// requests: at least `wanted`, and as the schedule allows.
    pub fn pause(&self, wanted: usize, left: usize) -> usize {
        let pause = wanted.max(1).next_multiple_of(self.unit);
        if left >= pause + self.unit { pause } else { left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_tile_a_step_and_none_is_short() {
        for (tokens, pipeline) in [(64, None), (4096, None), (1 << 20, None), (8192, Some(3)), (64, Some(7))] {
            let windows = MicroBatchWindows::new(tokens, pipeline);
            for total in [1, 2, 31, 96, 1000, 4097, 70_001] {
                let (mut left, mut count) = (total, 0);
                while left > 0 {
                    let next = windows.next(left);
                    assert!(next > 0 && (next == left || next == windows.size), "{windows:?} {total}");
                    assert!(next == total || next >= windows.size, "{windows:?} {total}: a window of {next}");
                    (left, count) = (left - next, count + 1);
                }
                assert_eq!(count, windows.count(total), "{windows:?} {total}");
            }
        }
    }

    #[test]
    fn a_pass_pauses_where_the_schedule_allows() {
        let alone = MicroBatchWindows::new(64, None);
        assert_eq!((alone.pause(5, 100), alone.pause(5, 5), alone.pause(0, 3), alone.pause(9, 4)), (5, 5, 1, 4));
        let pipeline = MicroBatchWindows::new(64, Some(2));
        assert_eq!((pipeline.pause(1, 1000), pipeline.pause(65, 1000), pipeline.pause(1, 100)), (64, 128, 100));
    }

    #[test]
    fn a_few_thousand_short_sequences_fit_and_a_few_long_ones() {
        assert_eq!(MicroBatchWindows::new(64, None).next(4_000_000), 4096);
        assert_eq!(MicroBatchWindows::new(131_072, None).next(4_000_000), 2);
        assert_eq!(MicroBatchWindows::new(131_072, Some(4)).next(4_000_000), 128);
    }
}
