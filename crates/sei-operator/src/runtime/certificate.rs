//! The certificate of the metrics server: from files that are read again when they are replaced, or
//! self-signed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// How long files are used before they are read again. A kubelet replaces them within about a minute.
const REREAD: Duration = Duration::from_secs(60);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} contains no {expected} in PEM", path.display())]
    Pem { path: PathBuf, expected: &'static str, source: pem::Error },
    #[error("{} and {} are no certificate with its key", chain.display(), key.display())]
    Unusable { chain: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("failed to create a certificate")]
    Create(#[source] rustls::Error),
}

/// A certificate with its key.
pub struct Certificate {
    /// Certificate and key; `None` if it is self-signed.
    files: Option<(PathBuf, PathBuf)>,
    /// What was read last, and when.
    acceptor: Mutex<(Instant, TlsAcceptor)>,
}

impl Certificate {
    /// Reads the files, so that a wrong one is reported at the start.
    pub fn open(chain: PathBuf, key: PathBuf) -> Result<Self, Error> {
        let acceptor = Mutex::new((Instant::now(), read(&chain, &key)?));
        Ok(Self { files: Some((chain, key)), acceptor })
    }

    /// For one process: no caller can verify it, but those who do not verify read encrypted metrics.
    pub fn self_signed() -> Result<Self, Error> {
        let (certificate, key) = create_self_signed().map_err(Error::Create)?;
        let acceptor = acceptor_of(vec![certificate], key).map_err(Error::Create)?;
        Ok(Self { files: None, acceptor: Mutex::new((Instant::now(), acceptor)) })
    }

    /// Files that cannot be used are reported, and the earlier ones stay in use.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut acceptor = self.acceptor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((chain, key)) = &self.files
            && acceptor.0.elapsed() >= REREAD
        {
            acceptor.0 = Instant::now();
            match read(chain, key) {
                Ok(read) => acceptor.1 = read,
                Err(error) => {
                    let error = sei_exec::call::chain(&error);
                    tracing::warn!(error, "the earlier certificate of the metrics stays in use");
                }
            }
        }
        acceptor.1.clone()
    }
}

fn read(chain_file: &Path, key_file: &Path) -> Result<TlsAcceptor, Error> {
    let content = |path: &Path| {
        std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
    };
    let no_pem =
        |path: &Path, expected, source| Error::Pem { path: path.to_owned(), expected, source };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&content(chain_file)?)
        .collect::<Result<_, _>>()
        .and_then(
            |chain: Vec<_>| {
                if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) }
            },
        )
        .map_err(|source| no_pem(chain_file, "certificate", source))?;
    let key = PrivateKeyDer::from_pem_slice(&content(key_file)?)
        .map_err(|source| no_pem(key_file, "private key", source))?;
    acceptor_of(chain, key).map_err(|source| {
        let (chain, key) = (chain_file.to_owned(), key_file.to_owned());
        Error::Unusable { chain, key, source }
    })
}

/// Fails if the key is not that of the certificate.
fn acceptor_of(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<TlsAcceptor, rustls::Error> {
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

// Types of values in DER.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const UTF8_STRING: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;

// Object identifiers, with their type and length.
const ECDSA_WITH_SHA256: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02";
const EC_PUBLIC_KEY: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01";
const P256: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
const COMMON_NAME: &[u8] = b"\x06\x03\x55\x04\x03";

/// A new key with its X.509 certificate (RFC 5280), which does not expire: it ends with the process.
fn create_self_signed() -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), rustls::Error>
{
    let failed = |_| rustls::Error::General("the system has no random numbers".to_owned());
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(failed)?;
    let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random)
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    // It is positive and has no leading zero. Clients keep issuers and serial numbers apart.
    let mut serial: [u8; 16] = ring::rand::generate(&random).map_err(failed)?.expose();
    serial[0] = serial[0] & 0x7f | 0x40;

    let signed_by = der(SEQUENCE, &[ECDSA_WITH_SHA256]);
    let common_name = der(SEQUENCE, &[COMMON_NAME, &der(UTF8_STRING, &[b"sei-operator"])]);
    let name = der(SEQUENCE, &[&der(SET, &[&common_name])]);
    let (begin, end) =
        (der(UTC_TIME, &[b"250101000000Z"]), der(GENERALIZED_TIME, &[b"99991231235959Z"]));
    let public_key = der(
        SEQUENCE,
        &[
            &der(SEQUENCE, &[EC_PUBLIC_KEY, P256]),
            &der(BIT_STRING, &[&[0], key.public_key().as_ref()]),
        ],
    );
    let to_be_signed = der(
        SEQUENCE,
        &[
            &der(VERSION, &[&der(INTEGER, &[&[2]])]),
            &der(INTEGER, &[&serial]),
            &signed_by,
            &name,
            &der(SEQUENCE, &[&begin, &end]),
            &name,
            &public_key,
        ],
    );
    let signature = key.sign(&random, &to_be_signed).map_err(failed)?;
    let signature = der(BIT_STRING, &[&[0], signature.as_ref()]);
    let certificate = der(SEQUENCE, &[&to_be_signed, &signed_by, &signature]);
    let key = PrivatePkcs8KeyDer::from(pkcs8.as_ref().to_vec());
    Ok((CertificateDer::from(certificate), key.into()))
}

/// A value in DER. Its content is shorter than 64 KiB.
fn der(kind: u8, content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let [.., high, low] = content.len().to_be_bytes();
    let mut value = match (high, low) {
        (0, 0..0x80) => vec![kind, low],
        (0, _) => vec![kind, 0x81, low],
        _ => vec![kind, 0x82, high, low],
    };
    value.extend(content);
    value
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sei_exec::sidecar::any_certificate;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::*;

    /// The certificate that a caller is shown, after data was sent both ways.
    async fn shown(certificate: &Certificate) -> Vec<u8> {
        let (near, far) = duplex(64 * 1024);
        let acceptor = certificate.acceptor();
        let echo = async move {
            let mut stream = acceptor.accept(far).await.unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).await.unwrap();
            stream.write_all(&byte).await.unwrap();
            stream.flush().await.unwrap();
        };
        let call = async move {
            let name = ServerName::try_from("localhost").unwrap();
            let connector = TlsConnector::from(Arc::new(any_certificate()));
            let mut stream = connector.connect(name, near).await.unwrap();
            stream.write_all(b"x").await.unwrap();
            stream.flush().await.unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).await.unwrap();
            assert_eq!(&byte, b"x");
            stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
        };
        futures::future::join(echo, call).await.1
    }

    /// A new certificate with its key, as PEM.
    fn pair() -> (String, String) {
        let (certificate, key) = create_self_signed().unwrap();
        let text = |tag: &str, der: &[u8]| ::pem::encode(&::pem::Pem::new(tag, der));
        (text("CERTIFICATE", &certificate), text("PRIVATE KEY", key.secret_der()))
    }

    struct Files {
        folder: tempfile::TempDir,
    }

    impl Files {
        fn with((certificate, key): &(String, String)) -> Self {
            let files = Self { folder: tempfile::tempdir().unwrap() };
            files.write("tls.crt", certificate);
            files.write("tls.key", key);
            files
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).unwrap();
        }

        fn open(&self) -> Result<Certificate, Error> {
            Certificate::open(self.path("tls.crt"), self.path("tls.key"))
        }

        /// The error of these files, without the name of their folder.
        fn error(&self) -> String {
            let error = self.open().err().expect("an error");
            sei_exec::call::chain(&error).replace(&format!("{}/", self.folder.path().display()), "")
        }
    }

    fn der_of(text: &str) -> Vec<u8> {
        ::pem::parse(text).unwrap().into_contents()
    }

    #[tokio::test]
    async fn a_self_signed_certificate_serves_callers_that_do_not_verify_it() {
        let certificate = Certificate::self_signed().unwrap();
        let first = shown(&certificate).await;
        assert_eq!(shown(&certificate).await, first, "it stays for the life of the process");
        let second = Certificate::self_signed().unwrap();
        assert_ne!(shown(&second).await, first, "each process has its own key");
    }

    #[tokio::test(start_paused = true)]
    async fn replaced_files_are_used_within_a_minute() {
        let (first, second) = (pair(), pair());
        let files = Files::with(&first);
        let certificate = files.open().unwrap();
        assert_eq!(shown(&certificate).await, der_of(&first.0));
        files.write("tls.crt", &second.0);
        files.write("tls.key", &second.1);
        assert_eq!(
            shown(&certificate).await,
            der_of(&first.0),
            "files are not read for each caller"
        );
        tokio::time::advance(REREAD).await;
        assert_eq!(shown(&certificate).await, der_of(&second.0));
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_cannot_be_used_leave_the_earlier_certificate_in_use() {
        let (first, second) = (pair(), pair());
        let files = Files::with(&first);
        let certificate = files.open().unwrap();
        // The key of the new certificate is not there yet.
        files.write("tls.crt", &second.0);
        tokio::time::advance(REREAD).await;
        assert_eq!(shown(&certificate).await, der_of(&first.0));
        fs::remove_file(files.path("tls.key")).unwrap();
        tokio::time::advance(REREAD).await;
        assert_eq!(shown(&certificate).await, der_of(&first.0));
        files.write("tls.key", &second.1);
        tokio::time::advance(REREAD).await;
        assert_eq!(shown(&certificate).await, der_of(&second.0));
    }

    #[test]
    fn the_error_of_a_bad_file_names_it() {
        let (first, second) = (pair(), pair());
        let files = Files::with(&first);
        fs::remove_file(files.path("tls.key")).unwrap();
        assert!(
            files.error().starts_with("failed to read tls.key: No such file"),
            "{}",
            files.error()
        );
        files.write("tls.key", "no key");
        assert!(
            files.error().starts_with("tls.key contains no private key in PEM"),
            "{}",
            files.error()
        );
        files.write("tls.key", &first.1);
        // The two files are interchanged.
        files.write("tls.crt", &first.1);
        let error = files.error();
        assert!(error.starts_with("tls.crt contains no certificate in PEM"), "{error}");
        files.write("tls.crt", &second.0);
        let error = files.error();
        assert!(
            error.starts_with("tls.crt and tls.key are no certificate with its key: "),
            "{error}"
        );
        files.write("tls.crt", &first.0);
        assert!(files.open().is_ok());
    }
}
