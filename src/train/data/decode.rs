//! Images in files: PNG and JPEG, as pixels of bytes.

use std::io::Cursor;
use std::path::Path;

use png::{ColorType, Limits, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::format::FileError;
use crate::types::{QuotedMessage, Tensor};

/// The bytes that a decoder of PNG may take beside the pixels.
const PNG_MEMORY: usize = 64 << 20;

/// The pixels of a PNG or JPEG image, `u8[height,width,channels]` with 1 channel of an image in
/// shades of grey, else 3. Transparency is left out, of 16 bits the upper 8 are taken; profiles of
/// colours and orientations are not applied. An image of more than `most` pixels is refused before
/// memory is taken for them, and so is one that is damaged or cut off. `path` names the file in
/// errors.
///
/// # Errors
/// If it is no such image.
pub fn decode_image(data: &[u8], path: &Path, most: u64) -> Result<Tensor, FileError> {
    let pixels = if data.starts_with(b"\x89PNG\r\n\x1a\n") {
        png(data, most)
    } else if data.starts_with(b"\xff\xd8\xff") {
        jpeg(data, most)
    } else {
        Err("it is neither PNG nor JPEG; save it as one of them".to_owned())
    };
    pixels.map_err(|reason| FileError::content(path, QuotedMessage(&reason).to_string()))
}

/// Fails if an image of these sizes has no pixels or more than `most`.
fn allowed(width: usize, height: usize, most: u64) -> Result<(), String> {
    let pixels = (width as u64).checked_mul(height as u64);
    match pixels {
        Some(pixels) if pixels > 0 && pixels <= most => Ok(()),
        _ => Err(format!("an image has {height} by {width} pixels; 1 to {most} are allowed")),
    }
}

fn png(data: &[u8], most: u64) -> Result<Tensor, String> {
    let said = |e: png::DecodingError| {
        if matches!(e, png::DecodingError::LimitsExceeded) {
            let reason = "it takes more memory than is allowed; save it without what is beside its \
                pixels";
            return reason.to_owned();
        }
        format!("it is not a whole PNG image ({e}); save it again")
    };
    let limits = Limits { bytes: PNG_MEMORY };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(data), limits);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    let mut reader = decoder.read_info().map_err(said)?;
    let size = |size: u32| usize::try_from(size).unwrap_or(usize::MAX);
    let (width, height) = (size(reader.info().width), size(reader.info().height));
    allowed(width, height, most)?;
    let bytes = reader.output_buffer_size().ok_or("its pixels cannot be counted")?;
    let mut pixels = vec![0; bytes];
    let frame = reader.next_frame(&mut pixels).map_err(said)?;
    if (size(frame.width), size(frame.height)) != (width, height) {
        return Err("its first frame is a part of it".to_owned());
    }
    pixels.truncate(frame.buffer_size());
    let (from, channels) = match frame.color_type {
        ColorType::Grayscale => (1, 1),
        ColorType::GrayscaleAlpha => (2, 1),
        ColorType::Rgb => (3, 3),
        ColorType::Rgba => (4, 3),
        ColorType::Indexed => return Err("its palette was not applied".to_owned()),
    };
    if from != channels {
        pixels = pixels.chunks_exact(from).flat_map(|p| p[..channels].iter().copied()).collect();
    }
    Tensor::new(&[height, width, channels], &pixels).map_err(|e| e.to_string())
}

fn jpeg(data: &[u8], most: u64) -> Result<Tensor, String> {
    let said = |e: zune_jpeg::errors::DecodeErrors| format!("it is not a JPEG image: {e:?}");
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(data), options);
    decoder.decode_headers().map_err(said)?;
    let (width, height) = decoder.dimensions().ok_or("it has no sizes")?;
    allowed(width, height, most)?;
    let grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (space, channels) = if grey { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    decoder.set_options(options.jpeg_set_out_colorspace(space));
    if !ends(data) {
        return Err("it is truncated: there is no end marker after its pixels".to_owned());
    }
    let pixels = decoder.decode().map_err(said)?;
    Tensor::new(&[height, width, channels], &pixels).map_err(|e| e.to_string())
}

/// True if the mark of its end is behind the pixels of a JPEG image. A decoder does without it, and
/// makes up the pixels that it does not find.
fn ends(data: &[u8]) -> bool {
    const SCAN: u8 = 0xda;
    const END: &[u8] = &[0xff, 0xd9];
    // The segments before the first scan; one of these may hold an image of its own.
    let mut rest = data.get(2..).unwrap_or_default();
    while let [0xff, mark, after @ ..] = rest {
        match (mark, after) {
            (&SCAN, _) => return after.windows(END.len()).any(|bytes| bytes == END),
            (0xff, _) => rest = &rest[1..],
            (_, [high, low, ..]) => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest = after.get(length..).unwrap_or_default();
            }
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::{Tensor, decode_image};
    use crate::types::DType;

    /// A PNG file.
    pub(crate) fn encode(pixels: &Tensor, color: png::ColorType, depth: png::BitDepth) -> Vec<u8> {
        let mut file = Vec::new();
        let size = |axis: usize| u32::try_from(pixels.dims()[axis]).unwrap();
        let mut encoder = png::Encoder::new(&mut file, size(1), size(0));
        encoder.set_color(color);
        encoder.set_depth(depth);
        if color == png::ColorType::Indexed {
            encoder.set_palette([10u8, 20, 30, 40, 50, 60].as_slice());
            encoder.set_trns([0u8, 255].as_slice());
        }
        encoder.write_header().unwrap().write_image_data(pixels.bytes()).unwrap();
        file
    }

    fn pixels(dims: &[usize]) -> Tensor {
        let mut pixels = Tensor::zeros(DType::U8, dims).unwrap();
        pixels
            .bytes_mut()
            .iter_mut()
            .zip((0..=250).cycle())
            .for_each(|(byte, value)| *byte = value);
        pixels
    }

    fn read(file: &[u8]) -> Result<Tensor, String> {
        decode_image(file, Path::new("a.png"), 1 << 20).map_err(|e| e.to_string())
    }

    #[test]
    fn every_form_of_png_becomes_grey_or_colours() {
        use png::{BitDepth, ColorType};
        for (channels, kept, color) in [
            (1, 1, ColorType::Grayscale),
            (2, 1, ColorType::GrayscaleAlpha),
            (3, 3, ColorType::Rgb),
            (4, 3, ColorType::Rgba),
        ] {
            let image = pixels(&[3, 5, channels]);
            let expected: Vec<u8> =
                image.bytes().chunks(channels).flat_map(|p| p[..kept].to_vec()).collect();
            let expected = Tensor::new(&[3, 5, kept], &expected).unwrap();
            assert_eq!(read(&encode(&image, color, BitDepth::Eight)).unwrap(), expected);
            // The upper byte of two, which are written in that order.
            let wide: Vec<u8> = image.bytes().iter().flat_map(|x| [*x, 77]).collect();
            let wide = Tensor::new(&[3, 5, 2 * channels], &wide).unwrap();
            assert_eq!(read(&encode(&wide, color, BitDepth::Sixteen)).unwrap(), expected);
        }
        let places = Tensor::new(&[1, 3, 1], &[0u8, 1, 0]).unwrap();
        let made = read(&encode(&places, ColorType::Indexed, BitDepth::Eight)).unwrap();
        assert_eq!(made.as_slice::<u8>(), [10, 20, 30, 40, 50, 60, 10, 20, 30]);
    }

    /// The committed image with this name.
    fn image(name: &str) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/images");
        std::fs::read(folder.join(name)).unwrap()
    }

    #[test]
    fn jpeg_images_are_what_another_decoder_makes_of_them() {
        // Colours of fewer pixels than the image has are spread by filters that differ.
        for (name, most) in [("baseline", 4), ("progressive", 4), ("grey", 1), ("subsampled", 12)] {
            let found = read(&image(&format!("{name}.jpg"))).unwrap();
            let expected = read(&image(&format!("{name}.png"))).unwrap();
            assert_eq!(found.dims(), expected.dims(), "{name}");
            let apart =
                found.bytes().iter().zip(expected.bytes()).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(apart <= Some(most), "{name}: {apart:?}");
        }
    }

    #[test]
    fn a_jpeg_image_that_is_cut_off_is_refused() {
        for name in ["baseline.jpg", "progressive.jpg", "grey.jpg"] {
            let whole = image(name);
            for cut in (0..whole.len()).rev().step_by(5) {
                assert!(read(&whole[..cut]).is_err(), "{name} {cut}");
            }
        }
    }

    #[test]
    fn damaged_and_large_images_are_refused() {
        let image = encode(&pixels(&[40, 50, 3]), png::ColorType::Rgb, png::BitDepth::Eight);
        for cut in (0..image.len() - 20).step_by(7) {
            assert!(read(&image[..cut]).is_err(), "{cut}");
        }
        let error = decode_image(&image, Path::new("a.png"), 1999).unwrap_err().to_string();
        assert!(error.contains("40 by 50 pixels; 1 to 1999"), "{error}");
        assert!(read(b"GIF89a").unwrap_err().contains("neither PNG nor JPEG"));
        // A header that says more pixels than a file can have: the checksum is that of the header.
        let mut header = b"IHDR".to_vec();
        header.extend([0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 8, 2, 0, 0, 0]);
        let mut bomb = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
        bomb.extend(&header);
        bomb.extend(0x6c1a_ef0eu32.to_be_bytes());
        assert!(read(&bomb).is_err());
    }
}
