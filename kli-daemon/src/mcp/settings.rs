//! `mcpServers` as `.mcp.json` has it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

/// Servers of one session.
const MOST: usize = 64;
/// Bytes of a name.
const LONGEST_NAME: usize = 128;

/// What a client gave: servers by name, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings(Vec<(String, Address)>);

/// How to reach a server, before variables are put in.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Address {
    #[serde(rename = "type")]
    kind: Option<String>,
    command: Option<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    url: Option<String>,
    headers: BTreeMap<String, String>,
    disabled: bool,
}

/// The same, ready to be used.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Resolved {
    Program { command: String, args: Vec<String>, env: BTreeMap<String, String>, cwd: Option<PathBuf> },
    Http { url: String, headers: BTreeMap<String, String> },
}

impl Settings {
    /// The object of servers itself, or `{"mcpServers": …}` around it. An error says which server and why.
    pub fn parse(value: &Value) -> Result<Settings, String> {
        let inner = value.get("mcpServers").filter(|inner| inner.is_object()).unwrap_or(value);
        let servers = inner.as_object().ok_or("it should be an object of servers by name, as in .mcp.json")?;
        if servers.len() > MOST {
            return Err(format!("{} servers are more than {MOST}", servers.len()));
        }
        let mut all = vec![];
        for (name, value) in servers {
            let fault = |says: &dyn std::fmt::Display| format!("{name:?}: {says}");
            if name.is_empty() || name.len() > LONGEST_NAME || name.contains(char::is_control) {
                return Err(fault(&format_args!("a name has 1 to {LONGEST_NAME} bytes and no control characters")));
            }
            let address = Address::deserialize(value).map_err(|error| fault(&error))?;
            address.check().map_err(|says| fault(&says))?;
            if !address.disabled {
                all.push((name.clone(), address));
            }
        }
        Ok(Settings(all))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn servers(&self) -> &[(String, Address)] {
        &self.0
    }
}

impl Address {
    fn check(&self) -> Result<(), String> {
        let (program, http) = match self.kind.as_deref() {
            None => (true, true),
            Some("stdio") => (true, false),
            Some("http" | "streamable-http" | "streamableHttp") => (false, true),
            Some("sse") => {
                return Err("the old transport \"sse\" is not supported; give the server's streamable HTTP address \
                            with type \"http\""
                    .into());
            }
            Some(other) => return Err(format!("there is no type {other:?}; use \"stdio\" or \"http\"")),
        };
        match (&self.command, &self.url) {
            (Some(command), None) if program && !command.is_empty() => {}
            (None, Some(url)) if http => {
                if !has_variable(url) && !is_http(url) {
                    return Err(format!("{url:?} is no http:// or https:// address"));
                }
            }
            (Some(_), Some(_)) => return Err("give either `command` or `url`".into()),
            _ if !http => return Err("a server of type \"stdio\" needs `command`".into()),
            _ if !program => return Err("a server of type \"http\" needs `url`".into()),
            _ => return Err("`command` (a program) or `url` (an address) is needed".into()),
        }
        let odd =
            |(name, value): &(&String, &String)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
        let texts = self.command.iter().chain(&self.args);
        match self.env.iter().find(odd) {
            Some((name, _)) => Err(format!("the variable {name:?} cannot be set: no `=` and no NUL")),
            None if texts.into_iter().any(|text| text.contains('\0')) => Err("a command has no NUL".into()),
            None => Ok(()),
        }
    }

    /// With variables put in, from `env` and then the daemon's own; the error names one that is not set.
    pub(super) fn resolved(&self, env: &BTreeMap<String, String>) -> Result<Resolved, String> {
        let look_up = |name: &str| env.get(name).cloned().or_else(|| std::env::var(name).ok());
        let put_in = |text: &String| expanded(text, &look_up);
        let values = |map: &BTreeMap<String, String>| {
            map.iter()
                .map(|(name, value)| Ok((name.clone(), put_in(value)?)))
                .collect::<Result<BTreeMap<_, _>, String>>()
        };
        match (&self.command, &self.url) {
            (Some(command), _) => Ok(Resolved::Program {
                command: put_in(command)?,
                args: self.args.iter().map(put_in).collect::<Result<_, _>>()?,
                env: values(&self.env)?,
                cwd: self.cwd.clone(),
            }),
            (None, url) => {
                let url = put_in(&url.clone().unwrap_or_default())?;
                if !is_http(&url) {
                    return Err(format!("{url:?} is no http:// or https:// address"));
                }
                Ok(Resolved::Http { url, headers: values(&self.headers)? })
            }
        }
    }
}

fn is_http(url: &str) -> bool {
    reqwest::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

fn has_variable(text: &str) -> bool {
    text.contains("${")
}

/// `${NAME}` and `${NAME:-default}`.
fn expanded(text: &str, look_up: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("${") {
        out.push_str(before);
        let Some((inside, after)) = behind.split_once('}') else {
            return Err(format!("{text:?} has a `${{` without its `}}`"));
        };
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let value = look_up(name).filter(|value| default.is_none() || !value.is_empty());
        match value.or_else(|| default.map(str::to_owned)) {
            Some(value) => out.push_str(&value),
            None => return Err(format!("the variable {name} is not set")),
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_are_read_as_mcp_json_has_them() {
        let servers = json!({
            "files": { "command": "npx", "args": ["-y", "files", "${ROOT:-/tmp}"], "env": { "TOKEN": "t-${KEY}" } },
            "web": { "type": "http", "url": "https://example.org/mcp", "headers": { "Authorization": "Bearer ${KEY}" } },
            "off": { "command": "x", "disabled": true },
        });
        let settings = Settings::parse(&json!({ "mcpServers": servers })).unwrap();
        assert_eq!(settings, Settings::parse(&servers).unwrap());
        let env = BTreeMap::from([("KEY".to_owned(), "k".to_owned())]);
        let all: Vec<_> =
            settings.servers().iter().map(|(name, s)| (name.as_str(), s.resolved(&env).unwrap())).collect();
        let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let args = ["-y", "files", "/tmp"].map(str::to_owned).to_vec();
        let program = Resolved::Program { command: "npx".into(), args, env: map("TOKEN", "t-k"), cwd: None };
        let http = Resolved::Http { url: "https://example.org/mcp".into(), headers: map("Authorization", "Bearer k") };
        assert_eq!(all, [("files", program), ("web", http)]);
        let unset = settings.servers()[1].1.resolved(&BTreeMap::new()).unwrap_err();
        assert_eq!(unset, "the variable KEY is not set");
        assert_eq!(Settings::parse(&json!({})).unwrap(), Settings::default());
    }

    #[test]
    fn what_is_wrong_is_said_with_the_servers_name() {
        for (value, says) in [
            (json!([]), "object of servers"),
            (json!("x"), "object of servers"),
            (json!({ "s": "npx" }), "\"s\": invalid type"),
            (json!({ "s": {} }), "\"s\": `command` (a program) or `url` (an address) is needed"),
            (json!({ "s": { "command": "" } }), "is needed"),
            (json!({ "s": { "command": "x", "url": "http://h" } }), "either"),
            (json!({ "s": { "command": "x", "args": "y" } }), "\"s\": invalid type"),
            (json!({ "s": { "command": "x", "env": { "A=B": "c" } } }), "cannot be set"),
            (json!({ "s": { "command": "x\u{0}" } }), "NUL"),
            (json!({ "s": { "type": "http", "command": "x" } }), "needs `url`"),
            (json!({ "s": { "type": "stdio", "url": "http://h" } }), "needs `command`"),
            (json!({ "s": { "type": "sse", "url": "http://h" } }), "streamable HTTP"),
            (json!({ "s": { "type": "ws", "url": "ws://h" } }), "no type \"ws\""),
            (json!({ "s": { "url": "ftp://h" } }), "no http://"),
            (json!({ "": { "command": "x" } }), "a name has 1 to 128 bytes"),
        ] {
            let error = Settings::parse(&value).unwrap_err();
            assert!(error.contains(says), "{value}: {error}");
        }
    }
}
