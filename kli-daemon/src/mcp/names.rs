//! Names of tools as every provider takes them: `mcp__<server>__<tool>`, of `[A-Za-z0-9_-]{1,64}`.

use sha2::{Digest, Sha256};

const LONGEST: usize = 64;

/// A name that only this tool of this server has, whichever other servers there are: where the plain one would not
/// tell, a part of a hash does.
pub(super) fn name(server: &str, tool: &str) -> String {
    let plain = format!("mcp__{server}__{tool}");
    let fits = plain.len() <= LONGEST && plain.bytes().all(is_legal);
    // Of `a__b` and `c`, and of `a` and `b__c`, the plain names are the same.
    if fits && !server.contains("__") && !server.ends_with('_') && !tool.starts_with('_') && !tool.is_empty() {
        return plain;
    }
    let digest = Sha256::digest(format!("{server}\0{tool}").as_bytes());
    let hash: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let clean: String = plain.chars().map(|c| if c.is_ascii() && is_legal(c as u8) { c } else { '_' }).collect();
    let kept = clean.get(..clean.len().min(LONGEST - 1 - hash.len())).unwrap_or_default();
    format!("{kept}_{hash}")
}

fn is_legal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_legal_and_tell_tools_apart() {
        assert_eq!(name("files", "read_file"), "mcp__files__read_file");
        let long = "x".repeat(100);
        let tools = [
            ("s1", "run"),
            ("s2", "run"),
            ("s1", "a.b"),
            ("s1", "a_b"),
            ("s1", "bash"),
            ("s.1", "run"),
            ("s_1", "run"),
            ("a__b", "c"),
            ("a", "b__c"),
            ("a_", "b"),
            ("a", "_b"),
            ("s1", &long),
            ("s2", &long),
            (&long, "run"),
            ("ß", "é"),
            ("s1", ""),
        ];
        let names: HashSet<String> = tools.iter().map(|(server, tool)| name(server, tool)).collect();
        assert_eq!(names.len(), tools.len(), "{names:?}");
        for name in names {
            assert!((1..=LONGEST).contains(&name.len()) && name.bytes().all(is_legal), "{name}");
        }
    }
}
