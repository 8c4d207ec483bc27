//! ws
pub fn context_files(_: &std::path::Path, _: Option<&std::path::Path>) -> Vec<(std::path::PathBuf, String)> {
    vec![]
}
