"""Tests the official Python clients with a refusal for a budget: `clients.py final` and `clients.py waits`.

final: the budget is spent for long. Each client makes one request, and its error shows every word of --expect.
waits: the window resets soon. Each client waits for the reset, retries, and gets its answer.

The addresses are those of a gateway, as an agent sees it, or those of a server that imitates its refusals. The calls are the same.
At a gateway the budget of `waits` is for a minute, and is spent here late in the minute (--spend).
Requests are counted at the network layer of the client, so that its automatic retries are counted too.
"""

import argparse
import concurrent.futures
import json
import sys
import time

import anthropic
import httpx2 as httpx
import openai

ASKED = [{"role": "user", "content": "Say hello."}]
# The second at which the budget is spent: late, so that the wait is short, but early enough for the calls in this minute.
LATE = 45


class Wire:
    """A client's network layer, with the statuses of its answers."""

    def __init__(self):
        self.statuses = []
        self.retry_after = []
        self.client = httpx.Client(trust_env=False, timeout=120, event_hooks={"response": [self.seen]})

    def seen(self, response):
        self.statuses.append(response.status_code)
        self.retry_after.append(response.headers.get("retry-after"))


def messages(args, wire, model, stream):
    client = anthropic.Anthropic(base_url=args.anthropic, api_key=args.key, http_client=wire.client)
    if stream:
        with client.messages.stream(model=model, max_tokens=64, messages=ASKED) as events:
            return events.get_final_message().content[0].text
    return client.messages.create(model=model, max_tokens=64, messages=ASKED).content[0].text


def chat(args, wire, model, stream):
    client = openai.OpenAI(base_url=args.chat or args.openai, api_key=args.key, http_client=wire.client)
    answer = client.chat.completions.create(model=model, messages=ASKED, stream=stream)
    if stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
    return answer.choices[0].message.content


def responses(args, wire, model, stream):
    client = openai.OpenAI(base_url=args.openai, api_key=args.key, http_client=wire.client)
    answer = client.responses.create(model=model, input="Say hello.", stream=stream)
    if stream:
        return "".join(event.delta for event in answer if event.type == "response.output_text.delta")
    return answer.output_text


CALLS = {"messages": messages, "chat": chat, "responses": responses}


def final(args, call, model, stream):
    """The fault, or nothing."""
    wire = Wire()
    try:
        text = call(args, wire, model, stream)
    except (anthropic.APIStatusError, openai.APIStatusError) as error:
        shown = str(error)
    else:
        return f"it was not refused: {text!r}"
    if len(wire.statuses) != 1:
        return f"it asked {len(wire.statuses)} times: {wire.statuses}"
    missing = [word for word in args.expect if word not in shown]
    return f"its error lacks {missing}: {shown}" if missing else None


def waits(args, call, model, stream):
    """The fault, or nothing."""
    wire = Wire()
    try:
        text = call(args, wire, model, stream)
    except (anthropic.APIError, openai.APIError) as error:
        return f"it gave up after {wire.statuses}: {error}"
    if not text:
        return "its answer is empty"
    if wire.statuses[0] != 429 or not wire.retry_after[0]:
        return f"it was not told to wait: {wire.statuses}, retry-after {wire.retry_after[0]}"
    return None


def spend(args):
    """Spends the budget of this minute with a call that reports that usage, and waits until it is counted."""
    while not LATE <= time.time() % 60 < LATE + 2:
        time.sleep(0.1)
    with httpx.Client(trust_env=False, timeout=60) as client:
        model = args.spend
        for _ in range(200):
            body = json.dumps({"model": model, "max_tokens": 8, "messages": ASKED})
            headers = {"content-type": "application/json", "x-api-key": args.key}
            answer = client.post(f"{args.anthropic}/v1/messages", content=body, headers=headers)
            # Until the call is settled, there is another refusal, because it is in flight.
            if answer.status_code == 429 and "are left of the limit" in answer.text and "in flight" not in answer.text:
                return
            if answer.status_code not in (200, 429):
                break
            model = "scripted-small"
    sys.exit(f"the budget was not spent: {answer.status_code} {answer.text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=["final", "waits"])
    parser.add_argument("--anthropic", help="base URL of the Anthropic client; unset: it is left out")
    parser.add_argument("--openai", help="base URL of the OpenAI client, /v1 among it; unset: it is left out")
    parser.add_argument("--chat", help="base URL for Chat Completions, where it is another one")
    parser.add_argument("--spend", metavar="MODEL", help="waits: call this model first, which spends the budget")
    parser.add_argument("--key", default="held-by-spillway")
    parser.add_argument("--model", required=True, help="{api} and {stream} in it are replaced")
    parser.add_argument("--expect", nargs="*", default=[], help="words that the error must show")
    args = parser.parse_args()
    calls = [(name, stream) for name in CALLS for stream in (False, True) if (args.anthropic if name == "messages" else args.openai)]

    def one(name, stream):
        how = "stream" if stream else "whole"
        model = args.model.replace("{api}", name).replace("{stream}", how)
        wrong = {"final": final, "waits": waits}[args.case](args, CALLS[name], model, stream)
        return wrong is None, f"{'FAIL' if wrong else 'ok  '} {args.case} {name} {how}{': ' + wrong if wrong else ''}"

    if args.spend:
        spend(args)
    # All at once, because they wait for the same window.
    with concurrent.futures.ThreadPoolExecutor(len(calls) or 1) as pool:
        done = list(pool.map(lambda call: one(*call), calls))
    passed = sum(good for good, _ in done)
    print("\n".join([line for _, line in done] + [f"{passed} passed, {len(done) - passed} failed"]))
    return 0 if done and passed == len(done) else 1


sys.exit(main())
