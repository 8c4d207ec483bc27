//! interim
use super::{Arguments, Effect, ToolSpec};
use kli_protocol::api::Mode;
pub struct Request<'a> {
    pub mode: Mode,
    pub session_rules: &'a [String],
    pub work_dir: &'a std::path::Path,
    pub spec: &'a ToolSpec,
    pub arguments: &'a Arguments,
}
pub enum Verdict {
    Allow,
    Ask { reason: String, rule: Option<String> },
    Deny { reason: String },
}
#[derive(Debug, Clone, Default)]
pub struct Policy {}
impl Policy {
    pub fn judge(&self, r: &Request) -> Verdict {
        let rule = r.spec.name.clone();
        match (r.mode, r.spec.effect) {
            (_, Effect::Reads) | (Mode::Auto, _) => Verdict::Allow,
            (Mode::Plan, _) => Verdict::Deny { reason: "plan mode: nothing may change anything".into() },
            (Mode::Ask, _) if r.session_rules.contains(&rule) => Verdict::Allow,
            (Mode::Ask, _) => {
                Verdict::Ask { reason: format!("{} may change something", r.spec.name), rule: Some(rule) }
            }
        }
    }
}
