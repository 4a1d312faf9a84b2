//! Attacks on files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::fd::FromRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};

use crate::WorksIn::{Node, Pod};
use crate::{Attack, Target, attack, call};

pub const ATTACKS: &[Attack] = &[
    attack("read-outside", Pod, "read a file that is not granted", read_outside),
    attack("write-by-dotdot", Pod, "write outside the workspace through `..`", write_by_dotdot),
    attack("write-by-symlink", Pod, "write outside the workspace through a symbolic link", write_by_symlink),
    attack("link-outside", Node, "make a hard link of a foreign file in the workspace, and read it", link_outside),
    attack("rename-outside", Node, "move a folder of the workspace outside", rename_outside),
    attack("truncate-outside", Pod, "truncate a foreign file", truncate_outside),
    attack("remove-outside", Pod, "remove a foreign file", remove_outside),
    attack("reopen-path", Pod, "open a foreign file as a path alone, and open it again through /proc", reopen_path),
    attack("read-inherited", Node, "read a descriptor that the parent left open", read_inherited),
    attack("make-device", Node, "make the device of the memory in the workspace", make_device),
    attack("dump-core", Pod, "leave a copy of its memory on the disk", dump_core),
];

fn read_outside(target: &Target) -> io::Result<()> {
    fs::read(target.outside.join("secret")).map(drop)
}

fn write_by_dotdot(target: &Target) -> io::Result<()> {
    let name = target.outside.file_name().unwrap_or_default();
    File::create(target.inside.join("..").join(name).join("dotdot"))?.write_all(b"x")
}

fn write_by_symlink(target: &Target) -> io::Result<()> {
    let link = target.inside.join(format!("link-{}", std::process::id()));
    symlink(&target.outside, &link)?;
    File::create(link.join("symlink"))?.write_all(b"x")
}

fn link_outside(target: &Target) -> io::Result<()> {
    let link = target.inside.join(format!("hard-{}", std::process::id()));
    fs::hard_link(target.outside.join("secret"), &link)?;
    fs::read(link).map(drop)
}

fn rename_outside(target: &Target) -> io::Result<()> {
    let folder = target.inside.join(format!("folder-{}", std::process::id()));
    fs::create_dir(&folder)?;
    fs::rename(folder, target.outside.join(format!("moved-{}", std::process::id())))
}

fn truncate_outside(target: &Target) -> io::Result<()> {
    let path = target.outside.join("long");
    let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes())?;
    call!(libc::SYS_truncate, path.as_ptr(), 0_i64).map(drop)
}

fn remove_outside(target: &Target) -> io::Result<()> {
    fs::remove_file(target.outside.join("remove"))
}

fn reopen_path(target: &Target) -> io::Result<()> {
    let path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(target.outside.join("secret"))?;
    fs::read(format!("/proc/self/fd/{}", path.as_raw_fd())).map(drop)
}

fn read_inherited(target: &Target) -> io::Result<()> {
    let copy = call!(libc::SYS_fcntl, target.descriptor, libc::F_DUPFD, 200)?;
    // SAFETY: the copy belongs to nobody else.
    let mut file = unsafe { File::from_raw_fd(i32::try_from(copy).unwrap_or(-1)) };
    file.read(&mut [0; 1]).map(drop)
}

fn make_device(target: &Target) -> io::Result<()> {
    let path = target.inside.join(format!("mem-{}", std::process::id()));
    let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes())?;
    call!(libc::SYS_mknodat, libc::AT_FDCWD, path.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(1, 1)).map(drop)
}

fn dump_core(_: &Target) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel reads one `rlimit`.
    crate::check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) }.into()).map(drop)
}
