//! Text that stands for other text: templates with arguments, front matter, `@file` mentions. The pure half; files
//! are read by [`crate::workspace`].

use std::collections::BTreeMap;

/// Splits the text after a command as a shell would: by white space, quotes hold together. An open quote ends with
/// the text.
pub fn arguments(text: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut current: Option<String> = None;
    let mut quote: Option<char> = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                current.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => arguments.extend(current.take()),
            (_, c) => current.get_or_insert_default().push(c),
        }
    }
    arguments.extend(current);
    arguments
}

/// The template with `$1` `${1}` … (one argument), `$@` `$ARGUMENTS` (all), `${@:2}` `${@:2:3}` (some of them) replaced. In one
/// pass: what comes in is not looked at again. `raw` is the text after the command.
pub fn template(template: &str, raw: &str) -> String {
    let arguments = arguments(raw);
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        match variable(after) {
            Some((variable, left)) => {
                out.push_str(&value(variable, &arguments, raw));
                rest = left;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    All,
    One(usize),
    /// From the n-th on, so many at most.
    Some(usize, usize),
}

/// The variable whose name begins after a `$`, and what follows it.
fn variable(text: &str) -> Option<(Variable, &str)> {
    if let Some(rest) = text.strip_prefix('@').or_else(|| text.strip_prefix("ARGUMENTS")) {
        return Some((Variable::All, rest));
    }
    if let Some(braced) = text.strip_prefix('{') {
        let (name, rest) = braced.split_once('}')?;
        let variable = match name.strip_prefix('@') {
            Some("") => Variable::All,
            Some(slice) => {
                let mut numbers = slice.strip_prefix(':')?.splitn(2, ':').map(|n| n.trim().parse::<usize>().ok());
                let from = numbers.next()??;
                Variable::Some(from, numbers.next().map_or(Some(usize::MAX), |n| n)?)
            }
            None if name == "ARGUMENTS" => Variable::All,
            None => Variable::One(name.parse().ok()?),
        };
        return Some((variable, rest));
    }
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, rest) = text.split_at_checked(digits)?;
    // `$0` and prices such as `$0.10` stay.
    let number = number.parse::<usize>().ok().filter(|n| *n > 0)?;
    Some((Variable::One(number), rest))
}

fn value(variable: Variable, arguments: &[String], raw: &str) -> String {
    match variable {
        Variable::All => raw.trim().to_owned(),
        Variable::One(n) => n.checked_sub(1).and_then(|n| arguments.get(n)).cloned().unwrap_or_default(),
        Variable::Some(from, count) => {
            let some = arguments.iter().skip(from.saturating_sub(1)).take(count);
            some.map(String::as_str).collect::<Vec<_>>().join(" ")
        }
    }
}

/// A Markdown file's front matter and its text. Only top-level scalars are read, which is what skills and prompts
/// use; anything else of YAML is passed over.
pub fn front_matter(text: &str) -> (BTreeMap<String, String>, &str) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let opened =
        text.strip_prefix("---").and_then(|rest| rest.trim_start_matches([' ', '\t', '\r']).strip_prefix('\n'));
    let Some(inside) = opened else { return (BTreeMap::new(), text) };
    let mut end = 0;
    for line in inside.split_inclusive('\n') {
        if line.trim_end() == "---" {
            let body = inside.get(end + line.len()..).unwrap_or_default();
            return (scalars(inside.get(..end).unwrap_or_default()), body.trim_start_matches(['\n', '\r']));
        }
        end += line.len();
    }
    (BTreeMap::new(), text)
}

fn scalars(yaml: &str) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut key: Option<String> = None;
    for line in yaml.lines() {
        let indented = line.starts_with([' ', '\t']);
        if line.trim().is_empty() || !indented && line.starts_with('#') {
            continue;
        }
        match line.split_once(':') {
            Some((name, value)) if !indented => {
                let name = name.trim().to_owned();
                let value = value.trim();
                let block = matches!(value, "|" | ">" | "|-" | ">-" | "|+" | ">+");
                fields.insert(name.clone(), if block { String::new() } else { unquoted(value) });
                key = Some(name);
            }
            _ => {
                // A line that goes on the value above: folded, since all we read fits one line.
                if let Some(value) = key.as_ref().and_then(|key| fields.get_mut(key)) {
                    if !value.is_empty() {
                        value.push(' ');
                    }
                    value.push_str(line.trim());
                }
            }
        }
    }
    fields
}

fn unquoted(value: &str) -> String {
    if let Some(inner) = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')) {
        return inner.replace("\\\"", "\"").replace("\\n", "\n").replace("\\\\", "\\");
    }
    if let Some(inner) = value.strip_prefix('\'').and_then(|v| v.strip_suffix('\'')) {
        return inner.replace("''", "'");
    }
    value.split(" #").next().unwrap_or(value).trim_end().to_owned()
}

/// The command that a prompt begins with, without its `/`, and the text after it.
pub fn command(text: &str) -> Option<(&str, &str)> {
    let rest = text.trim_start().strip_prefix('/')?;
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    let (name, after) = rest.split_at_checked(end)?;
    (!name.is_empty()).then_some((name, after.trim()))
}

/// What may be a path after an `@`, in order, each once: `@src/main.rs`, `@"with spaces"`. Whether it is one, only the
/// file system knows; an address such as `me@example.org` is none.
pub fn mentions(text: &str) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let starts =
            c == '@' && (before.is_whitespace() || matches!(before, '(' | '[' | '{' | ',' | '<' | '"' | '\'' | '`'));
        before = c;
        if !starts {
            continue;
        }
        let rest = text.get(at + 1..).unwrap_or_default();
        let path = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split(['"', '\n']).next().unwrap_or_default(),
            None => rest.split(char::is_whitespace).next().unwrap_or_default(),
        };
        if !path.is_empty() && !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

/// The ways to read a mention: whole, then without the punctuation of the sentence around it.
pub fn readings(mention: &str) -> impl Iterator<Item = &str> {
    let shorter = mention.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '}', '>', '"', '\'', '`']);
    [mention, shorter].into_iter().take(if shorter == mention || shorter.is_empty() { 1 } else { 2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_split_as_a_shell_does() {
        for (text, want) in [
            ("", &[][..]),
            (" a  b ", &["a", "b"]),
            (r#"a "b c" 'd "e' f"g h"i"#, &["a", "b c", "d \"e", "fg hi"]),
            (r#""" x"#, &["", "x"]),
            ("it's open", &["its open"]),
        ] {
            assert_eq!(arguments(text), want, "{text}");
        }
    }

    #[test]
    fn templates() {
        for (text, raw, want) in [
            ("Review $1 for $2.", "a.rs speed", "Review a.rs for speed."),
            ("All: $@; $ARGUMENTS", "a \"b c\"", "All: a \"b c\"; a \"b c\""),
            ("${1}0 ${2} ${@:2} ${@:2:1} ${@}", "a b c", "a0 b b c b a b c"),
            ("$3|", "a", "|"),
            ("costs $0.10, $HOME, $, ${x}, ${@:x}", "a", "costs $0.10, $HOME, $, ${x}, ${@:x}"),
            ("$1", "$2 b", "$2"),
            ("no variables", "a", "no variables"),
        ] {
            assert_eq!(template(text, raw), want, "{text}");
        }
    }

    #[test]
    fn front_matter_is_read() {
        let (fields, body) = front_matter(
            "---\nname: pdf # c\ndescription: >\n  Reads\n  PDFs: all\nquoted: \"a \\\"b\\\"\"\n# note\nlist:\n  - x\n---\n\nBody\n---\n",
        );
        assert_eq!(fields["name"], "pdf");
        assert_eq!(fields["description"], "Reads PDFs: all");
        assert_eq!(fields["quoted"], "a \"b\"");
        assert_eq!(body, "Body\n---\n");
        assert_eq!(front_matter("---\r\nname: x\r\n---\r\nB").0["name"], "x");
        for text in ["plain", "---\nopen", "--- x\n---\n"] {
            assert_eq!(front_matter(text), (BTreeMap::new(), text));
        }
    }

    #[test]
    fn commands_and_mentions() {
        assert_eq!(command("/fix a b"), Some(("fix", "a b")));
        assert_eq!(command(" /skill:pdf\nx"), Some(("skill:pdf", "x")));
        assert_eq!(command("/"), None);
        assert_eq!(command("a /fix"), None);
        assert_eq!(mentions("see @a.rs, (@b/c) @\"d e\" me@x.org @a.rs, @ `@f`"), ["a.rs,", "b/c)", "d e", "f`"]);
        assert_eq!(readings("a.rs,").collect::<Vec<_>>(), ["a.rs,", "a.rs"]);
        assert_eq!(readings("a.rs").collect::<Vec<_>>(), ["a.rs"]);
        assert_eq!(readings("..").collect::<Vec<_>>(), [".."]);
    }
}
