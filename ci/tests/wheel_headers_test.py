"""A wheel of which ci/wheel_headers.py reads a part gives its headers only if its list of files is pinned, and they are on the list."""
import base64
import hashlib
import io
import pathlib
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
import wheel_headers  # noqa: E402


def wheel(header, listed):
    digest = base64.urlsafe_b64encode(hashlib.sha256(listed).digest()).decode().rstrip("=")
    packed = zipfile.ZipFile(io.BytesIO(), "w")
    packed.writestr("a/include/a.h", header)
    packed.writestr("a/lib/a.so", b"large")
    packed.writestr("a-1.dist-info/RECORD", f"a/include/a.h,sha256={digest},5\na/lib/a.so,,\n")
    return packed


def said(packed, pinned):
    try:
        return list(wheel_headers.headers(packed, "a==1", pinned))
    except SystemExit as error:
        return str(error)


right = wheel(b"right", b"right")
pinned = [hashlib.sha256(wheel_headers.record_of(right)).hexdigest()]
assert said(right, pinned) == [("a/include/a.h", b"right")]
assert "a/include/a.h is not the file" in said(wheel(b"wrong", b"right"), pinned)
assert "which the lock does not have" in said(wheel(b"wrong", b"wrong"), pinned)
print("RIGHT")
