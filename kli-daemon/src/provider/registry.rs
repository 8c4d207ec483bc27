//! The table of models: what the configuration names, then the catalogue, then the offline model.
//!
//! Built as a whole from settings and the environment; a reload builds another one over the same HTTP clients.

use std::sync::Arc;
use std::time::Duration;

use kli_protocol::api::{ModelInfo, ModelOption, ModelRef};
use kli_protocol::{ApiError, ErrorKind};

use super::http::{Clients, Endpoint, HttpProvider};
use super::key::KeySource;
use super::settings::{ModelSettings, ModelsSettings, ProviderSettings, Timeouts};
use super::{Models, Provider, catalogue, offline};
use crate::clock::Clock;
use crate::dialect::Api;

/// For a model of which nothing is said.
const CONTEXT_WINDOW: u64 = 128_000;
const MAX_OUTPUT: u64 = 8_192;
const LEVELS: [&str; 4] = ["off", "low", "medium", "high"];

pub struct Registry {
    services: Vec<Service>,
    default: ModelRef,
}

/// A provider, its models, and who answers for them.
struct Service {
    name: String,
    models: Vec<Arc<ModelInfo>>,
    /// Or why it can never answer.
    provider: Result<Arc<dyn Provider>, String>,
    key: KeySource,
}

/// What the table takes from the world.
pub struct Surroundings<'a> {
    /// The daemon's environment.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    pub clients: Arc<Clients>,
    pub clock: Arc<dyn Clock>,
}

impl Registry {
    pub fn new(settings: &ModelsSettings, around: &Surroundings<'_>) -> Registry {
        let known = catalogue::providers();
        let mut services: Vec<Service> = Vec::new();
        for (name, configured) in &settings.providers {
            let base = known.iter().find(|(known, _)| known == name).map(|(_, settings)| settings);
            services.push(service(name, &merged(configured, base), settings.timeouts, around));
        }
        for (name, listed) in known {
            if !services.iter().any(|service| service.name == *name) {
                services.push(service(name, listed, settings.timeouts, around));
            }
        }
        if !services.iter().any(|service| service.name == offline::PROVIDER) {
            services.push(Service {
                name: offline::PROVIDER.into(),
                models: vec![Arc::new(offline::model())],
                provider: Ok(Arc::new(offline::Offline::new(around.clock.clone()))),
                key: KeySource::None,
            });
        }
        let default = settings.default_model.clone().unwrap_or_else(|| first_usable(&services));
        Registry { services, default }
    }

    fn service(&self, provider: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == provider)
    }
}

impl Models for Registry {
    fn list(&self) -> Vec<ModelInfo> {
        self.services.iter().flat_map(Service::listed).collect()
    }

    fn default_model(&self) -> ModelRef {
        self.default.clone()
    }

    fn find(&self, provider: &str, model_id: &str) -> Result<(Arc<ModelInfo>, Arc<dyn Provider>), ApiError> {
        let not_found = |message: String| ApiError::new(ErrorKind::ModelNotFound, message);
        let Some(service) = self.service(provider) else {
            let names: Vec<&str> = self.services.iter().map(|service| service.name.as_str()).collect();
            let near = nearest(provider, &names).map(|name| format!(" Did you mean {name}?")).unwrap_or_default();
            return Err(not_found(format!(
                "There is no provider {provider}.{near} listModels shows those there are; config.toml can name more."
            )));
        };
        let Some(model) = service.models.iter().find(|model| model.model_id == model_id) else {
            let ids: Vec<&str> = service.models.iter().map(|model| model.model_id.as_str()).collect();
            let near = nearest(model_id, &ids).map(|id| format!(" Did you mean {id}?")).unwrap_or_default();
            return Err(not_found(format!(
                "The provider {provider} has no model {model_id}.{near} listModels shows those there are; [[providers.{provider}.models]] in config.toml adds one."
            )));
        };
        let answers = match &service.provider {
            Ok(answers) => answers.clone(),
            Err(reason) => return Err(not_found(reason.clone())),
        };
        if let Some(reason) = service.key.missing() {
            let mut error = ApiError::new(ErrorKind::NoApiKey, format!("There is no API key for {provider}. {reason}"))
                .with("provider", provider);
            if let Some(env) = service.key.env_name() {
                error = error.with("apiKeyEnv", env);
            }
            return Err(error);
        }
        Ok((model.clone(), answers))
    }
}

impl Service {
    /// Why none of its models can be used.
    fn reason(&self) -> Option<String> {
        self.provider.as_ref().err().cloned().or_else(|| self.key.missing())
    }

    fn listed(&self) -> impl Iterator<Item = ModelInfo> {
        let reason = self.reason();
        self.models.iter().map(move |model| ModelInfo {
            available: reason.is_none(),
            reason: reason.clone(),
            ..ModelInfo::clone(model)
        })
    }
}

fn first_usable(services: &[Service]) -> ModelRef {
    let usable = services.iter().find(|service| service.reason().is_none() && !service.models.is_empty());
    let model = usable.and_then(|service| service.models.first());
    match model {
        Some(model) => ModelRef { provider: model.provider.clone(), model_id: model.model_id.clone() },
        None => ModelRef { provider: offline::PROVIDER.into(), model_id: offline::MODEL.into() },
    }
}

/// What is configured, over what the catalogue says.
fn merged(configured: &ProviderSettings, base: Option<&ProviderSettings>) -> ProviderSettings {
    let mut all = configured.clone();
    let Some(base) = base else { return all };
    let other_server = configured.base_url.is_some();
    all.api = all.api.or_else(|| base.api.clone());
    all.base_url = all.base_url.or_else(|| base.base_url.clone());
    let own_key = all.api_key_env.is_some() || all.api_key_file.is_some() || all.api_key_command.is_some();
    // The well-known key is for the well-known server alone.
    if !own_key && !other_server {
        all.api_key_env.clone_from(&base.api_key_env);
    }
    for listed in &base.models {
        match all.models.iter_mut().find(|model| model.id == listed.id) {
            Some(model) => {
                let mine = model.clone();
                *model = ModelSettings {
                    id: mine.id,
                    name: mine.name.or_else(|| listed.name.clone()),
                    context_window: mine.context_window.or(listed.context_window),
                    max_output: mine.max_output.or(listed.max_output),
                    reasoning: mine.reasoning.or(listed.reasoning),
                    reasoning_levels: mine.reasoning_levels.or_else(|| listed.reasoning_levels.clone()),
                    input: mine.input.or_else(|| listed.input.clone()),
                    cost: mine.cost.or(listed.cost),
                };
            }
            None => all.models.push(listed.clone()),
        }
    }
    all
}

fn service(name: &str, settings: &ProviderSettings, timeouts: Timeouts, around: &Surroundings<'_>) -> Service {
    let key = if let Some(argv) = &settings.api_key_command {
        KeySource::command(argv.clone())
    } else if let Some(path) = &settings.api_key_file {
        KeySource::File(path.clone())
    } else if let Some(env) = &settings.api_key_env {
        KeySource::env(env, (around.env)(env))
    } else {
        KeySource::None
    };
    let models = settings.models.iter().map(|model| Arc::new(info(name, model))).collect();
    let provider = endpoint(name, settings, key.clone(), timeouts).map(|endpoint| {
        let http = HttpProvider::new(endpoint, around.clients.clone(), around.clock.clone());
        Arc::new(http) as Arc<dyn Provider>
    });
    Service { name: name.to_owned(), models, provider, key }
}

fn endpoint(name: &str, settings: &ProviderSettings, key: KeySource, timeouts: Timeouts) -> Result<Endpoint, String> {
    let api = match settings.api.as_deref() {
        None => Api::OpenaiChat,
        Some(api) => {
            Api::of_name(api).ok_or_else(|| format!("The provider {name} has an api that is not known: {api}."))?
        }
    };
    let base_url = settings.base_url.as_deref().unwrap_or_default().trim().trim_end_matches('/');
    if base_url.is_empty() {
        return Err(format!("The provider {name} has no baseUrl in config.toml."));
    }
    let ms = |value: Option<u64>, default: Duration| value.map_or(default, Duration::from_millis);
    Ok(Endpoint {
        api,
        base_url: base_url.to_owned(),
        key,
        headers: settings.headers.clone(),
        timeouts: Timeouts {
            connect: ms(settings.connect_timeout_ms, timeouts.connect),
            idle: ms(settings.idle_timeout_ms, timeouts.idle),
        },
    })
}

fn info(provider: &str, model: &ModelSettings) -> ModelInfo {
    let context_window = model.context_window.unwrap_or(CONTEXT_WINDOW);
    let reasoning = model.reasoning.unwrap_or(model.reasoning_levels.is_some());
    let options = if reasoning {
        let values = match &model.reasoning_levels {
            Some(levels) => levels.clone(),
            None => LEVELS.map(str::to_owned).to_vec(),
        };
        let medium = values.iter().find(|value| *value == "medium").or(values.last());
        let default = medium.cloned().unwrap_or_default();
        vec![ModelOption { option_id: "reasoning-effort".into(), values, default }]
    } else {
        Vec::new()
    };
    ModelInfo {
        provider: provider.to_owned(),
        model_id: model.id.clone(),
        name: model.name.clone().unwrap_or_else(|| model.id.clone()),
        context_window,
        max_output: model.max_output.unwrap_or(MAX_OUTPUT.min(context_window)),
        reasoning,
        input: model.input.clone().unwrap_or_else(|| vec!["text".into()]),
        cost: model.cost.unwrap_or_default(),
        options,
        available: true,
        reason: None,
    }
}

/// The known word that `word` was most likely meant to be.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let scored = known.iter().map(|candidate| (distance(&lower, &candidate.to_lowercase()), *candidate));
    let (distance, best) = scored.min_by_key(|(distance, _)| *distance)?;
    (distance <= word.chars().count().max(best.chars().count()).div_ceil(2)).then_some(best)
}

/// Levenshtein's: insertions, deletions and replacements from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (j, y) in b.iter().enumerate() {
            let Some(cell) = row.get_mut(j + 1) else { break };
            let replaced = diagonal + usize::from(x != *y);
            diagonal = *cell;
            left = replaced.min(left + 1).min(*cell + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;
