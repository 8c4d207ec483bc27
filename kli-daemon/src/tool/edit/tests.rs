use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::json;

use super::*;
use crate::tool::testing::{Place, shared, text};

struct Case<'a> {
    before: &'a [u8],
    arguments: Value,
    /// The file, or what the error says.
    want: Result<&'a [u8], &'a str>,
}

#[track_caller]
fn check(case: Case<'_>) {
    let place = Place::new();
    let path = place.write("f.txt", case.before);
    let mut arguments = case.arguments.clone();
    arguments["path"] = json!("f.txt");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let output = runtime.block_on(place.call(&Edit::new(), arguments));
    let after = std::fs::read(path).unwrap();
    match case.want {
        Ok(want) => {
            assert!(!output.is_error, "{}", text(&output));
            assert_eq!(String::from_utf8_lossy(&after), String::from_utf8_lossy(want), "{}", case.arguments);
            assert_eq!(after, want);
        }
        Err(want) => {
            assert!(output.is_error && text(&output).contains(want), "{}: {}", case.arguments, text(&output));
            assert_eq!(after, case.before, "the file stays as it was");
        }
    }
}

#[test]
fn arguments_in_all_their_forms() {
    let abc = b"a b c\n".as_slice();
    for (arguments, want) in [
        (json!({"edits": [{"oldText": "b", "newText": "B"}]}), Ok(b"a B c\n".as_slice())),
        (json!({"oldText": "b", "newText": "B"}), Ok(b"a B c\n")),
        (json!({"edits": "[{\"oldText\": \"b\", \"newText\": \"B\"}]"}), Ok(b"a B c\n")),
        (json!({"edits": {"oldText": "b", "newText": "B"}}), Ok(b"a B c\n")),
        (json!({}), Err("`edits` is missing")),
        (json!({"edits": []}), Err("empty list")),
        (json!({"edits": "nonsense"}), Err("must be a list")),
        (json!({"edits": [{"oldText": "b"}]}), Err("edits[0].newText must be a string")),
        (json!({"oldText": "b"}), Err("`newText` is missing")),
        (json!({"oldText": "", "newText": "x"}), Err("edits[0].oldText is empty")),
        (json!({"oldText": "b", "newText": "b"}), Err("the same")),
        (json!({"oldText": "z", "newText": "b"}), Err("was not found")),
    ] {
        check(Case { before: abc, arguments, want });
    }
}

#[test]
fn failure_cases_of_the_collection() {
    for (name, old, new, want) in [
        ("F140-crlf.txt", "alpha\nbeta", "ALPHA\nBETA", Ok(b"ALPHA\r\nBETA\r\ngamma\r\n".as_slice())),
        ("F140-crlf.txt", "beta", "B", Ok(b"alpha\r\nB\r\ngamma\r\n")),
        ("F142-mixed-eol.txt", "delta", "D", Ok(b"alpha\nbeta\r\ngamma\rD\r\n")),
        ("F144-repeat.txt", "x = 1", "x = 9", Err("2 matches (lines 1, 3)")),
        ("F145-no-final-newline.txt", "last", "LAST", Ok(b"first\nLAST line without newline")),
    ] {
        if let Some(before) = shared(&format!("failures/{name}")) {
            check(Case { before: &before, arguments: json!({"oldText": old, "newText": new}), want });
        }
    }
}

#[test]
fn encodings_are_kept() {
    let utf16 = |text: &str| file::encode(text, file::Encoding::Utf16Le);
    for (before, old, new, want) in [
        (b"\xef\xbb\xbffirst\n".to_vec(), "first", "1st", Ok(b"\xef\xbb\xbf1st\n".to_vec())),
        (utf16("eins\r\nzwei\r\n"), "zwei", "zw\u{f6}i\ndrei", Ok(utf16("eins\r\nzw\u{f6}i\r\ndrei\r\n"))),
        (b"caf\xe9 one\r\n".to_vec(), "one", "two", Ok(b"caf\xe9 two\r\n".to_vec())),
        (b"caf\xe9 one".to_vec(), "one", "zw\u{f6}i", Err("can only have ASCII")),
        (b"a\0b one".to_vec(), "one", "two", Ok(b"a\0b two".to_vec())),
    ] {
        let want = want.as_deref().map_err(|error| *error);
        check(Case { before: &before, arguments: json!({"oldText": old, "newText": new}), want });
    }
}

#[tokio::test]
async fn details_show_the_change() {
    let place = Place::new();
    place.write("f.txt", "a\nb\nc\n");
    let arguments = json!({"path": "f.txt", "oldText": "b", "newText": "B"});
    let outline = Edit::new().outline(arguments.as_object().unwrap(), &place.context.work_dir);
    assert_eq!((outline.title.as_str(), outline.locations[0].line), ("edit f.txt", Some(2)));
    let changes = outline.changes.unwrap();
    assert_eq!(
        (changes[0].old_text.as_deref(), changes[0].new_text.as_str(), changes[0].line),
        (Some("b"), "B", Some(2))
    );
    let output = place.call(&Edit::new(), arguments).await;
    let details = output.details.unwrap();
    assert_eq!(details["firstChangedLine"], 2);
    assert!(details["diff"].as_str().unwrap().contains("-b\n+B\n"), "{details}");
}

#[tokio::test]
async fn modes_links_and_refusals() {
    let place = Place::new();
    let edit = |path: &str| json!({"path": path, "oldText": "old", "newText": "new"});
    let mode = |path: &str| std::fs::metadata(place.at(path)).unwrap().permissions().mode() & 0o7777;

    place.write("script.sh", "old");
    std::fs::set_permissions(place.at("script.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("script.sh", place.at("link")).unwrap();
    assert!(!place.call(&Edit::new(), edit("link")).await.is_error);
    assert_eq!((std::fs::read(place.at("script.sh")).unwrap(), mode("script.sh")), (b"new".to_vec(), 0o755));
    assert!(std::fs::symlink_metadata(place.at("link")).unwrap().is_symlink());

    place.write("fixed", "old");
    std::fs::set_permissions(place.at("fixed"), std::fs::Permissions::from_mode(0o444)).unwrap();
    let output = place.call(&Edit::new(), edit("fixed")).await;
    assert!(output.is_error && text(&output).contains("read-only"), "{}", text(&output));

    for (path, want) in [("gone", "no file"), (".", "a directory"), ("/dev/zero", "a device"), ("a\0b", "")] {
        let output = place.call(&Edit::new(), edit(path)).await;
        assert!(output.is_error && text(&output).contains(want), "{path}: {}", text(&output));
    }
}

#[tokio::test]
async fn parallel_edits_of_one_file_are_all_made() {
    let place = Place::new();
    let lines: String = (0..20).map(|n| format!("line {n};\n")).collect();
    place.write("f.txt", lines);
    symlink("f.txt", place.at("same")).unwrap();
    let edit = Edit::new();
    let calls = (0..20).map(|n| {
        let path = if n % 2 == 0 { "f.txt" } else { "same" };
        place.call(&edit, json!({"path": path, "oldText": format!("line {n};"), "newText": format!("done {n};")}))
    });
    let outputs = futures_util::future::join_all(calls).await;
    assert!(outputs.iter().all(|output| !output.is_error));
    let after = std::fs::read_to_string(place.at("f.txt")).unwrap();
    assert_eq!(after, (0..20).map(|n| format!("done {n};\n")).collect::<String>());
}

#[tokio::test]
async fn edits_of_one_file_go_in_call_order() {
    let place = Place::new();
    place.write("f.txt", "0");
    let edit = Edit::new();
    let mut calls: Vec<_> = (0..30)
        .map(|n| {
            let arguments = json!({"path": "f.txt", "oldText": n.to_string(), "newText": (n + 1).to_string()});
            edit.call(arguments.as_object().unwrap().clone(), place.context.clone())
        })
        .collect();
    // However they are polled.
    calls.reverse();
    let outputs = futures_util::future::join_all(calls).await;
    assert!(outputs.iter().all(|output| !output.is_error));
    assert_eq!(std::fs::read(place.at("f.txt")).unwrap(), b"30");
}

#[tokio::test]
async fn without_its_work_directory_a_call_says_so_and_makes_nothing() {
    let place = Place::new();
    std::fs::remove_dir(&place.context.work_dir).unwrap();
    let output = place.call(&Edit::new(), json!({"path": "f", "oldText": "a", "newText": "b"})).await;
    assert!(output.is_error && text(&output).contains("does not exist any more"), "{}", text(&output));
    let write = crate::tool::write::Write::new();
    let output = place.call(&write, json!({"path": "f", "content": "b"})).await;
    assert!(output.is_error && text(&output).contains("does not exist any more"), "{}", text(&output));
    assert!(!place.context.work_dir.exists());
    // Place wants to remove it at the end.
    std::fs::create_dir(&place.context.work_dir).unwrap();
}
