//! Google's Gemini format.

mod decode;
mod encode;
mod names;

use super::{Call, Decoder, Dialect, Request, Start, Target};

#[derive(Clone, Copy, Debug)]
pub struct Google;

impl Dialect for Google {
    fn encode(&self, request: &Request, target: Target<'_>) -> Call {
        encode::call(request, target)
    }

    fn decoder(&self, start: Start) -> Box<dyn Decoder> {
        Box::new(decode::GeminiDecoder::new(start))
    }
}
