//! Ranks of each group, from the order of the parallel axes: pure arithmetic on one grid of ranks.

use std::fmt;
use std::str::FromStr;

use super::MeshError;

/// A dimension of the grid of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Tensor parallel.
    Tp,
    /// Context parallel.
    Cp,
    /// Expert parallel.
    Ep,
    /// Data parallel.
    Dp,
    /// Pipeline parallel.
    Pp,
}

impl Axis {
    /// The short name used in rank orders.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tp => "tp",
            Self::Cp => "cp",
            Self::Ep => "ep",
            Self::Dp => "dp",
            Self::Pp => "pp",
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The order in which ranks are laid out, fastest-varying axis first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RankOrder {
    /// `tp-cp-ep-dp-pp`, Megatron's default.
    #[default]
    TpCpEpDpPp,
    /// `tp-cp-ep-pp-dp`, Megatron's `use_tp_pp_dp_mapping`.
    TpCpEpPpDp,
}

impl RankOrder {
    /// Both orders.
    pub const ALL: [Self; 2] = [Self::TpCpEpDpPp, Self::TpCpEpPpDp];

    /// The axes, fastest-varying first.
    pub const fn axes(self) -> [Axis; 5] {
        match self {
            Self::TpCpEpDpPp => [Axis::Tp, Axis::Cp, Axis::Ep, Axis::Dp, Axis::Pp],
            Self::TpCpEpPpDp => [Axis::Tp, Axis::Cp, Axis::Ep, Axis::Pp, Axis::Dp],
        }
    }
}

impl fmt::Display for RankOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.axes().map(Axis::name).join("-"))
    }
}

impl FromStr for RankOrder {
    type Err = MeshError;

    fn from_str(text: &str) -> Result<Self, MeshError> {
        Self::ALL
            .into_iter()
            .find(|order| order.to_string() == text)
            .ok_or_else(|| MeshError::UnknownOrder { found: text.to_owned() })
    }
}

/// Sizes of the five axes of one grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AxisSizes {
    /// Tensor-parallel size.
    pub tp: usize,
    /// Context-parallel size.
    pub cp: usize,
    /// Expert-parallel size.
    pub ep: usize,
    /// Data-parallel size.
    pub dp: usize,
    /// Pipeline-parallel size.
    pub pp: usize,
}

impl AxisSizes {
    /// The size of one axis.
    pub const fn get(&self, axis: Axis) -> usize {
        match axis {
            Axis::Tp => self.tp,
            Axis::Cp => self.cp,
            Axis::Ep => self.ep,
            Axis::Dp => self.dp,
            Axis::Pp => self.pp,
        }
    }
}

/// A grid of ranks: an order and the size of each axis.
///
/// `rank = sum over axes of coordinate * stride`, the stride of an axis being the product of the
/// sizes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankGenerator {
    order: RankOrder,
    sizes: AxisSizes,
}

/// An axis with its size and stride in the grid.
#[derive(Clone, Copy)]
struct Extent {
    axis: Axis,
    size: usize,
    stride: usize,
}

impl RankGenerator {
    /// A grid.
    ///
    /// # Errors
    /// If a size is 0.
    pub fn new(order: RankOrder, sizes: AxisSizes) -> Result<Self, MeshError> {
        match order.axes().into_iter().find(|&axis| sizes.get(axis) == 0) {
            Some(axis) => Err(MeshError::ZeroSize { name: axis.name() }),
            None => Ok(Self { order, sizes }),
        }
    }

    /// The sizes of the axes.
    pub const fn sizes(&self) -> AxisSizes {
        self.sizes
    }

    /// Number of ranks in the grid.
    pub fn world_size(&self) -> usize {
        self.order.axes().into_iter().map(|axis| self.sizes.get(axis)).product()
    }

    fn extents(&self) -> [Extent; 5] {
        let mut stride = 1;
        self.order.axes().map(|axis| {
            let size = self.sizes.get(axis);
            let extent = Extent { axis, size, stride };
            stride *= size;
            extent
        })
    }

    /// The coordinate of a rank on an axis.
    pub fn coordinate(&self, rank: usize, axis: Axis) -> usize {
        let extents = self.extents();
        extents.into_iter().find(|extent| extent.axis == axis).map_or(0, |extent| rank / extent.stride % extent.size)
    }

    /// All groups of ranks that differ only in the selected axes. Groups are ordered by the
    /// coordinates on the other axes, and ranks in a group by those on the selected axes, the first
    /// axis of the order varying fastest in both.
    pub fn groups(&self, selected: &[Axis]) -> Vec<Vec<usize>> {
        let (inside, outside): (Vec<Extent>, Vec<Extent>) =
            self.extents().into_iter().partition(|extent| selected.contains(&extent.axis));
        let offsets = ranks_of(&inside);
        ranks_of(&outside).into_iter().map(|start| offsets.iter().map(|offset| start + offset).collect()).collect()
    }
}

/// The ranks of a sub-grid that starts at rank 0, first axis fastest.
fn ranks_of(extents: &[Extent]) -> Vec<usize> {
    extents.iter().fold(vec![0], |ranks, extent| {
        (0..extent.size)
            .flat_map(|coordinate| {
                let shift = coordinate * extent.stride;
                ranks.iter().map(move |rank| rank + shift).collect::<Vec<_>>()
            })
            .collect()
    })
}
