//! The readme says what is so: its examples are run, its commands and configuration exist.

use std::process::Command;

use kli_tests::{Setup, fixtures};
use serde_json::{Value, json};

fn readme() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap()
}

/// The fenced blocks of a language.
fn blocks(language: &str) -> Vec<String> {
    let text = readme();
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0.to_owned())).collect()
}

#[test]
fn examples_for_the_socket() {
    let daemon = Setup::new().start();
    let examples: Vec<String> = blocks("sh").into_iter().filter(|block| block.contains("$KLI_SOCKET")).collect();
    assert!(examples.len() >= 2, "{examples:?}");
    for example in examples {
        let tool = if example.contains("| nc ") { "nc" } else { "curl" };
        if !Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap().status.success() {
            eprintln!("skipped: there is no {tool}");
            continue;
        }
        let mut command = Command::new("sh");
        command.args(["-c", &example]).env("KLI_SOCKET", &daemon.socket);
        let output = command.output().unwrap();
        let reply: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{example}: {e}: {output:?}"));
        assert!(reply["result"].is_object(), "{example}: {reply}");
    }
}

#[test]
fn the_configuration_is_accepted() {
    let [models, rules] = blocks("toml").try_into().expect("the models and the rules");
    Setup::new().config(rules).start();
    let daemon = Setup::new().config(models).env("OPENAI_API_KEY", "sk-x").start();
    let models = daemon.client().call("listModels", json!({}));
    let listed: Vec<String> = models["models"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|model| model["available"] == true)
        .map(|model| format!("{}/{}", model["provider"].as_str().unwrap(), model["modelId"].as_str().unwrap()))
        .collect();
    assert!(listed.contains(&"openai/gpt-5".to_owned()) && listed.contains(&"local/qwen3".to_owned()), "{listed:?}");
    assert_eq!(models["default"]["modelId"], "gpt-5");
}

#[test]
fn the_commands_exist() {
    let daemon = Setup::new().prepare();
    let work_dir = fixtures::work_dir();
    let text = readme();
    let rows = text.lines().filter(|line| line.starts_with("| `kli"));
    let commands: std::collections::BTreeSet<&str> = rows
        .flat_map(|row| row.split('`'))
        .filter_map(|code| code.strip_prefix("kli ")?.split_whitespace().next())
        .filter(|word| word.bytes().all(|b| b.is_ascii_lowercase()))
        .collect();
    assert!(commands.len() > 8, "{commands:?}");
    for command in commands {
        daemon.kli(work_dir.path(), &[command, "--help"]).success();
    }
}

/// What the first command line does after the build, in a place of its own.
#[test]
fn the_first_command() {
    let block = blocks("sh").into_iter().find(|block| block.contains("cargo build")).expect("the first command");
    let daemon = Setup::new().prepare();
    let work_dir = fixtures::work_dir();
    std::fs::write(work_dir.path().join("Cargo.toml"), "[workspace]\nmarker-4712 = true\n").unwrap();
    let mut last = None;
    for step in block.trim().split(" && ").filter_map(|step| step.strip_prefix("./target/release/kli ")) {
        let args: Vec<&str> = match step.strip_prefix("-p ") {
            Some(text) => vec!["-p", text.trim_matches('\'')],
            None => step.split(' ').collect(),
        };
        last = Some(daemon.kli(work_dir.path(), &args).success());
    }
    let tree = last.expect("steps with kli").stdout;
    assert!(tree.contains("read Cargo.toml") && tree.contains("marker-4712"), "a tool ran, the tree shows it: {tree}");
}
