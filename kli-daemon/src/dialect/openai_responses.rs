//! OpenAI's Responses format, with nothing kept on their side: `store: false`, and reasoning comes and goes as an
//! encrypted text.

mod decode;
mod encode;

use super::{Call, Decoder, Dialect, Request, Start, Target};

#[derive(Clone, Copy, Debug)]
pub struct OpenaiResponses;

impl Dialect for OpenaiResponses {
    fn encode(&self, request: &Request, target: Target<'_>) -> Call {
        encode::call(request, target)
    }

    fn decoder(&self, start: Start) -> Box<dyn Decoder> {
        Box::new(decode::ResponsesDecoder::new(start))
    }
}
