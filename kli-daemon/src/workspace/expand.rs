//! A prompt as typed → what is sent: `/name` and `/skill:name` replaced, mentioned files put after it.

use std::path::{Path, PathBuf};

use base64::Engine;
use kli_protocol::record::{Block, Content, ImageBlock};

use super::{MAX_TEMPLATE, Places, Workspace, read};
use crate::context::expand as text;

/// Files that one prompt may bring in, and how much of each, and of all texts together.
const MAX_FILES: usize = 50;
const MAX_FILE: usize = 256 * 1024;
const MAX_TOTAL: usize = 1024 * 1024;
/// Its base64 text is then just below what providers take.
const MAX_IMAGE: usize = 3 * 1024 * 1024 + 700 * 1024;
const MAX_LISTED: usize = 200;

/// A prompt after expansion.
#[derive(Clone, Debug, PartialEq)]
pub struct Expanded {
    pub content: Content,
    /// What was typed, when the content is something else.
    pub typed: Option<String>,
}

/// Expands a prompt. A command or a file that is not there is left as it is: it may be meant so.
pub fn expand(typed: &str, workspace: &Workspace, places: &Places) -> Expanded {
    let (prompt, mentioning) = command(typed, workspace).unwrap_or_else(|| (typed.to_owned(), typed.to_owned()));
    let mut out = Out { text: prompt, images: Vec::new(), left: MAX_TOTAL };
    let files = text::mentions(&mentioning).into_iter().filter_map(|mention| find(mention, places));
    let mut seen: Vec<PathBuf> = Vec::new();
    for path in files.take(MAX_FILES) {
        if !seen.contains(&path) {
            out.add(&path);
            seen.push(path);
        }
    }
    let content = if out.images.is_empty() {
        Content::Text(out.text)
    } else {
        let mut blocks = vec![Block::text(out.text)];
        blocks.extend(out.images.into_iter().map(Block::Image));
        Content::Blocks(blocks)
    };
    let same = matches!(&content, Content::Text(text) if text == typed);
    Expanded { content, typed: (!same).then(|| typed.to_owned()) }
}

/// The text that a command stands for, and that of it in which files may be mentioned (not in a skill's own).
fn command(typed: &str, workspace: &Workspace) -> Option<(String, String)> {
    let (name, rest) = text::command(typed)?;
    if let Some(skill) = name.strip_prefix("skill:").and_then(|name| workspace.skills.get(name)) {
        let source = read::text(&skill.path, MAX_TEMPLATE)?;
        let (_, body) = text::front_matter(&source);
        let dir = skill.path.parent().unwrap_or(Path::new("/")).display();
        let mut prompt = format!(
            "<skill name=\"{}\" path=\"{}\">\nPaths in it are relative to {dir}.\n\n{}\n</skill>",
            skill.name,
            skill.path.display(),
            body.trim()
        );
        if !rest.is_empty() {
            prompt.push_str("\n\n");
            prompt.push_str(rest);
        }
        return Some((prompt, rest.to_owned()));
    }
    let prompt = text::template(&workspace.prompts.get(name)?.text, rest).trim().to_owned();
    Some((prompt.clone(), prompt))
}

/// The path that a mention means, if there is one.
fn find(mention: &str, places: &Places) -> Option<PathBuf> {
    text::readings(mention).find_map(|reading| {
        let path = match (reading.strip_prefix("~/"), &places.home, &places.work_dir) {
            (Some(rest), Some(home), _) => home.join(rest),
            (None, _, Some(work_dir)) => work_dir.join(reading),
            (None, _, None) if reading.starts_with('/') => PathBuf::from(reading),
            _ => return None,
        };
        path.exists().then_some(path)
    })
}

struct Out {
    text: String,
    images: Vec<ImageBlock>,
    /// Bytes of text that may still be added.
    left: usize,
}

impl Out {
    fn add(&mut self, path: &Path) {
        let shown = path.display();
        if path.is_dir() {
            let names: Vec<String> = read::entries(path, MAX_LISTED)
                .iter()
                .map(|entry| {
                    let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    if entry.is_dir() { name + "/" } else { name }
                })
                .collect();
            self.section(&format!("<directory path=\"{shown}\">\n{}\n</directory>", names.join("\n")));
        } else if let Some(mime_type) = image_type(path) {
            match read::bytes(path, MAX_IMAGE) {
                Some((bytes, true)) => {
                    let data = base64::engine::general_purpose::STANDARD.encode(bytes);
                    self.images.push(ImageBlock { data, mime_type: mime_type.to_owned() });
                }
                Some((_, false)) => self.section(&format!("[{shown} is too large to be sent as an image]")),
                None => self.section(&format!("[{shown} cannot be read]")),
            }
        } else {
            match read::prefix(path, MAX_FILE.min(self.left)) {
                Some((text, whole)) => {
                    let more = if whole { "" } else { "\n[cut here: the file goes on]" };
                    self.left = self.left.saturating_sub(text.len());
                    self.section(&format!("<file path=\"{shown}\">\n{}{more}\n</file>", text.trim_end_matches('\n')));
                }
                None => self.section(&format!("[{shown} is no text file]")),
            }
        }
    }

    fn section(&mut self, text: &str) {
        self.text.push_str("\n\n");
        self.text.push_str(text);
    }
}

/// By its first bytes: a name may lie.
fn image_type(path: &Path) -> Option<&'static str> {
    let (head, _) = read::bytes(path, 12)?;
    match head.as_slice() {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => Some("image/webp"),
        _ => None,
    }
}
