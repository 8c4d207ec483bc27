//! The reply that is coming in, put together from its deltas, so that one who joins in the middle can go on with
//! the deltas that follow: each block is at its index.

use kli_protocol::record::{Block, TextBlock, ThinkingBlock, ToolCallBlock};
use serde_json::json;

#[derive(Default)]
pub(super) struct Partial {
    /// None: no reply is coming in.
    pub message_id: Option<String>,
    parts: Vec<Part>,
}

enum Part {
    Text(String),
    Thinking(String),
    /// Its arguments as JSON text, not yet whole.
    Call {
        id: String,
        name: String,
        arguments: String,
    },
}

/// Blocks of one reply; what comes beyond is not kept here (the stored entry has it).
const MAX_PARTS: usize = 4096;

impl Partial {
    pub fn new(message_id: String) -> Partial {
        Partial { message_id: Some(message_id), parts: vec![] }
    }

    pub fn text(&mut self, index: u32, delta: &str) {
        match self.part(index) {
            Some(Part::Text(text)) => text.push_str(delta),
            Some(part) => *part = Part::Text(delta.to_owned()),
            None => {}
        }
    }

    pub fn thinking(&mut self, index: u32, delta: &str) {
        match self.part(index) {
            Some(Part::Thinking(text)) => text.push_str(delta),
            Some(part) => *part = Part::Thinking(delta.to_owned()),
            None => {}
        }
    }

    pub fn call(&mut self, index: u32, id: &str, name: &str, delta: &str) {
        match self.part(index) {
            Some(Part::Call { id: known, name: named, arguments }) => {
                // Either may come late.
                id.clone_into(known);
                name.clone_into(named);
                arguments.push_str(delta);
            }
            Some(part) => *part = Part::Call { id: id.to_owned(), name: name.to_owned(), arguments: delta.to_owned() },
            None => {}
        }
    }

    /// The part at an index; those before it that have not come are empty texts.
    fn part(&mut self, index: u32) -> Option<&mut Part> {
        let index = usize::try_from(index).ok().filter(|index| *index < MAX_PARTS)?;
        while self.parts.len() <= index {
            self.parts.push(Part::Text(String::new()));
        }
        self.parts.get_mut(index)
    }

    pub fn blocks(&self) -> Vec<Block> {
        self.parts.iter().map(Part::block).collect()
    }
}

impl Part {
    fn block(&self) -> Block {
        match self {
            Part::Text(text) => Block::Text(TextBlock { text: text.clone(), text_signature: None }),
            Part::Thinking(text) => Block::Thinking(ThinkingBlock { thinking: text.clone(), ..Default::default() }),
            Part::Call { id, name, arguments } => match serde_json::from_str(arguments) {
                Ok(whole) => Block::ToolCall(ToolCallBlock {
                    id: id.clone(),
                    name: name.clone(),
                    arguments: whole,
                    thought_signature: None,
                }),
                Err(_) => Block::Unknown(
                    json!({ "type": "toolCall", "id": id, "name": name, "arguments": {}, "partialArguments": arguments }),
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_at_its_index() {
        let mut partial = Partial::new("m".into());
        partial.thinking(0, "hm");
        partial.call(1, "c1", "read", "{\"path\":");
        partial.text(2, "a");
        partial.text(2, "b");
        partial.text(4, "far");
        let shown = |partial: &Partial| serde_json::to_value(partial.blocks()).unwrap();
        assert_eq!(
            shown(&partial),
            json!([
                { "type": "thinking", "thinking": "hm" },
                { "type": "toolCall", "id": "c1", "name": "read", "arguments": {}, "partialArguments": "{\"path\":" },
                { "type": "text", "text": "ab" },
                { "type": "text", "text": "" },
                { "type": "text", "text": "far" },
            ])
        );
        partial.call(1, "c1", "read", "\"x\"}");
        let call = json!({ "type": "toolCall", "id": "c1", "name": "read", "arguments": { "path": "x" } });
        assert_eq!(shown(&partial)[1], call);
        partial.text(u32::MAX, "too far");
        assert_eq!(partial.blocks().len(), 5);
    }
}
