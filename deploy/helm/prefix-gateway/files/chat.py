"""`helm test`: asks the gateway at URL for its models, then the first of them for a word.

Where clients need a key, a 401 is as good an answer: the door stands, and nobody gets in without one.
"""

import json
import ssl
import sys
import urllib.error
import urllib.request


def call(url: str, body: object = None) -> tuple[dict[str, object], dict[str, str]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310 - our own
    # the certificate is made for the name that clients use, not for this service's
    context = ssl._create_unverified_context() if url.startswith("https") else None  # noqa: S323
    with urllib.request.urlopen(request, timeout=120, context=context) as answer:  # noqa: S310
        return json.load(answer), {k.lower(): v for k, v in answer.headers.items()}


def main(url: str) -> None:
    try:
        models, _ = call(url + "/v1/models")
        model = models["data"][0]["id"]
        message = {"role": "user", "content": "Say hello."}
        answer, headers = call(
            url + "/v1/chat/completions", {"model": model, "max_tokens": 8, "messages": [message]}
        )
    except urllib.error.HTTPError as error:
        if error.code == 401:
            print("the gateway asks for an API key, as it should")  # noqa: T201
            return
        sys.exit(f"{error.code}: {error.read().decode(errors='replace')}")
    print(f"{model} at {headers['x-gateway-worker']}: {answer['choices'][0]['message']['content']!r}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
