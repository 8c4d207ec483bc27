//! dialect

/// tmp
pub fn argument_fault(_: &crate::tool::Arguments) -> Option<String> { None }
