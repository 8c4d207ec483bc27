//! The HTTP clients, built when first needed.
//!
//! Never `Client::new()`: it panics on a machine without certificate authorities. There `http://` still works, and
//! `https://` says what is missing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kli_protocol::api::RunErrorKind;
use reqwest::Client;

use crate::dialect::Failure;

/// What tells one client from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    /// A server on this machine is never asked for by way of a proxy.
    loopback: bool,
    connect: Duration,
}

/// Shared by all providers, also across reloads of the configuration, so that connections are kept.
#[derive(Debug, Default)]
pub struct Clients {
    /// A lock and no message: it guards a map of a few handles, and building one takes no waiting.
    built: Mutex<HashMap<Kind, (Client, Trust)>>,
}

/// Whom TLS believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    System,
    /// The machine names no certificate authority.
    Nobody,
}

impl Clients {
    pub fn new() -> Arc<Clients> {
        Arc::new(Clients::default())
    }

    pub fn for_url(&self, url: &str, connect: Duration) -> Result<Client, Failure> {
        let kind = Kind { loopback: is_loopback(url), connect };
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let (client, trust) = match built.get(&kind) {
            Some(known) => known.clone(),
            None => {
                let new = build(kind)?;
                built.insert(kind, new.clone());
                new
            }
        };
        if trust == Trust::Nobody && url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:")) {
            return Err(Failure::fatal(
                RunErrorKind::Network,
                "This machine has no certificate authorities, so no https:// server can be trusted. Install the package ca-certificates and restart the daemon.",
            ));
        }
        Ok(client)
    }
}

fn build(kind: Kind) -> Result<(Client, Trust), Failure> {
    // Someone else may have installed one already; either will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        let builder = Client::builder()
            .user_agent(concat!("kli/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(kind.connect)
            .pool_idle_timeout(Duration::from_secs(90))
            .pool_max_idle_per_host(8)
            // A compressed stream is often held back until a block is full.
            .gzip(false)
            .tcp_keepalive(Duration::from_secs(30))
            .http2_keep_alive_interval(Duration::from_secs(30))
            .http2_keep_alive_timeout(Duration::from_secs(20))
            // A redirected POST becomes a GET, and our key would go to a host that nobody named.
            .redirect(reqwest::redirect::Policy::none())
            // Retrying is the agent's business, and shown.
            .retry(reqwest::retry::never());
        if kind.loopback { builder.no_proxy() } else { builder }
    };
    match builder().build() {
        Ok(client) => Ok((client, Trust::System)),
        Err(first) => {
            tracing::warn!(error = %first, "no certificate authorities: https:// will not work");
            let client = builder().tls_certs_only([]).build().map_err(|e| {
                Failure::fatal(RunErrorKind::Network, format!("The HTTP client could not be built: {e} ({first})."))
            })?;
            Ok((client, Trust::Nobody))
        }
    }
}

/// Whether a URL names this machine.
pub fn is_loopback(url: &str) -> bool {
    let host = crate::dialect::host(url);
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
