//! Drawing of a chart as SVG and PNG. No system fonts or C libraries are needed; the font comes
//! with a crate.

use std::ops::Range;
use std::path::Path;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::{RGBColor, register_font};

use super::{Chart, PlotError, Series};
use crate::logging::curves::{Curve, thinned};
use crate::logging::files::{FileError, replace};

const WIDTH: u32 = 960;
const HEIGHT: u32 = 560;
/// The PNG is drawn this much larger and averaged down, which smooths every edge.
const SUPERSAMPLING: u32 = 3;
const FONT: &str = "sans-serif";

/// Largest magnitude that is drawn; larger values are drawn there. The drawing library computes
/// powers of ten and differences of the values, which must stay finite.
const LARGEST: f64 = 1e100;
/// Smallest size of an axis, as a share of the largest magnitude on it.
const SMALLEST_SHARE: f64 = 1e-6;

/// Smallest margin beside the curves.
const SMALLEST: f64 = 1e-12;
/// From this magnitude on, labels of the vertical axis have an exponent.
const MOST_PLAIN: f64 = 1e7;

const INK: RGBColor = RGBColor(38, 42, 48);
const GRID: RGBColor = RGBColor(225, 228, 232);
const FAINT_GRID: RGBColor = RGBColor(243, 244, 246);

impl Chart {
    /// Writes `stem.svg` and `stem.png`.
    ///
    /// # Errors
    /// No finite point, or file errors.
    pub fn write(&self, stem: &Path) -> Result<(), PlotError> {
        self.write_svg(&stem.with_extension("svg"))?;
        self.write_png(&stem.with_extension("png"))
    }

    fn write_svg(&self, path: &Path) -> Result<(), PlotError> {
        let drawn = Drawn::new(self)?;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
            drawn.draw(&root, 1).map_err(draw_error(path))?;
        }
        Ok(replace(path, svg.as_bytes()).map_err(FileError::of(path))?)
    }

    fn write_png(&self, path: &Path) -> Result<(), PlotError> {
        let drawn = Drawn::new(self)?;
        let (width, height) = (WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING);
        let mut pixels = vec![255; (width * height * 3) as usize];
        {
            let root = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
            drawn.draw(&root, SUPERSAMPLING).map_err(draw_error(path))?;
        }
        let png = encode_png(&average_down(&pixels)).map_err(|error| draw_error(path)(error.to_string()))?;
        Ok(replace(path, &png).map_err(FileError::of(path))?)
    }
}

fn draw_error(path: &Path) -> impl FnOnce(String) -> PlotError {
    let path = path.to_owned();
    move |reason| PlotError::Draw(path, reason)
}

/// The means of `SUPERSAMPLING` x `SUPERSAMPLING` blocks, three bytes a pixel.
fn average_down(pixels: &[u8]) -> Vec<u8> {
    let (factor, width) = (SUPERSAMPLING as usize, WIDTH as usize);
    let stride = width * factor * 3;
    let mut averaged = Vec::with_capacity((WIDTH * HEIGHT * 3) as usize);
    for block_row in pixels.chunks_exact(stride * factor) {
        for x in 0..width {
            for channel in 0..3 {
                let sum: usize = block_row
                    .chunks_exact(stride)
                    .flat_map(|row| row[x * factor * 3..][..factor * 3].iter().skip(channel).step_by(3))
                    .map(|value| usize::from(*value))
                    .sum();
                averaged.push((sum / (factor * factor)) as u8);
            }
        }
    }
    averaged
}

fn encode_png(pixels: &[u8]) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, WIDTH, HEIGHT);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

/// Drawn curves, and the part of the plane that they cover.
struct Drawn<'a> {
    chart: &'a Chart,
    /// The points of each series, as many as can be seen.
    curves: Vec<Curve>,
    x: Range<f64>,
    y: Range<f64>,
}

type Plane<'a, DB> = ChartContext<'a, DB, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Failure<DB> = DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>;

impl<'a> Drawn<'a> {
    fn new(chart: &'a Chart) -> Result<Self, PlotError> {
        let finite = |series: &Series| -> Curve {
            let points = series.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
            points.map(|(x, y)| (x.clamp(-LARGEST, LARGEST), y.clamp(-LARGEST, LARGEST))).collect()
        };
        let curves: Vec<Curve> = chart.series.iter().map(|series| thinned(&finite(series))).collect();
        let all = || curves.iter().flatten();
        if all().next().is_none() {
            return Err(PlotError::NoPoints { points: chart.series.iter().map(|series| series.points.len()).sum() });
        }
        let range = |values: &mut dyn Iterator<Item = f64>, margin: f64| {
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
            // A single point, or a constant value, still needs some room around it.
            let size = if high > low { (high - low) * margin } else { (high.abs() * 0.1).max(0.5) };
            // If a range has only a few representable numbers, the steps between grid lines vanish.
            let size = size.max(low.abs().max(high.abs()) * SMALLEST_SHARE).max(SMALLEST);
            low - size..high + size
        };
        let x = range(&mut all().map(|point| point.0), 0.015);
        let y = range(&mut all().map(|point| point.1), 0.06);
        Ok(Self { chart, curves, x, y })
    }

    /// `scale` multiplies all sizes.
    fn draw<DB: DrawingBackend>(
        &self,
        root: &DrawingArea<DB, plotters::coord::Shift>,
        scale: u32,
    ) -> Result<(), String> {
        for style in [FontStyle::Normal, FontStyle::Bold] {
            register_font(FONT, style, epaint_default_fonts::UBUNTU_LIGHT)
                .map_err(|_| "the font is damaged".to_owned())?;
        }
        let draw = || -> Result<(), Failure<DB>> {
            root.fill(&WHITE)?;
            let mut plane = ChartBuilder::on(root)
                .margin(16 * scale)
                .margin_right(28 * scale)
                .caption(&self.chart.title, (FONT, 26 * scale).into_font().color(&INK))
                .x_label_area_size(52 * scale)
                .y_label_area_size(66 * scale)
                .build_cartesian_2d(self.x.clone(), self.y.clone())?;
            self.mesh(&mut plane, scale)?;
            self.series(&mut plane, scale)?;
            plane
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperRight)
                .margin(10 * scale)
                .legend_area_size(30 * scale)
                .background_style(WHITE.mix(0.9))
                .border_style(GRID.stroke_width(scale))
                .label_font((FONT, 16 * scale).into_font().color(&INK))
                .draw()?;
            root.present()
        };
        draw().map_err(|error| error.to_string())
    }

    fn mesh<DB: DrawingBackend>(&self, plane: &mut Plane<'_, DB>, scale: u32) -> Result<(), Failure<DB>> {
        let digits = decimals(&self.y);
        let is_large = self.y.start.abs().max(self.y.end.abs()) >= MOST_PLAIN;
        let x_number = |x: &f64| (self.chart.x_number)(*x);
        let y_number = |y: &f64| if is_large { format!("{y:.1e}") } else { format!("{y:.digits$}") };
        plane
            .configure_mesh()
            .x_desc(self.chart.x)
            .y_desc(self.chart.y)
            .x_labels(if self.x.end - self.x.start < 8.0 { 4 } else { 10 })
            .y_labels(8)
            .x_label_formatter(&x_number)
            .y_label_formatter(&y_number)
            .axis_desc_style((FONT, 18 * scale).into_font().color(&INK))
            .label_style((FONT, 15 * scale).into_font().color(&INK))
            .axis_style(INK.stroke_width(scale))
            .bold_line_style(GRID.stroke_width(scale))
            .light_line_style(FAINT_GRID.stroke_width(scale))
            .max_light_lines(2)
            .draw()
    }

    fn series<DB: DrawingBackend>(&self, plane: &mut Plane<'_, DB>, scale: u32) -> Result<(), Failure<DB>> {
        for (series, curve) in self.chart.series.iter().zip(&self.curves).filter(|(_, curve)| !curve.is_empty()) {
            let (red, green, blue) = series.colour;
            let colour = RGBColor(red, green, blue);
            let style = colour.stroke_width(series.line.max(1) * scale);
            if series.line > 0 {
                plane.draw_series(LineSeries::new(curve.iter().copied(), style))?.label(&series.name).legend(
                    move |(x, y): (i32, i32)| PathElement::new(vec![(x, y), (x + 22 * scale as i32, y)], style),
                );
            }
            if series.dots > 0 {
                let dots = curve.iter().map(|point| Circle::new(*point, series.dots * scale, colour.filled()));
                plane.draw_series(dots)?;
            }
        }
        Ok(())
    }
}

/// Decimals that tell neighbouring labels of about eight over the range apart.
fn decimals(range: &Range<f64>) -> usize {
    let spacing = (range.end - range.start) / 8.0;
    (-spacing.log10().floor()).clamp(0.0, 12.0) as usize
}

#[cfg(test)]
mod tests {
    use std::{fs, io};

    use super::super::Colour;
    use super::*;

    const RED: Colour = (200, 30, 30);
    const GREEN: Colour = (20, 140, 60);

    fn series(name: &str, colour: Colour, points: Curve) -> Series {
        Series { name: name.into(), points, colour, line: 2, dots: 0 }
    }

    fn chart(series: Vec<Series>) -> Chart {
        Chart { title: "two".into(), x: "iteration", x_number: |x| format!("{x:.0}"), y: "loss", series }
    }

    fn waves(points: u32) -> Curve {
        (0..points).map(|i| (f64::from(i), 2.0 + (f64::from(i) * 12.9898).sin())).collect()
    }

    #[test]
    fn svg_and_png_have_every_curve() {
        let folder = tempfile::tempdir().unwrap();
        let stem = folder.path().join("plots/both");
        let mut dotted = series("other", GREEN, vec![(0.0, 1.0), (50.0, f64::NAN), (99.0, 3.0)]);
        dotted.dots = 4;
        chart(vec![series("one", RED, waves(100)), dotted]).write(&stem).unwrap();
        let svg = fs::read_to_string(stem.with_extension("svg")).unwrap();
        for text in ["two", "iteration", "loss", "one", "other"] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches("<circle").count(), 2, "a dot for each finite point");
        assert_eq!(fs::read_dir(stem.parent().unwrap()).unwrap().count(), 2, "no temporary file is left");
        let decoder = png::Decoder::new(io::BufReader::new(fs::File::open(stem.with_extension("png")).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (WIDTH, HEIGHT));
        for (r, g, b) in [RED, GREEN] {
            let num_pixels = pixels.chunks_exact(3).filter(|pixel| *pixel == [r, g, b]).count();
            assert!(num_pixels > 20, "{num_pixels} pixels of {r} {g} {b}");
        }
    }

    #[test]
    fn pictures_of_long_runs_are_no_larger() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.svg");
        let size = |points| {
            chart(vec![series("one", RED, waves(points))]).write_svg(&path).unwrap();
            fs::metadata(&path).unwrap().len()
        };
        let (short, long) = (size(2_000), size(200_000));
        assert!(long < short * 2, "{short} {long}");
    }

    /// A grid over such a range would otherwise never be finished.
    #[test]
    fn values_of_any_size_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.svg");
        let tiny = f64::from_bits(1);
        for (a, b) in [
            (-1e308, 1e308),
            (f64::MIN, f64::MAX),
            (0.0, f64::MAX),
            (1e308, 1e308 * (1.0 + f64::EPSILON)),
            (1.0, 1.0 + f64::EPSILON),
            (0.0, tiny),
            (-tiny, tiny),
            (1e16, 1e16 + 2.0),
            (f64::from(f32::MAX), -f64::from(f32::MAX)),
        ] {
            chart(vec![series("one", RED, vec![(1.0, a), (2.0, b)])]).write_svg(&path).unwrap();
            chart(vec![series("one", RED, vec![(a, 1.0), (b, 2.0)])]).write_svg(&path).unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() < 100_000);
    }

    #[test]
    fn one_point_is_drawn_and_none_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.svg");
        chart(vec![series("one", RED, vec![(1.0, 5.0)])]).write_svg(&path).unwrap();
        let path = folder.path().join("none.png");
        let error = chart(vec![series("one", RED, vec![(1.0, f64::NAN)])]).write_png(&path).unwrap_err();
        assert!(matches!(error, PlotError::NoPoints { points: 1 }));
        assert!(!path.exists());
    }
}
