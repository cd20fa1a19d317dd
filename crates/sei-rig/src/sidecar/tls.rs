//! TLS of a proxy, with a certificate that it makes itself.

use std::io;
use std::sync::{Arc, OnceLock};

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::server::TlsStream;

/// Accepts a connection. All proxies share one certificate: no client verifies it.
pub(super) async fn accept(stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    static CONFIG: OnceLock<Arc<ServerConfig>> = OnceLock::new();
    TlsAcceptor::from(CONFIG.get_or_init(config).clone()).accept(stream).await
}

fn config() -> Arc<ServerConfig> {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key is generated");
    let pair =
        EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).expect("its own key is read");
    let content = content(pair.public_key().as_ref());
    let signature = pair.sign(&random, &content).expect("a signature is made");
    let certificate = sequence(&[&content, ECDSA_WITH_SHA256, &bits(signature.as_ref())]);
    let certificate = CertificateDer::from(certificate);
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.as_ref().to_vec()));
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("the key belongs to the certificate");
    Arc::new(config)
}

/// The signed part of a certificate (RFC 5280): version 3, serial number 1, no names, no extensions.
fn content(public_key: &[u8]) -> Vec<u8> {
    let time = |text: &str| element(0x17, text.as_bytes());
    let validity = sequence(&[&time("200101000000Z"), &time("490101000000Z")]);
    let version = element(0xa0, &element(0x02, &[2]));
    let (serial, no_name) = (element(0x02, &[1]), sequence(&[]));
    let key = sequence(&[P256, &bits(public_key)]);
    sequence(&[&version, &serial, ECDSA_WITH_SHA256, &no_name, &validity, &no_name, &key])
}

/// The algorithm of the signature, in DER.
const ECDSA_WITH_SHA256: &[u8] =
    &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

/// The algorithm of the key, in DER.
const P256: &[u8] = &[
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48,
    0xce, 0x3d, 0x03, 0x01, 0x07,
];

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(0x30, &parts.concat())
}

fn bits(bytes: &[u8]) -> Vec<u8> {
    element(0x03, &[&[0], bytes].concat())
}

/// An element of DER.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).expect("a short element").to_be_bytes();
    let header: &[u8] = match (high, low) {
        (0, 0..=127) => &[tag, low],
        (0, _) => &[tag, 0x81, low],
        _ => &[tag, 0x82, high, low],
    };
    [header, content].concat()
}
