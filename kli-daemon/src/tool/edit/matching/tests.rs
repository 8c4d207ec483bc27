use super::*;

fn edit(old: &str, new: &str) -> Replacement {
    Replacement { old: old.to_owned(), new: new.to_owned() }
}

#[track_caller]
fn check(text: &str, edits: &[(&str, &str)], want: Result<&str, EditError>) {
    let edits: Vec<_> = edits.iter().map(|(old, new)| edit(old, new)).collect();
    let got = apply(text, &edits).map(|applied| applied.text);
    assert_eq!(got, want.map(str::to_owned), "{text:?} {edits:?}");
}

#[test]
fn line_ends_stay_what_they_were() {
    let crlf = "alpha\r\nbeta\r\ngamma\r\n";
    check(crlf, &[("alpha\nbeta", "ALPHA\nBETA")], Ok("ALPHA\r\nBETA\r\ngamma\r\n"));
    check(crlf, &[("beta", "B")], Ok("alpha\r\nB\r\ngamma\r\n"));
    check(crlf, &[("alpha\r\nbeta", "A\r\nB")], Ok("A\r\nB\r\ngamma\r\n"));
    check(crlf, &[("beta", "b1\nb2\nb3")], Ok("alpha\r\nb1\r\nb2\r\nb3\r\ngamma\r\n"));
    check(crlf, &[("beta\n", "")], Ok("alpha\r\ngamma\r\n"));
    check(crlf, &[("\nbeta", "\nB")], Ok("alpha\r\nB\r\ngamma\r\n"));
    check(crlf, &[("gamma\n", "g\nh\n")], Ok("alpha\r\nbeta\r\ng\r\nh\r\n"));

    let mixed = "alpha\nbeta\r\ngamma\rdelta\r\n";
    check(mixed, &[("delta", "D")], Ok("alpha\nbeta\r\ngamma\rD\r\n"));
    check(mixed, &[("alpha\nbeta\ngamma\ndelta", "A\nB\nC\nD")], Ok("A\nB\r\nC\rD\r\n"));
    check(mixed, &[("gamma\rdelta", "x\ry")], Ok("alpha\nbeta\r\nx\ry\r\n"));
    check(mixed, &[("alpha\nbeta", "A\nA2\nB\nB2")], Ok("A\nA2\nB\nB2\r\ngamma\rdelta\r\n"));

    check("a\rb\rc", &[("a\nb", "A\nB\nX")], Ok("A\rB\rX\rc"));
    check("a\nb", &[("b", "x\r\ny")], Ok("a\nx\ny"));
    check("one\r\ntwo", &[("two", "2\n3")], Ok("one\r\n2\r\n3"));
    check("one", &[("one", "1\n2")], Ok("1\n2"));
}

#[test]
fn nothing_is_added_and_new_text_is_literal() {
    check("first\nlast line", &[("last", "LAST")], Ok("first\nLAST line"));
    check("a b", &[("b", "cost $& $1 \\1 {} %s \\n")], Ok("a cost $& $1 \\1 {} %s \\n"));
    check("a\tb", &[("\t", "")], Ok("ab"));
    check("x", &[("x", "")], Ok(""));
    check("中文\n", &[("文", "国")], Ok("中国\n"));
}

#[test]
fn several_edits_are_made_together_or_not_at_all() {
    use EditError::*;
    check("a b c", &[("c", "3"), ("a", "1")], Ok("1 b 3"));
    check("ab", &[("a", "b"), ("b", "a")], Ok("ba"));
    check("x = 1\ny = 2\nx = 1\n", &[("x = 1", "x = 9")], Err(Several(0, 2, "1, 3".into())));
    let overlapping = [("x = 1\ny = 2", "1"), ("y = 2\nx = 1", "2")];
    check("x = 1\ny = 2\nx = 1\n", &overlapping, Err(Overlap(0, 1)));
    check("abc", &[("c", "x"), ("abc", "y")], Err(Overlap(0, 1)));
    check("abc", &[("a", "xyz"), ("xyz", "q")], Err(NotFound(1, Hint(None))));
    check("abc", &[("a", "1"), ("", "2")], Err(Empty(1)));
    check("abc", &[("a", "a")], Err(Same(0)));
    check("abc\r\n", &[("abc\n", "abc\r\n")], Err(NoChange));
    check("aaa", &[("aa", "b")], Err(Several(0, 2, "1, 1".into())));
    check(&"a\n".repeat(9), &[("a", "b")], Err(Several(0, 9, "1, 2, 3, 4, 5, …".into())));
    // Once with LF and once with CRLF is twice: a reader sees no difference.
    check("a\nb\na\r\nb\r\n", &[("a\nb", "c")], Err(Several(0, 2, "1, 3".into())));
    check("fn main() {\n    one();\n}\n", &[("fn main() {\n    two();", "x")], Err(NotFound(0, Hint(Some(1)))));
}

#[test]
fn a_loose_match_must_be_unique_and_says_so() {
    use EditError::*;
    let loosely = |text: &str, old: &str, new: &str, want: &str| {
        let got = apply(text, &[edit(old, new)]).unwrap();
        assert_eq!((got.text.as_str(), got.inexact.as_slice()), (want, [0].as_slice()), "{text:?} {old:?}");
    };
    loosely("say “hi” – now\n", "say \"hi\" - now", "x", "x\n");
    loosely("it’s\u{a0}here", "it's here", "x", "x");
    loosely("a  \nb\t\nc\n", "a\nb\nc", "A\nB\nC", "A\nB\nC\n");
    loosely("a\nb\n", "a  \nb", "x", "x\n");
    loosely("keep  \nfoo();  \nbar();  \n", "foo();\nbar();", "1\n2", "keep  \n1\n2  \n");
    loosely("foo \r\nbar\r\n", "foo\nbar", "1\n2", "1\r\n2\r\n");
    loosely("“a”\nend  ", "\"a\"\nend", "x\ny", "x\ny  ");
    loosely("x\nlast", "last ", "L", "x\nL");
    check("“a”\n„a‟ \"b\n", &[("\"a\"", "x")], Err(Several(0, 2, "1, 2".into())));
    // Exact wins over loose.
    check("“a” \"a\"", &[("\"a\"", "x")], Ok("“a” x"));
    // Dropped white space at the end means: the line ends there.
    check("foobar\n", &[("foo ", "x")], Err(NotFound(0, Hint(None))));
    check("a b\n", &[("a  b", "x")], Err(NotFound(0, Hint(None))));
    check("  a\n", &[("\ta", "x")], Err(NotFound(0, Hint(None))));
    check("a\n", &[("   ", "x")], Err(NotFound(0, Hint(None))));
}

#[test]
fn the_line_of_an_edit_is_that_of_its_one_place() {
    assert_eq!(line_of("a\r\nb\r\nc", &edit("c", "")), Some(3));
    assert_eq!(line_of("a\na", &edit("a", "")), None);
    assert_eq!(line_of("", &edit("a", "")), None);
    assert_eq!(line_of("a", &edit("", "")), None);
}

proptest::proptest! {
    /// What is outside of the match is never touched, whatever it is.
    #[test]
    fn only_the_match_changes(before in "[a \t\r\n“’é]{0,20}", after in "[a \t\r\n“’é]{0,20}") {
        let text = format!("{before}NEEDLE{after}");
        let got = apply(&text, &[edit("NEEDLE", "x")]).unwrap();
        proptest::prop_assert_eq!(got.text, format!("{before}x{after}"));
    }

    /// A view's way back is exact for every character.
    #[test]
    fn views_lead_back(text in "[ab \t\r\n“–\u{a0}]{0,30}") {
        for fold in [Fold::LineEnds, Fold::Typography] {
            let view = View::of(&text, fold);
            let mut last = 0;
            for at in (0..=view.text.len()).filter(|at| view.text.is_char_boundary(*at)) {
                let original = view.original(at);
                proptest::prop_assert!(original >= last && text.is_char_boundary(original) && original <= text.len());
                last = original;
            }
            if fold == Fold::LineEnds {
                proptest::prop_assert_eq!(view.text, text.replace("\r\n", "\n").replace('\r', "\n"));
                proptest::prop_assert_eq!(last, text.len());
            }
        }
    }
}
