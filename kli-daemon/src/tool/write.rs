//! `write`: a whole file, new or over an old one.

use std::path::Path;

use futures_util::future::BoxFuture;
use kli_protocol::api::{Change, Location};
use serde_json::json;

use super::{Arguments, Effect, Outline, Tool, ToolContext, ToolOutput, ToolSpec, args, diff, file, path};
use crate::text;

/// More of a file is not put into a question to a person.
const LARGEST_SHOWN: usize = 256 * 1024;

pub(crate) struct Write {
    spec: ToolSpec,
}

impl Write {
    pub(crate) fn new() -> Write {
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File to write, relative to the work directory or absolute"},
                "content": {"type": "string", "description": "The whole content"},
            },
            "required": ["path", "content"],
        });
        let description = "Write a file: makes it, and the directories to it, or replaces what it held. To change \
                           a part of a file, use edit."
            .to_owned();
        Write { spec: ToolSpec { name: "write".into(), description, parameters, effect: Effect::Writes } }
    }
}

impl Tool for Write {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, arguments: &Arguments, work_dir: &Path) -> Outline {
        let Ok(path) = args::text(arguments, "path") else {
            return Outline { title: "write".into(), ..Outline::default() };
        };
        let resolved = path::resolve(path, work_dir);
        let name = resolved.to_string_lossy().into_owned();
        let old_text = match file::read_whole(&resolved, file::LARGEST_OUTLINED) {
            Ok((bytes, _)) => Some(shown(&String::from_utf8_lossy(&bytes))),
            Err(file::FileError::NotFound(_)) => None,
            Err(error) => Some(error.to_string()),
        };
        let new_text = shown(args::text(arguments, "content").unwrap_or_default());
        Outline {
            title: format!("write {}", path::display(&resolved, work_dir)),
            locations: vec![Location { path: name.clone(), line: None }],
            changes: Some(vec![Change { path: name, line: Some(1), old_text, new_text }]),
        }
    }

    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput> {
        let path = path::resolve(args::text(&arguments, "path").unwrap_or_default(), &context.work_dir);
        let turn = file::queue_up(&path);
        Box::pin(async move {
            let (name, content) = match (args::text(&arguments, "path"), args::text(&arguments, "content")) {
                (Ok(name), Ok(content)) => (text::printable(name).into_owned(), content.to_owned()),
                (Err(error), _) | (_, Err(error)) => return ToolOutput::error(error.to_string()),
            };
            if path.starts_with(&context.work_dir)
                && let Err(gone) = path::check_work_dir(&context.work_dir)
            {
                return gone;
            }
            let turn = turn.await;
            super::blocking(&context.cancel, move |cancel| {
                // Held to the end of the work, not only of the call that may be dropped before.
                let _turn = turn;
                if cancel.is_cancelled() { super::aborted() } else { write(&path, &name, &content) }
            })
            .await
        })
    }
}

fn write(path: &Path, name: &str, content: &str) -> ToolOutput {
    // For the diff only; a file that cannot be read may still be replaced.
    let old = file::read_whole(path, file::LARGEST_EDITED).ok().map(|(bytes, _)| bytes);
    if let Err(error) = file::replace(path, content.as_bytes(), None) {
        return ToolOutput::error(error.to_string());
    }
    let lines = text::count_lines(content);
    let what = if old.is_some() { "Replaced" } else { "Wrote" };
    let lines = if lines == 1 { "1 line".to_owned() } else { format!("{lines} lines") };
    let mut output = ToolOutput::text(format!("{what} {name} ({lines}, {}).", text::size(content.len() as u64)));
    let old = old.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    output.details = Some(diff::details(&old, content, name));
    output
}

/// A text for a question to a person.
pub(crate) fn shown(text: &str) -> String {
    if text.len() <= LARGEST_SHOWN {
        return text.to_owned();
    }
    format!("{}\n… {} in all", text::clip_bytes(text, LARGEST_SHOWN), text::size(text.len() as u64))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::tool::testing::{Place, text};

    #[tokio::test]
    async fn files_are_made_and_replaced_as_they_are_given() {
        let place = Place::new();
        place.write("old", "before\n");
        std::fs::set_permissions(place.at("old"), std::fs::Permissions::from_mode(0o755)).unwrap();
        symlink("old", place.at("link")).unwrap();
        for (path, content, want) in [
            ("new/deep/file", "a\nb\n", "Wrote new/deep/file (2 lines, 4 bytes)."),
            ("old", "a\r\nb", "Replaced old (2 lines, 4 bytes)."),
            ("link", "one", "Replaced link (1 line, 3 bytes)."),
            ("empty", "", "Wrote empty (0 lines, 0 bytes)."),
        ] {
            let output = place.call(&Write::new(), json!({"path": path, "content": content})).await;
            assert_eq!((text(&output).as_str(), output.is_error), (want, false), "{path}");
            assert_eq!(std::fs::read_to_string(place.at(path)).unwrap(), content);
        }
        assert_eq!(std::fs::read(place.at("old")).unwrap(), b"one");
        assert_eq!(std::fs::metadata(place.at("old")).unwrap().permissions().mode() & 0o777, 0o755);
        for (arguments, want) in [
            (json!({"path": "x"}), "`content` is missing"),
            (json!({"content": "x"}), "`path` is missing"),
            (json!({"path": ".", "content": "x"}), "is a directory"),
            (json!({"path": "/dev/null", "content": "x"}), "a device"),
            (json!({"path": "old/x", "content": "x"}), ""),
        ] {
            let output = place.call(&Write::new(), arguments.clone()).await;
            assert!(output.is_error && text(&output).contains(want), "{arguments}: {}", text(&output));
        }
    }

    #[test]
    fn a_person_sees_what_would_change() {
        let place = Place::new();
        place.write("old", "before\n");
        place.write("large", "x".repeat(3_000_000));
        for (path, old) in [("old", Some("before\n")), ("new", None)] {
            let arguments = json!({"path": path, "content": "after\n"});
            let outline = Write::new().outline(arguments.as_object().unwrap(), &place.context.work_dir);
            let changes = outline.changes.unwrap();
            assert_eq!((changes[0].old_text.as_deref(), changes[0].new_text.as_str()), (old, "after\n"));
            assert_eq!(outline.title, format!("write {path}"));
        }
        let arguments = json!({"path": "large", "content": "中".repeat(1_000_000)});
        let outline = Write::new().outline(arguments.as_object().unwrap(), &place.context.work_dir);
        let change = &outline.changes.unwrap()[0];
        assert!(change.old_text.as_deref().is_some_and(|text| text.len() < 1000), "not a new file, and not all of it");
        assert!(change.new_text.len() < LARGEST_SHOWN + 100);
    }
}
