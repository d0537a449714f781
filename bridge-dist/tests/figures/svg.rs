//! Just enough SVG: boxes and text in colours that can be read on light and on dark pages.

use std::fmt::Write;

/// Fills, one a class: `f0`, `f1`, ... Text inside boxes is white, so they are all of middling
/// lightness.
const FILLS: [&str; 8] = ["#3b6fd4", "#c8641b", "#2f8a4c", "#8a4fc0", "#b23a5e", "#1f8a99", "#8a7a1f", "#6b7280"];

/// Number of fills.
pub const NUM_FILLS: usize = FILLS.len();

/// Builder of a drawing. Lengths are in pixels.
pub struct Svg {
    width: u32,
    height: u32,
    body: String,
}

/// A rectangle.
#[derive(Clone, Copy)]
pub struct Area {
    pub x: u32,
    pub y: u32,
    pub width: u32,
    pub height: u32,
}

impl Svg {
    pub fn new(width: u32, height: u32) -> Self {
        Self { width, height, body: String::new() }
    }

    /// A box of fill number `fill` with a short text in its middle.
    pub fn labelled_box(&mut self, area: Area, fill: usize, label: &str) {
        let Area { x, y, width, height } = area;
        let fill = fill % NUM_FILLS;
        writeln!(self.body, r#"<rect class="f{fill}" x="{x}" y="{y}" width="{width}" height="{height}" rx="2"/>"#)
            .unwrap();
        let (middle, line) = (x + width / 2, y + height / 2 + 4);
        writeln!(self.body, r#"<text class="b" x="{middle}" y="{line}">{}</text>"#, escape(label)).unwrap();
    }

    /// Text that starts at `x`.
    pub fn text(&mut self, x: u32, y: u32, text: &str) {
        writeln!(self.body, r#"<text x="{x}" y="{y}">{}</text>"#, escape(text)).unwrap();
    }

    /// A heading that starts at `x`.
    pub fn heading(&mut self, x: u32, y: u32, text: &str) {
        writeln!(self.body, r#"<text class="h" x="{x}" y="{y}">{}</text>"#, escape(text)).unwrap();
    }

    /// The file. `title` is read by screen readers.
    pub fn finish(self, title: &str) -> String {
        let Self { width, height, body } = self;
        let fills: String = FILLS.iter().enumerate().map(|(i, fill)| format!(".f{i}{{fill:{fill}}}")).collect();
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{}</title>
<style>text{{font:12px sans-serif;fill:#1f2328}}.h{{font-weight:600}}.b{{font-size:11px;fill:#fff;text-anchor:middle}}{fills}
@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}.b{{fill:#fff}}}}</style>
{body}</svg>
"##,
            escape(title)
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
