//! A drawing as a file `.svg`.

use super::chart::{Anchor, Colour, Drawing, FONT, Mark};
use crate::ir::picture::escaped;

fn colour([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The text of the file.
pub(super) fn text(drawing: &Drawing) -> String {
    let (w, h) = (drawing.width, drawing.height);
    let head = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} \
         {h}\" \
         font-family=\"'DejaVu Sans',Verdana,sans-serif\" font-size=\"{FONT}\" \
         fill=\"#3c3c3c\">\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n"
    );
    let marks: Vec<String> = drawing.marks.iter().map(element).collect();
    head + &marks.concat() + "</svg>\n"
}

fn element(mark: &Mark) -> String {
    match mark {
        Mark::Line { places, colour: own, width } => {
            let places: Vec<String> =
                places.iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
            let (places, own) = (places.join(" "), colour(*own));
            format!(
                "<polyline points=\"{places}\" fill=\"none\" stroke=\"{own}\" \
                 stroke-width=\"{width}\"/>\n"
            )
        }
        Mark::Text { at: (x, y), text, anchor } => {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let text = escaped(text);
            format!(
                "<text x=\"{x:.2}\" y=\"{y:.2}\" dy=\"0.35em\" \
                 text-anchor=\"{anchor}\">{text}</text>\n"
            )
        }
    }
}
