//! In what the servers of the chat completions format differ, told from their address and the model's name.
//!
//! A server that nobody knows gets what most of them take.

use kli_protocol::api::ModelInfo;

use super::Target;
use super::transform::IdRule;

/// How a server is told to think, or not to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// `reasoning_effort: "high"`; `none` only where it is known.
    Effort { none: bool },
    /// `reasoning: {effort: "high"}`, as OpenRouter has it.
    Reasoning,
    /// `thinking: {type: "enabled"}`, as DeepSeek, Kimi and GLM have it.
    Switch,
    /// `enable_thinking: true`, as Qwen has it.
    Enable,
    /// Thinks or does not, by itself.
    Fixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    pub thinking: Thinking,
    /// The newer name of `max_tokens`, the only one that OpenAI's reasoning models take.
    pub max_completion_tokens: bool,
    /// Takes `stream_options: {include_usage: true}`; the others send usage unasked.
    pub stream_options: bool,
    /// Takes `prompt_cache_key`.
    pub cache_key: bool,
    pub ids: IdRule,
    /// While the model thinks, each assistant message with calls must bear `reasoning_content`.
    pub reasoning_content_required: bool,
    /// Cache marks are wanted, as in Anthropic's own API.
    pub cache_control: bool,
}

pub fn of(target: Target<'_>, model: &ModelInfo) -> Quirks {
    let host = host(target.base_url);
    let at = |name: &str| host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
    let mut quirks = Quirks {
        thinking: Thinking::Effort { none: false },
        max_completion_tokens: false,
        stream_options: true,
        cache_key: false,
        ids: IdRule::Plain { max: 40 },
        reasoning_content_required: false,
        cache_control: false,
    };
    if at("openai.com") || at("azure.com") {
        quirks.thinking = Thinking::Effort { none: true };
        quirks.max_completion_tokens = true;
        quirks.cache_key = true;
    } else if at("openrouter.ai") {
        quirks.thinking = Thinking::Reasoning;
        quirks.cache_control = model.model_id.starts_with("anthropic/");
    } else if at("deepseek.com") || at("z.ai") || at("bigmodel.cn") {
        quirks.thinking = Thinking::Switch;
        quirks.reasoning_content_required = at("deepseek.com");
    } else if at("moonshot.ai") || at("moonshot.cn") || at("kimi.com") {
        quirks.thinking = if model.model_id.contains("thinking") { Thinking::Fixed } else { Thinking::Switch };
        quirks.cache_key = true;
        quirks.reasoning_content_required = true;
    } else if at("aliyuncs.com") {
        quirks.thinking = Thinking::Enable;
    } else if at("mistral.ai") {
        quirks.thinking = Thinking::Fixed;
        quirks.stream_options = false;
        quirks.ids = IdRule::NineAlphanumerics;
    } else if at("x.ai") && !model.model_id.contains("mini") {
        quirks.thinking = Thinking::Fixed;
    }
    quirks
}

/// The host of a URL, lower case, without a port.
pub fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    host.to_ascii_lowercase()
}

/// The effort that the person asked for, among those the model has: the nearest one below it, else the lowest
/// above. None: nobody asked, or the model does not think.
pub fn effort<'a>(model: &'a ModelInfo, asked: Option<&str>) -> Option<&'a str> {
    const ORDER: [&str; 7] = ["off", "minimal", "low", "medium", "high", "xhigh", "max"];
    if !model.reasoning {
        return None;
    }
    let place = |level: &str| ORDER.iter().position(|known| *known == level);
    let asked = place(asked?)?;
    let values = &model.options.iter().find(|option| option.option_id == "reasoning-effort")?.values;
    let levels = || values.iter().filter_map(|value| Some((place(value)?, value.as_str())));
    // Off stands apart: a model that can be switched off is not so for want of a low effort.
    let below = levels().filter(|(at, _)| *at <= asked && (*at > 0 || asked == 0)).max();
    let above = || levels().filter(|(at, _)| *at > asked).min();
    below.or_else(above).map(|(_, level)| level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kli_protocol::api::ModelOption;

    #[test]
    fn hosts() {
        for (url, expected) in [
            ("https://api.openai.com/v1", "api.openai.com"),
            ("http://user:pw@127.0.0.1:8080/v1", "127.0.0.1"),
            ("http://[::1]:8080/v1", "::1"),
            ("HTTP://LocalHost", "localhost"),
        ] {
            assert_eq!(host(url), expected);
        }
    }

    #[test]
    fn the_nearest_effort_counts() {
        fn check(levels: &[&str], asked: Option<&str>, expected: Option<&str>) {
            let values: Vec<String> = levels.iter().map(|l| (*l).to_owned()).collect();
            let option = ModelOption { option_id: "reasoning-effort".into(), values, default: "medium".into() };
            let model = ModelInfo { reasoning: true, options: vec![option], ..ModelInfo::default() };
            assert_eq!(effort(&model, asked), expected, "{levels:?} {asked:?}");
        }
        let usual = ["off", "low", "medium", "high"];
        check(&usual, Some("medium"), Some("medium"));
        check(&usual, Some("max"), Some("high"));
        check(&usual, Some("minimal"), Some("low"));
        check(&usual, Some("off"), Some("off"));
        check(&["low", "high"], Some("off"), Some("low"));
        check(&usual, None, None);
        check(&usual, Some("lots"), None);
    }
}
