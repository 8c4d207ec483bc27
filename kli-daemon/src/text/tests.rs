use super::*;

#[track_caller]
fn check_head(text: &str, lines: usize, bytes: usize, want: (&str, Option<CutBy>, bool)) {
    let cut = head(text, Limits { lines, bytes });
    assert_eq!((cut.text, cut.by, cut.inside_line), want, "head of {text:?}");
    assert_eq!(cut.lines, count_lines(cut.text).max(usize::from(cut.inside_line)), "lines of {text:?}");
}

#[test]
fn head_cuts_at_lines_and_characters() {
    use CutBy::*;
    check_head("", 2, 10, ("", None, false));
    check_head("a\nb\n", 2, 10, ("a\nb\n", None, false));
    check_head("a\nb\nc", 2, 10, ("a\nb\n", Some(Lines), false));
    check_head("a\nb\nc", 9, 4, ("a\nb\n", Some(Bytes), false));
    check_head("abc\n", 9, 3, ("abc\n", None, false));
    check_head("abcd\n", 9, 3, ("abc", Some(Bytes), true));
    check_head("中中中", 9, 7, ("中中", Some(Bytes), true));
    check_head("a中中", 9, 3, ("a", Some(Bytes), true));
    check_head("中", 9, 2, ("", Some(Bytes), true));
}

#[track_caller]
fn check_tail(text: &str, lines: usize, bytes: usize, want: (&str, Option<CutBy>, bool)) {
    let cut = tail(text, Limits { lines, bytes });
    assert_eq!((cut.text, cut.by, cut.inside_line), want, "tail of {text:?}");
}

#[test]
fn tail_cuts_at_lines_and_characters() {
    use CutBy::*;
    check_tail("", 2, 10, ("", None, false));
    check_tail("a\nb\nc\n", 2, 10, ("b\nc\n", Some(Lines), false));
    check_tail("a\nb\nc", 2, 10, ("b\nc", Some(Lines), false));
    check_tail("a\nb\nc", 9, 3, ("b\nc", Some(Bytes), false));
    check_tail("abc\n", 9, 3, ("abc\n", None, false));
    for (lead, left) in [("", 6), ("x", 6), ("xy", 6), ("xyz", 6)] {
        let text = format!("{lead}中中中中");
        let cut = tail(&text, Limits { lines: 9, bytes: 8 });
        assert_eq!((cut.text.len(), cut.inside_line), (left, true), "{text}");
    }
}

#[track_caller]
fn check_clean(pieces: &[&[u8]], want: &str) {
    let (mut cleaner, mut text, mut live) = (Cleaner::default(), String::new(), String::new());
    for piece in pieces {
        cleaner.push(piece, &mut text, &mut live);
    }
    cleaner.finish(&mut text, &mut live);
    assert_eq!(text, want, "{pieces:?}");

    // Cut anywhere, the same comes out.
    let whole = pieces.concat();
    let (mut cleaner, mut text, mut live) = (Cleaner::default(), String::new(), String::new());
    for byte in &whole {
        cleaner.push(&[*byte], &mut text, &mut live);
    }
    cleaner.finish(&mut text, &mut live);
    assert_eq!(text, want, "{pieces:?} byte by byte");
}

#[test]
fn cleaner_leaves_plain_text() {
    check_clean(&[b"plain\ntext"], "plain\ntext");
    check_clean(&["zwei 中".as_bytes(), b"\n"], "zwei 中\n");
    check_clean(&[b"\xff\xfe ok\x00end"], "\u{fffd}\u{fffd} ok\u{fffd}end");
    check_clean(&[b"a/b\x00c\x00"], "a/b\u{fffd}c\u{fffd}");
    check_clean(&[b"kept\r\x00\n"], "kept\n");
    check_clean(&[b"cut \xe4\xb8"], "cut \u{fffd}");
    check_clean(&[b"a\r\nb\r\n"], "a\nb\n");
    check_clean(&[b"10%\r50%\r100%\ndone"], "100%\ndone");
    check_clean(&[b"kept\r"], "kept");
    check_clean(&[b"\x1b[1;31mred\x1b[0m \x1b[2Kx"], "red x");
    check_clean(&[b"\x1b]0;title\x07text \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\"], "text link");
    check_clean(&[b"\x1b(Bx\x1b=y\x1bPq#0\x1b\\z"], "xyz");
    check_clean(&[b"\x1b]never ended\nnext"], "\nnext");
    check_clean(&[b"N\x08NA\x08A"], "NA");
    check_clean(&[b"bell\x07 tab\tdel\x7f"], "bell tab\tdel");
    check_clean(&[b"end \x1b["], "end ");
}

#[test]
fn cleaner_shows_what_is_new_and_counts_what_it_replaced() {
    let (mut cleaner, mut text, mut live) = (Cleaner::default(), String::new(), String::new());
    cleaner.push(b"wait...", &mut text, &mut live);
    assert_eq!((text.as_str(), live.as_str(), cleaner.unfinished()), ("", "wait...", "wait..."));
    cleaner.push(b" done\nnext", &mut text, &mut live);
    assert_eq!((text.as_str(), live.as_str()), ("wait... done\n", "wait... done\nnext"));
    cleaner.push(b"\rover", &mut text, &mut live);
    assert_eq!(live, "wait... done\nnext\nover");
    cleaner.push(b"\xff\xff", &mut text, &mut live);
    cleaner.finish(&mut text, &mut live);
    assert_eq!((text.as_str(), cleaner.replaced()), ("wait... done\nover\u{fffd}\u{fffd}", 2));
}

#[test]
fn cleaner_holds_no_more_than_a_line() {
    let (mut cleaner, mut text, mut live) = (Cleaner::default(), String::new(), String::new());
    for _ in 0..1000 {
        cleaner.push(&[b'x'; 1000], &mut text, &mut live);
        assert!(cleaner.unfinished().len() <= 16 * 1024);
    }
    cleaner.finish(&mut text, &mut live);
    assert_eq!((text.len(), live.len()), (1_000_000, 1_000_000));
    cleaner.push(b"\x1b]", &mut text, &mut live);
    cleaner.push(&[b'y'; 100_000], &mut text, &mut live);
    cleaner.finish(&mut text, &mut live);
    assert!(text.len() > 1_090_000, "an unterminated sequence swallows little");
}

#[test]
fn lines_are_counted_as_in_an_editor() {
    for (text, want) in [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n\n", 2)] {
        assert_eq!(count_lines(text), want, "{text:?}");
    }
}

#[test]
fn titles_are_one_line() {
    for (text, chars, want) in [
        ("  a\n\tb  ", 80, "a b"),
        ("", 5, ""),
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde…"),
        ("abcde fg", 6, "abcde…"),
        ("a\u{202e}b\u{1b}[1mc", 80, "ab[1mc"),
        ("中中中", 2, "中…"),
        ("x", 0, ""),
    ] {
        assert_eq!(one_line(text, chars), want, "{text:?}");
    }
}

#[test]
fn long_lines_are_cut_around_the_match() {
    assert_eq!(clip_around("short", 0, 10), "short");
    assert_eq!(clip_around("0123456789", 0, 6), "012345…");
    assert_eq!(clip_around("0123456789", 9, 6), "…789");
    assert_eq!(clip_around("0123456789", 5, 3), "…456…");
    let line = format!("{}needle{}", "中".repeat(1000), "é".repeat(1000));
    let cut = clip_around(&line, 3000, 500);
    assert!(cut.contains("needle") && cut.chars().count() <= 502);
    assert!(!clip_around(&line, 3001, 500).is_empty(), "a focus inside a character");
}

#[test]
fn sizes_are_readable() {
    for (bytes, want) in
        [(0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 20, "5 MiB"), (3 << 30, "3 GiB")]
    {
        assert_eq!(size(bytes), want);
    }
}
