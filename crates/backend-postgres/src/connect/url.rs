//! Connection strings: tokio-postgres reads them, but for the options about TLS that it does not know.

use std::borrow::Cow;

use leasehold_core::{Invalid, Problem};
use percent_encoding::percent_decode_str;
use tokio_postgres::config::Config;

use crate::tls::Options;

const FORM: &str = "postgres://user:password@host:port/database?option=value with special characters percent-encoded, \
                    or host=… user=… dbname=… option=value";
const HOSTS: &str = "a connection string with at least one host, and as many ports and addresses as hosts";

/// The settings in `text`. Nothing of `text` gets into the error, since a password may stand anywhere in a bad one.
pub(super) fn parse(text: &str) -> Result<(Config, Options), Invalid> {
    let mut options = Options::default();
    let rest = match after_scheme(text) {
        Some(url) => {
            check_at_signs(url)?;
            strip_query(text, &mut options)
        }
        None => strip_pairs(text, &mut options),
    };
    let mut config = rest.parse().map_err(|_| malformed(FORM))?;
    name_addresses(&mut config);
    check_hosts(&config)?;
    Ok((config, options))
}

fn after_scheme(text: &str) -> Option<&str> {
    text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://"))
}

/// The driver takes all that stands before the first `@` for user and password. If the password holds a bare `@`,
/// `/` or `?`, parts of it would become the host's, the database's or the user's name and be shown.
fn check_at_signs(url: &str) -> Result<(), Invalid> {
    let address = url.split('?').next().unwrap_or_default();
    let authority = address.split('/').next().unwrap_or_default();
    let is_clear = match authority.matches('@').count() {
        0 => !url.contains('@'),
        _ => address.matches('@').count() == 1,
    };
    is_clear.then_some(()).ok_or_else(|| malformed(FORM))
}

/// `url` without the parameters that `options` took.
fn strip_query(url: &str, options: &mut Options) -> String {
    let Some((address, query)) = url.split_once('?') else { return url.to_owned() };
    let is_left = |parameter: &&str| match parameter.split_once('=') {
        Some((key, value)) => !options.take(&decode(key), &decode(value)),
        None => true,
    };
    let left: Vec<&str> = query.split('&').filter(is_left).collect();
    format!("{address}?{}", left.join("&"))
}

fn decode(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

/// `text` without the pairs that `options` took.
fn strip_pairs(mut text: &str, options: &mut Options) -> String {
    let mut left = String::new();
    while let Some((key, value, tail)) = pair(text) {
        if !options.take(key, &value) {
            left.push_str(&text[..text.len() - tail.len()]);
        }
        text = tail;
    }
    left + text
}

/// The first `key=value` of `text`, and what follows it.
fn pair(text: &str) -> Option<(&str, String, &str)> {
    let (key, tail) = text.split_once('=')?;
    let (value, tail) = value(tail.trim_start())?;
    Some((key.trim(), value, tail))
}

/// The value at the head of `text`, without its quotes and escapes, and what follows it.
fn value(text: &str) -> Option<(String, &str)> {
    let (is_quoted, text) = text.strip_prefix('\'').map_or((false, text), |text| (true, text));
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\'' if is_quoted => return Some((value, &text[at + 1..])),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ if character.is_whitespace() && !is_quoted => return Some((value, &text[at..])),
            _ => value.push(character),
        }
    }
    (!is_quoted).then_some((value, ""))
}

/// The driver needs a name for TLS: an address without one is its own.
fn name_addresses(config: &mut Config) {
    if config.get_hosts().is_empty() {
        for address in config.get_hostaddrs().to_vec() {
            config.host(address.to_string());
        }
    }
}

fn check_hosts(config: &Config) -> Result<(), Invalid> {
    let (hosts, ports) = (config.get_hosts().len(), config.get_ports().len());
    let addresses = config.get_hostaddrs().len();
    let is_consistent = hosts > 0 && (ports <= 1 || ports == hosts) && (addresses == 0 || addresses == hosts);
    is_consistent.then_some(()).ok_or_else(|| malformed(HOSTS))
}

fn malformed(expected: &'static str) -> Invalid {
    Invalid::new("url", Problem::Malformed { expected })
}
