//! Attacks by sockets.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};

use crate::WorksIn::{Node, Pod};
use crate::{Attack, Target, attack, call};

pub const ATTACKS: &[Attack] = &[
    attack("udp", Pod, "send datagrams (with loopback: LinkOnly)", |_| socket(libc::AF_INET, libc::SOCK_DGRAM, 0)),
    attack("udp6", Pod, "send datagrams by IPv6 (with loopback: LinkOnly)", |_| {
        socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)
    }),
    attack("raw", Node, "send raw packets", |_| socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW)),
    attack("ping", Pod, "send echo requests", ping),
    attack("packet", Node, "read the packets of the pod", |_| socket(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    attack("mptcp", Pod, "connect by several paths, which Landlock does not see", |_| {
        socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP)
    }),
    attack("sctp", Pod, "connect by SCTP", |_| socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP)),
    attack("fast-open", Pod, "send data with a connection request, which Landlock does not see", fast_open),
    attack("crypto", Node, "use the kernel's ciphers (AF_ALG)", |_| socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    attack("vsock", Node, "reach the host of a virtual machine", |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    attack("xfrm", Pod, "change the kernel's tables of IPsec", |_| socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_XFRM)),
    attack("netfilter", Pod, "change the kernel's packet filters", |_| socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER)),
    attack("rxrpc", Pod, "use sockets of AFS", |_| socket(libc::AF_RXRPC, libc::SOCK_DGRAM, libc::AF_INET)),
    attack("tipc", Pod, "use sockets of TIPC", |_| socket(libc::AF_TIPC, libc::SOCK_SEQPACKET, 0)),
    attack("bluetooth", Pod, "use sockets of Bluetooth", |_| socket(libc::AF_BLUETOOTH, libc::SOCK_RAW, 1)),
    attack("abstract-socket", Pod, "connect to an abstract unix socket of the supervisor", abstract_socket),
    attack("connect-loopback", Pod, "connect to another port of loopback (with loopback: LinkOnly)", connect_loopback),
    attack("listen-loopback", Pod, "listen on a port (with loopback: LinkOnly)", listen_loopback),
];

/// A socket that the kernel may lack: then the attack is answered as if it had been made.
fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<()> {
    match call!(libc::SYS_socket, family, kind, protocol) {
        Err(error)
            if [libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT, libc::ESOCKTNOSUPPORT, libc::ENOPROTOOPT]
                .contains(&error.raw_os_error().unwrap_or(0)) =>
        {
            Ok(())
        }
        other => other.map(drop),
    }
}

fn ping(_: &Target) -> io::Result<()> {
    match call!(libc::SYS_socket, libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP) {
        // A node's setting names the groups that may.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(()),
        other => other.map(drop),
    }
}

fn fast_open(target: &Target) -> io::Result<()> {
    let socket = call!(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0)?;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: target.port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    };
    let sent = call!(libc::SYS_sendto, socket, b"x".as_ptr(), 1, libc::MSG_FASTOPEN, &raw const address, size_of_val(&address));
    match sent {
        // The kernel looked at it.
        Err(error) if [libc::EOPNOTSUPP, libc::EINPROGRESS, libc::ECONNREFUSED].contains(&error.raw_os_error().unwrap_or(0)) => Ok(()),
        other => other.map(drop),
    }
}

fn abstract_socket(target: &Target) -> io::Result<()> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(&target.socket)?).map(drop)
}

fn connect_loopback(target: &Target) -> io::Result<()> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, target.port)).map(drop)
}

fn listen_loopback(_: &Target) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map(drop)
}
