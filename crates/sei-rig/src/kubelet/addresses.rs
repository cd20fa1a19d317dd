//! Loopback addresses for pods, from a pool shared by all processes of the machine.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// The networks `127.x.0.0/16` of the pool. Low numbers stay free for manual use and other programs.
const NETWORKS: std::ops::Range<u8> = 64..250;

/// Port of the sidecars.
pub(crate) const PORT: u16 = 8443;

/// A network that only this process uses, and its free addresses.
#[derive(Debug)]
pub struct Addresses {
    network: u8,
    /// The address released last is reused last: a client with an old address must not reach the
    /// next pod.
    free: Mutex<VecDeque<Ipv4Addr>>,
    /// The kernel releases the lock when the process ends in any way.
    _lock: File,
}

impl Addresses {
    /// Locks a network that no other process of the machine has.
    pub fn lock() -> io::Result<Self> {
        let folder = std::env::temp_dir().join("sei-rig-addresses");
        std::fs::create_dir_all(&folder)?;
        let count = u32::from(NETWORKS.end - NETWORKS.start);
        // Each process starts at another network, so that few have to try twice.
        let begin = std::process::id() % count;
        for step in 0..count {
            let offset = u8::try_from((begin + step) % count).unwrap_or_default();
            let network = NETWORKS.start + offset;
            let Ok(file) = File::create(folder.join(network.to_string())) else { continue };
            if file.try_lock().is_ok() {
                return Ok(Self { network, free: Mutex::new(all_of(network)), _lock: file });
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "every network of 127.0.0.0/8 is in use",
        ))
    }

    /// Address of the Kubernetes node.
    pub(super) fn host(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, self.network, 0, 1)
    }

    /// An address on which a sidecar can listen; none if all are in use.
    pub(crate) fn take(&self) -> Option<Ipv4Addr> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..free.len() {
            let address = free.pop_front()?;
            if TcpListener::bind((address, PORT)).is_ok() {
                return Some(address);
            }
            free.push_back(address);
        }
        None
    }

    pub(super) fn release(&self, address: Ipv4Addr) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push_back(address);
    }
}

/// All addresses but the first one, which is the Kubernetes node's.
fn all_of(network: u8) -> VecDeque<Ipv4Addr> {
    let pairs = (0..=255).flat_map(|third| (1..=254).map(move |fourth| (third, fourth)));
    pairs.skip(1).map(|(third, fourth)| Ipv4Addr::new(127, network, third, fourth)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pools_share_no_address_and_a_released_address_is_reused_last() {
        let (left, right) = (Addresses::lock().unwrap(), Addresses::lock().unwrap());
        assert_ne!(left.network, right.network);
        let first = left.take().unwrap();
        assert_eq!(first.octets()[..2], [127, left.network]);
        assert_ne!(first, left.host());
        left.release(first);
        assert_ne!(left.take(), Some(first));
    }
}
