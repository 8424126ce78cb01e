#!/usr/bin/env bash
# botocore 1.44.8, DynamoDB, run on 2026-11-29.
# Expected: a 200 whose body is a page of HTML, as a proxy or a portal between the cluster and AWS gives it, raises a
#   ResponseParserError or a ClientError.
# Seen: no error. `list_tables`, `get_item` and `batch_get_item` return a response of metadata alone: the same as
#   "no table", "no such item" and "nothing left to ask for". For the same page S3 raises a ClientError, which calls it a 500.
# Matters: a lookup from Spark writes "not found" for each row, and the job is green.
# Source: _parse_body_as_json in botocore/parsers.py keeps a body that is not JSON as {"message": body}; for an answer
#   with status 200 no member of the operation has that name, so nothing of it is left.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile botocore==1.44.8
timeout 60 "$folder/venv/bin/python" - <<'PYTHON'
import http.server
import sys
import threading

import botocore
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

PAGE = b"<!doctype html><html><body><h1>Sign in to the network</h1></body></html>"


class Portal(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Portal)
threading.Thread(target=server.serve_forever, daemon=True).start()


def client(service):
    return botocore.session.Session().create_client(
        service,
        region_name="eu-north-1",
        endpoint_url=f"http://127.0.0.1:{server.server_port}",
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=Config(retries={"max_attempts": 0}, connect_timeout=5, read_timeout=10),
    )


def seen(call, **arguments):
    try:
        response = call(**arguments)
    except (ResponseParserError, BotoCoreError, ClientError) as error:
        return type(error).__name__
    return sorted(response.keys() - {"ResponseMetadata"})


KEY = {"id": {"S": "1"}}
dynamodb = client("dynamodb")
got = {
    "dynamodb list_tables": seen(dynamodb.list_tables),
    "dynamodb get_item": seen(dynamodb.get_item, TableName="t", Key=KEY),
    "dynamodb batch_get_item": seen(dynamodb.batch_get_item, RequestItems={"t": {"Keys": [KEY]}}),
    "s3 list_buckets": seen(client("s3").list_buckets),
}
print(f"botocore {botocore.__version__}: what a 200 with a page of HTML gives, beside ResponseMetadata")
for call, what in got.items():
    print(f"{call}: {what}")
sys.exit(list(got.values()) != [[], [], [], "ClientError"])
PYTHON
