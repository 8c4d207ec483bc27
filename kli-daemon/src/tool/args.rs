//! Arguments as models give them: the right type mostly, a number as text sometimes.

use serde_json::Value;

use super::Arguments;

#[derive(Debug, thiserror::Error, PartialEq)]
pub(crate) enum ArgumentError {
    #[error("The argument `{0}` is missing.")]
    Missing(&'static str),
    #[error("The argument `{0}` must be {1}.")]
    Type(&'static str, &'static str),
}

/// A text that must be there.
pub(crate) fn text<'a>(arguments: &'a Arguments, name: &'static str) -> Result<&'a str, ArgumentError> {
    optional_text(arguments, name)?.ok_or(ArgumentError::Missing(name))
}

pub(crate) fn optional_text<'a>(
    arguments: &'a Arguments,
    name: &'static str,
) -> Result<Option<&'a str>, ArgumentError> {
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ArgumentError::Type(name, "a string")),
    }
}

/// A whole number, of either sign.
pub(crate) fn integer(arguments: &Arguments, name: &'static str) -> Result<Option<i64>, ArgumentError> {
    match number(arguments, name)? {
        None => Ok(None),
        // Saturates, which is right for counts and offsets.
        Some(number) if number.fract() == 0.0 => Ok(Some(number as i64)),
        Some(_) => Err(ArgumentError::Type(name, "a whole number")),
    }
}

/// A count of at least one; absent: `default`.
pub(crate) fn count(arguments: &Arguments, name: &'static str, default: usize) -> Result<usize, ArgumentError> {
    match integer(arguments, name)? {
        None => Ok(default),
        Some(n) if n >= 1 => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
        Some(_) => Err(ArgumentError::Type(name, "1 or more")),
    }
}

pub(crate) fn number(arguments: &Arguments, name: &'static str) -> Result<Option<f64>, ArgumentError> {
    let number = match arguments.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.trim().parse().ok(),
        Some(_) => None,
    };
    match number {
        Some(number) if number.is_finite() => Ok(Some(number)),
        _ => Err(ArgumentError::Type(name, "a number")),
    }
}

pub(crate) fn flag(arguments: &Arguments, name: &'static str) -> Result<bool, ArgumentError> {
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::String(text)) if text == "true" => Ok(true),
        Some(Value::String(text)) if text == "false" => Ok(false),
        Some(_) => Err(ArgumentError::Type(name, "true or false")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_taken_as_models_write_them() {
        for (value, want) in [
            (json!(3), Ok(Some(3))),
            (json!(3.0), Ok(Some(3))),
            (json!(" 3 "), Ok(Some(3))),
            (json!(-1), Ok(Some(-1))),
            (json!(1e300), Ok(Some(i64::MAX))),
            (json!(null), Ok(None)),
            (json!(1.5), Err(ArgumentError::Type("n", "a whole number"))),
            (json!("x"), Err(ArgumentError::Type("n", "a number"))),
            (json!("inf"), Err(ArgumentError::Type("n", "a number"))),
            (json!([3]), Err(ArgumentError::Type("n", "a number"))),
        ] {
            let arguments = Arguments::from_iter([("n".to_owned(), value.clone())]);
            assert_eq!(integer(&arguments, "n"), want, "{value}");
        }
    }

    #[test]
    fn counts_texts_and_flags() {
        let arguments = json!({"zero": 0, "five": 5, "text": "t", "yes": "true", "no": false});
        let arguments = arguments.as_object().unwrap();
        assert_eq!(count(arguments, "five", 9), Ok(5));
        assert_eq!(count(arguments, "gone", 9), Ok(9));
        assert_eq!(count(arguments, "zero", 9), Err(ArgumentError::Type("zero", "1 or more")));
        assert_eq!(text(arguments, "text"), Ok("t"));
        assert_eq!(text(arguments, "gone"), Err(ArgumentError::Missing("gone")));
        assert_eq!(text(arguments, "five"), Err(ArgumentError::Type("five", "a string")));
        assert_eq!(
            (flag(arguments, "yes"), flag(arguments, "no"), flag(arguments, "gone")),
            (Ok(true), Ok(false), Ok(false))
        );
    }
}
