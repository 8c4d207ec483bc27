//! `edit`: replaces parts of a file, all of them or none. Where they are is [`matching`]'s business.

mod matching;

use std::path::Path;

use futures_util::future::BoxFuture;
use kli_protocol::api::{Change, Location};
use serde_json::{Value, json};

use super::write::shown;
use super::{Arguments, Effect, Outline, Tool, ToolContext, ToolOutput, ToolSpec, args, diff, file, path};
use crate::text;
use matching::Replacement;

pub(crate) struct Edit {
    spec: ToolSpec,
}

impl Edit {
    pub(crate) fn new() -> Edit {
        let description = "Change parts of a file. Each oldText must occur exactly once in the file, with its white \
                           space as it is there; all are looked up in the file as it was before the call and must \
                           not overlap. Either all replacements are made or none."
            .to_owned();
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File to change, relative to the work directory or absolute"},
                "edits": {
                    "type": "array",
                    "description": "The replacements",
                    "items": {
                        "type": "object",
                        "properties": {
                            "oldText": {"type": "string", "description": "Text to replace: unique in the file"},
                            "newText": {"type": "string", "description": "What takes its place"},
                        },
                        "required": ["oldText", "newText"],
                    },
                },
            },
            "required": ["path", "edits"],
        });
        Edit { spec: ToolSpec { name: "edit".into(), description, parameters, effect: Effect::Writes } }
    }
}

impl Tool for Edit {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, arguments: &Arguments, work_dir: &Path) -> Outline {
        let Ok(path) = args::text(arguments, "path") else {
            return Outline { title: "edit".into(), ..Outline::default() };
        };
        let resolved = path::resolve(path, work_dir);
        let name = resolved.to_string_lossy().into_owned();
        let before = file::read_whole(&resolved, file::LARGEST_OUTLINED).ok().map(|(bytes, _)| decode(&bytes).0);
        let changes: Vec<Change> = replacements(arguments)
            .unwrap_or_default()
            .into_iter()
            .map(|edit| Change {
                path: name.clone(),
                line: before.as_deref().and_then(|text| matching::line_of(text, &edit)),
                old_text: Some(shown(&edit.old)),
                new_text: shown(&edit.new),
            })
            .collect();
        let line = changes.iter().find_map(|change| change.line);
        Outline {
            title: format!("edit {}", path::display(&resolved, work_dir)),
            locations: vec![Location { path: name, line }],
            changes: Some(changes),
        }
    }

    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput> {
        let path = path::resolve(args::text(&arguments, "path").unwrap_or_default(), &context.work_dir);
        let turn = file::queue_up(&path);
        Box::pin(async move {
            let name = match args::text(&arguments, "path") {
                Ok(name) => name,
                Err(error) => return ToolOutput::error(error.to_string()),
            };
            let edits = match replacements(&arguments) {
                Ok(edits) => edits,
                Err(why) => return ToolOutput::error(why),
            };
            if path.starts_with(&context.work_dir)
                && let Err(gone) = path::check_work_dir(&context.work_dir)
            {
                return gone;
            }
            let name = text::printable(name).into_owned();
            let turn = turn.await;
            super::blocking(&context.cancel, move |cancel| {
                // Held to the end of the work, not only of the call that may be dropped before.
                let _turn = turn;
                if cancel.is_cancelled() {
                    return super::aborted();
                }
                edit(&path, &name, &edits).unwrap_or_else(ToolOutput::error)
            })
            .await
        })
    }
}

/// `edits`, or the one edit whose texts stand beside `path`. Some models send the list as JSON text.
fn replacements(arguments: &Arguments) -> Result<Vec<Replacement>, String> {
    let parsed;
    let list = match arguments.get("edits") {
        None | Some(Value::Null) => {
            let one = |name| args::text(arguments, name).map(str::to_owned).map_err(|error| error.to_string());
            return match arguments.contains_key("oldText") || arguments.contains_key("newText") {
                true => Ok(vec![Replacement { old: one("oldText")?, new: one("newText")? }]),
                false => Err("The argument `edits` is missing.".to_owned()),
            };
        }
        Some(Value::String(text)) => {
            parsed = serde_json::from_str::<Value>(text).unwrap_or_default();
            &parsed
        }
        Some(other) => other,
    };
    let list = match list {
        Value::Array(list) => list.as_slice(),
        one @ Value::Object(_) => std::slice::from_ref(one),
        _ => return Err("The argument `edits` must be a list of {oldText, newText}.".to_owned()),
    };
    if list.is_empty() {
        return Err("The argument `edits` is an empty list: nothing to do.".to_owned());
    }
    let text = |edit: &Value, index: usize, name: &str| match edit.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        _ => Err(format!("edits[{index}].{name} must be a string.")),
    };
    list.iter()
        .enumerate()
        .map(|(index, edit)| Ok(Replacement { old: text(edit, index, "oldText")?, new: text(edit, index, "newText")? }))
        .collect()
}

fn edit(path: &Path, name: &str, edits: &[Replacement]) -> Result<ToolOutput, String> {
    let (bytes, seen) = file::read_whole(path, file::LARGEST_EDITED).map_err(|error| error.to_string())?;
    let (before, encoding) = decode(&bytes);
    drop(bytes);
    if encoding.is_none() && !edits.iter().all(|edit| edit.new.is_ascii()) {
        return Err(format!(
            "{name} is not UTF-8, and its encoding is unknown: newText can only have ASCII characters. Nothing was changed."
        ));
    }
    let applied = matching::apply(&before, edits).map_err(|error| format!("{name}: {error} Nothing was changed."))?;
    let after = match encoding {
        Some(encoding) => file::encode(&applied.text, encoding),
        None => bytes_of(&applied.text),
    };
    file::replace(path, &after, Some(&seen)).map_err(|error| error.to_string())?;
    let mut text = match edits.len() {
        1 => format!("Made 1 replacement in {name}."),
        n => format!("Made {n} replacements in {name}."),
    };
    if !applied.inexact.is_empty() {
        let which = applied.inexact.iter().map(|index| format!("edits[{index}]")).collect::<Vec<_>>().join(", ");
        text.push_str(&format!(
            " {which} matched only when quotes, dashes and white space were compared loosely; check the result."
        ));
    }
    let mut output = ToolOutput::text(text);
    output.details = Some(diff::details(&before, &applied.text, name));
    Ok(output)
}

/// The text of a file; without an encoding, each byte is one character, which loses nothing.
fn decode(bytes: &[u8]) -> (String, Option<file::Encoding>) {
    match file::decode(bytes) {
        Some((text, encoding)) => (text, Some(encoding)),
        None => (bytes.iter().map(|byte| char::from(*byte)).collect(), None),
    }
}

fn bytes_of(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect()
}

#[cfg(test)]
mod tests;
