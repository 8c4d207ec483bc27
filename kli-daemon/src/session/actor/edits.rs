//! Small changes: name, archive flag, labels, model, options, mode, entries of extensions.

use kli_protocol::api::{EventBody, Mode};
use kli_protocol::record::{
    Body, Content, Custom, CustomMessage, Label, ModelChange, OptionChange, SessionInfoRecord, ThinkingLevelChange,
};
use kli_protocol::{ApiError, ErrorKind};
use serde_json::Value;

use super::Actor;
use super::prompts::key_of_another;
use super::write::EFFORT;
use crate::session::api_error;

const MAX_NAME: usize = 200;
const MAX_LABEL: usize = 200;
const EFFORTS: [&str; 7] = ["off", "minimal", "low", "medium", "high", "xhigh", "max"];

/// What `appendEntry` appends.
#[derive(Clone, Debug)]
pub enum Extension {
    /// A mark that the model never sees.
    Data(Value),
    /// A message that it does.
    Message { content: Content, display: bool },
}

impl Actor {
    /// Every `session_info` repeats the name, since one without clears it.
    fn session_info(&mut self, change: impl FnOnce(&mut SessionInfoRecord)) -> Result<(), ApiError> {
        let mut record = SessionInfoRecord { name: self.log.facts().name, ..SessionInfoRecord::default() };
        change(&mut record);
        self.append(vec![Body::SessionInfo(record).into()])?;
        Ok(())
    }

    pub fn set_name(&mut self, name: &str) -> Result<(), ApiError> {
        let name = clean_name(name)?;
        self.session_info(|record| record.name = name)?;
        self.tell_info();
        Ok(())
    }

    pub fn archive(&mut self, archived: bool) -> Result<(), ApiError> {
        self.session_info(|record| record.archived = Some(archived))?;
        self.tell_info();
        Ok(())
    }

    pub fn rebind(&mut self, work_dir: String) -> Result<(), ApiError> {
        self.check_quiet()?;
        self.session_info(|record| record.work_dir = Some(work_dir))?;
        self.tell_info();
        Ok(())
    }

    pub fn set_env(&mut self, env: std::collections::BTreeMap<String, String>) {
        self.env = std::sync::Arc::new(env);
    }

    pub fn set_mode(&mut self, mode: Mode) -> Result<(), ApiError> {
        let changed = self.mode != mode;
        // Said once more it is still to be written down: a changed default must not undo it.
        if changed || self.log.facts().mode != Some(mode) {
            self.session_info(|record| record.mode = Some(mode))?;
        }
        self.mode = mode;
        if changed {
            self.publish(EventBody::ModeChanged { mode });
        }
        self.judge_again();
        Ok(())
    }

    pub fn set_label(&mut self, entry_id: &str, label: Option<String>) -> Result<Option<String>, ApiError> {
        let ix = self.log.find(entry_id).map_err(api_error)?;
        if self.log.node(ix).is_none_or(|n| n.kind.is_mark()) {
            return Err(mark(entry_id));
        }
        let label = label.as_deref().map(clean_label).transpose()?.flatten();
        let previous = self.log.label(ix);
        if previous == label {
            return Ok(previous);
        }
        let entry_id = self.log.id(ix);
        self.append(vec![Body::Label(Label { target_id: entry_id.clone(), label: label.clone() }).into()])?;
        self.publish(EventBody::LabelChanged { entry_id, label });
        Ok(previous)
    }

    pub fn set_model(&mut self, provider: String, model_id: String) -> Result<String, ApiError> {
        self.deps.models().find(&provider, &model_id)?;
        let change = ModelChange { provider: provider.clone(), model_id: model_id.clone() };
        let id = self.append(vec![Body::ModelChange(change).into()])?;
        self.auto.resume();
        self.publish(EventBody::ModelChanged { provider, model_id });
        Ok(id)
    }

    pub fn set_option(&mut self, option_id: String, value: Value) -> Result<String, ApiError> {
        check_option(&option_id, &value)?;
        let body = match (option_id.as_str(), value.as_str()) {
            (EFFORT, Some(level)) => {
                Body::ThinkingLevelChange(ThinkingLevelChange { thinking_level: level.to_owned() })
            }
            _ => Body::OptionChange(OptionChange { option_id: option_id.clone(), value: value.clone() }),
        };
        let id = self.append(vec![body.into()])?;
        self.publish(EventBody::OptionChanged { option_id, value });
        Ok(id)
    }

    pub fn append_extension(
        &mut self,
        custom_type: String,
        extension: Extension,
        leaf_id: Option<Option<String>>,
        key: Option<String>,
    ) -> Result<String, ApiError> {
        if let Some(entry_id) = key.as_deref().and_then(|key| self.entry_of_key(key)) {
            return match self.body_of_key(&entry_id)? {
                Body::Custom(_) | Body::CustomMessage(_) => Ok(entry_id),
                _ => Err(key_of_another("appendEntry")),
            };
        }
        self.catch_up()?;
        self.check_leaf(&leaf_id)?;
        let body = match extension {
            Extension::Data(data) => Body::Custom(Custom { custom_type, data, idempotency_key: key.clone() }),
            Extension::Message { content, display } => Body::CustomMessage(CustomMessage {
                custom_type,
                content,
                display,
                details: None,
                idempotency_key: key.clone(),
            }),
        };
        let mut drafts = match &body {
            Body::CustomMessage(_) if self.run.is_none() => self.open_call_drafts()?,
            _ => vec![],
        };
        drafts.push(body.into());
        let id = self.append(drafts)?;
        self.key_done(key.as_deref());
        Ok(id)
    }
}

/// A name as it is kept: one line, at most 200 characters; empty clears it.
pub fn clean_name(name: &str) -> Result<Option<String>, ApiError> {
    let name = crate::text::one_line(name, MAX_NAME + 1);
    if name.chars().count() > MAX_NAME {
        return Err(ApiError::invalid_params(format!("name: at most {MAX_NAME} characters")));
    }
    Ok((!name.is_empty()).then_some(name))
}

/// A label as it is kept: at most 200 characters; blank is none.
pub(super) fn clean_label(label: &str) -> Result<Option<String>, ApiError> {
    let label = label.trim();
    if label.chars().count() > MAX_LABEL {
        return Err(ApiError::invalid_params(format!("label: at most {MAX_LABEL} characters")));
    }
    Ok((!label.is_empty()).then(|| label.to_owned()))
}

/// Whether an option can be set to a value.
pub fn check_option(option_id: &str, value: &Value) -> Result<(), ApiError> {
    if option_id.is_empty() || option_id.len() > 64 {
        return Err(ApiError::invalid_params("optionId: 1 to 64 characters"));
    }
    if option_id == EFFORT && !value.as_str().is_some_and(|v| EFFORTS.contains(&v)) {
        return Err(ApiError::invalid_params(format!("value: {EFFORT} is one of {}", EFFORTS.join(", "))));
    }
    if value.is_null() {
        return Err(ApiError::invalid_params("value: an option has a value"));
    }
    Ok(())
}

pub fn mark(entry_id: &str) -> ApiError {
    ApiError::new(
        ErrorKind::InvalidEntry,
        format!("{entry_id} is bookkeeping and no entry of the tree; getTree shows those."),
    )
}
