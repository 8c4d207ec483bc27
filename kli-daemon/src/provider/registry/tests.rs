use super::*;
use crate::clock::SystemClock;

fn registry(settings: ModelsSettings, env: &[(&str, &str)]) -> Registry {
    let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let look = move |name: &str| env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    Registry::new(&settings, &Surroundings { env: &look, clients: Clients::new(), clock: Arc::new(SystemClock) })
}

fn local() -> (String, ProviderSettings) {
    let model = ModelSettings { id: "qwen3".into(), reasoning: Some(true), ..ModelSettings::default() };
    let settings = ProviderSettings {
        base_url: Some("http://127.0.0.1:8080/v1/".into()),
        models: vec![model],
        ..ProviderSettings::default()
    };
    ("local".into(), settings)
}

#[test]
fn the_default_is_what_can_be_used() {
    fn check(providers: Vec<(String, ProviderSettings)>, env: &[(&str, &str)], expected: &str) {
        let registry = registry(ModelsSettings { providers, ..ModelsSettings::default() }, env);
        assert_eq!(registry.default_model().to_string(), expected);
        let first = registry.list().into_iter().find(|model| model.available).unwrap();
        assert_eq!(format!("{}/{}", first.provider, first.model_id), expected, "first usable of the list");
    }
    check(vec![], &[], "demo/offline");
    check(vec![], &[("DEEPSEEK_API_KEY", "k")], "deepseek/deepseek-chat");
    check(vec![], &[("DEEPSEEK_API_KEY", " ")], "demo/offline");
    check(vec![local()], &[("DEEPSEEK_API_KEY", "k")], "local/qwen3");
    let mut keyed = local();
    keyed.1.api_key_env = Some("LOCAL_KEY".into());
    check(vec![keyed.clone()], &[], "demo/offline");
    check(vec![keyed], &[("LOCAL_KEY", "k")], "local/qwen3");
}

#[test]
fn what_cannot_be_used_says_why() {
    let registry = registry(ModelsSettings { providers: vec![local()], ..ModelsSettings::default() }, &[]);
    let kind = |provider: &str, model: &str| registry.find(provider, model).err().map(|e| (e.kind(), e.message));
    assert!(registry.find("local", "qwen3").is_ok());
    assert!(registry.find("demo", "offline").is_ok());
    let (key, message) = kind("anthropic", "claude-sonnet-4-5").unwrap();
    assert_eq!(key, Some(ErrorKind::NoApiKey));
    assert!(message.contains("ANTHROPIC_API_KEY"), "{message}");
    let (missing, message) = kind("local", "qwen4").unwrap();
    assert_eq!(missing, Some(ErrorKind::ModelNotFound));
    assert!(message.contains("Did you mean qwen3?"), "{message}");
    let (missing, message) = kind("antropic", "x").unwrap();
    assert_eq!(missing, Some(ErrorKind::ModelNotFound));
    assert!(message.contains("Did you mean anthropic?"), "{message}");
    let listed = registry.list().into_iter().find(|model| model.provider == "openai").unwrap();
    assert!(!listed.available && listed.reason.unwrap().contains("OPENAI_API_KEY"));
}

#[test]
fn a_known_provider_needs_no_repeating() {
    let own = ModelSettings { id: "claude-sonnet-4-5".into(), max_output: Some(1_000), ..ModelSettings::default() };
    let settings = ProviderSettings { api_key_env: Some("MINE".into()), models: vec![own], ..Default::default() };
    let providers = vec![("anthropic".to_owned(), settings)];
    let registry = registry(ModelsSettings { providers, ..ModelsSettings::default() }, &[("MINE", "k")]);
    let (model, _) = registry.find("anthropic", "claude-sonnet-4-5").unwrap();
    assert_eq!((model.max_output, model.context_window), (1_000, 200_000));
    assert!(registry.find("anthropic", "claude-haiku-4-5").is_ok());
}

#[test]
fn a_known_key_never_goes_to_another_server() {
    let settings = ProviderSettings { base_url: Some("https://elsewhere.test/v1".into()), ..Default::default() };
    let merged = merged(&settings, catalogue::providers().first().map(|(_, settings)| settings));
    assert_eq!(merged.api_key_env, None);
}

#[test]
fn words_that_are_near() {
    let known = ["sessionDir", "defaultModel", "maxMemoryBytes"];
    for (word, expected) in [
        ("sesionDir", Some("sessionDir")),
        ("session_dir", Some("sessionDir")),
        ("defaultmodel", Some("defaultModel")),
        ("zzz", None),
    ] {
        assert_eq!(nearest(word, &known), expected, "{word}");
    }
}
