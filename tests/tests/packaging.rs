//! What is shipped beside the programs.

use std::path::Path;
use std::process::Command;

fn packaging() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

/// systemd itself reads the user units without a complaint.
#[test]
fn systemd_units() {
    let place = kli_tests::fixtures::temp_dir("kli-u");
    for name in ["kli.socket", "kli.service"] {
        let text = std::fs::read_to_string(packaging().join("systemd").join(name)).unwrap();
        // The program need not be installed for its unit to be checked.
        let text = text.replace("/usr/bin/kli-daemon", "/bin/true");
        std::fs::write(place.path().join(name), text).unwrap();
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["--user", "verify", "kli.socket", "kli.service"]).current_dir(place.path());
    command.env("XDG_RUNTIME_DIR", place.path()).env("SYSTEMD_UNIT_PATH", format!("{}:", place.path().display()));
    let Ok(output) = command.output() else {
        eprintln!("skipped: there is no systemd-analyze");
        return;
    };
    let told = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = told.lines().filter(|line| line.contains("kli.")).collect();
    assert!(output.status.success() && ours.is_empty(), "{told}");
}

/// Changes are written down before they are released.
#[test]
fn the_changelog_has_this_version() {
    let text = std::fs::read_to_string(packaging().join("CHANGELOG.md")).unwrap();
    let version = format!("## {}", env!("CARGO_PKG_VERSION"));
    assert!(text.contains("## Unreleased") || text.contains(&version), "{version} is not in the changelog");
}
