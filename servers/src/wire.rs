//! As much of the protocol of Postgres as it takes to ask one question and read a word.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// The user of every server, who may do everything.
pub(crate) const USER: &str = "leasehold";

const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(60);
/// Version 3.0 of the protocol.
const PROTOCOL: u32 = 3 << 16;
/// Nothing that we ask for is longer.
const LONGEST: usize = 1 << 24;

/// Runs `sql` in `database` of the server at `port`: the first column of the first row, if there is one that is not null.
pub(crate) fn query(port: u16, database: &str, sql: &str) -> io::Result<Option<String>> {
    let mut stream = connect(port)?;
    stream.write_all(&startup(database))?;
    answer(&mut stream)?;
    stream.write_all(&message(b'Q', &text(sql)))?;
    answer(&mut stream)
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), CONNECT)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads up to the point where the server waits for the next question.
fn answer(stream: &mut impl Read) -> io::Result<Option<String>> {
    let mut rows = Vec::new();
    let mut refused = None;
    loop {
        let (kind, body) = read_message(stream)?;
        match kind {
            b'Z' => break,
            b'R' if body != [0; 4] => return Err(io::Error::other("the server asks for a password")),
            b'D' => rows.push(first_column(&body)),
            b'E' => {
                let error = said(&body);
                // After such an error nothing more is said.
                if error.starts_with("FATAL") {
                    return Err(io::Error::other(error));
                }
                refused = Some(io::Error::other(error));
            }
            _ => {}
        }
    }
    refused.map_or_else(|| Ok(rows.into_iter().next().flatten()), Err)
}

fn read_message(stream: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    // The length counts itself.
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(LONGEST).saturating_sub(4);
    if length >= LONGEST {
        return Err(io::Error::other("this is not the protocol of Postgres"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((kind, body))
}

/// A row is the number of its columns, and then each with its length; the length of null is -1.
fn first_column(row: &[u8]) -> Option<String> {
    let (length, rest) = row.get(2..)?.split_first_chunk::<4>()?;
    let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
    Some(String::from_utf8_lossy(rest.get(..length)?).into_owned())
}

/// An error is a list of fields, each a letter and a text: `S` is how bad it is, `M` what it is.
fn said(fields: &[u8]) -> String {
    let field = |letter| {
        let mut fields = fields.split(|byte| *byte == 0);
        let found = fields.find_map(|field| field.strip_prefix(&[letter]));
        String::from_utf8_lossy(found.unwrap_or_default()).into_owned()
    };
    format!("{}: {}", field(b'S'), field(b'M'))
}

fn startup(database: &str) -> Vec<u8> {
    let mut body = PROTOCOL.to_be_bytes().to_vec();
    for word in ["user", USER, "database", database] {
        body.extend(text(word));
    }
    body.push(0);
    with_length(&body)
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind];
    message.extend(with_length(body));
    message
}

fn with_length(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    length.to_be_bytes().iter().chain(body).copied().collect()
}

fn text(text: &str) -> Vec<u8> {
    text.bytes().chain([0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(column: Option<&str>) -> Vec<u8> {
        let mut body = vec![0, 1];
        body.extend(column.map_or(-1, |column| i32::try_from(column.len()).unwrap()).to_be_bytes());
        body.extend(column.unwrap_or_default().bytes());
        message(b'D', &body)
    }

    fn read(messages: &[Vec<u8>]) -> io::Result<Option<String>> {
        answer(&mut messages.concat().as_slice())
    }

    #[test]
    fn the_first_column_of_the_first_row_is_the_answer() {
        let ready = message(b'Z', b"I");
        assert_eq!(read(&[row(Some("a")), row(Some("b")), ready.clone()]).unwrap().as_deref(), Some("a"));
        assert_eq!(read(&[row(None), ready.clone()]).unwrap(), None);
        assert_eq!(read(&[ready]).unwrap(), None);
    }

    #[test]
    fn an_error_is_told_whether_or_not_more_follows() {
        let ready = message(b'Z', b"I");
        let error = |severity| message(b'E', &[text(severity), text("Mno such table"), vec![0]].concat());
        let told = |messages: &[_]| read(messages).unwrap_err().to_string();
        assert_eq!(told(&[error("SERROR"), ready]), "ERROR: no such table");
        assert_eq!(told(&[error("SFATAL")]), "FATAL: no such table");
    }

    #[test]
    fn what_is_not_the_protocol_is_refused() {
        assert!(read(&[b"HTTP/1.1 400 Bad Request".to_vec()]).is_err());
        assert!(read(&[message(b'R', &[0, 0, 0, 5])]).is_err());
        assert!(read(&[]).is_err());
    }
}
