//! Pictures as every provider takes them: at most [`LARGEST_BASE64`] characters and [`LONGEST_SIDE`] pixels a
//! side, and known to be whole. One that a provider refuses would spoil every later request of its session.

use std::io::Cursor;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::codecs::jpeg::JpegEncoder;
use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder as _, ImageFormat, ImageReader, Limits, Rgb, RgbImage};

/// Files of more than this are not looked into.
pub(crate) const LARGEST_FILE: u64 = 64 * 1024 * 1024;
/// 4.5 MiB; the strictest provider's limit is 5 MB.
pub(crate) const LARGEST_BASE64: usize = 4_718_592;
/// What is larger is scaled down to this: models see no more than that, and some refuse it among many images.
pub(crate) const LONGEST_SIDE: u32 = 2000;
/// Decoded, a picture takes up to four bytes for each of them.
const MOST_PIXELS: u64 = 100_000_000;

/// Of a decoded picture.
const MOST_MEMORY: u64 = 512 * 1024 * 1024;

/// A picture for a model.
pub(crate) struct Picture {
    /// Base64.
    pub data: String,
    pub mime_type: &'static str,
    /// Its kind and size, and what was done to it.
    pub about: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("it is broken ({0})")]
    Broken(image::ImageError),
    #[error("{0}×{1} pixels are too many")]
    TooManyPixels(u32, u32),
    #[error("it is too large to be decoded or cannot be made small enough")]
    TooLarge,
}

/// The kind of a picture that models take, by the file's first bytes.
pub(crate) fn format_of(begin: &[u8]) -> Option<ImageFormat> {
    image::guess_format(begin)
        .ok()
        .filter(|format| matches!(format, ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::Gif | ImageFormat::WebP))
}

pub(crate) fn dimensions(bytes: &[u8], format: ImageFormat) -> Option<(u32, u32)> {
    ImageReader::with_format(Cursor::new(bytes), format).into_dimensions().ok()
}

pub(crate) fn prepare(bytes: Vec<u8>, format: ImageFormat) -> Result<Picture, ImageError> {
    // One at a time: a decoded picture may take 400 MB. Nothing else is done under this lock.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);

    if let Some((width, height)) = dimensions(&bytes, format)
        && u64::from(width) * u64::from(height) > MOST_PIXELS
    {
        return Err(ImageError::TooManyPixels(width, height));
    }
    // Decoded even if it is sent as it is: a torn file must not reach a provider.
    let (mut picture, orientation) = decode(&bytes, format).map_err(|error| match error {
        image::ImageError::Limits(_) => ImageError::TooLarge,
        error => ImageError::Broken(error),
    })?;
    let (width, height) = (picture.width(), picture.height());
    let base64_len = bytes.len().div_ceil(3) * 4;
    if width.max(height) <= LONGEST_SIDE && base64_len <= LARGEST_BASE64 {
        let mime_type = format.to_mime_type();
        let about = format!("{mime_type}, {width}×{height} px");
        return Ok(Picture { data: STANDARD.encode(&bytes), mime_type, about });
    }
    drop(bytes);
    if width.max(height) > LONGEST_SIDE {
        picture = scaled(&picture, LONGEST_SIDE);
    }
    picture.apply_orientation(orientation);
    let (encoded, kind, picture) = encode(picture, format)?;
    let about =
        format!("{}, scaled from {width}×{height} to {}×{} px", kind.to_mime_type(), picture.width(), picture.height());
    Ok(Picture { data: STANDARD.encode(encoded), mime_type: kind.to_mime_type(), about })
}

fn decode(bytes: &[u8], format: ImageFormat) -> image::ImageResult<(DynamicImage, Orientation)> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_MEMORY);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    Ok((DynamicImage::from_decoder(decoder)?, orientation))
}

/// The best form that is small enough: without loss first (unless it was a photograph), then with some, then
/// smaller.
fn encode(mut picture: DynamicImage, format: ImageFormat) -> Result<(Vec<u8>, ImageFormat, DynamicImage), ImageError> {
    let fits = |bytes: &Vec<u8>| bytes.len().div_ceil(3) * 4 <= LARGEST_BASE64;
    loop {
        if format != ImageFormat::Jpeg {
            let plain = DynamicImage::ImageRgba8(picture.to_rgba8());
            let mut bytes = Vec::new();
            plain.write_to(Cursor::new(&mut bytes), ImageFormat::Png).map_err(ImageError::Broken)?;
            if fits(&bytes) {
                return Ok((bytes, ImageFormat::Png, picture));
            }
        }
        let opaque = on_white(&picture);
        for quality in [85, 60] {
            let mut bytes = Vec::new();
            let mut encoder = JpegEncoder::new_with_quality(&mut bytes, quality);
            encoder.encode_image(&opaque).map_err(ImageError::Broken)?;
            if fits(&bytes) {
                return Ok((bytes, ImageFormat::Jpeg, picture));
            }
        }
        let side = picture.width().max(picture.height()) * 2 / 3;
        if side < 64 {
            return Err(ImageError::TooLarge);
        }
        picture = scaled(&picture, side);
    }
}

/// The same picture with its longer side so long.
fn scaled(picture: &DynamicImage, side: u32) -> DynamicImage {
    if picture.width().max(picture.height()) >= 2 * side {
        // As good at this factor, in a fraction of the time, and without another copy of the large picture.
        picture.thumbnail(side, side)
    } else {
        picture.resize(side, side, FilterType::Triangle)
    }
}

fn on_white(picture: &DynamicImage) -> RgbImage {
    let rgba = picture.to_rgba8();
    RgbImage::from_fn(rgba.width(), rgba.height(), |x, y| {
        let [r, g, b, a] = rgba.get_pixel(x, y).0;
        let blend = |c: u8| ((u16::from(c) * u16::from(a) + 255 * (255 - u16::from(a))) / 255) as u8;
        Rgb([blend(r), blend(g), blend(b)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(width: u32, height: u32) -> DynamicImage {
        let mut state = 1u32;
        DynamicImage::ImageRgb8(RgbImage::from_fn(width, height, |_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [a, b, c, _] = state.to_be_bytes();
            Rgb([a, b, c])
        }))
    }

    fn encoded(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Vec::new();
        picture.write_to(Cursor::new(&mut bytes), format).unwrap();
        bytes
    }

    #[track_caller]
    fn check(bytes: Vec<u8>, want: &str) -> Picture {
        let format = format_of(&bytes).unwrap();
        let picture = prepare(bytes, format).unwrap();
        assert!(picture.data.len() <= LARGEST_BASE64);
        assert!(picture.about.contains(want), "{}", picture.about);
        let sent = STANDARD.decode(&picture.data).unwrap();
        let (width, height) = dimensions(&sent, format_of(&sent).unwrap()).unwrap();
        assert!(width.max(height) <= LONGEST_SIDE);
        assert_eq!(format_of(&sent).unwrap().to_mime_type(), picture.mime_type);
        picture
    }

    #[test]
    fn pictures_are_sent_as_they_are_or_scaled() {
        for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Gif, ImageFormat::WebP] {
            let bytes = encoded(&noise(30, 20), format);
            let picture = check(bytes.clone(), "30×20 px");
            assert_eq!(STANDARD.decode(picture.data).unwrap(), bytes);
        }
        let wide = DynamicImage::ImageRgb8(RgbImage::new(8001, 16));
        check(encoded(&wide, ImageFormat::Png), "scaled from 8001×16 to 2000×4 px");
        // 4.5 MB and more of what cannot be packed.
        let heavy = encoded(&noise(1300, 1300), ImageFormat::Png);
        assert!(heavy.len() > 4_700_000);
        check(heavy, "image/jpeg, scaled from 1300×1300");
    }

    #[test]
    fn broken_and_monstrous_pictures_are_refused() {
        let mut torn = encoded(&noise(64, 64), ImageFormat::Png);
        torn.truncate(torn.len() / 2);
        assert!(matches!(prepare(torn, ImageFormat::Png), Err(ImageError::Broken(_))));
        // A header that promises 100,000 × 100,000 pixels.
        let mut bomb = encoded(&noise(2, 2), ImageFormat::Png);
        bomb[16..24].copy_from_slice(&[0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0]);
        let crc = crc32fast::hash(&bomb[12..29]);
        bomb[29..33].copy_from_slice(&crc.to_be_bytes());
        assert!(matches!(prepare(bomb, ImageFormat::Png), Err(ImageError::TooManyPixels(100_000, 100_000))));
        assert_eq!(format_of(b"BM\0\0"), None);
        assert_eq!(format_of(b""), None);
    }

    #[test]
    fn what_was_transparent_becomes_white() {
        let clear = DynamicImage::ImageRgba8(image::RgbaImage::from_pixel(2, 2, image::Rgba([9, 9, 9, 0])));
        assert_eq!(on_white(&clear).get_pixel(0, 0).0, [255, 255, 255]);
    }
}
