//! The arithmetic of blends: which member gives the next sample. The dataset is in `blended`.

/// Members of a blend are numbered with 16 bits; there must be fewer than this.
pub(crate) const MAX_DATASETS: usize = i16::MAX as usize;

/// For each blended sample: its member and its number in the member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlendingIndices {
    /// Member of each sample.
    pub dataset: Vec<i16>,
    /// Number of each sample within its member.
    pub sample: Vec<i64>,
}

/// Assigns samples one by one to the member that is furthest behind its weight; on a tie, to the
/// first of them.
struct SampleAssigner {
    weights: Vec<f64>,
    counts: Vec<i64>,
    indices: BlendingIndices,
}

impl SampleAssigner {
    fn new(weights: Vec<f64>, size: usize) -> Self {
        let indices = BlendingIndices { dataset: Vec::with_capacity(size), sample: Vec::with_capacity(size) };
        Self { counts: vec![0; weights.len()], weights, indices }
    }

    /// Assigns the next sample to one of `members` and returns that member; `None` if there are no
    /// members.
    fn assign_next(&mut self, members: impl Iterator<Item = usize>) -> Option<usize> {
        let drawn = self.indices.dataset.len().max(1) as f64;
        let mut furthest: Option<(f64, usize)> = None;
        for member in members {
            let behind = self.weights[member] * drawn - self.counts[member] as f64;
            if furthest.is_none_or(|(most, _)| behind > most) {
                furthest = Some((behind, member));
            }
        }
        let (_, member) = furthest?;
        self.indices.dataset.push(member as i16);
        self.indices.sample.push(self.counts[member]);
        self.counts[member] += 1;
        Some(member)
    }
}

/// Picks `size` samples so that after each the proportions are as close as possible to `weights`
/// (which sum to 1).
///
/// # Panics
/// With 32767 members or more.
pub fn blending_indices(weights: &[f64], size: usize) -> BlendingIndices {
    assert!(weights.len() < MAX_DATASETS, "a blend of {} datasets", weights.len());
    let mut assigner = SampleAssigner::new(weights.to_vec(), size);
    for _ in 0..size {
        assigner.assign_next(0..weights.len());
    }
    assigner.indices
}

/// As [`blending_indices`] with weights proportional to `sizes`, until each member is exhausted.
///
/// # Panics
/// With 32767 members or more.
pub fn exhaustive_blending_indices(sizes: &[usize]) -> BlendingIndices {
    assert!(sizes.len() < MAX_DATASETS, "a blend of {} datasets", sizes.len());
    let total: usize = sizes.iter().sum();
    let weights = sizes.iter().map(|&size| size as f64 / total as f64).collect();
    let mut assigner = SampleAssigner::new(weights, total);
    let mut unspent: Vec<usize> = (0..sizes.len()).filter(|&member| sizes[member] > 0).collect();
    while let Some(member) = assigner.assign_next(unspent.iter().copied()) {
        if assigner.counts[member] as usize == sizes[member] {
            unspent.retain(|&other| other != member);
        }
    }
    assigner.indices
}

/// Divides by the sum, computed in numpy's order so that ties in a blend are broken in the same
/// way.
pub(crate) fn normalize(weights: &[f64]) -> Vec<f64> {
    let sum = numpy_sum(weights);
    weights.iter().map(|weight| weight / sum).collect()
}

/// numpy's pairwise summation: eight running sums, blocks of at most 128.
fn numpy_sum(values: &[f64]) -> f64 {
    if values.len() < 8 {
        return values.iter().fold(0.0, |sum, value| sum + value);
    }
    if values.len() > 128 {
        let half = values.len() / 2;
        let (left, right) = values.split_at(half - half % 8);
        return numpy_sum(left) + numpy_sum(right);
    }
    let mut sums = [0.0; 8];
    sums.copy_from_slice(&values[..8]);
    let blocks = values[8..].chunks_exact(8);
    let rest = blocks.remainder();
    for block in blocks {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum += value;
        }
    }
    let joined = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    rest.iter().fold(joined, |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weighted_vectors() {
        let blend = blending_indices(&[0.3, 0.7], 10);
        assert_eq!(blend.dataset, [1, 0, 1, 1, 0, 1, 1, 0, 1, 1]);
        assert_eq!(blend.sample, [0, 0, 1, 2, 1, 3, 4, 2, 5, 6]);
        let blend = blending_indices(&[0.5, 0.25, 0.25], 12);
        assert_eq!(blend.dataset, [0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0]);
    }

    #[test]
    fn exhaustive_vectors() {
        let blend = exhaustive_blending_indices(&[3, 5, 2]);
        assert_eq!(blend.dataset, [1, 0, 2, 1, 0, 1, 2, 1, 0, 1]);
        assert_eq!(exhaustive_blending_indices(&[]), BlendingIndices::default());
        assert_eq!(exhaustive_blending_indices(&[0, 2]).dataset, [1, 1]);
    }

    /// Sums of numpy 2.4: `numpy.sum([0.1] * n)`.
    #[test]
    fn sums_are_pairwise_from_eight_on() {
        let sum = |n: usize| numpy_sum(&vec![0.1; n]);
        assert_eq!([sum(7), sum(8), sum(10), sum(13)], NUMPY_SUMS);
        assert_eq!(sum(1000), 100.000_000_000_000_01);
    }

    const NUMPY_SUMS: [f64; 4] = [0.7, 0.8, 1.0, 1.3000000000000003];
}
