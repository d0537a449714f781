//! Curves in one picture, as SVG and PNG. The meaning of curves does not belong here.
//!
//! Without the cargo feature `plots`, writing fails and names the feature.

#[cfg(feature = "plots")]
mod draw;

#[cfg(not(feature = "plots"))]
use std::path::Path;
use std::path::PathBuf;

use super::curves::Curve;
use super::files::FileError;

/// True if this build can draw.
pub const CAN_DRAW: bool = cfg!(feature = "plots");

/// A colour: red, green, blue.
pub type Colour = (u8, u8, u8);

/// One curve of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Shown in the key.
    pub name: String,
    /// Points that are not finite are left out.
    pub points: Curve,
    /// Colour of line and dots.
    pub colour: Colour,
    /// Width of the line in pixels; 0 draws none.
    pub line: u32,
    /// Radius of the dots at the points in pixels; 0 draws none.
    pub dots: u32,
}

/// Curves over one axis.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Shown above the curves.
    pub title: String,
    /// Label of the horizontal axis.
    pub x: &'static str,
    /// Formatter of the numbers of the horizontal axis.
    pub x_number: fn(f64) -> String,
    /// Label of the vertical axis.
    pub y: &'static str,
    /// The curves; later ones are drawn over earlier ones.
    pub series: Vec<Series>,
}

/// A picture that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// This build cannot draw.
    #[error("this build draws no plots; build with `--features bridge-cli/plots`")]
    NotCompiledIn,
    /// No finite point.
    #[error("nothing to plot: no finite value among {points} points")]
    NoPoints {
        /// Points given.
        points: usize,
    },
    /// Drawing a file failed, with a message of the drawing library.
    #[error("cannot draw {}: {}", .0.display(), .1)]
    Draw(PathBuf, String),
    /// The picture cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
}

#[cfg(not(feature = "plots"))]
impl Chart {
    /// Not supported by this build.
    ///
    /// # Errors
    /// Always.
    pub fn write(&self, _stem: &Path) -> Result<(), PlotError> {
        Err(PlotError::NotCompiledIn)
    }
}
