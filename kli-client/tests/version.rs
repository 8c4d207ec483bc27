//! The program itself, as far as it can be seen without a daemon. That this test is here also makes
//! `cargo test --workspace` build the program, which the tests of `kli-tests` then start.

use std::process::Command;

#[test]
fn it_tells_its_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_kli")).arg("--version").output().expect("start kli");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
}
