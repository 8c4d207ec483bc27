//! text
pub fn one_line(t: &str) -> String { t.split_whitespace().collect::<Vec<_>>().join(" ") }
