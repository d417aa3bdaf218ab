"""Programs that try to leave the sandbox, to cheat, or never to end. Text only: nothing here is ever imported to run.

A program of DENIED does its deed in `deed()`; it passes its test exactly when the deed fails with an OSError or the
like. One of CHEATS would pass if it found out what is expected. One of ENDLESS must come to an end from outside.
"""

DEED = """
import ctypes, os, signal, socket, subprocess, sys, time, threading, resource, mmap
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0 and ctypes.get_errno() == 38:  # ENOSYS, the filter's; any other: the kernel was reached
        raise OSError("refused")
    return result
def deed():
{body}
try:
    deed()
except (OSError, ImportError, ValueError, RuntimeError, MemoryError) as error:
    print("denied")
else:
    print("escaped")
"""

DENIED = {
    "tcp": "socket.create_connection(('127.0.0.1', PORT), timeout=2)",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "vsock to the machine's host": "socket.socket(40, socket.SOCK_STREAM)",
    "kernel crypto socket": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "unix socket": "socket.socket(socket.AF_UNIX).connect('\\0verge-canary')",
    "look up a name": "socket.getaddrinfo('example.org', 80)",
    "fetch a page": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:PORT', timeout=2)",
    "fork": "os.fork()",
    "start a shell": "subprocess.run(['/bin/sh', '-c', 'true'], check=True)",
    "posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "become another program": "os.execv('/usr/bin/env', ['env', 'echo', 'denied'])",
    "multiprocessing": "import multiprocessing as m; p = m.get_context('fork').Process(target=print); p.start()",
    "clone into a new user name space": "syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "clone3": "syscall(435, ctypes.create_string_buffer(88), 88)",
    "ptrace the parent": "syscall(101, 16, os.getppid(), 0, 0)",
    "ptrace itself": "syscall(101, 0, 0, 0, 0)",
    "read the parent's memory": "syscall(310, os.getppid(), 0, 0, 0, 0, 0)",
    "take the parent's file descriptors": "syscall(438, syscall(434, os.getppid(), 0), 3, 0)",
    "mount": "syscall(165, b'none', b'/tmp', b'tmpfs', 0, None)",
    "unmount": "syscall(166, b'/usr', 2)",
    "pivot_root": "syscall(155, b'/tmp', b'/tmp')",
    "chroot": "os.chroot('/tmp')",
    "unshare": "syscall(272, 0x10000000)",
    "setns": "syscall(308, 0, 0)",
    "keyctl": "syscall(250, 0, -3, 1)",
    "add_key": "syscall(248, b'user', b'x', b'y', 1, -2)",
    "bpf": "syscall(321, 0, None, 0)",
    "perf_event_open": "syscall(298, None, 0, -1, -1, 0)",
    "userfaultfd": "syscall(323, 0)",
    "io_uring": "syscall(425, 8, ctypes.create_string_buffer(120))",
    "load a kernel module": "syscall(175, None, 0, b'')",
    "open by handle": "syscall(304, -100, ctypes.create_string_buffer(24), 0)",
    "memory file": "os.memfd_create('x')",
    "shared memory": "syscall(29, 0, 1 << 30, 0o1600)",
    "set the clock": "time.clock_settime(time.CLOCK_REALTIME, 0)",
    "set the host name": "socket.sethostname('escaped')",
    "become root": "os.setuid(0)",
    "raise its own limit": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "real-time priority": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))",
    "environment of the parent": "open(f'/proc/{os.getppid()}/environ').read()",
    "its own /proc": "os.listdir('/proc/self/fd')",
    "/proc/sys": "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x')",
    "/sys": "os.listdir('/sys/kernel')",
    "the home folder": "if not any(map(os.path.lexists, HOME)): raise OSError",
    "the problems file": "open('CANARY').read()",
    "the problems file through a symlink": "os.symlink('CANARY', '/tmp/link'); open('/tmp/link').read()",
    "out of the root by ..": "open('/tmp/../../../..CANARY').read()",
    "passwords": "open('/etc/passwd').read()",
    "write into the root": "open('/escaped', 'w')",
    "write into the interpreter": "open(os.__file__, 'a')",
    "write into /usr": "open('/usr/lib/escaped', 'w')",
    "plant a module": "open(os.path.join(os.path.dirname(os.__file__), 'sitecustomize.py'), 'w')",
    "a device": "os.mknod('/tmp/sda', 0o60644, os.makedev(8, 0))",
    "a raw disk": "open('/dev/sda', 'rb'); open('/dev/vda', 'rb')",
    "the terminal": "open('/dev/tty', 'w')",
    "fill the scratch folder": "[open(f'/tmp/{i}', 'wb').write(b'x' * (4 << 20)) for i in range(64)]",
    "a file beyond the limit": "file = open('/tmp/x', 'wb', 0); [file.write(b'x' * (1 << 20)) for _ in range(16)]",
    "a sparse file": "os.truncate(os.open('/tmp/x', os.O_CREAT | os.O_RDWR), 1 << 40)",
    "file descriptors without end": "[os.open('/dev/null', 0) for _ in range(10_000)]",
    "threads without end": "[threading.Thread(target=time.sleep, args=(60,), daemon=True).start() for _ in range(999)]",
    "memory": "b'x' * (8 << 30)",
    "memory in small pieces": "[bytearray(1 << 20) for _ in range(4096)]",
    "memory by mmap": "mmap.mmap(-1, 8 << 30)",
    "a huge int in decimal": "str(10 ** 200_000)",
    "channels of the driver": (
        "for number in range(3, 4096):\n    try: os.fstat(number)\n    except OSError: continue\n"
        "    else: return\nraise OSError"
    ),
}  # fmt: skip

CHEATS = {
    "nothing": "",
    "exit 0": "import sys; sys.exit(0)",
    "exit 0 at once": "import os; os._exit(0)",
    "right, then a crash": "print(SECRET); raise ValueError",
    "right, then exit 1": "import sys; print(SECRET); sys.exit(1)",
    "right, then exit True": "import sys; print(SECRET); sys.exit(True)",
    "right, then a signal": "import os; print(SECRET, flush=True); os.kill(os.getpid(), 9)",
    "right, then kill everything": "import os; print(SECRET, flush=True); os.kill(-1, 9)",
    "right, then a crash that cannot exit": "import os; os._exit = lambda _: None; print(SECRET); raise ValueError",
    "right on standard error": "import sys; print(SECRET, file=sys.stderr)",
    "right and then more": "print(SECRET); print(SECRET)",
    "markers": "print('correct'); print('PASSED'); print('ready'); print({'correct': True}); print('[True]')",
    "a reply frame": "import sys; sys.stdout.buffer.write(b'\\0\\0\\0\\x04\\0\\0\\0\\0')",
    "close standard output": "import os; os.close(1)",
    "close everything": "import os; os.closerange(0, 4096)",
    "standard output from the start": "import os; os.lseek(1, 0, 0); print(os.read(1, 100))",
    "always equal": "class Any(str):\n    __eq__ = lambda *_: True\nprint(Any())",
    "patch the comparison": (
        "import builtins, json, re\njson.loads = json.dumps = lambda *a, **k: True\n"
        "builtins.map = builtins.all = builtins.len = lambda *a: True\nre.compile = None\nprint(1)"
    ),
    "patch the driver": (
        "import sys\nframe = sys._getframe()\nwhile frame:\n"
        "    for name in ('write_frame', 'read_frame', 'run_program'):\n"
        "        if name in frame.f_globals:\n            frame.f_globals[name] = lambda *a: b'ready'\n"
        "    frame = frame.f_back\nprint(1)"
    ),
    "print all the driver knows": (
        "import sys\nframe = sys._getframe()\nwhile frame:\n    print(frame.f_locals)\n    frame = frame.f_back"
    ),
    "print all that is in memory": "import gc\nfor thing in gc.get_objects():\n    print(str(thing)[:2000])",
    "import the checker": "import actors.code.cases\nprint(actors.code.cases)",
    "find the tests": "import os\nfor folder in os.walk('/tmp'):\n    print(folder)\nprint(dict(os.environ))",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1) + 1\nf(0)",
    "recursion in C": (
        "import sys\nsys.setrecursionlimit(10**9)\n"
        "class A:\n    __getattr__ = lambda self, name: getattr(self, name)\nA().x"
    ),
    "nesting that breaks the parser": "eval('(' * 100_000)",
    "segmentation fault": "import ctypes\nctypes.string_at(0)",
    "not a program": "def f(:\n    pass",
    "a null byte": "print('\\0')\0",
    "surrogates": "import sys\nsys.stdout.buffer.write(b'\\xff\\xfe\\xed\\xa0\\x80')",
    "flood": "while True:\n    print('x' * 65536)",
    "flood of standard error": "import sys\nfor _ in range(2000):\n    sys.stderr.write('x' * 65536)",
}  # fmt: skip

ENDLESS = {
    "sleeps": "import time\ntime.sleep(3600)",
    "spins": "while True: pass",
    "spins in C": "sum(range(10**12))",
    "a huge int": "print(len(bin(3 ** 3 ** 20)))",
    "ignores signals": (
        "import signal, time\nfor number in range(1, 32):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: time.sleep(1)"
    ),
    "a fork bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    ),
    "never leaves its exit": "import atexit, time\natexit.register(time.sleep, 3600)\nprint(SECRET)",
    "leaves a thread behind": "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "stops its parent": "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(3600)",
    "waits for input that never comes": "import os\nr, w = os.pipe()\nos.read(r, 1)",
    "a catastrophic pattern": "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')",
}  # fmt: skip
