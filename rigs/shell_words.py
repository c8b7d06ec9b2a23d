"""One command line that means the same to every login shell: sh, bash, dash, zsh, fish, tcsh, busybox."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _./=:,@+-")


def command_line(argv: Sequence[str], env: Mapping[str, str], mark: str) -> str:
    """Return a line for the login shell that runs `argv` through `sh`, after printing `mark` on both outputs.

    sshd hands a command to the login shell as one string. Quoting differs between shells (fish takes backslashes inside
    single quotes, tcsh exclamation marks), so whatever is not plain travels as octal numbers, which only sh reads. What
    the shell's own start-up files print comes before the mark, with our process id behind it.
    """
    assignments = [f"{name}={value}" for name, value in env.items()]
    words = shlex.join(["env", *assignments, *argv] if assignments else argv)
    script = f'printf "%s %s\\n" {mark} $$; printf "%s\\n" {mark} >&2; exec {words}'
    return f'sh -c \'eval "$(printf "{_octal(script)}")"\''


def _octal(text: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in text.encode())
