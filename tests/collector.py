"""A collector of OpenTelemetry as far as tests need one: it takes spans by OTLP over HTTP and keeps them."""

from __future__ import annotations

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PATH = "/v1/traces"
SECONDS_MAX = 120


class Collector:
    """A listener on a thread, until the block ends."""

    def __init__(self) -> None:
        self.services: set[str] = set()  # names of those that sent something
        self._spans: list[Span] = []
        self._came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                is_right = self.path == PATH and self.headers["Content-Type"] == "application/x-protobuf"
                if is_right:
                    collector._take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200 if is_right else 400)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Say nothing of each request."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}{PATH}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans_of(self, trace_id: str, *wanted: str) -> dict[str, Span]:
        """Return the spans of a trace by their names, once there are all that are wanted."""
        deadline = time.monotonic() + SECONDS_MAX
        with self._came:
            while True:
                found = {one.name: one for one in self._spans if one.trace_id.hex() == trace_id}
                missing = set(wanted) - found.keys()
                if not missing:
                    return found
                assert time.monotonic() < deadline, f"{sorted(missing)} did not come, {sorted(found)} did"
                self._came.wait(1.0)

    def _take(self, request: ExportTraceServiceRequest) -> None:
        with self._came:
            for resource in request.resource_spans:
                self.services.update(
                    each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
                )
                self._spans += (span for scope in resource.scope_spans for span in scope.spans)
            self._came.notify_all()


def attributes_of(span: Span) -> dict[str, Any]:
    """Return the attributes of a span by their names."""
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}
