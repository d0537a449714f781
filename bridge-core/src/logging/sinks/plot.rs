//! The loss curve as a picture: training (raw and smoothed) and validation, as SVG and PNG.
//! No system fonts or C libraries are needed; the font comes with a crate.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::{RGBColor, register_font};
use serde_json::{Map, Value};

use super::metrics_jsonl::read_metrics;
use crate::logging::record::RunEnd;
use crate::logging::sink::{Opened, Sink, SinkContext, SinkError};

/// Losses to draw. Points are (iteration, loss); those that are not finite are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossPlot {
    /// Shown above the curves.
    pub title: String,
    /// Training losses.
    pub train: Vec<(u64, f64)>,
    /// Validation losses.
    pub validation: Vec<(u64, f64)>,
}

/// A picture that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// No finite loss.
    #[error("nothing to plot: no finite loss among {train} training and {validation} validation points")]
    NoPoints {
        /// Training points given.
        train: usize,
        /// Validation points given.
        validation: usize,
    },
    /// Drawing failed.
    #[error("cannot draw {}: {reason}", path.display())]
    Draw {
        /// The file.
        path: PathBuf,
        /// What the drawing library says.
        reason: String,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

const WIDTH: u32 = 960;
const HEIGHT: u32 = 560;
/// The PNG is drawn this much larger and averaged down, which smooths every edge.
const SUPERSAMPLING: u32 = 3;
const FONT: &str = "sans-serif";

const INK: RGBColor = RGBColor(38, 42, 48);
const GRID: RGBColor = RGBColor(225, 228, 232);
const FAINT_GRID: RGBColor = RGBColor(243, 244, 246);
const TRAIN: RGBColor = RGBColor(31, 111, 190);
const TRAIN_RAW: RGBColor = RGBColor(168, 200, 231);
const VALIDATION: RGBColor = RGBColor(221, 107, 32);

impl LossPlot {
    /// Reads the curves from records of `metrics.jsonl`: `loss` of the kinds `train` and `valid`.
    pub fn from_metrics(title: &str, records: &[Map<String, Value>]) -> Self {
        let curve = |kind: &str| {
            let of_kind = records.iter().filter(|record| record.get("kind").and_then(Value::as_str) == Some(kind));
            of_kind
                .filter_map(|record| Some((record.get("iteration")?.as_u64()?, record.get("loss")?.as_f64()?)))
                .collect()
        };
        Self { title: title.to_owned(), train: curve("train"), validation: curve("valid") }
    }

    /// Writes an SVG file.
    ///
    /// # Errors
    /// No finite point, or file errors.
    pub fn write_svg(&self, path: &Path) -> Result<(), PlotError> {
        let curves = Curves::new(self)?;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
            draw(&root, &self.title, &curves, 1).map_err(draw_error(path))?;
        }
        replace(path, svg.as_bytes())
    }

    /// Writes a PNG file.
    ///
    /// # Errors
    /// No finite point, or file errors.
    pub fn write_png(&self, path: &Path) -> Result<(), PlotError> {
        let curves = Curves::new(self)?;
        let (width, height) = (WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING);
        let mut pixels = vec![255; (width * height * 3) as usize];
        {
            let root = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
            draw(&root, &self.title, &curves, SUPERSAMPLING).map_err(draw_error(path))?;
        }
        let png = encode_png(&average_down(&pixels)).map_err(|error| draw_error(path)(error.to_string()))?;
        replace(path, &png)
    }
}

fn draw_error(path: &Path) -> impl FnOnce(String) -> PlotError {
    let path = path.to_owned();
    move |reason| PlotError::Draw { path, reason }
}

/// Writes the file in one step, because a viewer may have it open.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), PlotError> {
    let temporary = path.with_extension("tmp");
    let write = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&temporary, bytes)?;
        fs::rename(&temporary, path)
    };
    write().map_err(|source| PlotError::Io { path: path.to_owned(), source })
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

type Curve = Vec<(f64, f64)>;

/// What is drawn, and the part of the plane it lies in.
struct Curves {
    train: Curve,
    smoothed: Curve,
    validation: Curve,
    x: Range<f64>,
    y: Range<f64>,
}

impl Curves {
    fn new(plot: &LossPlot) -> Result<Self, PlotError> {
        let finite = |points: &[(u64, f64)]| -> Curve {
            let points = points.iter().filter(|(_, loss)| loss.is_finite());
            points.map(|(iteration, loss)| (*iteration as f64, *loss)).collect()
        };
        let (train, validation) = (finite(&plot.train), finite(&plot.validation));
        let all = || train.iter().chain(&validation);
        if all().next().is_none() {
            return Err(PlotError::NoPoints { train: plot.train.len(), validation: plot.validation.len() });
        }
        let range = |values: &mut dyn Iterator<Item = f64>, margin: f64| {
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
            // A single point, or a constant loss, still needs some room around it.
            let size = if high > low { (high - low) * margin } else { (high.abs() * 0.1).max(0.5) };
            low - size..high + size
        };
        let x = range(&mut all().map(|point| point.0), 0.015);
        let y = range(&mut all().map(|point| point.1), 0.06);
        let smoothed = smooth(&train);
        Ok(Self { train, smoothed, validation, x, y })
    }
}

/// A centred moving average, applied twice so that it rolls off softly. Being centred it does not lag behind a falling
/// loss; towards the ends the window shrinks on both sides alike.
fn smooth(curve: &[(f64, f64)]) -> Curve {
    let half_width = (curve.len() / 60).clamp(1, 100);
    let pass = |curve: &[(f64, f64)]| -> Curve {
        let mut sums = vec![0.0];
        sums.extend(curve.iter().scan(0.0, |sum, (_, y)| {
            *sum += y;
            Some(*sum)
        }));
        let average = |(i, (x, _)): (usize, &(f64, f64))| {
            let reach = half_width.min(i).min(curve.len() - 1 - i);
            let window = i - reach..i + reach + 1;
            (*x, (sums[window.end] - sums[window.start]) / window.len() as f64)
        };
        curve.iter().enumerate().map(average).collect()
    };
    pass(&pass(curve))
}

/// Ten curve points and more are smoothed; fewer are marked one by one.
const MIN_SMOOTHED: usize = 10;

/// `scale` multiplies all sizes.
fn draw<DB: DrawingBackend>(
    root: &DrawingArea<DB, plotters::coord::Shift>,
    title: &str,
    curves: &Curves,
    scale: u32,
) -> Result<(), String> {
    for style in [FontStyle::Normal, FontStyle::Bold] {
        register_font(FONT, style, epaint_default_fonts::UBUNTU_LIGHT).map_err(|_| "the font is damaged".to_owned())?;
    }
    let draw = || -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(root)
            .margin(16 * scale)
            .margin_right(28 * scale)
            .caption(title, (FONT, 26 * scale).into_font().color(&INK))
            .x_label_area_size(52 * scale)
            .y_label_area_size(66 * scale)
            .build_cartesian_2d(curves.x.clone(), curves.y.clone())?;
        let digits = decimals(&curves.y);
        let (whole, fixed) = (|x: &f64| format!("{x:.0}"), |y: &f64| format!("{y:.digits$}"));
        chart
            .configure_mesh()
            .x_desc("iteration")
            .y_desc("loss")
            .x_labels(if curves.x.end - curves.x.start < 8.0 { 4 } else { 10 })
            .y_labels(8)
            .x_label_formatter(&whole)
            .y_label_formatter(&fixed)
            .axis_desc_style((FONT, 18 * scale).into_font().color(&INK))
            .label_style((FONT, 15 * scale).into_font().color(&INK))
            .axis_style(INK.stroke_width(scale))
            .bold_line_style(GRID.stroke_width(scale))
            .light_line_style(FAINT_GRID.stroke_width(scale))
            .max_light_lines(2)
            .draw()?;
        draw_curves(&mut chart, curves, scale)?;
        chart
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

type Chart<'a, DB> = ChartContext<'a, DB, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn draw_curves<DB: DrawingBackend>(
    chart: &mut Chart<'_, DB>,
    curves: &Curves,
    scale: u32,
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let key = move |style: ShapeStyle| {
        move |(x, y): (i32, i32)| PathElement::new(vec![(x, y), (x + 22 * scale as i32, y)], style)
    };
    let is_smoothed = curves.train.len() >= MIN_SMOOTHED;
    if is_smoothed {
        let raw = TRAIN_RAW.stroke_width(scale);
        chart.draw_series(LineSeries::new(curves.train.iter().copied(), raw))?.label("training").legend(key(raw));
        let bold = TRAIN.stroke_width(2 * scale);
        chart
            .draw_series(LineSeries::new(curves.smoothed.iter().copied(), bold))?
            .label("training, smoothed")
            .legend(key(bold));
    } else if !curves.train.is_empty() {
        let bold = TRAIN.stroke_width(2 * scale);
        chart.draw_series(LineSeries::new(curves.train.iter().copied(), bold))?.label("training").legend(key(bold));
        let dots = curves.train.iter().map(|point| Circle::new(*point, 3 * scale, TRAIN.filled()));
        chart.draw_series(dots)?;
    }
    if !curves.validation.is_empty() {
        let line = VALIDATION.stroke_width(2 * scale);
        chart
            .draw_series(LineSeries::new(curves.validation.iter().copied(), line))?
            .label("validation")
            .legend(key(line));
        let dots = curves.validation.iter().map(|point| Circle::new(*point, 4 * scale, VALIDATION.filled()));
        chart.draw_series(dots)?;
    }
    Ok(())
}

/// Decimals that tell neighbouring labels of about eight over the range apart.
fn decimals(range: &Range<f64>) -> usize {
    let spacing = (range.end - range.start) / 8.0;
    (-spacing.log10().floor()).clamp(0.0, 12.0) as usize
}

/// Draws what `metrics.jsonl` holds when the run is over.
struct Pictures {
    title: String,
    folder: PathBuf,
}

pub(super) fn open(context: &SinkContext) -> Opened {
    let (name, logger) = (&context.config.name, &context.config.logger);
    if !(logger.plot && logger.metrics_jsonl) {
        return Ok(None);
    }
    Ok(Some(Box::new(Pictures { title: name.clone(), folder: logger.log_dir.clone() })))
}

impl Pictures {
    fn draw(&self) -> Result<(), SinkError> {
        let plot = LossPlot::from_metrics(&self.title, &read_metrics(&self.folder.join("metrics.jsonl"))?);
        plot.write_svg(&self.folder.join("loss.svg"))?;
        Ok(plot.write_png(&self.folder.join("loss.png"))?)
    }
}

impl Sink for Pictures {
    fn name(&self) -> &str {
        "the plot of the loss"
    }

    fn on_run_end(&mut self, end: &mut RunEnd) -> Result<(), SinkError> {
        if let Err(error) = self.draw() {
            end.warnings.push(format!("no plot of the loss: {error}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::metrics_jsonl::MetricsFile;
    use super::super::metrics_jsonl::tests::fields;
    use super::*;

    fn plot() -> LossPlot {
        let loss = |i: u64| 1.8 + 7.0 / (1.0 + i as f64 / 40.0) + 0.35 * (i as f64 * 12.9898).sin();
        LossPlot {
            title: "tiny: loss".into(),
            train: (1..=600).map(|i| (i, if i == 77 { f64::NAN } else { loss(i) })).collect(),
            validation: (1..=6).map(|i| (i * 100, 2.0 + 7.0 / (1.0 + i as f64 * 2.5))).collect(),
        }
    }

    #[test]
    fn svg_has_title_labels_and_curves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plots/loss.svg");
        plot().write_svg(&path).unwrap();
        let svg = fs::read_to_string(&path).unwrap();
        for text in ["tiny: loss", "iteration", "training, smoothed", "validation"] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches("<circle").count(), 6, "one dot for each validation point");
        assert!(svg.matches("<polyline").count() >= 3);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn png_has_both_colours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loss.png");
        plot().write_png(&path).unwrap();
        let decoder = png::Decoder::new(io::BufReader::new(fs::File::open(&path).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (WIDTH, HEIGHT));
        for RGBColor(r, g, b) in [TRAIN, VALIDATION] {
            let num_pixels = pixels.chunks_exact(3).filter(|pixel| *pixel == [r, g, b]).count();
            assert!(num_pixels > 20, "{num_pixels} pixels of {r} {g} {b}");
        }
    }

    #[test]
    fn short_and_constant_curves_are_drawn_too() {
        let folder = tempfile::tempdir().unwrap();
        for (name, train) in [("one", vec![(1, 5.0)]), ("constant", vec![(1, 2.0), (2, 2.0)])] {
            let path = folder.path().join(name).with_extension("svg");
            let few = LossPlot { train: train.clone(), ..LossPlot::default() };
            few.write_svg(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap().matches("<circle").count(), train.len());
        }
        let nothing = LossPlot { train: vec![(1, f64::NAN)], ..LossPlot::default() };
        let path = folder.path().join("nothing.png");
        assert!(matches!(nothing.write_png(&path), Err(PlotError::NoPoints { train: 1, validation: 0 })));
        assert!(!path.exists());
    }

    #[test]
    fn curves_come_from_the_metrics_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsFile::open(&path, 0).unwrap();
        writer.write(&fields("train", 1, [("loss", 5.5_f32.into())])).unwrap();
        writer.write(&fields("train", 2, [("loss", f32::NAN.into())])).unwrap();
        writer.write(&fields("valid", 2, [("loss", 5.25_f32.into())])).unwrap();
        let plot = LossPlot::from_metrics("t", &read_metrics(&path).unwrap());
        assert_eq!((plot.train, plot.validation), (vec![(1, 5.5)], vec![(2, 5.25)]));
    }

    #[test]
    fn smoothing_averages_without_lag() {
        let line: Curve = (0..300).map(|i| (f64::from(i), 9.0 - 0.01 * f64::from(i))).collect();
        let noisy: Curve = line.iter().enumerate().map(|(i, (x, y))| (*x, y + [0.1, -0.1][i % 2])).collect();
        for (i, (smoothed, exact)) in smooth(&noisy).iter().zip(&line).enumerate() {
            let tolerance = if (10..290).contains(&i) { 0.01 } else { 0.11 };
            assert!((smoothed.1 - exact.1).abs() < tolerance, "{i}: {} {}", smoothed.1, exact.1);
        }
        assert_eq!(smooth(&[]), []);
    }
}
