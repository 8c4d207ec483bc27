//! Asks a model something in the current directory and prints its answer as it comes:
//! `cargo run -p kli-client --example ask -- "What is in this directory?"`

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use kli_client::{Client, api};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(text) = std::env::args().nth(1) else {
        eprintln!("say what to ask, in quotes");
        return ExitCode::from(2);
    };
    match ask(text).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn ask(text: String) -> Result<(), Box<dyn Error>> {
    let client = Client::connect_or_start().await?;
    let work_dir = std::env::current_dir()?.display().to_string();
    let session =
        client.call::<api::CreateSession>(api::CreateSessionParams { work_dir, ..Default::default() }).await?;

    // Subscribed before the prompt is sent, so that nothing of the answer is missed.
    let mut events = client.events(&session.session_id);
    events.start().await?;
    // Nobody is here to be asked: calls that need a person are refused, and the answer says so.
    let approvals = Some(api::Approvals::Deny);
    let prompt = api::PromptParams { session_id: session.session_id, text, approvals, ..Default::default() };
    client.call::<api::Prompt>(prompt).await?;

    let mut out = std::io::stdout();
    loop {
        match events.next().await?.event.body {
            api::EventBody::TextDelta { delta, .. } => write!(out, "{delta}")?,
            api::EventBody::RunEnd { .. } => return Ok(writeln!(out)?),
            _ => {}
        }
        out.flush()?;
    }
}
