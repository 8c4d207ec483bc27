use super::*;
use crate::context::tests::fixtures::Branch;

/// Each letter is an entry of about 100 tokens: `u` prompt, `a` reply, `c` reply with a call, `r` its result, `s` a
/// setting, `f` a failed reply, `n` an extension's message, `k` a compaction that keeps all; capitals: of about 1,000.
fn branch(letters: &str) -> Branch {
    let mut calls = 0;
    let lines: Vec<String> = letters
        .chars()
        .map(|letter| {
            let text = "word ".repeat(if letter.is_uppercase() { 960 } else { 96 });
            let reply = |stop: &str, more: &str| {
                format!(r#"{{"type":"message","message":{{"role":"assistant","stopReason":"{stop}","content":[{{"type":"text","text":"{text}"}}{more}]}}}}"#)
            };
            match letter.to_ascii_lowercase() {
                'u' => format!(r#"{{"type":"message","message":{{"role":"user","content":"{text}"}}}}"#),
                'a' => reply("stop", ""),
                'f' => reply("error", ""),
                'c' => {
                    calls += 1;
                    reply("toolUse", &format!(r#",{{"type":"toolCall","id":"c{calls}","name":"bash","arguments":{{}}}}"#))
                }
                'r' => format!(r#"{{"type":"message","message":{{"role":"toolResult","toolCallId":"c{calls}","content":"{text}"}}}}"#),
                'n' => format!(r#"{{"type":"custom_message","customType":"x","content":"{text}"}}"#),
                's' => r#"{"type":"model_change","provider":"p","modelId":"m"}"#.to_owned(),
                'k' => r#"{"type":"compaction","summary":"S","firstKeptEntryId":"e1"}"#.to_owned(),
                other => panic!("{other}"),
            }
        })
        .collect();
    Branch::linear(&lines.iter().map(String::as_str).collect::<Vec<_>>())
}

/// `|` stands where the cut is.
#[test]
fn cuts() {
    for (want, keep) in [
        // All fits, or nothing would go.
        ("uauaua", 10_000),
        ("u", 10),
        ("U", 10),
        ("su", 10),
        ("uk", 10_000),
        // Forward to a prompt or reply.
        ("uaua|ua", 150),
        ("uaua|ua", 190),
        ("ua|uaua", 250),
        ("ua|uaua", 350),
        // Never a result, nor between a call and its results.
        ("uacr|cra", 290),
        ("uacrcr|a", 150),
        ("ua|ucr", 150),
        ("uauCR|N", 1_500),
        ("ua|ucnr", 150),
        ("ua|uc", 50),
        // A turn larger than what is kept is split; its prompt stays where that costs nothing of it.
        ("ucRcr|cr", 200),
        ("ucR|a", 500),
        ("ua|uR", 500),
        ("ua|usa", 50),
        ("uaf|ua", 150),
        // A single entry larger than what is kept stays whole.
        ("ua|U", 500),
        ("uaC|u", 50),
        ("uak|ua", 150),
    ] {
        let branch = branch(&want.replace('|', ""));
        let cut = find_cut(&branch.window(), Kept { about: keep, most: u64::MAX });
        assert_eq!(cut.as_ref().map(|cut| cut.at), want.find('|'), "{want} {keep}");
        if let Some(cut) = cut {
            let kept = &want[cut.at + 1..];
            assert_eq!(cut.splits_turn, !kept.to_lowercase().contains('u'), "{want}");
            assert_eq!(cut.first_kept, format!("e{}", cut.at + 1));
        }
    }
}

/// A message that leaves no room for another goes, where there is a later place to begin.
#[test]
fn cuts_behind_what_is_too_large() {
    for (want, about, most) in [
        ("uaUa|u", 500, 900),
        ("uaU|u", 500, 900),
        ("ua|Uau", 500, 1_300),
        ("uaUaUa|ua", 900, 900),
        ("ua|U", 500, 900),
        ("ua|Ua", 500, 900),
        ("uaUcr|cr", 150, 900),
        ("uCR|cr", 900, 900),
        ("uUCR|CR", 1_500, 900),
    ] {
        let cut = find_cut(&branch(&want.replace('|', "")).window(), Kept { about, most });
        assert_eq!(cut.map(|cut| cut.at), want.find('|'), "{want} {about} {most}");
    }
}

#[test]
fn the_newest_of_a_path() {
    let branch = branch("uauaua");
    for (tokens, count, more) in [(0, 1, true), (250, 2, true), (10_000, 6, false)] {
        let up = branch.items.iter().rev().map(|item| Ok::<_, ()>(item.clone()));
        let (items, left_out) = newest(up, tokens).unwrap();
        assert_eq!((items.len(), left_out), (count, more));
        assert_eq!(items.last().unwrap().id, "e6");
    }
}
