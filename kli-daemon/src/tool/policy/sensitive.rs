//! Files that a person is asked for whatever else is allowed: those that usually hold secrets, and those that
//! decide what runs later.

use std::path::{Component, Path};

/// Names in lower case.
const NAMES: &[&str] = &[
    ".env",
    ".envrc",
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".htpasswd",
    ".dockercfg",
    ".vault-token",
    ".s3cfg",
    ".boto",
    "credentials",
    "credentials.json",
    "credentials.toml",
    "credentials.yml",
    "credentials.yaml",
    "credentials.db",
    "secrets.json",
    "secrets.toml",
    "secrets.yml",
    "secrets.yaml",
    "secret.key",
    "master.key",
    "auth.json",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "id_ecdsa_sk",
    "id_ed25519_sk",
    "shadow",
    "gshadow",
    "sudoers",
    "keystore",
];
const ENDINGS: &[&str] = &[
    ".pem",
    ".key",
    ".p12",
    ".pfx",
    ".p8",
    ".pk8",
    ".jks",
    ".keystore",
    ".kdbx",
    ".ppk",
    ".asc.key",
    "_rsa",
    "_ed25519",
    ".env",
    ".ovpn",
    ".agekey",
];
const DIRECTORIES: &[&str] = &[".ssh", ".gnupg", ".aws", ".azure", ".kube", ".password-store", "gcloud", ".docker"];
/// `.env` files that are there to be shown.
const TEMPLATES: &[&str] = &["example", "sample", "template", "dist", "defaults"];

/// By its name and place; what it holds is not looked at.
pub(crate) fn is_sensitive(path: &Path) -> bool {
    let parts: Vec<String> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().to_lowercase()),
            _ => None,
        })
        .collect();
    let Some(name) = parts.last() else { return false };
    let in_proc = parts.first().is_some_and(|part| part == "proc") && matches!(name.as_str(), "environ" | "mem");
    parts.iter().any(|part| DIRECTORIES.contains(&part.as_str())) || is_sensitive_name(name) || in_proc
}

fn is_sensitive_name(name: &str) -> bool {
    if let Some(kind) = name.strip_prefix(".env.") {
        return !TEMPLATES.iter().any(|template| kind.split('.').any(|part| part == *template));
    }
    NAMES.contains(&name) || ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// A pattern that may be meant to become such a file: `.en*`, `.e?v`.
pub(super) fn is_glob_of_sensitive(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word).to_lowercase();
    if !name.contains(['*', '?', '[', '{']) || !name.contains(|c: char| c.is_ascii_alphabetic()) {
        return false;
    }
    let Ok(glob) = globset::Glob::new(&name) else { return false };
    let matcher = glob.compile_matcher();
    NAMES.iter().filter(|name| name.starts_with('.') || name.starts_with("id_")).any(|name| matcher.is_match(name))
}

/// What is written there is run or obeyed later, without being asked for again.
pub(super) fn is_steering(path: &Path) -> bool {
    path.components().any(|part| {
        matches!(part, Component::Normal(name) if matches!(name.to_string_lossy().to_lowercase().as_str(), ".git" | ".kli"))
    })
}
