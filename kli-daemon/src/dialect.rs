//! dialect
pub mod arguments { pub fn invalid_arguments(_: &crate::tool::Arguments) -> Option<String> { None } }
