use std::fs;

use kli_protocol::record::{Block, Content};

use super::*;

/// A directory with the files, and the places in it: `config`, `home`, `home/work`.
fn places(files: &[(&str, &str)]) -> (tempfile::TempDir, Places) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir_all(root.join("home/work")).unwrap();
    let places = Places {
        config_dir: Some(root.join("config")),
        home: Some(root.join("home")),
        work_dir: Some(root.join("home/work")),
    };
    (dir, places)
}

#[test]
fn context_files_go_from_general_to_special() {
    let big = "x".repeat(MAX_CONTEXT_FILE + 10);
    let (_dir, places) = places(&[
        ("config/CLAUDE.md", "user"),
        ("home/AGENTS.md", "above"),
        ("home/CLAUDE.md", "not read: AGENTS.md is there"),
        ("home/work/CLAUDE.md", "project"),
        ("home/work/sub/AGENTS.md", "not read: below"),
    ]);
    let texts = |places: &Places| context_files(places).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    assert_eq!(texts(&places), ["user", "above", "project"]);
    assert_eq!(texts(&Places { work_dir: None, ..places.clone() }), ["user"]);
    fs::write(places.home.as_ref().unwrap().join("AGENTS.md"), "  \n").unwrap();
    assert_eq!(texts(&places)[1], "not read: AGENTS.md is there", "a blank file is none");
    fs::write(places.home.as_ref().unwrap().join("AGENTS.md"), big).unwrap();
    assert!(texts(&places)[1].contains("cut at 65536 bytes"));
}

#[test]
fn system_prompts() {
    let (_dir, places) = places(&[
        ("config/SYSTEM.md", "user's"),
        ("config/APPEND_SYSTEM.md", "first"),
        ("home/work/.kli/SYSTEM.md", "project's"),
        ("home/work/.kli/APPEND_SYSTEM.md", "second"),
    ]);
    let found = Workspace::load(&places);
    assert_eq!(
        (found.system.as_deref(), found.append),
        (Some("project's"), vec!["first".to_owned(), "second".to_owned()])
    );
    let untrusted = Workspace::load(&Places { work_dir: None, ..places });
    assert_eq!((untrusted.system.as_deref(), untrusted.append.len()), (Some("user's"), 1));
}

#[test]
fn skills_and_prompts() {
    let skill = |name: &str, description: &str| format!("---\nname: {name}\ndescription: {description}\n---\nSteps");
    let (_dir, places) = places(&[
        ("config/skills/pdf/SKILL.md", &skill("pdf", "user's")),
        ("home/work/.kli/skills/pdf/SKILL.md", &skill("pdf", "project's")),
        (
            "home/work/.agents/skills/web/SKILL.md",
            &(skill("web", "w").replace("---\nSteps", "disable-model-invocation: true\n---\nSteps")),
        ),
        ("home/.agents/skills/none/SKILL.md", "no front matter"),
        ("config/skills/bad/SKILL.md", &skill("../bad", "b")),
        ("config/prompts/fix.md", "---\ndescription: Fixes\nargument-hint: <file>\n---\nFix $1 now"),
        ("config/prompts/plain.md", "\nFirst line\nsecond"),
        ("config/prompts/not.txt", "x"),
    ]);
    let found = Workspace::load(&places);
    assert_eq!(found.skills.keys().collect::<Vec<_>>(), ["pdf", "web"]);
    assert_eq!(found.skills["pdf"].description, "project's");
    assert_eq!(found.skill_lines().len(), 1);
    assert_eq!(found.warnings.len(), 2, "{:?}", found.warnings);
    let commands: Vec<_> = found.commands().into_iter().map(|c| (c.name, c.description, c.argument_hint)).collect();
    assert_eq!(commands[0], ("fix".into(), "Fixes".into(), Some("<file>".into())));
    assert_eq!(commands[1].1, "First line");
    assert_eq!(commands.last().unwrap().0, "skill:web");
}

#[test]
fn prompts_are_expanded() {
    let (_dir, places) = places(&[
        ("config/prompts/fix.md", "Fix $1, as in @a.rs."),
        ("config/skills/pdf/SKILL.md", "---\ndescription: d\n---\nUse @a.rs"),
        ("home/work/a.rs", "fn a() {}\n"),
        ("home/work/with space.txt", "spaced"),
        ("home/work/dir/x", "x"),
        ("home/work/bin", "\0\u{1}"),
        ("home/notes.md", "N"),
    ]);
    let work = places.work_dir.clone().unwrap();
    let png = [b"\x89PNG\r\n\x1a\n".to_vec(), vec![0; 30]].concat();
    fs::write(work.join("p.png"), &png).unwrap();
    fs::write(work.join("huge.png"), [png.clone(), vec![0; 5 << 20]].concat()).unwrap();
    let workspace = Workspace::load(&places);
    let w = work.display();
    let file = format!("<file path=\"{w}/a.rs\">\nfn a() {{}}\n</file>");
    for (typed, want) in [
        ("plain me@example.org @nobody", "plain me@example.org @nobody".to_owned()),
        ("see @a.rs, and (@a.rs)", format!("see @a.rs, and (@a.rs)\n\n{file}")),
        ("@\"with space.txt\"", format!("@\"with space.txt\"\n\n<file path=\"{w}/with space.txt\">\nspaced\n</file>")),
        ("@dir", format!("@dir\n\n<directory path=\"{w}/dir\">\nx\n</directory>")),
        ("@bin", format!("@bin\n\n[{w}/bin is no text file]")),
        ("@huge.png", format!("@huge.png\n\n[{w}/huge.png is too large to be sent as an image]")),
        (
            "@~/notes.md",
            format!("@~/notes.md\n\n<file path=\"{}/notes.md\">\nN\n</file>", work.parent().unwrap().display()),
        ),
        ("/fix b.rs", format!("Fix b.rs, as in @a.rs.\n\n{file}")),
        ("/unknown x", "/unknown x".to_owned()),
        ("/skill:none x", "/skill:none x".to_owned()),
    ] {
        let got = expand(typed, &workspace, &places);
        assert_eq!(got.content.text(), want);
        assert_eq!(got.typed.is_some(), want != typed, "{typed}");
    }
    let skill = expand("/skill:pdf do it", &workspace, &places).content.text();
    assert!(skill.starts_with("<skill name=\"pdf\"") && skill.ends_with("Use @a.rs\n</skill>\n\ndo it"), "{skill}");
    let image = expand("look @p.png", &workspace, &places);
    assert!(
        matches!(&image.content, Content::Blocks(b) if matches!(&b[..], [Block::Text(_), Block::Image(i)] if i.mime_type == "image/png"))
    );
    assert_eq!(image.typed.as_deref(), Some("look @p.png"));
}

/// A FIFO without a writer must not block.
#[test]
fn odd_files_are_passed_over() {
    let (_dir, places) = places(&[]);
    let work = places.work_dir.clone().unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, work.join("AGENTS.md"), rustix::fs::Mode::RUSR).unwrap();
    fs::create_dir(work.join("CLAUDE.md")).unwrap();
    assert_eq!(context_files(&Places { config_dir: None, home: None, ..places }), []);
}
