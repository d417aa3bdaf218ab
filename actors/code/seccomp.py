"""Which system calls a sandboxed process may make, as BPF programs that libseccomp writes for this machine.

Anything that is not named here fails with ENOSYS, as if the kernel did not have it: no network, no tracing of or
reading in other processes, no mounts, keys, name spaces, io_uring, bpf, perf, userfaultfd, and nothing the kernel may
yet learn. Programs of another architecture (x32, i386) are killed.
"""

import ctypes
import errno
import functools
import os
import tempfile

LIBRARY = "libseccomp.so.2"
ALLOWED = """
    access alarm arch_prctl brk chdir chmod clock_getres clock_gettime clock_nanosleep close close_range creat dup
    dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 exit exit_group faccessat
    faccessat2 fallocate fchdir fchmod fchmodat fcntl fdatasync flock fstat fstatfs fsync ftruncate futex getcwd
    getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid
    getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday
    getuid ioctl kill link linkat lseek lstat madvise membarrier mincore mkdir mkdirat mlock mmap mprotect mremap
    msync munlock munmap nanosleep newfstatat open openat pause pipe pipe2 poll ppoll pread64 preadv prlimit64
    pselect6 pwrite64 pwritev read readlink readlinkat readv recvfrom recvmsg rename renameat renameat2
    restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
    rt_sigtimedwait sched_getaffinity sched_getparam sched_getscheduler sched_setaffinity sched_yield select
    sendfile sendmsg sendto set_robust_list set_tid_address setitimer setpgid setrlimit setsid setsockopt shutdown
    sigaltstack socketpair stat statfs statx symlink symlinkat sysinfo tgkill time timer_create timer_delete
    timer_gettime timer_settime times tkill truncate umask uname unlink unlinkat utime utimensat wait4 waitid write
    writev
"""
STARTS_PROGRAMS = "execve fork memfd_create prctl vfork"
"""Also allowed to the driver, which bubblewrap executes, and which starts a process for each test."""

CLONE_THREAD = 0x00010000
CLONE_NEW_NAMESPACES = 0x7E020080
"""Every CLONE_NEW… flag of clone."""

_ACT_KILL_PROCESS, _ACT_ALLOW, _ACT_ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_ATTRIBUTE_BAD_ARCHITECTURE = 2
_MASKED_EQUAL = 7


class NoSeccomp(Exception):
    """libseccomp is missing or cannot write a filter; the message says what to do."""


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


@functools.cache
def driver_filter() -> bytes:
    """For the process that starts the program: it may fork and execute, but not make a name space.

    Raises:
        NoSeccomp: there is no usable libseccomp.
    """
    return _filter(ALLOWED + STARTS_PROGRAMS, clone_mask=CLONE_NEW_NAMESPACES, clone_value=0)


@functools.cache
def program_filter() -> bytes:
    """For the program itself: threads, but neither another process nor another executable.

    So what the program takes is what one process takes, and rlimits on that process bound it.

    Raises:
        NoSeccomp: as `driver_filter`.
    """
    return _filter(ALLOWED, clone_mask=CLONE_THREAD, clone_value=CLONE_THREAD)


def _filter(names: str, clone_mask: int, clone_value: int) -> bytes:
    """The BPF program that allows `names`, and `clone` where its flags under the mask have this value."""
    library = _library()
    context = library.seccomp_init(_ACT_ERRNO | errno.ENOSYS)
    if not context:
        raise NoSeccomp(f"{LIBRARY} cannot make a filter on this machine")
    context = ctypes.c_void_p(context)
    try:
        library.seccomp_attr_set(context, _ATTRIBUTE_BAD_ARCHITECTURE, ctypes.c_uint32(_ACT_KILL_PROCESS))
        for name in names.split():
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number >= 0:  # a negative number: this architecture does not have the call
                _check(library.seccomp_rule_add_array(context, _ACT_ALLOW, number, 0, None), name)
        flags = _Comparison(0, _MASKED_EQUAL, clone_mask, clone_value)
        number = library.seccomp_syscall_resolve_name(b"clone")
        _check(library.seccomp_rule_add_array(context, _ACT_ALLOW, number, 1, ctypes.byref(flags)), "clone")
        with tempfile.TemporaryFile() as file:
            _check(library.seccomp_export_bpf(context, file.fileno()), "the whole filter")
            return os.pread(file.fileno(), 1 << 20, 0)
    finally:
        library.seccomp_release(context)


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        raise NoSeccomp(f"{LIBRARY} is not there; install it (apt-get install libseccomp2)") from None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison),
    ]  # fmt: skip
    return library


def _check(result: int, what: str) -> None:
    if result < 0:
        raise NoSeccomp(f"{LIBRARY} refuses the rule for {what}: {os.strerror(-result)}")
