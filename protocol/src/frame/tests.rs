use proptest::prelude::*;

use super::*;

const MAX: usize = 64;

/// Frames as text, so that tables can be read.
fn show(frame: Frame<'_>) -> String {
    match frame {
        Frame::Message(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Frame::Oversized => "<oversized>".to_owned(),
        Frame::BadHeader(_) => "<bad>".to_owned(),
    }
}

fn decode<'a>(framing: Framing, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let mut decoder = Decoder::new(framing, MAX);
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        while let Some(frame) = decoder.next_frame() {
            frames.push(show(frame));
        }
        assert!(decoder.buf.len() <= MAX.max(MAX_HEADER_BYTES) + piece.len(), "the buffer is bounded");
    }
    frames.extend(decoder.finish().map(show));
    frames
}

#[track_caller]
fn check(framing: Framing, input: &[u8], frames: &[&str]) {
    assert_eq!(decode(framing, [input]), frames, "at once");
    assert_eq!(decode(framing, input.chunks(1)), frames, "byte by byte");
}

#[test]
fn lines() {
    let long = "x".repeat(MAX);
    let longer = "x".repeat(MAX + 1);
    for (input, frames) in [
        ("{}\n", vec!["{}"]),
        ("{}\r\n[]\r\n", vec!["{}", "[]"]),
        ("\n \n\t\r\n{}\n\n", vec!["{}"]),
        ("\u{feff}{}\n", vec!["{}"]),
        ("\u{feff} \r\n{}\r\n", vec!["{}"]),
        ("{}\n\u{feff}{}\n", vec!["{}", "\u{feff}{}"]),
        ("{} ", vec!["{}"]),
        ("", vec![]),
        ("\n\n", vec![]),
        ("\"a\u{2028}b\"\n", vec!["\"a\u{2028}b\""]),
        (&format!("{long}\n{{}}\n"), vec![&long, "{}"]),
        (&format!("{long}\r\n{{}}\r\n"), vec![&long, "{}"]),
        (&format!("{long}\r"), vec![&long]),
        (&format!("{long}\rx\n{{}}\n"), vec!["<oversized>", "{}"]),
        (&format!("{long}\r\r\n{{}}\n"), vec!["<oversized>", "{}"]),
        (&format!("{longer}\n{{}}\n"), vec!["<oversized>", "{}"]),
        (&format!("{longer}\r\n{{}}\n"), vec!["<oversized>", "{}"]),
        (&format!("{longer}{longer}{longer}\n{{}}\n"), vec!["<oversized>", "{}"]),
        (&longer, vec!["<oversized>"]),
        (&format!("{longer}\n\u{feff}\n"), vec!["<oversized>", "\u{feff}"]),
    ] {
        check(Framing::Lines, input.as_bytes(), &frames);
    }
}

#[test]
fn content_length() {
    let many = "X: y\r\n".repeat(2000);
    let digits = format!("Content-Length: {}", "0".repeat(2 * MAX_HEADER_BYTES));
    let spaces = " ".repeat(MAX_HEADER_BYTES);
    let again = "Content-Length:".repeat(MAX_HEADER_BYTES / 10);
    for (input, frames) in [
        ("Content-Length: 2\r\n\r\n{}", vec!["{}"]),
        ("content-length:2\n\n{}Content-Length: 3\r\n\r\n[1]", vec!["{}", "[1]"]),
        ("\u{feff}\r\n\r\nContent-Length: 2\r\n\r\n{}", vec!["{}"]),
        ("Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}", vec!["{}"]),
        ("Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", vec!["{}"]),
        ("Content-Length: 4\r\n\r\n{\r\n}", vec!["{\r\n}"]),
        ("Content-Length: 0\r\n\r\nContent-Length: 2\r\n\r\n{}", vec!["", "{}"]),
        ("Content-Length: x\r\n\r\n{}Content-Length: 2\r\n\r\n{}", vec!["<bad>", "{}"]),
        ("Content-Length: -1\r\n\r\n{}Content-Length: 2\r\n\r\n{}", vec!["<bad>", "{}"]),
        ("Content-Length: +2\r\n\r\n{}CONTENT-LENGTH: 2\r\n\r\n{}", vec!["<bad>", "{}"]),
        ("Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}Content-Length: 2\r\n\r\n{}", vec!["<bad>", "{}"]),
        ("Content-Type: x\r\n\r\n{}Content-Length: 2\r\n\r\n{}", vec!["<bad>", "{}"]),
        ("nonsense\r\nContent-Length: 2\r\n\r\n{}", vec!["<bad>", "{}"]),
        ("Content-Length: 99999999999999999999999\r\n\r\n{}", vec!["<bad>"]),
        ("Content-Length: 65\r\n\r\n", vec!["<oversized>"]),
        ("Content-Length: 20\r\n\r\n{}", vec!["<bad>"]),
        ("Content-Le", vec!["<bad>"]),
        ("Content-Length: 2\r\n\r\n{}\r\n", vec!["{}"]),
        (&format!("{digits}\nContent-Length: 2\r\n\r\n{{}}"), vec!["<bad>", "{}"]),
        (&format!("{spaces}\nContent-Length: 2\r\n\r\n{{}}"), vec!["<bad>", "{}"]),
        (&format!("{again}\nContent-Length: 2\r\n\r\n{{}}"), vec!["<bad>", "<bad>", "{}"]),
        (&format!("{many}\r\nContent-Length: 2\r\n\r\n{{}}"), vec!["<bad>", "{}"]),
        (
            &format!("Content-Length: 66\r\n\r\n{}Content-Length: 2\r\n\r\n{{}}", "y".repeat(66)),
            vec!["<oversized>", "{}"],
        ),
    ] {
        check(Framing::ContentLength, input.as_bytes(), &frames);
    }
}

#[test]
fn the_first_byte_decides() {
    for (head, sniffed) in [
        ("", Sniffed::More),
        (" \r\n", Sniffed::More),
        ("{", Sniffed::Framing(Framing::Lines)),
        (" [", Sniffed::Framing(Framing::Lines)),
        ("C", Sniffed::Framing(Framing::ContentLength)),
        ("P", Sniffed::More),
        ("POST", Sniffed::More),
        ("POST ", Sniffed::Http(0)),
        ("\r\nGET / HTTP/1.1", Sniffed::Http(2)),
        ("PRI * HTTP/2.0", Sniffed::Http(0)),
        ("Hello", Sniffed::Framing(Framing::Lines)),
        ("GETTING", Sniffed::Framing(Framing::Lines)),
        ("\u{feff}\n{", Sniffed::Framing(Framing::Lines)),
        ("\u{feff}GET ", Sniffed::Http(3)),
        ("\0", Sniffed::Framing(Framing::Lines)),
    ] {
        assert_eq!(sniff(head.as_bytes()), sniffed, "{head:?}");
    }
    assert_eq!(sniff(b"\xef\xbb"), Sniffed::More);
    assert_eq!(sniff(&[b' '; MAX_SNIFF_BYTES]), Sniffed::Framing(Framing::Lines));
}

#[test]
fn writing() {
    for (framing, parts, written) in [
        (Framing::Lines, ["{\"a\":", "1}"], "{\"a\":1}\n"),
        (Framing::Lines, ["{\"a\":\n", "1}"], "{\"a\": 1}\n"),
        (Framing::ContentLength, ["{\"a\":\n", "1}"], "Content-Length: 8\r\n\r\n{\"a\":\n1}"),
    ] {
        let mut out = Vec::new();
        framing.write(&mut out, &parts);
        assert_eq!(String::from_utf8_lossy(&out), written);
    }
}

/// Streams with a bias towards what means something to a decoder.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\n".to_vec()),
        Just(b"\r\n\r\n".to_vec()),
        Just(b"{}".to_vec()),
        Just(BOM.to_vec()),
        Just(b"Content-Length: 2\r\n\r\n{}".to_vec()),
        Just(b"Content-Length: ".to_vec()),
        (0u32..90).prop_map(|n| n.to_string().into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..90),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn cutting_the_stream_anywhere_gives_the_same_frames(
        bytes in stream(),
        cuts in proptest::collection::vec(0usize..2000, 0..8),
        lines in any::<bool>(),
    ) {
        let framing = if lines { Framing::Lines } else { Framing::ContentLength };
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let ends = cuts.iter().copied().chain([bytes.len()]);
        let mut at = 0;
        let pieces: Vec<&[u8]> = ends.map(|end| { let piece = &bytes[at..end]; at = end; piece }).collect();
        prop_assert_eq!(decode(framing, pieces), decode(framing, [&bytes[..]]));
    }

    #[test]
    fn what_is_written_is_read_back(messages in proptest::collection::vec("[ -~]{0,20}x", 0..8), lines in any::<bool>()) {
        let framing = if lines { Framing::Lines } else { Framing::ContentLength };
        let mut out = Vec::new();
        for message in &messages {
            framing.write(&mut out, &[message]);
        }
        let want: Vec<String> = messages.iter().map(|m| if lines { m.trim().to_owned() } else { m.clone() }).collect();
        prop_assert_eq!(decode(framing, [&out[..]]), want);
    }
}
