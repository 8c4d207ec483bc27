//! Images, looked at without decoding them: whether a provider takes one, and how many pixels it has.

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use kli_protocol::record::{Block, ImageBlock};

/// The strictest provider's limit on the base64 text of one image.
const MAX_BASE64: usize = 5 * 1024 * 1024;
/// And on its longer side, in pixels.
const MAX_SIDE: u32 = 8000;
/// How much of an image is looked at: a JPEG's size comes after its thumbnails and profiles.
const HEAD: usize = 256 * 1024;

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The image as it may be sent, or a text that stands in for it: one bad image would block the session for good.
pub(super) fn sendable(mut image: ImageBlock) -> Block {
    if image.data.is_empty() {
        return Block::text("[image without data]");
    }
    if image.data.len() > MAX_BASE64 {
        let mib = image.data.len().div_ceil(1024 * 1024);
        return Block::text(format!("[image left out: {mib} MiB, too large to send]"));
    }
    if !is_base64(&image.data) {
        return Block::text("[image left out: its data is damaged]");
    }
    if let Some(head) = Head::read(&image.data) {
        if head.width.max(head.height) > MAX_SIDE {
            return Block::text(format!("[image left out: {}x{} pixels, too large to send]", head.width, head.height));
        }
        // Providers refuse an image whose type is not what was said.
        if image.mime_type != head.mime {
            head.mime.clone_into(&mut image.mime_type);
        }
    }
    match image.mime_type.as_str() {
        "image/png" | "image/jpeg" | "image/gif" | "image/webp" => Block::Image(image),
        "image/jpg" => {
            "image/jpeg".clone_into(&mut image.mime_type);
            Block::Image(image)
        }
        other => Block::text(format!("[image left out: no provider takes {other:?}]")),
    }
}

/// Width and height, where the format is known.
pub(super) fn size(image: &ImageBlock) -> Option<(u32, u32)> {
    Head::read(&image.data).map(|head| (head.width, head.height))
}

fn is_base64(data: &str) -> bool {
    let body = data.trim_end_matches('=');
    data.len() - body.len() <= 2 && body.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
}

struct Head {
    mime: &'static str,
    width: u32,
    height: u32,
}

impl Head {
    fn read(base64: &str) -> Option<Head> {
        let cut = base64.len().min(HEAD / 3 * 4);
        let text = base64.get(..cut)?;
        let small = LENIENT.decode(text.get(..text.len().min(64))?).ok()?;
        Head::png(&small).or_else(|| Head::gif(&small)).or_else(|| Head::webp(&small)).or_else(|| {
            // Only a JPEG has its size further down.
            small.starts_with(&[0xff, 0xd8]).then(|| LENIENT.decode(text).ok()).flatten().and_then(|b| Head::jpeg(&b))
        })
    }

    fn png(b: &[u8]) -> Option<Head> {
        b.starts_with(b"\x89PNG\r\n\x1a\n").then_some(())?;
        Some(Head { mime: "image/png", width: be32(b, 16)?, height: be32(b, 20)? })
    }

    fn gif(b: &[u8]) -> Option<Head> {
        (b.starts_with(b"GIF87a") || b.starts_with(b"GIF89a")).then_some(())?;
        Some(Head { mime: "image/gif", width: le16(b, 6)?, height: le16(b, 8)? })
    }

    fn webp(b: &[u8]) -> Option<Head> {
        (b.starts_with(b"RIFF") && b.get(8..12)? == b"WEBP").then_some(())?;
        let (width, height) = match b.get(12..16)? {
            b"VP8 " => (le16(b, 26)? & 0x3fff, le16(b, 28)? & 0x3fff),
            b"VP8L" => {
                let bits = le16(b, 21)? | le16(b, 23)? << 16;
                ((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1)
            }
            b"VP8X" => {
                ((le16(b, 24)? | u32::from(*b.get(26)?) << 16) + 1, (le16(b, 27)? | u32::from(*b.get(29)?) << 16) + 1)
            }
            _ => return None,
        };
        Some(Head { mime: "image/webp", width, height })
    }

    /// Walks the segments up to the frame header.
    fn jpeg(b: &[u8]) -> Option<Head> {
        let mut at = 2;
        loop {
            while *b.get(at)? != 0xff {
                at += 1;
            }
            let marker = *b.get(at + 1)?;
            match marker {
                0xff => at += 1,
                0x01 | 0xd0..=0xd9 => at += 2,
                0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                    return Some(Head { mime: "image/jpeg", width: be16(b, at + 7)?, height: be16(b, at + 5)? });
                }
                _ => at += 2 + usize::try_from(be16(b, at + 2)?).ok()?.max(2),
            }
        }
    }
}

fn be16(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16::from_be_bytes(b.get(at..at + 2)?.try_into().ok()?)))
}

fn le16(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16::from_le_bytes(b.get(at..at + 2)?.try_into().ok()?)))
}

fn be32(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

/// Used by tests of other modules to make images.
#[cfg(test)]
pub(super) fn png(width: u32, height: u32, bytes: usize) -> ImageBlock {
    let mut b = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    b.extend(width.to_be_bytes());
    b.extend(height.to_be_bytes());
    b.resize(bytes.max(b.len()), 7);
    ImageBlock { data: base64::engine::general_purpose::STANDARD.encode(b), mime_type: "image/png".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(bytes: &[u8], mime: &str) -> ImageBlock {
        ImageBlock { data: base64::engine::general_purpose::STANDARD.encode(bytes), mime_type: mime.into() }
    }

    #[test]
    fn sizes() {
        let jpeg = [
            &[0xff, 0xd8, 0xff, 0xe0, 0, 4, 1, 2][..],
            &[0xff, 0xff, 0xc0, 0, 11, 8, 0x01, 0x02, 0x03, 0x04, 3, 0, 0, 0],
        ]
        .concat();
        let mut vp8x = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".to_vec();
        vp8x.extend([0xff, 0x03, 0, 0xff, 0x01, 0]);
        for (image, want) in [
            (png(300, 200, 60), Some((300, 200))),
            (image(b"GIF89a\x0a\x00\x14\x00", "image/gif"), Some((10, 20))),
            (image(&jpeg, "image/jpeg"), Some((0x0304, 0x0102))),
            (image(&vp8x, "image/webp"), Some((1024, 512))),
            (image(b"BM", "image/bmp"), None),
            (ImageBlock { data: "é".repeat(40), mime_type: "image/png".into() }, None),
        ] {
            assert_eq!(size(&image), want);
        }
    }

    #[test]
    fn what_is_sent() {
        let sent = |image: ImageBlock| match sendable(image) {
            Block::Image(image) => image.mime_type,
            other => other.as_text().unwrap_or_default().to_owned(),
        };
        let big = ImageBlock { data: "A".repeat(MAX_BASE64 + 4), mime_type: "image/png".into() };
        for (image, want) in [
            (png(8, 8, 60), "image/png"),
            (ImageBlock { mime_type: "image/jpeg".into(), ..png(8, 8, 60) }, "image/png"),
            (image(b"unknown", "image/jpg"), "image/jpeg"),
            (png(9600, 7700, 60), "[image left out: 9600x7700 pixels, too large to send]"),
            (big, "[image left out: 6 MiB, too large to send]"),
            (image(b"BM", "image/bmp"), "[image left out: no provider takes \"image/bmp\"]"),
            (ImageBlock::default(), "[image without data]"),
            (ImageBlock { data: "a b".into(), ..Default::default() }, "[image left out: its data is damaged]"),
        ] {
            assert_eq!(sent(image), want);
        }
    }
}
