"""The forms of secrets that can be told by looking at them: keys and tokens with a fixed beginning, and their likes.

`candidates` is the gate that nearly every text stops at: it looks for long runs without a break, and for a few
words, before it looks for any literal beginning; only then is a text searched with expressions.
No expression looks back at what it has passed: a class that may run on to the end of a text either ends the match
or begins at a place where no other match could have begun, so that the time grows with the length and no faster.
Where a group is named `secret`, only that part is replaced. The kinds are part of what is stored (the placeholder
names them): they are only ever added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

# What stands in for a secret in documentation and in code that reads the real one from elsewhere.
_STAND_INS: Final = frozenset(
    {"password", "passwd", "pass", "pwd", "secret", "token", "changeme", "postgres", "root", "admin", "user"}
    | {"example", "mysecretpassword", "redacted", "hidden", "none", "null", "string", "your-password"}
)
_FILLED: Final = re.compile(
    r"([xX*.#_-])\1{3}|(?i:example|placeholder|your[_-]|dummy|redacted|changeme)", re.ASCII
)
_PEM_BODY: Final = re.compile(r"[A-Za-z0-9+/=]{40}", re.ASCII)


def _is_random(token: str) -> bool:
    """Whether a token with a beginning of its own is more than words and fillers."""
    kinds = any(map(str.isdigit, token)) + any(map(str.islower, token)) + any(map(str.isupper, token))
    return kinds > 1 and len(set(token)) > 8 and not _FILLED.search(token)


def _is_mixed(secret: str) -> bool:
    """Whether it has digits and letters, and is none of the words that only stand for a secret."""
    has_digit = any(map(str.isdigit, secret))
    return has_digit and any(map(str.isalpha, secret)) and not _FILLED.search(secret)


def _is_password(secret: str) -> bool:
    return secret.lower() not in _STAND_INS and not _FILLED.search(secret) and len(set(secret)) > 2


def _is_no_example(secret: str) -> bool:
    return "EXAMPLE" not in secret and len(set(secret)) > 8


def _has_body(secret: str) -> bool:
    return _PEM_BODY.search(secret) is not None


# Names under which a value is a secret whatever it looks like, as keys of JSON objects, without - and _.
SECRET_KEYS: Final = frozenset(
    {"password", "passwd", "passphrase", "secret", "secretkey", "clientsecret", "apikey", "accesstoken"}
    | {"refreshtoken", "authtoken", "idtoken", "sessiontoken", "privatekey", "secretaccesskey", "xapikey"}
    | {"bearertoken", "webhooksecret", "signingsecret", "encryptionkey", "dbpassword", "accesskeysecret"}
)
KEYED_KIND: Final = "keyed-value"
_VALUE: Final = re.compile(r"[\x21-\x7e]{8,4096}", re.ASCII)
_REFERENCE: Final = re.compile(r"[$<{%(\[]|process\.env|os\.environ|(?:https?|file)://|/", re.ASCII)


@lru_cache(maxsize=4096)
def is_secret_key(key: str) -> bool:
    """Whether the name of a key says that its value is a secret."""
    return len(key) <= 20 and key.replace("_", "").replace("-", "").lower() in SECRET_KEYS


def _is_value(secret: str) -> bool:
    return not _REFERENCE.match(secret) and _is_mixed(secret)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One form. `accepts` has the last word on what the expression found."""

    kind: str
    literals: tuple[str, ...]
    expression: re.Pattern[str]
    accepts: Callable[[str], bool]

    def replace(self, text: str, placeholder: str) -> tuple[str, int]:
        """The text with a placeholder for each secret of this form, and how many there were."""
        pieces: list[str] = []
        done = 0
        for match in self.expression.finditer(text):
            begin, end = match.span(match.lastgroup or 0)
            if self.accepts(text[begin:end]) and _key_fits(match):
                pieces += (text[done:begin], placeholder)
                done = end
        return ("".join((*pieces, text[done:])), len(pieces) // 2) if pieces else (text, 0)


def _key_fits(match: re.Match[str]) -> bool:
    key: str | None = match.groupdict().get("key")
    return key is None or is_secret_key(key)


def _pattern(
    kind: str, literals: str, expression: str, accepts: Callable[[str], bool] = lambda _: True
) -> Pattern:
    return Pattern(kind, tuple(literals.split("|")), re.compile(expression, re.ASCII), accepts)


# Not inside a word or a longer run of base64: a token begins where something else ended.
_START: Final = r"(?<![A-Za-z0-9_])"
_ALONE: Final = r"(?<![A-Za-z0-9_/+=-])"

# Tokens that begin with something of their own, one run of characters each.
TOKENS: Final = (
    _pattern("age-key", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[0-9A-Z]{50,64}"),
    _pattern(
        "aws-access-key",
        "AKIA|ASIA",
        _ALONE + r"(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Za-z0-9+/])",
        _is_no_example,
    ),
    _pattern(
        "github-token",
        "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_",
        _START + r"(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{40,255})",
        _is_random,
    ),
    _pattern(
        "gitlab-token",
        "glpat-|gldt-|glrt-|glcbt-|glptt-",
        _START + r"gl(?:pat|dt|rt|cbt|ptt)-[A-Za-z0-9_-]{20,255}",
        _is_random,
    ),
    _pattern("slack-token", "xox|xapp-", _START + r"(?:xox[abeoprs]|xapp)-[0-9A-Za-z-]{20,255}", _is_random),
    _pattern(
        "slack-webhook",
        "hooks.slack.com/",
        r"hooks\.slack\.com/(?P<secret>(?:services|workflows|triggers)/[A-Za-z0-9+/]{40,80})",
        _is_random,
    ),
    _pattern("anthropic-key", "sk-ant-", _START + r"sk-ant-[A-Za-z0-9_-]{24,255}", _is_random),
    _pattern("openrouter-key", "sk-or-", _START + r"sk-or-v1-[0-9a-f]{64}"),
    _pattern(
        "openai-key",
        "sk-",
        _START + r"sk-(?:(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,255}|[A-Za-z0-9]{32,128})(?![A-Za-z0-9-])",
        _is_random,
    ),
    _pattern(
        "stripe-key",
        "sk_live_|rk_live_|sk_test_|rk_test_|whsec_",
        _START + r"(?:[sr]k_(?:live|test)_|whsec_)[A-Za-z0-9]{20,255}",
        _is_random,
    ),
    _pattern("google-key", "AIza", _ALONE + r"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])", _is_random),
    _pattern(
        "google-oauth",
        "ya29.|GOCSPX-",
        _START + r"(?:ya29\.[A-Za-z0-9_-]{40,2048}|GOCSPX-[A-Za-z0-9_-]{20,64})",
        _is_random,
    ),
    _pattern("npm-token", "npm_", _START + r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])", _is_random),
    _pattern("pypi-token", "pypi-AgE", _START + r"pypi-AgE[A-Za-z0-9_-]{50,1024}"),
    _pattern("docker-token", "dckr_", _START + r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,64}", _is_random),
    _pattern("huggingface-token", "hf_", _START + r"hf_[A-Za-z0-9]{34,40}(?![A-Za-z0-9_])", _is_random),
    _pattern(
        "model-host-key",
        "gsk_|xai-|pplx-|r8_",
        _START + r"(?:gsk_|xai-|pplx-|r8_)[A-Za-z0-9]{36,128}",
        _is_random,
    ),
    _pattern("digitalocean-token", "_v1_", _START + r"do[oprt]_v1_[a-f0-9]{64}"),
    _pattern("sendgrid-key", "SG.", _ALONE + r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    _pattern("telegram-token", ":AA", r"(?<![A-Za-z0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])"),
    _pattern(
        "discord-webhook",
        "/api/webhooks/",
        r"/api/webhooks/[0-9]{17,20}/(?P<secret>[A-Za-z0-9_-]{60,80})",
    ),
    _pattern("shopify-token", "shpat_|shpca_|shppa_|shpss_", _START + r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),
    _pattern("vault-token", "hvs.|hvb.", _START + r"hv[sb]\.[A-Za-z0-9_-]{24,512}", _is_random),
    _pattern(
        "service-token",
        "glsa_|sntrys_|lin_api_|ntn_|dapi|NRAK-",
        _START
        + r"(?:glsa_[A-Za-z0-9]{32}_[a-f0-9]{8}|sntrys_[A-Za-z0-9+/=_]{60,512}|lin_api_[A-Za-z0-9]{40}"
        + r"|ntn_[A-Za-z0-9]{46}|dapi[a-f0-9]{32}|NRAK-[A-Z0-9]{27})",
    ),
    _pattern(
        "jwt",
        "eyJ",
        r"(?<![A-Za-z0-9_.-])eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{16,}+",
    ),
)

# Secrets that a word before them tells.
NAMED: Final = (
    _pattern(
        "private-key",
        "PRIVATE KEY",
        r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:[^-]++|-(?!----))*+-----END [A-Z0-9 ]{0,60}-----|(?:\s++|\\[nrt]|[A-Za-z0-9+/=]{16,}+)*+)",
        _has_body,
    ),
    _pattern(
        "aws-secret-key",
        "ecret_access_key|ecretAccessKey|ECRET_ACCESS_KEY|ession_token|essionToken|ESSION_TOKEN",
        r"(?:(?:ecret_access_key|ecretAccessKey|ECRET_ACCESS_KEY)[\s\"'\\:=>]{1,12}"
        r"(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
        r"|(?:ession_token|essionToken|ESSION_TOKEN)[\s\"'\\:=>]{1,12}(?P<session>[A-Za-z0-9/+]{100,}={0,2}))",
        _is_no_example,
    ),
    _pattern(
        "azure-key",
        "AccountKey=|SharedAccessKey=",
        r"A(?:ccount|ccess)Key=(?P<secret>[A-Za-z0-9+/]{40,}={0,2})",
    ),
    _pattern(
        "connection-string",
        "://",
        r"://[^\s/:@\"'<>`\\]{0,128}:(?P<secret>[^\s/\"'<>`\\${}()\[\]]{3,256})@(?!example\.)[A-Za-z0-9\[]",
        _is_password,
    ),
    _pattern(
        "authorization",
        "earer|EARER|uthorization|UTHORIZATION",
        r"(?:[Bb]earer|BEARER|[Uu][Tt][Hh][Oo][Rr][Ii][Zz][Aa][Tt][Ii][Oo][Nn][\"'\\]{0,2}\s?[:=]\s?[\"'\\]{0,2}(?:[Bb]asic|[Tt]oken))"
        r"\s{1,4}(?P<secret>[A-Za-z0-9._~+/-]{16,4096}={0,2})(?![A-Za-z0-9])",
        _is_mixed,
    ),
    _pattern(
        "assignment",
        "PASSWORD=|PASSWD=|SECRET=|TOKEN=|_KEY=",
        r"(?:PASSWORD|PASSWD|SECRET|TOKEN|API_KEY|PRIVATE_KEY|ACCESS_KEY)=(?:\\?[\"'])?"
        r"(?P<secret>[A-Za-z0-9!@#%^&*_+=/.,:~-]{12,512})",
        _is_mixed,
    ),
    # A quoted name and a quoted value: a pair of JSON inside a text, escaped or not.
    _pattern(
        KEYED_KIND,
        "|".join(
            f"{word}{mark}"
            for word in ("sword", "SWORD", "asswd", "hrase", "ecret", "ECRET", "oken", "OKEN", "ey", "EY")
            for mark in ('"', "'", "\\")
        ),
        r"(?<![A-Za-z0-9_-])(?P<key>[A-Za-z_-]{6,20})\\{0,3}[\"']\s{0,4}:\s{0,4}\\{0,3}[\"']"
        r"(?P<secret>[\x21\x23-\x26\x28-\x5b\x5d-\x7e]{8,4096})",
        _is_value,
    ),
)
PATTERNS: Final = TOKENS + NAMED

# A token has a run of this many letters and digits: prose seldom does. The table makes them all the same byte.
_RUN: Final = b"a" * 16
_RUNS: Final = bytes(
    97 if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_-") else 32 for byte in range(256)
)
_UNBROKEN: Final = re.compile(r"[A-Za-z0-9_.:/+=-]{16,}", re.ASCII)
_WORDS: Final = ("key", "ecret", "oken", "asswo", "asswd", "hrase", "earer", "uthoriz")


def candidates(text: str) -> list[Pattern]:
    """The patterns that `text` may hold a secret of. A few microseconds a kilobyte, where there is none."""
    found: list[Pattern] = []
    if _RUN in text.encode("utf-8", "replace").translate(_RUNS):
        runs = "\n".join(_UNBROKEN.findall(text))
        found += [pattern for pattern in TOKENS if any(literal in runs for literal in pattern.literals)]
    folded = text.lower()
    if ("@" in text and "://" in text) or any(word in folded for word in _WORDS):
        found += [pattern for pattern in NAMED if any(literal in text for literal in pattern.literals)]
    return found


# A private key in a list of lines, as notebooks and diffs hold texts. Diffs put a mark in front of each.
_KEY_BEGINS: Final = re.compile(
    r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----[\s\\nr]{0,8}\Z", re.ASCII
)
_KEY_LINE: Final = re.compile(
    r"[\s+>|-]{0,8}(?:[A-Za-z0-9+/=]{1,128}|[A-Za-z-]{1,32}: [^\n]{1,200})?[\s\\nr]{0,8}", re.ASCII
)
_KEY_ENDS: Final = "-----END "


def key_lines(lines: Sequence[Any]) -> list[int]:
    """The numbers of the lines that hold a private key which goes over several of them, from its BEGIN to its END."""
    found: list[int] = []
    inside = False
    for number, line in enumerate(lines):
        if type(line) is not str:
            inside = False
        elif inside:
            inside = bool(_KEY_LINE.fullmatch(line))
            if inside or _KEY_ENDS in line:
                found.append(number)
        elif _KEY_BEGINS.search(line):
            inside = True
            found.append(number)
    return found


def is_secret_pair(key: str, value: str) -> bool:
    """Whether `value`, at `key` of a JSON object, is a secret by the name of the key."""
    return is_secret_key(key) and bool(_VALUE.fullmatch(value)) and _is_value(value)


# Variables of an environment that hold a secret, by their names.
_SECRET_NAME: Final = re.compile(
    r"(?i:(?:^|_)(?:[A-Z0-9]*KEY|[A-Z0-9]*TOKEN|[A-Z0-9]*SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?|PAT|DSN)$"
    r"|PASSW(?:OR)?D|SECRET)",
    re.ASCII,
)
_NO_SECRET_NAME: Final = re.compile(
    r"(?i:_(?:FILE|PATH|DIR|SOCK|COMMAND|CMD|URI|NAME|ID)$|^PUBLIC_|_PUBLIC_)", re.ASCII
)


def names_a_secret(variable: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return bool(_SECRET_NAME.search(variable)) and not _NO_SECRET_NAME.search(variable)


def is_secret_value(value: str) -> bool:
    """Whether the value of such a variable is more than a word that may stand anywhere in a text."""
    if value.lower() in _STAND_INS or len(set(value)) < 5:
        return False
    return len(value) >= 20 or _is_mixed(value)
