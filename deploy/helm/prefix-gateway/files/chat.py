"""`helm test`: asks the gateway at URL for its models, then the first of them for a word.

Where clients need a key, it shows API_KEY of the environment. Without one a 401 is as good an answer: the
door stands, and nobody gets in without a key.
Where clients must show a certificate: CERTIFICATES, a folder with tls.crt and tls.key, has one; `refused` in
its place says that there is none to show, and that nobody must be let in.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def door(url: str, certificates: Path | None) -> ssl.SSLContext | None:
    if not url.startswith("https"):
        return None
    # the certificate is made for the name that clients use, not for this service's
    context = ssl._create_unverified_context()  # noqa: S323
    if certificates is not None:
        context.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
    return context


def call(
    url: str, context: ssl.SSLContext | None, body: object = None
) -> tuple[dict[str, Any], dict[str, str]]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    if key := os.environ.get("API_KEY", "").strip():
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=120, context=context) as answer:  # noqa: S310
            return json.load(answer), {k.lower(): v for k, v in answer.headers.items()}
    except urllib.error.URLError as error:
        # TLS says no in the handshake, or right behind it
        if isinstance(error.reason, ssl.SSLError):
            raise error.reason from None
        raise


def main(url: str, shown: str) -> None:
    refused = shown == "refused"
    certificates = Path(shown) if shown and not refused else None
    try:
        context = door(url, certificates)
        models, _ = call(url + "/v1/models", context)
        if not models["data"]:
            sys.exit("it serves no model: no engine is ready yet, or none was found")
        model = models["data"][0]["id"]
        message = {"role": "user", "content": "Say hello."}
        answer, headers = call(
            url + "/v1/chat/completions", context, {"model": model, "max_tokens": 8, "messages": [message]}
        )
    except urllib.error.HTTPError as error:
        if error.code == 401 and not refused and not os.environ.get("API_KEY"):
            print("the gateway asks for an API key, as it should; tests.apiKeySecret has one for a chat")  # noqa: T201
            return
        sys.exit(f"{error.code}: {error.read().decode(errors='replace')}")
    except (ssl.SSLError, ConnectionError) as error:
        if not refused:
            sys.exit(f"{url}: {error}")
        print("the gateway asks for a certificate, as it should")  # noqa: T201
        return
    if refused:
        sys.exit("the gateway let somebody in who showed no certificate")
    print(f"{model} at {headers['x-gateway-worker']}: {answer['choices'][0]['message']['content']!r}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
