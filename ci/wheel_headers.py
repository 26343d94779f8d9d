"""Unpacks the headers of packages from PyPI, without a download of the libraries beside them: 5 MB of 810 for NCCL, cuBLAS, cuRAND and NVTX.

usage: wheel_headers.py FOLDER LOCK               LOCK: lines of NAME==VERSION and the SHA-256 of the list of files in one of its wheels
       wheel_headers.py --lock PACKAGE [OPTION...]      writes such a line for PACKAGE, for the computers that pip's OPTIONs name
"""
import base64
import hashlib
import io
import json
import pathlib
import subprocess
import sys
import urllib.request
import zipfile


class Remote(io.RawIOBase):
    """A file on a web server; only what is read of it is downloaded."""

    def __init__(self, url):
        self.url, self.position = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self.size = int(answer.headers["Content-Length"])

    def seekable(self):
        return True

    def readable(self):
        return True

    def seek(self, offset, whence=0):
        self.position = offset + (0, self.position, self.size)[whence]
        return self.position

    def tell(self):
        return self.position

    def readinto(self, buffer):
        last = min(self.position + len(buffer), self.size) - 1
        if last < self.position:
            return 0
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={self.position}-{last}"})
        with urllib.request.urlopen(request) as answer:
            data = answer.read(len(buffer))
        buffer[:len(data)] = data
        self.position += len(data)
        return len(data)


def open_wheel(package, *options):
    report = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps",
                             "--report", "-", package, *options], check=True, stdout=subprocess.PIPE)
    url = json.loads(report.stdout)["install"][0]["download_info"]["url"]
    return zipfile.ZipFile(io.BufferedReader(Remote(url), 1 << 20))


def record_of(wheel):
    """The wheel's list of its files, with a hash of each."""
    return wheel.read(next(name for name in wheel.namelist() if name.endswith(".dist-info/RECORD")))


def headers(wheel, package, pinned):
    """Names and contents, which are those of the list of files that has one of the pinned hashes."""
    record = record_of(wheel)
    listed = set(record.decode().splitlines()) if hashlib.sha256(record).hexdigest() in pinned else ()
    for name in wheel.namelist():
        if "/include/" in name and not name.endswith("/"):
            content = wheel.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            if f"{name},sha256={digest},{len(content)}" not in listed:
                sys.exit(f"{package}: {name} or the wheel's RECORD is not the one that the lock has: somebody exchanged it, or run ci/lock")
            yield name, content


def main():
    if sys.argv[1] == "--lock":
        return print(sys.argv[2], hashlib.sha256(record_of(open_wheel(*sys.argv[2:]))).hexdigest())
    folder, lock = map(pathlib.Path, sys.argv[1:])
    lines = [line.split() for line in lock.read_text().splitlines()]
    for package in {line[0] for line in lines}:
        for name, content in headers(open_wheel(package), package, [record for of, record in lines if of == package]):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
