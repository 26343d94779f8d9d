"""Keeps Ethernet frames back: a wire with a delay between a network device and a new TAP device.

usage: delay.py DEVICE TAP SECONDS SECONDS    the delay of what goes to DEVICE, and of what comes from it

Goes to the background when the TAP device is there, and ends when that is deleted. Segments of up to 64 KiB and
unfinished checksums pass as they are, as between two virtual machines.
"""

import collections
import fcntl
import os
import select
import socket
import struct
import sys
import time

ETH_P_ALL, SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 3, 263, 15, 23
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
SO_RCVBUFFORCE = 33
LONGEST = 65536 + 64


def open_device(name):
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    device.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    device.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    device.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    device.bind((name, ETH_P_ALL))
    return device.detach()


def open_tap(name):
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return tap


def forward(device, tap, to_device, from_device):
    delays = {tap: to_device, device: from_device}
    target = {tap: device, device: tap}
    waiting = {tap: collections.deque(), device: collections.deque()}  # by where it came from: when it is due, what
    while True:
        now = time.monotonic()
        for source, frames in waiting.items():
            while frames and frames[0][0] <= now:
                try:
                    os.write(target[source], frames.popleft()[1])
                except OSError:
                    pass  # the link is down or full: the frame is lost
        due = [frames[0][0] for frames in waiting.values() if frames]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        for source in select.select([device, tap], [], [], timeout)[0]:
            for _ in range(64):
                try:
                    frame = os.read(source, LONGEST)
                except BlockingIOError:
                    break
                except OSError:
                    if source == tap:
                        return  # it is deleted
                    break  # the link goes down
                waiting[source].append((time.monotonic() + delays[source], frame))


def main():
    device_name, tap_name, to_device, from_device = sys.argv[1:]
    device = open_device(device_name)
    try:
        tap = open_tap(tap_name)
    except OSError as error:
        print(f"no TAP device on this machine: {error}", file=sys.stderr)
        sys.exit(77)
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    forward(device, tap, float(to_device), float(from_device))


if __name__ == "__main__":
    main()
