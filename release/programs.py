#!/usr/bin/env python3
"""Checks the programs of one platform: that each is a program of this platform, that those of Linux are static, that a program of
macOS or Windows needs only libraries of the system, that none contains a folder of this machine, and that each prints the version,
where it can be started here.

    release/programs.py VERSION PLATFORM FOLDER
"""

import os
import pathlib
import shutil
import struct
import subprocess
import sys

PROGRAMS = ["spillway", "spillway-agent", "kubectl-spillway"]
ELF_MACHINES = {"linux-amd64": 62, "linux-arm64": 183}
MACH_O_PROCESSORS = {"darwin-amd64": 0x01000007, "darwin-arm64": 0x0100000C}
ELF_INTERPRETER, ELF_NEEDED = 3, 1
MACH_O_LOAD_LIBRARY = {0xC, 0x80000018, 0x8000001F}
MACH_O_SIGNATURE = 0x1D
WINDOWS_LIBRARIES = {
    "advapi32.dll", "bcrypt.dll", "bcryptprimitives.dll", "crypt32.dll", "kernel32.dll", "msvcrt.dll", "ncrypt.dll", "ntdll.dll",
    "ole32.dll", "oleaut32.dll", "secur32.dll", "shell32.dll", "user32.dll", "userenv.dll", "ws2_32.dll",
}


class Wrong(Exception):
    """What is wrong with a program."""


def check_elf(data, platform):
    if data[:6] != b"\x7fELF\x02\x01":
        raise Wrong("it is no 64-bit program of Linux")
    machine = struct.unpack_from("<H", data, 18)[0]
    if machine != ELF_MACHINES[platform]:
        raise Wrong(f"its machine is {machine}, and not {ELF_MACHINES[platform]}")
    offset, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    kinds = [struct.unpack_from("<I", data, offset + size * index)[0] for index in range(count)]
    if ELF_INTERPRETER in kinds:
        raise Wrong("it is linked dynamically")
    return "static"


def check_mach_o(data, platform):
    if data[:4] != b"\xcf\xfa\xed\xfe":
        raise Wrong("it is no 64-bit program of macOS")
    processor, _, kind, count = struct.unpack_from("<IIII", data, 4)
    if processor != MACH_O_PROCESSORS[platform]:
        raise Wrong(f"its processor is {processor:#x}, and not {MACH_O_PROCESSORS[platform]:#x}")
    if kind != 2:
        raise Wrong(f"its kind is {kind}, and not 2 (a program)")
    offset, libraries, signed = 32, [], False
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, offset)
        if command in MACH_O_LOAD_LIBRARY:
            start = offset + struct.unpack_from("<I", data, offset + 8)[0]
            libraries.append(data[start : data.index(b"\0", start)].decode())
        signed = signed or command == MACH_O_SIGNATURE
        offset += size
    foreign = [library for library in libraries if not library.startswith(("/usr/lib/", "/System/Library/"))]
    if foreign or not libraries:
        raise Wrong(f"it needs {foreign or 'no library'}")
    # The kernel of macOS on arm64 starts no program without a signature.
    if platform == "darwin-arm64" and not signed:
        raise Wrong("it has no signature")
    return "needs " + ", ".join(library.rsplit("/", 1)[1] for library in libraries)


def check_windows(data, path):
    header = struct.unpack_from("<I", data, 60)[0]
    if data[:2] != b"MZ" or data[header : header + 4] != b"PE\0\0":
        raise Wrong("it is no program of Windows")
    if struct.unpack_from("<H", data, header + 4)[0] != 0x8664:
        raise Wrong("it is no program of x86_64")
    said = subprocess.run(["x86_64-w64-mingw32-objdump", "-p", path], check=True, capture_output=True, text=True).stdout
    libraries = {line.split(":", 1)[1].strip().lower() for line in said.splitlines() if "DLL Name:" in line}
    foreign = {library for library in libraries if library not in WINDOWS_LIBRARIES and not library.startswith("api-ms-win-")}
    if foreign or not libraries:
        raise Wrong(f"it needs {sorted(foreign) or 'no library'}")
    return "needs " + ", ".join(sorted(libraries))


def starts(platform, path):
    """The command line that starts a program of this platform here, or none."""
    emulator = {"linux-amd64": "", "linux-arm64": "qemu-aarch64-static", "windows-amd64": "wine64"}.get(platform)
    if emulator is None or (emulator and not shutil.which(emulator)):
        return None
    return [emulator, str(path)] if emulator else [str(path)]


def check(version, platform, path):
    data = path.read_bytes()
    if platform.startswith("linux-"):
        result = check_elf(data, platform)
    elif platform.startswith("darwin-"):
        result = check_mach_o(data, platform)
    else:
        result = check_windows(data, path)
    for folder in (os.getcwd(), os.environ.get("HOME", "")):
        if len(folder) > 1 and (folder + "/").encode() in data:
            raise Wrong(f"it contains the folder {folder} of this machine")
    command = starts(platform, path)
    if command is None:
        return result + "; it cannot be started here"
    words = ["version"] if path.stem == "kubectl-spillway" else ["--version"]
    environment = {**os.environ, "WINEDEBUG": "-all"}
    said = subprocess.run([*command, *words], check=False, capture_output=True, text=True, timeout=300, env=environment)
    if said.returncode != 0 or version not in said.stdout.split():
        raise Wrong(f"`{' '.join(words)}` ended with {said.returncode} and printed: {said.stdout} {said.stderr}")
    return result + f"; started{' by ' + command[0] if len(command) > 1 else ''}: {said.stdout.strip()}"


def main():
    version, platform, folder = sys.argv[1:]
    programs = PROGRAMS if platform.startswith("linux-") else ["kubectl-spillway"]
    suffix = ".exe" if platform.startswith("windows-") else ""
    failed = False
    for program in programs:
        path = pathlib.Path(folder, program + suffix)
        try:
            print(f"ok   {platform}: {program}: {check(version, platform, path)}")
        except (OSError, Wrong, ValueError, struct.error, subprocess.SubprocessError) as error:
            print(f"FAIL {platform}: {program}: {error}")
            failed = True
    sys.exit(failed)


main()
