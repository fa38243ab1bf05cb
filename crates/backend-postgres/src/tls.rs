//! TLS with libpq's meaning of `sslmode`, on rustls.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{Invalid, Problem, Result, StoreError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::Socket;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

const MODES: &str = "disable, allow, prefer, require, verify-ca or verify-full";
const SYSTEM: &str = "system";

/// The options about TLS in a connection string, as written.
#[derive(Default)]
pub(crate) struct Options {
    sslmode: Option<String>,
    sslrootcert: Option<String>,
    sslcert: Option<String>,
    sslkey: Option<String>,
}

/// How much is asked of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No TLS.
    Disable,
    /// TLS if it can be had, with anybody.
    Prefer,
    /// TLS, with anybody.
    Require,
    /// TLS, with somebody whom a trusted authority knows.
    VerifyCa,
    /// TLS, with the very host.
    VerifyFull,
}

impl Options {
    /// Takes the option if it is one of these. As with libpq, the last of several wins, and an empty one is none.
    pub(crate) fn take(&mut self, key: &str, value: &str) -> bool {
        let option = match key {
            "sslmode" => &mut self.sslmode,
            "sslrootcert" => &mut self.sslrootcert,
            "sslcert" => &mut self.sslcert,
            "sslkey" => &mut self.sslkey,
            _ => return false,
        };
        *option = Some(value.to_owned()).filter(|value| !value.is_empty());
        true
    }

    /// What `sslmode` means beside the other options.
    pub(crate) fn mode(&self) -> Result<Mode, Invalid> {
        let is_system = self.sslrootcert.as_deref() == Some(SYSTEM);
        let mode = match self.sslmode.as_deref() {
            None if is_system => Mode::VerifyFull,
            None | Some("allow" | "prefer") => Mode::Prefer,
            Some("disable") => Mode::Disable,
            Some("require") if self.sslrootcert.is_some() => Mode::VerifyCa,
            Some("require") => Mode::Require,
            Some("verify-ca") => Mode::VerifyCa,
            Some("verify-full") => Mode::VerifyFull,
            Some(_) => return Err(malformed("sslmode", MODES)),
        };
        // Anybody can get a certificate from one of the system's authorities, so the chain alone says nothing.
        if is_system && mode != Mode::VerifyFull {
            return Err(malformed("sslmode", "verify-full when sslrootcert is system"));
        }
        Ok(mode)
    }

    /// The settings for rustls. Reads the files.
    pub(crate) fn client(&self, mode: Mode) -> Result<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let verifier = self.verifier(mode, &provider)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| StoreError::backend("connect", error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        match self.identity()? {
            None => Ok(builder.with_no_client_auth()),
            Some((chain, key)) => {
                let refused = |_| malformed("sslkey", "the private key of the certificate in sslcert");
                Ok(builder.with_client_auth_cert(chain, key).map_err(refused)?)
            }
        }
    }

    fn verifier(&self, mode: Mode, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>> {
        let algorithms = provider.signature_verification_algorithms;
        Ok(match mode {
            Mode::Disable | Mode::Prefer | Mode::Require => Arc::new(Nameless { roots: None, algorithms }),
            Mode::VerifyCa => Arc::new(Nameless { roots: Some(self.roots()?), algorithms }),
            Mode::VerifyFull => {
                WebPkiServerVerifier::builder_with_provider(Arc::new(self.roots()?), Arc::clone(provider))
                    .build()
                    .map_err(|error| StoreError::backend("connect", error))?
            }
        })
    }

    fn roots(&self) -> Result<RootCertStore, Invalid> {
        match self.sslrootcert.as_deref() {
            None | Some(SYSTEM) => system_roots(),
            Some(path) => roots_in(path),
        }
    }

    fn identity(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, Invalid> {
        match (&self.sslcert, &self.sslkey) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(Invalid::new("sslkey", Problem::Empty)),
            (None, Some(_)) => Err(Invalid::new("sslcert", Problem::Empty)),
            (Some(chain), Some(key)) => Ok(Some((certificates("sslcert", chain)?, private_key(key)?))),
        }
    }
}

impl Mode {
    /// Without negotiation there is no way back to plaintext.
    pub(crate) fn check_direct(self) -> Result<(), Invalid> {
        match self {
            Self::Disable | Self::Prefer => {
                Err(malformed("sslmode", "require, verify-ca or verify-full when sslnegotiation is direct"))
            }
            Self::Require | Self::VerifyCa | Self::VerifyFull => Ok(()),
        }
    }
}

/// As it is spelt in a connection string.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        })
    }
}

fn system_roots() -> Result<RootCertStore, Invalid> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(malformed("sslrootcert", "the path of a PEM file: the system has no root certificates"));
    }
    Ok(roots)
}

fn roots_in(path: &str) -> Result<RootCertStore, Invalid> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("sslrootcert", path)? {
        roots.add(certificate).map_err(|_| not_certificates("sslrootcert"))?;
    }
    Ok(roots)
}

fn certificates(field: &'static str, path: &str) -> Result<Vec<CertificateDer<'static>>, Invalid> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(not_certificates(field)),
    }
}

fn private_key(path: &str) -> Result<PrivateKeyDer<'static>, Invalid> {
    let unread = |_| malformed("sslkey", "the path of a readable PEM file with an unencrypted private key");
    PrivateKeyDer::from_pem_file(path).map_err(unread)
}

fn not_certificates(field: &'static str) -> Invalid {
    malformed(field, "the path of a readable PEM file with certificates")
}

fn malformed(field: &'static str, expected: &'static str) -> Invalid {
    Invalid::new(field, Problem::Malformed { expected })
}

/// Asks for no name in the certificate, and for a chain only if there are roots. rustls has no such verifier, since
/// on the web it would be a mistake; here it is what `verify-ca`, `require` and `prefer` mean to everybody who
/// moves a connection string over from libpq.
///
/// Signatures are checked all the same: with channel binding it is the login that proves the server, and the proof
/// is worth something only if the server holds the key to the certificate that it showed.
#[derive(Debug)]
struct Nameless {
    roots: Option<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Nameless {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// An encrypted stream.
pub(crate) type TlsStream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// Makes TLS handshakes and remembers how the last attempt went, which the driver does not tell.
#[derive(Clone)]
pub(crate) struct Handshake {
    tls: MakeRustlsConnect,
    attempt: Arc<Mutex<Attempt>>,
}

#[derive(Default)]
struct Attempt {
    host: String,
    stage: Stage,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Stage {
    #[default]
    NotBegun,
    Begun,
    Done,
}

impl Handshake {
    pub(crate) fn new(tls: MakeRustlsConnect) -> Self {
        Self { tls, attempt: Arc::default() }
    }

    /// The name of the host that was last tried; empty for a Unix socket.
    pub(crate) fn host(&self) -> String {
        self.attempt().host.clone()
    }

    /// Whether the last attempt came to be encrypted.
    pub(crate) fn is_done(&self) -> bool {
        self.attempt().stage == Stage::Done
    }

    /// Whether the last attempt was to be encrypted but did not come to be.
    pub(crate) fn has_failed(&self) -> bool {
        self.attempt().stage == Stage::Begun
    }

    fn attempt(&self) -> MutexGuard<'_, Attempt> {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MakeTlsConnect<Socket> for Handshake {
    type Stream = TlsStream;
    type TlsConnect = Self;
    type Error = std::convert::Infallible;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self, Self::Error> {
        *self.attempt() = Attempt { host: host.to_owned(), stage: Stage::NotBegun };
        Ok(self.clone())
    }
}

impl TlsConnect<Socket> for Handshake {
    type Stream = TlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsStream>> + Send>>;

    fn connect(mut self, socket: Socket) -> Self::Future {
        self.attempt().stage = Stage::Begun;
        let host = self.host();
        let Ok(tls) = MakeTlsConnect::<Socket>::make_tls_connect(&mut self.tls, &host);
        Box::pin(async move {
            let stream = tls.connect(socket).await?;
            self.attempt().stage = Stage::Done;
            Ok(stream)
        })
    }
}
