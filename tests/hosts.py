"""Hosts that are network namespaces of this machine, and a link of them that takes time.

Root's business: `refusal` says why it cannot be done, if so. The delayed link is a pair of TUN
devices and a thread for each direction that carries the packets, because `tc netem`, which would do
the same, is missing from many kernels.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.standalone import Place

_TUN = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_LARGEST_PACKET_BYTES = 65536


def refusal() -> str | None:
    """Why this machine cannot have such hosts; None: it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (apt-get install iproute2)"
    if not _TUN.exists():
        return f"a delayed link needs {_TUN}"
    name = f"bs-probe-{os.getpid()}"
    tried = subprocess.run(
        ["ip", "netns", "add", name], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        return f"network namespaces are not permitted: {tried.stderr.strip()}"
    _ip("netns", "delete", name)
    return None


@contextmanager
def namespace(name: str) -> Iterator[str]:
    """A network namespace with nothing but its loopback device."""
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        _ip("netns", "delete", name)


@contextmanager
def cable(name: str, near_address: str, far_address: str) -> Iterator[Place]:
    """A link without delay from here to a namespace, which is then a place at `far_address`."""
    near, far = f"{name[:12]}0", f"{name[:12]}1"
    _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
    try:
        _ip("addr", "add", f"{near_address}/30", "dev", near)
        _ip("-n", name, "addr", "add", f"{far_address}/30", "dev", far)
        _ip("link", "set", near, "up")
        _ip("-n", name, "link", "set", far, "up")
        yield Place(far_address, ("ip", "netns", "exec", name))
    finally:
        _ip("link", "delete", near)


@contextmanager
def delayed_link(
    one: tuple[str, str], other: tuple[str, str], delay_seconds: float
) -> Iterator[None]:
    """A link between two namespaces, each given with its address; the delay is one way."""
    with ExitStack() as stack:
        ends = []
        for number, (name, address) in enumerate((one, other)):
            peer = (other, one)[number][1]
            device = f"bst{os.getpid() % 100000}{number}"
            ends.append(stack.enter_context(_tunnel(device)))
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "addr", "add", address, "peer", peer, "dev", device)
            _ip("-n", name, "link", "set", device, "up")
        stop = threading.Event()
        carriers = [
            threading.Thread(target=_carry, args=(*pair, delay_seconds, stop), daemon=True)
            for pair in (ends, reversed(ends))
        ]
        for carrier in carriers:
            carrier.start()
        try:
            yield
        finally:
            stop.set()
            for carrier in carriers:
                carrier.join()


@contextmanager
def _tunnel(device: str) -> Iterator[int]:
    """A TUN device; whoever holds its descriptor has it, whatever namespace it is moved to."""
    descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        request = struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
        yield descriptor
    finally:
        os.close(descriptor)


def _carry(source: int, target: int, delay_seconds: float, stop: threading.Event) -> None:
    """Carry packets to the other end, in their order, each so long after it came."""
    under_way: deque[tuple[float, bytes]] = deque()
    while not stop.is_set():
        wait = under_way[0][0] - time.monotonic() if under_way else 0.05
        if wait > 0 and select.select([source], [], [], wait)[0]:
            packet = os.read(source, _LARGEST_PACKET_BYTES)
            under_way.append((time.monotonic() + delay_seconds, packet))
        while under_way and under_way[0][0] <= time.monotonic():
            os.write(target, under_way.popleft()[1])


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
