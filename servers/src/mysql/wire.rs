//! As much of the protocol of MySQL as it takes to run a statement and read one value, by a user without a password.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A server that is silent for so long is not there.
const SILENCE: Duration = Duration::from_secs(30);

/// `CLIENT_LONG_PASSWORD | CONNECT_WITH_DB | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH`.
const CAPABILITIES: u32 = 0x1 | 0x8 | 0x200 | 0x8000 | 0x8_0000;
const PACKET: u32 = 1 << 24;
const UTF8MB4: u8 = 45;
const QUERY: u8 = 3;

/// Runs `sql` on a new connection: the first column of the first row, if there is one that is not null.
pub(super) fn query(port: u16, user: &str, database: &str, sql: &str) -> io::Result<Option<String>> {
    let mut session = Session::open(port)?;
    session.log_in(user, database)?;
    session.number = 0;
    session.send(&[&[QUERY], sql.as_bytes()].concat())?;
    session.value()
}

struct Session {
    stream: TcpStream,
    /// That of the next packet, either way.
    number: u8,
}

impl Session {
    fn open(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(Self { stream, number: 0 })
    }

    fn log_in(&mut self, user: &str, database: &str) -> io::Result<()> {
        self.receive()?;
        let mut login = CAPABILITIES.to_le_bytes().to_vec();
        login.extend(PACKET.to_le_bytes());
        login.push(UTF8MB4);
        login.extend([0; 23]);
        login.extend(user.as_bytes());
        login.extend([0, 0]); // the end of the name, and no password
        login.extend(database.as_bytes());
        login.push(0);
        login.extend(b"mysql_native_password\0");
        self.send(&login)?;
        loop {
            match self.receive()?.first() {
                Some(0x00) => return Ok(()),
                // Another way to have no password.
                Some(0xfe) => self.send(&[])?,
                Some(0x01) => {}
                _ => return Err(io::Error::other("an answer that nobody expected")),
            }
        }
    }

    /// The first value of an answer.
    fn value(&mut self) -> io::Result<Option<String>> {
        if self.receive()?.first() == Some(&0) {
            return Ok(None);
        }
        while !is_end(&self.receive()?) {}
        let row = self.receive()?;
        if is_end(&row) {
            return Ok(None);
        }
        Ok(text(&row).map(|text| String::from_utf8_lossy(text).into_owned()))
    }

    fn send(&mut self, body: &[u8]) -> io::Result<()> {
        let mut packet = (body.len() as u32).to_le_bytes();
        packet[3] = self.number;
        self.number = self.number.wrapping_add(1);
        self.stream.write_all(&[&packet, body].concat())
    }

    /// The next packet; that of an error as an error.
    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        self.number = head[3].wrapping_add(1);
        let mut body = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
        self.stream.read_exact(&mut body)?;
        if body.first() == Some(&0xff) {
            return Err(io::Error::other(String::from_utf8_lossy(&body[1..]).into_owned()));
        }
        Ok(body)
    }
}

fn is_end(packet: &[u8]) -> bool {
    packet.first() == Some(&0xfe) && packet.len() < 9
}

/// The first text of a row; `None` if it is null.
fn text(row: &[u8]) -> Option<&[u8]> {
    let (length, rest) = match row {
        [0xfb, ..] | [] => return None,
        [0xfc, a, b, rest @ ..] => (u32::from_le_bytes([*a, *b, 0, 0]), rest),
        [0xfd, a, b, c, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, 0]), rest),
        [length, rest @ ..] => (u32::from(*length), rest),
    };
    rest.get(..length as usize)
}

#[cfg(test)]
mod tests {
    use super::{is_end, text};

    #[test]
    fn values_have_their_length_before_them() {
        assert_eq!(text(b"\x03abcd"), Some(b"abc".as_slice()));
        assert_eq!(text(b"\xfc\x02\x00abc"), Some(b"ab".as_slice()));
        assert_eq!(text(b"\xfb"), None);
        assert_eq!(text(b"\x03a"), None);
    }

    #[test]
    fn an_end_is_told_from_a_long_value() {
        assert!(is_end(&[0xfe, 0, 0, 2, 0]));
        assert!(!is_end(&[0xfe, 0, 0, 2, 0, 0, 0, 0, 0]));
    }
}
