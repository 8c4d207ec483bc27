//! An MCP server that does what its arguments say; see `tests/mcp.rs`.
//!
//! - `--label TEXT`  names it in answers
//! - `--tool NAME`   offers a tool (any number of them); by name some are special: `hang` never answers, `die` ends the
//!   server, `fail` is an error, `image` a picture, `long` a text of 200,000 bytes, `env` tells `$MCP_TEST` and the
//!   directory, `more` adds a tool and says that the list has changed; `odd`, `huge`, `none`, `broken` and `wrong` answer
//!   what no server should
//! - `--gate FILE`   answers nothing until the file is there
//! - `--log FILE`    appends each message that it gets, and its process id first
//! - `--stubborn`    goes on when its input ends, with a child
//! - `--http`        serves HTTP on a free port, which stands in the log

use std::io::{BufRead, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

#[derive(Default)]
struct Server {
    label: String,
    tools: Vec<String>,
    gate: Option<PathBuf>,
    log: Option<PathBuf>,
}

fn main() {
    let mut server = Server::default();
    let (mut stubborn, mut http) = (false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("a value");
        match arg.as_str() {
            "--label" => server.label = value(),
            "--tool" => server.tools.push(value()),
            "--gate" => server.gate = Some(value().into()),
            "--log" => server.log = Some(value().into()),
            "--stubborn" => stubborn = true,
            "--http" => http = true,
            other => panic!("{other}?"),
        }
    }
    server.note(&format!("pid {}", std::process::id()));
    if http {
        return server.http();
    }
    let child = stubborn.then(|| std::process::Command::new("sleep").arg("1000").spawn().unwrap());
    eprintln!("it starts");
    for line in std::io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str(&line.unwrap()) else { continue };
        for answer in server.answers(&message) {
            println!("{answer}");
        }
    }
    if let Some(mut child) = child {
        child.wait().unwrap();
    }
}

impl Server {
    fn note(&self, text: &str) {
        let Some(log) = &self.log else { return };
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        writeln!(file, "{text}").unwrap();
    }

    fn answers(&mut self, message: &Value) -> Vec<Value> {
        self.note(&message.to_string());
        while self.gate.as_ref().is_some_and(|gate| !gate.exists()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let Some(id) = message.get("id") else { return vec![] };
        let mut more = vec![];
        let result = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": { "name": "test", "version": "1" },
            }),
            "tools/list" => {
                let tool = |name: &String| {
                    let hints = json!({ "readOnlyHint": name.starts_with("look") });
                    let schema = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
                    json!({ "name": name, "description": format!("{name} of {}", self.label), "inputSchema": schema, "annotations": hints })
                };
                // A page for each, so that paging is seen too.
                let at: usize = message["params"]["cursor"].as_str().map_or(0, |cursor| cursor.parse().unwrap());
                let next = (at + 1 < self.tools.len()).then(|| (at + 1).to_string());
                let mut page = json!({ "tools": self.tools.get(at).map(tool).into_iter().collect::<Vec<_>>() });
                if let Some(next) = next {
                    page["nextCursor"] = next.into();
                }
                page
            }
            "tools/call" => match message["params"]["name"].as_str().unwrap_or_default() {
                "hang" => return vec![],
                "die" => std::process::exit(3),
                "fail" => json!({ "content": [{ "type": "text", "text": "it went wrong" }], "isError": true }),
                "long" => json!({ "content": [{ "type": "text", "text": "x".repeat(200_000) }] }),
                "image" => json!({ "content": [
                    { "type": "text", "text": "a picture" },
                    { "type": "image", "mimeType": "image/png", "data": PICTURE },
                ] }),
                "odd" => json!({ "content": [{ "type": "hologram", "x": 1 }, { "type": "text", "text": "after" }] }),
                "huge" => json!({ "content": [{ "type": "text", "text": "y".repeat(20 << 20) }] }),
                "none" => json!({}),
                "broken" => json!({ "content": [{ "type": "image", "mimeType": "image/png", "data": "!!" }] }),
                "wrong" => json!({ "content": "text" }),
                "env" => {
                    let dir = std::env::current_dir().unwrap();
                    let text = format!("{:?} {}", std::env::var("MCP_TEST"), dir.display());
                    json!({ "content": [{ "type": "text", "text": text }] })
                }
                name => {
                    if name == "more" {
                        self.tools.push("added".into());
                        more.push(json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
                    }
                    let text = format!("{} did {name} with {}", self.label, message["params"]["arguments"]);
                    json!({ "content": [{ "type": "text", "text": text }] })
                }
            },
            _ => json!({}),
        };
        let mut all = vec![json!({ "jsonrpc": "2.0", "id": id, "result": result })];
        all.append(&mut more);
        all
    }

    /// One request a connection, answered as plain JSON.
    fn http(mut self) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        self.note(&format!("port {}", listener.local_addr().unwrap().port()));
        for stream in listener.incoming() {
            let mut stream = std::io::BufReader::new(stream.unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                    break;
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.to_ascii_lowercase().starts_with("authorization:") {
                    self.note(line.trim_end());
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let answers = serde_json::from_slice(&body).map(|message| self.answers(&message)).unwrap_or_default();
            let (status, body) = match (head.starts_with("POST"), answers.first()) {
                (true, Some(answer)) => ("200 OK", answer.to_string()),
                (true, None) => ("202 Accepted", String::new()),
                _ => ("405 Method Not Allowed", String::new()),
            };
            let _ = write!(
                stream.get_mut(),
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    }
}

/// One pixel.
const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
