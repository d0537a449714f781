//! `validation.multiple_validation_sets`: which recipes name sets that can be evaluated apart.

use super::assert_refused;

#[test]
fn sets_are_several_members_without_weights() {
    let blends = [
        // Generated data, and a blend that is cut into splits.
        None,
        Some("dataset.data_path=[a, b]"),
        // A single member does not form several sets, and weights are refused.
        Some("dataset.blend_per_split=[[['a']], [['b']], 'null']"),
        Some("dataset.blend_per_split=[[['a']], 'null', 'null']"),
        Some("dataset.blend_per_split=[[['a']], [['b', 'c'], [1.0, 2.0]], 'null']"),
    ];
    for blend in blends {
        let mut overrides = vec!["validation.multiple_validation_sets=true"];
        overrides.extend(blend.map(|_| "dataset.kind=gpt"));
        overrides.extend(blend);
        assert_refused(&overrides, "validation.multiple_validation_sets");
    }
}
