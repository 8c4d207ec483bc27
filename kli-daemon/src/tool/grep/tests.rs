use std::os::unix::fs::symlink;

use serde_json::json;

use super::*;
use crate::tool::find::Find;
use crate::tool::ls::Ls;
use crate::tool::testing::{Place, text};

/// The tree of failure case F148, and more of its kind.
fn tree() -> Place {
    let place = Place::new();
    place.write("rules", "node_modules/\n*.log\n");
    symlink("rules", place.at(".gitignore")).unwrap();
    place.write("a/one.txt", "one needle here\nnothing\n");
    symlink("..", place.at("a/loop")).unwrap();
    place.write("node_modules/x.txt", "a needle in x\n");
    place.write("node_modules/deep/y.log", "a needle in y\n");
    place.write(".git/config", "needle in git\n");
    place.write(".env", "NEEDLE=1\nneedle=2\n");
    place.write("app.log", "needle in log\n");
    place.write("b/two.rs", "fn needle() {}\r\nlast\r\n");
    assert!(std::process::Command::new("mkfifo").arg(place.at("fifo")).status().unwrap().success());
    place
}

#[tokio::test]
async fn what_is_searched() {
    let place = tree();
    let kept_back = "[Passed over: 1 that may hold secrets (such as .env or keys); path can name one.]";
    let all = format!("a/one.txt:1:one needle here\nb/two.rs:1:fn needle() {{}}\n\n{kept_back}");
    let (all, none) = (all.as_str(), format!("No matches.\n\n{kept_back}"));
    for (arguments, want) in [
        (json!({"pattern": "needle"}), all),
        (json!({"pattern": "needle", "path": "."}), all),
        (json!({"pattern": "needle", "path": "./"}), all),
        (json!({"pattern": "needle", "glob": "*.rs"}), "b/two.rs:1:fn needle() {}\n"),
        (json!({"pattern": "needle", "glob": "b/**"}), "b/two.rs:1:fn needle() {}\n"),
        (
            json!({"pattern": "needle", "glob": "*.{rs,txt}"}),
            "a/one.txt:1:one needle here\nb/two.rs:1:fn needle() {}\n",
        ),
        (json!({"pattern": "needle", "path": "node_modules/x.txt"}), "node_modules/x.txt:1:a needle in x\n"),
        (json!({"pattern": "needle", "path": "app.log"}), "app.log:1:needle in log\n"),
        (
            json!({"pattern": "needle", "path": "node_modules"}),
            "node_modules/deep/y.log:1:a needle in y\nnode_modules/x.txt:1:a needle in x\n",
        ),
        (json!({"pattern": "needle", "path": "node_modules/deep"}), "node_modules/deep/y.log:1:a needle in y\n"),
        (json!({"pattern": "needle", "path": ".git"}), ".git/config:1:needle in git\n"),
        (json!({"pattern": "NEEDLE", "ignoreCase": true, "path": ".env"}), ".env:1:NEEDLE=1\n.env:2:needle=2\n"),
        (json!({"pattern": "needle()", "literal": true, "path": "b"}), "b/two.rs:1:fn needle() {}\n"),
        (json!({"pattern": "^last$", "path": "b"}), "b/two.rs:2:last\n"),
        (json!({"pattern": "here\\nnothing", "path": "a"}), "a/one.txt:1:one needle here\na/one.txt:2:nothing\n"),
        (json!({"pattern": "absent"}), none.as_str()),
        (json!({"pattern": "absent", "path": "b"}), "No matches."),
        (json!({"pattern": "needle", "context": 1, "glob": "*.rs"}), "b/two.rs:1:fn needle() {}\nb/two.rs-2-last\n"),
        (
            json!({"pattern": "needle", "limit": 1}),
            "a/one.txt:1:one needle here\n\n[There are more than 1 matches. Narrow the search down by path, glob or pattern, or set a higher limit.]\n\
             [Passed over: 1 that may hold secrets (such as .env or keys); path can name one.]",
        ),
    ] {
        let output = place.call(&Grep::new(), arguments.clone()).await;
        assert_eq!((text(&output).as_str(), output.is_error), (want, false), "{arguments}");
    }
    for (arguments, want) in [
        (json!({"pattern": "("}), "no regular expression"),
        (json!({"pattern": "x", "glob": "a{"}), "glob is wrong"),
        (json!({"pattern": "x", "path": "gone"}), "gone"),
        (json!({"pattern": "x", "path": "fifo"}), "a named pipe"),
        (json!({"pattern": "x", "path": "/dev/zero"}), "a device"),
        (json!({"pattern": "x", "limit": 0}), "`limit` must be 1 or more"),
        (json!({}), "`pattern` is missing"),
    ] {
        let output = place.call(&Grep::new(), arguments.clone()).await;
        assert!(output.is_error && text(&output).contains(want), "{arguments}: {}", text(&output));
    }
}

#[tokio::test]
async fn output_stays_within_its_bounds() {
    let place = Place::new();
    place.write("minified.js", format!("{}needle{}\n", "x".repeat(1_000_000), "y".repeat(1_000_000)));
    place.write("binary", b"needle\0needle\n");
    place.write("utf16", crate::tool::file::encode("ein needle\n", crate::tool::file::Encoding::Utf16Le));
    place.write("latin1", b"caf\xe9 needle\n");
    let output = text(&place.call(&Grep::new(), json!({"pattern": "needle"})).await);
    assert!(output.contains("needle") && output.lines().all(|line| line.chars().count() < 540), "{output}");
    assert!(output.contains("latin1:1:caf\u{fffd} needle") && output.contains("utf16:1:ein needle"), "{output}");
    assert!(!output.contains("binary:"), "{output}");

    place.write("many", "中 needle 中中中中中中中中中中\n".repeat(100_000));
    let output = text(&place.call(&Grep::new(), json!({"pattern": "needle", "path": "many", "limit": 100_000})).await);
    assert!(output.len() < Limits::OUTPUT.bytes + 200 && output.ends_with("glob or pattern.]"), "{}", output.len());
    let output = text(&place.call(&Grep::new(), json!({"pattern": "needle", "path": "many"})).await);
    assert_eq!(output.lines().filter(|line| line.contains("needle")).count(), 100);

    place.context.cancel.cancel();
    assert!(place.call(&Grep::new(), json!({"pattern": "needle"})).await.is_error);
}

#[tokio::test]
async fn find_matches_names_and_paths() {
    let place = tree();
    for (arguments, want) in [
        (json!({"pattern": "*.txt"}), "a/one.txt\n"),
        (json!({"pattern": "**/*.txt"}), "a/one.txt\n"),
        (json!({"pattern": "b/*"}), "b/two.rs\n"),
        (json!({"pattern": "./b/*"}), "b/two.rs\n"),
        (json!({"pattern": "b"}), "b/\n"),
        (json!({"pattern": "b/"}), "b/\n"),
        (json!({"pattern": ".env"}), ".env\n"),
        (json!({"pattern": "*", "path": "a"}), "a/loop\na/one.txt\n"),
        (json!({"pattern": "*.log"}), "Nothing matches the pattern."),
        (json!({"pattern": "*.log", "path": "node_modules"}), "node_modules/deep/y.log\n"),
        (json!({"pattern": "config"}), "Nothing matches the pattern."),
        (
            json!({"pattern": "*", "limit": 1}),
            ".env\n\n[Only the first 1; there are more. Narrow the pattern or the path down.]",
        ),
    ] {
        let output = place.call(&Find::new(), arguments.clone()).await;
        let got = text(&output);
        assert_eq!((got.as_str(), output.is_error), (want, false), "{arguments}");
    }
    for (arguments, want) in [
        (json!({"pattern": "*", "path": "rules"}), "not a directory"),
        (json!({"pattern": "*", "path": "gone"}), "gone"),
        (json!({"pattern": "{"}), "no glob"),
    ] {
        let output = place.call(&Find::new(), arguments.clone()).await;
        assert!(output.is_error && text(&output).contains(want), "{arguments}: {}", text(&output));
    }
}

#[tokio::test]
async fn ls_lists_all_in_order() {
    let place = Place::new();
    place.write("B.txt", "");
    place.write("a/x", "");
    place.write(".hidden", "");
    place.write("line\nend", "");
    std::fs::create_dir(place.at("empty")).unwrap();
    symlink("a", place.at("link")).unwrap();
    symlink("gone", place.at("dangling")).unwrap();
    for (arguments, error, want) in [
        (json!({}), false, ".hidden\na/\nB.txt\ndangling\nempty/\nline\u{fffd}end\nlink/\n"),
        (json!({"path": "a"}), false, "x\n"),
        (json!({"path": "link/"}), false, "x\n"),
        (json!({"path": "empty"}), false, "(empty directory)"),
        (json!({"limit": 2}), false, ".hidden\na/\n\n[Only the first 2 of 7 entries. Set a limit, or use find.]"),
        (json!({"path": "B.txt"}), true, "B.txt is not a directory. Use read."),
        (json!({"path": "gone"}), true, "There is no directory gone."),
        (json!({"path": 1}), true, "The argument `path` must be a string."),
    ] {
        let output = place.call(&Ls::new(), arguments.clone()).await;
        assert_eq!((text(&output).as_str(), output.is_error), (want, error), "{arguments}");
    }
}
