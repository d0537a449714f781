//! Layer placement: Megatron's closed formulas against the walk along the chain, the layout
//! language, and error texts.

use bridge_dist::schedule::placement::{
    Accounting, LayoutItem, PipelineLayout, Placement, PlacementError, PlacementSpec, Split, StageContent,
};
use proptest::prelude::*;

fn spec(num_layers: usize, stages: usize, chunks: Option<usize>, split: Split) -> PlacementSpec {
    PlacementSpec {
        num_layers,
        pipeline_model_parallel_size: stages,
        virtual_pipeline_model_parallel_size: chunks,
        mtp_num_layers: 0,
        split,
    }
}

fn even(embedding: Accounting, loss: Accounting) -> Split {
    Split::Even { embedding, loss }
}

fn layers(placement: &Placement) -> Vec<Vec<(usize, usize)>> {
    let pair = |stage: &StageContent| (stage.layers.start, stage.layers.end);
    placement.chunks.iter().map(|rank| rank.iter().map(pair).collect()).collect()
}

#[test]
fn even_split_with_chunks() {
    let placement = spec(8, 2, Some(2), Split::default()).place().unwrap();
    assert_eq!(layers(&placement), [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]);
    assert!(placement.chunks[0][0].embedding && !placement.chunks[0][1].embedding);
    assert!(placement.chunks[1][1].loss && !placement.chunks[1][0].loss);
}

#[test]
fn embedding_and_loss_can_take_places() {
    let split = even(Accounting::AsLayer, Accounting::AsLayer);
    let placement = spec(6, 4, None, split).place().unwrap();
    assert_eq!(layers(&placement), [[(0, 1)], [(1, 3)], [(3, 5)], [(5, 6)]]);
}

#[test]
fn uneven_split() {
    let split = Split::Uneven { first: Some(2), last: Some(4) };
    let placement = spec(12, 4, None, split).place().unwrap();
    assert_eq!(layers(&placement), [[(0, 2)], [(2, 5)], [(5, 8)], [(8, 12)]]);
}

#[test]
fn impossible_splits_say_why() {
    let text = |spec: PlacementSpec| spec.place().unwrap_err().to_string();
    assert_eq!(
        text(spec(7, 2, None, Split::default())),
        "num_layers (7) must be divisible by pipeline_model_parallel_size (2)"
    );
    assert_eq!(
        text(spec(8, 2, Some(3), Split::default())),
        "the number of layers on stage 0 (4) must be divisible by virtual_pipeline_model_parallel_size (3)"
    );
    assert_eq!(
        text(spec(8, 2, None, even(Accounting::AsLayer, Accounting::Free))),
        "num_layers plus 1 for embedding and loss (9) must be divisible by pipeline_model_parallel_size (2)"
    );
    let too_many = Split::Uneven { first: Some(5), last: Some(5) };
    assert!(matches!(spec(8, 4, None, too_many).place().unwrap_err(), PlacementError::Remainder { left: -2, .. }));
    let no_middle = Split::Uneven { first: Some(4), last: Some(4) };
    assert!(matches!(
        spec(8, 4, None, no_middle).place().unwrap_err(),
        PlacementError::Remainder { left: 0, left_stages: 2, .. }
    ));
    let empty_first = Split::Uneven { first: Some(0), last: None };
    assert!(matches!(spec(8, 2, None, empty_first).place().unwrap_err(), PlacementError::Zero { .. }));
    assert!(matches!(spec(8, 0, None, Split::default()).place().unwrap_err(), PlacementError::Zero { .. }));
}

#[test]
fn a_layout_in_megatrons_language() {
    let layout: PipelineLayout = "Et*3|(tt|)*29,m|L".parse().unwrap();
    assert_eq!(layout.stages.len(), 32);
    let spec = PlacementSpec { mtp_num_layers: 1, ..spec(61, 16, Some(2), Split::Layout(layout.clone())) };
    let placement = spec.place().unwrap();
    let stage = |rank: usize, chunk: usize| placement.chunks[rank][chunk].clone();
    assert_eq!(stage(0, 0), StageContent { embedding: true, layers: 0..3, num_mtp_layers: 0, loss: false });
    assert_eq!(stage(0, 1).layers, 33..35);
    assert_eq!(stage(14, 1), StageContent { embedding: false, layers: 61..61, num_mtp_layers: 1, loss: false });
    assert_eq!(stage(15, 1), StageContent { embedding: false, layers: 61..61, num_mtp_layers: 0, loss: true });
    assert_eq!(layout.to_string().parse::<PipelineLayout>().unwrap(), layout);
}

#[test]
fn layouts_that_do_not_parse() {
    let cases = [
        ("Et|x", "character 4: unexpected `x`"),
        ("E(t|L", "character 2: this parenthesis is not closed"),
        ("Et*0|L", "character 4: expected a count"),
        ("Et*|L", "character 4: expected a count"),
        ("E((t)*2)*2L", "character 3: groups cannot be nested"),
        ("Et)L", "character 3: unexpected `)`"),
        ("E(t*1000000)*1000000L", "the repeat count is too large"),
    ];
    for (text, expected) in cases {
        let error = text.parse::<PipelineLayout>().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn layouts_that_do_not_fit() {
    let cases = [
        ("Et|tL", 3, 2, None, "the number of transformer layers"),
        ("Et|t|L", 2, 2, None, "the number of stages"),
        ("Et|tL", 2, 2, Some(2), "virtual_pipeline_model_parallel_size"),
        ("tE|tL", 2, 2, None, "the order of the items"),
        ("Et|t", 2, 2, None, "the number of losses"),
        ("|EttL", 2, 2, None, "the ends"),
    ];
    for (text, num_layers, stages, chunks, expected) in cases {
        let layout = text.parse().unwrap();
        let error = spec(num_layers, stages, chunks, Split::Layout(layout)).place().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let stages = vec![vec![LayoutItem::Embedding, LayoutItem::Transformer], vec![LayoutItem::Loss]];
    let built = Split::Layout(PipelineLayout { stages });
    assert_eq!(layers(&spec(1, 2, None, built).place().unwrap()), [[(0, 1)], [(1, 1)]]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn even_offsets_follow_the_closed_formula(stages in 1usize..6, chunks in 1usize..5, per_chunk in 1usize..4) {
        let total = stages * chunks * per_chunk;
        let placement = spec(total, stages, Some(chunks), Split::default()).place().unwrap();
        for rank in 0..stages {
            for chunk in 0..chunks {
                let start = chunk * (total / chunks) + rank * (total / stages / chunks);
                prop_assert_eq!(&placement.chunks[rank][chunk].layers, &(start..start + per_chunk));
            }
        }
    }

    #[test]
    fn uneven_offsets_follow_the_closed_formula(
        middle_stages in 0usize..4, chunks in 1usize..4, (a, b, m) in (1usize..4, 1usize..4, 1usize..4),
        ends in 0usize..3,
    ) {
        // Given ends: both, only the first, only the last. If only one is given, a middle stage is
        // needed to distinguish it.
        let (first, last) = [(Some(a), Some(b)), (Some(a), None), (None, Some(b))][ends];
        prop_assume!(ends == 0 || middle_stages > 0);
        let (first, last) = (first.map(|n| n * chunks), last.map(|n| n * chunks));
        let middle = middle_stages * m * chunks;
        let (first_len, last_len) = (first.unwrap_or(0), last.unwrap_or(0));
        let stages = middle_stages + usize::from(first.is_some()) + usize::from(last.is_some());
        let split = Split::Uneven { first, last };
        let placement = spec(first_len + middle + last_len, stages, Some(chunks), split).place().unwrap();
        for rank in 0..stages {
            for chunk in 0..chunks {
                let base = chunk * (first_len / chunks + middle / chunks + last_len / chunks);
                let before = if first.is_some() { rank.saturating_sub(1) } else { rank };
                let inside = before.min(middle_stages) * m;
                let offset = base + if rank > 0 { first_len / chunks + inside } else { 0 };
                prop_assert_eq!(placement.chunks[rank][chunk].layers.start, offset);
            }
        }
    }

    #[test]
    fn accounted_offsets_follow_the_closed_formula(
        stages in 1usize..6, chunks in 1usize..4, per_chunk in 3usize..6, flags in 0usize..4,
    ) {
        let pick = |on| if on { Accounting::AsLayer } else { Accounting::Free };
        let (embedding, loss) = (flags & 1, flags >> 1);
        let slots = stages * chunks * per_chunk;
        let split = even(pick(embedding == 1), pick(loss == 1));
        let placement = spec(slots - embedding - loss, stages, Some(chunks), split).place().unwrap();
        for rank in 0..stages {
            for chunk in 0..chunks {
                let is_first = rank == 0 && chunk == 0;
                let is_last = rank + 1 == stages && chunk + 1 == chunks;
                let raw = chunk * (slots / chunks) + rank * (slots / stages / chunks);
                let start = if is_first { 0 } else { raw - embedding };
                let len = per_chunk - usize::from(is_first) * embedding - usize::from(is_last) * loss;
                prop_assert_eq!(&placement.chunks[rank][chunk].layers, &(start..start + len));
            }
        }
    }
}
