use super::*;

/// Loads `text` as the file, with an environment and flags.
fn load(text: &str, env: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    std::fs::write(&path, text).unwrap();
    let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let look = move |name: &str| match name {
        "HOME" => Some("/home/u".to_owned()),
        _ => env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()),
    };
    let flags = flags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Config::load(&Sources { file: Some(path), env: &look, flags })
}

const WHOLE: &str = r#"
sessionDir = "~/.local/share/kli/sessions"
defaultModel = "fake/m1"
defaultMode = "auto"
durability = "entry"
maxMemoryBytes = 1000000
idleExitMs = 60000
sandbox = "workspace-write"
[compaction]
enabled = false
reserveTokens = 1
[retry]
maxAttempts = 3
baseDelayMs = 20
[approvals]
allow = ["bash(git status)"]
deny = ["bash(rm)"]
[providers.zeta]
baseUrl = "http://127.0.0.1:1/v1"
[providers.fake]
api = "openai-chat"
baseUrl = "http://127.0.0.1:2/v1"
apiKeyFile = "~/key"
headers = { "x-team" = "a" }
idleTimeoutMs = 100
[[providers.fake.models]]
id = "m1"
contextWindow = 200000
maxOutput = 4096
reasoning = true
input = ["text", "image"]
cost = { input = 1, output = 2.5 }
"#;

#[test]
fn a_whole_file() {
    let config = load(WHOLE, &[], &[]).unwrap();
    assert_eq!(config.session_dir.as_deref(), Some(Path::new("/home/u/.local/share/kli/sessions")));
    assert_eq!(config.default_model.as_ref().unwrap().to_string(), "fake/m1");
    assert_eq!((config.default_mode, config.durability), (Mode::Auto, Durability::Entry));
    assert_eq!(config.sandbox, Sandbox::WorkspaceWrite);
    assert_eq!(config.idle_exit, Some(Duration::from_secs(60)));
    assert_eq!(config.limits, Limits { max_memory_bytes: 1_000_000, ..Limits::default() });
    assert_eq!(config.compaction, Compaction { enabled: false, reserve_tokens: 1, ..Compaction::default() });
    assert_eq!(config.retry, Retry { max_attempts: 3, base_delay_ms: 20 });
    assert_eq!(config.approvals.deny, ["bash(rm)"]);
    let names: Vec<&str> = config.models.providers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["zeta", "fake"], "in the order of the file");
    let fake = &config.models.providers[1].1;
    assert_eq!(fake.api_key_file.as_deref(), Some(Path::new("/home/u/key")));
    assert_eq!(fake.models[0].cost.unwrap().output, 2.5);
    assert_eq!(fake.headers["x-team"], "a");
}

#[test]
fn nothing_set_is_the_default() {
    let config = load("", &[], &[]).unwrap();
    assert_eq!(Config { path: None, ..config }, Config::default());
}

#[test]
fn environment_then_flags() {
    let env = [
        ("KLI_RETRY_MAX_ATTEMPTS", "7"),
        ("KLI_SESSION_DIR", "~/s"),
        ("KLI_COMPACTION_ENABLED", "off"),
        ("KLI_DEFAULT_MODE", ""),
    ];
    let config = load("sessionDir = \"/a\"\ndefaultMode = \"plan\"", &env, &[("sessionDir", "/c")]).unwrap();
    assert_eq!(config.session_dir.as_deref(), Some(Path::new("/c")));
    assert_eq!((config.retry.max_attempts, config.compaction.enabled, config.default_mode), (7, false, Mode::Plan));
}

#[test]
fn errors_name_the_key() {
    fn check(text: &str, env: &[(&str, &str)], expected: &[&str]) {
        let error = load(text, env, &[]).unwrap_err().to_string();
        for part in expected {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
    }
    check("sesionDir = \"/a\"", &[], &["no key sesionDir", "Did you mean sessionDir?", "config.toml"]);
    check("[retry]\nmaxAttempt = 1", &[], &["retry.maxAttempt", "Did you mean maxAttempts?"]);
    check("[providers.x]\nbaseURL = \"http://x\"", &[], &["providers.x.baseURL", "Did you mean baseUrl?"]);
    check(
        "[[providers.x.models]]\nid = \"a\"\ncontextwindow = 1",
        &[],
        &["providers.x.models[0].contextwindow", "contextWindow"],
    );
    check("[providers.x.models]\nid = \"a\"", &[], &["providers.x.models", "a list of tables"]);
    check("[wat]\na = 1", &[], &["no key wat"]);
    check("maxMemoryBytes = \"1\"", &[], &["maxMemoryBytes", "whole number", "\"1\""]);
    check("maxMemoryBytes = -1", &[], &["maxMemoryBytes", "-1"]);
    check("[retry]\nmaxAttempts = 5000000000", &[], &["maxAttempts"]);
    check("defaultMode = \"yolo\"", &[], &["one of ask, auto, plan"]);
    check("defaultModel = \"gpt\"", &[], &["defaultModel", "provider/model"]);
    check("sessionDir = \"sessions\"", &[], &["sessionDir", "relative"]);
    check("[providers.x]\nbaseUrl = \"localhost:1\"", &[], &["providers.x.baseUrl", "http://"]);
    check("[providers.x]\napiKeyEnv = \"A\"\napiKeyCommand = [\"b\"]", &[], &["one of apiKeyEnv"]);
    check("a = = 1", &[], &["no valid TOML"]);
    check("", &[("KLI_RETRY_MAX_ATTEMPTS", "many")], &["KLI_RETRY_MAX_ATTEMPTS", "whole number"]);
}

#[test]
fn errors_name_what_set_the_key() {
    fn check(text: &str, env: &[(&str, &str)], flags: &[(&str, &str)], expected: &str) {
        let error = load(text, env, flags).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("config.toml"), "{error:?} lacks {expected:?}");
    }
    check("", &[("KLI_SESSION_DIR", "here")], &[], "KLI_SESSION_DIR: sessionDir: here is relative");
    check("sessionDir = \"/a\"", &[], &[("sessionDir", "here")], "command line: sessionDir: here is relative");
    check("", &[("KLI_DEFAULT_MODEL", "gpt")], &[], "KLI_DEFAULT_MODEL: defaultModel: \"gpt\"");
}

#[test]
fn a_file_that_was_asked_for_must_exist() {
    let env = |name: &str| (name == "KLI_CONFIG").then(|| "/nowhere/config.toml".to_owned());
    let error = Config::load(&Sources { file: None, env: &env, flags: Vec::new() }).unwrap_err();
    assert!(matches!(error, ConfigError::Read { .. }), "{error}");
}

#[test]
fn what_changed() {
    fn check(old: &str, new: &str, expected: &[&str]) {
        assert_eq!(load(old, &[], &[]).unwrap().diff(&load(new, &[], &[]).unwrap()), expected);
    }
    check(WHOLE, WHOLE, &[]);
    check("defaultMode = \"ask\"", "durability = \"os\"", &["defaultMode", "durability"]);
    check("[retry]\nmaxAttempts = 1", "[retry]\nmaxAttempts = 2", &["retry.maxAttempts"]);
    check(WHOLE, &WHOLE.replace("\"m1\"\ncontext", "\"m2\"\ncontext"), &["providers.fake.models"]);
}

#[test]
fn a_project_sets_only_what_is_harmless() {
    fn check(text: &str, expected: Result<Project, &str>) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".kli")).unwrap();
        std::fs::write(dir.path().join(".kli/config.toml"), text).unwrap();
        match (Config::default().project(dir.path()), expected) {
            (Ok(project), Ok(expected)) => assert_eq!(project, Some(expected)),
            (Err(e), Err(part)) => assert!(e.to_string().contains(part), "{e}"),
            (got, expected) => panic!("{text}: {got:?}, not {expected:?}"),
        }
    }
    assert_eq!(Config::default().project(Path::new("/nowhere")).unwrap(), None);
    let keep = CompactionChange { keep_recent_tokens: Some(7), ..CompactionChange::default() };
    check("[compaction]\nkeepRecentTokens = 7", Ok(Project { compaction: keep, ..Project::default() }));
    check("defaultMode = \"plan\"", Ok(Project { default_mode: Some(Mode::Plan), ..Project::default() }));
    check("[approvals]\ndeny = [\"bash\"]", Ok(Project { deny: vec!["bash".into()], ..Project::default() }));
    check("defaultMode = \"auto\"", Err("auto"));
    check("[approvals]\nallow = [\"bash\"]", Err("approvals.allow may not be set by a project"));
    check("[providers.openai]\nbaseUrl = \"http://evil\"", Err("providers.openai.baseUrl"));
    check("sandbox = \"off\"", Err("sandbox"));
    check("sesionDir = \"/a\"", Err("Did you mean"));
}

#[test]
fn environment_and_flags_count_more_than_a_project() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(".kli")).unwrap();
    let text = "defaultModel = \"a/b\"\ndefaultMode = \"plan\"\n[compaction]\nenabled = false\nreserveTokens = 3\n[approvals]\ndeny = [\"bash\"]";
    std::fs::write(dir.path().join(".kli/config.toml"), text).unwrap();
    let env = [("KLI_DEFAULT_MODEL", "c/d"), ("KLI_COMPACTION_ENABLED", "true"), ("KLI_APPROVALS_DENY", "edit")];
    let config = load("[compaction]\nkeepRecentTokens = 5", &env, &[("defaultMode", "ask")]).unwrap();
    let project = config.project(dir.path()).unwrap().unwrap();
    assert_eq!((project.default_model, project.default_mode), (None, None));
    assert_eq!(project.deny, ["bash"], "what is forbidden adds up");
    let compaction = project.compaction.over(config.compaction);
    assert_eq!(compaction, Compaction { enabled: true, reserve_tokens: 3, keep_recent_tokens: 5 });
}
