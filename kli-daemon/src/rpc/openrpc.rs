pub fn document() -> serde_json::Value {
    serde_json::Value::Null
}
