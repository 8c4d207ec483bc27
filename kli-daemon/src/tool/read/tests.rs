use std::os::unix::net::UnixListener;

use serde_json::{Value, json};

use super::*;
use crate::tool::testing::{Place, text};

#[tokio::test]
async fn parts_of_a_file() {
    let place = Place::new();
    place.write("three", "one\ntwo\nthree\n");
    place.write("no-end", "one\ntwo");
    place.write("empty", "");
    place.write("line-end", "\n");
    let all = "one\ntwo\nthree\n";
    for (arguments, error, want) in [
        (json!({"path": "three"}), false, all),
        (json!({"path": "three", "offset": 2}), false, "two\nthree\n"),
        (
            json!({"path": "three", "offset": "2", "limit": 1}),
            false,
            "two\n\n[Lines 2-2 of 3 lines. Read on with offset=3.]",
        ),
        (json!({"path": "three", "limit": 3}), false, all),
        (json!({"path": "three", "offset": 4}), true, "offset 4 is past the end: three has 3 lines."),
        (json!({"path": "three", "offset": 100}), true, "offset 100 is past the end: three has 3 lines."),
        (json!({"path": "three", "offset": i64::MAX}), true, "three has 3 lines."),
        (
            json!({"path": "three", "offset": 0}),
            false,
            "three\n\n[Lines count from 1, so offset 0 was taken as 1; the file has 3 lines.]",
        ),
        (json!({"path": "three", "offset": -1}), true, "offset -1: lines count from 1; three has 3 lines."),
        (json!({"path": "three", "limit": 0}), true, "limit 0: it must be 1 or more; three has 3 lines."),
        (json!({"path": "three", "limit": -5}), true, "three has 3 lines."),
        (json!({"path": "no-end", "offset": 2}), false, "two"),
        (json!({"path": "no-end", "offset": 3}), true, "no-end has 2 lines."),
        (json!({"path": "empty"}), false, "empty is empty (0 bytes)."),
        (json!({"path": "empty", "offset": 5}), false, "empty is empty (0 bytes)."),
        (json!({"path": "line-end"}), false, "\n"),
        (json!({"path": "gone"}), true, "There is no file"),
        (json!({}), true, "`path` is missing"),
        (json!({"path": "three", "offset": "x"}), true, "`offset` must be a number"),
    ] {
        let output = place.call(&Read::new(), arguments.clone()).await;
        assert_eq!(output.is_error, error, "{arguments}: {}", text(&output));
        assert!(
            text(&output).ends_with(want) || text(&output).contains(want) && error,
            "{arguments}: {:?}",
            text(&output)
        );
    }
}

#[tokio::test]
async fn large_files_are_cut_at_lines_and_say_how_to_read_on() {
    let place = Place::new();
    place.write("lines", "x\n".repeat(5000));
    place.write("bytes", format!("{}\n", "y".repeat(999)).repeat(100));
    place.write("long", format!("{}\nnext\n", "中".repeat(100_000)));
    for (arguments, lines, want) in [
        (json!({"path": "lines"}), 2000, "[Lines 1-2000 of 5000 lines. Read on with offset=2001.]"),
        (json!({"path": "lines", "limit": 9000}), 2000, "[Lines 1-2000 of 5000 lines. Read on with offset=2001.]"),
        (
            json!({"path": "lines", "offset": 4500, "limit": 100}),
            100,
            "[Lines 4500-4599 of 5000 lines. Read on with offset=4600.]",
        ),
        (json!({"path": "bytes"}), 51, "[Lines 1-51 of 100 lines. Read on with offset=52.]"),
        (json!({"path": "bytes", "offset": 52}), 49, "yyy"),
        (json!({"path": "long"}), 1, "tail -c +51199.]\n[Lines 1-1 of 2 lines. Read on with offset=2.]"),
    ] {
        let output = place.call(&Read::new(), arguments.clone()).await;
        let got = text(&output);
        assert!(
            !output.is_error && got.trim_end().ends_with(want),
            "{arguments}: {:?}",
            &got[got.len().saturating_sub(200)..]
        );
        assert_eq!(got.split("\n\n[").next().unwrap().lines().count(), lines, "{arguments}");
        assert!(got.len() <= Limits::OUTPUT.bytes + 300 && !got.contains('\u{fffd}'), "{arguments}");
    }
    let output = place.call(&Read::new(), json!({"path": "lines"})).await;
    assert_eq!(output.details, Some(json!({"truncated": true, "firstLine": 1, "lastLine": 2000, "totalLines": 5000})));
    // Every place where the window may cut a character.
    for lead in 0..4 {
        place.write("cut", format!("{}{}", "a".repeat(lead), "😀".repeat(20_000)));
        let got = text(&place.call(&Read::new(), json!({"path": "cut"})).await);
        assert!(!got.contains('\u{fffd}') && got.starts_with("aaa".get(..lead).unwrap()), "{lead}");
    }
}

#[tokio::test]
async fn what_is_no_text_is_named() {
    let place = Place::new();
    place.write("binary", b"\x7fELF\0\0\0");
    place.write("latin1", b"caf\xe9\n");
    place.write("late-nul", [vec![b'a'; 9000], b"\0b\n".to_vec()].concat());
    place.write("utf16le", file::encode("eins\nzwei\n", file::Encoding::Utf16Le));
    place.write("utf16be", file::encode("eins\nzwei\n", file::Encoding::Utf16Be));
    place.write("bom", b"\xef\xbb\xbftext\n");
    for (path, error, want) in [
        ("binary", true, "binary is a binary file (7 bytes)"),
        ("latin1", false, "caf\u{fffd}\n\n[Bytes that are not UTF-8 text, and NUL, are shown as U+FFFD.]"),
        ("late-nul", false, "a\u{fffd}b\n\n[Bytes"),
        ("utf16le", false, "eins\nzwei\n\n[Decoded from UTF-16"),
        ("utf16be", false, "eins\nzwei\n\n[Decoded from UTF-16"),
        ("bom", false, "text\n"),
    ] {
        let output = place.call(&Read::new(), json!({"path": path})).await;
        let got = text(&output);
        assert_eq!(output.is_error, error, "{path}: {got}");
        assert!(got.contains(want) && !got.contains('\0') && !got.contains('\u{feff}'), "{path}: {got:?}");
    }
}

#[tokio::test]
async fn special_files_are_refused_at_once() {
    let place = Place::new();
    assert!(std::process::Command::new("mkfifo").arg(place.at("fifo")).status().unwrap().success());
    let _socket = UnixListener::bind(place.at("socket")).unwrap();
    for (path, want) in [
        ("/dev/zero", "a device"),
        ("/dev/urandom", "a device"),
        ("/dev/tty", "device"),
        ("fifo", "a named pipe"),
        (".", "is a directory. Use ls"),
        ("socket", "a socket"),
        ("/proc/self/mem", ""),
        ("a\0b", ""),
        ("", "is a directory"),
    ] {
        let output = place.call(&Read::new(), json!({"path": path})).await;
        assert!(output.is_error && text(&output).contains(want), "{path}: {}", text(&output));
    }
    // Files without a size are files.
    let output = place.call(&Read::new(), json!({"path": "/proc/self/status"})).await;
    assert!(!output.is_error && text(&output).contains("Name:"));
}

#[tokio::test]
async fn a_huge_file_is_read_in_constant_memory() {
    let place = Place::new();
    let file = std::fs::File::create(place.at("huge")).unwrap();
    // 64 GiB without a block on disk, after a text that is longer than what is looked at for zero bytes.
    std::io::Write::write_all(&mut &file, "line\n".repeat(4000).as_bytes()).unwrap();
    file.set_len(64 << 30).unwrap();
    let output = place.call(&Read::new(), json!({"path": "huge", "limit": 2})).await;
    assert!(text(&output).contains("Lines 1-2 of more than 4000 lines."), "{}", text(&output));
    place.context.cancel.cancel();
    let output = place.call(&Read::new(), json!({"path": "huge", "offset": 5000})).await;
    assert!(output.is_error && text(&output) == "Aborted.");
}

#[tokio::test]
async fn pictures_come_as_pictures_or_are_told_of() {
    let mut place = Place::new();
    let mut png = Vec::new();
    let picture = ::image::DynamicImage::ImageRgb8(::image::RgbImage::new(8100, 20));
    picture.write_to(&mut Cursor::new(&mut png), ::image::ImageFormat::Png).unwrap();
    place.write("wide.txt", &png);
    place.write("torn.png", &png[..png.len() / 2]);
    let output = place.call(&Read::new(), json!({"path": "wide.txt"})).await;
    assert!(text(&output).contains("scaled from 8100×20 to 2000×5 px"), "{}", text(&output));
    assert!(
        matches!(&output.content[1], Block::Image(image) if image.mime_type == "image/png" && !image.data.is_empty())
    );
    let output = place.call(&Read::new(), json!({"path": "torn.png"})).await;
    assert!(output.is_error && output.content.len() == 1 && text(&output).contains("broken"), "{}", text(&output));
    place.context.images = false;
    let output = place.call(&Read::new(), json!({"path": "wide.txt"})).await;
    assert!(!output.is_error && output.content.len() == 1);
    assert!(text(&output).contains("8100×20 px") && text(&output).contains("takes no images"), "{}", text(&output));
}

#[test]
fn the_question_to_a_person_tolerates_anything() {
    for (arguments, want) in [
        (json!({"path": "a/b.rs", "offset": 7}), "read a/b.rs:7"),
        (json!({"path": "/etc/x"}), "read /etc/x"),
        (json!({"path": 7}), "read"),
        (json!({"path": "a", "offset": [1]}), "read a"),
        (Value::Object(Default::default()), "read"),
    ] {
        assert_eq!(Read::new().outline(arguments.as_object().unwrap(), Path::new("/w")).title, want);
    }
}
