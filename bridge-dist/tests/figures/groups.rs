//! Figures of process groups: one panel a kind of group, one colour a group.

use bridge_dist::mesh::{GroupKind, Mesh, ParallelSizes, RankOrder};

use super::svg::{Area, Svg};

const BOX: u32 = 34;
const GAP: u32 = 4;
const PANEL: u32 = 196;

pub fn figures() -> Vec<(&'static str, String)> {
    let dense = ParallelSizes {
        tensor_model_parallel_size: 2,
        pipeline_model_parallel_size: 2,
        context_parallel_size: 2,
        ..ParallelSizes::default()
    };
    let experts = ParallelSizes {
        tensor_model_parallel_size: 2,
        expert_model_parallel_size: 4,
        expert_tensor_parallel_size: Some(1),
        ..ParallelSizes::default()
    };
    let dense_panels = [
        (GroupKind::Tensor, "tensor: shard each matrix"),
        (GroupKind::Context, "context: shard a sequence"),
        (GroupKind::Data, "data: other samples"),
        (GroupKind::Pipeline, "pipeline: other layers"),
    ];
    let expert_panels = [
        (GroupKind::Tensor, "tensor: shard attention"),
        (GroupKind::DataContext, "dense gradients"),
        (GroupKind::Expert, "expert: exchange tokens"),
        (GroupKind::ExpertData, "expert gradients"),
    ];
    vec![
        ("groups.svg", draw(16, dense, &dense_panels, "16 ranks: tensor 2, context 2, data 2, pipeline 2")),
        (
            "groups-experts.svg",
            draw(8, experts, &expert_panels, "8 ranks: tensor 2, data 4; experts: parallel 4, data 2"),
        ),
    ]
}

/// Four ranks a row, in the order of ranks.
fn draw(world_size: usize, sizes: ParallelSizes, panels: &[(GroupKind, &str)], title: &str) -> String {
    let mesh = Mesh::new(world_size, sizes, RankOrder::default()).unwrap();
    let rows = world_size.div_ceil(4) as u32;
    let mut svg = Svg::new(PANEL * panels.len() as u32, 52 + rows * (BOX + GAP));
    svg.heading(0, 14, &format!("{title}; ranks of one colour form a group"));
    for (panel, (kind, caption)) in panels.iter().enumerate() {
        let left = panel as u32 * PANEL;
        svg.text(left, 40, caption);
        for (color, group) in mesh.groups(*kind).into_iter().enumerate() {
            for rank in group {
                let (column, row) = (rank as u32 % 4, rank as u32 / 4);
                let area = Area { x: left + column * (BOX + GAP), y: 50 + row * (BOX + GAP), width: BOX, height: BOX };
                svg.labelled_box(area, color, &rank.to_string());
            }
        }
    }
    svg.finish(title)
}
