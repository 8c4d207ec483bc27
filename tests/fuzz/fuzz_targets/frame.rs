//! However a stream is cut, the decoder gives the same frames, each within the limit.
#![no_main]

use kli_protocol::frame::{Decoder, Frame, Framing, sniff};
use libfuzzer_sys::fuzz_target;

const MAX: usize = 100;

fn decode<'a>(framing: Framing, pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Result<Vec<u8>, &'static str>> {
    fn own(frame: Frame<'_>) -> Result<Vec<u8>, &'static str> {
        match frame {
            Frame::Message(message) => {
                assert!(message.len() <= MAX);
                Ok(message.to_vec())
            }
            Frame::Oversized => Err("oversized"),
            Frame::BadHeader(_) => Err("bad header"),
        }
    }
    let mut decoder = Decoder::new(framing, MAX);
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        while let Some(frame) = decoder.next_frame() {
            frames.push(own(frame));
        }
    }
    frames.extend(decoder.finish().map(own));
    frames
}

fuzz_target!(|input: (bool, u8, &[u8])| {
    let (lines, step, bytes) = input;
    let framing = if lines { Framing::Lines } else { Framing::ContentLength };
    let whole = decode(framing, std::iter::once(bytes));
    assert_eq!(whole, decode(framing, bytes.chunks(usize::from(step).max(1))));
    sniff(bytes);
});
