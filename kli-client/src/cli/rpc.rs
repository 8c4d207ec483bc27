//! `kli rpc`: any method, by name. The result goes to standard output as JSON, an error to standard error as JSON.

use std::io::Write;

use kli_client::api::{self, Visitor, param_names};
use kli_client::protocol::Method;
use kli_client::{CallError, Client};
use serde_json::Value;

use super::args::Global;
use super::context::connector;
use super::{Exit, UsageError, input, out, text};

pub async fn run(global: &Global, method: &str, params: Option<String>) -> anyhow::Result<Exit> {
    let params = read_params(method, params)?;
    // The point is to talk to whatever runs there.
    let client = Client::connect(connector(global)?.any_protocol()).await?;
    let called = match method {
        "subscribe" | "registerTools" => tail(&client, method, &params).await?,
        _ => match client.call_raw(method, &params).await {
            Ok(result) => {
                print(result.get())?;
                Ok(())
            }
            Err(e) => Err(e),
        },
    };
    match called {
        Ok(()) => Ok(Exit::Done),
        Err(CallError::Api(error)) => {
            let json = serde_json::to_string(&error)?;
            let _ = writeln!(std::io::stderr().lock(), "{}", text::clean_json(&json));
            Ok(Exit::Error)
        }
        Err(e) => Err(e.into()),
    }
}

/// Prints what a subscription brings, until it ends.
async fn tail(client: &Client, method: &str, params: &Value) -> anyhow::Result<Result<(), CallError>> {
    let mut subscription = match client.subscribe(method, params).await {
        Ok(subscription) => subscription,
        Err(e) => return Ok(Err(e)),
    };
    while let Some(event) = subscription.next().await? {
        print(event.get())?;
    }
    let reason = "the daemon has gone".into();
    Ok(Err(CallError::Lost { method: method.to_owned(), reason }))
}

/// JSON in one line; on a terminal nothing in it steers the terminal.
fn print(json: &str) -> anyhow::Result<()> {
    let shown = if out::Style::of_stdout().terminal { text::clean_json(json) } else { json.into() };
    Ok(out::line(&shown)?)
}

fn read_params(method: &str, given: Option<String>) -> anyhow::Result<Value> {
    let json = match given.as_deref() {
        Some("-") => input::read_all()?,
        Some(json) => json.to_owned(),
        None if takes_params(method) => input::piped()?.unwrap_or_default(),
        None => String::new(),
    };
    if json.trim().is_empty() {
        return Ok(Value::Object(Default::default()));
    }
    match serde_json::from_str(&json) {
        Ok(params @ (Value::Object(_) | Value::Array(_))) => Ok(params),
        Ok(_) => Err(UsageError("the parameters must be a JSON object or array".into()).into()),
        Err(e) => Err(UsageError(format!("the parameters are no JSON: {e}")).into()),
    }
}

/// Whether there is anything to be read from standard input for this method. Methods not known here may take some.
fn takes_params(method: &str) -> bool {
    struct Find<'a> {
        name: &'a str,
        takes: bool,
    }
    impl Visitor for Find<'_> {
        fn method<M: Method>(&mut self) {
            if M::NAME == self.name {
                self.takes = !param_names::<M::Params>().is_empty();
            }
        }
    }
    let mut find = Find { name: method, takes: true };
    api::visit_methods(&mut find);
    find.takes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters() {
        for (json, read) in [
            (None, Some("{}")),
            (Some(""), Some("{}")),
            (Some(r#"{"a":1}"#), Some(r#"{"a":1}"#)),
            (Some("[1]"), Some("[1]")),
            (Some("1"), None),
            (Some("{a}"), None),
        ] {
            let got = read_params("ping", json.map(str::to_owned));
            assert_eq!(got.ok().map(|v| v.to_string()).as_deref(), read, "{json:?}");
        }
    }

    #[test]
    fn methods_without_parameters_leave_standard_input_alone() {
        for (method, takes) in [("ping", false), ("listModels", false), ("getTree", true), ("whatever", true)] {
            assert_eq!(takes_params(method), takes, "{method}");
        }
    }
}
