//! TLS towards the proxies of sidecars.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, InvalidMessage, SignatureScheme};

/// Accepts any certificate.
///
/// A proxy makes its certificate itself when it starts, and no authority vouches for the IP of a
/// pod. TLS keeps other workloads on the network from reading tokens and tasks; what keeps a false
/// pod from using a token is its audience.
#[allow(clippy::missing_panics_doc, reason = "the provider supports the default versions")]
pub fn any_certificate() -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth()
}

/// Whether a handshake failed because the server does not speak TLS.
pub(super) fn is_plain(error: &(dyn std::error::Error + 'static)) -> bool {
    let tls = error.downcast_ref::<Error>();
    if matches!(tls, Some(Error::InvalidMessage(InvalidMessage::InvalidContentType))) {
        return true;
    }
    // The source of an I/O error is not what it wraps, but the source of that.
    match error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref()) {
        Some(inner) => is_plain(inner),
        None => error.source().is_some_and(is_plain),
    }
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
