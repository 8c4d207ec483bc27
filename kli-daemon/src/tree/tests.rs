use super::json::is_object;
use super::line::{self, NoRecord, Says};
use super::*;

#[test]
fn only_whole_objects_are_objects() {
    let cases = [
        (r#"{}"#, true),
        (r#"{"a":"\ud83d","b":[1,{"c":null}]}"#, true),
        (r#"{"a":1"#, false),
        (r#"{"a":1}}"#, false),
        (r#"[]"#, false),
        (r#""x""#, false),
        ("{\"a\":\"\t\"}", false),
        (r#"{"a":1}{"b":2}"#, false),
        ("", false),
    ];
    for (text, right) in cases {
        assert_eq!(is_object(text.as_bytes()), right, "{text}");
    }
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(is_object(deep.as_bytes()));
    assert!(!is_object(&deep.as_bytes()[..deep.len() - 1]));
}

/// serde's check, but for its limit of depth.
fn serde_says(text: &[u8]) -> bool {
    let object = text.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    object && std::str::from_utf8(text).is_ok() && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

proptest::proptest! {
    #[test]
    fn objects_are_what_serde_says(
        text in r#"\{("[a\\\\"u0é\n]{0,9}":[\[\]{},:"0-9eE.+\- a-f]{0,6},?){0,3}\}?"#,
        cut in 0usize..40,
        flip in 0usize..40,
        with in proptest::prelude::any::<u8>(),
    ) {
        let whole = br#"{"type":"message","n":-12.5e+3,"s":"a\u00e9\"\\\n","l":[true,false,null,{}]}"#.to_vec();
        for mut bytes in [text.into_bytes(), whole] {
            proptest::prop_assert_eq!(is_object(&bytes), serde_says(&bytes));
            let at = flip % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
            proptest::prop_assert_eq!(is_object(&bytes), serde_says(&bytes));
            bytes.truncate(cut);
            proptest::prop_assert_eq!(is_object(&bytes), serde_says(&bytes));
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(2000))]

    /// Reading by hand passes over parts of a line: none of them lets through what is no JSON.
    #[test]
    fn what_is_read_by_hand_is_checked(
        at in 0usize..420,
        with in proptest::sample::select(br#"01-+.eE{}[]",:a\ "#.to_vec()),
        instead in proptest::prelude::any::<bool>(),
    ) {
        let mut line = br#"{"type":"message","id":"0a0b0c0d","parentId":"a","timestamp":"2026-01-01T00:00:00.000Z","message":{"role":"assistant","content":[{"type":"text","text":",\"usage\":{"}],"usage":{"input":10,"output":0,"cacheRead":3,"cacheWrite":4,"totalTokens":10,"cost":{"input":0.5,"output":0,"cacheRead":1e-7,"cacheWrite":0,"total":0.5}},"stopReason":"stop","timestamp":1}}"#.to_vec();
        let at = at % line.len();
        line.splice(at..at + usize::from(instead), [with]);
        let damaged = line::read(&line) == Err(NoRecord::Damaged);
        proptest::prop_assert_eq!(damaged, !serde_says(&line), "{}", String::from_utf8_lossy(&line));
    }
}

/// A line in our own order of fields, and the same in another: both say the same.
#[test]
fn the_quick_way_and_serde_agree() {
    let usage = r#""usage":{"input":1,"output":2,"cacheRead":3,"cacheWrite":4,"totalTokens":10,"cost":{"input":0.5,"output":0,"cacheRead":0,"cacheWrite":0,"total":0.5}}"#;
    let cases = [
        (
            r#"{"type":"message","id":"00000001","parentId":null,"timestamp":"t","message":{"role":"user","content":"x"}}"#.to_owned(),
            r#"{"id":"00000001","message":{"content":"x","role":"user"},"timestamp":"t","type":"message"}"#.to_owned(),
        ),
        (
            format!(r#"{{"type":"message","id":"a","parentId":"b","timestamp":"t","message":{{"role":"assistant","content":[],{usage},"stopReason":"stop"}}}}"#),
            format!(r#"{{"type":"message","parentId":"b","id":"a","timestamp":"t","message":{{{usage},"role":"assistant","content":[]}}}}"#),
        ),
        (
            r#"{"type":"message","id":"a","parentId":"b","timestamp":"t","message":{"role":"user","content":""},"idempotencyKey":"k"}"#.to_owned(),
            r#"{"idempotencyKey":"k","type":"message","id":"a","parentId":"b","timestamp":"t","message":{"role":"user","content":""}}"#.to_owned(),
        ),
        (
            r#"{"type":"progress","id":"a","parentId":"b","timestamp":"t","x":1}"#.to_owned(),
            r#"{"x":1,"type":"progress","id":"a","parentId":"b","timestamp":"t"}"#.to_owned(),
        ),
    ];
    for (ours, other) in &cases {
        assert_eq!(line::read(ours.as_bytes()).unwrap(), line::read(other.as_bytes()).unwrap(), "{ours}");
    }
    let Says::Usage(usage) = line::read(cases[1].0.as_bytes()).unwrap().says else { panic!() };
    assert_eq!((usage.input, usage.total_tokens, usage.cost.total), (1, 10, 0.5));
}

#[test]
fn what_is_no_record_says_why() {
    let cases: [(&[u8], NoRecord); 6] = [
        (b"x", NoRecord::Damaged),
        (b"{\"a\":\"\xff\"}", NoRecord::Damaged),
        (b"{}", NoRecord::NoType),
        (br#"{"type":"message"}"#, NoRecord::NoId),
        (br#"{"type":"message","id":""}"#, NoRecord::NoId),
        (br#"{"type":"session","id":"x"}"#, NoRecord::Header),
    ];
    for (bytes, right) in cases {
        assert_eq!(line::read(bytes), Err(right), "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn a_row_is_small() {
    assert_eq!(size_of::<Row>(), 64);
}
