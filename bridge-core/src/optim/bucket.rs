//! Assignment of parameters to buckets for data-parallel reductions, and of each parameter's ranges
//! to ranks. This file only computes layouts and does not communicate.
//!
//! A bucket's elements lie rank by rank: first, of every parameter in it, the range of rank 0, then
//! those of rank 1, and so on, each rank's part padded to the same length. So a reduce-scatter of
//! the bucket leaves each rank exactly with its ranges, and an all-gather of the ranges gives the
//! bucket back.

use std::ops::Range;

use crate::model::ReplicaGroup;

/// The elements of a parameter that `rank` of `ranks` owns: cuts into consecutive ranges whose
/// lengths differ by one at most.
pub fn owned_range(num_elements: usize, rank: usize, ranks: usize) -> Range<usize> {
    let cut = |rank: usize| (num_elements as u128 * rank as u128 / ranks as u128) as usize;
    cut(rank)..cut(rank + 1)
}

/// Elements of the largest of `ranks` parts if [`owned_range`] divides each parameter. Every part
/// is padded to this length.
pub fn padded_part(parameters: impl Iterator<Item = usize>, ranks: usize) -> usize {
    let (mut even, mut uneven) = (0, Vec::new());
    for num_elements in parameters {
        match num_elements % ranks {
            0 => even += num_elements / ranks,
            _ => uneven.push(num_elements),
        }
    }
    if uneven.is_empty() {
        return even;
    }
    let load = |rank: usize| uneven.iter().map(|count| owned_range(*count, rank, ranks).len()).sum::<usize>();
    even + (0..ranks).map(load).max().unwrap_or(0)
}

/// Elements of the largest of `ranks` parts where only some elements of each parameter count: its
/// number of elements, and those.
pub fn padded_part_of(parameters: impl Iterator<Item = (usize, Range<usize>)> + Clone, ranks: usize) -> usize {
    let load = |rank: usize| {
        let of_rank = parameters.clone().map(|(count, some)| common(&owned_range(count, rank, ranks), &some).len());
        of_rank.sum::<usize>()
    };
    (0..ranks).map(load).max().unwrap_or(0)
}

/// The elements that two ranges have in common; an empty range inside the first where they have
/// none.
pub fn common(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = b.start.clamp(a.start, a.end);
    start..b.end.clamp(start, a.end)
}

/// A parameter to be put into a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketParameter {
    /// Name of the parameter.
    pub name: String,
    /// Elements on this rank.
    pub num_elements: usize,
    /// Over which ranks its gradient is summed.
    pub replicas: ReplicaGroup,
    /// The first segment that uses it: its gradient is complete when backward has left that
    /// segment.
    pub first_segment: usize,
    /// False for a frozen parameter, which is gathered and has no gradient.
    pub is_trained: bool,
    /// True if the parameter is gathered as codes of 8 bits.
    pub is_cast: bool,
}

/// Position of one parameter in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketEntry {
    /// Name of the parameter.
    pub name: String,
    /// Number of elements.
    pub num_elements: usize,
    /// Start of each rank's range of the parameter in the bucket.
    starts: Vec<usize>,
}

/// Parameters that are gathered together, and whose gradients are reduced together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Over which ranks it is reduced.
    pub replicas: ReplicaGroup,
    /// Segment after whose backward the gradients are complete.
    pub first_segment: usize,
    /// True if the parameters are trained: a bucket of frozen ones is never reduced.
    pub is_trained: bool,
    /// True if the parameters are gathered as codes of 8 bits.
    pub is_cast: bool,
    /// Parameters of the bucket.
    pub entries: Vec<BucketEntry>,
    ranks: usize,
    part: usize,
}

impl Bucket {
    fn new(parameters: &[&BucketParameter], ranks: usize, padding: BucketPadding) -> Self {
        let part = padding.part(parameters, ranks);
        let mut next: Vec<usize> = (0..ranks).map(|rank| rank * part).collect();
        let entries = parameters.iter().map(|parameter| {
            let starts = next.clone();
            for (rank, next) in next.iter_mut().enumerate() {
                *next += owned_range(parameter.num_elements, rank, ranks).len();
            }
            BucketEntry { name: parameter.name.clone(), num_elements: parameter.num_elements, starts }
        });
        Self {
            entries: entries.collect(),
            replicas: replicas(parameters),
            first_segment: first_segment(parameters),
            is_trained: is_trained(parameters),
            is_cast: is_cast(parameters),
            ranks,
            part,
        }
    }

    /// Elements of the bucket, padding included.
    pub fn len(&self) -> usize {
        self.part * self.ranks
    }

    /// True if the bucket has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of one rank's part, padding included.
    pub fn part_len(&self) -> usize {
        self.part
    }

    /// Bytes of one rank's part as codes of 8 bits.
    pub fn code_len(&self) -> usize {
        code_len(self.part)
    }

    /// Ranks among which it is divided.
    pub fn num_ranks(&self) -> usize {
        self.ranks
    }

    /// True if every rank owns equally many elements of each parameter, so that parameters start at
    /// the same offset in each rank's part.
    pub fn is_even(&self) -> bool {
        self.entries.iter().all(|entry| entry.num_elements.is_multiple_of(self.ranks))
    }

    /// Copies a parameter's elements to their places in the bucket.
    ///
    /// # Panics
    /// If lengths are not those of the layout.
    pub fn scatter<T: Copy>(&self, entry: &BucketEntry, values: &[T], bucket: &mut [T]) {
        for rank in 0..self.ranks {
            let range = owned_range(entry.num_elements, rank, self.ranks);
            let start = entry.starts[rank];
            bucket[start..start + range.len()].copy_from_slice(&values[range]);
        }
    }

    /// Copies a parameter's elements out of the bucket.
    ///
    /// # Panics
    /// As [`Bucket::scatter`].
    pub fn gather<T: Copy>(&self, entry: &BucketEntry, bucket: &[T]) -> Vec<T> {
        let mut values = Vec::with_capacity(entry.num_elements);
        for rank in 0..self.ranks {
            let start = entry.starts[rank];
            values.extend_from_slice(&bucket[start..start + owned_range(entry.num_elements, rank, self.ranks).len()]);
        }
        values
    }

    /// Position of `rank`'s range of a parameter within that rank's part.
    pub fn within_part(&self, entry: &BucketEntry, rank: usize) -> Range<usize> {
        let start = entry.starts[rank] - rank * self.part;
        start..start + owned_range(entry.num_elements, rank, self.ranks).len()
    }
}

/// Bytes of a part of `part_len` elements as codes of 8 bits: whole words, as devices write them.
pub fn code_len(part_len: usize) -> usize {
    part_len.next_multiple_of(4)
}

/// Number of ranks over which each kind of parameter is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardCounts {
    /// Number of shards of dense parameters.
    pub dense: usize,
    /// Number of shards of experts.
    pub expert: usize,
}

impl ShardCounts {
    /// Number of shards for one kind of replica group.
    pub fn count_for(self, replicas: ReplicaGroup) -> usize {
        match replicas {
            ReplicaGroup::Dense => self.dense,
            ReplicaGroup::Expert => self.expert,
        }
    }
}

/// When a bucket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketRule {
    /// Never: one bucket for all.
    One,
    /// When it has this many elements.
    Elements(usize),
    /// When it has `1 / parts` of the chunk's elements, or `max_elements` if that is less.
    Share {
        /// Parts of a chunk. There are fewer buckets: the last parameter of each makes it larger.
        parts: usize,
        /// Elements of the largest bucket, but for its last parameter.
        max_elements: usize,
    },
    /// A bucket ends with the last parameter of a segment.
    Segment,
}

/// Padding of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketPadding {
    /// Parts of the same length for each rank.
    #[default]
    EqualParts,
    /// Also to a multiple of 2^16, for which communication libraries choose their fastest
    /// algorithms.
    HighBandwidth,
}

impl BucketPadding {
    /// Elements of one rank's part, padding included.
    fn part(self, parameters: &[&BucketParameter], ranks: usize) -> usize {
        let part = padded_part(parameters.iter().map(|parameter| parameter.num_elements), ranks);
        match self {
            Self::EqualParts => part,
            // The bucket is `ranks` parts, so the powers of two in their number need not be in the
            // part.
            Self::HighBandwidth => part.next_multiple_of(UNIT >> ranks.trailing_zeros().min(UNIT.trailing_zeros())),
        }
    }
}

/// Unit that [`BucketPadding::HighBandwidth`] pads a bucket to.
const UNIT: usize = 1 << 16;

/// Layout of a chunk's parameters in buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLayout {
    /// When a bucket is closed.
    pub rule: BucketRule,
    /// Padding of the bucket.
    pub padding: BucketPadding,
    /// Number of ranks that share the bucket.
    pub counts: ShardCounts,
}

/// A bucket's size, without the places of its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSize {
    /// Over which ranks it is reduced.
    pub replicas: ReplicaGroup,
    /// Segment after whose backward the gradients are complete.
    pub first_segment: usize,
    /// True if the parameters are trained.
    pub is_trained: bool,
    /// True if the parameters are gathered as codes of 8 bits.
    pub is_cast: bool,
    /// Number of parameters.
    pub num_parameters: usize,
    /// Elements of one rank's part, padding included.
    pub part_len: usize,
}

/// Puts the parameters of one chunk into buckets, in the order in which backward completes them.
/// Kinds do not mix, nor do trained and frozen parameters, nor those that are gathered as codes and
/// others.
pub fn buckets(parameters: &[BucketParameter], layout: BucketLayout) -> Vec<Bucket> {
    let groups = groups(parameters, layout.rule);
    groups.iter().map(|group| Bucket::new(group, layout.counts.count_for(replicas(group)), layout.padding)).collect()
}

/// The sizes of [`buckets`], for any number of ranks. Names do not matter.
pub fn bucket_sizes(parameters: &[BucketParameter], layout: BucketLayout) -> Vec<BucketSize> {
    let size = |group: &Vec<&BucketParameter>| BucketSize {
        replicas: replicas(group),
        first_segment: first_segment(group),
        is_trained: is_trained(group),
        is_cast: is_cast(group),
        num_parameters: group.len(),
        part_len: layout.padding.part(group, layout.counts.count_for(replicas(group))),
    };
    groups(parameters, layout.rule).iter().map(size).collect()
}

fn replicas(group: &[&BucketParameter]) -> ReplicaGroup {
    group.first().map_or(ReplicaGroup::Dense, |parameter| parameter.replicas)
}

fn is_trained(group: &[&BucketParameter]) -> bool {
    group.iter().any(|parameter| parameter.is_trained)
}

fn is_cast(group: &[&BucketParameter]) -> bool {
    group.iter().any(|parameter| parameter.is_cast)
}

fn first_segment(group: &[&BucketParameter]) -> usize {
    group.iter().map(|parameter| parameter.first_segment).min().unwrap_or(0)
}

/// Groups of parameters that share a bucket.
fn groups(parameters: &[BucketParameter], rule: BucketRule) -> Vec<Vec<&BucketParameter>> {
    let mut order: Vec<&BucketParameter> = parameters.iter().rev().collect();
    order.sort_by_key(|parameter| std::cmp::Reverse(parameter.first_segment));
    let limit = match rule {
        BucketRule::One | BucketRule::Segment => usize::MAX,
        BucketRule::Elements(limit) => limit,
        BucketRule::Share { parts, max_elements } => {
            let all: usize = parameters.iter().map(|parameter| parameter.num_elements).sum();
            all.div_ceil(parts).min(max_elements)
        }
    };
    let mut groups = Vec::new();
    // The open bucket for each combination of replicas, frozen or trained, and values or codes: its
    // parameters and number of elements.
    let mut open: [(Vec<&BucketParameter>, usize); 8] = Default::default();
    for parameter in order {
        let kind = 2 * parameter.replicas as usize + usize::from(parameter.is_trained);
        let (bucket, elements) = &mut open[2 * kind + usize::from(parameter.is_cast)];
        let is_other_segment = bucket.last().is_some_and(|last| last.first_segment != parameter.first_segment);
        if rule == BucketRule::Segment && is_other_segment {
            groups.push(std::mem::take(bucket));
            *elements = 0;
        }
        bucket.push(parameter);
        *elements += parameter.num_elements;
        if *elements >= limit {
            groups.push(std::mem::take(bucket));
            *elements = 0;
        }
    }
    groups.extend(open.into_iter().map(|(rest, _)| rest).filter(|rest| !rest.is_empty()));
    // All ranks start reductions in this order.
    groups.sort_by_key(|group| std::cmp::Reverse(first_segment(group)));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(name: &str, num_elements: usize, first_segment: usize) -> BucketParameter {
        let replicas = if name.starts_with("expert") { ReplicaGroup::Expert } else { ReplicaGroup::Dense };
        BucketParameter { name: name.into(), num_elements, replicas, first_segment, is_trained: true, is_cast: false }
    }

    #[test]
    fn ranges_tile_a_parameter() {
        for (elements, ranks) in [(0, 3), (1, 3), (7, 3), (12, 4), (13, 5)] {
            let ranges: Vec<_> = (0..ranks).map(|rank| owned_range(elements, rank, ranks)).collect();
            assert_eq!(ranges[0].start, 0);
            assert_eq!(ranges[ranks - 1].end, elements);
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths = ranges.iter().map(Range::len);
            assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
        }
    }

    #[test]
    fn parts_are_as_long_as_the_longest() {
        for ranks in [1, 2, 3, 5, 7] {
            let sizes = [0, 1, 12, 13, 35, 64, 101];
            let load = |rank: usize| sizes.iter().map(|size| owned_range(*size, rank, ranks).len()).sum::<usize>();
            assert_eq!(padded_part(sizes.into_iter(), ranks), (0..ranks).map(load).max().unwrap());
        }
    }

    const COUNTS: ShardCounts = ShardCounts { dense: 3, expert: 2 };

    fn layout(rule: BucketRule) -> BucketLayout {
        BucketLayout { rule, padding: BucketPadding::EqualParts, counts: COUNTS }
    }

    #[test]
    fn buckets_follow_backward_and_do_not_mix_kinds() {
        let parameters =
            [parameter("a", 5, 0), parameter("b", 7, 1), parameter("expert.c", 3, 1), parameter("d", 11, 2)];
        let found = buckets(&parameters, layout(BucketRule::Elements(10)));
        let names: Vec<Vec<&str>> =
            found.iter().map(|b| b.entries.iter().map(|entry| entry.name.as_str()).collect()).collect();
        assert_eq!(names, [vec!["d"], vec!["expert.c"], vec!["b", "a"]]);
        assert_eq!(found.iter().map(|b| b.first_segment).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(buckets(&parameters, layout(BucketRule::One)).len(), 2);
        let fifth = BucketRule::Share { parts: 5, max_elements: 100 };
        assert_eq!(buckets(&parameters, layout(fifth)).len(), 4, "6 of 26 elements close one");
        for rule in [BucketRule::One, BucketRule::Elements(10), BucketRule::Segment, fifth] {
            for padding in [BucketPadding::EqualParts, BucketPadding::HighBandwidth] {
                let layout = BucketLayout { padding, ..layout(rule) };
                let whole: Vec<BucketSize> = buckets(&parameters, layout)
                    .iter()
                    .map(|b| BucketSize {
                        replicas: b.replicas,
                        first_segment: b.first_segment,
                        is_trained: b.is_trained,
                        is_cast: b.is_cast,
                        num_parameters: b.entries.len(),
                        part_len: b.part_len(),
                    })
                    .collect();
                assert_eq!(bucket_sizes(&parameters, layout), whole, "{layout:?}");
            }
        }
        let codes = parameters.clone().map(|p| BucketParameter { is_cast: p.name == "b", ..p });
        let of_codes = buckets(&codes, layout(BucketRule::One));
        let cast: Vec<bool> = of_codes.iter().map(|bucket| bucket.is_cast).collect();
        assert!(cast.len() > 1 && cast.iter().filter(|is_cast| **is_cast).count() == 1, "{of_codes:?}");
        let mixed = parameters.clone().map(|p| BucketParameter { is_trained: p.name != "b", ..p });
        let trained: Vec<_> = buckets(&mixed, layout(BucketRule::One)).iter().map(|b| b.is_trained).collect();
        assert_eq!(
            trained,
            [false, true, true],
            "frozen parameters have a bucket of their own: `b` is the first to be whole"
        );
        let by_segment = buckets(&parameters, layout(BucketRule::Segment));
        assert_eq!(by_segment.iter().map(|b| b.entries.len()).collect::<Vec<_>>(), [1, 1, 1, 1]);
    }

    #[test]
    fn padded_buckets_are_the_next_multiple() {
        for ranks in [1, 2, 3, 6, 7, 16, 1 << 17] {
            for num_elements in [1, 65_535, 65_536, 65_537, 200_000] {
                let counts = ShardCounts { dense: ranks, expert: 1 };
                let layout = BucketLayout { padding: BucketPadding::HighBandwidth, counts, ..layout(BucketRule::One) };
                let bucket = bucket_sizes(&[parameter("a", num_elements, 0)], layout)[0];
                let len = bucket.part_len * ranks;
                let what = format!("{num_elements} elements over {ranks} ranks: {len}");
                assert!(len.is_multiple_of(UNIT) && len >= num_elements, "{what}");
                let unit = UNIT * ranks / (1 << ranks.trailing_zeros().min(16));
                assert!(len - unit < ranks * num_elements.div_ceil(ranks), "{what}: more than needed");
            }
        }
    }

    #[test]
    fn each_rank_finds_its_ranges_in_its_part() {
        let parameters = [parameter("a", 5, 0), parameter("b", 7, 0), parameter("c", 1, 0)];
        let ranks = 3;
        let bucket = &buckets(&parameters, layout(BucketRule::One))[0];
        let mut values = vec![-1; bucket.len()];
        let of = |entry: &BucketEntry| -> Vec<i32> {
            let first = i32::from(entry.name.as_bytes()[0]) * 100;
            (0..entry.num_elements as i32).map(|i| first + i).collect()
        };
        for entry in &bucket.entries {
            bucket.scatter(entry, &of(entry), &mut values);
        }
        assert!(bucket.len() - values.iter().filter(|v| **v >= 0).count() < 3 * ranks);
        for entry in &bucket.entries {
            assert_eq!(bucket.gather(entry, &values), of(entry));
            for rank in 0..ranks {
                let part = &values[rank * bucket.part_len()..][..bucket.part_len()];
                assert_eq!(
                    part[bucket.within_part(entry, rank)],
                    of(entry)[owned_range(entry.num_elements, rank, ranks)]
                );
            }
        }
    }
}
