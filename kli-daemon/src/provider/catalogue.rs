//! Well-known providers and their models: a data file, since facts about models are no code.

use std::sync::LazyLock;

use serde::Deserialize;

use super::settings::ProviderSettings;

const FILE: &str = include_str!("catalogue.toml");

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    provider: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    #[serde(flatten)]
    settings: ProviderSettings,
}

/// The providers in the order in which they are looked at for a default.
pub fn providers() -> &'static [(String, ProviderSettings)] {
    static PARSED: LazyLock<Vec<(String, ProviderSettings)>> = LazyLock::new(|| {
        // A test reads the file, so that a broken one never leaves the house.
        let file: File = toml::from_str(FILE).unwrap_or_else(|e| {
            tracing::error!(error = %e, "the catalogue of models is broken");
            File::default()
        });
        file.provider.into_iter().map(|listed| (listed.name, listed.settings)).collect()
    });
    &PARSED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Api;
    use std::collections::HashSet;

    #[test]
    fn the_file_is_sound() {
        let file: File = toml::from_str(FILE).unwrap();
        let mut names = HashSet::new();
        for Listed { name, settings } in file.provider {
            assert!(names.insert(name.clone()), "{name} twice");
            assert!(settings.api.as_deref().and_then(Api::of_name).is_some(), "{name}");
            assert!(settings.base_url.as_ref().unwrap().starts_with("https://"), "{name}");
            assert!(settings.api_key_env.is_some() && !settings.models.is_empty(), "{name}");
            let mut ids = HashSet::new();
            for model in settings.models {
                let id = format!("{name}/{}", model.id);
                assert!(ids.insert(model.id), "{id} twice");
                let (window, output) = (model.context_window.unwrap(), model.max_output.unwrap());
                assert!(output > 0 && output <= window, "{id}");
                assert!(model.cost.is_some(), "{id}");
            }
        }
    }
}
