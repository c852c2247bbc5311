"""How servers, libraries and logs repeat a secret; found by other means than the redactor's own."""

import base64
import html
import json
import re
import urllib.parse


def spellings(secret: str) -> dict[str, str]:
    """A secret in Latin-1, by the name of each spelling."""
    raw = secret.encode()
    quoted = urllib.parse.quote(secret, safe="")
    return {
        "plain": secret,
        "repr": repr(secret),
        "repr of bytes": repr(secret.encode("latin-1")),
        "json": json.dumps({"message": f"bad key {secret}"}),
        "json in json": json.dumps(json.dumps(f"bad key {secret}")),
        "json, no ascii": json.dumps(secret, ensure_ascii=False),
        "html": html.escape(secret),
        "url": quoted,
        "url, small hex": re.sub("%..", lambda found: found[0].lower(), quoted),
        "form": urllib.parse.urlencode({"key": secret}),
        "base64": base64.b64encode(raw).decode(),
        "base64 of a header": base64.b64encode(b"Bearer " + raw).decode(),
        "base64 of a pair": base64.b64encode(b"user:" + raw).decode(),
        "base64 for urls": base64.urlsafe_b64encode(b"x" + raw + b"yz").decode(),
    }


def traces(secret: str) -> list[bytes]:
    """What tells a secret in any of these spellings: its first characters, as each writes them."""
    begin = secret.encode()[:12]
    pieces = [begin, urllib.parse.quote(begin, safe="").encode()]
    for before in range(3):
        inner = base64.b64encode(bytes(before) + begin)[4:-4]
        pieces += [inner, inner.replace(b"+", b"-").replace(b"/", b"_")]
    return pieces
