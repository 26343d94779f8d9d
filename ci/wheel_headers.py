"""Unpacks the headers of packages from PyPI, without a download of the libraries beside them: 2 MB of 750 for NCCL and cuBLAS.

usage: wheel_headers.py FOLDER PACKAGE...
"""
import io
import json
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


report = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-",
                         *sys.argv[2:]], check=True, stdout=subprocess.PIPE)
for package in json.loads(report.stdout)["install"]:
    with zipfile.ZipFile(io.BufferedReader(Remote(package["download_info"]["url"]), 1 << 20)) as wheel:
        wheel.extractall(sys.argv[1], [name for name in wheel.namelist() if "/include/" in name])
