#!/usr/bin/env bash
# anthropic 2.14.0, run on 2026-11-29.
# Expected: a line of a batch's results whose `result.type` is newer than the client is an error, or an object that no
#   isinstance check takes for an answer.
# Seen: it is a MessageBatchSucceededResult, without an error; only `type` still says the other word, and `message`,
#   which is declared as never None, is None. The four known types are parsed as themselves.
# Matters: a job that sorts results by class (isinstance, match) takes such a row as answered, and fails with an
#   AttributeError at `message.content`, with it all rows of its task. Compare `result.type` with "succeeded".
# Source: construct_type in anthropic/_models.py builds the first class of the union when the tag is unknown.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet anthropic==2.14.0
timeout 60 "$folder/venv/bin/python" -W ignore::DeprecationWarning - <<'PYTHON'
import http.server
import json
import sys
import threading

import anthropic
from anthropic.types.messages import MessageBatchSucceededResult

TYPES = ["errored", "canceled", "expired", "paused"]  # the last one is not in this client
RESULTS = "".join(json.dumps({"custom_id": kind, "result": {"type": kind}}) + "\n" for kind in TYPES)


class Batches(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.endswith("/results"):
            return self.answer(RESULTS, "application/x-jsonl")
        counts = {"processing": 0, "succeeded": 0, "errored": 1, "canceled": 1, "expired": 1}
        batch = {"id": "b", "type": "message_batch", "processing_status": "ended", "request_counts": counts}
        times = {"created_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-02T00:00:00Z"}
        self.answer(json.dumps({**batch, **times, "results_url": f"{URL}/v1/messages/batches/b/results"}), "application/json")

    def answer(self, text, content_type):
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Batches)
URL = f"http://127.0.0.1:{server.server_port}"
threading.Thread(target=server.serve_forever, daemon=True).start()
client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=20)
results = {line.custom_id: line.result for line in client.messages.batches.results("b")}
print(f"anthropic {anthropic.__version__}")
for kind, result in results.items():
    print(f"{kind!r} is parsed as {type(result).__name__}, its type is {result.type!r}")
succeeded = [kind for kind, result in results.items() if isinstance(result, MessageBatchSucceededResult)]
new = results["paused"]
print(f"message of the last: {new.message}")
sys.exit((succeeded, new.type, new.message, list(results)) != (["paused"], "paused", None, TYPES))
PYTHON
