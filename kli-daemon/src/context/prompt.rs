//! The system prompt. Pure, and the same bytes for the same parts: providers cache by prefix, so what changes
//! most rarely comes first and the date last.

use kli_protocol::api::{Mode, ToolDescription};

use super::preview::one_line;

/// What a system prompt is made from.
#[derive(Clone, Debug, Default)]
pub struct Parts<'a> {
    /// Stands in for the built-in text (`SYSTEM.md`).
    pub custom: Option<&'a str>,
    /// `APPEND_SYSTEM.md`, in order.
    pub append: &'a [String],
    pub tools: &'a [ToolDescription],
    /// `AGENTS.md` and the like, the most general first: path and text.
    pub context_files: &'a [(String, String)],
    pub skills: &'a [SkillLine],
    pub mode: Mode,
    pub work_dir: &'a str,
    /// `2026-01-31`; the session's, so that it does not change under a cache at midnight.
    pub date: &'a str,
}

/// A skill as the model is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkillLine {
    pub name: String,
    pub description: String,
    /// Of its `SKILL.md`.
    pub path: String,
}

const INTRODUCTION: &str = "You are kli, an expert software engineer who works in a person's terminal and editor. You help by reading files, running commands, editing code and writing new files.";

const MANNERS: &str = "\
- Look before you change: read the files that matter and follow the conventions that you find there.
- Do what was asked, fully, and no more. When something is unclear and a wrong guess would cost much, ask.
- After a change, check it: build it, run the tests, look at the output. Say what you checked and what you did not.
- Never undo or overwrite changes that you did not make, unless you are asked to. Never print secrets.
- Be brief. Name files by their path, with a line number where it helps.";

/// Guidelines that hold when all the named tools are there.
const GUIDELINES: &[(&[&str], &str)] = &[
    (&["read", "bash"], "Use read to look at files, not cat or sed."),
    (
        &["edit"],
        "Use edit for changes to a file: oldText must be exactly what the file holds. Make several changes to one file in one call.",
    ),
    (&["write"], "Use write only for new files and for rewriting a whole file."),
    (&["grep"], "Use grep and find, where there, to search: they respect .gitignore and bound their output."),
    (
        &["bash"],
        "Commands have no terminal and no input: use flags that make them ask nothing. Start servers in the background.",
    ),
];

pub fn system_prompt(parts: &Parts) -> String {
    let mut prompt = String::new();
    match parts.custom.map(str::trim).filter(|custom| !custom.is_empty()) {
        Some(custom) => prompt.push_str(custom),
        None => built_in(parts, &mut prompt),
    }
    for text in parts.append.iter().map(|text| text.trim()).filter(|text| !text.is_empty()) {
        section(&mut prompt, text);
    }
    context_files(parts.context_files, &mut prompt);
    skills(parts, &mut prompt);
    if parts.mode == Mode::Plan {
        section(
            &mut prompt,
            "# Plan mode\n\nNothing may be changed now: tools that write, edit or run commands with effects are refused. Look, think, and answer with a plan.",
        );
    }
    let date = if parts.date.is_empty() { String::new() } else { format!("\nCurrent date: {}", parts.date) };
    section(&mut prompt, &format!("Current working directory: {}{date}", parts.work_dir));
    prompt
}

fn built_in(parts: &Parts, prompt: &mut String) {
    prompt.push_str(INTRODUCTION);
    if !parts.tools.is_empty() {
        let tools: Vec<String> =
            parts.tools.iter().map(|tool| format!("- {}: {}", tool.name, first_sentence(&tool.description))).collect();
        section(prompt, &format!("# Tools\n\n{}", tools.join("\n")));
    }
    let has = |name: &&str| parts.tools.iter().any(|tool| tool.name == **name);
    let guidelines = GUIDELINES.iter().filter(|(needs, _)| needs.iter().all(has));
    let guidelines: String = guidelines.map(|(_, text)| format!("- {text}\n")).collect();
    section(prompt, &format!("# How to work\n\n{guidelines}{MANNERS}"));
}

fn context_files(files: &[(String, String)], prompt: &mut String) {
    if files.iter().all(|(_, text)| text.trim().is_empty()) {
        return;
    }
    section(
        prompt,
        "# Instructions for this project\n\nWritten by the people you work for. Where two disagree, the later one counts.",
    );
    for (path, text) in files.iter().filter(|(_, text)| !text.trim().is_empty()) {
        section(prompt, &format!("<file path=\"{}\">\n{}\n</file>", attribute(path), text.trim()));
    }
}

fn skills(parts: &Parts, prompt: &mut String) {
    // A skill is a file that the model reads when it needs it.
    if parts.skills.is_empty() || !parts.tools.iter().any(|tool| tool.name == "read") {
        return;
    }
    let skills = parts
        .skills
        .iter()
        .map(|skill| format!("\n- {}: {} ({})", one_line(&skill.name), first_lines(&skill.description), skill.path));
    section(
        prompt,
        &format!(
            "# Skills\n\nInstructions for special tasks. When a task fits a description, read that file first; paths in it are relative to its directory.\n{}",
            skills.collect::<String>()
        ),
    );
}

fn section(prompt: &mut String, text: &str) {
    prompt.push_str("\n\n");
    prompt.push_str(text);
}

fn first_sentence(description: &str) -> String {
    let line = one_line(description);
    match line.split_once(". ") {
        Some((sentence, _)) => format!("{sentence}."),
        None => line,
    }
}

/// A description on one line, whole: it is what the model chooses by.
fn first_lines(description: &str) -> String {
    description.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn attribute(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> ToolDescription {
        ToolDescription {
            name: name.into(),
            description: format!("Does {name}. At length."),
            parameters: serde_json::json!({}),
        }
    }

    #[test]
    fn parts_come_in_order() {
        let skill = SkillLine { name: "pdf".into(), description: "Reads\nPDFs".into(), path: "/s/pdf/SKILL.md".into() };
        let parts = Parts {
            tools: &[tool("read"), tool("bash")],
            append: &["APPENDED".to_owned(), " ".to_owned()],
            context_files: &[("/a/AGENTS.md".into(), "GLOBAL".into()), ("/w/\"AGENTS.md".into(), "LOCAL\n".into())],
            skills: &[skill],
            mode: Mode::Plan,
            work_dir: "/w",
            date: "2026-01-31",
            ..Parts::default()
        };
        let prompt = system_prompt(&parts);
        let mut at = 0;
        for text in [
            "You are kli",
            "- read: Does read.\n- bash: Does bash.",
            "Use read to look at files",
            "APPENDED",
            "<file path=\"/a/AGENTS.md\">\nGLOBAL\n</file>",
            "<file path=\"/w/&quot;AGENTS.md\">\nLOCAL\n</file>",
            "- pdf: Reads PDFs (/s/pdf/SKILL.md)",
            "# Plan mode",
            "Current working directory: /w\nCurrent date: 2026-01-31",
        ] {
            let found = prompt[at..].find(text).unwrap_or_else(|| panic!("{text:?} is not after {at} in {prompt}"));
            at += found;
        }
        assert!(!prompt.contains("Use edit"), "a guideline for a tool that is not there");
        assert_eq!(prompt, system_prompt(&parts));
    }

    #[test]
    fn a_custom_prompt_replaces_the_built_in_text_only() {
        let files = [("/w/AGENTS.md".to_owned(), "RULES".to_owned())];
        let parts = Parts { custom: Some("MINE\n"), context_files: &files, work_dir: "/w", ..Parts::default() };
        let prompt = system_prompt(&parts);
        assert!(prompt.starts_with("MINE\n\n# Instructions"), "{prompt}");
        assert!(prompt.contains("RULES") && prompt.ends_with("Current working directory: /w"), "{prompt}");
        assert!(system_prompt(&Parts { custom: Some(" "), ..parts }).starts_with("You are kli"));
    }
}
