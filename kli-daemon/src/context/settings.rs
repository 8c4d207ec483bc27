//! The model and the options of a branch: the newest record of each kind counts.

use std::collections::BTreeMap;

use kli_protocol::api::ModelRef;
use kli_protocol::record::{Body, Record};
use serde_json::Value;

/// As pi's `thinking_level_change` is called among the options.
pub const REASONING_EFFORT: &str = "reasoning-effort";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub model: Option<ModelRef>,
    pub options: BTreeMap<String, Value>,
}

impl Settings {
    /// From the records of a branch, newest first; then, for what the branch does not say, those of the opening
    /// write. Records of other kinds are passed over.
    pub fn of<'a>(newest_first: impl IntoIterator<Item = &'a Record>) -> Settings {
        let mut settings = Settings::default();
        for record in newest_first {
            settings.add_older(record);
        }
        settings
    }

    /// Takes in a record older than all before.
    pub fn add_older(&mut self, record: &Record) {
        match &record.body {
            Body::ModelChange(change) if self.model.is_none() => {
                self.model = Some(ModelRef { provider: change.provider.clone(), model_id: change.model_id.clone() });
            }
            Body::OptionChange(change) => {
                self.options.entry(change.option_id.clone()).or_insert_with(|| change.value.clone());
            }
            Body::ThinkingLevelChange(change) => {
                self.options
                    .entry(REASONING_EFFORT.to_owned())
                    .or_insert_with(|| Value::String(change.thinking_level.clone()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use kli_protocol::record::{ModelChange, OptionChange, ThinkingLevelChange};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_of_each_counts() {
        let model = |id: &str| Body::ModelChange(ModelChange { provider: "p".into(), model_id: id.into() });
        let option = |id: &str, value: Value| Body::OptionChange(OptionChange { option_id: id.into(), value });
        let level = |level: &str| Body::ThinkingLevelChange(ThinkingLevelChange { thinking_level: level.into() });
        let oldest_first = [
            model("old"),
            level("low"),
            option("speed", json!(1)),
            option(REASONING_EFFORT, json!("high")),
            model("new"),
            option("speed", json!(2)),
            level("off"),
        ];
        let records: Vec<Record> = oldest_first.into_iter().map(|body| Record::new("x", None, "", body)).collect();
        let settings = Settings::of(records.iter().rev());
        assert_eq!(settings.model.unwrap_or_default().model_id, "new");
        assert_eq!(
            settings.options,
            BTreeMap::from([(REASONING_EFFORT.to_owned(), json!("off")), ("speed".to_owned(), json!(2))])
        );
        assert_eq!(Settings::of([]), Settings::default());
    }
}
