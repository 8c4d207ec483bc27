//! The chat completions format, as OpenAI began it and the rest of the world bends it.

mod decode;
mod encode;

use super::{Call, Decoder, Dialect, Request, Start, Target};

#[derive(Clone, Copy, Debug)]
pub struct OpenaiChat;

impl Dialect for OpenaiChat {
    fn encode(&self, request: &Request, target: Target<'_>) -> Call {
        encode::call(request, target)
    }

    fn decoder(&self, start: Start) -> Box<dyn Decoder> {
        Box::new(decode::ChatDecoder::new(start))
    }
}
