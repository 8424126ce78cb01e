#!/usr/bin/env bash
# openai 3.57.0 with httpx2 2.16.2, run on 2026-11-29.
# Expected: the lines that `client.files.content(id).iter_lines()` gives are the lines of a JSON Lines file, one JSON
#   document each, as the output file of a batch has them.
# Seen: a line also ends at U+2028, U+2029 and U+0085, which JSON allows inside a string as they are. The line of an
#   answer with such a character comes in two halves, and json.loads refuses the first. Bytes split at b"\n" are right.
# Matters: a job that collects a paid batch loses the answers of models that write such a character, or fails whole.
# Source: LineDecoder in httpx2/_decoders.py uses str.splitlines; openai hands its lines through.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile openai==3.57.0 httpx2==2.16.2
timeout 60 "$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import sys
import threading

import httpx2
import openai

CHARACTERS = ["\u2028", "\u2029", "\u0085", "\t"]
ANSWERS = [f"before{character}after" for character in CHARACTERS]
FILE = "".join(json.dumps({"custom_id": str(n), "text": text}, ensure_ascii=False) + "\n" for n, text in enumerate(ANSWERS))


class Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = FILE.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def is_json(line):
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none", max_retries=0, timeout=20)
content = client.files.content("file-1")
lines = list(content.iter_lines())
whole = sum(map(is_json, lines))
from_bytes = [json.loads(line)["text"] for line in content.read().split(b"\n") if line]
print(f"openai {openai.__version__}, httpx2 {httpx2.__version__}: a file of {len(ANSWERS)} lines")
print(f"iter_lines(): {len(lines)} lines, {whole} of them JSON")
print(f"bytes split at \\n: {len(from_bytes)} lines, all texts as sent: {from_bytes == ANSWERS}")
sys.exit((len(lines), whole, from_bytes) != (7, 1, ANSWERS))
PYTHON
