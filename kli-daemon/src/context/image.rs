//! Images, looked at without decoding their pixels: whether a provider takes one, and how many pixels it has.

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use kli_protocol::record::{Block, ImageBlock};

/// The strictest provider's limit on the base64 text of one image.
const MAX_BASE64: usize = 5 * 1024 * 1024;
/// And on its longer side, in pixels.
const MAX_SIDE: u32 = 8000;
/// How much of an image is looked at: a JPEG's size comes after its thumbnails and profiles.
const HEAD: usize = 256 * 1024;

/// What a JPEG begins with.
const JPEG: &[u8] = &[0xff, 0xd8];

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
    let Ok(bytes) = LENIENT.decode(&image.data) else {
        return Block::text("[image left out: its data is damaged]");
    };
    let Some(head) = Head::of(&bytes) else { return Block::text(unknown(&image.mime_type)) };
    if head.width.max(head.height) > MAX_SIDE {
        return Block::text(format!("[image left out: {}x{} pixels, too large to send]", head.width, head.height));
    }
    if head.width.min(head.height) == 0 || !is_whole(head.mime, &bytes) {
        return Block::text("[image left out: its data is damaged]");
    }
    // Providers refuse an image whose type is not what was said, and base64 without its padding.
    if image.mime_type != head.mime {
        head.mime.clone_into(&mut image.mime_type);
    }
    if !ends_well(&image.data) {
        image.data = STANDARD.encode(&bytes);
    }
    Block::Image(image)
}

/// Whether base64 that can be decoded ends as strict readers want it: that shows in its last four characters.
fn ends_well(data: &str) -> bool {
    data.len().is_multiple_of(4) && data.get(data.len() - 4..).is_some_and(|end| STANDARD.decode(end).is_ok())
}

/// What is said in place of bytes of no format that providers take.
fn unknown(mime: &str) -> String {
    match mime {
        "image/png" | "image/jpeg" | "image/jpg" | "image/gif" | "image/webp" => {
            "[image left out: its data is no PNG, JPEG, GIF or WebP picture]".into()
        }
        other => format!("[image left out: no provider takes {other:?}]"),
    }
}

/// Width and height, where the format is known.
pub(super) fn size(image: &ImageBlock) -> Option<(u32, u32)> {
    Head::read(&image.data).map(|head| (head.width, head.height))
}

/// Whether nothing is missing or broken that can be seen without decoding pixels.
fn is_whole(mime: &str, b: &[u8]) -> bool {
    match mime {
        "image/png" => is_whole_png(b).unwrap_or_default(),
        "image/jpeg" => b.windows(2).rev().any(|end| end == [0xff, 0xd9]),
        // Zeros behind the end are common.
        "image/gif" => b.iter().rfind(|byte| **byte != 0) == Some(&0x3b),
        _ => le32(b, 4).and_then(|len| usize::try_from(len).ok()).is_some_and(|len| len <= b.len() - 8),
    }
}

/// Goes from chunk to chunk up to the last; of those without which there is no picture the sums must be right.
fn is_whole_png(b: &[u8]) -> Option<bool> {
    let mut at = 8_usize;
    loop {
        let end = at.checked_add(8)?.checked_add(usize::try_from(be32(b, at)?).ok()?)?;
        let chunk = b.get(at + 4..end)?;
        if chunk.first()?.is_ascii_uppercase() && crc32fast::hash(chunk) != be32(b, end)? {
            return Some(false);
        }
        if chunk.starts_with(b"IEND") {
            return Some(true);
        }
        at = end + 4;
    }
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
        // Only a JPEG has its size further down.
        if small.starts_with(JPEG) {
            return Head::of(&LENIENT.decode(text).ok()?);
        }
        Head::of(&small)
    }

    fn of(b: &[u8]) -> Option<Head> {
        Head::png(b).or_else(|| Head::gif(b)).or_else(|| Head::webp(b)).or_else(|| Head::jpeg(b))
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
        b.starts_with(JPEG).then_some(())?;
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

fn le32(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

/// Used by tests of other modules to make images: whole ones, but for the pixels.
#[cfg(test)]
pub(super) fn png(width: u32, height: u32, bytes: usize) -> ImageBlock {
    let mut b = b"\x89PNG\r\n\x1a\n".to_vec();
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 6, 0, 0, 0]].concat();
    let pixels = vec![7; bytes.saturating_sub(57)];
    for (kind, data) in [(b"IHDR", header), (b"IDAT", pixels), (b"IEND", Vec::new())] {
        let chunk = [&kind[..], &data].concat();
        b.extend((data.len() as u32).to_be_bytes());
        b.extend(&chunk);
        b.extend(crc32fast::hash(&chunk).to_be_bytes());
    }
    ImageBlock { data: STANDARD.encode(b), mime_type: "image/png".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(bytes: &[u8], mime: &str) -> ImageBlock {
        ImageBlock { data: STANDARD.encode(bytes), mime_type: mime.into() }
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
        let damaged = "[image left out: its data is damaged]";
        let jpeg = [0xff, 0xd8, 0xff, 0xc0, 0, 11, 8, 0, 9, 0, 9, 3, 0, 0, 0, 0, 0, 0xff, 0xda, 0, 2, 1, 0xff, 0xd9];
        let gif = &b"GIF89a\x0a\x00\x14\x00rest\x3b\0"[..];
        let webp = [&b"RIFF\x28\0\0\0WEBPVP8 "[..], &[1; 32]].concat();
        let edited = |edit: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = STANDARD.decode(png(8, 8, 60).data).unwrap();
            edit(&mut bytes);
            image(&bytes, "image/png")
        };
        let big = ImageBlock { data: "A".repeat(MAX_BASE64 + 4), mime_type: "image/png".into() };
        for (image, want) in [
            (png(8, 8, 60), "image/png"),
            (ImageBlock { mime_type: "image/jpeg".into(), ..png(8, 8, 60) }, "image/png"),
            (image(&jpeg, "image/jpg"), "image/jpeg"),
            (image(gif, ""), "image/gif"),
            (image(b"unknown", "image/jpg"), "[image left out: its data is no PNG, JPEG, GIF or WebP picture]"),
            (image(&jpeg[..20], "image/jpeg"), damaged),
            (image(&gif[..12], "image/gif"), damaged),
            (image(&webp[..40], "image/webp"), damaged),
            (image(&webp, "image/webp"), "image/webp"),
            (png(0, 8, 60), damaged),
            (edited(&|bytes| bytes.truncate(50)), damaged),
            (edited(&|bytes| bytes[42] ^= 1), damaged),
            (png(9600, 7700, 60), "[image left out: 9600x7700 pixels, too large to send]"),
            (big, "[image left out: 6 MiB, too large to send]"),
            (image(b"BM", "image/bmp"), "[image left out: no provider takes \"image/bmp\"]"),
            (ImageBlock::default(), "[image without data]"),
            (ImageBlock { data: "a b".into(), ..Default::default() }, damaged),
        ] {
            assert_eq!(sent(image), want);
        }
    }

    #[test]
    fn base64_is_sent_with_its_padding() {
        let whole = png(8, 8, 58);
        let bare = ImageBlock { data: whole.data.trim_end_matches('=').to_owned(), ..whole.clone() };
        assert_ne!(bare.data, whole.data);
        assert_eq!(sendable(bare), Block::Image(whole));
    }
}
