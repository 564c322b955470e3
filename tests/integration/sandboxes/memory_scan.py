"""Program for the sandbox: prints the secrets that it finds in its own address space, as a line of JSON."""

import ctypes
import json
import os
import re
from pathlib import Path

PAGE, REACH = 4096, 1 << 28
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
libc.malloc.restype = ctypes.c_void_p
reading, writing = os.pipe()
# Neighbourhoods of the heap, large and small allocations, the interpreter's arenas and the stack.
near = [libc.sbrk(ctypes.c_ssize_t(0)), libc.malloc(64), libc.malloc(1 << 22), id(object()), id([]), id(os), id(re)]
near += [ctypes.addressof(ctypes.c_char.from_buffer(bytearray(1 << 20))), ctypes.addressof(ctypes.c_int(1))]
pages = set()
for address in near:
    pages.update(range(max(address - REACH, PAGE) // PAGE, (address + REACH) // PAGE))
marker = re.compile(b"SEC" + b"RET:([0-9a-f]{32})")
found, tail, num_bytes, write, pointer = set(), b"", 0, libc.write, ctypes.c_void_p
for page in sorted(pages):
    if write(writing, pointer(page * PAGE), PAGE) == PAGE:  # EFAULT where nothing is mapped.
        num_bytes += PAGE
        tail = tail[-64:] + os.read(reading, PAGE)
        found.update(marker.findall(tail))
    else:
        tail = b""
secrets = sorted(secret.decode() for secret in found)
print(json.dumps({"folder": str(Path.cwd().parent), "bytes": num_bytes, "found": secrets}))
